"""A failure on one rank made known to all: through the store that a process group already has.

    headrace/failures           how many there were; a rank that fails takes the next number n
    headrace/failure/<n>        who failed, and its message
    headrace/failure/<n>/seen   how many other ranks know

A rank remembers up to which number it knows, so a pass that begins after another rank failed still learns of it, and a
pass that begins after everybody stopped is not stopped again. All calls return at once; none waits for another rank.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

_PREFIX = "headrace"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What rank `rank` of `world_size` stopped for."""

    rank: int
    world_size: int
    message: str

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} stopped the stream: {self.message}"


@dataclass(eq=False)
class Bulletin:
    """The failures of one process group, as this process sees them. Safe to call from any thread.

    Every method raises `RuntimeError` when the store is gone, as it is once the process that keeps it has ended.
    """

    store: Any
    others: int
    known: int = 0
    _posting: Lock = field(default_factory=Lock)

    @property
    def keeps_latest(self) -> bool:
        """Whether the store forgets a value that is replaced; a file store keeps all it was ever told."""
        innermost = self.store
        while hasattr(innermost, "underlying_store"):
            innermost = innermost.underlying_store
        return type(innermost).__name__ != "FileStore"

    def post(self, failure: Failure) -> int:
        """Make this failure known; its number, for `seen_by_all`."""
        with self._posting:
            number = int(self.store.add(f"{_PREFIX}/failures", 1))
            text = json.dumps([failure.rank, failure.world_size, failure.message])
            self.store.set(f"{_PREFIX}/failure/{number}", text)
            self.known = max(self.known, number)
        return number

    def seen_by_all(self, number: int) -> bool:
        """Whether all other processes of the group have read this failure."""
        return int(self.store.add(f"{_PREFIX}/failure/{number}/seen", 0)) >= self.others

    def unread(self) -> Failure | None:
        """The next failure that this process did not know, now counted as seen."""
        with self._posting:
            key = f"{_PREFIX}/failure/{self.known + 1}"
            if not self.store.check([key]):
                return None
            self.known += 1
        rank, world_size, message = json.loads(self.store.get(key))
        self.store.add(f"{key}/seen", 1)
        return Failure(rank=rank, world_size=world_size, message=message)


_BULLETINS: WeakKeyDictionary[Any, Bulletin] = WeakKeyDictionary()


def group_store() -> Any:
    """The store of torch's default process group, or None where there is none of several ranks."""
    torch = sys.modules.get("torch")  # never imported here: a process without torch has no group
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() < 2:
        return None
    return distributed.distributed_c10d._get_default_store()


def group_bulletin() -> Bulletin | None:
    """The bulletin of torch's default process group, the same for the life of the group; None without one."""
    store = group_store()
    if store is None:
        return None
    if store not in _BULLETINS:
        world_size = sys.modules["torch"].distributed.get_world_size()
        _BULLETINS[store] = Bulletin(store=own_connection(store), others=world_size - 1)
    return _BULLETINS[store]


def own_connection(store: Any) -> Any:
    """The same store over a connection of its own, so that a long wait elsewhere in the process does not block ours."""
    innermost = store
    while hasattr(innermost, "underlying_store"):
        innermost = innermost.underlying_store
    return store.clone() if type(innermost).__name__ == "TCPStore" else store


def in_short(error: BaseException) -> str:
    """The message of an error in one line; of an error out of a DataLoader worker, the worker's own message."""
    text = str(error).strip()
    lines = text.splitlines() or [type(error).__name__]
    if "Original Traceback" not in text:
        return " ".join(lines)
    kind, _, message = lines[-1].partition(": ")
    return message if message and " " not in kind else lines[-1]
