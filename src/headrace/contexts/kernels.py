"""Candidates into tokens, compiled by numba: the same tokens as `tokens`, context after context. Extra `histories`.

One pass for each segment: candidates are taken one by one, each timestamp put into its place among those before, until
one does not fit; then what was taken is written. O(taken²) moves of a sorted list of at most about a hundred, which is
quicker than sorting. Nothing is kept between segments, and the interpreter lock is not held.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.arrays import I64, U64
from headrace.compiled import compiled
from headrace.contexts import vocabulary as v
from headrace.contexts.draws import FIELDS, GAMMA, MIX_A, MIX_B, POSITIONS, ROUND_KEYS, ROUNDS
from headrace.contexts.sample import FULL, NONE, Candidates, Segments
from headrace.contexts.tokens import FIELD_ORDERS, Tokens

_GAMMA, _MIX_A, _MIX_B = np.uint64(GAMMA), np.uint64(MIX_A), np.uint64(MIX_B)
_CEILING, _LOW = np.uint64((1 << 32) - 1), np.uint64(32)
_30, _27, _31, _ONE, _24 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(1), np.uint64(24)


def tokens_in_numba(segments: Segments, found: Candidates, contexts: int, room: int) -> Tokens:
    """As `tokens_in_numpy`."""
    tokens = np.zeros((contexts, room), np.int32)
    lengths, taken = np.zeros(len(segments.row), np.int64), np.zeros(len(segments.row), np.int64)
    _build(
        segments.context, segments.mode, segments.fraction, segments.key, found.offsets, found.index, found.time,
        found.code, found.family, found.address, found.source_family, found.source, tokens, lengths, taken,
    )  # fmt: skip
    return Tokens(tokens, lengths, taken)


def prefixes_in_numba(keys: U64, sizes: I64, offsets: I64) -> I64:
    """As `permuted_prefixes`."""
    out = np.empty(int(offsets[-1]), np.int64)
    _prefixes(keys, sizes, offsets, out)
    return out


@compiled
def _draw(key: Any, slot: Any) -> Any:
    word = key + np.uint64(slot) * _GAMMA
    word = (word ^ (word >> _30)) * _MIX_A
    word = (word ^ (word >> _27)) * _MIX_B
    return word ^ (word >> _31)


@compiled
def _half(round_key: Any, value: Any) -> Any:
    word = (value ^ round_key) * _MIX_A
    return ((word ^ (word >> _LOW)) * _MIX_B) >> _LOW


@compiled
def _prefixes(keys: Any, sizes: Any, offsets: Any, out: Any) -> None:
    round_keys = np.empty(ROUNDS, np.uint64)
    for k in range(len(keys)):
        if offsets[k] == offsets[k + 1]:
            continue
        for number in range(ROUNDS):
            round_keys[number] = _draw(keys[k], ROUND_KEYS + number)
        size = np.uint64(sizes[k])
        left = np.uint64(max(np.ceil(np.sqrt(np.float64(size))), 1.0))
        right = (size + left - _ONE) // left
        for place in range(offsets[k + 1] - offsets[k]):
            value = np.uint64(place)
            while True:
                a = value // right
                b = value - a * right
                for number in range(0, ROUNDS, 2):
                    a += (_half(round_keys[number], b) * left) >> _LOW
                    if a >= left:
                        a -= left
                    b += (_half(round_keys[number + 1], a) * right) >> _LOW
                    if b >= right:
                        b -= right
                value = a * right + b
                if value < size:
                    break
            out[offsets[k] + place] = value


@compiled
def _stamp_length(earlier: Any, later: Any) -> Any:
    return 2 if later - earlier < 256 else 5


@compiled
def _build(
    context: Any, mode: Any, fraction: Any, key: Any, offsets: Any, index: Any, time: Any,
    code: Any, family: Any, address: Any, source_family: Any, source: Any, tokens: Any, lengths: Any, taken: Any,
) -> None:  # fmt: skip
    room = tokens.shape[1]
    most = 1
    for s in range(len(context)):
        most = max(most, offsets[s + 1] - offsets[s])
    by_time = np.empty(most, np.int64)  # candidates with a timestamp, by their place in the row
    at_random = np.empty(most, np.int64)  # candidates without, in the order in which they came
    used, last = 0, -1
    for s in range(len(context)):
        if context[s] != last:
            used, last = 0, context[s]
        source_size = 16 if source_family[s] == 6 else 4
        timed, untimed, total, limit = 0, 0, 0, room - used
        lost = np.uint64(0)
        for j in range(offsets[s + 1] - offsets[s]):
            m = offsets[s] + j
            length = 2 + source_size + (1 if code[m] == 0 else 3)
            if family[m] > 0:
                length += 17 if family[m] == 6 else 5
            has_time = mode[s] == FULL
            if mode[s] != FULL and mode[s] != NONE:
                losing = (np.uint64(j + 1) * fraction[s] + _CEILING) >> _LOW
                has_time = losing == lost
            place = timed
            if has_time:
                while place > 0 and index[by_time[place - 1]] > index[m]:
                    place -= 1
                if timed == 0:
                    length += 9
                else:
                    if place > 0:
                        length += _stamp_length(time[by_time[place - 1]], time[m])
                    if place < timed:
                        length += _stamp_length(time[m], time[by_time[place]])
                    if 0 < place < timed:
                        length -= _stamp_length(time[by_time[place - 1]], time[by_time[place]])
            if total + length > limit:
                break
            total += length
            if has_time:
                for q in range(timed, place, -1):
                    by_time[q] = by_time[q - 1]
                by_time[place] = m
                timed += 1
            else:
                at_random[untimed] = m
                untimed += 1
                lost += _ONE
        count = timed + untimed
        _write(
            tokens[last, used : used + total], key[s], by_time, timed, at_random, untimed, time, code, family, address,
            source_family[s], source[s], source_size,
        )  # fmt: skip
        used += total
        lengths[s], taken[s] = total, count


@compiled
def _write(
    out: Any, key: Any, by_time: Any, timed: Any, at_random: Any, untimed: Any, time: Any, code: Any, family: Any,
    address: Any, source_family: Any, source: Any, source_size: Any,
) -> None:  # fmt: skip
    at, with_time, without = 0, 0, 0
    count = timed + untimed
    previous = np.int64(-1)
    for place in range(count):
        chance = ((_draw(key, POSITIONS + place) >> _LOW) * np.uint64(count - place)) >> _LOW
        has_time = np.int64(chance) >= untimed - without
        if has_time:
            m = by_time[with_time]
            with_time += 1
        else:
            m = at_random[without]
            without += 1
        out[at] = v.START
        at += 1
        order = np.int64(((_draw(key, FIELDS + place) >> _LOW) * _24) >> _LOW)
        for f in range(4):
            field = FIELD_ORDERS[order, f]
            if field == 0:
                out[at] = v.SOURCE_V6 if source_family == 6 else v.SOURCE_V4
                for q in range(source_size):
                    out[at + 1 + q] = v.BYTE + source[q]
                at += 1 + source_size
            elif field == 1:
                if family[m] > 0:
                    size = 16 if family[m] == 6 else 4
                    out[at] = v.DESTINATION_V6 if family[m] == 6 else v.DESTINATION_V4
                    for q in range(size):
                        out[at + 1 + q] = v.BYTE + address[m, q]
                    at += 1 + size
            elif field == 2:
                if code[m] == 0:
                    out[at] = v.FAILED
                    at += 1
                else:
                    out[at] = v.ROUND_TRIP
                    out[at + 1] = v.BYTE + (code[m] >> 8)
                    out[at + 2] = v.BYTE + (code[m] & 255)
                    at += 3
            elif has_time:
                value, size, role = time[m], 8, v.TIME_ABSOLUTE
                if previous >= 0:
                    value, size, role = time[m] - previous, 1, v.TIME_DELTA
                    if value >= 256:
                        size, role = 4, v.TIME_LONG_DELTA
                out[at] = role
                for q in range(size):
                    out[at + 1 + q] = v.BYTE + ((value >> (8 * (size - 1 - q))) & 255)
                at += 1 + size
        if has_time:
            previous = time[m]
