"""Pack a stream: bins from the sequences that have arrived, a bounded number of them waiting.

When more than `buffer` sequences wait, a bin is made: the one that has waited longest, then again and again the longest
that still fits, of equals the one that came first. So none waits for ever, and long ones find short ones to fill up
with. The bins depend on the order of arrival alone, not on how arrivals are cut into calls. Cost: O(log buffer) for a
sequence. With 1,000 waiting, lognormal lengths fill 99.9 % of bins of 4,096, with 64 waiting 99.8 %.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.bins.bins import Bins
from headrace.errors import StreamError
from headrace.sealed import seal, shown, unseal

_KIND, _FORMAT_VERSION = "online packing", 2
_BITS = 44  # of an arrival number below its length: 17 trillion sequences
_LATEST = (1 << _BITS) - 1


class OnlinePacker:
    """Bins of a stream of sequences; sequences are named by their arrival: 0, 1, 2, …

    capacity: most that a bin's sequences cost together. buffer: most sequences that wait after a call; what they hold
    is the memory. max_sequences: most sequences in a bin. `state_dict` is JSON: two numbers for each that waits.
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
        self._keys: list[int] = []  # waiting, rising: length first, of one length the latest first
        self._order: deque[int] = deque()  # keys by arrival; those that left are skipped when they come to the front
        self._gone: set[int] = set()

    @property
    def waiting(self) -> npt.NDArray[np.int64]:
        """Arrival numbers of the sequences that wait, rising; int64."""
        return np.array(sorted(_arrival(key) for key in self._keys), np.int64)

    def add(self, lengths: npt.ArrayLike) -> Bins:
        """Take more sequences; returns the bins that are made now, of arrival numbers.

        lengths: integers, what each costs, 1..capacity; see `pack`. Raises `ValueError` for others, and then none of
        the call has arrived.
        """
        costs = np.asarray(lengths)
        if costs.ndim != 1 or (len(costs) and costs.dtype.kind not in "iu"):
            raise ValueError(f"online packing: lengths are {costs.dtype} {costs.shape}; give integers in one axis")
        outside = np.flatnonzero((costs < 1) | (costs > self.capacity))
        if len(outside):
            raise ValueError(
                f"online packing: sequence {self.arrived + int(outside[0])} costs {costs[outside[0]]}, a bin holds 1 "
                f"to {self.capacity}; cut, split or drop it before, and count it"
            )
        made: list[list[int]] = []
        for length in costs.tolist():
            key = (length << _BITS) | (_LATEST - self.arrived)
            self.arrived += 1
            insort(self._keys, key)
            self._order.append(key)
            if len(self._keys) > self.buffer:
                made.append(self._bin())
        return Bins.of_lists(made)

    def finish(self) -> Bins:
        """Make bins of all that wait, as no more will arrive."""
        made = []
        while self._keys:
            made.append(self._bin())
        return Bins.of_lists(made)

    def state_dict(self) -> dict[str, Any]:
        """Give the settings, how many arrived, and [arrival, length] of those that wait; JSON."""
        waiting = sorted((_arrival(key), key >> _BITS) for key in self._keys)
        values = {
            "capacity": self.capacity,
            "buffer": self.buffer,
            "max_sequences": self.max_sequences,
            "arrived": self.arrived,
            "waiting": [list(each) for each in waiting],
        }
        return seal(_KIND, _FORMAT_VERSION, values)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> OnlinePacker:
        """Make the packer that was in this state of `state_dict`; it makes the same bins from there on.

        Raises `StreamError` for anything else.
        """
        values = unseal(state, kind=_KIND, version=_FORMAT_VERSION)
        _check_state(values)
        packer = cls(values["capacity"], buffer=values["buffer"], max_sequences=values["max_sequences"])
        packer.arrived = values["arrived"]
        keys = [(length << _BITS) | (_LATEST - arrival) for arrival, length in values["waiting"]]
        packer._order = deque(sorted(keys, key=_arrival))
        packer._keys = sorted(keys)
        return packer

    def _bin(self) -> list[int]:
        while (oldest := self._order.popleft()) in self._gone:
            self._gone.remove(oldest)
        del self._keys[bisect_left(self._keys, oldest)]
        chosen = [_arrival(oldest)]
        room = self.capacity - (oldest >> _BITS)
        slots = (self.max_sequences or len(self._keys) + 1) - 1
        while room and slots:
            at = bisect_left(self._keys, (room + 1) << _BITS) - 1
            if at < 0:
                break
            key = self._keys.pop(at)
            self._gone.add(key)
            chosen.append(_arrival(key))
            room -= key >> _BITS
            slots -= 1
        return chosen


def _check_state(values: Mapping[str, Any]) -> None:
    """Raise `StreamError` unless a packer can have been in this state."""
    names = {"capacity": 1, "buffer": 1, "max_sequences": 1, "arrived": 0}
    sound = set(values) == {*names, "waiting"} and isinstance(values["waiting"], list | tuple)
    sound = sound and all(
        _is_count(values[name], least, _LATEST) or (name == "max_sequences" and values[name] is None)
        for name, least in names.items()
    )
    sound = sound and len(values["waiting"]) <= values["buffer"]
    before = -1
    for each in values["waiting"] if sound else ():
        pair = isinstance(each, list | tuple) and len(each) == 2
        sound = sound and pair and _is_count(each[0], before + 1, values["arrived"] - 1)
        sound = sound and _is_count(each[1], 1, values["capacity"])
        before = each[0] if sound else before
    if not sound:
        raise StreamError(f"{_KIND} state: {shown(dict(values))} is not what state_dict() gave; pass it on unchanged")


def _is_count(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _arrival(key: int) -> int:
    return _LATEST - (key & _LATEST)
