"""Check whether delimited text is so regular that all readers agree on its fields. Pure.

Bytes are found as bitmaps: bit i of a bitmap says whether byte i is one of those searched, 64 to a
word. What stands beside what, and what is inside quotes, then takes a few operations on an eighth
of the bytes.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

import numpy as np

from headrace.arrays import U8, U64
from headrace.formats import records
from headrace.formats.shard import BOM

RowLines = Literal["one line", "several lines"]

_CHECKED_AT_ONCE = 1 << 18  # bytes, which stay in the CPU cache
_SPACE = 32
_TAB = 9
_MATTERING = (records.QUOTE, records.RETURN, _SPACE, _TAB)
_NO_MARKS = np.zeros(1, np.uint64)
_ZERO = ord("0")


def regular_rows(data: bytes, separator: int) -> RowLines | None:
    """Check whole records, and return how many lines rows may have; None if they are not regular.

    Regular are strict quotes, line ends of one kind, no field with space at an edge, all of it
    UTF-8. Strict quotes surround fields from end to end, and are doubled inside them.
    """
    if data.startswith(BOM) or not (data.isascii() or records.is_utf8(data)):
        return None
    searched = {byte for byte in _MATTERING if bytes([byte]) in data}
    lines: RowLines = "one line"
    start = 0
    size = _CHECKED_AT_ONCE
    while searched and start < len(data):
        stop = data.rfind(b"\n", start, start + size) + 1
        if start + size >= len(data):
            stop = len(data)
        checked = _check(records.as_bytes(data)[start:stop], separator, searched)
        if checked == "open" and stop < len(data):  # its end is inside quotes
            size *= 2
            continue
        if checked == "irregular" or checked == "open":
            return None
        if checked == "several lines":
            lines = checked
        start = stop
        size = _CHECKED_AT_ONCE
    return lines


def _check(data: U8, separator: int, searched: Set[int]) -> RowLines | Literal["irregular", "open"]:
    """Check lines that begin with a record, where only some bytes need to be searched.

    "open" if there is no line, or the last line ends inside quotes.
    """
    if not len(data):
        return "open"
    newlines = bitmap(data, records.NEWLINE)
    edges = newlines | bitmap(data, separator)
    wrong = _NO_MARKS
    if records.RETURN in searched:
        returns = bitmap(data, records.RETURN)
        wrong = returns & ~before(newlines)
        edges |= returns
    starts = after(edges)
    starts[0] |= np.uint64(1)
    ends = before(edges)
    ends[-1] |= np.uint64(1) << np.uint64((len(data) - 1) % 64)
    quotes = bitmap(data, *({records.QUOTE} & searched))
    inside = inside_quotes(quotes)
    if inside[-1] >> np.uint64(63):
        return "open"
    first = quotes & inside  # the opening quotes
    last = quotes ^ first  # the closing ones
    loose = (first & ~starts) | (last & ~ends)
    if loose.any():  # some are doubled inside a field
        first, last = first & ~after(last), last & ~before(first)
        loose &= first | last
    wrong = wrong | loose
    spaces = bitmap(data, *({_SPACE, _TAB} & searched))
    near = after(first) | before(last) | ((starts | ends) & ~inside)
    wrong |= spaces & near & ~(edges & ~inside)
    if wrong.any():
        return "irregular"
    if (newlines & inside).any():
        return "several lines"
    return "one line"


def has_hexadecimal(data: bytes) -> bool:
    """Check whether 0x stands anywhere, as it begins hexadecimal numbers."""
    if not (b"x" in data or b"X" in data):
        return False
    array = records.as_bytes(data)
    letters = bitmap(array, ord("x"), ord("X"))
    return bool((letters & after(bitmap(array, _ZERO))).any())


def bitmap(data: U8, *searched: int) -> U64:
    """Mark the bytes that are one of those searched: uint64 [words], bits past the end are 0."""
    words = np.zeros(-(-len(data) // 64), "<u8")
    if searched:
        matches = data == searched[0]
        for byte in searched[1:]:
            matches |= data == byte
        packed = np.packbits(matches, bitorder="little")
        words.view(np.uint8)[: len(packed)] = packed
    return words.astype(np.uint64, copy=False)


def after(marks: U64) -> U64:
    """Mark the bytes that follow a marked one."""
    following: U64 = marks << np.uint64(1)
    following[1:] |= marks[:-1] >> np.uint64(63)
    return following


def before(marks: U64) -> U64:
    """Mark the bytes that precede a marked one."""
    preceding: U64 = marks >> np.uint64(1)
    preceding[:-1] |= marks[1:] << np.uint64(63)
    return preceding


def inside_quotes(quotes: U64) -> U64:
    """Mark each opening quote and the bytes up to its closing one, which is not marked.

    So bit i is the parity of the quotes up to byte i, also past the end of the data.
    """
    inside = quotes.copy()
    for width in (1, 2, 4, 8, 16, 32):
        inside ^= inside << np.uint64(width)
    odd = np.bitwise_xor.accumulate(inside.view(np.int64) >> 63)  # all bits of a word, or none
    inside[1:] ^= odd[:-1].view(np.uint64)
    return inside
