"""Define the events of a running run, for progress bars, logs and tests."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from headrace.errors import spell

log = logging.getLogger("headrace")

StepName = Literal[
    "shard.written",
    "shard.synced",
    "shard.linked",
    "receipt.linked",
    "index.linked",
    "manifest.linked",
    "success.linked",
    "links.made",
    "beside.linked",
    "splits.linked",
    "stage.removed",
]


@dataclass(frozen=True)
class RunBegan:
    """Work on a run begins; a run that is reused has no such event."""

    run_id: str


@dataclass(frozen=True)
class StageBegan:
    """A stage of `tasks` tasks begins; `done` of them were finished by an earlier attempt."""

    stage: str
    tasks: int
    done: int


@dataclass(frozen=True)
class TaskDone:
    """A task has finished; `rows` and `bytes` were read for its subject."""

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
    """A sentence the user should see.

    marked: the sentence with its settings marked, see `headrace.errors`. text: it in words for
    Python.
    """

    level: Literal["info", "warning"]
    marked: str

    @property
    def text(self) -> str:
        """The sentence, with settings as arguments of Python."""
        return spell(self.marked)


Event = RunBegan | StageBegan | TaskDone | Step | Note
OnEvent = Callable[[Event], None]


def silent(event: Event) -> None:
    """Ignore the event."""


def log_warnings(event: Event) -> None:
    """Write warnings to the log and ignore other events, so that a script reports an empty test
    split, for example.
    """
    if isinstance(event, Note) and event.level == "warning":
        log.warning("%s", event.text)
