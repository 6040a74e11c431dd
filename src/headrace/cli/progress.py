"""Progress of a run on a terminal; silence elsewhere but for notes."""

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

from headrace.run.events import Event, Note, OnEvent, StageBegan, TaskDone

# What a stage does, and what its tasks are.
_STAGES = {
    "scan": ("find entities and dates", "shards"),
    "split": ("write splits", "shards"),
    "join": ("join files", "splits"),
    "nulls": ("find nulls", "shards"),
    "rewrite": ("rewrite shards", "shards"),
    "sample": ("choose a sample", "parts"),
    "tokenise": ("render and tokenise", "parts"),
    "pack": ("pack into bins", "splits"),
    "materialise": ("write bins", "shards"),
    "gather": ("gather measurements", "shards"),
    "order": ("order entities", "partitions"),
    "rows": ("list rows", "files"),
    "spread": ("sort rows by entity", "tables"),
    "frequency": ("find the frequency", "steps"),
    "clean": ("clean series", "batches"),
    "fit": ("fit scalers", "steps"),
    "write": ("scale and write series", "batches"),
    "finish": ("write reports and scalers", "steps"),
}


def _told(stage: str) -> tuple[str, str]:
    return _STAGES.get(stage, (stage, "tasks"))


class _RateColumn(TextColumn):
    """Rows per second since the stage began."""

    def __init__(self) -> None:
        super().__init__("{task.fields[rate]}")


@contextmanager
def progress_on(console: Console, detail: Literal["full", "quiet"] = "full") -> Iterator[OnEvent]:
    """A listener that draws bars with rows/s and time left; notes are printed also where there is no terminal."""
    if not console.is_terminal or detail == "quiet":
        yield lambda event: _note(console, event, detail)
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
        stages: dict[str, TaskID] = {}
        rows: dict[str, int] = {}

        def hear(event: Event) -> None:
            if isinstance(event, StageBegan):
                title, of = _told(event.stage)
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
                _note(bars.console, event, detail)

        yield hear


def _note(console: Console, event: Event, detail: Literal["full", "quiet"]) -> None:
    if isinstance(event, Note) and (detail == "full" or event.kind == "warning"):
        style = "bold yellow" if event.kind == "warning" else "dim"
        label = "warning: " if event.kind == "warning" else ""
        console.print(Text(f"{label}{event.text}", style=style))
