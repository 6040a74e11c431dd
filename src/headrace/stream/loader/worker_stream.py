"""A stream whose transform runs in worker processes; its batches are those of a stream without."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.stats import Progress
from headrace.stream.ranks.topology import Topology
from headrace.stream.ranks.watch import Watch
from headrace.stream.read.batch import Batch
from headrace.stream.read.columns import Columns
from headrace.stream.read.transform import Transform
from headrace.stream.workers.options import WorkerOptions
from headrace.stream.workers.parcel import unmade_batches
from headrace.stream.workers.staying import TransformPool


class WorkerStream(StreamLoader):
    """A `StreamLoader` that transforms in `num_workers` processes, which stay between passes.

    They start with the first pass, and end when the stream is closed or dropped, with an error of
    a pass, and with the interpreter. Without a transform they would have nothing to do, and none
    starts.
    """

    def __init__(self, *parts: Any, workers: WorkerOptions, **settings: Any) -> None:
        super().__init__(*parts, **settings)
        self._workers = workers
        self.num_workers = workers.workers
        self._mark: object = None  # of the pass that the pool works for
        self._pool: TransformPool | None = None
        if self.options.transform is not None:
            self._pool = TransformPool(self.options.transform, workers, reader=str(self.topology))

    def _with_topology(self, options: StreamOptions, topology: Topology) -> WorkerStream:
        """Return a stream of the same kind over the same rows, with workers of its own."""
        return WorkerStream(
            self.index,
            self.passes.read_block,
            options,
            self._make_passes,
            workers=self._workers,
            topology=topology,
        )

    @property
    def worker_processes(self) -> list[int]:
        """The ids of the worker processes that run now."""
        return [] if self._pool is None else self._pool.processes

    def close(self) -> None:
        """End the worker processes and leave the current pass; see `StreamLoader.close`."""
        super().close()
        if self._pool is not None:
            self._pool.close()

    def makes_batches(self) -> Callable[[Columns, int], Iterator[Any]] | None:
        """Let workers make the batches, except tables, which cost nothing to make."""
        if self._pool is None or self.options.batch_format == "arrow":
            return None
        return unmade_batches(self.options)

    def watch(self, progress: Progress, *, workers: int = 0, ahead: int = 0) -> Watch:  # noqa: ARG002 - the workers are known
        """Return the watch of a pass; see `StreamLoader.watch`."""
        return super().watch(progress, workers=self.num_workers, ahead=ahead)

    def delivered(self, batches: Generator[Batch, None, None]) -> Generator[Any, None, None]:
        """Return the batches of the current pass in the form that the loop receives."""
        if self._pool is None:
            return super().delivered(batches)
        self._mark = self._pool.begin()
        self._pool.start()
        return _left_at_the_end(super().delivered(batches), self._pool, self._mark)

    def transformed(
        self,
        batches: Generator[Batch, None, None],
        transform: Transform,  # noqa: ARG002 - that of the pool
    ) -> Generator[Any, None, None]:
        """Return the transform of the batches of the current pass, from the workers."""
        assert self._pool is not None
        return self._pool.over(
            self._mark,
            batches,
            context=self._current_pass.context,
            note=self.progress.note_making,
        )


def _left_at_the_end(
    batches: Generator[Any, None, None], pool: TransformPool, mark: object
) -> Generator[Any, None, None]:
    """Yield the batches. When the loop leaves, the thread that waits for a worker ends at once."""
    try:
        for batch in batches:  # noqa: UP028  # `yield from` would close them first
            yield batch
    finally:
        pool.leave(mark)
        batches.close()
