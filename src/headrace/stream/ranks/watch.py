"""Watch a pass of a rank: the start barrier before its first batch, then a thread in the rank's own
process.

**Start barrier.** Ranks with different datasets, batches or positions would deliver rows twice,
miss others, or take unequal steps and hang. So no rank gets a batch before all have arrived, and a
difference is an error on every rank. A rank that does not arrive within the timeout of the process
group is an error too. A pass costs each rank a few small requests.

    headrace/begin/<failures>/<stream>/<start>    rank and contract of the first rank to arrive
    …/here/<rank>                                 the process that arrived as this rank
    …/came                                        counts the arrivals
    …/unlike                                      rank and contract of one that differs from it
    …/twice                                       two processes that arrived as the same rank
    …/judged                                      set by the last arrival: the others are complete

Streams are numbered in the order in which a process first reads them, which must be the same on all
ranks. A pass that starts where the previous pass of its stream started is not compared again, so
one rank may leave a pass and start it anew. After a failure that the training loop caught, the
numbers begin anew.

Where fewer ranks than processes share the rows (tensor parallelism, several jobs in one group),
nobody can say which processes belong together. There, each stream is compared with the first one of
the same rows and batches, and nobody waits.

**Thread.** Twice a second it reads failures of other processes and looks for processes of this
machine that have died (see `group`). Once a second each rank publishes a snapshot of its progress
under `headrace/beat/<stream>/<rank>`. Each rank logs when it waits too long, and rank 0 logs it for
all ranks (see `stats`). A batch costs a few assignments. Without other processes and without
stall_seconds there is no thread. It ends with the pass.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakKeyDictionary

from headrace.digest import canonical_json, sha256_hex
from headrace.errors import StreamError, setting
from headrace.printable import short_repr
from headrace.stream.ranks.group import (
    RUNNING,
    Failure,
    Group,
    default_group,
    default_store,
    failure_of,
    text_of,
)
from headrace.stream.ranks.stats import Complaint, Progress, Snapshot, complaints, due
from headrace.stream.ranks.topology import Topology

if TYPE_CHECKING:
    from headrace.stream.loader.stream_loader import StreamLoader

log = logging.getLogger("headrace")

_LOOK_S = 0.5
_LOOKS_PER_BEAT = 2
_END_S = 10.0  # a look takes milliseconds, and longer where the machine or the store is busy
# by stream: when each was last logged
_SAID: WeakKeyDictionary[Any, dict[Complaint, float]] = WeakKeyDictionary()

_BARRIER_LOOK_S = 0.05
_SAY_S = 5.0
_TIMEOUT_S = 1800.0  # of a store that does not say; torch's own collectives wait as long
_MOST_FIELDS = 4
_MOST_RANKS = 8
# Equal in all processes of one stream: recognises it where fewer ranks than processes share the
# rows.
_SHARED = ("split", "index", "world_size", "num_workers", "batch_size", "remainder")
_ALONE = (
    "if only one rank reads this stream, open it with topology=headrace.Topology(rank=0,"
    " world_size=1)"
)

Given = TypeVar("Given")


class Watch:
    """Watches one pass of a loader: `for batch in Watch(loader, contract).over(batches)`.

    It changes no batch, only which error is seen where. stream: the loader; hashable, with weak
    references. contract: see `StreamLoader.contract`; None skips the start barrier. progress: where
    the reading threads note what they read. stall_seconds: None never logs a stall.
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
    ) -> None:
        if progress is None:
            self.progress = Progress()
        else:
            self.progress = progress
        self.failure: Failure | None = None  # of another process, once heard of
        self._stream = stream
        self._contract = contract
        self._stall_seconds = stall_seconds
        self._topology = stream.topology
        self._epoch = stream.epoch
        self._said = _SAID.setdefault(stream, {})
        self._group = default_group()
        if self._group is None:
            self._local = None
        else:
            self._local = self._group.local
        if self._group is None:
            self._settled = 0
        else:
            self._settled = self._group.settled
        self._beat = ""
        if self._group is not None:
            self._group.topology = self._topology
            if (
                stall_seconds is not None
                and self.progress.index is not None
                and self._group.keeps_latest
            ):
                self._beat = (
                    f"headrace/beat/{self.progress.index.split}/{self.progress.index.identity[:16]}"
                )
        self._looks = 0
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def over(self, batches: Iterator[Given]) -> Generator[Given, None, None]:
        """Yield the batches once all ranks have started the pass, and report their errors to the
        other ranks.

        Raises `StreamError` when another rank has failed, and when the ranks are about to read
        different data.
        """
        with self, closing(batches) if isinstance(batches, Generator) else nullcontext():
            self.check()
            if self._contract is not None and self._group is not None:
                try:
                    start_together(
                        self._stream, self._contract, self._topology, self._group, check=self.check
                    )
                except RanksDiffer as error:
                    log.error("%s", error)
                    raise
                except StreamError as error:
                    self.report(error)
                    raise
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

        A failure that is heard of after the last check of a pass is raised by the next pass of this
        process.
        """
        if self.failure is None and self._group is not None:
            self.failure = self._group.read_after(self._settled)
        if self.failure is not None:
            if self._group is not None:
                self._group.await_all(self.failure)
                self._group.settle()
            raise StreamError(
                str(self.failure),
                remedy="fix the cause there, then resume all ranks from the last saved state",
            )

    def report(self, error: Exception) -> None:
        """Log an error of this rank, publish it to the others, and give them a moment to
        read it.
        """
        if self._group is None:
            failure = failure_of(error, self._topology)
        else:
            failure = self._group.failure(error)
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
            # else it is joined once more before the interpreter ends
            if not self._thread.is_alive():
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
        try:
            self._look()
            while not self._ends.wait(_LOOK_S):
                self._look()
        except (
            RuntimeError
        ) as lost:  # the store ended with its process: this pass may well be the last to end
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
        if self._stall_seconds is None or self._looks % _LOOKS_PER_BEAT:
            return
        moments = {self._topology.rank: self.progress.snapshot()}
        self._publish(moments[self._topology.rank])
        if self._topology.rank == 0 and self._beat and self._group is not None:
            for rank in range(1, self._topology.world_size):
                if self._group.store.check([f"{self._beat}/{rank}"]):
                    epoch, values = json.loads(self._group.store.get(f"{self._beat}/{rank}"))
                    if epoch == self._epoch:
                        moments[rank] = Snapshot(**values)
        messages = complaints(moments, stall_seconds=self._stall_seconds)
        for sentence in due(messages, self._said, now=time.monotonic()):
            log.warning("%s", sentence)

    def _hear(self, failure: Failure) -> None:
        self.failure = self.failure or failure  # before anybody can read the log
        log.error("%s", failure)

    def _publish(self, moment: Snapshot) -> None:
        if self._beat and self._group is not None:
            self._group.store.set(
                f"{self._beat}/{self._topology.rank}", json.dumps([self._epoch, asdict(moment)])
            )


# --- the start barrier


class RanksDiffer(StreamError):
    """The ranks are about to read different data. Every rank raises it by itself."""


def start_together(
    stream: object,
    contract: Mapping[str, Any],
    topology: Topology,
    group: Group,
    *,
    check: Callable[[], None],
) -> None:
    """Wait until all ranks start this pass of a stream, and compare their contracts.

    contract: JSON by name, equal on all ranks, of `StreamLoader.contract`. check: raises when
    another rank has failed. Raises `RanksDiffer` if contracts differ, `StreamError` if a rank does
    not arrive.
    """
    if topology.world_size < 2:
        return
    contract = {**contract, "world_size": topology.world_size}
    complete = group.processes == topology.world_size
    if complete:
        name = "all"
    else:
        name = sha256_hex(canonical_json([contract.get(field) for field in _SHARED]))[:16]
    starts = group.starts.get(stream)
    if starts is None or starts.failures != group.settled:
        group.streams[group.settled, name] += 1
        prefix = f"headrace/begin/{group.settled}/{name}/{group.streams[group.settled, name]}"
        starts = group.starts[stream] = _Starts(prefix, group.settled)
    text = canonical_json(contract).decode()
    if text == starts.contract:
        return
    starts.count = starts.count + 1
    starts.contract = ""
    start = _Start(contract, topology, group, f"{starts.prefix}/{starts.count}")
    with suppress(RuntimeError):  # the store has gone: no other rank can answer
        if complete:
            start.meet(check)
        else:
            start.compare(start.arrive_first(), start.mine, StreamError)
    starts.contract = text


@dataclass
class _Starts:
    """Counts the different starts of one stream since failure `failures`.

    contract: that of the last start.
    """

    prefix: str
    failures: int
    count: int = 0
    contract: str = ""


@dataclass(frozen=True)
class _Start:
    """One rank at one start barrier. A side is a rank with its contract."""

    contract: Mapping[str, Any]
    topology: Topology
    group: Group
    key: str

    @property
    def mine(self) -> tuple[int, Mapping[str, Any]]:
        return self.topology.rank, self.contract

    def arrive_first(self) -> Any:
        """Return the side that arrived first, perhaps this one."""
        return json.loads(self.group.store.compare_set(self.key, "", json.dumps(self.mine)))

    def meet(self, check: Callable[[], None]) -> None:
        store, key, (rank, _), process = self.group.store, self.key, self.mine, self.group.process
        first = self.arrive_first()
        holder = int(text_of(store.compare_set(f"{key}/here/{rank}", "", str(process))))
        if holder != process:
            store.compare_set(f"{key}/twice", "", json.dumps([rank, holder, process]))
        if first[1] != self.contract:
            store.compare_set(f"{key}/unlike", "", json.dumps(self.mine))
        if int(store.add(f"{key}/came", 1)) == self.topology.world_size:
            store.set(f"{key}/judged", "yes")
        self._wait(check)
        if store.check([f"{key}/twice"]):
            rank, one, other = json.loads(store.get(f"{key}/twice"))
            raise RanksDiffer(
                f"{self.topology}: processes {one} and {other} both read as rank {rank}",
                remedy=f"give each process its own rank, or leave {setting('topology')} out",
            )
        if store.check([f"{key}/unlike"]):
            self.compare(
                *sorted([first, json.loads(store.get(f"{key}/unlike"))], key=lambda side: side[0])
            )

    def _wait(self, check: Callable[[], None]) -> None:
        began = time.monotonic()
        pause = 0.001
        logged = False
        timeout = getattr(default_store(), "timeout", None)  # as init_process_group was told
        if timeout is None:
            timeout_s = _TIMEOUT_S
        else:
            timeout_s = float(timeout.total_seconds())
        start = (
            f"start epoch {self.contract.get('epoch')} of"
            f" {short_repr(self.contract.get('split', 'windows'))}"
        )
        while not self.group.store.check([f"{self.key}/judged"]):
            check()
            waited_s = time.monotonic() - began
            if waited_s > timeout_s:
                raise StreamError(
                    f"{self.topology}: waited {waited_s:.0f} s for {self._missing()} to {start}",
                    remedy=(
                        "start the same passes on every rank, and check there what stopped them;"
                        f" {_ALONE}"
                    ),
                )
            if waited_s > _SAY_S and not logged:
                logged = True
                log.warning("%s: waits for %s to %s", self.topology, self._missing(), start)
            time.sleep(pause)
            pause = min(_BARRIER_LOOK_S, 2 * pause)

    def _missing(self) -> str:
        ranks = range(self.topology.world_size)
        missing = []
        for rank in ranks:
            if not self.group.store.check([f"{self.key}/here/{rank}"]):
                missing.append(str(rank))
        more = ""
        if len(missing) > _MOST_RANKS:
            more = f" and {len(missing) - _MOST_RANKS} more"
        return f"rank{'s' if len(missing) != 1 else ''} {', '.join(missing[:_MOST_RANKS])}{more}"

    def compare(
        self,
        one: tuple[int, Mapping[str, Any]],
        other: tuple[int, Mapping[str, Any]],
        error_type: type[StreamError] = RanksDiffer,
    ) -> None:
        """Raise an error of this kind, with the fields and both values, if two sides differ."""
        (rank, values), (other_rank, others) = one, other
        names = []
        for name in dict.fromkeys((*values, *others)):
            if values.get(name) != others.get(name):
                names.append(name)
        if not names:
            return
        differences = []
        for name in names[:_MOST_FIELDS]:
            differences.append(
                f"{name} is {short_repr(values.get(name))} on rank {rank} and"
                f" {short_repr(others.get(name))} on rank {other_rank}"
            )
        more = ""
        if len(names) > _MOST_FIELDS:
            more = f", and {len(names) - _MOST_FIELDS} more differ"
        raise error_type(
            f"{self.topology}: the ranks are about to read different data:"
            f" {', '.join(differences)}{more}",
            remedy=(
                "open the same data with the same settings, load the same state and set the same"
                f" epoch on every rank; {_ALONE}"
            ),
        )
