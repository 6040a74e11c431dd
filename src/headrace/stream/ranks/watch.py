"""A thread beside a pass, in the rank's own process: tells the other processes of a failure here, and hears of theirs.

It looks at the store of the process group twice a second; a batch costs a few assignments. A process of this machine
that ends in the midst of its pass is told of too (`neighbours`). It also logs who waits for data (`stall`): each rank
of itself, and rank 0 of all, from a moment that every rank posts once a second. Where there is no group of several
processes and no `stall_seconds` there is no thread. The thread ends with the pass.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict
from types import TracebackType
from typing import Self, TypeVar

from headrace.dataset.index import SplitIndex
from headrace.errors import StreamError
from headrace.stream.ranks.at_exit import RUNNING
from headrace.stream.ranks.beginnings import Agreement, RanksDiffer
from headrace.stream.ranks.progress import Progress, Snapshot
from headrace.stream.ranks.shared_failure import Bulletin, Failure, group_bulletin, in_short
from headrace.stream.ranks.stall import Said, complaints, from_text, to_text
from headrace.stream.ranks.topology import Topology

log = logging.getLogger("headrace")

_LOOK_SECONDS = 0.5
_LOOKS_PER_BEAT = 2
_END_SECONDS = 10.0  # a look takes milliseconds, and longer where the machine or the store is busy

Given = TypeVar("Given")


class Watch:
    """Watches one pass of one rank; use it as `for batch in watch.over(batches)`.

    Makes no difference to what is delivered: only to which error is seen where. agree: raises where this rank begins
    its pass otherwise than another one, see `beginnings`; None: that is not compared. said: of the passes before.
    index: names the blocks that are waited for; None: there are none, and stall_seconds is None too.
    """

    _is_finalizing = staticmethod(sys.is_finalizing)  # found here even when the interpreter has emptied this module

    def __init__(
        self,
        index: SplitIndex | None,
        topology: Topology,
        progress: Progress,
        *,
        epoch: int,
        stall_seconds: float | None,
        agree: Agreement | None = None,
        said: Said | None = None,
    ) -> None:
        self.progress = progress
        self._epoch = epoch
        self._stall_seconds = stall_seconds
        self._beat = "" if index is None else f"headrace/beat/{index.split}/{index.identity[:16]}"
        self._looks = 0
        self._said = Said() if said is None else said
        self._agree = agree
        self.failure: Failure | None = None
        self._awaited: list[Failure] = []
        self._index = index
        self._topology = topology
        self._bulletin: Bulletin | None = group_bulletin()
        self._neighbours = None if self._bulletin is None else self._bulletin.neighbours
        if self._bulletin is not None:
            self._bulletin.rank = topology.rank, topology.world_size
        self._place = {"rank": topology.rank, "world_size": topology.world_size, "epoch": epoch}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def over(self, batches: Iterator[Given]) -> Generator[Given, None, None]:
        """The batches as they come, the first when all ranks have begun; what they raise is told to the other ranks.

        Raises `StreamError` when another rank has failed, and when ranks are about to read different things.
        """
        with self, closing(batches) if isinstance(batches, Generator) else nullcontext():
            self._begin()
            while True:
                self.check()
                self.progress.wait()
                try:
                    batch = next(batches, None)
                except Exception as error:
                    self.tell(error)
                    raise
                if batch is None:
                    return
                self.check()
                self.progress.got()
                yield batch

    def _begin(self) -> None:
        if self._agree is None or self._bulletin is None:
            return
        try:
            self._agree.begin(self._bulletin, self.check)
        except RanksDiffer as error:
            log.error("%s", error)
            raise
        except StreamError as error:
            self.tell(error)
            raise

    def check(self) -> None:
        """Raise `StreamError` if another rank has failed, when all have heard of it."""
        if self.failure is not None:
            self._await_all(self.failure)
            raise StreamError(f"{self.failure}; mend it there, then resume all ranks from the last state")

    def tell(self, error: Exception) -> None:
        """Make an error of this rank known to the others, and give them a moment to hear it."""
        rank, world_size = self._topology.rank, self._topology.world_size
        if self._bulletin is None:
            log.error("%s", Failure(rank=rank, world_size=world_size, message=in_short(error)))
            return
        failure = self._bulletin.failure(in_short(error))
        log.error("%s", failure)
        if self.failure is not None:
            return
        try:
            failure = self._bulletin.post(failure)
        except RuntimeError as lost:
            log.warning("rank %d of %d: cannot tell the other ranks: %s", rank, world_size, lost)
        else:
            self._await_all(failure)

    def _await_all(self, failure: Failure) -> None:
        """Give the other processes a moment to hear: the store goes with the process that keeps it."""
        if self._bulletin is not None and failure not in self._awaited:
            self._awaited.append(failure)
            with suppress(RuntimeError):
                self._bulletin.await_all(failure)

    def __enter__(self) -> Self:
        if self._neighbours is not None:
            with suppress(RuntimeError):  # the store has gone: then there is nobody to hear
                self._neighbours.enter(self, **self._place)
        if self._bulletin is not None or self._stall_seconds is not None:
            self._thread = threading.Thread(target=self._run, name="headrace-watch", daemon=True)
            RUNNING.add(self)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_finalizing():  # with a stream left open: no module is whole any more, and the thread has ended
            return
        self.progress.done()
        self.stop()
        with suppress(RuntimeError):  # the last moment, lest an earlier one be taken for the present
            self._post(self.progress.snapshot(self._index))

    def stop(self, error: Exception | None = None) -> None:  # noqa: ARG002 - the bulletin tells it
        """End the thread, and say that this process is in no pass."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_END_SECONDS)
            if not self._thread.is_alive():  # else it is waited for once more before the interpreter ends
                RUNNING.discard(self)
        if self._neighbours is not None:
            with suppress(RuntimeError):
                self._neighbours.leave(self)

    def _run(self) -> None:
        try:
            self._look()
            while not self._stop.wait(_LOOK_SECONDS):
                self._look()
        except RuntimeError as lost:  # the store went with its process: this pass may well be the last to end
            self._neighbours = None
            rank, world_size = self._topology.rank, self._topology.world_size
            log.info("rank %d of %d: no longer watches the others: %s", rank, world_size, lost)

    def _look(self) -> None:
        while self._bulletin is not None and (failure := self._bulletin.unread()) is not None:
            self._hear(failure)
        self._look_around()
        self._looks += 1
        if self._stall_seconds is not None and self._looks % _LOOKS_PER_BEAT == 0:
            self._compare(self._stall_seconds)

    def _hear(self, failure: Failure) -> None:
        self.failure = self.failure or failure  # before anybody can read of it
        log.error("%s", failure)

    def _look_around(self) -> None:
        """Tell of processes of this machine that ended in the midst of their passes."""
        if self._bulletin is None or self._neighbours is None:
            return
        for lost in self._neighbours.lost():
            failure = Failure(**asdict(lost), processes=self._bulletin.others + 1, lost=True)
            try:
                failure = self._bulletin.post(failure)
            finally:
                self._hear(failure)

    def _post(self, moment: Snapshot) -> None:
        """Make a moment of this rank known to rank 0."""
        if self._stall_seconds is not None and self._bulletin is not None and self._bulletin.keeps_latest:
            self._bulletin.store.set(f"{self._beat}/{self._topology.rank}", to_text(self._epoch, moment))

    def _compare(self, stall_seconds: float) -> None:
        """Post this rank's moment; log what is wrong and was not said lately."""
        moments = {self._topology.rank: self.progress.snapshot(self._index)}
        self._post(moments[self._topology.rank])
        if self._topology.rank == 0 and self._bulletin is not None and self._bulletin.keeps_latest:
            store = self._bulletin.store
            for rank in range(1, self._topology.world_size):
                if store.check([f"{self._beat}/{rank}"]):
                    epoch, moment = from_text(store.get(f"{self._beat}/{rank}"))
                    if epoch == self._epoch:
                        moments[rank] = moment
        for sentence in self._said.due(complaints(moments, stall_seconds=stall_seconds), now=time.monotonic()):
            log.warning("%s", sentence)
