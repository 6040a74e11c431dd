"""The DataLoader of headrace datasets: a dead worker costs a restart but no row.

When worker processes die, the batches received so far are known, and an epoch's order does not
depend on who reads it. New workers continue with the next batch, so the loop sees the same batches
as without the death. It is an error if workers die for the third time without a batch in between.
An exception in a worker is not a death: it is raised in the loop and published to the other ranks.

The guard uses private names of torch, which are the same in 2.4 to 2.13. If a version of torch has
changed them, this is a plain DataLoader: a death is an error in the loop, and the log says so once.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from multiprocessing import get_start_method
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import DataLoader

from headrace.errors import EngineError, HeadraceError, StreamError
from headrace.stream.loader.check_collation import report_to_accelerate
from headrace.stream.loader.stream_loader import LoopEpochs
from headrace.stream.ranks.stats import StreamStats
from headrace.stream.read.batch import Batch
from headrace.stream.workers.deaths import REMEDY, death_of, why_not_again
from headrace.stream.workers.starting import starting_without_interrupts

if TYPE_CHECKING:
    from headrace.stream.workers.guarded_workers import GuardedWorkers

log = logging.getLogger("headrace")

_END = object()
_PATIENCE_S = 1.0  # an error can arrive a moment before its process ends
_TOLD_BY_TORCH = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")


class WatchedLoader(DataLoader[Batch]):
    """A DataLoader over a `StreamingDataset`, which publishes worker errors to all ranks.

    Dead workers are restarted, twice for each batch. Raises `EngineError` if that does not help.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.sampler: Any
        self.sampler.set_epoch = LoopEpochs(self._source).set_epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the dataset, for trainers that save that of their loader."""
        state: dict[str, Any] = self._source.state_dict()
        return state

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from a saved state; see `StreamLoader.load_state_dict`."""
        self._source.load_state_dict(values)

    def set_epoch(self, epoch: int) -> None:
        """Make the following passes this epoch; called by trainers that set the epoch on their
        loader.
        """
        self._source.set_epoch(epoch)

    def stats(self) -> StreamStats:
        """Return what the current or last pass has cost its loop so far; see
        `StreamLoader.stats`.
        """
        stats: StreamStats = self._source.stats()
        return stats

    def __len__(self) -> int:
        """Return the number of batches of the epoch of the next pass; see `StreamLoader.__len__`.

        torch's own method would warn when a later epoch is longer.
        """
        return len(self._source)

    @property
    def _source(self) -> Any:  # Any: torch types it only as a dataset
        return self.dataset

    def __iter__(self) -> Any:  # Any: torch annotates it with its private iterator
        self._source.begin_next()
        begun: list[GuardedWorkers] = []
        batches = self._source.watched(
            self._unharmed(begun) if self.num_workers else super().__iter__()
        )
        if self.num_workers:  # the dataset now knows whether the loop is watched
            begun.append(self._begin())
            batches = self._started(batches, begun)
        return report_to_accelerate(batches, steps=self._source.current.steps)

    def _started(
        self, batches: Iterator[Batch], begun: list[GuardedWorkers]
    ) -> Generator[Batch, None, None]:
        """Yield the batches, and end the workers at once if the ranks do not start the pass."""
        stream_error = StreamError  # globals are gone when an interpreter ends with a loop open
        try:
            yield from batches
        except stream_error:
            if begun and hasattr(begun[0], "abandon"):
                begun.pop().abandon()
                self._iterator = None
            raise

    def _get_iterator(self) -> Any:
        if not self.num_workers:
            return super()._get_iterator()
        try:
            from headrace.stream.workers.guarded_workers import GuardedWorkers

            return GuardedWorkers(self)
        except ImportError as other:
            _say_once(f"torch {torch.__version__}: {other}")
            return super()._get_iterator()

    def _begin(self) -> GuardedWorkers:
        """Return the workers of a pass: those of the previous pass if they persist and live, else
        new ones.
        """
        idle: Any = self._iterator
        if hasattr(idle, "fallen") and idle.fallen():
            log.warning(
                "DataLoader: workers %s died between two passes; all are started again",
                idle.fallen(),
            )
            self._iterator = None
        if self.multiprocessing_context:
            method = self.multiprocessing_context.get_start_method()
        else:
            method = get_start_method()
        with starting_without_interrupts(method):
            return cast("GuardedWorkers", super().__iter__())

    def _unharmed(self, begun: list[GuardedWorkers]) -> Generator[Batch, None, None]:
        """Yield the batches of a pass and restart workers that die.

        begun: holds the workers of the pass when the first batch is requested.
        """
        workers = begun.pop()
        earlier: list[int] = []
        delivered = 0
        while True:
            try:
                batch = next(workers, _END)
            except Exception as error:
                if getattr(workers, "abandoned", False):
                    self._iterator = None
                    raise
                if not hasattr(workers, "fallen"):
                    raise
                fallen = workers.fallen(
                    patience_s=0 if isinstance(error, HeadraceError) else _PATIENCE_S
                )
                if not fallen:
                    raise
                rank = str(self._source.topology)
                deaths = []
                for number in fallen:
                    deaths.append(death_of(f"{rank}, worker {number}", *workers.ending(number)))
                final = why_not_again(earlier, deaths, delivered)
                if final is not None:
                    raise EngineError(final, remedy=REMEDY) from error
                message = "; ".join(deaths)
                log.warning(
                    "%s; all workers are started again after %d batches of the pass",
                    message,
                    delivered,
                )
                earlier.append(delivered)
                self._iterator = None
                self._source.go_on_after(delivered)
                with torch.random.fork_rng(devices=[]):  # the loop's random state stays as it is
                    workers = self._begin()
                continue
            if batch is _END:
                return
            delivered += 1
            yield cast(Batch, batch)


@functools.cache
def _say_once(what: str) -> None:
    log.warning(
        "%s; DataLoader workers are not guarded: if one dies, the loop ends with an error after"
        " some seconds, to be resumed from the last state; for workers that restart, use torch 2.4"
        " to 2.13",
        what,
    )


def dead_workers_of(error: BaseException) -> list[int]:
    """Return the dead worker processes that a torch DataLoader's error names; empty for any other
    error.
    """
    match = None
    if type(error) is RuntimeError:
        match = _TOLD_BY_TORCH.search(str(error))
    if match:
        return [int(process) for process in match[1].split(",")]
    return []


def died(rank: str, processes: Sequence[int]) -> EngineError:
    """Return the error for workers that died in a DataLoader of the user's own, which does not
    restart them.
    """
    return EngineError(
        "; ".join(death_of(f"{rank}, a worker", process, None) for process in processes),
        remedy=(
            f"resume from the last state, or use data_loader(), which restarts workers; or {REMEDY}"
        ),
    )
