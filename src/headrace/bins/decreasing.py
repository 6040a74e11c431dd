"""First fit decreasing without work for each sequence: a bin is a pattern of lengths, and patterns repeat.

First fit decreasing puts the longest sequence that is left into the first bin with room. All that bin 1 will ever get
is decided without looking at bin 2: it is "the longest that still fits", again and again. So the bins can be made one
after another; on the histogram of lengths a bin is a pattern such as 1 × 2500, 1 × 1200, 3 × 132, and the next bins
have the same pattern until one of its lengths runs out. Cost: O(n) to sort by length, O(distinct patterns) for the
rest. 1–5 bins above the least possible number on real lengths, but lopsided: bins of one sequence and bins of a
hundred. Choose best fit where the number of sequences in a bin should be even.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.arrays import I64
from headrace.bins.bins import Bins


def first_fit_decreasing(lengths: I64, capacity: int, *, max_sequences: int | None = None) -> Bins:
    """The bins of plain first fit decreasing, in its order; sequences of one length in the order of their index.

    lengths: int64 [n], each 1..capacity. max_sequences: a bin with so many takes no more.
    """
    if not len(lengths):
        return Bins.empty()
    order = np.argsort(lengths.astype(np.uint16 if capacity < 1 << 16 else np.int64, copy=False), kind="stable")
    count = np.bincount(lengths, minlength=capacity + 1)
    next_of = (np.cumsum(count) - count).tolist()  # where in `order` the next sequence of a length stands
    left = count.tolist()
    below = list(range(capacity + 1))  # a length that ran out points to a shorter one; 0 is the end
    for length in np.flatnonzero(count == 0)[1:].tolist():
        below[length] = length - 1

    def longest(at_most: int) -> int:
        root = at_most
        while below[root] != root:
            root = below[root]
        while below[at_most] != root:  # shorten the way for the next question
            below[at_most], at_most = root, below[at_most]
        return root

    slots = max_sequences or len(lengths)
    pieces: list[I64] = []
    repeats: list[int] = []
    sizes: list[int] = []
    while top := longest(capacity):
        pattern, times = _pattern(top, left, longest, capacity, slots)
        parts = []
        for length, number in pattern:
            first = next_of[length]
            parts.append(order[first : first + times * number].reshape(times, number))
            next_of[length] = first + times * number
            left[length] -= times * number
            if not left[length]:
                below[length] = length - 1
        pieces.append((np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]).ravel())
        repeats.append(times)
        sizes.append(sum(number for _, number in pattern))
    offsets = np.zeros(sum(repeats) + 1, np.int64)
    np.cumsum(np.repeat(sizes, repeats), out=offsets[1:])
    return Bins(offsets, np.concatenate(pieces))


def _pattern(
    length: int, left: list[int], longest: Callable[[int], int], capacity: int, slots: int
) -> tuple[list[tuple[int, int]], int]:
    """The next bin as (length, number) pairs, and how many bins in a row are like it."""
    room, times, pattern = capacity, left[length], []
    while length:
        fits = min(room // length, slots)
        number = min(left[length], fits)
        pattern.append((length, number))
        # Where a length ran out inside the bin, the next bin has less of it.
        times = min(times, left[length] // number if number == fits else 1)
        room -= number * length
        slots -= number
        length = longest(min(room, length - 1)) if room and slots else 0
    return pattern, times
