"""What the ranks of a dynamic pass agree on through a store: who took which claim, and how many steps there are.

    <pass>/here/<rank>     how many processes say that they are this rank
    <pass>/start           the state that the pass begins at, the same on every rank
    <pass>/next            a counter: whoever adds 1 to it has the claim of that number
    <pass>/empty           set by the first rank that found no claim left
    <pass>/steps/<rank>    how many batches a rank's own claims make, once none is left
    <pass>/left            a rank that went before the end
    <pass>/state/<n>/<rank>   what a rank had claimed and not received at the n-th call of state_dict

A store is any of torch.distributed's; `LocalStore` stands in for it where there is one rank. Calls return at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from headrace.errors import StreamError


class LocalStore:
    """The verbs of a torch store that a ledger uses, in one process."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._lock = Lock()

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount
            return int(self._values[key])

    def set(self, key: str, value: str) -> None:
        self._values[key] = value

    def get(self, key: str) -> Any:
        return self._values[key]

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def compare_set(self, key: str, _expected: str, desired: str) -> Any:
        with self._lock:
            return self._values.setdefault(key, desired)


@dataclass(frozen=True)
class Ledger:
    """The agreement of one pass. prefix: a name of the pass that all ranks give it."""

    store: Any
    prefix: str
    rank: int
    world_size: int

    def arrive(self) -> None:
        """Say that this rank is here. Raises `StreamError` if another process is the same rank."""
        if (processes := int(self.store.add(f"{self.prefix}/here/{self.rank}", 1))) > 1:
            raise StreamError(
                f"rank {self.rank} of {self.world_size}: {processes} processes of this job are that rank, and with"
                ' distribution="dynamic" each of them would get other rows; use distribution="balanced", which gives'
                " all processes of a rank the same batches, or give each process a rank of its own"
            )

    def begin(self, start: str) -> None:
        """Say where the pass begins. Raises `StreamError` if another rank said otherwise."""
        agreed = _text(self.store.compare_set(f"{self.prefix}/start", "", start))
        if agreed != start:
            raise StreamError(
                f"rank {self.rank} of {self.world_size}: this pass begins at {start}, another rank's at {agreed};"
                " load the same state and set the same epoch on every rank"
            )

    def take(self) -> int:
        """The number of a claim that no other rank has or gets."""
        return int(self.store.add(f"{self.prefix}/next", 1)) - 1

    def say_empty(self) -> None:
        """Every claim is taken."""
        self.store.set(f"{self.prefix}/empty", "1")

    def is_empty(self) -> bool:
        """Whether every claim is taken."""
        return bool(self.store.check([f"{self.prefix}/empty"]))

    def say_steps(self, steps: int) -> None:
        """This rank's claims make so many batches, and it gets no more claims."""
        self.store.set(f"{self.prefix}/steps/{self.rank}", str(steps))

    def steps(self) -> int | None:
        """The batches of the rank that has most; None as long as some rank has not said its number."""
        keys = [f"{self.prefix}/steps/{rank}" for rank in range(self.world_size)]
        return max(int(_text(self.store.get(key))) for key in keys) if self.store.check(keys) else None

    def silent(self) -> list[int]:
        """The ranks that have not said their steps."""
        return [rank for rank in range(self.world_size) if not self.store.check([f"{self.prefix}/steps/{rank}"])]

    def say_left(self) -> None:
        """This rank goes before the end of the pass, so its steps will never be known."""
        self.store.set(f"{self.prefix}/left", str(self.rank))

    def left(self) -> int | None:
        """A rank that went before the end."""
        key = f"{self.prefix}/left"
        return int(_text(self.store.get(key))) if self.store.check([key]) else None

    def say_held(self, call: int, claimed: int, held: list[tuple[int, int]]) -> None:
        """At this call of state_dict this rank has taken `claimed` claims, and not received the places `held`."""
        self.store.set(f"{self.prefix}/state/{call}/{self.rank}", json.dumps([claimed, held]))

    def held(self, call: int) -> tuple[int, list[tuple[int, int]]] | None:
        """The same over all ranks; None as long as some rank has not called."""
        keys = [f"{self.prefix}/state/{call}/{rank}" for rank in range(self.world_size)]
        if not self.store.check(keys):
            return None
        said = [json.loads(_text(self.store.get(key))) for key in keys]
        return sum(claimed for claimed, _ in said), [(start, stop) for _, held in said for start, stop in held]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
