"""Choose the measurements that may enter each context, and read their columns.

Compiled by numba, extra `histories`.

A *segment* is what one row contributes to one context. A sampled segment draws a window of its row,
with log-uniform size and uniform position. Its candidates are a prefix of a random permutation of
the window, as long as could ever fit. How many do fit is known once their tokens are, see `tokens`.
A segment of a small row has all measurements of its part of the row as candidates. Only candidates
are read: about a hundred positions of a mapped row of 8 MB. Cost: O(candidates), and a handful of
calls for each row that a batch uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import I32, I64, U8, U16, U64, Bools, offsets_from_lengths, ranges
from headrace.compiled import compiled
from headrace.draws import (
    FRACTION,
    GAMMA,
    MIX_B,
    MODE,
    OFFSET,
    ROUND_KEYS,
    ROUNDS,
    WINDOW,
    half,
    mix,
)
from headrace.errors import CorruptShard
from headrace.histories.codec.rows import RowColumns
from headrace.histories.contexts.tokeniser import PLAIN, Layout
from headrace.histories.contexts.vocabulary import result_sizes, result_tokens

# modes: all timestamps, some, none
FULL = 0
PARTIAL = 1
NONE = 2
TENTH = np.uint64((1 << 32) // 10)
LN2 = 0.6931471805599453

_GAMMA = np.uint64(GAMMA)
_MIX_B = np.uint64(MIX_B)
_8 = np.uint64(8)
_11 = np.uint64(11)
_32 = np.uint64(32)
_ONE = np.uint64(1)
_LOW = np.uint64((1 << 32) - 1)
_NO_PEERS = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class ContextSegments:
    """S segments; those of one context are adjacent and in order.

    context: int64 [S], number of the context in its batch, never decreasing.
    row: int64 [S].
    start, count: int64 [S], measurements of the row; all of them if sampled.
    sampled: bool [S].
    mode: uint8 [S].
    fraction: uint64 [S], fraction of the measurements that lose their time in the mode PARTIAL, in
    units of 2**-32. key: uint64 [S].
    """

    context: I64
    row: I64
    start: I64
    count: I64
    sampled: Bools
    mode: U8
    fraction: U64
    key: U64


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Candidates in random order; segment s may take a prefix of offsets[s] : offsets[s + 1].

    index: int64 [M], position in the row (later is never earlier in time).
    time: int64 [M].
    code: uint16 [M].
    family: uint8 [M], 4, 6, or 0 without a peer.
    address: uint8 [M, 16], of which the first 4 or 16 bytes count.
    source_family: uint8 [S].
    source: uint8 [S, 16].
    result_sizes, results: int64 [M] and int32 [M, W], see `vocabulary.result_tokens`.
    """

    offsets: I64
    index: I64
    time: I64
    code: U16
    family: U8
    address: U8
    source_family: U8
    source: U8
    result_sizes: I64
    results: I32


def find_candidates(  # noqa: PLR0914 - the arrays that the kernel fills
    segments: ContextSegments, rows: Mapping[int, RowColumns], room: int, layout: Layout = PLAIN
) -> Candidates:
    """Return the candidates of all segments.

    rows: exactly the rows that the segments name, opened.
    room: tokens of a context. Raises `CorruptShard` for a row that is shorter than its segments
    require.
    """
    numbers = sorted(rows)
    opened = [rows[number] for number in numbers]
    row_of_segment = np.searchsorted(np.array(numbers, np.int64), segments.row)
    n = np.array([row.n for row in opened], np.int64)[row_of_segment]
    short = segments.start + segments.count > n
    if short.any():
        changed = int(segments.row[short.argmax()])
        raise CorruptShard(
            "is shorter than it was when the split was indexed",
            row=changed + 1,
            remedy="open the run again",
        )
    # Tokens that any measurement of a row has at least, without a timestamp.
    shortest = np.ones(len(opened), np.int64)
    is_sampled = np.bincount(row_of_segment[segments.sampled])  # other rows take all measurements
    entity_sizes = layout.entity_sizes
    peer_sizes = layout.peer_sizes
    for number in np.flatnonzero(is_sampled).tolist():
        row = opened[number]
        shortest[number] = 1 + entity_sizes[row.entity_family]
        shortest[number] += row.has_latency and layout.value
        if row.peers is not None and len(row.peer_family):
            shortest[number] += int(peer_sizes[row.peer_family].min())
    tokens = shortest[row_of_segment] + 2 * (segments.mode == FULL)
    fills = np.minimum(segments.count, room // tokens + 1)
    offsets = offsets_from_lengths(np.where(segments.sampled, fills, segments.count))
    index = draw_indices(segments, fills, offsets)
    total = int(offsets[-1])
    time = np.empty(total, np.int64)
    code = np.empty(total, np.uint16)
    family = np.empty(total, np.uint8)
    address = np.empty((total, 16), np.uint8)
    value_types = []
    if opened:
        value_types = [column.dtype for column in opened[0].values]
    values = tuple(np.empty(total, dtype) for dtype in value_types)
    order = np.argsort(row_of_segment, kind="stable")  # read a row once for all its segments
    ends = offsets_from_lengths(np.bincount(row_of_segment, minlength=len(opened)))
    for number, row in enumerate(opened):
        chosen = order[ends[number] : ends[number + 1]]
        peers = _NO_PEERS
        width = 0
        if row.peers is not None:
            peers = row.peers.view(np.uint8)  # bytes, so that one kernel reads all widths
            width = row.peers.itemsize
        # Addresses are copied as two words each.
        _gather(
            chosen,
            offsets,
            index,
            np.int64(row.first_time),
            row.offsets,
            row.codes,
            peers,
            width,
            row.peer_family,
            row.peer_bytes.view(np.uint64),
            time,
            code,
            family,
            address.view(np.uint64),
        )
        for column, stored in zip(values, row.values, strict=True):
            candidates = ranges(offsets[chosen], offsets[chosen + 1] - offsets[chosen])
            column[candidates] = stored[index[candidates]]
    source_family = np.array([row.entity_family for row in opened], np.uint8)
    source = np.array([row.entity_bytes for row in opened], np.uint8).reshape(-1, 16)
    _hide_unknown(source, layout.entity_limit)
    _hide_unknown(address, layout.peer_limit)
    has_latency = layout.value and (not opened or opened[0].has_latency)
    return Candidates(
        offsets=offsets,
        index=index,
        time=time,
        code=code,
        family=family,
        address=address,
        source_family=source_family[row_of_segment],
        source=source[row_of_segment],
        result_sizes=result_sizes(code, values, layout, has_latency),
        results=result_tokens(code, values, layout, has_latency=has_latency),
    )


def _hide_unknown(addresses: U8, limit: int | None) -> None:
    """Write 255 as all bytes of the numbers and codes from a limit on. addresses: [N, 16]."""
    if limit is not None:
        numbers = np.ascontiguousarray(addresses[:, :4]).view(">u4").ravel()
        addresses[numbers >= limit, :4] = 255


def draw_indices(segments: ContextSegments, fills: I64, offsets: I64) -> I64:
    """Draw the position in its row of every candidate; int64 [M].

    fills: int64 [S], for sampled segments the number of candidates and the smallest length of their
    windows.
    """
    windows, starts = _windows(
        segments.key, segments.sampled, segments.start, segments.count, fills
    )
    indices: I64 = permuted_prefixes(segments.key, windows, starts, offsets)
    return indices


_mix = compiled(mix)
_half = compiled(half)


@compiled
def draw_word(key: Any, slot: Any) -> Any:
    """Compute `draws.draw` for one key and slot."""
    return _mix(key + np.uint64(slot) * _GAMMA)


@compiled
def draw_modes(keys: Any, full_below: Any, partial_below: Any) -> Any:
    """Draw mode, fraction (10..90 %) and key of the one segment of each sampled context, from the
    context's key.

    full_below, partial_below: the share of contexts with all times, and with all or some.
    """
    mode = np.empty(len(keys), np.uint8)
    fraction = np.empty(len(keys), np.uint64)
    segment_keys = np.empty(len(keys), np.uint64)
    for k in range(len(keys)):
        key = _mix(keys[k] + _MIX_B)
        segment_keys[k] = key
        chance = np.float64(draw_word(key, MODE) >> _11) * 2.0**-53
        if chance < full_below:
            mode[k] = FULL
        elif chance < partial_below:
            mode[k] = PARTIAL
        else:
            mode[k] = NONE
        fraction[k] = TENTH + (((draw_word(key, FRACTION) >> _32) * (_8 * TENTH)) >> _32)
    return mode, fraction, segment_keys


@compiled
def _halves(size: Any) -> Any:
    """Count the residues of the two halves of an index."""
    left = np.uint64(max(np.ceil(np.sqrt(np.float64(size))), 1.0))
    return left, (size + left - _ONE) // left


@compiled
def _network(round_keys: Any, left: Any, right: Any, value: Any) -> Any:
    a = value // right
    b = value % right
    for number in range(0, ROUNDS, 2):
        a += (_half(round_keys[number], b) * left) >> _32
        if a >= left:
            a -= left
        b += (_half(round_keys[number + 1], a) * right) >> _32
        if b >= right:
            b -= right
    return a * right + b


@compiled
def permute(key: Any, size: Any, positions: Any) -> Any:
    """Compute `draws.permuted` for one key and size."""
    round_keys = np.empty(ROUNDS, np.uint64)
    out = np.empty(len(positions), np.int64)
    for number in range(ROUNDS):
        round_keys[number] = draw_word(key, ROUND_KEYS + number)
    bound = np.uint64(size)
    left, right = _halves(bound)
    for k in range(len(positions)):
        value = _network(round_keys, left, right, np.uint64(positions[k]))
        while value >= bound:
            value = _network(round_keys, left, right, value)
        out[k] = np.int64(value)
    return out


@compiled
def permuted_prefixes(keys: Any, sizes: Any, starts: Any, offsets: Any) -> Any:
    """Compute where the permutation of each key maps 0, 1, 2, …, plus the key's element of
    `starts`.

    Key k has offsets[k + 1] - offsets[k] indices. All indices of a key go through a round before
    the next round: the loop of a round has no branch, so it vectorises.
    """
    most = 0
    for k in range(len(keys)):
        most = max(most, offsets[k + 1] - offsets[k])
    round_keys = np.empty(ROUNDS, np.uint64)
    all_a = np.empty(most, np.uint64)
    all_b = np.empty(most, np.uint64)
    out = np.empty(offsets[-1], np.int64)
    for k in range(len(keys)):
        count = offsets[k + 1] - offsets[k]
        if count == 0:
            continue
        for number in range(ROUNDS):
            round_keys[number] = draw_word(keys[k], ROUND_KEYS + number)
        size = np.uint64(sizes[k])
        left, right = _halves(size)
        a = all_a[:count]
        b = all_b[:count]
        for position in range(count):
            # exact, and float division vectorises
            quotient = np.int32(np.float64(position) / np.float64(right))
            a[position] = np.uint64(quotient)
            b[position] = np.uint64(position - np.int64(quotient) * np.int64(right))
        for number in range(0, ROUNDS, 2):
            _round(round_keys[number], b, left, a)
            _round(round_keys[number + 1], a, right, b)
        indices = out[offsets[k] : offsets[k + 1]]
        for position in range(count):
            value = a[position] * right + b[position]
            while value >= size:  # outside the domain: cycle-walk
                value = _network(round_keys, left, right, value)
            indices[position] = np.int64(value) + starts[k]
    return out


@compiled
def _round(round_key: Any, other: Any, residues: Any, half: Any) -> None:
    for k in range(len(half)):
        value = half[k] + ((_half(round_key, other[k]) * (residues & _LOW)) >> _32)
        if value >= residues:
            half[k] = value - residues
        else:
            half[k] = value


@compiled
def _windows(keys: Any, sampled: Any, starts: Any, counts: Any, fills: Any) -> Any:
    """Choose the window of each segment: its length and first index.

    An unsampled segment is its own window.
    """
    window = counts.copy()
    first = starts.copy()
    for s in range(len(keys)):
        if sampled[s]:
            window[s] = _log_uniform(draw_word(keys[s], WINDOW), fills[s], counts[s])
            slack = np.uint64(counts[s] - window[s] + 1)
            first[s] += np.int64(((draw_word(keys[s], OFFSET) >> _32) * slack) >> _32)
    return window, first


@compiled
def _log_uniform(word: Any, low: Any, high: Any) -> Any:
    start = _log2(np.float64(low))
    end = _log2(np.float64(high) + 1.0)
    unit = np.float64(word >> _11) * 2.0**-53
    drawn = np.int64(np.floor(_exp2(start + unit * (end - start))))
    return min(max(drawn, low), high)


@compiled
def _log2(x: Any) -> Any:
    """Compute log2 of a positive float with exactly rounded operations only; libraries differ in
    the last bit.
    """
    part, power = math.frexp(x)
    if part < 0.7071067811865476:
        part *= 2.0
        power -= 1
    z = (part - 1.0) / (part + 1.0)
    square = z * z
    total = 0.0
    for odd in range(21, 0, -2):
        total = total * square + 1.0 / odd
    return power + total * z * (2.0 / LN2)


@compiled
def _exp2(y: Any) -> Any:
    floor = np.floor(y)
    x = (y - floor) * LN2
    total = 1.0
    for term in range(18, 0, -1):
        total = total * x / term + 1.0
    return math.ldexp(total, int(floor))


@compiled
def _gather(  # noqa: PLR0913, PLR0917 - arrays of a numba kernel
    chosen: Any,
    offsets: Any,
    index: Any,
    first_time: Any,
    seconds: Any,
    codes: Any,
    peers: Any,
    width: Any,
    peer_family: Any,
    peer_words: Any,
    time: Any,
    code: Any,
    family: Any,
    address: Any,
) -> None:
    """Fill in the candidates of the chosen segments, all of one row."""
    for s in chosen:
        for m in range(offsets[s], offsets[s + 1]):
            i = index[m]
            time[m] = first_time + np.int64(seconds[i])
            code[m] = codes[i]
            if width == 0:
                family[m] = 0
                address[m, 0] = 0
                address[m, 1] = 0
                continue
            peer = np.int64(peers[i * width])
            if width > 1:
                peer |= np.int64(peers[i * width + 1]) << 8
            if width > 2:
                peer |= np.int64(peers[i * width + 2]) << 16 | np.int64(peers[i * width + 3]) << 24
            family[m] = peer_family[peer]
            address[m, 0] = peer_words[peer, 0]
            address[m, 1] = peer_words[peer, 1]
