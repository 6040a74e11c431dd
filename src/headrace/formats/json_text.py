"""Analyse JSON text over whole buffers at once: find repeated keys, rewrite arrays as lines. Pure.

Some readers take the first value of a repeated key and some the last, so neither is safe.
`first_repeated` checks the objects of a whole buffer: keys are the strings before colons, the
brackets tell which object each belongs to, and equal keys of one object are found by sorting
numbers. It costs about as much as parsing the buffer. `key_bound` is a cheap upper bound on the
number of keys. If a parser found that number of values, no key was lost, and the exact check is not
needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, U8, Bools
from headrace.formats import records

_COLON = 58
_BACKSLASH = 92
_OPEN = 123
_WINDOW = 1 << 20
_STEP = np.zeros(256, np.int8)
_STEP[[ord("{"), ord("[")]], _STEP[[ord("}"), ord("]")]] = 1, -1
_WHITE = np.isin(np.arange(256), [9, 10, 13, 32])
_WHITE_OR_COLON = np.isin(np.arange(256), [9, 10, 13, 32, _COLON])


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


def key_bound(data: U8) -> int:
    """Bound the number of keys from above: count quotes before a colon or white space, in strings
    too.
    """
    count = 0
    for start in range(0, len(data), _WINDOW):
        window = data[start : start + _WINDOW + 1]
        count += int(np.count_nonzero((window[:-1] == records.QUOTE) & _WHITE_OR_COLON[window[1:]]))
    return count


def values_found(table: pa.Table) -> int:
    """Count the non-null values that a parser found for keys, inside structs and lists too."""
    every = (
        leaf
        for name in table.column_names
        for leaf in arrays_of(name, table[name].combine_chunks())
    )
    return sum(len(values) - values.null_count for _, values, is_item in every if not is_item)


def arrays_of(
    key: str, values: pa.Array, *, is_item: bool = False
) -> Iterator[tuple[str, pa.Array, bool]]:
    """Iterate over arrays at any depth, each with the nearest key, and whether it holds the items
    of a list.
    """
    yield key, values, is_item
    if pa.types.is_struct(values.type):
        for index, field in enumerate(values.type):
            yield from arrays_of(field.name, pc.struct_field(values, index))
    elif pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        yield from arrays_of(key, values.flatten(), is_item=True)


def first_repeated(data: bytes) -> tuple[int, str] | None:
    """Find the position of the first key that repeats in its object, and the key; None if there is
    none.

    data: valid JSON, one document or many. If several keys repeat, the first in the text is
    returned. Keys that differ only in their escapes are equal.
    """
    array = records.as_bytes(data)
    quotes = string_quotes(array)
    colons = np.flatnonzero(array == _COLON)
    before = np.searchsorted(quotes, colons)
    # index in quotes of the string that ends before each colon
    opening = before[before & 1 == 0] - 2
    opening = opening[(opening >= 0) & (np.diff(opening, prepend=-1) > 0)]
    starts = quotes[opening] + 1
    stops = quotes[opening + 1]
    codes, texts = _numbered(records.cut(data, starts, stops))
    owner, key = _owners(array, quotes, starts)
    pair = owner * max(1, len(texts)) + codes[key]
    order = np.argsort(pair, kind="stable")
    again = order[1:][pair[order[1:]] == pair[order[:-1]]]
    if not len(again):
        return None
    first = key[again[np.argmin(starts[key[again]])]]
    return int(starts[first]), texts[int(codes[first])]


def _numbered(keys: pa.LargeBinaryArray) -> tuple[I64, list[str]]:
    """Number the keys, with equal numbers for equal keys; also return the key of each number."""
    encoded = keys.dictionary_encode()
    texts: list[str] = []
    number: dict[str, int] = {}
    renumbered = []
    for raw in encoded.dictionary.to_pylist():  # the distinct ones
        text = raw.decode("utf-8", "replace")
        if b"\\" in raw:
            text = json.loads(f'"{text}"', strict=False)
        renumbered.append(number.setdefault(text, len(texts)))
        if len(number) > len(texts):
            texts.append(text)
    return np.array(renumbered, np.int64)[np.asarray(encoded.indices)], texts


def _owners(array: U8, quotes: I64, keys: I64) -> tuple[I64, I64]:
    """Number the object of each key, ascending; keys are ordered by depth, then position."""
    brackets = np.flatnonzero(_STEP[array])
    brackets = brackets[np.searchsorted(quotes, brackets) & 1 == 0]
    depth = np.cumsum(_STEP[array[brackets]], dtype=np.int32)
    opens = array[brackets] == _OPEN
    positions = np.concatenate([brackets[opens], keys])
    inside = np.concatenate([depth[opens], depth[np.searchsorted(brackets, keys) - 1]])
    order = np.lexsort((positions, inside))
    is_key = order >= int(opens.sum())
    owner: I64 = np.cumsum(~is_key)
    return owner[is_key], order[is_key] - int(opens.sum())


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
