"""Addresses into texts, compiled by numba: the same as `addresses.render` without a call each. Extra `histories`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.compiled import compiled, read_only
from headrace.histories.codec.addresses import Addresses

_LONGEST = 39  # of a text: eight groups of four digits
_GROUPS = 8
_DOT, _COLON, _ZERO, _LETTER = ord("."), ord(":"), ord("0"), ord("a") - 10


def render_texts(addresses: Addresses) -> pa.StringArray:
    """Texts of addresses in their usual form: [N], without nulls."""
    n = len(addresses)
    letters, ends = np.empty(_LONGEST * n, np.uint8), np.zeros(n + 1, np.int32)
    used = _render(read_only(addresses.family), read_only(addresses.bytes), letters, ends)
    return pa.StringArray.from_buffers(n, pa.py_buffer(ends), pa.py_buffer(letters[:used].copy()))


@compiled
def _render(family: Any, data: Any, letters: Any, ends: Any) -> Any:
    at = 0
    for row in range(len(family)):
        at = _coloned(data[row], letters, at) if family[row] == 6 else _dotted(data[row], 0, letters, at)
        ends[row + 1] = at
    return at


@compiled
def _dotted(data: Any, first: Any, letters: Any, at: Any) -> Any:
    """Four bytes as decimal numbers; returns where the text ends."""
    for place in range(first, first + 4):
        if place > first:
            letters[at] = _DOT
            at += 1
        value = np.int64(data[place])
        if value > 99:
            letters[at] = _ZERO + value // 100
            at += 1
        if value > 9:
            letters[at] = _ZERO + value // 10 % 10
            at += 1
        letters[at] = _ZERO + value % 10
        at += 1
    return at


@compiled
def _coloned(data: Any, letters: Any, at: Any) -> Any:
    """Eight groups in hexadecimal, the first longest run of zeros as `::`; IPv4 inside dotted, as glibc does."""
    gap, longest, begin = -1, 1, 0
    for group in range(_GROUPS + 1):
        if group == _GROUPS or data[2 * group] != 0 or data[2 * group + 1] != 0:
            if group - begin > longest:
                gap, longest = begin, group - begin
            begin = group + 1
    behind = gap + longest if gap >= 0 else -1
    mapped = longest == 5 and data[10] == 0xFF and data[11] == 0xFF
    inside = gap == 0 and (longest == 6 or mapped)
    group = 0
    while group < _GROUPS:
        if group == gap:
            letters[at] = letters[at + 1] = _COLON
            at += 2
            group = behind
            continue
        if group > 0 and group != behind:
            letters[at] = _COLON
            at += 1
        if group == 6 and inside:
            return _dotted(data, 12, letters, at)
        value = (np.int64(data[2 * group]) << 8) | np.int64(data[2 * group + 1])
        begun: Any = False
        for shift in range(12, -1, -4):
            digit = (value >> shift) & 15
            begun |= digit > 0 or shift == 0
            if begun:
                letters[at] = digit + (_ZERO if digit < 10 else _LETTER)
                at += 1
        group += 1
    return at
