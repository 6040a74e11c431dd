"""Missing values of one entity's series: runs of them, trimming at both ends, filling of short gaps.

A gap is a run of missing values between two observed values of a column. Runs at the ends of a column are not gaps:
nothing is known on one side of them. A gap is filled whole or left whole: filling the first steps of a long outage
would invent a plateau. Before a cut nobody can know how long a gap through it will be, so such a gap is left. Values
are only carried forward. All functions take float64 [T, C] with NaN for missing
(T steps, C columns) and are vectorised over both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.arrays import F64, I64, Bools


@dataclass(frozen=True)
class Gaps:
    """Runs of missing values between observed ones, [G], ordered by column and start."""

    column: I64
    start: I64
    length: I64

    def take(self, places: Bools) -> Gaps:
        """Some of them."""
        return Gaps(self.column[places], self.start[places], self.length[places])

    def inside(self, cuts: Sequence[int]) -> Bools:
        """Which gaps, with the value that ends them, lie on one side of every cut; cuts: ascending rows."""
        ends = self.start + self.length
        return np.asarray(
            np.searchsorted(cuts, self.start, side="right") == np.searchsorted(cuts, ends, side="right"), np.bool_
        )

    def per_column(self, columns: int) -> tuple[I64, I64, I64]:
        """Of each column: how many gaps, how many values they miss, the longest: three int64 [C]."""
        count = np.bincount(self.column, minlength=columns).astype(np.int64)
        values = np.zeros(columns, np.int64)
        np.add.at(values, self.column, self.length)
        longest = np.zeros(columns, np.int64)
        np.maximum.at(longest, self.column, self.length)
        return count, values, longest


def span(observed: Bools, *, least: int = 0) -> tuple[int, int]:
    """The rows that are left when both ends are trimmed: [start, stop) of observed [T, C].

    They begin where every column has had a value, and end where one has had its last, but not before `least` rows.
    start == stop if nothing is left, as where a column is never observed.
    """
    steps, columns = observed.shape
    if not steps or not columns or not observed.any(axis=0).all():
        return 0, 0
    start = int(observed.argmax(axis=0).max())
    stop = max(steps - int(observed[::-1].argmax(axis=0).max()), start + least)
    return (start, stop) if start < stop else (0, 0)


def find(missing: Bools) -> Gaps:
    """The gaps of each column of missing [T, C]."""
    steps, columns = missing.shape
    wide = np.zeros((columns, steps + 2), np.int8)
    wide[:, 1:-1] = missing.T
    edges = np.flatnonzero(np.diff(wide.reshape(-1)))  # of the flattened columns: begins and ends take turns
    starts, stops = edges[::2], edges[1::2]
    column, start = np.divmod(starts, steps + 2)
    length = stops - starts
    inside = (start > 0) & (start + length < steps)
    return Gaps(column[inside], start[inside], length[inside])


def fill(values: F64, gaps: Gaps) -> Bools:
    """Fill these gaps of `values` in place, each with the value before it; which values were filled: bool [T, C]."""
    filled = np.zeros(values.shape, np.bool_)
    total = int(gaps.length.sum())
    if not total:
        return filled
    begins = np.cumsum(gaps.length) - gaps.length
    offset = np.arange(total) - np.repeat(begins, gaps.length)
    rows = np.repeat(gaps.start, gaps.length) + offset
    columns = np.repeat(gaps.column, gaps.length)
    values[rows, columns] = np.repeat(values[gaps.start - 1, gaps.column], gaps.length)
    filled[rows, columns] = True
    return filled
