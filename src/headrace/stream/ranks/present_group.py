"""What the processes of the present group say to each other through its store, apart from what earlier ones said there.

    headrace/group    who is the present group: a name, and the moment at which one of its processes made it

A store may outlive its group: torchrun keeps one for all restarts, and a process may leave a group and make another.
Failures, places and claims of processes that are gone must not stop those that go on from a checkpoint, so all keys of
a group stand under its name. The first process that looks makes the name; who finds one that is older than itself
replaces it. That is sound because a group is made by all of its processes together: each has begun before any can look.

Moments of one machine are compared by its kernel's clock, those of two machines by their clocks of the day, which may
be `_APART_S` apart. Where a process does not know when it began, without /proc, it takes any name that it finds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakKeyDictionary

from headrace.digest import canonical_json, sha256_hex
from headrace.machine import began, boot_id

_KEY = "headrace/group"
_APART_S = 10.0
_PATIENCE_S = 1800.0  # as torch's own collectives wait


@dataclass(frozen=True, kw_only=True)
class Moment:
    """machine: which kernel, from start to halt; since_start: seconds by its clock; of_day: seconds since 1970."""

    machine: str
    since_start: float
    of_day: float

    @classmethod
    def now(cls) -> Moment:
        return cls(machine=boot_id(), since_start=_since_start(), of_day=time.time())

    def earlier(self, seconds: float) -> Moment:
        """So long before."""
        return Moment(machine=self.machine, since_start=self.since_start - seconds, of_day=self.of_day - seconds)

    def certainly_before(self, other: Moment) -> bool:
        """Whether this was before, or at, another moment; False where the clocks of two machines leave it open."""
        if self.machine and self.machine == other.machine:
            return self.since_start <= other.since_start
        return self.of_day <= other.of_day - _APART_S


@dataclass(kw_only=True)
class _Own:
    """Of this process: a moment before it was in the present group, None: not known; and the name of the one before."""

    process: int
    before: Moment | None
    earlier: str = ""


def present_name(store: Any, now: Moment, before: Moment | None, *, process: int, earlier: str = "") -> str:
    """The name that the present group has in `store`, the same in all of its processes.

    before: a moment before this process was in the group; None: not known. process: its id. earlier: a name that is
    not the one.
    """
    mine = json.dumps([process, asdict(now)])
    found = text_of(store.compare_set(_KEY, "", mine))
    if found != mine and _is_old(found, before, earlier):
        found = text_of(store.compare_set(_KEY, found, mine))  # or what another one of this group put there meanwhile
    return _name(found)


def group_store() -> Any:
    """The store of torch's default process group, or None where there is none of several ranks."""
    torch = sys.modules.get("torch")  # never imported here: a process without torch has no group
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_world_size() < 2:
        return None
    return distributed.distributed_c10d._get_default_store()


def group_size() -> int:
    """The processes of torch's default process group, which exists."""
    return int(sys.modules["torch"].distributed.get_world_size())


def group_patience_s() -> float:
    """How long the processes of the default group wait for each other, as init_process_group was told."""
    store = group_store()
    timeout = getattr(store, "timeout", None)
    return _PATIENCE_S if timeout is None else float(timeout.total_seconds())


def group_connection(store: Any) -> Any:
    """A connection of its own to the store of the default group, for keys of this group alone. Raises `RuntimeError`
    when the store is gone.
    """
    connection = own_connection(store)
    if store not in _NAMES:
        own = _own()
        now, process = Moment.now(), own.process
        _NAMES[store] = present_name(connection, now, own.before, process=process, earlier=own.earlier)
        own.earlier, own.before = _NAMES[store], Moment.now()
    return sys.modules["torch"].distributed.PrefixStore(f"{_KEY}/{_NAMES[store]}", connection)


def own_connection(store: Any) -> Any:
    """The same store over a connection of its own, so that a long wait elsewhere in the process does not block ours."""
    return store.clone() if kind_of(store) == "TCPStore" else store


def kind_of(store: Any) -> str:
    """The class of the store that is inside of all that stand before it, as "TCPStore" or "FileStore"."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return type(store).__name__


def text_of(value: Any) -> str:
    """What a store gave, which is bytes or a string."""
    return value.decode() if isinstance(value, bytes) else str(value)


def _is_old(found: str, before: Moment | None, earlier: str) -> bool:
    if _name(found) == earlier:
        return True
    return before is not None and Moment(**json.loads(found)[1]).certainly_before(before)


def _name(text: str) -> str:
    return sha256_hex(canonical_json(text))[:16]


def _own() -> _Own:
    """What this process knows of itself; a fork is another process."""
    if not _OWN or _OWN[-1].process != os.getpid():
        _OWN.append(_Own(process=os.getpid(), before=_own_begin()))
    return _OWN[-1]


def _own_begin() -> Moment | None:
    """When this process began, which is not after now. None: there is nothing that says it."""
    ticks = began(os.getpid())
    if ticks is None:
        return None
    now = Moment.now()
    return now.earlier(max(0.0, now.since_start - ticks / os.sysconf("SC_CLK_TCK")))


def _since_start() -> float:
    boottime = getattr(time, "CLOCK_BOOTTIME", None)  # by which /proc says when a process began
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


_NAMES: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
_OWN: list[_Own] = []
