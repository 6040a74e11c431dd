"""Rows per stretch of time, counted while a run is prepared. Pure, O(rows).

The stretches follow from the source's first and last date and from the cutoff, which is the border of two of them.
Counts of shards add up, so they are the same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import I64

_MOST = 72  # columns over the width of a page


@dataclass(frozen=True, slots=True)
class DateBins:
    """Stretches [first_us + n * width_us, first_us + (n + 1) * width_us), n from 0 to count - 1."""

    first_us: int
    width_us: int
    count: int

    @classmethod
    def over(cls, first_us: int, last_us: int, cutoff_us: int) -> DateBins:
        """At most 73 of them, that hold both dates."""
        width = max(1, -(-(last_us - first_us + 1) // _MOST))
        shift = (cutoff_us - first_us) % width if first_us < cutoff_us <= last_us else 0
        begin = first_us + shift - width if shift else first_us
        return cls(begin, width, (last_us - begin) // width + 1)

    def counts(self, micros: I64) -> I64:
        """Rows in each stretch, int64 [count]. Dates outside, which only a damaged run has, are counted nowhere."""
        places = (micros - self.first_us) // self.width_us
        return np.bincount(places[(places >= 0) & (places < self.count)], minlength=self.count)


def total(counts: Iterable[Mapping[str, list[int]]], bins: DateBins, splits: Iterable[str]) -> dict[str, Any]:
    """What the manifest says: the stretches, and the rows in them by split."""
    found = {split: np.zeros(bins.count, np.int64) for split in splits}
    for each in counts:
        for split, own in each.items():
            found[split] += np.array(own, np.int64)
    return {
        "first_us": bins.first_us,
        "width_us": bins.width_us,
        "rows": {split: own.tolist() for split, own in found.items()},
    }
