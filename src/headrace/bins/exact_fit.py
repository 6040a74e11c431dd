"""Exact fit in a seeded order: bins are begun at random and ended with the two sequences that fill them to the token.

A bin takes sequences in the seeded order until little room is left, about two sequences' worth. It is then completed
from the whole rest: two lengths, or one, that add up to the room exactly, else as nearly as can be. While the rest is
large there almost always are two, so bins are full to the token and as even as those of best fit; what is lost is lost
in the last few bins. Data of a few hundred bins, where every bin counts, mostly comes to the least number there can be;
up to eight orders are tried for that. Where many sequences are nearly as long as a bin, best fit is fuller and faster.

Cost: a few vector operations over the lengths up to the room for each bin, and O(n) Python.
"""

from __future__ import annotations

import numpy as np

from headrace.arrays import I64
from headrace.bins.bins import Bins
from headrace.digest import derive_key, permutation

_SHORT_BY = 64  # how far from exact a pair may be
_ORDERS, _SMALL = 8, 50_000  # how many orders are tried for up to so many sequences


def exact_fit_shuffle(lengths: I64, capacity: int, *, seed: int, max_sequences: int | None = None) -> Bins:
    """Bins in an order that depends on the seed; see the module.

    lengths: int64 [n], each 1..capacity. max_sequences: a bin with so many takes no more.
    """
    if not len(lengths):
        return Bins.empty()
    bound = -(-int(lengths.sum()) // capacity)
    best = _in_one_order(lengths, capacity, seed, 0, max_sequences)
    for number in range(1, _ORDERS if len(lengths) <= _SMALL else 1):
        if len(best) <= bound:
            break
        other = _in_one_order(lengths, capacity, seed, number, max_sequences)
        best = other if len(other) < len(best) else best
    return best


def _in_one_order(lengths: I64, capacity: int, seed: int, number: int, max_sequences: int | None) -> Bins:
    order = permutation(derive_key(seed, "packing.exact", number), len(lengths))
    mixed = lengths[order]
    rest = _Rest(mixed, capacity)
    sizes, places = mixed.tolist(), rest.places
    little = int(2 * mixed.mean()) + 1
    most = len(sizes) if max_sequences is None else max_sequences
    at = opened = 0
    while rest.left:
        room, held = capacity, 0
        while room > little and held < most - 2:
            while at < len(sizes) and places[at] >= 0:
                at += 1
            if at == len(sizes) or sizes[at] > room:
                break
            rest.take(at, sizes[at], opened)
            room, held, at = room - sizes[at], held + 1, at + 1
        while rest.left and held < most:
            found = rest.completing(room, pairs=held + 2 <= most, turn=opened)
            for length in found:
                rest.take(rest.next_of(length), length, opened)
            room, held = room - sum(found), held + len(found)
            if not found:
                break
        opened += 1
    return Bins.of_places(np.array(places, np.int64), order, opened)


class _Rest:
    """The sequences that are in no bin yet, by length. places: the bin of each sequence, -1 for none."""

    def __init__(self, lengths: I64, capacity: int) -> None:
        counts = np.bincount(lengths, minlength=capacity + 1)
        self.left = len(lengths)
        self.places = [-1] * len(lengths)
        self._counts: list[int] = counts.tolist()
        self._ends: list[int] = np.cumsum(counts).tolist()
        self._by_length: list[int] = np.argsort(lengths, kind="stable").tolist()
        self._one, self._two = counts > 0, counts > 1
        self._shortest = int(lengths.min())

    def take(self, sequence: int, length: int, number: int) -> None:
        """Put a sequence into a bin."""
        self.places[sequence] = number
        self.left -= 1
        self._counts[length] -= 1
        if self._counts[length] < 2:
            self._two[length] = False
            self._one[length] = self._counts[length] > 0

    def next_of(self, length: int) -> int:
        """A sequence of this length; there must be one."""
        while True:
            self._ends[length] -= 1
            sequence = self._by_length[self._ends[length]]
            if self.places[sequence] < 0:
                return sequence

    def completing(self, room: int, *, pairs: bool, turn: int) -> tuple[int, ...]:
        """One or two lengths that fill `room` as nearly as is looked for; () if nothing fits. turn: varies the pair."""
        low = self._shortest
        for total in range(room, max(low, room - _SHORT_BY) - 1, -1):
            half = total // 2
            if pairs and half >= low:
                both = self._one[low : half + 1] & self._one[total - half : total - low + 1][::-1]
                if 2 * half == total and not self._two[half]:
                    both[-1] = False
                shorter = np.flatnonzero(both)
                if len(shorter):
                    first = low + int(shorter[turn * 7919 % len(shorter)])
                    return first, total - first
            if total >= low and self._one[total]:
                return (total,)
        fitting = np.flatnonzero(self._one[: room + 1])
        return (int(fitting[-1]),) if len(fitting) else ()
