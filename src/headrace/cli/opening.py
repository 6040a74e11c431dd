"""Open what a command was pointed at; the index of many plain shards shows its progress on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from headrace.cli.printing import printer
from headrace.cli.text_columns import PlainShards

if TYPE_CHECKING:
    from headrace.stream.loader.dataset import Dataset


def open_source(path: str, shards: PlainShards) -> Dataset:
    """`headrace.open` with the words of --types, --null-values and --cache-dir."""
    from headrace.stream.loader.dataset import open_dataset

    options = shards.options()
    with index_progress() as hear:
        return open_dataset(path, **options, on_progress=hear)


@contextmanager
def index_progress() -> Iterator[Callable[[int, int], None]]:
    """A listener that draws a bar from the first call on; silence where there is no terminal."""
    from rich.progress import Progress, TaskID

    console = printer("err")
    bars = Progress(console=console, transient=True, disable=not console.is_terminal)
    lock = Lock()
    tasks: list[TaskID] = []

    def hear(done: int, total: int) -> None:
        with lock:
            if not tasks:
                bars.start()
                tasks.append(bars.add_task("index the shards", total=total))
            bars.update(tasks[0], completed=max(done, int(bars.tasks[0].completed)))

    try:
        yield hear
    finally:
        bars.stop()
