"""Compute statistics of groups of rows, for all groups and columns at once, in float64; NaN is
missing.

Rows are sorted by group: group g has rows offsets[g]..offsets[g+1]-1 of a matrix [rows, columns].
Sums are taken over runs of up to `_RUN` rows first and then over the runs, so the rounding error
grows with the number of runs instead of rows. Memory: a few copies of `_BLOCK` rows, whatever the
matrix.

`correlations` finds features that are the target in another unit, which would put the label among
the inputs. Within an entity such a feature is a x target + b, so their correlation is 1 or -1 to
many digits. a and b may differ between entities (discharge over the area of each basin). Columns
that hardly vary, or have few values in rows with a target, are not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import F64, I64

_RUN = 512
_BLOCK = 1 << 13  # stays in the processor's cache


def counts(matrix: F64, offsets: I64) -> F64:
    """Count the values in each column of each group that are not missing, [G, C] float64."""
    return sums(matrix, offsets, lambda block, _: ~np.isnan(block))


def means(matrix: F64, offsets: I64) -> tuple[F64, F64]:
    """Return (counts, means) of the values that are not missing, each [G, C]; NaN for the mean of
    no values.
    """
    n = counts(matrix, offsets)
    with np.errstate(invalid="ignore"):
        return n, sums(matrix, offsets, lambda block, _: zero_missing(block)) / n


def variances(matrix: F64, offsets: I64, n: F64, mean: F64) -> F64:
    """Return population variances of the values that are not missing, [G, C], by the corrected
    two-pass algorithm.
    """
    columns = matrix.shape[1]

    def deviations_and_squares(block: F64, group: I64) -> F64:
        both = np.empty((len(block), 2 * columns))
        deviation = np.subtract(block, mean[group], out=both[:, :columns])
        deviation[np.isnan(deviation)] = 0.0
        # a huge value makes the variance infinite, which `BaseScalers` refuses
        with np.errstate(over="ignore"):
            np.square(deviation, out=both[:, columns:])
        return both

    totals = sums(matrix, offsets, deviations_and_squares)
    with np.errstate(invalid="ignore", over="ignore"):
        return (totals[:, columns:] - np.square(totals[:, :columns]) / n) / n


def zero_missing(block: F64) -> F64:
    """Return the values, with 0 for missing ones."""
    missing = np.isnan(block)
    if missing.any():
        return np.where(missing, 0.0, block)
    return block


def extremes(matrix: F64, offsets: I64) -> tuple[F64, F64]:
    """Return (least, greatest) value of each column of each group, each [G, C]; NaN if there is
    none.
    """
    if len(offsets) == 1:
        empty = np.empty((0, matrix.shape[1]))
        return empty, empty.copy()
    starts = _starts(offsets)
    return np.fmin.reduceat(matrix, starts, axis=0), np.fmax.reduceat(matrix, starts, axis=0)


def quantiles(matrix: F64, offsets: I64, shares: tuple[float, ...]) -> F64:
    """Return quantiles of the values that are not missing, by linear interpolation; [len(shares),
    G, C].

    shares: in [0, 1]. Results are bit-identical to `np.nanquantile`, which takes four times as
    long.
    """
    columns = np.arange(matrix.shape[1])
    result = np.empty((len(shares), len(offsets) - 1, len(columns)))
    for group, (start, stop) in enumerate(pairwise(offsets.tolist())):
        ordered = np.sort(matrix[start:stop], axis=0)  # NaN sorts last
        last = np.maximum((stop - start) - np.isnan(ordered).sum(axis=0) - 1, 0)
        for number, quantile in enumerate(shares):
            position = quantile * last
            below = np.floor(position).astype(np.int64)
            low = ordered[below, columns]
            high = ordered[np.minimum(below + 1, last), columns]
            part = position - below
            # interpolate from the nearer end, so that both ends are exact
            result[number, group] = np.where(
                part < 0.5, low + (high - low) * part, high - (high - low) * (1 - part)
            )
    return result


def row_groups(offsets: I64, start: int, stop: int) -> I64:
    """Return the group of each of the rows start..stop-1."""
    first = int(np.searchsorted(offsets, start, "right")) - 1
    last = int(np.searchsorted(offsets, stop, "left"))
    edges = np.clip(offsets[first : last + 1], start, stop)
    return np.repeat(np.arange(first, last, dtype=np.int64), np.diff(edges))


def sums(matrix: F64, offsets: I64, of: Callable[[F64, I64], npt.NDArray[Any]]) -> F64:
    """Sum `of(rows, their groups)` [rows, C] over each group, [G, C]; `of` is called block by
    block.
    """
    if len(_starts(offsets)) == 0:
        return np.asarray(of(matrix[:0], np.empty(0, np.int64)), np.float64)
    runs = [np.arange(start, stop, _RUN) for start, stop in pairwise(offsets.tolist())]
    boundaries = np.append(np.concatenate(runs), offsets[-1])
    # runs per block
    partial = []
    runs_of_block = _BLOCK // _RUN
    for begin in range(0, len(boundaries) - 1, runs_of_block):
        block_boundaries = boundaries[begin : begin + runs_of_block + 1]
        start = int(block_boundaries[0])
        stop = int(block_boundaries[-1])
        block = of(matrix[start:stop], row_groups(offsets, start, stop))
        partial.append(
            np.add.reduceat(block, block_boundaries[:-1] - start, axis=0, dtype=np.float64)
        )
    first_run = np.cumsum([0, *map(len, runs)][:-1])
    return np.add.reduceat(np.concatenate(partial), first_run, axis=0)


def _starts(offsets: I64) -> I64:
    if np.any(np.diff(offsets) < 1) or offsets[0] != 0:
        raise ValueError("every group must have a row, and the first begins at row 0")
    return offsets[:-1]


ALIKE = 0.9999
LEAST_VALUES = 30


def correlations(matrix: F64, offsets: I64) -> F64:
    """Correlate each column with the first, the target, in each group (Pearson's), [G, C]; NaN if
    it cannot be judged.

    Uses the rows where both have a value; at least `LEAST_VALUES` of them.
    """
    target = matrix[:, :1]
    columns = matrix.shape[1]
    both = ~np.isnan(matrix) & ~np.isnan(target)
    paired = np.concatenate(
        [np.where(both, matrix, np.nan), np.where(both, target, np.nan)], axis=1
    )
    n, mean = means(paired, offsets)

    def products(rows: F64, group: I64) -> F64:
        deviation = rows - mean[group]
        return zero_missing(deviation[:, :columns] * deviation[:, columns:])

    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        var = variances(paired, offsets, n, mean)
        flat = (var <= 1e-20 * np.square(mean)) | (n < LEAST_VALUES)
        r = (
            sums(paired, offsets, products)
            / n[:, :columns]
            / np.sqrt(var[:, :columns] * var[:, columns:])
        )
    return np.where(flat[:, :columns] | flat[:, columns:], np.nan, r)


def tally(columns: Sequence[str], matrix: F64, offsets: I64) -> dict[str, list[int]]:
    """Count, by column, [groups where it is the target in another unit, groups that could be
    judged].

    The first column is the target, and is left out. Tallies of batches add up.
    """
    r = correlations(matrix, offsets)
    alike = (np.abs(r) > ALIKE).sum(axis=0).tolist()
    judged = (~np.isnan(r)).sum(axis=0).tolist()
    return {name: [alike[at], judged[at]] for at, name in enumerate(columns) if at}


def add(tallies: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """Add up tallies of different groups."""
    total: dict[str, list[int]] = {}
    for counts_of_columns in tallies:
        for name, (alike, judged) in counts_of_columns.items():
            counts = total.setdefault(name, [0, 0])
            counts[0] += alike
            counts[1] += judged
    return dict(sorted(total.items()))


def suspects(tallies: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, list[int]]:
    """Return the columns that are the target in another unit in more than half of the groups that
    could be judged.
    """
    return {name: counts for name, counts in add(tallies).items() if counts[0] * 2 > counts[1]}


def warning(target: str, suspicious: Mapping[str, Sequence[int]]) -> str | None:
    """Return a warning about these suspects; None if there are none."""
    if not suspicious:
        return None
    columns = "; ".join(
        f"{name} in {alike:,} of {judged:,} entities"
        for name, (alike, judged) in suspicious.items()
    )
    return (
        f"looks like {target} in another unit: {columns}; leave it out, unless it is known when"
        " predicting"
    )
