"""Read folders written by `save_to_disk` of Hugging Face datasets: which files hold rows, and of
which split.

A `Dataset` is a folder whose state.json lists Arrow files. Other Arrow files in it, such as the
caches of `map` and shards of an earlier save, are not rows. A `DatasetDict` is a folder whose
dataset_dict.json names the splits, and each split is a `Dataset` in a folder of that name. The
features in dataset_info.json describe how to show values, such as the names of classes. The types
of the columns are those of the Arrow files, so the features are not needed to read rows.

A view is a directory of the cache with links to the files of one commit on the hub. It is read in
the same way: its record lists the files of each split. `CACHE/hub/OWNER--NAME/COMMIT/NAME/COMMIT/…`
holds the links, and beside them the record, with each file as it was when it was checked. The
commit is part of every file's path, so it is part of everything derived from the names:
fingerprints, run ids, and what ranks compare.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from headrace.digest import canonical_json
from headrace.errors import CorruptShard, InputError
from headrace.formats.registry import FileType, file_type_of_name, reading
from headrace.gate.json import LARGEST, parse_object, read_object
from headrace.storage import local

VIEW = ".view.json"  # the record of a view
_IN_VIEW = re.compile(r"(.*/hub/[^/]+--[^/]+/[0-9a-f]{40}/[^/]+)(?:/.*)?", re.DOTALL)
_DICT = "dataset_dict.json"
_STATE = "state.json"
_INFO = "dataset_info.json"
_ONE_NAME = re.compile(r"[^/\\\0.][^/\\\0]*")
_INDICES = ("_indices_data_files", "_indices_files")


def is_saved(names: Collection[str]) -> bool:
    """Check whether `save_to_disk` wrote a directory with these entries, or it is a view."""
    return VIEW in names or _DICT in names or (_STATE in names and _INFO in names)


def saved_files(directory: Path, names: Collection[str]) -> dict[str, list[str]] | None:
    """List the files of each split of a `save_to_disk` folder or a view; None for any other
    directory.

    The files are relative to the directory, with forward slashes. A `Dataset` is one split, called
    "". Raises `InputError` if the folder is damaged, or uses a feature that is not supported, such
    as row indices.
    """
    if not is_saved(names):
        return None
    if VIEW in names:
        return dict(_object(directory / VIEW)["splits"])
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


def view_of(path: str | Path) -> Path | None:
    """Return the view that contains a path or equals it: a directory whose parent is named after
    the version.
    """
    match = _IN_VIEW.fullmatch(str(path))
    if match is not None and os.path.isfile(os.path.join(match[1], VIEW)):
        return Path(match[1])
    return None


def address_of(path: str | Path) -> str | None:
    """Return the address, with its version, of a view or of a file on the hub in one; None for
    other paths.
    """
    view = view_of(path)
    if view is None:
        return None
    address = str(_object(view / VIEW)["address"])
    name = Path(path).relative_to(view).as_posix()
    if name == ".":
        return address
    return f"{address.partition('@')[0]}@{name}"


def info_of(path: str | Path) -> dict[str, Any] | None:
    """Return the `dataset_info` in README.md for the dataset of a view; None for other paths."""
    view = view_of(path)
    if view is None:
        return None
    return _object(view / VIEW).get("dataset_info")


def is_whole_view(view: Path, address: str) -> bool:
    """Return whether a view exists, is of this address, and its files are those that were
    checked.
    """
    try:
        record = read_object(view / VIEW)
        checked = record["checked"]
        return record["address"] == address and all(
            _stamp(view / name) == stamp for name, stamp in checked.items()
        )
    except (CorruptShard, OSError, KeyError, AttributeError):
        return False


def write_view(
    view: Path,
    address: str,
    splits: Mapping[str, Mapping[str, Path]],
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write a view in one step, replacing an older one.

    splits: name below KEY → file, of each split. about: further entries of its record, as JSON.
    """
    key = view.parent.name
    files = {
        f"{key}/{name}": path.absolute()
        for split_files in splits.values()
        for name, path in split_files.items()
    }
    record = {
        **(about or {}),
        "address": address,
        "splits": {
            split: [f"{key}/{name}" for name in split_files]
            for split, split_files in splits.items()
        },
        "checked": {name: _stamp(path) for name, path in files.items()},
    }
    local.make_directory(view.parent)
    temporary = local.temporary_for(view)
    try:
        with local.storing(view):
            for name, path in files.items():
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                (temporary / name).symlink_to(path)
            (temporary / VIEW).write_bytes(canonical_json(record))
            shutil.rmtree(view, ignore_errors=True)
            temporary.rename(view)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _stamp(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


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
