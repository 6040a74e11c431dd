"""The state of a packing stream: where its pass began, and how many batches every rank has received of it. Pure.

    rows of a rank → windows → bins → batches           all of it arithmetic over lengths, from the pass's beginning on

so a number of batches says which rows have been delivered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import StreamError
from headrace.sealed import MOST_POSITIONS, seal, unseal
from headrace.stream.order.state import FORMAT_VERSION, StreamState

_KIND = "packing"
_LEAST = {"batches": 0, "world_size": 1, "batch_size": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingState:
    """`batches` batches of the pass from `start`, on each of `world_size` ranks. identity: of how rows are packed."""

    start: StreamState
    batches: int
    world_size: int
    batch_size: int
    identity: str

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; `from_dict` gives an equal state back."""
        numbers = {name: getattr(self, name) for name in _LEAST}
        return seal(_KIND, FORMAT_VERSION, {"start": self.start.to_dict(), **numbers, "pack": self.identity})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PackingState:
        """Read a state back. Raises `StreamError` if it is none, or was changed."""
        values = unseal(values, kind=_KIND, version=FORMAT_VERSION)
        sound = set(values) == {"start", "pack", *_LEAST}
        if not sound or any(
            type(values[name]) is not int or not least <= values[name] <= MOST_POSITIONS
            for name, least in _LEAST.items()
        ):
            raise StreamError(
                "packing state: it is not what state_dict() of a packing stream gave; pass it on unchanged"
            )
        start = StreamState.from_dict(values["start"])
        return cls(start=start, identity=values["pack"], **{name: values[name] for name in _LEAST})
