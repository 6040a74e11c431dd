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
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, offsets_from_lengths
from headrace.stream.read.buffers import Buffers

LENGTHS = "_lengths"

_FEW_ROWS = 4  # rows for each one that is gathered: the others are not even counted
_LONG_ROW = 256  # values; measured: for shorter rows, one index is faster than a copy per row
_MARGIN = 17 / 16  # of memory that is reserved for rows to come
_MOST_RESERVED_BYTES = 1 << 26


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

    @property
    def _total(self) -> int:
        """The number of values of all rows."""
        return int(self.lengths.sum())

    @classmethod
    def gather(cls, columns: Sequence[Ragged], index: I64 | None, buffers: Buffers) -> Ragged:
        """Return rows `index` of the pieces laid end to end, None: all; values are a copy in memory
        of `buffers`.
        """
        if len(columns) == 1 and index is not None and _FEW_ROWS * len(index) <= len(columns[0]):
            return columns[0][index].compact()
        lengths = np.concatenate([column.lengths for column in columns])
        # copied again, to drop the rest
        sparse = index is not None and 2 * int(lengths[index].sum()) < int(lengths.sum())
        columns = [column.narrow() for column in columns]
        sizes = [len(column.values) for column in columns]
        values = columns[0].values
        if not sparse or len(columns) > 1:
            values = (Buffers() if sparse else buffers).empty((sum(sizes),), values.dtype)
            np.concatenate([column.values for column in columns], out=values)
        shifted = [
            column.starts + shift
            for column, shift in zip(columns, offsets_from_lengths(sizes), strict=False)
        ]
        laid = cls(
            values=values,
            starts=np.concatenate(shifted),
            lengths=lengths,
            missing=_joined_masks(columns),
        )
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
        return cls.gather([part._dense() for part in parts], None, Buffers())

    def compact(self) -> Ragged:
        """Return the same rows with their values copied end to end, in order."""
        values = np.empty(self._total, self.values.dtype)
        return self.copy_into(values)

    def copy_into(self, values: npt.NDArray[Any]) -> Ragged:
        """Return the same rows, their values copied end to end into `values`, which they fill."""
        starts = np.cumsum(self.lengths) - self.lengths
        if _are_long(self.lengths):
            np.concatenate(list(self._views()), out=values)
        else:
            at = np.repeat(self.starts - starts, self.lengths) + np.arange(len(values))
            np.take(self.values, at, out=values, mode="clip")
        return replace(self, values=values, starts=starts)

    def _views(self) -> Iterator[npt.NDArray[Any]]:
        """Yield each row as a view of the values; a missing one is empty."""
        stops = self.starts + self.lengths
        values = self.values
        for start, stop in zip(self.starts.tolist(), stops.tolist(), strict=True):
            yield values[start:stop]

    def _dense(self) -> Ragged:
        """Return the same rows with their values end to end, copied only if they are not so yet."""
        narrow = self.narrow()
        starts = np.cumsum(self.lengths) - self.lengths
        filled = self.lengths > 0
        is_dense = len(narrow.values) == self._total
        if is_dense and (narrow.starts[filled] == starts[filled]).all():
            return replace(narrow, starts=starts)
        return self.compact()

    def narrow(self) -> Ragged:
        """Return the same rows without the values before the first and after the last of them."""
        first = int(self.starts.min(initial=len(self.values)))
        last = int((self.starts + self.lengths).max(initial=first))
        return replace(self, values=self.values[first:last], starts=self.starts - first)

    def with_values(self, values: npt.NDArray[Any]) -> Ragged:
        """Return the same rows with a copy of their values, and nothing that keeps others alive."""
        missing = None
        if self.missing is not None:
            missing = self.missing.copy()
        return Ragged(
            values=values,
            starts=self.starts.copy(),
            lengths=self.lengths.copy(),
            missing=missing,
        )


class ListSource:
    """The rows of parts, end to end, ready to be copied in any order.

    Short rows are joined, and copied by one index. Long ones are copied one by one from their part.
    """

    def __init__(self, parts: Sequence[Ragged]) -> None:
        self.dtype = parts[0].values.dtype
        self.lengths = np.concatenate([part.lengths for part in parts])
        self.missing = _joined_masks(parts)
        self._joined: Ragged | None = None
        self._views: list[npt.NDArray[Any]] = []
        if _are_long(self.lengths):
            self._views.extend(chain.from_iterable(part._views() for part in parts))
        else:
            self._joined = Ragged.concatenate(parts)

    def copy(self, rows: I64, values: npt.NDArray[Any]) -> None:
        """Copy the values of these rows end to end into `values`, which they fill."""
        if self._joined is not None:
            self._joined[rows].copy_into(values)
        elif len(rows):
            np.concatenate([self._views[row] for row in rows.tolist()], out=values)


class Masked(NamedTuple):
    """The lengths of rows, and which of them are missing."""

    lengths: I64
    missing: npt.NDArray[np.bool_] | None


class AppendedRows:
    """Rows that are copied from one source after the other to the end of one array of values.

    rows: how many there will be. Memory for all of them is reserved by the mean length of those
    that came first; what is not needed is not touched.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._values: npt.NDArray[Any] | None = None
        self._total = 0
        self._parts: list[Masked] = []

    def append(self, source: ListSource, rows: I64) -> None:
        """Append these rows of a source, at least one."""
        missing = None
        if source.missing is not None:
            missing = source.missing[rows]
        part = Masked(source.lengths[rows], missing)
        self._parts.append(part)
        begin = self._total
        self._total += int(part.lengths.sum())
        values = self._values
        if values is None or self._total > len(values):
            values = np.empty(self._capacity(source.dtype.itemsize), source.dtype)
            if self._values is not None:
                values[:begin] = self._values[:begin]
            self._values = values
        source.copy(rows, values[begin : self._total])

    def _capacity(self, value_bytes: int) -> int:
        rows = sum(len(part.lengths) for part in self._parts)
        expected = int(self._total / rows * self._rows * _MARGIN)
        most = max(2 * self._total, self._total + _MOST_RESERVED_BYTES // value_bytes)
        return max(self._total, min(expected, most))

    def clear(self) -> None:
        """Forget all rows; what `rows` returned keeps its own."""
        self._values = None
        self._parts.clear()

    def rows(self) -> Ragged:
        """Return all rows, in the order in which they came."""
        assert self._values is not None
        lengths = np.concatenate([part.lengths for part in self._parts])
        return Ragged(
            values=self._values[: self._total],
            starts=np.cumsum(lengths) - lengths,
            lengths=lengths,
            missing=_joined_masks(self._parts),
        )


def _are_long(lengths: I64) -> bool:
    """Return whether rows of these lengths are worth a copy each."""
    return int(lengths.sum()) > _LONG_ROW * len(lengths)


def _joined_masks(parts: Sequence[Ragged | Masked]) -> npt.NDArray[np.bool_] | None:
    """Return which rows of all parts are missing; None if no part says so."""
    if all(part.missing is None for part in parts):
        return None
    masks = []
    for part in parts:
        if part.missing is None:
            masks.append(np.zeros(len(part.lengths), np.bool_))
        else:
            masks.append(part.missing)
    return np.concatenate(masks)


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
