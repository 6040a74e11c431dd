"""The DataLoader that our datasets hand out: a worker that dies costs a restart, and no row.

When worker processes die the batches received so far are known, and an epoch's order does not depend on who reads it:
new workers go on with the batch that comes next. Every batch is as if nothing had happened. The third time that workers
die and no batch came in between is an error. What a worker raises is no death: it is raised in the loop, and told
to the other ranks.

The guard stands on names that torch keeps to itself, alike in 2.4 to 2.13. Under a torch that has changed them this is
a plain DataLoader: a death is an error in the loop, and that is said once in the log.
"""

from __future__ import annotations

import functools
import logging
import re
import signal
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver, get_start_method, resource_tracker
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils.data import DataLoader

from headrace.errors import EngineError, HeadraceError
from headrace.stream.loader.rebatched import told_to_accelerate
from headrace.stream.ranks.stats import StreamStats
from headrace.stream.read.batch import Batch

if TYPE_CHECKING:
    from headrace.stream.workers.guarded_workers import GuardedWorkers

log = logging.getLogger("headrace")

_END = object()
_PATIENCE_S = 1.0  # an error may come a moment before the end of the process that is its cause
_REMEDY = (
    "give the job more memory, or use fewer workers; if it is no matter of memory, run the transform with num_workers=0"
    " to see what it does"
)
_LAST_TIME = 3
_TOLD_BY_TORCH = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)")


class WatchedLoader(DataLoader[Batch]):
    """A DataLoader over a `StreamingDataset` or what wraps one; what a worker raises is known on all ranks.

    Workers that die are begun anew, twice for each batch. Raises `EngineError` where that does not help.
    """

    def set_epoch(self, epoch: int) -> None:
        """Make the following passes this epoch; trainers that tell their loader the epoch call it."""
        self._source.set_epoch(epoch)

    def stats(self) -> StreamStats:
        """Return what the present pass, or the last one, has cost its loop so far; see `StreamLoader.stats`."""
        found: StreamStats = self._source.stats()
        return found

    def __len__(self) -> int:
        """Batches of the next pass; torch's own would warn when a later pass, of a whole epoch, is longer."""
        return len(self._source)

    @property
    def _source(self) -> Any:  # torch knows no more of it than that it is a dataset
        return self.dataset

    def __iter__(self) -> Any:  # torch names its private iterator here
        begin_next = getattr(self.dataset, "begin_next", None)
        if begin_next is not None:
            begin_next()
        begun: list[GuardedWorkers] = []
        batches = self._unharmed(begun) if self.num_workers else super().__iter__()
        watched = getattr(self.dataset, "watched", None)
        batches = batches if watched is None else watched(batches)
        if self.num_workers:  # the dataset knows now who loops over them
            begun.append(self._begin())
        return told_to_accelerate(batches, steps=len(self))

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
        """Workers for a pass: those of the pass before if they persist and live, else new ones."""
        idle: Any = self._iterator
        if hasattr(idle, "fallen") and idle.fallen():
            log.warning("DataLoader: workers %s died between two passes; all are begun anew", idle.fallen())
            self._iterator = None
        method = self.multiprocessing_context.get_start_method() if self.multiprocessing_context else get_start_method()
        with _sheltered_start(method):
            return cast("GuardedWorkers", super().__iter__())

    def _unharmed(self, begun: list[GuardedWorkers]) -> Generator[Batch, None, None]:
        """The batches of a pass, whichever workers die. begun: its workers, when the first batch is asked for."""
        workers = begun.pop()
        earlier: list[int] = []
        received = 0
        while True:
            try:
                batch = next(workers, _END)
            except Exception as error:
                if not hasattr(workers, "fallen"):
                    raise
                fallen = workers.fallen(patience_s=0 if isinstance(error, HeadraceError) else _PATIENCE_S)
                if not fallen:
                    raise
                rank = str(self._source.topology)
                deaths = [death_of(f"{rank}, worker {number}", *workers.ending(number)) for number in fallen]
                final = why_not_again(earlier, deaths, received)
                if final is not None:
                    raise EngineError(final) from error
                told = "; ".join(deaths)
                log.warning("%s; all workers are begun anew after %d batches of the pass", told, received)
                earlier.append(received)
                workers = self._begin_anew(received)
                continue
            if batch is _END:
                return
            received += 1
            yield cast(Batch, batch)

    def _begin_anew(self, received: int) -> GuardedWorkers:
        """New workers for the rest of the pass; the loop's random numbers stay what they were."""
        self._iterator = None
        with torch.random.fork_rng(devices=[]), self._source.going_on_after(received):
            return self._begin()


@functools.cache
def _say_once(what: str) -> None:
    log.warning(
        "%s; DataLoader workers go without a guard: if one dies the loop ends with an error after some seconds, to be"
        " resumed from the last state; for workers that are begun anew use torch 2.4 to 2.13",
        what,
    )


@contextmanager
def _sheltered_start(method: str) -> Generator[None, None, None]:
    """Processes begun inside never see SIGINT; this one sees it at the latest when the block is left.

    A terminal signals Ctrl-C to all its processes, and this one decides. A worker that dies of it while it imports its
    libraries makes the DataLoader's own ending fail: at times the loop then waits for ever. method: how workers start.
    A fork server is no one's own: it is started without the shelter, and so are its children.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    if method != "fork":
        resource_tracker.ensure_running()  # starting it inside would let SIGINT through again
    if method == "forkserver":
        forkserver.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def death_of(reader: str, process: int, code: int | None) -> str:
    """Say what happened to a worker. code: its exit status, minus a signal; None: unknown."""
    ending = "died" if code is None else f"ended with status {code} unasked"
    if code is not None and code < 0:
        known = -code in {int(each) for each in signal.Signals}
        name = signal.Signals(-code).name if known else f"signal {-code}"
        ending = f"was killed by {name}" + (", as when memory ends" if name == "SIGKILL" else "")
    return f"{reader}: process {process} {ending}"


def why_not_again(earlier: Sequence[int], deaths: Sequence[str], received: int) -> str | None:
    """Say why a pass whose workers died now must not go on; None: it may.

    earlier: batches received when workers died before, each time. received: batches of the pass so far.
    """
    if list(earlier).count(received) + 1 < _LAST_TIME:
        return None
    told = "; ".join(deaths)
    return f"{told}; workers died {_LAST_TIME} times, and no batch came in between; {_REMEDY}"


def told_by_torch(error: BaseException) -> list[int]:
    """Find the processes of workers that died in the error of a torch DataLoader; none if it is another error."""
    match = _TOLD_BY_TORCH.search(str(error)) if type(error) is RuntimeError else None
    return [int(process) for process in match[1].split(",")] if match else []


def died(rank: str, processes: Sequence[int]) -> str:
    """Say what became of a DataLoader that is not ours, whose workers are not begun anew."""
    told = "; ".join(death_of(f"{rank}, a worker", process, None) for process in processes)
    return f"{told}; resume from the last state, or use data_loader(), which begins workers anew; {_REMEDY}"
