"""Attempts: what a task is doing, or why it failed, until it has a receipt. They are for people and never believed.

A record is written when a task starts and again when it fails, among the intermediate files of the run, and removed
when the task has its receipt; what is left of a run that stopped are the tasks that failed and those that were cut
short. The next attempt at the run tells of them, and does both again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from headrace.digest import canonical_json
from headrace.errors import HeadraceError, StoreError
from headrace.storage import local

_TOLD = 3  # tasks that a message names


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A task that has no receipt yet. number: attempt at it, from 1; seconds: until it failed."""

    stage: str
    task: int
    subject: str
    state: Literal["started", "failed"]
    number: int
    started_at: str
    input_bytes: int
    seconds: float | None = None
    error: str | None = None


def keep(directory: Path) -> None:
    """Make the directory; nothing is recorded without it, so a task that outlives its run leaves nothing."""
    with suppress(OSError, StoreError):
        local.make_directory(directory)


def begin(directory: Path, stage: str, task: int, subject: str, input_bytes: int) -> Attempt:
    """A task starts. What cannot be written is left out here and below, for nothing depends on it."""
    before = _read(_path(directory, stage, task))
    attempt = Attempt(
        stage=stage,
        task=task,
        subject=subject,
        state="started",
        number=1 if before is None else before.number + 1,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        input_bytes=input_bytes,
    )
    _write(directory, attempt)
    return attempt


def fail(directory: Path, attempt: Attempt, error: BaseException, seconds: float) -> None:
    """It failed, so many seconds after it started."""
    said = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
    _write(directory, replace(attempt, state="failed", seconds=round(seconds, 3), error=said))


def end(directory: Path, attempt: Attempt) -> None:
    """It has a receipt."""
    with suppress(OSError):
        _path(directory, attempt.stage, attempt.task).unlink(missing_ok=True)


def left(directory: Path, stage: str, tasks: Sequence[int]) -> list[Attempt]:
    """What earlier attempts at the run left of these tasks of a stage."""
    if not directory.is_dir():
        return []
    found = (_read(_path(directory, stage, task)) for task in tasks)
    return [each for each in found if each is not None]


def told(stage: str, attempts: Sequence[Attempt]) -> str | None:
    """A sentence about the tasks that have to be done again; None if there are none."""
    failed = [each for each in attempts if each.state == "failed"]
    cut = [each for each in attempts if each.state == "started"]
    parts = []
    if failed:
        why = "; ".join(f"{each.subject} (attempt {each.number}): {each.error}" for each in failed[:_TOLD])
        parts.append(f"{_tasks(failed)} failed: {why}" + ("; …" if len(failed) > _TOLD else ""))
    if cut:
        subjects = ", ".join(each.subject for each in cut[:_TOLD])
        parts.append(f"{_tasks(cut)} cut short: {subjects}" + (", …" if len(cut) > _TOLD else ""))
    return f"{stage}: before, {'; '.join(parts)}; doing them again" if parts else None


def _tasks(attempts: Sequence[Attempt]) -> str:
    return "1 task" if len(attempts) == 1 else f"{len(attempts)} tasks"


def _path(directory: Path, stage: str, task: int) -> Path:
    return directory / f".{stage}-{task:05d}.json"  # hidden: no part of what the run makes


def _write(directory: Path, attempt: Attempt) -> None:
    with suppress(OSError, StoreError):
        path = _path(directory, attempt.stage, attempt.task)
        temporary = local.temporary_for(path)
        try:
            temporary.write_bytes(canonical_json(asdict(attempt)))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _read(path: Path) -> Attempt | None:
    with suppress(OSError, ValueError, TypeError):
        return Attempt(**json.loads(path.read_bytes()))
    return None
