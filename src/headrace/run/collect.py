"""Sweep what killed runs left behind: temporary files and intermediate stages; unfinished runs only when asked."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.dataset.manifest import read_manifest
from headrace.errors import InputError, RunBusy
from headrace.run.prepare import STAGE_DIRECTORY, only_writer
from headrace.storage import local


@dataclass(frozen=True)
class Swept:
    """What was removed, and the runs left alone because another process is working on them."""

    removed: tuple[Path, ...]
    bytes: int
    busy: tuple[Path, ...]


def collect(out: str | Path, *, incomplete: Literal["keep", "remove"] = "keep") -> Swept:
    """Remove temporary files and finished runs' stages below a dataset directory.

    Nothing that a manifest or a receipt names is touched. incomplete="remove" also deletes runs without manifest,
    which gives up the work they could resume. Raises `InputError` if `out` is no dataset directory.
    """
    out = Path(out)
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
    links = local.strays(out / "splits") if (out / "splits").is_dir() else []
    for path in [*links, *sorted(each for each in out.glob(f"{local.TEMP_PREFIX}*") if each.is_symlink())]:
        size += _remove(path)
        removed.append(path)
    return Swept(tuple(removed), size, tuple(busy))


def _remove(path: Path) -> int:
    if path.is_dir() and not path.is_symlink():
        size = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        shutil.rmtree(path)
        return size
    size = path.lstat().st_size
    path.unlink(missing_ok=True)
    return size
