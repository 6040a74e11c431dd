"""Pack a stream: bins from the sequences that have arrived, a bounded number of them waiting.

When more than `buffer` sequences wait, a bin is closed. It takes the sequence that has waited longest, then repeatedly
the longest one that still fits; ties go to the earlier arrival. So no sequence waits forever, and long ones are filled
up with short ones. The bins depend on the order of arrival alone, not on how arrivals are cut into calls. A sequence
costs O(log buffer). Lognormal lengths fill 99.9 % of bins of 4,096 with 1,000 waiting, and 99.8 % with 64 waiting.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.bins.bins import Bins, checked_costs
from headrace.errors import StreamError
from headrace.sealed import seal, shown, unseal

_KIND, _FORMAT_VERSION = "online packing", 2
_BITS = 44  # of an arrival number below its length: 17 trillion sequences
_LATEST = (1 << _BITS) - 1


class OnlinePacker:
    """Bins of a stream of sequences; sequences are named by their arrival: 0, 1, 2, …

    capacity: largest total cost of a bin. buffer: most sequences that wait after a call; they are the memory used.
    max_sequences: most sequences in a bin. `state_dict` is JSON, with two numbers for each waiting sequence.
    Raises `ValueError` for settings below 1.
    """

    def __init__(self, capacity: int, *, buffer: int = 1000, max_sequences: int | None = None) -> None:
        for name, value in (("capacity", capacity), ("buffer", buffer), ("max_sequences", max_sequences)):
            if value is not None and value < 1:
                raise ValueError(f"online packing: {name} is {value}; give at least 1")
        self.capacity = capacity
        self.buffer = buffer
        self.max_sequences = max_sequences
        self.arrived = 0
        self._waiting: OrderedDict[int, None] = OrderedDict()  # keys of those that wait, by arrival
        self._keys: list[int] = []  # the same, rising: length first, of one length the latest first

    @property
    def waiting(self) -> npt.NDArray[np.int64]:
        """Arrival numbers of the sequences that wait, rising; int64."""
        return np.array([_arrival(key) for key in self._waiting], np.int64)

    def add(self, lengths: npt.ArrayLike) -> Bins:
        """Add sequences and return the bins that this closes, as arrival numbers.

        lengths: integers, the cost of each, 1..capacity; see `pack`. Raises `ValueError` for others, and then takes
        no sequence of the call.
        """
        made: list[list[int]] = []
        for length in checked_costs("online packing", lengths, self.capacity, first=self.arrived).tolist():
            key = (length << _BITS) | (_LATEST - self.arrived)
            self.arrived += 1
            insort(self._keys, key)
            self._waiting[key] = None
            if len(self._keys) > self.buffer:
                made.append(self._bin())
        return Bins.of_lists(made)

    def finish(self) -> Bins:
        """Pack all waiting sequences, at the end of the stream."""
        made = []
        while self._keys:
            made.append(self._bin())
        return Bins.of_lists(made)

    def state_dict(self) -> dict[str, Any]:
        """Return the settings, the number of arrivals, and [arrival, length] of each waiting sequence; JSON."""
        values = {
            "capacity": self.capacity,
            "buffer": self.buffer,
            "max_sequences": self.max_sequences,
            "arrived": self.arrived,
            "waiting": [[_arrival(key), key >> _BITS] for key in self._waiting],
        }
        return seal(_KIND, _FORMAT_VERSION, values)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> OnlinePacker:
        """Restore a packer from `state_dict`; it then makes the same bins as the original.

        Raises `StreamError` if the state is not valid.
        """
        values = unseal(state, kind=_KIND, version=_FORMAT_VERSION)
        _check_state(values)
        packer = cls(values["capacity"], buffer=values["buffer"], max_sequences=values["max_sequences"])
        packer.arrived = values["arrived"]
        keys = [(length << _BITS) | (_LATEST - arrival) for arrival, length in values["waiting"]]
        packer._waiting, packer._keys = OrderedDict.fromkeys(keys), sorted(keys)
        return packer

    def _bin(self) -> list[int]:
        oldest = next(iter(self._waiting))
        del self._keys[bisect_left(self._keys, oldest)]
        chosen = [oldest]
        room = self.capacity - (oldest >> _BITS)
        slots = (self.max_sequences or len(self._keys) + 1) - 1
        while room and slots and (at := bisect_left(self._keys, (room + 1) << _BITS) - 1) >= 0:
            chosen.append(self._keys.pop(at))
            room -= chosen[-1] >> _BITS
            slots -= 1
        for key in chosen:
            del self._waiting[key]
        return [_arrival(key) for key in chosen]


def _check_state(values: Mapping[str, Any]) -> None:
    """Raise `StreamError` unless a packer can have been in this state."""

    def conditions() -> Iterator[bool]:  # each may be asked only where those before it hold
        least = {"capacity": 1, "buffer": 1, "max_sequences": 1, "arrived": 0}
        yield set(values) == {*least, "waiting"}
        for name, lowest in least.items():
            yield _is_count(values[name], lowest, _LATEST) or (name == "max_sequences" and values[name] is None)
        yield isinstance(values["waiting"], list | tuple) and len(values["waiting"]) <= values["buffer"]
        before = -1
        for each in values["waiting"]:
            yield isinstance(each, list | tuple) and len(each) == 2
            yield _is_count(each[0], before + 1, values["arrived"] - 1) and _is_count(each[1], 1, values["capacity"])
            before = each[0]

    if not all(conditions()):
        raise StreamError(f"{_KIND} state: {shown(dict(values))} is not what state_dict() gave; pass it on unchanged")


def _is_count(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _arrival(key: int) -> int:
    return _LATEST - (key & _LATEST)
