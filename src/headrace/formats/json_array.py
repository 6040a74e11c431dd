"""A JSON array of objects as JSON lines, over the whole buffer at once. Pure.

Only the structure is read: brackets and commas outside strings. Values keep their bytes, so nothing is re-typed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, U8
from headrace.formats import records

_BACKSLASH = 92
_WHITE = np.isin(np.arange(256), [9, 10, 13, 32])
_DEPTH = np.zeros(256, np.int64)
_DEPTH[[ord("{"), ord("[")]], _DEPTH[[ord("}"), ord("]")]] = 1, -1


def array_as_lines(text: bytes) -> bytes:
    """One object a line. Raises `ValueError` if the text is no array of objects; objects are not checked inside."""
    if not text.rstrip().endswith(b"]") or not text.lstrip().startswith(b"["):
        raise ValueError("it does not begin with [ and end with ]")
    text = text.strip().translate(bytes.maketrans(b"\r\n", b"  "))  # strings hold no raw line ends
    data = records.as_bytes(text)
    quotes = _string_quotes(data)
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


def _string_quotes(data: U8) -> I64:
    """Where the quotes are that no backslash escapes."""
    quotes = records.quote_positions(data)
    escaped = np.zeros(len(quotes), np.bool_)
    run, back = np.arange(len(quotes)), 1
    while len(run):
        run = run[(quotes[run] >= back) & (data[np.maximum(quotes[run] - back, 0)] == _BACKSLASH)]
        escaped[run] ^= True
        back += 1
    return quotes[~escaped]


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
