"""Choose bins for the sequences of a whole dataset.

Pack a whole dataset at once rather than in batches: more sequences to choose from fill bins better.
With 1 M lengths, lognormal with mean 600, and capacity 4,096:

    first_fit_decreasing   99.99 % full; bins hold from 1 to more than 200 sequences; the fastest
    best_fit_shuffle       99.8 % full; even bins
    exact_fit_shuffle      99.6 % full here, and optimal on most chat datasets; even bins
    fullest_shuffle        best fit or exact fit, whichever needs fewer bins
    concatenative          about 85 % full; keeps the order

**Best fit** puts each sequence, in a seeded order, into the fullest bin that still has room for it.
Bins hold similar numbers of sequences, which keeps the padding of boundary lists small and training
steps alike. Cost: O(n log c), where c is the small number of distinct free spaces. They are kept in
a sorted list, each with a stack of its bins.

**Exact fit** starts bins at random and completes each with one or two sequences that fill it to the
token. A bin takes sequences in the seeded order until about two more fit, then searches all
remaining sequences for lengths that add up to the free space, or come closest to it. Such a pair
almost always exists while many sequences remain, so only the last bins have gaps. Datasets of a few
hundred bins mostly reach the lower bound; up to eight orders are tried. If many sequences are
nearly as long as a bin, best fit is fuller and faster. Cost: a few vector operations per bin over
the lengths up to its free space, and O(n) Python.

**First fit decreasing** puts the longest remaining sequence into the first bin with room. The
content of bin 1 does not depend on bin 2, so bins can be made one after another. On the histogram
of lengths, a bin is a pattern such as 1 × 2500, 1 × 1200, 3 × 132, which repeats until one of its
lengths runs out. Cost: O(n) to sort by length, plus O(distinct patterns). On real lengths it needs
1–5 bins more than the lower bound, but bins are uneven: some hold one sequence and some a hundred.

**Concatenative** (next fit) keeps the order, for curricula and other ordered data. A bin ends where
the next sequence does not fit, found by bisection on running sums: O(bins log n).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, offsets_from_lengths
from headrace.bins.bins import Bins, checked_costs
from headrace.digest import derive_key
from headrace.keyed_hash import permutation

Algorithm = Literal[
    "best_fit_shuffle",
    "exact_fit_shuffle",
    "fullest_shuffle",
    "first_fit_decreasing",
    "concatenative",
]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

_MANY = 1_000_000  # above this many sequences, the bins that exact fit saves are not worth its time
_SHORT_BY = 64  # how far from exact a pair may be
# orders that exact fit tries for up to this many sequences
_ORDERS = 8
_SMALL = 50_000


def pack(
    lengths: npt.ArrayLike,
    capacity: int,
    *,
    algorithm: Algorithm = "best_fit_shuffle",
    seed: int = 0,
    max_sequences: int | None = None,
) -> Bins:
    """Put every sequence in exactly one bin of at most `capacity`; equal arguments give equal bins
    on every machine.

    lengths: integers [n], the cost of each sequence, 1..capacity: its tokens, or tokens - 1 (at
    least 1) for readers that drop one token of each sequence. Cut or drop longer sequences first,
    and count them.
    seed: for the packers that shuffle. max_sequences: most sequences in a bin.
    The packer decides the order of the bins; `Bins.shuffled` makes it random. Raises `ValueError`
    that names the sequence.
    """
    if capacity < 1:
        raise ValueError(
            f"pack: capacity is {capacity}; give the size of a bin in tokens, at least 1"
        )
    costs = checked_costs("pack", lengths, capacity)
    if max_sequences is not None and max_sequences < 1:
        raise ValueError(
            f"pack: max_sequences is {max_sequences}; give at least 1, or None for no limit"
        )
    packers: dict[Algorithm, Callable[[I64, int, int | None], Bins]] = {
        "best_fit_shuffle": partial(_best_fit, seed),
        "exact_fit_shuffle": partial(_exact_fit, seed),
        "fullest_shuffle": partial(_fullest, seed),
        "first_fit_decreasing": _first_fit_decreasing,
        "concatenative": _concatenative,
    }
    if algorithm not in packers:
        raise ValueError(f"pack: algorithm is {algorithm!r}; choose one of {', '.join(ALGORITHMS)}")
    if len(costs):
        return packers[algorithm](costs, capacity, max_sequences)
    return Bins.of_lists([])


def _fullest(seed: int, lengths: I64, capacity: int, max_sequences: int | None) -> Bins:
    best = _best_fit(seed, lengths, capacity, max_sequences)
    if len(lengths) > _MANY or len(best) * capacity < int(lengths.sum()) + capacity:
        return best
    exact = _exact_fit(seed, lengths, capacity, max_sequences)
    if len(exact) < len(best):
        return exact
    return best


def _best_fit(seed: int, lengths: I64, capacity: int, max_sequences: int | None) -> Bins:
    order = permutation(derive_key(seed, "packing.sequences"), len(lengths))
    shortest = int(lengths.min())
    stacks: list[list[int]] = [[] for _ in range(capacity + 1)]  # bins by their free space
    spaces: list[int] = []  # the free spaces whose stack holds something, rising
    if max_sequences is None:
        counts: list[int] | None = None
    else:
        counts = []
    opened = 0
    bin_numbers: list[int] = []
    add_number = bin_numbers.append
    for length in lengths[order].tolist():
        at = bisect_left(spaces, length)
        if at < len(spaces):
            space = spaces[at]
            stack = stacks[space]
            chosen = stack.pop()
            if not stack:
                del spaces[at]
        else:
            space = capacity
            chosen = opened
            opened += 1
            if counts is not None:
                counts.append(0)
        add_number(chosen)
        if counts is not None:
            counts[chosen] += 1
            if counts[chosen] == max_sequences:
                continue
        space -= length
        if space >= shortest:
            stack = stacks[space]
            if not stack:
                insort(spaces, space)
            stack.append(chosen)
    return Bins.with_positions(np.array(bin_numbers, np.int64), order, opened)


def _exact_fit(seed: int, lengths: I64, capacity: int, max_sequences: int | None) -> Bins:
    bound = -(-int(lengths.sum()) // capacity)
    best = _in_one_order(lengths, capacity, seed, 0, max_sequences)
    for number in range(1, _ORDERS if len(lengths) <= _SMALL else 1):
        if len(best) <= bound:
            break
        other = _in_one_order(lengths, capacity, seed, number, max_sequences)
        if len(other) < len(best):
            best = other
    return best


def _in_one_order(
    lengths: I64, capacity: int, seed: int, number: int, max_sequences: int | None
) -> Bins:
    order = permutation(derive_key(seed, "packing.exact", number), len(lengths))
    mixed = lengths[order]
    remainder = _Rest(mixed, capacity)
    sizes = mixed.tolist()
    bin_numbers = remainder.bin_of_sequence
    little = int(2 * mixed.mean()) + 1
    if max_sequences is None:
        most = len(sizes)
    else:
        most = max_sequences
    at = opened = 0
    while remainder.left:
        room = capacity
        count = 0
        while room > little and count < most - 2:
            while at < len(sizes) and bin_numbers[at] >= 0:
                at += 1
            if at == len(sizes) or sizes[at] > room:
                break
            remainder.take(at, sizes[at], opened)
            room = room - sizes[at]
            count = count + 1
            at = at + 1
        while remainder.left and count < most:
            matches = remainder.completing(room, pairs=count + 2 <= most, turn=opened)
            for length in matches:
                remainder.take(remainder.next_of(length), length, opened)
            room = room - sum(matches)
            count = count + len(matches)
            if not matches:
                break
        opened += 1
    return Bins.with_positions(np.array(bin_numbers, np.int64), order, opened)


class _Rest:
    """The sequences that are in no bin yet, by length.

    bin_of_sequence: the bin of each sequence, -1 for none.
    """

    def __init__(self, lengths: I64, capacity: int) -> None:
        counts = np.bincount(lengths, minlength=capacity + 1)
        self.left = len(lengths)
        self.bin_of_sequence = [-1] * len(lengths)
        self._counts: list[int] = counts.tolist()
        self._ends: list[int] = np.cumsum(counts).tolist()
        self._by_length: list[int] = np.argsort(lengths, kind="stable").tolist()
        self._one = counts > 0
        self._two = counts > 1
        self._shortest = int(lengths.min())

    def take(self, sequence: int, length: int, number: int) -> None:
        """Put a sequence into a bin."""
        self.bin_of_sequence[sequence] = number
        self.left -= 1
        self._counts[length] -= 1
        if self._counts[length] < 2:
            self._two[length] = False
            self._one[length] = self._counts[length] > 0

    def next_of(self, length: int) -> int:
        """Return a sequence of this length; there must be one."""
        while True:
            self._ends[length] -= 1
            sequence = self._by_length[self._ends[length]]
            if self.bin_of_sequence[sequence] < 0:
                return sequence

    def completing(self, room: int, *, pairs: bool, turn: int) -> tuple[int, ...]:
        """Return one or two lengths that fill `room` best; () if nothing fits.

        turn: varies the pair.
        """
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
        if len(fitting):
            return (int(fitting[-1]),)
        return ()


def _first_fit_decreasing(lengths: I64, capacity: int, max_sequences: int | None) -> Bins:
    """Make the bins in its order; sequences of one length in the order of their index."""
    order = np.argsort(
        lengths.astype(np.uint16 if capacity < 1 << 16 else np.int64, copy=False), kind="stable"
    )
    count = np.bincount(lengths, minlength=capacity + 1)
    # where in `order` the next sequence of a length stands
    next_of = (np.cumsum(count) - count).tolist()
    left = count.tolist()
    lasting = [0, *np.flatnonzero(count).tolist()]  # lengths that are left, rising; 0 is the end

    slots = max_sequences or len(lengths)
    chunks: list[I64] = []
    repeats: list[int] = []
    sizes: list[int] = []
    while lasting[-1]:
        pattern, times = _pattern(lasting, left, capacity, slots)
        parts = []
        for length, number in pattern:
            first = next_of[length]
            parts.append(order[first : first + times * number].reshape(times, number))
            next_of[length] = first + times * number
            left[length] -= times * number
            if not left[length]:
                del lasting[bisect_left(lasting, length)]
        chunks.append((np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]).ravel())
        repeats.append(times)
        sizes.append(sum(number for _, number in pattern))
    return Bins(offsets_from_lengths(np.repeat(sizes, repeats)), np.concatenate(chunks))


def _pattern(
    lasting: list[int], left: list[int], capacity: int, slots: int
) -> tuple[list[tuple[int, int]], int]:
    """Return the next bin as (length, number) pairs, and how many bins in a row are like it."""
    length = lasting[-1]
    room = capacity
    times = left[length]
    pattern = []
    while length:
        fits = min(room // length, slots)
        number = min(left[length], fits)
        pattern.append((length, number))
        # Where a length ran out inside the bin, the next bin has less of it.
        times = min(times, left[length] // number if number == fits else 1)
        room -= number * length
        slots -= number
        if slots:
            length = lasting[bisect_right(lasting, min(room, length - 1)) - 1]
        else:
            length = 0
    return pattern, times


def _concatenative(lengths: I64, capacity: int, max_sequences: int | None) -> Bins:
    ends = np.cumsum(lengths)
    bounds = [0]
    used = 0
    while (first := bounds[-1]) < len(lengths):
        stop = int(np.searchsorted(ends, used + capacity, "right"))
        if max_sequences is not None:
            stop = min(stop, first + max_sequences)
        bounds.append(stop)
        used = int(ends[stop - 1])
    return Bins(np.array(bounds, np.int64), np.arange(len(lengths), dtype=np.int64))
