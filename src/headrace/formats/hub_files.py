"""Choose the data files of a Hugging Face hub dataset repository, and the split of each, from its listing.

The YAML head of README.md may define configurations, each with the patterns of its splits. If it defines none, file
names decide: `data/SPLIT-00000-of-00003.parquet` as `push_to_hub` writes them, else the rules of
`formats.named_splits`. A path in the address takes precedence over both. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from headrace.errors import InputError
from headrace.formats.detect import DATA_NAMES
from headrace.formats.named_splits import Mixed, splits_of
from headrace.storage.object_store import matches

_ABOUT = {"config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
_SHARDED = re.compile(r"data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_HEAD = re.compile(r"---[ \t]*\r?\n(.*?\n)---[ \t]*(?:\r?\n|\Z)", re.DOTALL)


def choose(address: str, names: Collection[str], path: str, readme: str | None) -> dict[str, list[str]]:
    """Return the data files of each split, sorted; of a single split "" if nothing names splits.

    address: for messages; names: of all files of the repository; path: a file, directory or pattern in it, or "";
    readme: the text of README.md. Raises `InputError` if no file matches, or the configuration is ambiguous.
    """
    data = sorted(filter(_is_data, names))
    configurations = {} if path or readme is None else _configurations(address, readme)
    if configurations:
        return _of_configuration(address, configurations, data)
    if path in names:
        return {"": [path]}
    if any(sign in path for sign in "*?["):
        parts = path.split("/")
        found = [name for name in data if matches(name.split("/"), parts)]
        fixed = next(depth for depth, part in enumerate(parts) if set(part) & set("*?["))
        root = "".join(f"{part}/" for part in parts[:fixed])
    else:
        root = f"{path}/" if path else ""
        found = [name for name in data if name.startswith(root)]
        sharded = [(name, match[1]) for name in found if not path and (match := _SHARDED.fullmatch(name))]
        if sharded:
            return _grouped([name for name, _ in sharded], [split for _, split in sharded])
    if not found:
        shown = ", ".join(sorted(names)[:5]) + (", …" if len(names) > 5 else "")
        what = f"holds no data file {path!r}" if path else "holds no .csv, .tsv, .jsonl, .json, .parquet or .arrow file"
        raise InputError(f"{address}: the commit {what}; it has {shown or 'no files'}")
    try:
        return _grouped(found, splits_of([name[len(root) :] for name in found]))
    except Mixed as mixed:
        raise InputError(
            f"{address}: {root}{mixed.belongs} belongs to a split by its name, and {root}{mixed.without} to none; add"
            " the path or pattern of the files that you want to the address"
        ) from None


def _is_data(name: str) -> bool:
    parts = name.split("/")
    if any(part.startswith((".", "__")) for part in parts) or parts[-1] in _ABOUT:
        return False
    return parts[-1][0] != "_" and name.lower().endswith(DATA_NAMES)


def _grouped(names: Sequence[str], splits: Sequence[str]) -> dict[str, list[str]]:
    if not splits:
        return {"": [*names]}
    told: dict[str, list[str]] = {}
    for name, split in zip(names, splits, strict=True):
        told.setdefault(split, []).append(name)
    return told


def dataset_info(address: str, readme: str) -> dict[str, Any] | None:
    """Return the `dataset_info` in README.md of the configuration that `choose` takes without a path."""
    told = _head(address, readme).get("dataset_info")
    infos = {
        str(each.get("config_name", "default")): each
        for each in (told if isinstance(told, list) else [told])
        if isinstance(each, dict)
    }
    names = _chosen(_configurations(address, readme)) or [*infos]
    return infos.get(names[0] if len(names) == 1 else "default")


def _head(address: str, readme: str) -> dict[str, Any]:
    import yaml

    from headrace.settings import load_yaml

    head = _HEAD.match(readme.removeprefix("\ufeff"))
    try:
        about = load_yaml(head[1]) if head is not None else None
    except yaml.YAMLError as error:
        raise InputError(f"{address}: the head of README.md is not YAML: {error}; add the path of the files") from error
    return about if isinstance(about, dict) else {}


def _configurations(address: str, readme: str) -> dict[str, Mapping[str, Any]]:
    """Return the configurations for which README.md names files."""
    listed = _head(address, readme).get("configs")
    if not isinstance(listed, list):
        return {}
    return {
        str(each["config_name"]): each
        for each in listed
        if isinstance(each, dict) and "config_name" in each and (each.get("data_files") or each.get("data_dir"))
    }


def _chosen(configurations: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the names of the only configuration, or of those marked as default."""
    return [
        name
        for name, each in configurations.items()
        if len(configurations) == 1 or name == "default" or each.get("default")
    ]


def _of_configuration(
    address: str, configurations: Mapping[str, Mapping[str, Any]], data: Sequence[str]
) -> dict[str, list[str]]:
    """Return the files of the only configuration, or of the default one."""
    chosen = _chosen(configurations)
    if len(chosen) != 1:
        first, told = next((name, each) for name, each in configurations.items())
        pattern = next(iter(_patterns(told).values()))[0]
        raise InputError(
            f"{address}: README.md defines the configurations {', '.join(configurations)}, and none is the default; add"
            f" the path of one's files to the address, such as /{pattern} of {first}"
        )
    told = configurations[chosen[0]]
    found: dict[str, list[str]] = {}
    for split, patterns in _patterns(told).items():
        own = {name for pattern in patterns for name in data if matches(name.split("/"), pattern.split("/"))}
        if not own:
            raise InputError(
                f"{address}: README.md says that split {split or 'train'} of {chosen[0]} is {', '.join(patterns)}, and"
                " no data file has such a name; add the path of the files to the address"
            )
        found[split] = sorted(own)
    return found


def _patterns(configuration: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the patterns of each split: `data_files` is a pattern, a list of them, or a list of splits."""
    files, directory = configuration.get("data_files"), str(configuration.get("data_dir") or "").strip("/")
    if not files:
        return {"": [f"{directory}/**/*"]}
    entries = files if isinstance(files, list) else [files]
    told: dict[str, list[str]] = {}
    for each in entries:
        split, path = (str(each.get("split", "")), each.get("path")) if isinstance(each, dict) else ("", each)
        below = [str(one) for one in (path if isinstance(path, list) else [path])]
        told.setdefault(split, []).extend(f"{directory}/{one}" if directory else one for one in below)
    return told
