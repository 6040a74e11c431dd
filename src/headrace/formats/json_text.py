"""Analyse JSON text over whole buffers: find strings and depths, rewrite arrays as lines. Pure."""

from __future__ import annotations

import numpy as np

from headrace.arrays import I64, U8, Bools
from headrace.formats import records

_BACKSLASH = 92
_STEP = np.zeros(256, np.int8)
_STEP[[ord("{"), ord("[")]], _STEP[[ord("}"), ord("]")]] = 1, -1
_WHITE = np.isin(np.arange(256), [9, 10, 13, 32])


def string_quotes(data: U8) -> I64:
    """Find the quotes of strings: those not escaped by a backslash."""
    quotes = records.quote_positions(data)
    escaped = np.zeros(len(quotes), np.bool_)
    run = np.arange(len(quotes))
    back = 1
    while len(run):
        run = run[(quotes[run] >= back) & (data[np.maximum(quotes[run] - back, 0)] == _BACKSLASH)]
        escaped[run] ^= True
        back += 1
    return quotes[~escaped]


def depths(data: U8) -> I64:
    """Count the open brackets after each bracket outside strings."""
    at = np.flatnonzero(_STEP[data])
    outside = np.searchsorted(string_quotes(data), at) & 1 == 0
    steps: I64 = np.cumsum(_STEP[data[at[outside]]], dtype=np.int64)
    return steps


def array_as_lines(text: bytes) -> bytes:
    """Rewrite a JSON array of objects as one object a line; values keep their bytes, so nothing is
    re-typed.

    Only brackets and commas outside strings are read. Raises `ValueError` if the text is not an
    array of objects; objects are not checked inside.
    """
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
    at = np.flatnonzero(_STEP[data])
    at = at[np.searchsorted(quotes, at) & 1 == 0]
    depth = np.cumsum(_STEP[data[at]], dtype=np.int64)
    if not len(depth) or depth[-1] != 0 or depth[:-1].min(initial=1) < 1:
        raise ValueError("its brackets do not pair up")
    starts = at[(data[at] == ord("{")) & (depth == 2)]
    ends = at[(data[at] == ord("}")) & (depth == 1)] + 1
    if len(starts) != len(ends):
        raise ValueError("its brackets do not pair up")
    inside = np.zeros(len(data) + 1, np.int8)
    inside[starts] += 1
    inside[ends] -= 1
    outside: Bools = np.cumsum(inside[:-1], dtype=np.int8) == 0
    outside[[0, -1]] = False
    marks = np.flatnonzero(outside & ~_WHITE[data])
    between = np.searchsorted(ends, marks, side="right")  # number of objects before the mark
    if (
        not np.array_equal(between, np.arange(1, max(len(starts), 1)))
        or (data[marks] != ord(",")).any()
    ):
        raise ValueError("it holds something else than objects with a comma between")
    if not len(starts):
        return b""
    # Each object and the byte after it: a comma, blank or bracket.
    lines = np.frombuffer(records.joined(records.cut(text, starts, ends + 1)), np.uint8).copy()
    lines[np.cumsum(ends + 1 - starts) - 1] = records.NEWLINE
    return lines.tobytes()
