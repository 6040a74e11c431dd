"""A JSON array of objects as JSON lines, over the whole buffer at once. Pure.

Only the structure is read: brackets and commas outside strings. Values keep their bytes, so nothing is re-typed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, U8
from headrace.formats import records
from headrace.formats.json_keys import string_quotes

_WHITE = np.isin(np.arange(256), [9, 10, 13, 32])
_DEPTH = np.zeros(256, np.int64)
_DEPTH[[ord("{"), ord("[")]], _DEPTH[[ord("}"), ord("]")]] = 1, -1


def array_as_lines(text: bytes) -> bytes:
    """One object a line. Raises `ValueError` if the text is no array of objects; objects are not checked inside."""
    text = text.strip(b" \t\r\n")
    if not text.endswith(b"]") or not text.startswith(b"["):
        raise ValueError("it does not begin with [ and end with ]")
    data = records.as_bytes(text)
    quotes = string_quotes(data)
    breaks = np.flatnonzero((data == records.NEWLINE) | (data == records.RETURN))
    if (np.searchsorted(quotes, breaks) & 1).any():
        raise ValueError("a string in it holds a line end that is not escaped")
    text = text.translate(bytes.maketrans(b"\r\n", b"  "))
    data = records.as_bytes(text)
    at = np.flatnonzero(_DEPTH[data])
    at = at[np.searchsorted(quotes, at) & 1 == 0]
    depth = np.cumsum(_DEPTH[data[at]])
    if not len(depth) or depth[-1] != 0 or depth[:-1].min(initial=1) < 1:
        raise ValueError("its brackets do not pair up")
    starts = at[(data[at] == ord("{")) & (depth == 2)]
    ends = at[(data[at] == ord("}")) & (depth == 1)] + 1
    if len(starts) != len(ends):
        raise ValueError("its brackets do not pair up")
    _check_gaps(data, starts, ends)
    if not len(starts):
        return b""
    bounds = np.empty(2 * len(starts), np.int64)
    bounds[0::2], bounds[1::2] = starts, ends + 1  # each object and the byte behind it, a comma, blank or bracket
    every = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(text)]
    )
    lines = np.frombuffer(records.joined(every.take(pa.array(np.arange(0, len(bounds) - 1, 2)))), np.uint8).copy()
    lines[np.cumsum(ends + 1 - starts) - 1] = records.NEWLINE
    return lines.tobytes()


def _check_gaps(data: U8, starts: I64, ends: I64) -> None:
    """Outside its objects an array holds brackets, one comma between two objects, and white space."""
    inside = np.zeros(len(data) + 1, np.int8)
    inside[starts] += 1
    inside[ends] -= 1
    outside: npt.NDArray[np.bool_] = np.cumsum(inside[:-1], dtype=np.int8) == 0
    outside[[0, -1]] = False
    marks = np.flatnonzero(outside & ~_WHITE[data])
    between = np.searchsorted(ends, marks, side="right")  # how many objects stand before the mark
    if not np.array_equal(between, np.arange(1, max(len(starts), 1))) or (data[marks] != ord(",")).any():
        raise ValueError("it holds something else than objects with a comma between")
