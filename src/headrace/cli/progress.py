"""Progress of a run on a terminal; silence elsewhere but for warnings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from headrace.printable import printable
from headrace.recipe import registration_of_run
from headrace.run.events import Event, Note, OnEvent, StageBegan, TaskDone


class _RateColumn(TextColumn):
    """Rows per second since the stage began."""

    def __init__(self) -> None:
        super().__init__("{task.fields[rate]}")


@contextmanager
def progress_on(console: Console, recipe: str, detail: Literal["full", "quiet"] = "full") -> Iterator[OnEvent]:
    """A listener that draws bars with rows/s and time left; where there is no terminal, warnings are all it prints."""
    if not console.is_terminal or detail == "quiet":
        yield lambda event: _note(console, event, "quiet")
        return
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[of]:<10}"),
        _RateColumn(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
    ) as bars:
        words = registration_of_run(recipe).stages
        stages: dict[str, TaskID] = {}
        rows: dict[str, int] = {}

        def hear(event: Event) -> None:
            if isinstance(event, StageBegan):
                title, of = words.get(event.stage, (event.stage, "tasks"))
                stages[event.stage] = bars.add_task(title, total=event.tasks, of=of, rate="")
                rows[event.stage] = 0
                if event.done:
                    bars.console.print(f"resuming: {event.done} of {event.tasks} {of} of “{title}” are done already")
            elif isinstance(event, TaskDone):
                task = stages[event.stage]
                rows[event.stage] += event.rows
                elapsed = bars.tasks[task].elapsed or 0.0
                rate = f"{rows[event.stage] / elapsed:,.0f} rows/s" if rows[event.stage] and elapsed > 0.05 else ""
                bars.update(task, advance=1, rate=rate)
            else:
                _note(bars.console, event, "full")

        yield hear


def _note(console: Console, event: Event, detail: Literal["full", "quiet"]) -> None:
    if isinstance(event, Note) and (detail == "full" or event.kind == "warning"):
        style = "bold yellow" if event.kind == "warning" else "dim"
        label = "warning: " if event.kind == "warning" else ""
        console.print(Text(f"{label}{printable(event.text)}", style=style))
