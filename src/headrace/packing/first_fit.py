"""First fit in a seeded order: each sequence goes into the oldest bin that still has room for it.

What several trainers' own preparation does, there by looking at every bin. Here the bins of one free space are a heap
with the oldest on top, and the oldest of a range of spaces is found through minima of stretches of them: O(n √c), c
the capacity. Choose best fit, which is faster and fills a little better, unless bins must be as first fit makes them.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import isqrt

import numpy as np

from headrace.arrays import I64
from headrace.digest import derive_key, permutation
from headrace.packing.bins import Bins

_NONE = 1 << 62  # larger than the number of any bin


def first_fit_shuffle(lengths: I64, capacity: int, *, seed: int, max_sequences: int | None = None) -> Bins:
    """First fit of the sequences in an order that depends on the seed and their number alone.

    lengths: int64 [n], each 1..capacity. max_sequences: a bin with so many takes no more. O(n) Python.
    """
    order = permutation(derive_key(seed, "packing.sequences"), len(lengths))
    places, opened = first_fit(lengths[order].tolist(), capacity, max_sequences)
    return Bins.of_places(places, order, opened)


def first_fit(lengths: list[int], capacity: int, max_sequences: int | None) -> tuple[I64, int]:
    """The bin of each length in the given order, and the number of bins."""
    width = max(8, isqrt(capacity))
    spaces = -(-(capacity + 1) // width) * width
    heaps: list[list[int]] = [[] for _ in range(spaces)]  # bins by their free space
    oldest = [_NONE] * spaces  # of each space
    oldest_of_stretch = [_NONE] * (spaces // width)  # of each `width` spaces
    shortest = min(lengths, default=1)
    room: list[int] = []
    counts: list[int] = []
    places: list[int] = []
    for length in lengths:
        stretch = length // width
        chosen = min(oldest[length : (stretch + 1) * width])
        if stretch + 1 < len(oldest_of_stretch):
            chosen = min(chosen, min(oldest_of_stretch[stretch + 1 :]))
        if chosen == _NONE:
            chosen, space = len(room), capacity
            room.append(capacity)
            counts.append(0)
        else:
            space = room[chosen]
            heap = heaps[space]
            heappop(heap)
            oldest[space] = heap[0] if heap else _NONE
            stretch = space // width
            if oldest_of_stretch[stretch] == chosen:
                oldest_of_stretch[stretch] = min(oldest[stretch * width : (stretch + 1) * width])
        places.append(chosen)
        counts[chosen] += 1
        space -= length
        room[chosen] = space
        if space >= shortest and counts[chosen] != max_sequences:
            heappush(heaps[space], chosen)
            if chosen < oldest[space]:
                oldest[space] = chosen
                stretch = space // width
                if chosen < oldest_of_stretch[stretch]:
                    oldest_of_stretch[stretch] = chosen
    return np.array(places, np.int64), len(room)
