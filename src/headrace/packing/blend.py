"""Name the datasets to prepare, with weights or per split, from a JSON file, from Python, or as one
plain path.

    {"datasets": [{"name": "math", "path": "gsm8k.jsonl.gz", "weight": 0.7, "mapping": {...}}, ...]}
    {"train": [{...}], "val": [{...}], "test": [{...}]}

Paths are relative to the blend file. What weights mean is defined in `choose`. `valid` is another
word for `val`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from headrace.bins import Alignment
from headrace.credentials import refuse_credentials
from headrace.dataset.tables import with_paths
from headrace.errors import InputError, SettingsError, setting, setting_name
from headrace.formats.listing import list_files
from headrace.formats.registry import file_type_of_name, stem_of_name
from headrace.gate.json import LARGEST, parse_object
from headrace.packing.chats.settings import ChatForm
from headrace.settings import Settings
from headrace.storage.places import expanded, is_address, path_of
from headrace.storage.settings import Places

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
"""The splits as directories and readers of packed data call them."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_GROUPS = frozenset(("datasets", "train", "val", "valid", "test"))


class BlendSource(ChatForm):
    """One dataset of a blend.

    name: a directory of the output is called so: letters, digits, ".", "_", "-".
    path: files, directories or glob patterns; relative ones are relative to the blend file.
    weight: relative share of tokens, 0 or more; see `choose`. Has no unit: 2 and 4 ask for the same
    as 0.5 and 1. repeat: how often weights may take its rows of train, 1 or more; epochs: how often
    they are taken where weights are equal, such as 0.5 or 2.5.
    alignment: of the loss masks in pickled .npy files of bins, which do not say it.
    """

    name: str
    path: Places = Field(min_length=1)
    weight: float = 1.0
    repeat: float = Field(1, ge=1, le=1000)
    epochs: float = Field(1, gt=0, le=1000)
    alignment: Alignment | None = None

    @field_validator("name")
    @classmethod
    def _is_a_directory_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value) or "__" in value:
            raise ValueError(
                f"the {setting_name('name')} {value!r} of a dataset cannot be part of the names of"
                " directories and links; use letters, digits, '.', '-' and single '_' only"
            )
        return value

    @field_validator("weight")
    @classmethod
    def _is_a_share(cls, value: float) -> float:
        if not math.isfinite(value) or value < 0:
            raise ValueError(
                f"{setting_name('weight')} is {value}; give a finite number, 0 or more"
            )
        return value


@dataclass(frozen=True)
class BlendDataset:
    """A source with its files.

    split: given by a blend per split, else None. names: of the files, unique in the run.
    """

    source: BlendSource
    split: Split | None
    paths: Sequence[Path]
    names: Sequence[str]
    sizes: Sequence[int]


class SourceBlend(Settings):
    """The datasets to split by ratio, or those of each split. Exactly one of the two forms."""

    datasets: tuple[BlendSource, ...] = ()
    train: tuple[BlendSource, ...] = ()
    valid: tuple[BlendSource, ...] = ()
    test: tuple[BlendSource, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _val_is_valid(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "val" not in value:
            return value
        if value.get("valid"):
            raise ValueError("the blend has both val and valid, which are one split; give one list")
        result = {}
        for name, sources in value.items():
            if name != "valid":
                result["valid" if name == "val" else name] = sources
        return result

    @model_validator(mode="after")
    def _one_form(self) -> SourceBlend:
        per_split = []
        for split in SPLITS:
            if getattr(self, split):
                per_split.append(split)
        if bool(self.datasets) == bool(per_split):
            what = "no dataset"
            if per_split:
                what = "both datasets and " + ", ".join(per_split)
            raise ValueError(
                f"the blend has {what}; give either a list `datasets`, or lists `train`, `val`,"
                " `test`"
            )
        for group, sources in self.groups():
            names = [source.name for source in sources]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ValueError(
                    f"dataset {twice[0]!r} appears twice in {setting_name(group or 'datasets')};"
                    " name them differently"
                )
            if any(source.epochs != 1 for source in sources) and any(
                source.repeat != 1 or source.weight != sources[0].weight
                for source in sources
                if source.weight > 0
            ):
                raise ValueError(
                    f"{setting_name(group or 'datasets')} has epochs beside weights or repeat, and"
                    " each says how much of a dataset is taken; give epochs alone, or weights with"
                    " repeat"
                )
            if not any(source.weight > 0 for source in sources):
                raise ValueError(
                    f"all weights of {setting_name(group or 'datasets')} are 0; give one dataset a"
                    " weight"
                )
        return self

    def groups(self) -> list[tuple[Split | None, tuple[BlendSource, ...]]]:
        """List (split, its datasets), or one (None, datasets) if rows are split by ratio."""
        if self.datasets:
            return [(None, self.datasets)]
        result: list[tuple[Split | None, tuple[BlendSource, ...]]] = []
        for split in SPLITS:
            if getattr(self, split):
                result.append((split, getattr(self, split)))
        return result

    def find_files(self) -> list[BlendDataset]:
        """List the datasets with a weight above 0 and their files, in the order of the blend."""
        datasets = []
        for split, source in (
            (split, source) for split, sources in self.groups() for source in sources
        ):
            if source.weight > 0:
                listing = list_files(source.path)
                if split is None:
                    prefix = source.name
                else:
                    prefix = f"{split}/{source.name}"
                names = [f"{prefix}/{name}" for name in listing.names]
                paths = [listing.path(index) for index in range(len(names))]
                datasets.append(BlendDataset(source, split, paths, names, listing.sizes.tolist()))
        return datasets


def blend_of(value: object) -> object:
    """Convert what a user passed as a blend into the form that `SourceBlend` checks.

    A path to a blend file, a path (or paths) to data, a mapping, or a list of datasets.
    """
    if isinstance(value, str | PurePath):
        return _blend_of_path(value)
    if isinstance(value, Mapping):
        if _GROUPS.isdisjoint(value):
            return {"datasets": [value]}
        return value
    if isinstance(value, Sequence) and value:
        paths = []
        for item in value:
            if isinstance(item, str | PurePath):
                paths.append(item)
        if len(paths) == len(value):
            return plain(paths)
        return {"datasets": list(value)}
    return value


def _blend_of_path(value: str | PurePath) -> dict[str, Any]:
    """Read a blend file, or make a blend of a path to data."""
    refuse_credentials(value)
    path = path_of(value)
    record = _blend_file(path)
    if record is None:
        return plain([path])
    blend = dict(record)
    for name, sources in record.items():
        if name in _GROUPS and isinstance(sources, list):
            blend[name] = [_source(source, name, path) for source in sources]
    return blend


def is_blend_file(path: Path) -> bool:
    """Return whether a path is a blend file, not data.

    Raises `InputError` for a JSON file that cannot be read.
    """
    return _blend_file(expanded(path)) is not None


def plain(paths: Sequence[str | PurePath]) -> dict[str, Any]:
    """Make a blend of one dataset, named after its first file or directory."""
    first = path_of(paths[0])
    if file_type_of_name(first.name) is None:
        stem = first.name
    else:
        stem = stem_of_name(first.name)
    name = re.sub(r"[^A-Za-z0-9._-]+|__+", "-", stem).strip("-._") or "data"
    return {"datasets": [{"name": name, "path": list(paths)}]}


def _source(source: object, group: str, blend: Path) -> dict[str, Any]:
    """Return a dataset of a blend file, with its paths relative to the file."""
    if not isinstance(source, Mapping):
        raise SettingsError(
            f"{setting_name(group)} holds {source!r}",
            path=blend,
            value=source,
            remedy="write objects with name and path",
        )
    result = dict(source)
    for key in ("split", "subset"):
        if result.pop(key, None) is not None:
            raise SettingsError(
                f"dataset {source.get('name')!r} has {setting(key, source[key])}, which names part"
                " of a data set on a hub",
                path=blend,
                value=source[key],
                remedy=f"download it and give its files as {setting_name('path')}",
            )
    paths = source.get("path", [])
    if isinstance(paths, str):
        paths = [paths]
    if not isinstance(paths, list) or not all(isinstance(item, str) for item in paths):
        raise SettingsError(
            f"dataset {source.get('name')!r} has {setting('path', source.get('path'))}",
            path=blend,
            value=source.get("path"),
            remedy="write a text or a list of texts",
        )
    # the address of a table becomes the path of its copy
    tables = [with_paths(item) for item in paths]
    result["path"] = [
        table if table != path or is_address(path) else str(blend.parent / expanded(Path(path)))
        for path, table in zip(paths, tables, strict=True)
    ]
    text_field = result.pop("text_field", None)  # what other tools call the column of plain text
    mapping = result.get("mapping", {})
    if text_field is not None and isinstance(mapping, Mapping):
        result["mapping"] = {"text": text_field, **mapping}
    return result


def _blend_file(path: Path) -> Mapping[str, Any] | None:
    """Read the blend in a .json file; None if the path is data, or does not exist, which the reader
    reports.
    """
    if path.suffix != ".json" or not path.is_file():
        return None
    with path.open("rb") as file:
        if file.read(64).lstrip()[:1] != b"{":
            return None
    try:
        with path.open("rb") as file:
            record = parse_object(file.read(LARGEST + 1))
    except ValueError as error:
        raise InputError(
            f"is neither a blend nor JSON data ({error})", path=path, remedy="correct it"
        ) from error
    if isinstance(record, dict) and not _GROUPS.isdisjoint(record):
        return record
    return None
