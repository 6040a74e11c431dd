"""Choose the measurements that may enter each context, and read their columns.

A *segment* is what one row contributes to one context. A sampled segment draws a window of its row, with log-uniform
size and uniform position. Its candidates are a prefix of a random permutation of the window, as long as could ever fit.
How many do fit is known once their tokens are, see `tokens`. A whole segment has all measurements of its piece as
candidates. Only candidates are read: about a hundred positions of a mapped row of 8 MB. Cost: O(candidates) vector
operations, and a handful of calls for each row that a batch uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headrace.arrays import I32, I64, U8, U16, U64, Bools, borders_of, ranges
from headrace.draws import (
    FRACTION,
    MODE,
    OFFSET,
    WINDOW,
    below,
    draw,
    log_uniform,
    permuted,
    permuted_prefixes,
    segment_keys,
    unit,
)
from headrace.errors import CorruptShard
from headrace.histories.codec.rows import RowColumns
from headrace.histories.contexts.results import result_sizes, result_tokens

FULL, PARTIAL, NONE = 0, 1, 2  # modes: all timestamps, some, none
FULL_BELOW, PARTIAL_BELOW = 0.4, 0.7
TENTH = np.uint64((1 << 32) // 10)
ADDRESS_BYTES = np.array([0, 0, 0, 0, 4, 0, 16], np.int64)  # by family


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """S segments; those of one context are adjacent and in order.

    context: int64 [S], number of the context in its batch, never decreasing.
    row: int64 [S].
    start, count: int64 [S], measurements of the row; all of them if sampled.
    sampled: bool [S].
    mode: uint8 [S].
    fraction: uint64 [S], share of the measurements that lose their time in the mode PARTIAL, in units of 2**-32.
    key: uint64 [S].
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
    result_sizes, results: int64 [M] and int32 [M, W], see `results`.
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


class Columns(NamedTuple):
    """Columns of candidates to be filled, laid out as in `Candidates`."""

    time: I64
    code: U16
    family: U8
    address: U8


class Sampling(NamedTuple):
    """The functions that draw and read for contexts, in numpy or compiled."""

    permuted: Callable[[U64, I64, I64], I64]
    dealt: Callable[[U64], tuple[U8, U64, U64]]
    indices: Callable[[Segments, I64, I64], I64]
    gather: Callable[[RowColumns, I64, I64, I64, Columns], None]


def dealt(keys: U64) -> tuple[U8, U64, U64]:
    """Draw mode, fraction and key of the one segment of each sampled context, from the context's key."""
    own = segment_keys(keys, np.zeros(len(keys), np.int64))
    chance = unit(draw(own, MODE))
    mode = np.where(chance < FULL_BELOW, FULL, np.where(chance < PARTIAL_BELOW, PARTIAL, NONE)).astype(np.uint8)
    word = draw(own, FRACTION) >> np.uint64(32)
    return mode, TENTH + ((word * (np.uint64(8) * TENTH)) >> np.uint64(32)), own  # 10..90 %


def indices(segments: Segments, fills: I64, offsets: I64) -> I64:
    """Draw the position in its row of every candidate; int64 [M].

    fills: int64 [S], for sampled segments the number of candidates and the smallest length of their windows.
    """
    drawn = log_uniform(draw(segments.key, WINDOW), fills, segments.count)
    window = np.where(segments.sampled, drawn, segments.count)
    slack = segments.count - window + 1
    begin = segments.start + np.where(segments.sampled, below(draw(segments.key, OFFSET), slack), 0)
    return np.repeat(begin, np.diff(offsets)) + permuted_prefixes(segments.key, window, offsets)


def gather(row: RowColumns, mine: I64, offsets: I64, index: I64, out: Columns) -> None:
    """Fill in the candidates of some segments, all of one row. mine: numbers of the segments, ascending."""
    places = _places(mine, offsets)
    wanted = index[places]
    out.time[places] = row.offsets[wanted]
    out.time[places] += row.first_time
    out.code[places] = row.codes[wanted]
    if row.peers is None:
        out.family[places], out.address[places] = 0, 0
        return
    peers = row.peers[wanted]
    out.family[places] = row.peer_family[peers]
    out.address[places] = row.peer_bytes[peers]


IN_NUMPY = Sampling(permuted, dealt, indices, gather)


def candidates(
    segments: Segments, rows: Mapping[int, RowColumns], room: int, sampling: Sampling = IN_NUMPY
) -> Candidates:
    """Return the candidates of all segments.

    rows: exactly the rows that the segments name, opened.
    room: tokens of a context. Raises `CorruptShard` for a row that is shorter than its segments require.
    """
    numbers = np.array(sorted(rows), np.int64)
    opened = [rows[number] for number in numbers.tolist()]
    which = np.searchsorted(numbers, segments.row)
    n = np.array([row.n for row in opened], np.int64)[which]
    if (short := segments.start + segments.count > n).any():
        changed = int(segments.row[short.argmax()])
        raise CorruptShard(f"row {changed} of the split is shorter than it was when it was indexed; open the run again")
    shortest = np.ones(len(opened), np.int64)  # tokens that any measurement of a row has at least, without a timestamp
    for place in np.flatnonzero(np.bincount(which[segments.sampled])).tolist():  # other rows take all measurements
        row = opened[place]
        peer = int(ADDRESS_BYTES[row.peer_family].min()) + 1 if row.peers is not None and len(row.peer_family) else 0
        shortest[place] = 1 + 1 + ADDRESS_BYTES[row.entity_family] + peer + row.has_latency
    fills = np.minimum(segments.count, room // (shortest[which] + 2 * (segments.mode == FULL)) + 1)
    offsets = borders_of(np.where(segments.sampled, fills, segments.count))
    index = sampling.indices(segments, fills, offsets)
    total = int(offsets[-1])
    columns = Columns(
        np.empty(total, np.int64),
        np.empty(total, np.uint16),
        np.empty(total, np.uint8),
        np.empty((total, 16), np.uint8),
    )
    values = tuple(np.empty(total, each.dtype) for each in (opened[0].values if opened else ()))
    order = np.argsort(which, kind="stable")  # read a row once for all its segments
    ends = np.searchsorted(which[order], np.arange(len(opened)), side="right").tolist()
    for row, begin, end in zip(opened, [0, *ends], ends, strict=False):
        sampling.gather(row, order[begin:end], offsets, index, columns)
        for column, held in zip(values, row.values, strict=True):
            places = _places(order[begin:end], offsets)
            column[places] = held[index[places]]
    source_family = np.array([row.entity_family for row in opened], np.uint8)[which]
    source = np.array([row.entity_bytes for row in opened], np.uint8).reshape(-1, 16)[which]
    has_latency = not opened or opened[0].has_latency
    results = result_tokens(columns.code, values, has_latency=has_latency)
    sizes = result_sizes(columns.code, values, has_latency)
    return Candidates(offsets, index, *columns, source_family, source, sizes, results)


def _places(segments: I64, offsets: I64) -> slice | I64:
    """Return the indices of the candidates of some segments, ascending."""
    first, last = int(segments[0]), int(segments[-1])
    if last - first + 1 == len(segments):
        return slice(int(offsets[first]), int(offsets[last + 1]))
    return ranges(offsets[segments], offsets[segments + 1] - offsets[segments])
