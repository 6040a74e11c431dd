"""Candidates into tokens, compiled by numba: the same tokens as `tokens`, context after context. Extra `histories`.

What a segment takes is found first (`fit_kernels`), then written, measurement after measurement. Inside a measurement
nothing is decided by its field order, which no processor could foresee: where each field begins is summed from the
lengths of those before it. Nothing is kept between segments, and the interpreter lock is not held.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.compiled import compiled
from headrace.draws import FIELDS, GAMMA, MIX_A, MIX_B, POSITIONS, context_keys
from headrace.histories.contexts import vocabulary as v
from headrace.histories.contexts.draw_kernels import dealt_in_numba, indices_in_numba, permuted_in_numba
from headrace.histories.contexts.fit_kernels import fitted
from headrace.histories.contexts.row_kernels import batch_in_numba, gather_in_numba
from headrace.histories.contexts.sample import Candidates, Sampling, Segments
from headrace.histories.contexts.tokens import FIELD_ORDERS, Tokens

_GAMMA, _MIX_A, _MIX_B = np.uint64(GAMMA), np.uint64(MIX_A), np.uint64(MIX_B)
_0, _1, _2, _3, _4, _5, _8, _9 = (np.uint64(each) for each in (0, 1, 2, 3, 4, 5, 8, 9))
_16, _17, _24, _27, _30, _31, _32 = (np.uint64(each) for each in (16, 17, 24, 27, 30, 31, 32))
_ONES, _BYTE = np.uint64(0x01010101), np.uint64(255)
# Four lengths in the bytes of a word; for each order and field the bytes of those fields that stand before it.
_BEFORE = np.array(
    [
        [sum(0xFF << (8 * each) for each in order[: order.index(f)]) for f in range(4)]
        for order in FIELD_ORDERS.tolist()
    ],
    np.uint64,
)


def tokens_in_numba(segments: Segments, found: Candidates, contexts: int, room: int) -> Tokens:
    """As `tokens_in_numpy`."""
    tokens = np.zeros((contexts, room), np.int32)
    made = fitted(segments, found, room)
    _build(
        segments.context, segments.key, found.offsets, *made, found.time, found.code, found.family, found.address,
        found.source_family, found.source, tokens,
    )  # fmt: skip
    return Tokens(tokens, made.lengths, made.taken)


SAMPLING = Sampling(permuted_in_numba, context_keys, dealt_in_numba, indices_in_numba, gather_in_numba)
IN_NUMBA = (SAMPLING, tokens_in_numba, batch_in_numba)


@compiled
def _build(
    context: Any, key: Any, offsets: Any, order: Any, timed: Any, lengths: Any, taken: Any, time: Any, code: Any,
    family: Any, address: Any, source_family: Any, source: Any, tokens: Any,
) -> None:  # fmt: skip
    used, last = 0, -1
    for s in range(len(context)):
        if context[s] != last:
            used, last = 0, context[s]
        mine = slice(offsets[s], offsets[s + 1])
        _write(
            tokens[last, used : used + lengths[s]], key[s], order[mine], timed[s], taken[s], time[mine], code[mine],
            family[mine], address[mine], source_family[s], source[s],
        )  # fmt: skip
        used += lengths[s]


@compiled
def _draw(key: Any, slot: Any) -> Any:
    word = key + np.uint64(slot) * _GAMMA
    word = (word ^ (word >> _30)) * _MIX_A
    word = (word ^ (word >> _27)) * _MIX_B
    return word ^ (word >> _31)


@compiled
def _write(
    out: Any, key: Any, order: Any, timed: Any, count: Any, time: Any, code: Any, family: Any, address: Any,
    source_family: Any, source: Any,
) -> None:  # fmt: skip
    at, with_time, without, previous = _0, 0, 0, np.int64(-1)
    untimed = count - timed
    for place in range(count):
        has_time = untimed == 0
        if timed and untimed:  # else there is nothing to draw
            chance = ((_draw(key, POSITIONS + place) >> _32) * np.uint64(count - place)) >> _32
            has_time = np.int64(chance) >= untimed - without
        m = order[with_time if has_time else timed + without]
        with_time += has_time
        without += not has_time

        stamp, value = _0, time[m]
        if has_time:
            stamp = _9
            if previous >= 0:
                value = time[m] - previous
                stamp = _2 if value < 256 else _5
            previous = time[m]
        result = _1 if code[m] == 0 else _3
        peer = _0 if family[m] == 0 else _17 if family[m] == 6 else _5
        mine = _17 if source_family == 6 else _5
        lengths = mine | peer << _8 | result << _16 | stamp << _24
        fields = ((_draw(key, FIELDS + place) >> _32) * _24) >> _32
        out[at] = v.START
        at += _1
        _address(out, at + _sum(lengths & _BEFORE[fields, 0]), v.SOURCE_V4, source_family, source)
        if peer:
            _address(out, at + _sum(lengths & _BEFORE[fields, 1]), v.DESTINATION_V4, family[m], address[m])
        _result(out, at + _sum(lengths & _BEFORE[fields, 2]), code[m])
        if has_time:
            _time(out, at + _sum(lengths & _BEFORE[fields, 3]), stamp, value)
        at += mine + peer + result + stamp


@compiled
def _sum(lengths: Any) -> Any:
    """Of the four bytes of a word; below 256."""
    return (lengths * _ONES >> _24) & _BYTE


@compiled
def _address(out: Any, at: Any, role: Any, family: Any, address: Any) -> None:
    if family == 6:
        out[at] = role + 1
        for q in range(_16):
            out[at + _1 + q] = v.BYTE + np.int32(address[q])
    else:
        out[at] = role
        for q in range(_4):
            out[at + _1 + q] = v.BYTE + np.int32(address[q])


@compiled
def _result(out: Any, at: Any, code: Any) -> None:
    if code == 0:
        out[at] = v.FAILED
    else:
        out[at] = v.ROUND_TRIP
        out[at + _1] = v.BYTE + (code >> 8)
        out[at + _2] = v.BYTE + (code & 255)


@compiled
def _time(out: Any, at: Any, size: Any, value: Any) -> None:
    """A role and the value's bytes, the largest first: 8, or of a distance 1 or 4."""
    if size == _2:
        out[at] = v.TIME_DELTA
        out[at + _1] = v.BYTE + value
        return
    out[at] = v.TIME_LONG_DELTA if size == _5 else v.TIME_ABSOLUTE
    for q in range(_1, size):
        out[at + q] = v.BYTE + ((value >> np.int64(_8 * (size - _1 - q))) & 255)
