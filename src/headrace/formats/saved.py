"""Read folders written by `save_to_disk` of Hugging Face datasets: which files hold rows, and of
which split.

A `Dataset` is a folder whose state.json lists Arrow files. Other Arrow files in it, such as the
caches of `map` and shards of an earlier save, are not rows. A `DatasetDict` is a folder whose
dataset_dict.json names the splits, and each split is a `Dataset` in a folder of that name. The
features in dataset_info.json describe how to show values, such as the names of classes. The types
of the columns are those of the Arrow files, so the features are not needed to read rows.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from headrace.errors import InputError
from headrace.formats.registry import FileType, file_type_of_name, reading
from headrace.gate.json import LARGEST, parse_object

_DICT = "dataset_dict.json"
_STATE = "state.json"
_INFO = "dataset_info.json"
_ONE_NAME = re.compile(r"[^/\\\0.][^/\\\0]*")
_INDICES = ("_indices_data_files", "_indices_files")


def is_saved(names: Collection[str]) -> bool:
    """Check whether `save_to_disk` wrote a directory with these entries."""
    return _DICT in names or (_STATE in names and _INFO in names)


def saved_files(directory: Path, names: Collection[str]) -> dict[str, list[str]] | None:
    """List the files of each split of a `save_to_disk` folder; None for any other directory.

    The files are relative to the directory, with forward slashes. A `Dataset` is one split, called
    "". Raises `InputError` if the folder is damaged, or uses a feature that is not supported, such
    as row indices.
    """
    if not is_saved(names):
        return None
    if _STATE in names:
        return {"": _listed(directory)}
    path = directory / _DICT
    splits = _object(path).get("splits")
    if not isinstance(splits, list) or not all(
        isinstance(name, str) and _ONE_NAME.fullmatch(name) for name in splits
    ):
        raise InputError(
            f"splits is {splits!r}, not a list of names", path=path, remedy="save the dataset again"
        )
    if not splits or len(set(splits)) < len(splits):
        raise InputError(
            f"splits is {splits!r}, and each must be listed once",
            path=path,
            remedy="save the dataset again",
        )
    return {split: [f"{split}/{name}" for name in _listed(directory / split)] for split in splits}


def _listed(directory: Path) -> list[str]:
    """List the files of a `Dataset`, from its state.json."""
    path = directory / _STATE
    state = _object(path)
    chosen = next((key for key in _INDICES if state.get(key)), None)
    if chosen is not None:
        raise InputError(
            f"{chosen} names files that select and order the rows, as early versions of"
            " datasets wrote them, and headrace does not read those",
            path=path,
            remedy="load it with such a version, call flatten_indices() and save it again",
        )
    files = state.get("_data_files")
    if not isinstance(files, list):
        raise InputError(
            f"_data_files is {files!r}, not a list of files",
            path=path,
            remedy="save the dataset again",
        )
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in files]
    for name in names:
        plain = isinstance(name, str) and _ONE_NAME.fullmatch(name)
        if not plain or file_type_of_name(str(name)) != FileType.named("arrow"):
            raise InputError(
                f"_data_files names {name!r}, not an Arrow file beside it",
                path=path,
                remedy="save the dataset again",
            )
    listed = [str(name) for name in names]
    if not listed:
        raise InputError(
            "lists no files, so the dataset has no rows", path=path, remedy="give one with rows"
        )
    if listed != sorted(set(listed)):
        raise InputError(
            "lists its files in an order that is not that of their names, which headrace reads in",
            path=path,
            remedy="save the dataset again, with fewer than 100,000 shards",
        )
    return listed


def _object(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(
            "is missing, so the dataset is not whole", path=path, remedy="fetch it again"
        ) from None
    except OSError as error:
        with reading(path):
            raise error
    try:
        return parse_object(data)
    except ValueError as error:
        raise InputError(
            f"is not JSON as it is saved ({error})", path=path, remedy="save the dataset again"
        ) from error
