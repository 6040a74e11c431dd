"""Remove the leftovers of killed runs: temporary files, intermediate stages and, on request,
unfinished runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from headrace.dataset.manifest import read_manifest
from headrace.errors import InputError, RunBusy
from headrace.run.context import STAGE_DIRECTORY
from headrace.run.in_store import work_directories
from headrace.run.prepare import only_writer
from headrace.storage import local
from headrace.storage.cache_room import cache_directory
from headrace.storage.places import path_of, place_of


@dataclass(frozen=True)
class Swept:
    """The paths removed, and the runs skipped because another process is working on them."""

    removed: tuple[Path, ...]
    bytes: int
    busy: tuple[Path, ...]


def collect(
    out: str | Path,
    *,
    incomplete: Literal["keep", "remove"] = "keep",
    work_dir: str | Path | None = None,
) -> Swept:
    """Remove temporary files and finished runs' stages below a dataset directory.

    Files that a manifest or a receipt names are not touched. incomplete="remove" also deletes runs
    without a manifest, so their work cannot be resumed. An object store holds no temporary files;
    killed runs leave their files in `work_dir`, where they were made (see `prepare`). Those of
    finished runs are removed, those of unfinished runs only if incomplete="remove".
    Raises `InputError` if `out` is not a dataset directory.
    """
    out = path_of(out)
    in_store = place_of(out).writes == "whole files"
    if in_store:
        leftovers = _in_store(out, incomplete, cache_directory(work_dir, "work_dir"))
    else:
        leftovers = _here(out, incomplete)
    removed: list[Path] = []
    busy: list[Path] = []
    size = 0
    for lock, doomed in leftovers:
        try:
            with nullcontext() if lock is None else only_writer(lock):
                for path in doomed():
                    removed_bytes = _remove(path)
                    if removed_bytes is not None:
                        removed.append(path)
                        size += removed_bytes
        except RunBusy:
            busy.append(lock or out)
    return Swept(tuple(removed), size, tuple(busy))


# The path to lock, and a function that lists what to remove. It runs under the lock: files may
# change until then.
_Doomed = tuple[Path | None, Callable[[], list[Path]]]


def _here(out: Path, incomplete: Literal["keep", "remove"]) -> Iterator[_Doomed]:
    if not (out / "runs").is_dir():
        raise InputError(
            "is not a dataset directory (no runs/ in it)",
            path=out,
            remedy="give the --out directory of a prepared dataset",
        )

    def doomed(run: Path) -> list[Path]:
        if read_manifest(run) is not None:
            return [*local.strays(run), run / STAGE_DIRECTORY]
        if incomplete == "remove":
            return [run]
        return local.strays(run)

    for run in sorted(directory for directory in (out / "runs").iterdir() if directory.is_dir()):
        yield run, partial(doomed, run)
    yield (
        None,
        lambda: [link for link in sorted(out.glob(f"{local.TEMP_PREFIX}*")) if link.is_symlink()],
    )


def _in_store(out: Path, incomplete: Literal["keep", "remove"], base: Path) -> Iterator[_Doomed]:
    runs = {path.name for path in (out / "runs").iterdir()}
    works = work_directories(base, out)
    if not runs and not works:
        raise InputError(
            "is not a dataset (no runs/ in it)",
            path=out,
            remedy="give the --out place of a prepared dataset",
        )
    finished = {name for name in runs if read_manifest(out / "runs" / name) is not None}
    for work in works:
        if incomplete == "remove" or any(work.name.startswith(name) for name in finished):
            yield work, partial(list, [work])
    if incomplete == "remove":
        yield None, lambda: [out / "runs" / name for name in sorted(runs - finished)]


def _remove(path: Path) -> int | None:
    """Remove a file or directory, and return its size in bytes; None if it did not exist."""
    location = place_of(path)
    if not path.is_symlink() and (path.is_dir() or not path.exists()):
        return location.delete_below()
    if location.has_links:
        size = path.lstat().st_size
    else:
        size = location.stat().size
    location.delete()
    return size
