"""Exchange messages with the other processes of torch's default process group, through the store it
already has.

    headrace/group                      who named the group: a PID and a moment. All other keys
                                        stand under that name.
    headrace/failures                   counts the failures; a process that fails takes the next
                                        number n
    headrace/failure/<n>                who failed, and why
    headrace/failure/<n>/seen           counts the other processes that have read it
    headrace/left/<process>             set by a process that ends in order
    headrace/ended                      rank of the last one that did
    headrace/heard                      counts the processes of other machines that know that
                                        process 0 has left
    headrace/here/…                     the processes of one machine, see `peers`
    headrace/once/<name>                who asks for something that one process asks for, then the
                                        answer

**Name.** A store may outlive its group: torchrun keeps one store for all restarts, and a process
may leave a group and join another. Messages of dead processes must not stop those that resume from
a checkpoint. So the first process that looks names the group, and a process that finds a name older
than itself replaces it. All processes of a group start before any of them can look, so they agree.
Moments on one machine are compared by its kernel's clock, on two machines by their wall clocks,
which may differ by `_CLOCK_SKEW_S`. A process that does not know when it started (no /proc) accepts
any name.

**Failures.** A process remembers the last failure that it read. It therefore learns of a failure
that precedes its pass, and a failure that it has read does not stop it again. A process is not a
rank: under tensor parallelism several processes read as one rank, and each informs all others.

**Death.** Processes of one machine notice it by themselves (see `peers`), whatever becomes of the
store, and tell the other machines through the store, if it lives. Silence proves nothing: a process
that compiles, saves or is suspended is silent too. A process may go after its pass; who begins
another one needs it, and is told. If a machine dies as a whole, no other one is told.

**The store's end.** With `env://` and no torchrun, process 0 keeps the store. If it ends in order,
it says so before, and the others finish the pass that they read. If the store ends unannounced, the
others stop: on the machine of process 0 with the name of the process that died, on other machines
with the address of the store, which is all that is known there. A rank that already has all batches
of its pass ends it, and stops at the next. No pass starts without a store.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from multiprocessing.util import Finalize
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from headrace.digest import canonical_json, sha256_hex
from headrace.errors import HeadraceError, StreamError, message_of_worker, spell
from headrace.machine import began, boot_id
from headrace.printable import printable
from headrace.stream.ranks.peers import LocalPeers, Peer, RankGone
from headrace.stream.ranks.topology import Topology, initialized_distributed

log = logging.getLogger("headrace")

_CLOCK_SKEW_S = 10.0
_LOOK_S = 0.05
_TELL_S = 3.0
_LAST_WORDS_S = 2.0  # the kernel closes the descriptors of a process one by one


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The reason why rank `rank` of `world_size` stopped.

    process, processes: its number in the process group and the size of the group; None without a
    group. lost: whether the process died, and another one reports it. number: counts the failures
    of the group; 0 before it is posted. reader: the process whose reading raised the error, if it
    reads for this one and its partners.
    """

    rank: int
    world_size: int
    message: str
    process: int | None = None
    processes: int | None = None
    pid: int | None = None
    number: int = 0
    reader: int | None = None

    def __str__(self) -> str:
        rank = f"rank {self.rank} of {self.world_size}"
        number = ""
        if self.process is not None and (self.process, self.processes) != (
            self.rank,
            self.world_size,
        ):
            number = f"process {self.process} of {self.processes}"
        if self.pid is not None:
            inside = ", ".join(filter(None, [number and rank, f"PID {self.pid}"]))
            return f"{number or rank} ({inside}) has gone: {self.message}"
        who = f"{number} ({rank})" if number else rank
        return f"{who} stopped the stream: {self.message.removeprefix(f'{rank}: ')}"

    def error(self) -> StreamError:
        """Return the error that stops the other processes."""
        remedy = "fix the cause there, then resume all ranks from the last saved state"
        if self.pid is None:
            return StreamError(str(self), remedy=remedy)
        process = self.rank if self.process is None else self.process
        return RankGone(str(self), rank=self.rank, process=process, pid=self.pid, remedy=remedy)


def failure_of_peer(peer: Peer, processes: int) -> Failure:
    """Describe the death of a process of this machine."""
    last = peer.last
    when = ""
    rank, world_size = peer.process, processes
    if last is not None:
        rank, world_size = last.rank, last.world_size
        when = " between two passes"
        if last.phase == "pass":
            when = f" during epoch {last.epoch}"
    return Failure(
        rank=rank,
        world_size=world_size,
        message=(
            f"its process died{when} without reporting an error, as happens when the kernel kills a"
            " process that uses too much memory"
        ),
        process=peer.process,
        processes=processes,
        pid=peer.pid,
    )


class Group:
    """One process group, as the process with this number sees it. Safe to call from any thread.

    topology: what this process reads as. keeps_latest: whether the store drops a value that is
    replaced; a file store keeps every value it was ever given. known: number of the last failure
    that it read or posted. settled: the same when a loop of this process last ended because of a
    failure. lost: processes of this machine that died during a pass; settled_lost: how many of
    them have ended a loop of this process. has_store: False once the store is known to be gone;
    methods raise `RuntimeError` when they find it gone.
    """

    def __init__(self, store: Any, *, process: int, processes: int) -> None:
        self.store = store
        self.process = process
        self.processes = processes
        self.keeps_latest = _kind_of(store) != "FileStore"
        self.topology = Topology(rank=process, world_size=processes)
        self.local: LocalPeers | None = None
        self.known = self.settled = 0
        self.lost: list[Failure] = []
        self.settled_lost = 0
        self.has_store = True
        self.owner = os.getpid()  # a fork is another process
        self._host_left = False
        self._has_left = False
        self._read: list[Failure] = []
        # of each stream, see `watch`
        self.starts: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self.streams: Counter[tuple[int, str]] = Counter()  # numbers them
        self._posting = Lock()

    def failure(self, error: BaseException) -> Failure:
        """Describe an error of this process."""
        return replace(
            failure_of(error, self.topology), process=self.process, processes=self.processes
        )

    def post(self, failure: Failure) -> Failure:
        """Publish a failure to all processes, and return it with its number."""
        with self._posting:
            failure = replace(failure, number=int(self.store.add("headrace/failures", 1)))
            self.store.set(f"headrace/failure/{failure.number}", json.dumps(asdict(failure)))
            self.known = max(self.known, failure.number)
            if failure.pid is not None:
                self._read.append(failure)
        return failure

    def unread(self) -> Failure | None:
        """Return the next failure that this process has not read, and mark it as read; None if
        there is none.
        """
        with self._posting:
            key = f"headrace/failure/{self.known + 1}"
            if not self.store.check([key]):
                return None
            self.known += 1
            failure = Failure(**json.loads(self.store.get(key)))
            self._read.append(failure)
        self.store.add(f"{key}/seen", 1)
        return failure

    def read_posted(self) -> None:
        """Read all failures that other processes have posted by now; `heard_after` returns them."""
        while self.unread() is not None:
            pass

    def heard_after(self, settled: int, settled_lost: int) -> Failure | None:
        """Return the first failure after these numbers that this process knows of, whichever pass
        heard it.
        """
        if len(self.lost) > settled_lost:
            return self.lost[settled_lost]
        died = self.local.died if self.local is not None else {}
        for failure in self._read:
            if failure.number > settled and (failure.pid is None or failure.process not in died):
                return failure
        return None

    def look(self) -> list[Failure]:
        """Look for processes of this machine that have died, and return those that read a pass.

        Each is returned once, to one thread, which must `tell` the others; all find it in `lost`.
        """
        if self.local is None:
            return []
        fresh = []
        for peer in self.local.look():
            failure = failure_of_peer(peer, self.processes)
            if peer.last is not None and peer.last.phase == "between":
                log.warning("%s", failure)
                continue
            log.error("%s", failure)
            self.lost.append(failure)
            fresh.append(failure)
        return fresh

    def tell(self, lost: Sequence[Failure]) -> None:
        """Publish deaths to other machines, unless another process of this machine does."""
        if self.local is None:
            return
        for failure in lost:
            peer = self.local.died[failure.process or 0]
            if self.has_remote and self.local.is_first_to_report(peer):
                self.post(failure)

    @property
    def has_remote(self) -> bool:
        """Whether there are processes on other machines."""
        return self._local_processes() < self.processes

    def absent(self) -> dict[int, StreamError]:
        """Return an error for each process of this machine that has ended, by the rank that it
        read as.
        """
        absent: dict[int, StreamError] = {}
        if self.local is None:
            return absent
        for peer in self.local.died.values():
            failure = failure_of_peer(peer, self.processes)
            absent[failure.rank] = failure.error()
        for peer in self.local.left.values():
            rank = peer.process if peer.last is None else peer.last.rank
            absent[rank] = StreamError(
                f"rank {rank} (PID {peer.pid}) has ended, or has left the process group",
                remedy="read the same number of passes on every rank",
            )
        return absent

    def host_has_left(self) -> bool:
        """Return whether process 0, which may keep the store, has ended in order."""
        if self.local is not None and 0 in self.local.left:
            return True
        if self._host_left or not self.has_store or self.process == 0:
            return self._host_left
        is_local = self.local is not None and self.local.knows(0)
        if not is_local and self.store.check(["headrace/left/0"]):
            self._host_left = True
            self.store.add("headrace/heard", 1)
        return self._host_left

    def store_gone(self) -> StreamError:
        """Return the error for a store that has ended: who died with it, if that is known here."""
        deadline = time.monotonic() + _LAST_WORDS_S
        local = self.local
        while local is not None and time.monotonic() < deadline:
            self.look()
            for peer in local.died.values():
                return failure_of_peer(peer, self.processes).error()
            if self.process == 0 or 0 in local.left or not local.knows(0):
                break
            time.sleep(_LOOK_S)
        return gone_store(default_store())

    def settle(self) -> None:
        """Call when a loop of this process ends because of the failures read so far: no later pass
        raises them.
        """
        with self._posting:
            self.settled = self.known
            self.settled_lost = len(self.lost)

    def seen_by_all(self, failure: Failure) -> bool:
        """Return whether every other living process has read this failure."""
        seen = int(self.store.add(f"headrace/failure/{failure.number}/seen", 0))
        ended = int(failure.pid is not None)
        if self.local is not None:
            ended = max(ended, len(self.local.died) + len(self.local.left))
        return seen >= self.processes - 1 - ended

    def await_all(self, failure: Failure) -> None:
        """Wait a few seconds for every process to read this failure: the store may end together
        with this process.

        If the store is already gone, it returns at once: no other rank can answer. A death is only
        waited for by process 0 and if there are other machines; others know it by themselves.
        """
        if failure.pid is not None and not (self.process == 0 and self.has_remote):
            return
        deadline = time.monotonic() + _TELL_S
        with suppress(RuntimeError):
            while True:
                # another process that failed at the same time waits for us
                self.read_posted()
                posted = self._posted(failure)
                if posted is not None and self.seen_by_all(posted):
                    return
                if time.monotonic() >= deadline:
                    return
                time.sleep(_LOOK_S)

    def _posted(self, failure: Failure) -> Failure | None:
        """Return a failure with its number, which a death may have from another process."""
        if failure.number:
            return failure
        for other in self._read:
            if other.pid is not None and other.process == failure.process:
                return other
        return None

    def stop(self, error: Exception | None = None) -> None:
        """Report what ended the interpreter, such as an error of the training loop, unless a
        failure is known, and `leave`.
        """
        if error is not None and not self.known and not self.lost:
            failure = self.failure(error)
            failure = replace(failure, message=f"{type(error).__name__}: {failure.message}")
            with suppress(RuntimeError):
                self.await_all(self.post(failure))
        self.leave()

    def leave(self) -> None:
        """Tell the others that this process ends in order; a second call does nothing.

        Process 0, with which the store may end, waits a few seconds for other machines to know.
        """
        if self._has_left or self.owner != os.getpid():
            return
        self._has_left = True
        remote = self.processes - self._local_processes()
        if not self.has_store:
            if self.local is not None:
                self.local.close()
            return
        if self.local is not None:
            self.local.say_goodbye()
        with suppress(RuntimeError):  # the store may have ended before
            self.store.set("headrace/ended", str(self.topology.rank))
            self.store.set(f"headrace/left/{self.process}", "yes")
            if self.process != 0:
                self.host_has_left()  # says that it need not be waited for
                return
            deadline = time.monotonic() + _TELL_S
            while remote and time.monotonic() < deadline:
                if int(self.store.add("headrace/heard", 0)) >= remote:
                    return
                time.sleep(_LOOK_S)

    def _local_processes(self) -> int:
        if self.local is None:
            return 1
        return 1 + len(self.local) + len(self.local.died) + len(self.local.left)


# Objects with a thread, or a last message: stop(error) ends them, where error is what ended the
# interpreter.
RUNNING: WeakSet[Any] = WeakSet()
_GROUPS: WeakKeyDictionary[Any, Group] = WeakKeyDictionary()
# By PID, since a fork is another process: a moment before it joined its group, and the name of the
# group before that.
_HISTORY: dict[int, tuple[Moment | None, str]] = {}


# a thread that is inside a store while the interpreter ends would abort the process
@atexit.register
def _stop_all() -> None:
    # interactive: from any earlier time
    if hasattr(sys, "ps1"):
        error = None
    else:
        error = getattr(sys, "last_value", None)
    for running in list(RUNNING):
        running.stop(error if isinstance(error, Exception) else None)


def default_group() -> Group | None:
    """Return torch's default process group, the same object for as long as the group lives.

    None without a group of several processes, and in a fork of one of them. Raises `StreamError`
    when its store is gone.
    """
    store = default_store()
    if store is not None and store not in _GROUPS:
        torch = sys.modules["torch"].distributed
        process = int(torch.get_rank())
        processes = int(torch.get_world_size())
        try:
            connection = separate_connection(store)
            pid = os.getpid()
            before, previous = _HISTORY.get(pid) or (process_start(), "")
            name = group_name(connection, Moment.now(), before, process=pid, previous=previous)
            _HISTORY[pid] = Moment.now(), name
            group = Group(
                torch.PrefixStore(f"headrace/group/{name}", connection),
                process=process,
                processes=processes,
            )
            group.local = LocalPeers.join(group.store, process=process, processes=processes)
        except RuntimeError as lost:
            raise gone_store(store) from lost
        _GROUPS[store] = group
        RUNNING.add(group)
        if group.local is not None:
            # who destroys the process group leaves it; its store ends with it
            weakref.finalize(store, group.local.close).atexit = False
        # a child of multiprocessing ends without `atexit`
        Finalize(None, _leave, args=(weakref.ref(group),), exitpriority=0)
    if store is None or _GROUPS[store].owner != os.getpid():
        return None
    return _GROUPS[store]


def _leave(reference: weakref.ref[Group]) -> None:
    group = reference()
    if group is not None:
        group.leave()


def join_group() -> None:
    """Let the other processes of this machine know this one, so that they notice if it dies before
    its first pass.
    """
    with suppress(StreamError):  # the first pass raises it
        default_group()


def gone_store(store: Any) -> StreamError:
    """Return the error for a store that does not answer any more."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    where = ""
    if hasattr(store, "host"):
        where = f" at {store.host}:{store.port}"
    return StreamError(
        f"the store of the process group{where} is gone, and with it most likely the process that"
        " kept it: rank 0, or the launcher",
        remedy="look for the cause there, then resume all ranks from the last saved state",
    )


def default_store() -> Any:
    """Return the store of torch's default process group, or None unless several processes are in
    one.
    """
    distributed = initialized_distributed()
    if distributed is None or distributed.get_world_size() < 2:
        return None
    return distributed.distributed_c10d._get_default_store()


def separate_connection(store: Any) -> Any:
    """Return the same store over another connection, so that a long wait elsewhere in the process
    does not block us.
    """
    if _kind_of(store) == "TCPStore":
        return store.clone()
    return store


def text_of(value: Any) -> str:
    """Return a store's answer, bytes or text, as text."""
    if isinstance(value, bytes):
        return value.decode()
    return str(value)


def failure_of(error: BaseException, topology: Topology) -> Failure:
    """Describe an error of this rank."""
    return Failure(rank=topology.rank, world_size=topology.world_size, message=in_short(error))


def in_short(error: BaseException) -> str:
    """Return an error's message in one line; for an error out of a DataLoader worker, the worker's
    own message.
    """
    raised = [str(error).strip()]
    if isinstance(error, HeadraceError):
        raised = [spell(line) for line in error.marked_lines()]
    lines = [printable(line) for argument in raised for line in message_of_worker(argument)]
    return " ".join(filter(None, lines)) or type(error).__name__


def _kind_of(store: Any) -> str:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return type(store).__name__


# --- the name of the present group ---


@dataclass(frozen=True, kw_only=True)
class Moment:
    """machine: boot id of its kernel; since_start: seconds by that kernel's clock; of_day: seconds
    since 1970.
    """

    machine: str
    since_start: float
    of_day: float

    @classmethod
    def now(cls) -> Moment:
        clock = getattr(time, "CLOCK_BOOTTIME", None)  # /proc gives start times by this clock
        if clock is None:
            since_start = time.monotonic()
        else:
            since_start = time.clock_gettime(clock)
        return cls(machine=boot_id(), since_start=since_start, of_day=time.time())

    def earlier(self, seconds: float) -> Moment:
        return replace(self, since_start=self.since_start - seconds, of_day=self.of_day - seconds)

    def certainly_before(self, other: Moment) -> bool:
        """Return whether this is not after the other moment; False where two machines' clocks leave
        it open.
        """
        if self.machine and self.machine == other.machine:
            return self.since_start <= other.since_start
        return self.of_day <= other.of_day - _CLOCK_SKEW_S


def group_name(
    store: Any, now: Moment, before: Moment | None, *, process: int, previous: str = ""
) -> str:
    """Return the name of the present group in `store`, the same in all of its processes.

    before: a moment before this process joined the group, None if unknown. process: its PID.
    previous: the name of the group that it was in before.
    """
    mine = json.dumps([process, asdict(now)])
    name = text_of(store.compare_set("headrace/group", "", mine))
    if name != mine:
        old = before is not None and Moment(**json.loads(name)[1]).certainly_before(before)
        # another process of this group may replace it at the same time
        if old or _name_in(name) == previous:
            name = text_of(store.compare_set("headrace/group", name, mine))
    return _name_in(name)


def _name_in(text: str) -> str:
    return sha256_hex(canonical_json(text))[:16]


def process_start() -> Moment | None:
    """Return when this process started, never later than now; None if nothing says it."""
    ticks = began(os.getpid())
    if ticks is None:
        return None
    now = Moment.now()
    return now.earlier(max(0.0, now.since_start - ticks / os.sysconf("SC_CLK_TCK")))
