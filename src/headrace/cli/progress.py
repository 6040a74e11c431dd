"""Show progress on a terminal; print only warnings elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.text import Text

from headrace.cli.output import in_flags, printer
from headrace.printable import printable
from headrace.recipe import recipe_of_run
from headrace.run.events import Event, Note, OnEvent, StageBegan, TaskDone

if TYPE_CHECKING:
    from rich.progress import TaskID


@contextmanager
def progress_on(
    console: Console, recipe: str, detail: Literal["full", "quiet"] = "full"
) -> Iterator[OnEvent]:
    """Yield a listener that draws bars with rows/s and time left; off a terminal, it prints only
    warnings.
    """
    if not console.is_terminal or detail == "quiet":
        yield lambda event: _note(console, event, "quiet")
        return
    from rich.progress import (  # loads slowly, and is not needed off a terminal
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[of]:<10}"),
        TextColumn("{task.fields[rate]}"),  # rows per second since the stage began
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
    ) as bars:
        words = recipe_of_run(recipe).stages
        stages: dict[str, TaskID] = {}
        rows: dict[str, int] = {}
        lock = Lock()  # events come from the threads of tasks

        def on_event(event: Event) -> None:
            with lock:
                show(event)

        def show(event: Event) -> None:
            if isinstance(event, StageBegan):
                title, of = words.get(event.stage, (event.stage, "tasks"))
                stages[event.stage] = bars.add_task(title, total=event.tasks, of=of, rate="")
                rows[event.stage] = 0
                if event.done:
                    bars.console.print(
                        f"resuming: {event.done} of {event.tasks} {of} of “{title}” are done"
                        " already"
                    )
            elif isinstance(event, TaskDone):
                task = stages[event.stage]
                rows[event.stage] += event.rows
                elapsed = bars.tasks[task].elapsed or 0.0
                rate = ""
                if rows[event.stage] and elapsed > 0.05:
                    rate = f"{rows[event.stage] / elapsed:,.0f} rows/s"
                bars.update(task, advance=1, rate=rate)
            else:
                _note(bars.console, event, "full")

        yield on_event


def _note(console: Console, event: Event, detail: Literal["full", "quiet"]) -> None:
    if isinstance(event, Note) and (detail == "full" or event.level == "warning"):
        style = "dim"
        if event.level == "warning":
            style = "bold yellow"
        label = ""
        if event.level == "warning":
            label = "warning: "
        console.print(Text(f"{label}{printable(in_flags(event.marked))}", style=style))


@contextmanager
def shard_progress(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a listener that draws a bar of finished shards from its first call on; off a terminal,
    nothing.

    It takes (finished, total), from any thread.
    """
    from rich.progress import Progress

    console = printer("err")
    bars = Progress(console=console, transient=True, disable=not console.is_terminal)
    lock = Lock()
    tasks: list[TaskID] = []

    def on_progress(done: int, total: int) -> None:
        with lock:
            if not tasks:
                bars.start()
                tasks.append(bars.add_task(doing, total=total))
            bars.update(tasks[0], completed=max(done, int(bars.tasks[0].completed)))

    try:
        yield on_progress
    finally:
        bars.stop()
