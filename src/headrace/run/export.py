"""Hand a run's tree to a program that expects it in a directory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.errors import StoreError
from headrace.storage import local


def export_tree(run: Path, target: Path, directories: Sequence[str]) -> None:
    """Give the files below `run/<directory>` second names below `target/<directory>` (hard links, else copies).

    Files of another run would mix with these, so a target directory that holds others, also under the same names, is
    refused with `StoreError` before anything is changed.
    """
    for directory in directories:
        files = sorted(path for path in (run / directory).rglob("*") if path.is_file())
        names = {path.relative_to(run) for path in files}
        base = target / directory
        present = sorted(path for path in base.rglob("*") if path.is_file()) if base.is_dir() else []
        for path in present:
            name = path.relative_to(target)
            if name not in names or not local.same_bytes(path, run / name):
                raise StoreError(f"{path}: is not of this run and would mix with it; empty {base} and run again")
    for directory in directories:
        base = target / directory
        for path in sorted(path for path in (run / directory).rglob("*") if path.is_file()):
            place = target / path.relative_to(run)
            local.make_directory(place.parent)
            local.alias(path, place)
        local.make_directory(base)
