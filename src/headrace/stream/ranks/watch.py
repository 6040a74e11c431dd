"""Watch a pass of a rank, by a thread in the rank's own process, once all ranks have started it.

Twice a second it looks for processes of this machine that have died, reads failures of other
processes (see `group`), and once a second it publishes a snapshot of its progress under
`headrace/beat/<stream>/<rank>`. Each rank logs when it waits too long, and rank 0 logs it for all
ranks (see `stats`). A batch costs a few assignments. Without other processes and without
stall_seconds there is no thread. It ends with the pass.

What the thread learns is raised in the loop, before its next batch or while it waits for one.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakKeyDictionary

from headrace.errors import StreamError
from headrace.stream.ranks.group import RUNNING, Failure, default_group, failure_of
from headrace.stream.ranks.peers import RankGone
from headrace.stream.ranks.start import RanksDiffer, Starts, start_together
from headrace.stream.ranks.stats import Complaint, Progress, Snapshot, complaints, due
from headrace.stream.read.ahead import leaving, waiting

if TYPE_CHECKING:
    from headrace.stream.loader.stream_loader import StreamLoader
    from headrace.stream.workers.partners import Partners

log = logging.getLogger("headrace")

_LOOK_S = 0.5
_LOOKS_PER_BEAT = 2
_END_S = 10.0  # a look takes milliseconds, and longer where the machine or the store is busy
# by stream: when each was last logged
_SAID: WeakKeyDictionary[Any, dict[Complaint, float]] = WeakKeyDictionary()

Given = TypeVar("Given")


class Watch:
    """Watches one pass of a loader: `for batch in Watch(loader, contract).over(batches)`.

    It changes no batch, only which error is seen where. stream: the loader; hashable, with weak
    references. contract: see `StreamLoader.contract`; None skips the start barrier. progress: where
    the reading threads note what they read. stall_seconds: None never logs a stall. ahead: batches
    that are asked for before the training loop wants them. Raises `StreamError` if the store of the
    process group is gone and there are other ranks.
    """

    # still found when the interpreter has emptied this module
    _is_finalizing = staticmethod(sys.is_finalizing)

    def __init__(
        self,
        stream: StreamLoader,
        contract: Mapping[str, Any] | None,
        progress: Progress | None = None,
        *,
        stall_seconds: float | None = None,
        ahead: int = 0,
    ) -> None:
        if progress is None:
            self.progress = Progress()
        else:
            self.progress = progress
        self.failure: Failure | None = None  # of another process, once heard of
        self._store_gone: StreamError | None = None
        self._raised: StreamError | None = None  # by `check`
        self._stream = stream
        self._contract = contract
        self._stall_seconds = stall_seconds
        self._topology = stream.topology
        self._epoch = stream.epoch
        self._ahead = ahead
        self._logged_at = _SAID.setdefault(stream, {})
        self._shared: Partners | None = getattr(stream, "shared", None)
        try:
            self._group = default_group()
        except StreamError:
            # a rank that reads alone needs no other
            if self._topology.world_size > 1:
                raise
            self._group = None
        self._local = None
        self._settled = (0, 0)
        self._beat = ""
        if self._group is not None:
            self._local = self._group.local
            self._settled = self._group.settled, self._group.settled_lost
            self._group.topology = self._topology
            if (
                stall_seconds is not None
                and self.progress.index is not None
                and self._group.keeps_latest
            ):
                self._beat = (
                    f"headrace/beat/{self.progress.index.split}/{self.progress.index.identity[:16]}"
                )
        self._has_store = self._group is not None
        self._looks = 0
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def over(self, batches: Iterator[Given]) -> Generator[Given, None, None]:
        """Yield the batches once all ranks have started the pass, and report their errors to the
        other ranks.

        Raises `RankGone` when another rank has died, `StreamError` when it has failed, and
        `RanksDiffer` when the ranks are about to read different data.
        """
        with self, self._closing(batches):
            self.check()
            starts = self._start()
            while True:
                self.check()
                self.progress.wait()
                try:
                    with waiting(self.check if self._group is not None else None):
                        batch = next(batches, None)
                except Exception as error:
                    self._raise_for(error)
                    raise
                self.check()
                if batch is None:
                    return
                self.progress.got()
                if starts is not None:
                    starts.got(self.progress.steps)
                yield batch

    @contextmanager
    def _closing(self, batches: Iterator[Given]) -> Generator[None, None, None]:
        """Close the batches at the end, without waiting for a read if another rank is gone."""
        # found now: globals are gone when an interpreter ends with a stream open
        close = batches.close if isinstance(batches, Generator) else None
        try:
            yield
        finally:
            if close is not None and self._raised is None:
                close()
            elif close is not None:
                with leaving():
                    close()

    def _start(self) -> Starts | None:
        """Wait until all ranks start this pass and agree on it; None without other ranks, and
        without partners.
        """
        if self._contract is None or self._group is None:
            return None
        if self._topology.world_size < 2 and self._topology.partners < 2:
            return None
        try:
            starts = start_together(
                self._stream, self._contract, self._topology, self._group, check=self.check
            )
            return starts.begin(self.progress, self._ahead)
        except RanksDiffer as error:
            self._mark_stopped()
            log.error("%s", error)
            raise
        except StreamError as error:
            self._mark_stopped()
            # a death is known to all that can hear of it
            if self.failure is None and not isinstance(error, RankGone):
                self.report(error)
            raise

    def _raise_for(self, error: Exception) -> None:
        """Report an error of a pass, unless it is of another rank, which is raised instead of what
        torch says.
        """
        if error is self._raised:
            return
        distributed = sys.modules.get("torch.distributed")
        if self._group is not None and isinstance(error, getattr(distributed, "DistError", ())):
            self._mark_stopped()
            raise self._group.store_gone() from error
        self.report(error)

    def check(self) -> None:
        """Raise `StreamError` if another rank has failed, once all ranks have read of it, and
        `RankGone` if it has died.

        A failure that is heard of after the last check of a pass is raised by the next pass of this
        process.
        """
        if self.failure is None and self._group is not None:
            self.failure = self._group.heard_after(*self._settled)
        if self.failure is not None and not self._meets(self.failure):
            if self._group is not None:
                self._group.await_all(self.failure)
                self._group.settle()
            self._raised = self.failure.error()
        elif self._store_gone is not None:
            self._raised = self._store_gone
        if self._raised is not None:
            self._mark_stopped()
            raise self._raised

    def _meets(self, failure: Failure) -> bool:
        """Return whether this loop meets the error itself, at the same batch: its reader does."""
        return (
            failure.reader is not None
            and self._shared is not None
            and failure.reader == self._shared.reader
        )

    def report(self, error: Exception) -> None:
        """Log an error of this rank, publish it to the others, and give them a moment to
        read it.
        """
        if self._group is None:
            failure = failure_of(error, self._topology)
        else:
            failure = self._group.failure(error)
            if self._shared is not None and self._shared.error is error:
                failure = replace(failure, reader=self._shared.reader)
        log.error("%s", failure)
        if self._group is None or not self._group.has_store:
            return
        if self.failure is not None:
            self._group.settle()
            return
        try:
            self._group.await_all(self._group.post(failure))
            self._group.settle()
            self._mark_stopped()
        except RuntimeError as lost:
            self._group.has_store = False
            log.warning("%s: cannot report the error to the other ranks: %s", self._topology, lost)

    def _mark_stopped(self) -> None:
        if self._local is not None:
            self._local.stop(self)

    def stop(self, error: Exception | None = None) -> None:  # noqa: ARG002 - the group reports it
        """End the thread, and publish that this process reads no pass."""
        self._ends.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_END_S)
            # else it is joined once more before the interpreter ends
            if not self._thread.is_alive():
                RUNNING.discard(self)
        if self._local is not None:
            self._local.leave(self)

    def __enter__(self) -> Self:
        if self._local is not None:
            self._local.enter(self, self._topology, epoch=self._epoch)
        if self._group is not None or self._stall_seconds is not None:
            self._thread = threading.Thread(target=self._run, name="headrace-watch", daemon=True)
            RUNNING.add(self)
            self._thread.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # the stream was left open: modules are torn down, and the thread has ended
        if self._is_finalizing():
            return
        self.progress.done()
        self.stop()
        with suppress(RuntimeError):  # rank 0 must not take an earlier snapshot for the present
            self._publish(self.progress.snapshot())

    def _run(self) -> None:
        self._look()
        while not self._ends.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        lost = []
        if self._group is not None:
            lost = self._group.look()
        self._looks += 1
        moments = {self._topology.rank: self.progress.snapshot()}
        beats = self._stall_seconds is not None and self._looks % _LOOKS_PER_BEAT == 0
        if self._has_store and self._group is not None:
            try:
                if not self._group.has_store:
                    raise RuntimeError("the store of the process group is gone")
                self._group.tell(lost)
                self._group.host_has_left()
                while (failure := self._group.unread()) is not None:
                    self._note_failure(failure)
                if beats:
                    self._exchange(moments)
            except RuntimeError as error:
                self._has_store = self._group.has_store = False
                self._lose_store(error)
        if beats and self._stall_seconds is not None:
            self._warn(moments, stall_seconds=self._stall_seconds)

    def _lose_store(self, error: RuntimeError) -> None:
        """Decide what the end of the store means; see `group`."""
        if self._group is None:
            return
        has_all = self._contract is not None and self.progress.steps == self._contract.get("steps")
        gone = None
        if self._topology.world_size > 1 and not has_all and not self._host_has_left():
            gone = self._group.store_gone()
            # it is found among those that died
            if self._host_has_left() or isinstance(gone, RankGone):
                gone = None
        if gone is None:
            log.info("%s: no longer hears other machines: %s", self._topology, error)
            return
        log.error("%s: %s", self._topology, gone)
        self._store_gone = gone

    def _host_has_left(self) -> bool:
        return self._group is not None and self._group.host_has_left()

    def _exchange(self, moments: dict[int, Snapshot]) -> None:
        """Publish this rank's snapshot, and let rank 0 add those of the others."""
        self._publish(moments[self._topology.rank])
        if self._topology.rank != 0 or not self._beat or self._group is None:
            return
        for rank in range(1, self._topology.world_size):
            if self._group.store.check([f"{self._beat}/{rank}"]):
                epoch, values = json.loads(self._group.store.get(f"{self._beat}/{rank}"))
                if epoch == self._epoch:
                    moments[rank] = Snapshot(**values)

    def _warn(self, moments: Mapping[int, Snapshot], *, stall_seconds: float) -> None:
        messages = complaints(moments, stall_seconds=stall_seconds)
        for sentence in due(messages, self._logged_at, now=time.monotonic()):
            log.warning("%s", sentence)

    def _note_failure(self, failure: Failure) -> None:
        """Note what another process has posted, unless it is a death that was noticed here."""
        if failure.pid is not None and self._group is not None:
            self._group.tell(self._group.look())
            if self._group.local is not None and failure.process in self._group.local.died:
                return
        self.failure = self.failure or failure  # before anybody can read the log
        log.error("%s", failure)

    def _publish(self, moment: Snapshot) -> None:
        if self._beat and self._group is not None and self._group.has_store:
            self._group.store.set(
                f"{self._beat}/{self._topology.rank}", json.dumps([self._epoch, asdict(moment)])
            )
