"""Sweep what killed runs left behind: temporary files and intermediate stages; unfinished runs only when asked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.dataset.manifest import read_manifest
from headrace.dataset.plain import cache_directory
from headrace.dataset.pointer import SPLITS
from headrace.errors import InputError, RunBusy
from headrace.run.context import STAGE_DIRECTORY
from headrace.run.in_store import work_directories
from headrace.run.point import remove_single_links
from headrace.run.prepare import only_writer
from headrace.storage import local
from headrace.storage.places import path_of, place_of


@dataclass(frozen=True)
class Swept:
    """What was removed, and the runs left alone because another process is working on them."""

    removed: tuple[Path, ...]
    bytes: int
    busy: tuple[Path, ...]


def collect(
    out: str | Path, *, incomplete: Literal["keep", "remove"] = "keep", work_dir: str | Path | None = None
) -> Swept:
    """Remove temporary files and finished runs' stages below a dataset directory.

    Nothing that a manifest or a receipt names is touched. incomplete="remove" also deletes runs without manifest,
    which gives up the work they could resume. In an object store there are no temporary files; what killed runs left
    is in `work_dir`, where they were made (see `prepare`): finished runs' are removed, unfinished ones' with the run.
    A stage is in the store only where processes shared the run out.
    Raises `InputError` if `out` is no dataset directory.
    """
    out = path_of(out)
    if place_of(out).writes == "whole files":
        return _collect_in_store(out, incomplete, cache_directory(work_dir, "work_dir"))
    if not (out / "runs").is_dir():
        raise InputError(
            f"{out}: is no dataset directory (no runs/ in it); give the --out directory of a prepared dataset"
        )
    removed: list[Path] = []
    busy: list[Path] = []
    size = 0
    for run in sorted(each for each in (out / "runs").iterdir() if each.is_dir()):
        try:
            with only_writer(run):
                doomed = local.strays(run)
                finished = read_manifest(run) is not None
                if finished and (run / STAGE_DIRECTORY).is_dir():
                    doomed.append(run / STAGE_DIRECTORY)
                if not finished and incomplete == "remove":
                    doomed = [run]
                for path in doomed:
                    size += _remove(path)
                removed += doomed
        except RunBusy:
            busy.append(run)
    pointer = out / SPLITS
    single = pointer.is_dir() and not pointer.is_symlink()  # the layout of earlier versions
    links = [each for place in (out, *([pointer] if single else [])) for each in place.glob(f"{local.TEMP_PREFIX}*")]
    for path in sorted(links):
        if path.is_symlink():
            size += _remove(path)
            removed.append(path)
        elif path.is_dir() and path.name.startswith(f"{local.TEMP_PREFIX}{SPLITS}-") and remove_single_links(path):
            removed.append(path)
    return Swept(tuple(removed), size, tuple(busy))


def _collect_in_store(out: Path, incomplete: Literal["keep", "remove"], base: Path) -> Swept:
    runs = {path.name for path in (out / "runs").iterdir()}
    if not runs and not work_directories(base, out):
        raise InputError(f"{out}: is no dataset (no runs/ in it); give the --out place of a prepared dataset")
    finished = {name for name in runs if read_manifest(out / "runs" / name) is not None}
    removed: list[Path] = []
    busy: list[Path] = []
    size = 0
    for work in work_directories(base, out):
        if incomplete == "keep" and not any(work.name.startswith(name) for name in finished):
            continue
        try:
            with only_writer(work):
                size += _remove(work)
            removed.append(work)
        except RunBusy:
            busy.append(work)
    for name in sorted(finished):  # of processes that shared it out and were killed
        stage = out / "runs" / name / STAGE_DIRECTORY
        removed_bytes = place_of(stage).delete_below()
        if removed_bytes is not None:
            size += removed_bytes
            removed.append(stage)
    if incomplete == "remove":
        for name in sorted(runs - finished):
            size += place_of(out / "runs" / name).delete_below() or 0
            removed.append(out / "runs" / name)
    return Swept(tuple(removed), size, tuple(busy))


def _remove(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        return place_of(path).delete_below() or 0
    size = path.lstat().st_size
    path.unlink(missing_ok=True)
    return size
