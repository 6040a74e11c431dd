"""Which sequences lie in which bin: two arrays, no object a bin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64
from headrace.digest import derive_key, permutation


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """Bin b holds sequences[offsets[b] : offsets[b + 1]], in the order in which they will lie in it.

    offsets: int64 [bins + 1], from 0, never falling; sequences: int64 [n], places in the array of lengths.
    Raises `ValueError` if the two do not fit together.
    """

    offsets: I64
    sequences: I64

    def __post_init__(self) -> None:
        if not len(self.offsets) or self.offsets[0] != 0 or self.offsets[-1] != len(self.sequences):
            raise ValueError(
                f"bins: offsets go from {self.offsets[:1].tolist()} to {self.offsets[-1:].tolist()}, "
                f"sequences are {len(self.sequences)}; offsets must go from 0 to the number of sequences"
            )
        falling = np.flatnonzero(np.diff(self.offsets) < 0)
        if len(falling):
            raise ValueError(f"bins: offsets fall after bin {falling[0]}; give them in rising order")

    @classmethod
    def empty(cls) -> Bins:
        """No bin."""
        return cls(np.zeros(1, np.int64), np.empty(0, np.int64))

    @classmethod
    def from_lists(cls, lists: Sequence[Sequence[int]], sequences: int) -> Bins:
        """Bins from a list of indices each. sequences: how many there are to choose from.

        Raises `IndexError` for an index outside 0..sequences-1, `ValueError` for one that stands twice or an empty bin.
        """
        sizes = np.fromiter((len(each) for each in lists), np.int64, len(lists))
        if len(lists) and not sizes.all():
            raise ValueError(f"bins: bin {int(np.argmin(sizes))} is empty; leave it out")
        chosen = np.fromiter((index for each in lists for index in each), np.int64, int(sizes.sum()))
        outside = np.flatnonzero((chosen < 0) | (chosen >= sequences))
        if len(outside):
            where = int(np.searchsorted(np.cumsum(sizes), outside[0], "right"))
            raise IndexError(f"bins: bin {where} names sequence {chosen[outside[0]]} of {sequences}; count from 0")
        times = np.bincount(chosen, minlength=1)
        if times.max() > 1:
            raise ValueError(f"bins: sequence {int(times.argmax())} stands {times.max()} times; place each once")
        return cls(_offsets(sizes), chosen)

    @classmethod
    def of_places(cls, places: npt.NDArray[np.integer], order: I64, bins: int) -> Bins:
        """Bins from the bin of each sequence: order[i] goes into bin places[i], behind those that came before it."""
        by_bin = np.argsort(places, kind="stable")
        return cls(_offsets(np.bincount(places, minlength=bins)), order[by_bin])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, part: slice) -> Bins:
        """Consecutive bins, as a view where possible."""
        first, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"bins: a slice with step {step}; take consecutive bins, or use take()")
        stop = max(first, stop)
        begin, end = self.offsets[first], self.offsets[stop]
        return Bins(self.offsets[first : stop + 1] - begin, self.sequences[begin:end])

    def bin(self, number: int) -> I64:
        """The sequences of one bin, as a view. Raises `IndexError` if there is no such bin."""
        if not 0 <= number < len(self):
            raise IndexError(f"bins: no bin {number}; there are {len(self)}, counted from 0")
        return self.sequences[self.offsets[number] : self.offsets[number + 1]]

    @property
    def counts(self) -> I64:
        """Sequences in each bin; int64 [bins]."""
        return np.diff(self.offsets)

    def loads(self, costs: npt.NDArray[np.integer]) -> I64:
        """What the sequences of each bin cost together; costs by sequence → int64 [bins]."""
        ends = np.zeros(len(self.sequences) + 1, np.int64)
        np.cumsum(costs[self.sequences], out=ends[1:])
        return np.diff(ends[self.offsets])

    def take(self, order: I64) -> Bins:
        """The bins in another order, or some of them; order: int64, numbers of bins."""
        sizes = self.counts[order]
        offsets = _offsets(sizes)
        at = np.repeat(self.offsets[order] - offsets[:-1], sizes) + np.arange(offsets[-1])
        return Bins(offsets, self.sequences[at])

    def shuffled(self, seed: int) -> Bins:
        """The bins in a pseudorandom order that depends on the seed and their number alone.

        Packers open bins in an order that says something about their content (decreasing ones from long to short);
        after this, reading in file order is reading at random.
        """
        return self.take(permutation(derive_key(seed, "packing.bins"), len(self)))


def _offsets(sizes: npt.NDArray[np.integer]) -> I64:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets
