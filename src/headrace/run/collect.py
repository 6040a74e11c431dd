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
from headrace.storage import local
from headrace.storage.cache_room import cache_directory
from headrace.storage.places import path_of, place_of
from headrace.storage.run_lock import locked_briefly, remove_run


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

    A process that works on a run is not disturbed, nor is one that begins to. Files that a manifest
    or a receipt names are not touched. incomplete="remove" also deletes runs
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
    for run, list_doomed in leftovers:
        # What is listed before it is known that nobody works on the run belongs to nobody: names
        # of temporary files are never used again. What a process began or finished since stays.
        listed = list_doomed()
        if not listed:
            continue
        try:
            with (
                nullcontext()
                if run is None
                else locked_briefly(run, "remove it" if run in listed else "look")
            ):
                remaining = set(list_doomed())
                for path in listed:
                    removed_bytes = _remove(path) if path in remaining else None
                    if removed_bytes is not None:
                        removed.append(path)
                        size += removed_bytes
        except RunBusy:
            busy.append(run or out)
    if not in_store:
        removed += _links(out)
    return Swept(tuple(removed), size, tuple(busy))


# The run that nobody may be working on, and a function that lists what to remove.
_Doomed = tuple[Path | None, Callable[[], list[Path]]]


def _here(out: Path, incomplete: Literal["keep", "remove"]) -> Iterator[_Doomed]:
    if not (out / "runs").is_dir():
        raise InputError(
            "is not a dataset directory (no runs/ in it)",
            path=out,
            remedy="give the --out directory of a prepared dataset",
        )

    def doomed(run: Path) -> list[Path]:
        if run.name.startswith(local.TEMP_PREFIX):  # of a process that was killed removing it
            return [run]
        if read_manifest(run) is not None:
            stage = run / STAGE_DIRECTORY
            return [*local.strays(run), *([stage] if stage.is_dir() else [])]
        if incomplete == "remove":
            return [run]
        return local.strays(run)

    for run in sorted(directory for directory in (out / "runs").iterdir() if directory.is_dir()):
        yield run, partial(doomed, run)


def _links(out: Path) -> Iterator[Path]:
    """Remove and yield the temporary links of killed processes, unless one makes links now."""
    with local.alone(out / "runs", others="skip") as is_alone:
        for link in sorted(out.glob(f"{local.TEMP_PREFIX}*")) if is_alone else ():
            if link.is_symlink():
                link.unlink(missing_ok=True)
                yield link


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
            yield work, partial(_there, [work])
    yield None, lambda: _there([out / "runs" / name / STAGE_DIRECTORY for name in sorted(finished)])
    if incomplete == "remove":
        yield None, lambda: [out / "runs" / name for name in sorted(runs - finished)]


def _there(directories: list[Path]) -> list[Path]:
    return [directory for directory in directories if directory.is_dir()]


def _remove(path: Path) -> int | None:
    """Remove a file or directory, and return its size in bytes; None if it did not exist."""
    location = place_of(path)
    if not path.is_symlink() and (path.is_dir() or not path.exists()):
        if path.name == STAGE_DIRECTORY:
            return location.delete_below()
        return remove_run(path)
    if location.has_links:
        size = path.lstat().st_size
    else:
        size = location.stat().size
    location.delete()
    return size
