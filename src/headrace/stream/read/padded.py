"""Lists as dense batches: the rows of a batch padded to the longest of them.

Short rows are copied by one index over overlapping windows of the values, as wide as the longest row, and what a window
holds beyond its row is overwritten: no call a row. Where the longest row is long, that would move more padding than
rows, and rows are copied one by one: half a microsecond each, beside at least as much for their tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.stream.read.ragged import Ragged

LENGTHS = "_lengths"

_LONG_ROW = 256  # values; measured: below, one index for all rows is faster than a copy each


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """What fills lists up. values: by column, 0 for others; multiple: widths are rounded up to one of these."""

    values: Mapping[str, float] = field(default_factory=dict)
    multiple: int = 1


def padded_batches(column: Ragged, batch_size: int, *, fill: float, multiple: int) -> Iterator[npt.NDArray[Any]]:
    """The rows as matrices [at most batch_size, width] of the values' type; a null row is all filling.

    width: the longest row of the batch, rounded up to a multiple. Each is memory of its own.
    """
    if not len(column):
        return
    begins = range(0, len(column), batch_size)
    longest = np.maximum.reduceat(column.lengths, np.array(begins)).tolist()
    starts, lengths = column.starts.tolist(), column.lengths.tolist()  # once for all batches
    for begin, widest in zip(begins, longest, strict=True):
        width = -(-widest // multiple) * multiple
        rows = slice(begin, begin + batch_size)
        if widest > _LONG_ROW:
            yield _copied(column.values, starts[rows], lengths[rows], width, fill)
        else:
            yield _indexed(column[rows], widest, width, fill)


def _copied(
    values: npt.NDArray[Any], starts: list[int], lengths: list[int], width: int, fill: float
) -> npt.NDArray[Any]:
    """One copy a row."""
    size = len(starts) * width
    flat = np.full(size, fill, values.dtype) if fill else np.zeros(size, values.dtype)
    for at, start, length in zip(range(0, size, width), starts, lengths, strict=True):
        flat[at : at + length] = values[start : start + length]
    return flat.reshape(len(starts), width)


def _indexed(rows: Ragged, longest: int, width: int, fill: float) -> npt.NDArray[Any]:
    """One index for all rows."""
    values, lengths = rows.values, rows.lengths
    if not longest:
        return np.full((len(rows), width), fill, values.dtype)
    last = len(values) - longest  # a window from here on would reach beyond the values
    windows = np.ndarray((last + 1, longest), values.dtype, values, 0, (values.itemsize, values.itemsize))
    dense: npt.NDArray[Any] = windows[np.minimum(rows.starts, last)]
    for row in np.flatnonzero(rows.starts > last).tolist():  # the few rows at the end of the pool
        dense[row, : lengths[row]] = values[rows.starts[row] : rows.starts[row] + lengths[row]]
    np.copyto(dense, np.asarray(fill, values.dtype), where=np.arange(longest) >= lengths[:, None])
    if width == longest:
        return dense
    wide = np.full((len(rows), width), fill, values.dtype)
    wide[:, :longest] = dense
    return wide
