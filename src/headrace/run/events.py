"""Define the events of a running run, for progress bars, logs and tests, and draw them in a
notebook cell.

Drawing needs only the IPython that runs the cell, and changes no byte of a run.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import Any, Literal

from headrace.errors import spell
from headrace.recipe import recipe_of_run

log = logging.getLogger("headrace")

_PAUSE_S = 0.2  # minimum between drawings, except for the first and last of a stage

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


@dataclass
class _Line:
    """One stage of the drawing.

    what: what the stage does. of: the kind of its tasks. done: finished tasks of `tasks`, `first`
    of them by an earlier attempt. rows: read since it began.
    """

    what: str
    of: str
    tasks: int
    done: int
    began: float = field(default_factory=time.monotonic)
    first: int = 0
    rows: int = 0

    def html(self, now: float) -> str:
        seconds = now - self.began
        done_now = self.done - self.first
        rate = ""
        if self.rows and seconds > 0:
            rate = f"{self.rows / seconds:,.0f} rows/s"
        left = ""
        if done_now and self.done < self.tasks:
            left = f"{seconds * (self.tasks - self.done) / done_now:,.0f} s left"
        cells = (self.what, f"{self.done:,} of {self.tasks:,} {self.of}", rate, left)
        bar = f'<td><progress value="{self.done}" max="{max(1, self.tasks)}"></progress></td>'
        first, *other_cells = (f"<td style='text-align:left'>{escape(cell)}</td>" for cell in cells)
        return f"<tr>{first}{bar}{''.join(other_cells)}</tr>"


class CellProgress:
    """A listener for `prepare`, called from any thread.

    show: receives the whole drawing each time, as HTML.
    """

    def __init__(self, recipe: str, show: Callable[[str], None]) -> None:
        self._words = recipe_of_run(recipe).stages
        self._show = show
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._notes: list[str] = []
        self._drawn = 0.0

    def __call__(self, event: Event) -> None:
        """Record an event, and draw if something visible has changed."""
        with self._lock:
            urgent = True
            if isinstance(event, StageBegan):
                words = self._words.get(event.stage, (event.stage, "tasks"))
                self._lines[event.stage] = _Line(*words, event.tasks, event.done, first=event.done)
            elif isinstance(event, TaskDone):
                line = self._lines[event.stage]
                line.done += 1
                line.rows += event.rows
                urgent = line.done >= line.tasks
            elif isinstance(event, Note):
                prefix = "warning: " if event.level == "warning" else ""
                self._notes.append(f"{prefix}{event.text}")
            else:
                return
            now = time.monotonic()
            if urgent or now - self._drawn >= _PAUSE_S:
                self._drawn = now
                lines = "".join(line.html(now) for line in self._lines.values())
                notes = "".join(f"<div>{escape(note)}</div>" for note in self._notes)
                self._show(f"<div><table>{lines}</table>{notes}</div>")


def listener_here(recipe: str) -> OnEvent | None:
    """Return a listener that draws a run below the running notebook cell; None outside a
    notebook.
    """
    ipython = sys.modules.get("IPython")  # a notebook has imported it already
    if ipython is None:
        shell = None
    else:
        shell = ipython.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return None
    drawing: list[Any] = []  # the handle of the first drawing
    there: Any = import_module("IPython.display")

    def show(html: str) -> None:
        if drawing:
            drawing[0].update(there.HTML(html))
        else:
            drawing.append(there.display(there.HTML(html), display_id=True))

    return CellProgress(recipe, show)
