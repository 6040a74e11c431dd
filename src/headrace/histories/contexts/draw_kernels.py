"""Draw and gather candidates with numba, bit-identical to `draws` and `sample`. Extra `histories`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headrace.arrays import I64
from headrace.compiled import compiled
from headrace.draws import (
    FRACTION,
    GAMMA,
    LN2,
    MIX_B,
    MODE,
    OFFSET,
    ROUND_KEYS,
    ROUNDS,
    WINDOW,
    half,
    mix,
)
from headrace.histories.codec.rows import RowColumns
from headrace.histories.contexts.sample import (
    FULL,
    FULL_BELOW,
    NONE,
    PARTIAL,
    PARTIAL_BELOW,
    TENTH,
    Columns,
    Sampling,
    Segments,
)

_GAMMA, _MIX_B = np.uint64(GAMMA), np.uint64(MIX_B)
_8, _11, _32 = (np.uint64(each) for each in (8, 11, 32))
_ONE, _LOW = np.uint64(1), np.uint64((1 << 32) - 1)
_NO_PEERS = np.empty(0, np.uint8)


def _indices(segments: Segments, fills: I64, offsets: I64) -> I64:
    """Compute `indices`, compiled."""
    windows = _windows(segments.key, segments.sampled, segments.start, segments.count, fills)
    out: I64 = _prefixes(segments.key, *windows, offsets)
    return out


def _gather(row: RowColumns, mine: I64, offsets: I64, index: I64, out: Columns) -> None:
    """Compute `gather`, compiled. Addresses are copied as two words each."""
    peers, width = _NO_PEERS, 0
    if row.peers is not None:
        peers, width = row.peers.view(np.uint8), row.peers.itemsize  # bytes, so that one kernel reads all widths
    _gather_columns(
        mine, offsets, index, np.int64(row.first_time), row.offsets, row.codes, peers, width, row.peer_family,
        row.peer_bytes.view(np.uint64), out.time, out.code, out.family, out.address.view(np.uint64),
    )  # fmt: skip


_mix, _half = compiled(mix), compiled(half)


@compiled
def draw_word(key: Any, slot: Any) -> Any:
    """Compute `draw` for one key and slot."""
    return _mix(key + np.uint64(slot) * _GAMMA)


@compiled
def _dealt(keys: Any) -> Any:
    """Compute `dealt`."""
    mode, fraction, own = np.empty(len(keys), np.uint8), np.empty(len(keys), np.uint64), np.empty(len(keys), np.uint64)
    for k in range(len(keys)):
        own[k] = _mix(keys[k] + _MIX_B)
        chance = np.float64(draw_word(own[k], MODE) >> _11) * 2.0**-53
        mode[k] = FULL if chance < FULL_BELOW else PARTIAL if chance < PARTIAL_BELOW else NONE
        fraction[k] = TENTH + (((draw_word(own[k], FRACTION) >> _32) * (_8 * TENTH)) >> _32)
    return mode, fraction, own


@compiled
def _halves(size: Any) -> Any:
    """Count the residues of the two halves of an index."""
    left = np.uint64(max(np.ceil(np.sqrt(np.float64(size))), 1.0))
    return left, (size + left - _ONE) // left


@compiled
def _network(round_keys: Any, left: Any, right: Any, value: Any) -> Any:
    a, b = value // right, value % right
    for number in range(0, ROUNDS, 2):
        a += (_half(round_keys[number], b) * left) >> _32
        if a >= left:
            a -= left
        b += (_half(round_keys[number + 1], a) * right) >> _32
        if b >= right:
            b -= right
    return a * right + b


@compiled
def _permuted(key: Any, size: Any, places: Any) -> Any:
    """Compute `permuted` for one key and size, arrays of one."""
    round_keys, out = np.empty(ROUNDS, np.uint64), np.empty(len(places), np.int64)
    for number in range(ROUNDS):
        round_keys[number] = draw_word(key[0], ROUND_KEYS + number)
    bound = np.uint64(size[0])
    left, right = _halves(bound)
    for k in range(len(places)):
        value = _network(round_keys, left, right, np.uint64(places[k]))
        while value >= bound:
            value = _network(round_keys, left, right, value)
        out[k] = np.int64(value)
    return out


@compiled
def _prefixes(keys: Any, sizes: Any, begins: Any, offsets: Any) -> Any:
    """Compute where the permutation of each key maps 0, 1, 2, …, plus the key's element of `begins`.

    All indices of a key go through a round before the next round: the loop of a round has no branch, so it vectorises.
    """
    most = 0
    for k in range(len(keys)):
        most = max(most, offsets[k + 1] - offsets[k])
    round_keys, all_a, all_b = np.empty(ROUNDS, np.uint64), np.empty(most, np.uint64), np.empty(most, np.uint64)
    out = np.empty(offsets[-1], np.int64)
    for k in range(len(keys)):
        count = offsets[k + 1] - offsets[k]
        if count == 0:
            continue
        for number in range(ROUNDS):
            round_keys[number] = draw_word(keys[k], ROUND_KEYS + number)
        size = np.uint64(sizes[k])
        left, right = _halves(size)
        a, b = all_a[:count], all_b[:count]
        for place in range(count):
            quotient = np.int32(np.float64(place) / np.float64(right))  # exact, and float division vectorises
            a[place] = np.uint64(quotient)
            b[place] = np.uint64(place - np.int64(quotient) * np.int64(right))
        for number in range(0, ROUNDS, 2):
            _round(round_keys[number], b, left, a)
            _round(round_keys[number + 1], a, right, b)
        mine = out[offsets[k] : offsets[k + 1]]
        for place in range(count):
            value = a[place] * right + b[place]
            while value >= size:  # outside the domain: cycle-walk
                value = _network(round_keys, left, right, value)
            mine[place] = np.int64(value) + begins[k]
    return out


@compiled
def _round(round_key: Any, other: Any, residues: Any, half: Any) -> None:
    for place in range(len(half)):
        value = half[place] + ((_half(round_key, other[place]) * (residues & _LOW)) >> _32)
        half[place] = value - residues if value >= residues else value


@compiled
def _windows(keys: Any, sampled: Any, starts: Any, counts: Any, fills: Any) -> Any:
    """Choose the window of each segment: its length and first index. An unsampled segment is its own window."""
    window, begin = counts.copy(), starts.copy()
    for s in range(len(keys)):
        if sampled[s]:
            window[s] = _log_uniform(draw_word(keys[s], WINDOW), fills[s], counts[s])
            slack = np.uint64(counts[s] - window[s] + 1)
            begin[s] += np.int64(((draw_word(keys[s], OFFSET) >> _32) * slack) >> _32)
    return window, begin


@compiled
def _log_uniform(word: Any, low: Any, high: Any) -> Any:
    begin, end = _log2(np.float64(low)), _log2(np.float64(high) + 1.0)
    unit = np.float64(word >> _11) * 2.0**-53
    drawn = np.int64(np.floor(_exp2(begin + unit * (end - begin))))
    return min(max(drawn, low), high)


@compiled
def _log2(x: Any) -> Any:
    part, power = math.frexp(x)
    if part < 0.7071067811865476:
        part, power = part * 2.0, power - 1
    z = (part - 1.0) / (part + 1.0)
    square, total = z * z, 0.0
    for odd in range(21, 0, -2):
        total = total * square + 1.0 / odd
    return power + total * z * (2.0 / LN2)


@compiled
def _exp2(y: Any) -> Any:
    whole = np.floor(y)
    x, total = (y - whole) * LN2, 1.0
    for term in range(18, 0, -1):
        total = total * x / term + 1.0
    return math.ldexp(total, int(whole))


@compiled
def _gather_columns(
    mine: Any, offsets: Any, index: Any, first_time: Any, seconds: Any, codes: Any, peers: Any, width: Any,
    peer_family: Any, peer_words: Any, time: Any, code: Any, family: Any, address: Any,
) -> None:  # fmt: skip
    for s in mine:
        for m in range(offsets[s], offsets[s + 1]):
            i = index[m]
            time[m] = first_time + np.int64(seconds[i])
            code[m] = codes[i]
            if width == 0:
                family[m], address[m, 0], address[m, 1] = 0, 0, 0
                continue
            peer = np.int64(peers[i * width])
            if width > 1:
                peer |= np.int64(peers[i * width + 1]) << 8
            if width > 2:
                peer |= np.int64(peers[i * width + 2]) << 16 | np.int64(peers[i * width + 3]) << 24
            family[m] = peer_family[peer]
            address[m, 0], address[m, 1] = peer_words[peer, 0], peer_words[peer, 1]


IN_NUMBA = Sampling(_permuted, _dealt, _indices, _gather)
