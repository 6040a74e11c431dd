"""Exchange messages with the other processes of torch's default process group, through the store it
already has.

    headrace/group                      who named the group: a PID and a moment. All other keys
                                        stand under that name.
    headrace/failures                   counts the failures; a process that fails takes the next
                                        number n
    headrace/failure/<n>                who failed, and why
    headrace/failure/<n>/seen           counts the other processes that have read it
    headrace/here/<machine>             counts the processes of one machine
    headrace/here/<machine>/<i>         number in the group, PID and start time of the i-th of them
    headrace/here/<machine>/<i>/pass    rank, world size and epoch of the pass it reads; "" between
                                        passes
    headrace/here/<machine>/<i>/gone    counts who noticed its death; the first one reports it
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

**Liveness.** Processes of one machine and user see in /proc who is alive. Silence proves nothing: a
process that compiles or saves is silent too. A process may go after its pass. Nothing is known of
processes on other machines.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from threading import Lock, get_ident
from typing import Any, Self
from weakref import WeakKeyDictionary, WeakSet

from headrace.digest import canonical_json, sha256_hex
from headrace.errors import HeadraceError, message_of_worker, spell
from headrace.machine import began, boot_id
from headrace.printable import printable
from headrace.stream.ranks.topology import Topology, initialized_distributed

_CLOCK_SKEW_S = 10.0
_LOOK_S = 0.05
_TELL_S = 3.0
_ASKS = "?"
_ASKED_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The reason why rank `rank` of `world_size` stopped.

    process, processes: its number in the process group and the size of the group; None without a
    group. lost: whether the process died, and another one reports it. number: counts the failures
    of the group; 0 before it is posted.
    """

    rank: int
    world_size: int
    message: str
    process: int | None = None
    processes: int | None = None
    lost: bool = False
    number: int = 0

    def __str__(self) -> str:
        who = rank = f"rank {self.rank} of {self.world_size}"
        if self.process is not None and (self.process, self.processes) != (
            self.rank,
            self.world_size,
        ):
            who = f"process {self.process} of {self.processes} ({who})"
        return f"{who} stopped the stream: {self.message.removeprefix(f'{rank}: ')}"


class Group:
    """One process group, as the process with this number sees it. Safe to call from any thread.

    topology: what this process reads as. keeps_latest: whether the store drops a value that is
    replaced; a file store keeps every value it was ever given. known: number of the last failure
    that it read or posted. settled: the same when a loop of this process last ended because of a
    failure. Methods raise `RuntimeError` once the store is gone, as it is when the process that
    keeps it has ended.
    """

    def __init__(self, store: Any, *, process: int, processes: int) -> None:
        self.store = store
        self.process = process
        self.processes = processes
        self.keeps_latest = _kind_of(store) != "FileStore"
        self.topology = Topology(rank=process, world_size=processes)
        self.local: LocalProcesses | None = None
        self.known = self.settled = 0
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

    def read_after(self, number: int) -> Failure | None:
        """Return the first failure after this number that this process has read, whichever pass
        read it.
        """
        return next((failure for failure in self._read if failure.number > number), None)

    def settle(self) -> None:
        """Call when a loop of this process ends because of the failures read so far: no later pass
        raises them.
        """
        with self._posting:
            self.settled = self.known

    def seen_by_all(self, failure: Failure) -> bool:
        """Return whether every other living process has read this failure."""
        seen = int(self.store.add(f"headrace/failure/{failure.number}/seen", 0))
        return seen >= self.processes - 1 - failure.lost

    def await_all(self, failure: Failure) -> None:
        """Wait a few seconds for every process to read this failure: the store may end together
        with this process.

        If the store is already gone, it returns at once: no other rank can answer.
        """
        deadline = time.monotonic() + _TELL_S
        with suppress(RuntimeError):
            while True:
                # another process that failed at the same time waits for us
                while self.unread() is not None:
                    pass
                if self.seen_by_all(failure) or time.monotonic() >= deadline:
                    return
                time.sleep(_LOOK_S)

    def once(self, name: str, ask: Callable[[], str]) -> str:
        """Return what `ask` returns in the first process of the group that comes here, which others
        wait for.

        name: the same in all. If it fails there, or takes minutes, another process asks.
        """
        key = f"headrace/once/{name}"
        mine = f"{_ASKS}{self.process}:{get_ident()}"
        deadline = time.monotonic() + _ASKED_S
        with suppress(RuntimeError):  # the store has gone: no other rank can be reached
            while (
                agreed := text_of(self.store.compare_set(key, "", mine))
            ) != mine and time.monotonic() < deadline:
                if agreed and not agreed.startswith(_ASKS):
                    return agreed
                time.sleep(_LOOK_S)
        answer = ""
        try:
            answer = ask()
        finally:
            with suppress(RuntimeError):
                self.store.set(key, answer)
        return answer

    def stop(self, error: Exception | None = None) -> None:
        """Report what ended the interpreter, such as an error of the training loop, unless a
        failure is known.
        """
        if error is not None and not self.known:
            failure = self.failure(error)
            failure = replace(failure, message=f"{type(error).__name__}: {failure.message}")
            with suppress(RuntimeError):
                self.await_all(self.post(failure))


class LocalProcesses:
    """The processes of a group on this machine.

    Safe to call from any thread; raises `RuntimeError` as `Group` does.
    """

    def __init__(self, store: Any, prefix: str, *, process: int, pid: int, started: int) -> None:
        """Add process `process` of the group, with this PID and start time, to those of its
        machine.
        """
        self._store = store
        self.prefix = prefix
        self.number = int(store.add(prefix, 1))
        self._found = 0
        # by place: number in the group, PID, start time
        self._alive: dict[int, tuple[int, int, int]] = {}
        self._missed: set[int] = set()
        self._passes: dict[int, str] = {}  # those that this process reads
        self._looking = Lock()
        self._publish()
        store.set(f"{prefix}/{self.number}", json.dumps([process, pid, started]))

    @classmethod
    def join(cls, store: Any, *, process: int, pid: int | None = None) -> Self | None:
        """Add a process to those of its machine; None where processes cannot see each other.

        pid: None for this one.
        """
        if pid is None:
            pid = os.getpid()
        boot = boot_id()
        started = began(pid)
        with suppress(OSError, RuntimeError):  # no /proc, or the store has gone
            namespace = os.readlink("/proc/self/ns/pid")
            if boot and started is not None:
                prefix = f"headrace/here/{boot}/{namespace}/{os.getuid()}"
                return cls(store, prefix, process=process, pid=pid, started=started)
        return None

    def enter(self, reading: object, topology: Topology, *, epoch: int) -> None:
        """Publish that this process starts a pass. reading: an object that stands for the pass."""
        self._passes[id(reading)] = json.dumps([topology.rank, topology.world_size, epoch])
        self._publish()

    def leave(self, reading: object) -> None:
        """Publish that this process has ended a pass; a second call does nothing."""
        if self._passes.pop(id(reading), None) is not None:
            self._publish()

    def lost(self) -> list[Failure]:
        """Return processes that died during a pass.

        Each is returned once, in one process of its machine.
        """
        with self._looking:
            while self._store.check([key := f"{self.prefix}/{self._found + 1}"]):
                self._found += 1
                process, pid, started = json.loads(self._store.get(key))
                if self._found != self.number:
                    self._alive[self._found] = process, pid, started
            missing = {
                number for number, (_, pid, started) in self._alive.items() if began(pid) != started
            }
            # its last message may be on its way: look twice
            gone = missing & self._missed
            self._missed = missing
            lost = []
            for number in sorted(gone):
                process, pid, _ = self._alive.pop(number)
                reading = text_of(self._store.get(f"{self.prefix}/{number}/pass"))
                if not reading or int(self._store.add(f"{self.prefix}/{number}/gone", 1)) > 1:
                    continue
                rank, world_size, epoch = json.loads(reading)
                message = (
                    f"its process (PID {pid}) died during epoch {epoch} without reporting an error,"
                    " as happens when the kernel kills a process that uses too much memory"
                )
                lost.append(
                    Failure(
                        rank=rank,
                        world_size=world_size,
                        message=message,
                        process=process,
                        lost=True,
                    )
                )
            return lost

    def _publish(self) -> None:
        self._store.set(f"{self.prefix}/{self.number}/pass", next(iter(self._passes.values()), ""))


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

    None without a group of several processes, or when its store is gone: then no other rank can be
    reached.
    """
    store = default_store()
    if store is not None and store not in _GROUPS:
        torch = sys.modules["torch"].distributed
        process = int(torch.get_rank())
        processes = int(torch.get_world_size())
        try:
            connection = own_connection(store)
            pid = os.getpid()
            before, previous = _HISTORY.get(pid) or (process_start(), "")
            name = group_name(connection, Moment.now(), before, process=pid, previous=previous)
            _HISTORY[pid] = Moment.now(), name
        except RuntimeError:
            return None
        group = Group(
            torch.PrefixStore(f"headrace/group/{name}", connection),
            process=process,
            processes=processes,
        )
        group.local = LocalProcesses.join(group.store, process=process)
        _GROUPS[store] = group
        RUNNING.add(group)
    if store is None:
        return None
    return _GROUPS[store]


def once_in_group(name: str, ask: Callable[[], str]) -> str:
    """Return what `ask` returns in one process of the default group, or here where there is
    none.
    """
    group = default_group()
    if group is None:
        return ask()
    return group.once(name, ask)


def default_store() -> Any:
    """Return the store of torch's default process group, or None unless several processes are in
    one.
    """
    distributed = initialized_distributed()
    if distributed is None or distributed.get_world_size() < 2:
        return None
    return distributed.distributed_c10d._get_default_store()


def own_connection(store: Any) -> Any:
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
