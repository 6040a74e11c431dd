"""Source and output lie apart: a run inside its source would hide the raw shards, or be the source of the next run.

A directory with runs in it is a prepared dataset to everyone who opens it: raw shards of a source that is that
directory are not seen there any more. Files that are merely kept below an output, and named one by one or by their own
directory, stay what they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from headrace.errors import SettingsError
from headrace.storage.places import path_of, place_of


def check_apart(out: Path, places: Iterable[str | Path], files: Sequence[tuple[Path, str]]) -> None:
    """Raise `SettingsError` where `out` is in a directory of the source, or the source in runs of `out`.

    Links are followed. places: as the recipe was given them; those that are no directory hold nothing but themselves.
    """
    try:
        str(out).encode()
    except UnicodeEncodeError:
        raise SettingsError(f"out {str(out)!a}: the name is not UTF-8; choose another output directory") from None
    target = place_of(out).real().parts
    for place in map(path_of, places):
        inner = place_of(place).real().parts
        asked_by_name = place_of(place).reads == "requests"
        if target[: len(inner)] == inner and (asked_by_name or place.is_dir()):
            where = "is the source itself" if target == inner else f"is inside the source {place}"
            raise SettingsError(f"out {out}: {where}, whose shards its runs would hide; give an output elsewhere")
    for directory in sorted({os.path.dirname(str(path)) for path, _ in files}):
        inner = place_of(path_of(directory)).real().parts
        if inner[: len(target)] == target and inner[len(target) : len(target) + 1] in (("runs",), ("splits",)):
            raise SettingsError(
                f"out {out}: holds the source itself, in {directory}, which a run beside it would hide; give an output"
                " elsewhere"
            )
