"""Order a partition, compiled by numba: the same order as `sort` gives. Extra `histories`.

Measurements are dealt out to their entities, which stand in order already, and each entity's are sorted by itself: few
by insertion, more after they were spread by the uppermost bits of their times; times that crowd are sorted digit by
digit from the lowest, and what agrees in time afterwards. A measurement is moved as two words: its time, and its peer
above its code. O(N) for any data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import I32, I64, U16, U32, U64
from headrace.compiled import compiled, read_only

_FEW = 16  # sorted by insertion
_MANY = 1 << 10  # sorted by digits of 11 bits instead of 8
_SPREAD_BITS, _MANY_SPREAD = 12, 1 << 14  # so many are spread a second time before they are sorted by insertion
_CROWDED = 16  # so many in a bucket that digits are quicker than insertion
_NARROW, _WIDE = np.uint64(8), np.uint64(11)
_ONE, _16, _32 = np.uint64(1), np.uint64(16), np.uint64(32)
_HALF, _WORD = np.uint64(0xFFFF), np.uint64(0xFFFFFFFF)


@dataclass(frozen=True)
class Dealt:
    """Measurements with those of an entity together: times, and peers above codes, uint64 [N]; starts int64 [E + 1]."""

    starts: I64
    keys: U64
    tails: U64
    has_peers: bool


def dealt(records: U64, tail: int, peer: tuple[U32, U32] | None, entities: int) -> Dealt:
    """Deal measurements out to their entities; the records are not needed any more.

    records uint64 [N, W], of `piece.ALONE`, `piece.WITH_PEER` or `sort.RUN`: times from 1970 on in the first word,
    entity (below `entities`) and code in word `tail`. peer: places [N] and of each place its peer; None without peers.
    """
    place, rank = (np.zeros(0, np.uint32),) * 2 if peer is None else peer
    keys, tails = np.empty(len(records), np.uint64), np.empty(len(records), np.uint64)
    starts = np.zeros(entities + 1, np.int64)
    _deal(read_only(records), tail, read_only(place), read_only(rank), starts, keys, tails)
    return Dealt(starts, keys, tails, peer is not None)


def in_order(given: Dealt) -> tuple[I32, I64, I32 | None, U16]:
    """Sort by entity, time, peer and code: entity int32 [N], micros int64 [N], peer int32 [N], codes
    uint16 [N]. What was dealt is used up."""
    n = len(given.keys)
    _sort_all(given.starts, given.keys, given.tails)
    entity, codes = np.empty(n, np.int32), np.empty(n, np.uint16)
    peers = np.empty(n if given.has_peers else 0, np.int32)
    _taken_apart(given.starts, given.tails, entity, peers, codes)
    return entity, given.keys.view(np.int64), peers if given.has_peers else None, codes


@compiled
def _deal(records: Any, last: Any, place: Any, rank: Any, starts: Any, keys: Any, tails: Any) -> None:
    """Times, and peers above codes, to the entities they are of, in the order of the records; fills `starts`."""
    for row in range(len(records)):
        starts[np.int64(records[row, last] & _WORD) + 1] += 1
    for number in range(1, len(starts)):
        starts[number] += starts[number - 1]
    at = starts[:-1].copy()
    for row in range(len(records)):
        tail = records[row, last]
        entity = np.int64(tail & _WORD)
        to = at[entity]
        at[entity] = to + 1
        keys[to] = records[row, 0]
        tail = (tail >> _32) & _HALF
        if len(place):
            tail |= np.uint64(rank[place[row]]) << _16
        tails[to] = tail


@compiled
def _sort_all(starts: Any, keys: Any, tails: Any) -> None:
    """Each entity's measurements by time, then by what is behind it."""
    longest = 0
    for number in range(len(starts) - 1):
        longest = max(longest, starts[number + 1] - starts[number])
    spare_keys, spare_tails = np.empty(longest, np.uint64), np.empty(longest, np.uint64)
    counts = np.empty((8, 1 << 11), np.int64)
    borders = np.empty((2, (1 << _SPREAD_BITS) + 1), np.int64)
    for number in range(len(starts) - 1):
        start, stop = starts[number], starts[number + 1]
        mine, behind = keys[start:stop], tails[start:stop]
        n = stop - start
        if n <= _FEW:
            _insert(mine, behind, mine, behind)
            continue
        crowd = _spread(mine, behind, spare_keys, spare_tails, borders[0])
        if n <= _MANY_SPREAD:
            if crowd <= _CROWDED * n:
                _insert(spare_keys[:n], spare_tails[:n], mine, behind)
            else:
                _by_all(mine, behind, spare_keys, spare_tails, counts)
            continue
        for bucket in range(1 << _SPREAD_BITS):
            begin, end = borders[0, bucket], borders[0, bucket + 1]
            many = end - begin
            part_keys, part_tails = spare_keys[begin:end], spare_tails[begin:end]
            to_keys, to_tails = mine[begin:end], behind[begin:end]
            if many <= _FEW:
                _insert(part_keys, part_tails, to_keys, to_tails)
            elif _spread(part_keys, part_tails, to_keys, to_tails, borders[1]) <= _CROWDED * many:
                _insert(to_keys, to_tails, to_keys, to_tails)
            else:
                _by_all(to_keys, to_tails, part_keys, part_tails, counts)


@compiled
def _spread(keys: Any, tails: Any, to_keys: Any, to_tails: Any, borders: Any) -> Any:
    """Both by the uppermost bits in which keys differ, as many as make two buckets for each; fills where buckets begin.

    The sum of the squares of how many are in each: what sorting them by insertion costs.
    """
    n = len(keys)
    low = high = keys[0]
    for row in range(n):
        low, high = min(low, keys[row]), max(high, keys[row])
    bits = 1
    while bits < _SPREAD_BITS and (1 << bits) < 2 * n:
        bits += 1
    shift, span = np.uint64(0), (high - low) >> np.uint64(bits)
    while span > 0:
        span >>= _ONE
        shift += _ONE
    buckets = 1 << bits
    borders[: buckets + 1] = 0
    for row in range(n):
        borders[np.int64((keys[row] - low) >> shift) + 1] += 1
    crowd: Any = 0
    for bucket in range(1, buckets + 1):
        held = borders[bucket]
        crowd += held * held
        borders[bucket] = borders[bucket - 1] + held
    for row in range(n):
        place: Any = np.int64((keys[row] - low) >> shift)
        to = borders[place]
        borders[place] = to + 1
        to_keys[to], to_tails[to] = keys[row], tails[row]
    for bucket in range(buckets, 0, -1):
        borders[bucket] = borders[bucket - 1]
    borders[0] = 0
    return crowd


@compiled
def _insert(keys: Any, tails: Any, to_keys: Any, to_tails: Any) -> None:
    """Both by keys and then tails, into other arrays or where they are; quick where they are nearly in order."""
    for row in range(len(keys)):
        key, tail = keys[row], tails[row]
        at = row
        while at > 0 and (to_keys[at - 1] > key or (to_keys[at - 1] == key and to_tails[at - 1] > tail)):
            to_keys[at], to_tails[at] = to_keys[at - 1], to_tails[at - 1]
            at -= 1
        to_keys[at], to_tails[at] = key, tail


@compiled
def _by_all(keys: Any, tails: Any, spare_keys: Any, spare_tails: Any, counts: Any) -> None:
    """Both by keys and then tails, whatever they are."""
    _by_digits(keys, tails, spare_keys, spare_tails, counts)
    begin = 0
    for row in range(1, len(keys) + 1):
        if row == len(keys) or keys[row] != keys[begin]:
            if row - begin > _FEW:
                _by_digits(tails[begin:row], keys[begin:row], spare_tails, spare_keys, counts)
            elif row - begin > 1:
                _insert(keys[begin:row], tails[begin:row], keys[begin:row], tails[begin:row])
            begin = row


@compiled
def _by_digits(keys: Any, tails: Any, spare_keys: Any, spare_tails: Any, counts: Any) -> None:
    """Both by keys, in place; those of one key stay in their order."""
    n = len(keys)
    low = high = keys[0]
    for row in range(n):
        low, high = min(low, keys[row]), max(high, keys[row])
    bits = _WIDE if n >= _MANY else _NARROW
    mask = (_ONE << bits) - _ONE
    digits, span = 0, high - low
    while span > 0:
        span >>= bits
        digits += 1
    for digit in range(digits):
        counts[digit, : np.int64(mask) + 1] = 0
    for row in range(n):
        key = keys[row] - low
        for digit in range(digits):
            counts[digit, np.int64(key & mask)] += 1
            key >>= bits
    here = True
    for digit in range(digits):
        count, shift = counts[digit], bits * np.uint64(digit)
        total = 0
        for value in range(np.int64(mask) + 1):
            held = count[value]
            count[value] = total
            total += held
        if here:
            _move(keys, tails, spare_keys, spare_tails, n, low, shift, mask, count)
        else:
            _move(spare_keys, spare_tails, keys, tails, n, low, shift, mask, count)
        here = not here
    if not here:
        for row in range(n):
            keys[row], tails[row] = spare_keys[row], spare_tails[row]


@compiled
def _move(
    keys: Any, tails: Any, to_keys: Any, to_tails: Any, n: Any, low: Any, shift: Any, mask: Any, count: Any
) -> None:
    for row in range(n):
        key = keys[row]
        digit = np.int64(((key - low) >> shift) & mask)
        to = count[digit]
        count[digit] = to + 1
        to_keys[to], to_tails[to] = key, tails[row]


@compiled
def _taken_apart(starts: Any, tails: Any, entity: Any, peer: Any, codes: Any) -> None:
    for number in range(len(starts) - 1):
        for row in range(starts[number], starts[number + 1]):
            entity[row] = number
            codes[row] = np.uint16(tails[row] & _HALF)
            if len(peer):
                peer[row] = np.int32(tails[row] >> _16)
