"""Make views: cache directories that link to another system's files in place, as one version of a source.

`CACHE/KIND/OWNER--NAME/KEY/NAME/KEY/…` holds links to the files, and beside them a record of the splits and of each
file as it was when it was checked (see `formats.saved`). KEY is the version, 40 hexadecimal digits such as a commit. It
is part of every file's path, so it is part of everything derived from the names: fingerprints, run ids, and what ranks
compare.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.digest import canonical_json
from headrace.formats.saved import VIEW
from headrace.storage import local


def is_whole(view: Path) -> bool:
    """Return whether a view exists, and its files are those that were checked."""
    try:
        checked = json.loads((view / VIEW).read_bytes())["checked"]
        return all(_stamp(view / name) == stamp for name, stamp in checked.items())
    except (OSError, ValueError, KeyError):
        return False


def write_view(
    view: Path, address: str, splits: Mapping[str, Mapping[str, Path]], about: Mapping[str, Any] | None = None
) -> None:
    """Write a view in one step, replacing an older one.

    splits: name below KEY → file, of each split. about: further entries of its record, as JSON.
    """
    key = view.parent.name
    files = {f"{key}/{name}": path.absolute() for own in splits.values() for name, path in own.items()}
    record = {
        **(about or {}),
        "address": address,
        "splits": {split: [f"{key}/{name}" for name in own] for split, own in splits.items()},
        "checked": {name: _stamp(path) for name, path in files.items()},
    }
    local.make_directory(view.parent)
    made = local.temporary_for(view)
    try:
        with local.storing(view):
            for name, path in files.items():
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                (made / name).symlink_to(path)
            (made / VIEW).write_bytes(canonical_json(record))
            shutil.rmtree(view, ignore_errors=True)
            made.rename(view)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _stamp(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
