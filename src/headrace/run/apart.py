"""Source and output lie apart: a run inside its source would hide the raw shards, or be the source of the next run.

A directory with runs in it is a prepared dataset to everyone who opens it: raw shards beside or below them are not seen
there any more.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from headrace.errors import SettingsError
from headrace.storage.remote_path import RemotePath, path_of


def check_apart(out: Path, places: Iterable[str | Path], files: Sequence[tuple[Path, str]]) -> None:
    """Raise `SettingsError` where `out` is in a directory of the source, or holds a file of it. Links are followed.

    places: as the recipe was given them; those that are no directory hold nothing but themselves.
    """
    target = _parts(out)
    for place in map(path_of, places):
        inner = _parts(place.expanduser() if not isinstance(place, RemotePath) else place)
        if target[: len(inner)] == inner and (isinstance(place, RemotePath) or place.expanduser().is_dir()):
            where = "is the source itself" if target == inner else f"is inside the source {place}"
            raise SettingsError(f"out {out}: {where}, whose shards its runs would hide; give an output elsewhere")
    for directory in sorted({os.path.dirname(str(path)) for path, _ in files}):
        if _parts(path_of(directory))[: len(target)] == target:
            found = next(path for path, _ in files if os.path.dirname(str(path)) == directory)
            raise SettingsError(
                f"out {out}: holds a file of the source, {found}, which its runs would hide; give an output elsewhere,"
                " or move the source out of it"
            )


def _parts(place: Path) -> tuple[str, ...]:
    """A path in a form that compares: through links, from the root."""
    return place.parts if isinstance(place, RemotePath) else Path(os.path.realpath(place)).parts
