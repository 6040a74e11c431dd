"""Keep lists of numbers without an object per list: all values end to end, and the position of each
list in them.

The rows of a pool are selected by their start positions, so shuffling a million tokens moves a few
thousand numbers.

Dense batches pad rows to the longest of them. Short rows are copied by one index over overlapping
windows of the values, as wide as the longest row. What a window holds beyond its row is then
overwritten. This needs no call per row. If the longest row is long, this would move more padding
than rows, so rows are copied one by one. That costs half a microsecond per row, while its tokens
cost at least as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, offsets_from_lengths
from headrace.stream.read.buffers import Buffers

LENGTHS = "_lengths"

_FEW_ROWS = 4  # rows for each one that is gathered: the others are not even counted
_LONG_ROW = 256  # values; measured: for shorter rows, one index is faster than a copy per row


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ragged:
    """Row i is values[starts[i] : starts[i] + lengths[i]], or null if missing[i].

    values: [total], one numeric dtype.
    starts, lengths: int64 [n], in any order and with gaps. missing: bool [n] or None. A null row
    has length 0.
    """

    values: npt.NDArray[Any]
    starts: I64
    lengths: I64
    missing: npt.NDArray[np.bool_] | None

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: slice | I64) -> Ragged:
        """Select rows; their values are a view."""
        if self.missing is None:
            missing = None
        else:
            missing = self.missing[rows]
        return Ragged(
            values=self.values,
            starts=self.starts[rows],
            lengths=self.lengths[rows],
            missing=missing,
        )

    def __iter__(self) -> Iterator[npt.NDArray[Any] | None]:
        """Yield each row as a view of the values; None if it is missing."""
        stops = self.starts + self.lengths
        if self.missing is None:
            missing = [False] * len(self)
        else:
            missing = self.missing.tolist()
        for start, stop, nothing in zip(self.starts.tolist(), stops.tolist(), missing, strict=True):
            yield None if nothing else self.values[start:stop]

    @property
    def nbytes(self) -> int:
        """Bytes held, including values of other rows."""
        return int(self.values.nbytes + self.starts.nbytes + self.lengths.nbytes)

    @classmethod
    def gather(cls, columns: Sequence[Ragged], index: I64 | None, buffers: Buffers) -> Ragged:
        """Return rows `index` of the pieces laid end to end, None: all; values are a copy in memory
        of `buffers`.
        """
        if len(columns) == 1 and index is not None and _FEW_ROWS * len(index) <= len(columns[0]):
            return columns[0][index].compact()
        missing = None
        lengths = np.concatenate([column.lengths for column in columns])
        if any(column.missing is not None for column in columns):
            masks = [
                np.zeros(len(column), np.bool_) if column.missing is None else column.missing
                for column in columns
            ]
            missing = np.concatenate(masks)
        # copied again, to drop the rest
        sparse = index is not None and 2 * int(lengths[index].sum()) < int(lengths.sum())
        columns = [column._narrow() for column in columns]
        sizes = [len(column.values) for column in columns]
        values = columns[0].values
        if not sparse or len(columns) > 1:
            values = (Buffers() if sparse else buffers).empty((sum(sizes),), values.dtype)
            np.concatenate([column.values for column in columns], out=values)
        shifted = [
            column.starts + shift
            for column, shift in zip(columns, offsets_from_lengths(sizes), strict=False)
        ]
        laid = cls(values=values, starts=np.concatenate(shifted), lengths=lengths, missing=missing)
        if index is None:
            rows = laid
        else:
            rows = laid[index]
        if sparse:
            return rows.compact()
        return rows

    @classmethod
    def concatenate(cls, parts: Sequence[Ragged]) -> Ragged:
        """Return the rows of all parts, and no other values."""
        return cls.gather([part.compact() for part in parts], None, Buffers())

    def compact(self) -> Ragged:
        """Return the same rows with their values copied end to end, in order."""
        ends = np.cumsum(self.lengths)
        starts = ends - self.lengths
        total = 0
        if len(ends):
            total = int(ends[-1])
        if total > _LONG_ROW * len(ends):
            rows = zip(self.starts.tolist(), self.lengths.tolist(), strict=True)
            return replace(
                self,
                values=np.concatenate([self.values[at : at + length] for at, length in rows]),
                starts=starts,
            )
        at = np.repeat(self.starts - starts, self.lengths) + np.arange(total, dtype=np.int64)
        return replace(self, values=self.values.take(at), starts=starts)

    def _narrow(self) -> Ragged:
        """Return the same rows without the values before the first and after the last of them."""
        first = int(self.starts.min(initial=len(self.values)))
        last = int((self.starts + self.lengths).max(initial=first))
        return replace(self, values=self.values[first:last], starts=self.starts - first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """The padding of lists.

    values: by column, 0 for others. multiple: widths are rounded up to a multiple of this.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    multiple: int = 1


def padded_batches(
    column: Ragged, batch_size: int, *, fill: float, multiple: int
) -> Iterator[npt.NDArray[Any]]:
    """Yield the rows as matrices [at most batch_size, width] of the values' type; a null row is all
    padding.

    width: the longest row of the batch, rounded up to a multiple. Each matrix has its own memory.
    """
    if not len(column):
        return
    firsts = range(0, len(column), batch_size)
    longest = np.maximum.reduceat(column.lengths, np.array(firsts)).tolist()
    # converted once for all batches
    starts = column.starts.tolist()
    lengths = column.lengths.tolist()
    for begin, widest in zip(firsts, longest, strict=True):
        width = -(-widest // multiple) * multiple
        rows = slice(begin, begin + batch_size)
        if widest > _LONG_ROW:
            yield padded_rows(column.values, starts[rows], lengths[rows], width, fill)
        else:
            yield _indexed(column[rows], widest, width, fill)


def padded_rows(
    values: npt.NDArray[Any], starts: list[int], lengths: list[int], width: int, fill: float
) -> npt.NDArray[Any]:
    """Return the lists with these starts and lengths, padded: [rows, width].

    Makes one copy per row.
    """
    size = len(starts) * width
    if fill:
        flat = np.full(size, fill, values.dtype)
    else:
        flat = np.zeros(size, values.dtype)
    for at, start, length in zip(range(0, size, width), starts, lengths, strict=True):
        flat[at : at + length] = values[start : start + length]
    return flat.reshape(len(starts), width)


def _indexed(rows: Ragged, longest: int, width: int, fill: float) -> npt.NDArray[Any]:
    """Pad rows by one index over windows of the values."""
    values = rows.values
    lengths = rows.lengths
    if not longest:
        return np.full((len(rows), width), fill, values.dtype)
    last = len(values) - longest  # the last window inside the values
    windows = np.ndarray(
        (last + 1, longest), values.dtype, values, 0, (values.itemsize, values.itemsize)
    )
    dense: npt.NDArray[Any] = windows[np.minimum(rows.starts, last)]
    for row in np.flatnonzero(rows.starts > last).tolist():  # the few rows at the end of the pool
        dense[row, : lengths[row]] = values[rows.starts[row] : rows.starts[row] + lengths[row]]
    np.copyto(dense, np.asarray(fill, values.dtype), where=np.arange(longest) >= lengths[:, None])
    if width == longest:
        return dense
    wide = np.full((len(rows), width), fill, values.dtype)
    wide[:, :longest] = dense
    return wide
