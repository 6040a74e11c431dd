"""What a run tells while it works: one stream of events for progress bars, logs and tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

StepName = Literal[
    "shard.written",
    "shard.synced",
    "shard.linked",
    "receipt.linked",
    "index.linked",
    "manifest.linked",
    "success.linked",
    "links.made",
    "splits.moved",
    "beside.linked",
    "splits.linked",
    "stage.removed",
]


@dataclass(frozen=True)
class StageBegan:
    """A stage of `tasks` tasks begins; `done` of them were finished by an earlier attempt."""

    stage: str
    tasks: int
    done: int


@dataclass(frozen=True)
class TaskDone:
    """A task finished: its subject, the rows and bytes it read."""

    stage: str
    subject: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Step:
    """A step of publishing has just been taken for `subject`."""

    name: StepName
    subject: str


@dataclass(frozen=True)
class Note:
    """A sentence the user should see; `kind` is "info" or "warning"."""

    kind: Literal["info", "warning"]
    text: str


Event = StageBegan | TaskDone | Step | Note
OnEvent = Callable[[Event], None]


def silent(event: Event) -> None:
    """Listen to nothing."""
