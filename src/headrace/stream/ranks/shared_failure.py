"""A failure in one process made known to all: through the store that a process group already has.

    headrace/failures           how many there were; a process that fails takes the next number n
    headrace/failure/<n>        who failed, and its message
    headrace/failure/<n>/seen   how many other processes know

A process remembers up to which number it knows, so a pass that begins after another one failed still learns of it, and
a pass that begins after everybody stopped is not stopped again. All calls but `await_all` return at once.

A process is what the group counts. Ranks share out the rows; where several processes read those of one rank, as under
tensor parallelism, each of them is told of, and tells, all the others.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from headrace.errors import HeadraceError, message_of_worker
from headrace.printable import printable
from headrace.stream.ranks.at_exit import RUNNING
from headrace.stream.ranks.neighbours import Neighbours
from headrace.stream.ranks.present_group import group_connection, group_size, group_store, kind_of

_PREFIX = "headrace"
_LOOK_SECONDS, _TELL_SECONDS = 0.05, 3.0


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What rank `rank` of `world_size` stopped for.

    process, processes: its number in the process group, where it was told by one. lost: whether that process is gone,
    and another one tells. number: among the failures of its group; 0: not told yet.
    """

    rank: int
    world_size: int
    message: str
    process: int | None = None
    processes: int | None = None
    lost: bool = False
    number: int = 0

    def __str__(self) -> str:
        rank = f"rank {self.rank} of {self.world_size}"
        if self.process is None or (self.process, self.processes) == (self.rank, self.world_size):
            return f"{rank} stopped the stream: {self.message}"
        return f"process {self.process} of {self.processes} ({rank}) stopped the stream: {self.message}"


@dataclass(eq=False)
class Bulletin:
    """The failures of one process group, as this process sees them. Safe to call from any thread.

    others: how many other processes there are; process: the number of this one; rank: of how many, as which it reads;
    neighbours: the processes of this machine.
    Every method raises `RuntimeError` when the store is gone, as it is once the process that keeps it has ended.
    """

    store: Any
    others: int
    process: int = 0
    rank: tuple[int, int] = 0, 1
    neighbours: Neighbours | None = None
    known: int = 0
    _posting: Lock = field(default_factory=Lock)

    @property
    def keeps_latest(self) -> bool:
        """Whether the store forgets a value that is replaced; a file store keeps all it was ever told."""
        return kind_of(self.store) != "FileStore"

    def failure(self, message: str) -> Failure:
        """A failure of this process."""
        rank, world_size = self.rank
        processes = self.others + 1
        return Failure(rank=rank, world_size=world_size, message=message, process=self.process, processes=processes)

    def stop(self, error: Exception | None = None) -> None:
        """What the interpreter ends on is told, if nothing was before: an error of the training loop, say."""
        if error is not None and not self.known:
            with suppress(RuntimeError):
                self.await_all(self.post(self.failure(f"{type(error).__name__}: {in_short(error)}")))

    def post(self, failure: Failure) -> Failure:
        """Make this failure known; it has a number then."""
        with self._posting:
            told = replace(failure, number=int(self.store.add(f"{_PREFIX}/failures", 1)))
            self.store.set(f"{_PREFIX}/failure/{told.number}", json.dumps(asdict(told)))
            self.known = max(self.known, told.number)
        return told

    def seen_by_all(self, failure: Failure) -> bool:
        """Whether all other processes of the group that live have read this failure."""
        return int(self.store.add(f"{_PREFIX}/failure/{failure.number}/seen", 0)) >= self.others - failure.lost

    def await_all(self, failure: Failure) -> None:
        """Wait until all have read this failure, a moment at most: the store may go with this process."""
        deadline = time.monotonic() + _TELL_SECONDS
        while True:
            while self.unread() is not None:  # who failed at the same time waits for us, and is stopped too
                pass
            if self.seen_by_all(failure) or time.monotonic() >= deadline:
                return
            time.sleep(_LOOK_SECONDS)

    def unread(self) -> Failure | None:
        """The next failure that this process did not know, now counted as seen."""
        with self._posting:
            key = f"{_PREFIX}/failure/{self.known + 1}"
            if not self.store.check([key]):
                return None
            self.known += 1
        values = json.loads(self.store.get(key))
        self.store.add(f"{key}/seen", 1)
        return Failure(**values)


_BULLETINS: WeakKeyDictionary[Any, Bulletin] = WeakKeyDictionary()


def group_bulletin() -> Bulletin | None:
    """The bulletin of torch's default process group, the same for the life of the group; None without one, or where its
    store has gone: then there is nobody to hear.
    """
    store = group_store()
    if store is None:
        return None
    if store not in _BULLETINS:
        process, processes = sys.modules["torch"].distributed.get_rank(), group_size()
        try:
            own = group_connection(store)
        except RuntimeError:
            return None
        neighbours = Neighbours.here(own, process=process)
        _BULLETINS[store] = Bulletin(store=own, others=processes - 1, process=process, neighbours=neighbours)
        RUNNING.add(_BULLETINS[store])
    return _BULLETINS[store]


def in_short(error: BaseException) -> str:
    """The message of an error in one line; of an error out of a DataLoader worker, the worker's own message."""
    raised = error.args if isinstance(error, HeadraceError) else (str(error).strip(),)
    own = [printable(line) for argument in raised for line in message_of_worker(str(argument))]
    lines = [line for line in own if line]
    return " ".join(lines) or type(error).__name__
