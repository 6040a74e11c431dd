"""Describe which sequences lie in which bin, as two arrays, and what a sequence of L tokens costs
in a bin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, offsets_from_lengths
from headrace.digest import derive_key
from headrace.keyed_hash import permutation

Counted = Literal["stored", "runtime"]


def padded_lengths(
    lengths: npt.NDArray[np.integer], multiple: int = 1, counted: Counted = "stored"
) -> I64:
    """Round lengths up to what is stored; int64.

    counted="stored": a multiple of `multiple`. "runtime": one more than a multiple, for readers
    that train on L - 1 positions of a stored sequence and need a multiple there. Raises
    `ValueError` if multiple < 1.
    """
    if multiple < 1:
        raise ValueError(f"padding: the multiple is {multiple}; give at least 1 (1 pads nothing)")
    stored = np.asarray(lengths, np.int64)
    if multiple == 1:
        return stored
    extra = 0
    if counted == "runtime":
        extra = 1
    return -(-np.maximum(stored - extra, 1) // multiple) * multiple + extra


def costs(lengths: npt.NDArray[np.integer], counted: Counted = "stored", multiple: int = 1) -> I64:
    """Count what sequences cost in a bin, padding included; the `lengths` argument of `pack`.

    counted="stored": their tokens; a bin never stores more than its capacity. "runtime": one less,
    at least 1; a bin may store one token a sequence more than its capacity, which readers that drop
    the last token never see.
    """
    stored = padded_lengths(lengths, multiple, counted)
    if counted == "runtime":
        return np.maximum(stored - 1, 1)
    return stored


def checked_costs(what: str, lengths: npt.ArrayLike, capacity: int, *, first: int = 0) -> I64:
    """Return costs as int64.

    Raises `ValueError` that names a sequence no bin holds, counted from `first`.
    """
    costs = np.asarray(lengths)
    if costs.ndim != 1 or (len(costs) and costs.dtype.kind not in "iu"):
        raise ValueError(
            f"{what}: lengths have shape {costs.shape} and type {costs.dtype}; give integers in one"
            " axis"
        )
    outside = np.flatnonzero((costs < 1) | (costs > capacity))
    if len(outside):
        raise ValueError(
            f"{what}: sequence {first + int(outside[0])} costs {costs[outside[0]]}, a bin holds 1"
            f" to {capacity} ({len(outside)} do not fit); cut, split or drop them before, and count"
            " them"
        )
    return costs.astype(np.int64, copy=False)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the fractional part of the golden ratio, times 2^64


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """Bin b holds sequences[offsets[b] : offsets[b + 1]], in the order in which they will lie in
    it.

    offsets: int64 [bins + 1], from 0, never falling; sequences: int64 [n], indices in the array of
    lengths. Raises `ValueError` if the two do not fit together.
    """

    offsets: I64
    sequences: I64

    def __post_init__(self) -> None:
        if not len(self.offsets) or self.offsets[0] != 0 or self.offsets[-1] != len(self.sequences):
            raise ValueError(
                f"bins: offsets go from {self.offsets[:1].tolist()} to"
                f" {self.offsets[-1:].tolist()}, sequences are {len(self.sequences)}; offsets must"
                " go from 0 to the number of sequences"
            )
        falling = np.flatnonzero(np.diff(self.offsets) < 0)
        if len(falling):
            raise ValueError(
                f"bins: offsets fall after bin {falling[0]}; give them in rising order"
            )

    @classmethod
    def of_lists(cls, lists: Sequence[Sequence[int]]) -> Bins:
        """Make bins from a list of indices each."""
        return cls(
            offsets_from_lengths([len(members) for members in lists]),
            np.array(list(chain.from_iterable(lists)), np.int64),
        )

    @classmethod
    def with_positions(cls, bin_numbers: npt.NDArray[np.integer], order: I64, bins: int) -> Bins:
        """Make bins from the bin of each sequence; order[i] goes into bin bin_numbers[i], behind
        those before it.
        """
        by_bin = np.argsort(bin_numbers, kind="stable")
        return cls(offsets_from_lengths(np.bincount(bin_numbers, minlength=bins)), order[by_bin])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, part: slice) -> Bins:
        """Consecutive bins, as a view where possible."""
        first, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(
                f"bins: a slice with step {step}; take consecutive bins, or use take()"
            )
        stop = max(first, stop)
        begin = self.offsets[first]
        end = self.offsets[stop]
        return Bins(self.offsets[first : stop + 1] - begin, self.sequences[begin:end])

    def bin(self, number: int) -> I64:
        """Give the sequences of one bin, as a view. Raises `IndexError` if there is no such bin."""
        if not 0 <= number < len(self):
            raise IndexError(f"bins: no bin {number}; there are {len(self)}, counted from 0")
        return self.sequences[self.offsets[number] : self.offsets[number + 1]]

    @property
    def counts(self) -> I64:
        """Sequences in each bin; int64 [bins]."""
        return np.diff(self.offsets)

    def loads(self, costs: npt.NDArray[np.integer]) -> I64:
        """Sum the costs of the sequences in each bin; costs by sequence → int64 [bins]."""
        return np.diff(offsets_from_lengths(costs[self.sequences])[self.offsets])

    def take(self, order: I64) -> Bins:
        """Take the bins in another order, or some of them; order: int64, numbers of bins."""
        sizes = self.counts[order]
        offsets = offsets_from_lengths(sizes)
        at = np.repeat(self.offsets[order] - offsets[:-1], sizes) + np.arange(offsets[-1])
        return Bins(offsets, self.sequences[at])

    def shuffled(self, seed: int) -> Bins:
        """Put the bins in a pseudorandom order that depends on the seed and their number alone.

        Packers open bins in an order that says something about their content (decreasing ones from
        long to short); after this, reading in file order is reading at random.
        """
        return self.take(permutation(derive_key(seed, "packing.bins"), len(self)))

    def spread(self, costs: I64, seed: int) -> Bins:
        """Order the bins so that every stretch of them mixes cheap and expensive ones evenly.

        costs: int64 [bins]. The bin of rank r by cost goes where the fractional part of r times the
        golden ratio, from a start that depends on the seed, stands among all of them: the additive
        recurrence of lowest discrepancy (Niederreiter 1992, chapter 3). Equal costs keep a
        pseudorandom order.
        """
        mixed = permutation(derive_key(seed, "packing.bins"), len(self))
        by_cost = mixed[np.argsort(costs[mixed], kind="stable")]
        start = np.uint64(derive_key(seed, "packing.spread")[0])
        with np.errstate(over="ignore"):
            turns = start + np.arange(len(self), dtype=np.uint64) * _GOLDEN  # fractions of 2^64
        return self.take(by_cost[np.argsort(turns, kind="stable")])


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingMetrics:
    """Count one packing's bins, sequences and tokens; `dataclasses.asdict` is JSON.

    bound: a lower bound on the number of bins of any packing. fill: share of the capacity that is
    used, 0..1; packing_efficiency is the same in percent. packing_factor: mean sequences per bin.
    least_load, greatest_load: cost of the emptiest and the fullest bin. sequences_p50, …: sequences
    in a bin.
    """

    sequences: int
    tokens: int
    capacity: int
    bins: int
    bound: int
    fill: float
    packing_factor: float
    packing_efficiency: float
    longest_sequence: int
    least_load: int
    greatest_load: int
    sequences_p50: float
    sequences_p99: float
    sequences_max: int


def packing_metrics(lengths: npt.ArrayLike, bins: Bins, capacity: int) -> PackingMetrics:
    """Measure a packing of the costs that were given to `pack`; all zero without bins."""
    costs = np.asarray(lengths, np.int64)
    counts = bins.counts
    loads = bins.loads(costs)
    tokens = int(loads.sum())
    fill = 0.0
    if len(bins):
        fill = tokens / (len(bins) * capacity)
    if len(bins):
        p50, p99 = np.percentile(counts, [50, 99]).tolist()
    else:
        p50, p99 = (0.0, 0.0)
    return PackingMetrics(
        sequences=len(bins.sequences),
        tokens=tokens,
        capacity=capacity,
        bins=len(bins),
        bound=-(-tokens // capacity),
        fill=fill,
        packing_factor=len(bins.sequences) / len(bins) if len(bins) else 0.0,
        packing_efficiency=100 * fill,
        longest_sequence=int(costs[bins.sequences].max(initial=0)),
        least_load=int(loads.min()) if len(bins) else 0,
        greatest_load=int(loads.max(initial=0)),
        sequences_p50=p50,
        sequences_p99=p99,
        sequences_max=int(counts.max(initial=0)),
    )
