"""Missing values of one entity's series: runs of them, trimming at both ends, filling of short gaps.

A gap is a run of missing values between two observed values of a column. Runs at the ends of a column are not gaps:
nothing is known on one side of them. A gap is filled whole or left whole: filling the first steps of a long outage
would invent a plateau. Before a cut nobody can know how long a gap through it will be, so such a gap is left. Values
are only carried forward. All functions take float64 [T, C] with NaN for missing (T steps, C columns) and are vectorised
over both.
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
        """Return some of them."""
        return Gaps(self.column[places], self.start[places], self.length[places])

    def inside(self, cuts: Sequence[int]) -> Bools:
        """Find gaps that lie, with the value that ends them, on one side of every cut; cuts: ascending rows."""
        sides = [np.searchsorted(cuts, rows, side="right") for rows in (self.start, self.start + self.length)]
        return np.asarray(sides[0] == sides[1], np.bool_)

    def per_column(self, columns: int) -> tuple[I64, I64, I64]:
        """Return for each column how many gaps it has, how many values they miss, and the longest: int64 [C] each."""
        count = np.bincount(self.column, minlength=columns).astype(np.int64)
        values = np.zeros(columns, np.int64)
        np.add.at(values, self.column, self.length)
        longest = np.zeros(columns, np.int64)
        np.maximum.at(longest, self.column, self.length)
        return count, values, longest


def span(observed: Bools, *, least: int = 0) -> tuple[int, int]:
    """Trim both ends: return the rows [start, stop) of observed [T, C] that are left.

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
    """Find the gaps of each column of missing [T, C]."""
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
    """Fill these gaps of `values` in place, each with the value before it; return which were filled: bool [T, C]."""
    filled = np.zeros(values.shape, np.bool_)
    begins = np.cumsum(gaps.length) - gaps.length
    rows = np.arange(int(gaps.length.sum())) + np.repeat(gaps.start - begins, gaps.length)
    columns = np.repeat(gaps.column, gaps.length)
    values[rows, columns] = np.repeat(values[gaps.start - 1, gaps.column], gaps.length)
    filled[rows, columns] = True
    return filled
