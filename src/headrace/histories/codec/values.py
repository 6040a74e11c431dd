"""Convert value columns of measurements beside the latency: integers, floats and categories.

Until its row is written, a value is one word of 64 bits: the bits of a number, or the hash of a category's text (0 if
it is missing). Rows hold it in the requested type. For a category they hold the code, counted from 1, in as few bytes
as its dictionary needs, and 0 if it is missing. A missing integer is the least of its type, and a missing float is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U8, U64, Bools, ranges

Values = tuple[npt.NDArray[Any], ...]
# The number of a type in a row is its index here; types of categories come first.
STORED = tuple(np.dtype(each) for each in ("u1", "<u2", "<u4", "i1", "<i2", "<i4", "<i8", "<f4", "<f8"))
_LONG = 256  # values of a row, from which on copying its slice is faster than looking up each value
_MIX_A, _MIX_B = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)


def stored_type(kind: str, categories: int = 0) -> np.dtype[Any]:
    """Return the type of a column in rows.

    kind: as named in the settings.
    categories: the number of texts of a category.
    """
    if kind != "category":
        return np.dtype(kind).newbyteorder("<")
    return next(each for each in STORED[:3] if categories < 1 << 8 * each.itemsize)


def is_missing(values: npt.NDArray[Any]) -> Bools:
    """Return which values of a row are missing."""
    if values.dtype.kind == "f":
        absent: Bools = np.isnan(values)
    else:
        absent = np.equal(values, 0 if values.dtype.kind == "u" else np.iinfo(values.dtype).min)
    return absent


def as_words(values: npt.NDArray[Any]) -> U64:
    """Convert numbers of a stored type to words: [N] → uint64 [N]."""
    if values.dtype.kind == "f":  # equal values need equal bits: -0.0 becomes 0.0, and every NaN the same one
        with np.errstate(invalid="ignore"):  # damaged bytes may hold a signalling NaN
            plain = np.where(np.isnan(values), values.dtype.type(np.nan), values + values.dtype.type(0))
        bits: npt.NDArray[Any] = plain.view(f"u{values.dtype.itemsize}")
        return bits.astype(np.uint64)
    words: U64 = values.astype(np.int64).view(np.uint64)
    return words


def of_words(words: U64, stored: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert words to numbers, the inverse of `as_words`."""
    if stored.kind == "f":
        return words.astype(f"<u{stored.itemsize}").view(stored)
    return words.view(np.int64).astype(stored)


def mixed_values(words: U64) -> U64:
    """Mix the words of each measurement into one: uint64 [N, K] → uint64 [N]."""
    mixed = np.zeros(len(words), np.uint64)
    for column in range(words.shape[1]):
        mixed = (mixed ^ (mixed >> np.uint64(33)) ^ words[:, column]) * _MIX_A + _MIX_B
        mixed = (mixed ^ (mixed >> np.uint64(33))) * _MIX_B
    return mixed


def values_bytes(n: I64, types: Sequence[np.dtype[Any]]) -> I64:
    """Return the bytes of the value columns in rows of `n` measurements: int64 [R]."""
    if not types:
        return np.zeros_like(n)
    return up(np.full_like(n, len(types))) + sum((up(each.itemsize * n) for each in types), np.zeros_like(n))


def write_values(words: U64, at: I64, n: I64, values: Values) -> None:
    """Write the value columns of rows: their type numbers, then each column, all at multiples of 8 bytes.

    words: uint64, the bytes of all rows, initially zero.
    at: bytes where the values of each row begin.
    n: measurements of each row [R].
    """
    data = words.view(np.uint8)
    kinds = np.array([STORED.index(each.dtype) for each in values], np.uint8)
    data[at[:, None] + np.arange(len(kinds))] = kinds
    at = at + up(np.full_like(n, len(kinds)))
    for column in values:
        width = column.dtype.itemsize
        data.view(column.dtype)[ranges(at // width, n)] = column
        at = at + up(width * n)


def read_values(data: U8, at: I64, n: I64, kinds: U8) -> Values:
    """Read what `write_values` wrote, for all rows end to end. kinds: types of the columns, the same in every row."""
    columns: list[npt.NDArray[Any]] = []
    at = at + up(np.full_like(n, len(kinds)))
    for kind in kinds.tolist():
        columns.append(read_column(data, at, n, STORED[kind]))
        at = at + up(STORED[kind].itemsize * n)
    return tuple(columns)


def read_column(data: U8, at: I64, n: I64, stored: np.dtype[Any] | str) -> npt.NDArray[Any]:
    """Read a column of rows end to end; a large row is decoded alone, as a view.

    at: bytes where it begins in each row, a multiple of the width. n: number of values in each row, [R].
    """
    view = data.view(stored)
    first = at // view.itemsize
    if len(n) == 1:
        return view[int(first[0]) : int(first[0] + n[0])]
    if len(view) <= _LONG * len(n):
        return view[ranges(first, n)]
    return np.concatenate([view[begin:end] for begin, end in zip(first.tolist(), (first + n).tolist(), strict=True)])


def up(size: I64, multiple: int = 8) -> I64:
    """Round up to a multiple."""
    return -(-size // multiple) * multiple


def types_of_values(row: U8, at: int, columns: int) -> U8:
    """Read the types of a row's value columns; none if the row is too short for them or a type is unknown."""
    types = row[at : at + columns]
    return types if len(types) == columns and (types < len(STORED)).all() else types[:0]
