"""The state of a packing stream: where its pass began, and how many batches every rank has received of it. Pure.

    rows per reader → windows → bins → batches          all of it arithmetic over lengths, from the pass's beginning on

so a number of batches says which rows have been delivered. With W workers a rank's batches come from its workers in
turn: worker v gave those numbered v, v + W, v + 2W, ...
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors import StreamError
from headrace.sealed import MOST_POSITIONS, seal, unseal
from headrace.stream.loader.passes import checked_state
from headrace.stream.order.share import given_by_workers
from headrace.stream.order.state import FORMAT_VERSION, StreamState
from headrace.stream.packed.passes import PackingPasses

_KIND = "packing"
_LEAST = {"batches": 0, "world_size": 1, "workers": 0, "batch_size": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingState:
    """`batches` batches of the pass from `start`, on each of `world_size` ranks with so many workers (0: none)."""

    start: StreamState
    batches: int
    world_size: int
    workers: int
    batch_size: int
    identity: str

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; `from_dict` gives an equal state back."""
        numbers = {name: getattr(self, name) for name in _LEAST}
        return seal(_KIND, FORMAT_VERSION, {"start": self.start.to_dict(), **numbers, "pack": self.identity})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], passes: PackingPasses) -> PackingState:
        """Read a state of these passes back. Raises `StreamError` if it is none, or of other settings."""
        values = unseal(values, kind=_KIND, version=FORMAT_VERSION)
        sound = set(values) == {"start", "pack", *_LEAST}
        if not sound or any(
            type(values[name]) is not int or not least <= values[name] <= MOST_POSITIONS
            for name, least in _LEAST.items()
        ):
            raise StreamError(
                "packing state: it is not what state_dict() of a packing stream gave; pass it on unchanged"
            )
        if values["pack"] != passes.identity:
            raise StreamError(
                "packing state: it was saved with other settings of pack= or packed=; bins would hold other rows: pass"
                " the saved ones, or begin the epoch anew"
            )
        start = checked_state(values["start"], passes.index, passes.rows)
        return cls(start=start, identity=values["pack"], **{name: values[name] for name in _LEAST})

    def resumed(self, passes: PackingPasses, *, world_size: int, workers: int) -> PackingState:
        """The same place on these ranks and workers: itself where they are the same, else the rows that are left.

        Raises `StreamError` if a pass has fewer batches.
        """
        consumers = self.world_size * max(1, self.workers)
        plan = passes.plan(self.start, consumers=consumers, batch_size=self.batch_size)
        most = plan.steps * max(1, self.workers)
        if self.batches > most:
            raise StreamError(
                f"packing state: it counts {self.batches} batches of a pass that has {most}; pass it on unchanged"
            )
        batch_size = passes.options.batch_size
        here = max(1, workers), world_size, batch_size
        if here == (max(1, self.workers), self.world_size, self.batch_size):
            return self
        given = np.repeat(given_by_workers(self.batches, self.workers), self.world_size)
        return PackingState(
            start=self.start.at(plan.left_after(given)),
            batches=0,
            world_size=world_size,
            workers=workers,
            batch_size=batch_size,
            identity=self.identity,
        )
