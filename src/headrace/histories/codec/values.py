"""Store the values of measurements: latencies as 16-bit codes, and columns of integers, floats and
categories.

A latency code is exponent << 11 | mantissa of whole microseconds, mantissa << exponent, rounded.
Fractions are rounded to whole microseconds first, which below 2,048 is the only error. Above, the
mantissa is 1,024 to 2,047 and the error of whole ones at most half a step, 0.049 %. Code 0 is a
failed measurement, so a latency of 0 µs becomes 1 µs. `kernels.encode_latencies` makes the codes.

Until its row is written, a value of a column is one word of 64 bits: the bits of a number, or the
hash of a category's text (0 if it is missing). Rows hold it in the requested type. For a category
they hold the code, counted from 1, in as few bytes as its dictionary needs, and 0 if it is missing.
A missing integer is the least of its type, and a missing float is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U8, U16, U64, Bools, ranges

FAILED = 0
LARGEST_US = 2047 << 31  # about 51 days
_MANTISSA_BITS = 11
_MANTISSA_END = 1 << _MANTISSA_BITS

Values = tuple[npt.NDArray[Any], ...]
# The number of a type in a row is its index here; types of categories come first.
STORED = tuple(
    np.dtype(name) for name in ("u1", "<u2", "<u4", "i1", "<i2", "<i4", "<i8", "<f4", "<f8")
)
_LONG = 256  # values of a row, from which on copying its slice is faster than looking up each value
_MIX_A = np.uint64(0xFF51AFD7ED558CCD)
_MIX_B = np.uint64(0xC4CEB9FE1A85EC53)


def decode_latencies(codes: U16) -> I64:
    """Decode codes to whole microseconds, −1 for `FAILED`; uint16 [N] → int64 [N]."""
    wide = codes.astype(np.int64)
    return np.where(codes == FAILED, -1, (wide & (_MANTISSA_END - 1)) << (wide >> _MANTISSA_BITS))


def is_canonical(codes: U16) -> Bools:
    """Return which codes a latency can have; any other code is damage. uint16 [N] → bool [N]."""
    mantissa = codes & np.uint16(_MANTISSA_END - 1)
    canonical: Bools = (codes >> np.uint16(_MANTISSA_BITS) == 0) | (mantissa >= _MANTISSA_END // 2)
    return canonical


def stored_type(name: str, categories: int = 0) -> np.dtype[Any]:
    """Return the type of a column in rows.

    name: as in the settings. categories: the number of texts of a category.
    """
    if name != "category":
        return np.dtype(name).newbyteorder("<")
    return next(dtype for dtype in STORED[:3] if categories < 1 << 8 * dtype.itemsize)


def is_missing(values: npt.NDArray[Any]) -> Bools:
    """Return which values of a row are missing."""
    missing: Bools
    if values.dtype.kind == "f":
        missing = np.isnan(values)
    elif values.dtype.kind == "u":
        missing = np.equal(values, 0)
    else:
        missing = np.equal(values, np.iinfo(values.dtype).min)
    return missing


def to_words(values: npt.NDArray[Any]) -> U64:
    """Convert numbers of a stored type to words: [N] → uint64 [N]."""
    words: U64
    if values.dtype.kind != "f":
        words = values.astype(np.int64).view(np.uint64)
        return words
    # Equal values need equal bits: -0.0 becomes 0.0, and every NaN the same one.
    with np.errstate(invalid="ignore"):  # damaged bytes may hold a signalling NaN
        nan = values.dtype.type(np.nan)
        plain = np.where(np.isnan(values), nan, values + values.dtype.type(0))
    words = plain.view(f"u{values.dtype.itemsize}").astype(np.uint64)
    return words


def from_words(words: U64, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert words to numbers, the inverse of `to_words`."""
    if dtype.kind == "f":
        return words.astype(f"<u{dtype.itemsize}").view(dtype)
    return words.view(np.int64).astype(dtype)


def mix_values(words: U64) -> U64:
    """Mix the words of each measurement into one: uint64 [N, K] → uint64 [N]."""
    mixed = np.zeros(len(words), np.uint64)
    for column in range(words.shape[1]):
        mixed = (mixed ^ (mixed >> np.uint64(33)) ^ words[:, column]) * _MIX_A + _MIX_B
        mixed = (mixed ^ (mixed >> np.uint64(33))) * _MIX_B
    return mixed


def values_bytes(n: I64, dtypes: Sequence[np.dtype[Any]]) -> I64:
    """Return the bytes of the value columns in rows of `n` measurements: int64 [R]."""
    if not dtypes:
        return np.zeros_like(n)
    total = round_up(np.full_like(n, len(dtypes)))
    for dtype in dtypes:
        total = total + round_up(dtype.itemsize * n)
    return total


def write_values(words: U64, at: I64, n: I64, values: Values) -> None:
    """Write the value columns of rows: their type numbers, then each column, all at multiples of 8
    bytes.

    words: uint64, the bytes of all rows, initially zero.
    at: bytes where the values of each row begin.
    n: measurements of each row [R].
    """
    data = words.view(np.uint8)
    types = np.array([STORED.index(column.dtype) for column in values], np.uint8)
    data[at[:, None] + np.arange(len(types))] = types
    at = at + round_up(np.full_like(n, len(types)))
    for column in values:
        width = column.dtype.itemsize
        data.view(column.dtype)[ranges(at // width, n)] = column
        at = at + round_up(width * n)


def read_values(data: U8, at: I64, n: I64, types: U8) -> Values:
    """Read what `write_values` wrote, for all rows end to end.

    types: of the columns, the same in every row.
    """
    columns: list[npt.NDArray[Any]] = []
    if not len(types):
        return ()
    at = at + round_up(np.full_like(n, len(types)))
    for number in types.tolist():
        columns.append(read_column(data, at, n, STORED[number]))
        at = at + round_up(STORED[number].itemsize * n)
    return tuple(columns)


def read_column(data: U8, at: I64, n: I64, dtype: np.dtype[Any] | str) -> npt.NDArray[Any]:
    """Read a column of rows end to end; a large row is decoded alone, as a view.

    at: bytes where it begins in each row, a multiple of the width. n: number of values in each row,
    [R].
    """
    view = data.view(dtype)
    first = at // view.itemsize
    if len(n) == 1:
        return view[int(first[0]) : int(first[0] + n[0])]
    if len(view) <= _LONG * len(n):
        return view[ranges(first, n)]
    ends = (first + n).tolist()
    return np.concatenate(
        [view[start:end] for start, end in zip(first.tolist(), ends, strict=True)]
    )


def round_up(size: I64, multiple: int = 8) -> I64:
    """Round up to a multiple."""
    return -(-size // multiple) * multiple
