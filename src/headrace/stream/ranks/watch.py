"""Watch a pass from a thread in the rank's own process: failures, deaths of processes, and ranks that wait for data.

Twice a second the thread reads failures of other processes and looks for processes of this machine that have died (see
`group`). Once a second each rank publishes a snapshot of its progress under `headrace/beat/<stream>/<rank>`. Each rank
logs when it waits too long, and rank 0 logs it for all ranks:

    waits     a rank has waited longer than stall_seconds for one batch
    behind    a rank is 16 batches, and stall_seconds at its own pace, behind the foremost; without collectives only
    share     a rank waits three times as much of its time as the others, and at least a fifth: it delays every step

A batch costs a few assignments. Without other processes and without stall_seconds there is no thread. The thread ends
with the pass.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, replace
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakKeyDictionary

from headrace.errors import StreamError
from headrace.stream.ranks.agreement import RanksDiffer, start_together
from headrace.stream.ranks.group import RUNNING, Failure, default_group, failure_of
from headrace.stream.ranks.stats import Progress, Snapshot

if TYPE_CHECKING:
    from headrace.stream.loader.stream_loader import StreamLoader

log = logging.getLogger("headrace")

_LOOK_S = 0.5
_LOOKS_PER_BEAT = 2
_END_S = 10.0  # a look takes milliseconds, and longer where the machine or the store is busy
_AGAIN_S = 30.0
_BATCHES_BEHIND = 16  # reading ahead alone puts a rank less than this behind
_SHARE, _TIMES_THE_OTHERS = 0.2, 3.0

Given = TypeVar("Given")


class Watch:
    """Watches one pass of a loader: `for batch in Watch(loader, contract).over(batches)`.

    It changes no batch, only which error is seen where. stream: the loader; hashable, with weak references. contract:
    see `StreamLoader.contract`; None skips the start barrier. progress: where the reading threads note what they read.
    stall_seconds: None never logs a stall.
    """

    _is_finalizing = staticmethod(sys.is_finalizing)  # still found when the interpreter has emptied this module

    def __init__(
        self,
        stream: StreamLoader,
        contract: Mapping[str, Any] | None,
        progress: Progress | None = None,
        *,
        stall_seconds: float | None = None,
    ) -> None:
        self.progress = Progress() if progress is None else progress
        self.failure: Failure | None = None  # of another process, once heard of
        self._stream, self._contract, self._stall_seconds = stream, contract, stall_seconds
        self._topology, self._epoch = stream.topology, stream.epoch
        self._said = _SAID.setdefault(stream, {})
        self._group = default_group()
        self._local = None if self._group is None else self._group.local
        self._settled = 0 if self._group is None else self._group.settled
        self._beat = ""
        if self._group is not None:
            self._group.topology = self._topology
            if stall_seconds is not None and self.progress.index is not None and self._group.keeps_latest:
                self._beat = f"headrace/beat/{self.progress.index.split}/{self.progress.index.identity[:16]}"
        self._looks = 0
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def over(self, batches: Iterator[Given]) -> Generator[Given, None, None]:
        """Yield the batches once all ranks have started the pass, and report their errors to the other ranks.

        Raises `StreamError` when another rank has failed, and when the ranks are about to read different data.
        """
        with self, closing(batches) if isinstance(batches, Generator) else nullcontext():
            self.check()
            self._start()
            while True:
                self.check()
                self.progress.wait()
                try:
                    batch = next(batches, None)
                except Exception as error:
                    self.report(error)
                    raise
                self.check()
                if batch is None:
                    return
                self.progress.got()
                yield batch

    def check(self) -> None:
        """Raise `StreamError` if another rank has failed, once all ranks have read of it.

        A failure that is heard of after the last check of a pass is raised by the next pass of this process.
        """
        if self.failure is None and self._group is not None:
            self.failure = self._group.read_after(self._settled)
        if self.failure is not None:
            if self._group is not None:
                self._group.await_all(self.failure)
                self._group.settle()
            raise StreamError(f"{self.failure}; fix the cause there, then resume all ranks from the last saved state")

    def report(self, error: Exception) -> None:
        """Log an error of this rank, publish it to the others, and give them a moment to read it."""
        failure = failure_of(error, self._topology) if self._group is None else self._group.failure(error)
        log.error("%s", failure)
        if self._group is None:
            return
        if self.failure is not None:
            self._group.settle()
            return
        try:
            self._group.await_all(self._group.post(failure))
            self._group.settle()
        except RuntimeError as lost:
            log.warning("%s: cannot report the error to the other ranks: %s", self._topology, lost)

    def stop(self, error: Exception | None = None) -> None:  # noqa: ARG002 - the group reports it
        """End the thread, and publish that this process reads no pass."""
        self._ends.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_END_S)
            if not self._thread.is_alive():  # else it is joined once more before the interpreter ends
                RUNNING.discard(self)
        if self._local is not None:
            with suppress(RuntimeError):
                self._local.leave(self)

    def __enter__(self) -> Self:
        if self._local is not None:
            with suppress(RuntimeError):  # the store has gone: no other rank can hear it
                self._local.enter(self, self._topology, epoch=self._epoch)
        if self._group is not None or self._stall_seconds is not None:
            self._thread = threading.Thread(target=self._run, name="headrace-watch", daemon=True)
            RUNNING.add(self)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_finalizing():  # the stream was left open: modules are torn down, and the thread has ended
            return
        self.progress.done()
        self.stop()
        with suppress(RuntimeError):  # rank 0 must not take an earlier snapshot for the present
            self._publish(self.progress.snapshot())

    def _start(self) -> None:
        if self._contract is None or self._group is None:
            return
        try:
            start_together(self._stream, self._contract, self._topology, self._group, check=self.check)
        except RanksDiffer as error:
            log.error("%s", error)
            raise
        except StreamError as error:
            self.report(error)
            raise

    def _run(self) -> None:
        try:
            self._look()
            while not self._ends.wait(_LOOK_S):
                self._look()
        except RuntimeError as lost:  # the store ended with its process: this pass may well be the last to end
            self._local = None
            log.info("%s: no longer watches the other ranks: %s", self._topology, lost)

    def _look(self) -> None:
        while self._group is not None and (failure := self._group.unread()) is not None:
            self._hear(failure)
        if self._group is not None and self._local is not None:
            for lost in self._local.lost():
                failure = replace(lost, processes=self._group.processes)
                try:
                    failure = self._group.post(failure)
                finally:
                    self._hear(failure)
        self._looks += 1
        if self._stall_seconds is not None and self._looks % _LOOKS_PER_BEAT == 0:
            self._log_stalls(self._stall_seconds)

    def _hear(self, failure: Failure) -> None:
        self.failure = self.failure or failure  # before anybody can read the log
        log.error("%s", failure)

    def _publish(self, moment: Snapshot) -> None:
        if self._beat and self._group is not None:
            self._group.store.set(f"{self._beat}/{self._topology.rank}", json.dumps([self._epoch, asdict(moment)]))

    def _log_stalls(self, stall_seconds: float) -> None:
        moments = {self._topology.rank: self.progress.snapshot()}
        self._publish(moments[self._topology.rank])
        if self._topology.rank == 0 and self._beat and self._group is not None:
            for rank in range(1, self._topology.world_size):
                if self._group.store.check([f"{self._beat}/{rank}"]):
                    epoch, values = json.loads(self._group.store.get(f"{self._beat}/{rank}"))
                    if epoch == self._epoch:
                        moments[rank] = Snapshot(**values)
        found = complaints(moments, stall_seconds=stall_seconds)
        for sentence in due(found, self._said, now=time.monotonic()):
            log.warning("%s", sentence)


# --- stalls: from a snapshot of each rank to the sentences worth logging. Pure.

Complaint = tuple[str, int]  # its kind and its rank
_SAID: WeakKeyDictionary[Any, dict[Complaint, float]] = WeakKeyDictionary()  # by stream: when each was last logged


def complaints(moments: Mapping[int, Snapshot], *, stall_seconds: float) -> dict[Complaint, str]:
    """Return a sentence for each rank that stalls, by kind and rank; nothing where all is well.

    moments: of the known ranks, at about the same time and in the same epoch; ranks that are done are left out.
    """
    found: dict[Complaint, str] = {}
    moments = {rank: moment for rank, moment in moments.items() if moment.phase != "done"}
    foremost = max(moments, key=lambda rank: (moments[rank].batches, -rank), default=0)
    shares = {rank: moment.waited / moment.elapsed if moment.elapsed else 0.0 for rank, moment in moments.items()}
    for rank, moment in sorted(moments.items()):
        lag = moments[foremost].batches - moment.batches
        others = median([share for other, share in shares.items() if other != rank] or [1.0])  # alone, it delays none
        what = f"{moment.place or 'rows that are being put together'} ({moment.phase})"
        now = "is now in the training loop (loop)" if moment.phase == "loop" else f"now waits for {what}"
        if moment.phase in ("decode", "gather") and moment.seconds >= stall_seconds:
            ahead = f"; rank {foremost} is {lag} batches ahead" if lag else ""
            found["waits", rank] = f"rank {rank} has waited {moment.seconds:.0f} s for {what}{ahead}"
        elif lag > _BATCHES_BEHIND and lag * moment.elapsed >= stall_seconds * max(1, moment.batches):
            found["behind", rank] = (
                f"rank {rank} is {lag} batches behind rank {foremost}; it spent {shares[rank]:.0%} of its time waiting"
                f" for data, and {now}"
            )
        elif moment.elapsed >= 2 * stall_seconds and shares[rank] >= max(_SHARE, _TIMES_THE_OTHERS * others):
            found["share", rank] = (
                f"rank {rank} spent {shares[rank]:.0%} of its time waiting for data, the other ranks {others:.0%}; it"
                f" {now}"
            )
    return found


def due(found: Mapping[Complaint, str], said: dict[Complaint, float], *, now: float) -> list[str]:
    """Return the sentences to log now: each kind and rank once in `_AGAIN_S`, over all passes and blocks of a stream.

    said: when each was last logged; updated. now: monotonic seconds.
    """
    ready = [complaint for complaint in found if now - said.get(complaint, -_AGAIN_S) >= _AGAIN_S]
    said.update(dict.fromkeys(ready, now))
    return [found[complaint] for complaint in ready]
