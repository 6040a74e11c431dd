"""Candidates into tokens, compiled by numba: the same tokens as `tokens`, context after context. Extra `histories`.

For each segment: its first candidates, as many as would fit if every distance of time were a short one; those with a
timestamp in order of time, by buckets; then the last candidate is given up until the rest fits, each time the distances
beside it becoming one, in a chain. So the work is in proportion to what is taken. Inside a measurement nothing
is decided by its field order, which no processor could foresee: where each field begins is summed from the lengths.
Nothing is kept between segments, and the interpreter lock is not held.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.compiled import compiled
from headrace.contexts import vocabulary as v
from headrace.contexts.draw_kernels import (
    context_keys_in_numba,
    dealt_in_numba,
    draw_word,
    indices_in_numba,
    permuted_in_numba,
)
from headrace.contexts.draws import FIELDS, POSITIONS
from headrace.contexts.row_kernels import batch_in_numba, gather_in_numba
from headrace.contexts.sample import FULL, NONE, Candidates, Sampling, Segments
from headrace.contexts.tokens import FIELD_ORDERS, Tokens

_CEILING, _24, _32 = np.uint64((1 << 32) - 1), np.uint64(24), np.uint64(32)
_0, _1, _2, _3, _4, _5, _8, _9, _12, _13, _16, _17 = (
    np.uint64(each) for each in (0, 1, 2, 3, 4, 5, 8, 9, 12, 13, 16, 17)
)
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
    lengths, taken = np.zeros(len(segments.row), np.int64), np.zeros(len(segments.row), np.int64)
    _build(
        segments.context, segments.mode, segments.fraction, segments.key, found.offsets, found.index, found.time,
        found.code, found.family, found.address, found.source_family, found.source, tokens, lengths, taken,
    )  # fmt: skip
    return Tokens(tokens, lengths, taken)


SAMPLING = Sampling(permuted_in_numba, context_keys_in_numba, dealt_in_numba, indices_in_numba, gather_in_numba)
IN_NUMBA = (SAMPLING, tokens_in_numba, batch_in_numba)


@compiled
def _build(
    context: Any, mode: Any, fraction: Any, key: Any, offsets: Any, index: Any, time: Any,
    code: Any, family: Any, address: Any, source_family: Any, source: Any, tokens: Any, lengths: Any, taken: Any,
) -> None:  # fmt: skip
    room = tokens.shape[1]
    most = 1
    for s in range(len(context)):
        most = max(most, offsets[s + 1] - offsets[s])
    sizes = np.empty(most + 1, np.int64)  # tokens of a candidate without its timestamp
    places = np.empty(most + 1, np.uint64)  # of those with a timestamp: place in the row × 2**32 + number
    by_time = np.empty(most + 1, np.uint64)
    at_random = np.empty(most + 1, np.uint64)  # numbers of those without, as they came
    chain = np.empty((3, most + 1), np.int64)
    used, last = 0, -1
    for s in range(len(context)):
        if context[s] != last:
            used, last = 0, context[s]
        mine = slice(offsets[s], offsets[s + 1])
        limit = room - used
        count, timed, total = _first(
            mode[s], fraction[s], limit, 18 if source_family[s] == 6 else 6, index[mine], code[mine], family[mine],
            sizes, places, at_random,
        )  # fmt: skip
        untimed = count - timed
        if timed:
            _sort(places, timed, chain[0], by_time)
            total += _stamps(by_time, timed, time[mine])
            if total > limit:
                count, total = _shorten(by_time, timed, count, total, limit, sizes, time[mine], chain)
                timed = _those_below(by_time, timed, count)
                untimed = count - timed
        _write(
            tokens[last, used:], key[s], by_time, timed, at_random, untimed, time[mine], code[mine], family[mine],
            address[mine], source_family[s], source[s],
        )  # fmt: skip
        used += total
        lengths[s], taken[s] = total, count


@compiled
def _first(
    mode: Any, fraction: Any, limit: Any, base: Any, index: Any, code: Any, family: Any, sizes: Any, places: Any,
    at_random: Any,
) -> Any:  # fmt: skip
    """How many candidates fit if every timestamp is short, how many of them have one, and the tokens of all else."""
    total, timed, untimed, lost = 0, 0, 0, _0
    for j in range(len(index)):
        now = (np.uint64(j + 1) * fraction + _CEILING) >> _32
        has_time = np.int64(mode == FULL or (mode != NONE and now == lost))
        lost = now
        size = base + (1 if code[j] == 0 else 3) + (0 if family[j] == 0 else 17 if family[j] == 6 else 5)
        stamps = timed + has_time
        if total + size + 2 * stamps + (7 if stamps else 0) > limit:
            return j, timed, total
        total += size
        sizes[j] = size
        places[timed] = (np.uint64(index[j]) << _32) | np.uint64(j)  # both are written, one of them counts
        at_random[untimed] = np.uint64(j)
        timed += has_time
        untimed += 1 - has_time
    return len(index), timed, total


@compiled
def _sort(places: Any, count: Any, ends: Any, out: Any) -> None:
    """In rising order: places are uniform, so that as many buckets as places hold one each, about."""
    low, high = places[0], places[0]
    for q in range(count):
        low, high = min(low, places[q]), max(high, places[q])
    low >>= _32
    scale = (np.uint64(count) << _32) // ((high >> _32) - low + np.uint64(1))
    ends[: count + 1] = 0
    for q in range(count):
        ends[(((places[q] >> _32) - low) * scale >> _32) + _1] += 1
    for q in range(count):
        ends[q + 1] += ends[q]
    for q in range(count):
        bucket = ((places[q] >> _32) - low) * scale >> _32
        out[ends[bucket]] = places[q]
        ends[bucket] += 1
    for q in range(1, count):
        value, p = out[q], q
        while p > 0 and out[p - 1] > value:
            out[p] = out[p - 1]
            p -= 1
        out[p] = value


@compiled
def _stamp(earlier: Any, later: Any, time: Any) -> Any:
    return 2 if time[later & _CEILING] - time[earlier & _CEILING] < 256 else 5


@compiled
def _stamps(by_time: Any, timed: Any, time: Any) -> Any:
    total = 9
    for q in range(1, timed):
        total += _stamp(by_time[q - 1], by_time[q], time)
    return total


@compiled
def _shorten(by_time: Any, timed: Any, count: Any, total: Any, limit: Any, sizes: Any, time: Any, chain: Any) -> Any:
    """Give up the last candidates until the rest fits; how many are left, and their tokens."""
    before, after, where = chain[0], chain[1], chain[2]
    where[:count] = -1
    for q in range(timed):
        before[q], after[q] = q - 1, q + 1
        where[by_time[q] & _CEILING] = q
    while total > limit:
        count -= 1
        total -= sizes[count]
        q = where[count]
        if q < 0:
            continue
        p, r = before[q], after[q]
        if p >= 0:
            total -= _stamp(by_time[p], by_time[q], time)
            after[p] = r
        if r < timed:
            total -= _stamp(by_time[q], by_time[r], time)
            before[r] = p
        if p >= 0 and r < timed:
            total += _stamp(by_time[p], by_time[r], time)
        elif p < 0 and r == timed:
            total -= 9
    return count, total


@compiled
def _those_below(by_time: Any, timed: Any, count: Any) -> Any:
    """Keep of the numbers by time those of the first candidates; how many they are."""
    kept = 0
    for q in range(timed):
        by_time[kept] = by_time[q]
        kept += np.int64((by_time[q] & _CEILING) < np.uint64(count))
    return kept


@compiled
def _write(
    out: Any, key: Any, by_time: Any, timed: Any, at_random: Any, untimed: Any, time: Any, code: Any, family: Any,
    address: Any, source_family: Any, source: Any,
) -> None:  # fmt: skip
    at, with_time, without, previous = _0, 0, 0, np.int64(-1)
    for place in range(timed + untimed):
        has_time = untimed == 0
        if timed and untimed:
            left = np.uint64(timed + untimed - place)
            has_time = np.int64(((draw_word(key, POSITIONS + place) >> _32) * left) >> _32) >= untimed - without
        stamped, plain = by_time[with_time] & _CEILING, at_random[without]
        m = stamped if has_time else plain
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
        order = ((draw_word(key, FIELDS + place) >> _32) * _24) >> _32
        out[at] = v.START
        at += _1
        _address(out, at + _sum(lengths & _BEFORE[order, 0]), v.SOURCE_V4, source_family, source)
        if peer:
            _address(out, at + _sum(lengths & _BEFORE[order, 1]), v.DESTINATION_V4, family[m], address[m])
        _result(out, at + _sum(lengths & _BEFORE[order, 2]), code[m])
        if has_time:
            _time(out, at + _sum(lengths & _BEFORE[order, 3]), stamp, value)
        at += mine + peer + result + stamp


@compiled
def _sum(lengths: Any) -> Any:
    """Of the four bytes of a word; below 256."""
    return (lengths * _ONES >> _24) & _BYTE


@compiled
def _address(out: Any, at: Any, role: Any, family: Any, address: Any) -> None:
    out[at] = role + 1 if family == 6 else role
    _four(out, at + _1, address, _0)
    if family == 6:
        _four(out, at + _5, address, _4)
        _four(out, at + _9, address, _8)
        _four(out, at + _13, address, _12)


@compiled
def _four(out: Any, at: Any, data: Any, q: Any) -> None:
    a, b, c, d = data[q], data[q + _1], data[q + _2], data[q + _3]  # read before anything is written: it is one move
    out[at], out[at + _1] = v.BYTE + np.int32(a), v.BYTE + np.int32(b)
    out[at + _2], out[at + _3] = v.BYTE + np.int32(c), v.BYTE + np.int32(d)


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
