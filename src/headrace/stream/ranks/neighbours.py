"""Which process of a group ended in the midst of a pass without a word: killed, most likely.

    headrace/here/<machine>/<n>         the n-th process of this machine: its number in the group, its id, when it began
    headrace/here/<machine>/<n>/pass    the pass that it is in: rank, world size and epoch; "" in none
    headrace/here/<machine>/<n>/gone    counts who noticed its end; the first one tells it

Processes of one machine see in /proc who is alive; nothing is guessed from silence, as a process that compiles or saves
is silent too. A process that has left its pass, or closes it while the interpreter ends, may go. Of processes on other
machines, and without /proc, nothing is known.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Self

from headrace.machine import began, boot_id
from headrace.stream.ranks.present_group import text_of

_PREFIX = "headrace/here"


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A process that ended in the midst of a pass. process: its number in the group."""

    process: int
    rank: int
    world_size: int
    message: str


@dataclass(eq=False)
class Neighbours:
    """The processes of one group on this machine, as one of them sees them.

    Safe to call from any thread. Every method raises `RuntimeError` when the store is gone.
    """

    store: Any
    prefix: str
    place: int
    _found: int = 0
    _alive: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # place → number, id, when it began
    _missed: set[int] = field(default_factory=set)
    _passes: dict[int, str] = field(default_factory=dict)  # of this process, those that are open
    _looking: Lock = field(default_factory=Lock)

    @classmethod
    def here(cls, store: Any, *, process: int, pid: int | None = None) -> Self | None:
        """Make this process known as `process` of the group; None where processes cannot see each other.

        pid: of the process that is meant; None: this one.
        """
        pid = os.getpid() if pid is None else pid
        machine, since = _machine(), began(pid)
        if machine is None or since is None:
            return None
        prefix = f"{_PREFIX}/{machine}"
        try:
            place = int(store.add(prefix, 1))
            store.set(f"{prefix}/{place}/pass", "")
            store.set(f"{prefix}/{place}", json.dumps([process, pid, since]))
        except RuntimeError:  # the store has gone: then there is nobody to hear
            return None
        return cls(store=store, prefix=prefix, place=place)

    def enter(self, reading: object, *, rank: int, world_size: int, epoch: int) -> None:
        """This process begins a pass. reading: whatever stands for it."""
        self._passes[id(reading)] = json.dumps([rank, world_size, epoch])
        self._say()

    def leave(self, reading: object) -> None:
        """This process has ended a pass; a second time this does nothing."""
        if self._passes.pop(id(reading), None) is not None:
            self._say()

    def lost(self) -> list[Lost]:
        """Who ended in the midst of a pass and was not told of before; each is told of in one process."""
        with self._looking:
            self._look_for_new_ones()
            missing = {place for place, (_, pid, since) in self._alive.items() if began(pid) != since}
            gone, self._missed = missing & self._missed, missing  # its last words may be on their way: look twice
            return [lost for place in sorted(gone) if (lost := self._lost(place)) is not None]

    def _lost(self, place: int) -> Lost | None:
        process, pid, _ = self._alive.pop(place)
        reading = text_of(self.store.get(f"{self.prefix}/{place}/pass"))
        if not reading or int(self.store.add(f"{self.prefix}/{place}/gone", 1)) > 1:
            return None
        rank, world_size, epoch = json.loads(reading)
        message = (
            f"its process, number {pid}, ended in the midst of epoch {epoch} without a word, as when the kernel kills"
            " it for want of memory"
        )
        return Lost(process=process, rank=rank, world_size=world_size, message=message)

    def _look_for_new_ones(self) -> None:
        while self.store.check([key := f"{self.prefix}/{self._found + 1}"]):
            self._found += 1
            process, pid, since = json.loads(self.store.get(key))
            if self._found != self.place:
                self._alive[self._found] = process, pid, since

    def _say(self) -> None:
        self.store.set(f"{self.prefix}/{self.place}/pass", next(iter(self._passes.values()), ""))


def _machine() -> str | None:
    """A name for all processes that see each other, by the same ids: of one user; None where there is none."""
    boot = boot_id()
    with suppress(OSError):
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}/{os.getuid()}" if boot else None
    return None
