"""Which candidates a segment takes and in which order, compiled by numba. Extra `histories`.

The first candidates, as many as would fit if every distance of time were a short one; those with a timestamp in order
of time, by buckets; then the last candidate is given up until the rest fits, each time two distances becoming one in a
chain. So the work is in proportion to what is taken.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headrace.arrays import I64, U64
from headrace.compiled import compiled
from headrace.histories.contexts.sample import FULL, NONE, Candidates, Segments

_LOW, _32 = np.uint64((1 << 32) - 1), np.uint64(32)
_0, _1 = np.uint64(0), np.uint64(1)


class Fitted(NamedTuple):
    """What segments take: of the candidates offsets[s] : offsets[s + 1] the first taken[s], timed[s] of them with a
    timestamp, in lengths[s] tokens; int64 [S]. order: uint64 [M], there, the numbers of those with one, by time, then
    of those without, as they came; each counted from the segment's first candidate."""

    order: U64
    timed: I64
    lengths: I64
    taken: I64


def fitted(segments: Segments, found: Candidates, room: int) -> Fitted:
    """The longest prefixes of the candidates that fit. room: tokens of a context."""
    count = len(segments.row)
    made = Fitted(np.empty(len(found.index), np.uint64), *(np.zeros(count, np.int64) for _ in range(3)))
    _fit(
        segments.context, segments.mode, segments.fraction, found.offsets, found.index, found.time, found.code,
        found.family, found.source_family, room, *made,
    )  # fmt: skip
    return made


@compiled
def _fit(
    context: Any, mode: Any, fraction: Any, offsets: Any, index: Any, time: Any, code: Any, family: Any,
    source_family: Any, room: Any, order: Any, timed_of: Any, lengths: Any, taken: Any,
) -> None:  # fmt: skip
    most = 1
    for s in range(len(context)):
        most = max(most, offsets[s + 1] - offsets[s])
    sizes = np.empty(most + 1, np.int64)  # tokens of a candidate without its timestamp
    places = np.empty(most + 1, np.uint64)  # of those with a timestamp: place in the row × 2**32 + number
    by_time = np.empty(most + 1, np.uint64)
    at_random = np.empty(most + 1, np.uint64)  # numbers of those without
    chain = np.empty((3, most + 1), np.int64)
    used, last = 0, -1
    for s in range(len(context)):
        if context[s] != last:
            used, last = 0, context[s]
        mine, limit = slice(offsets[s], offsets[s + 1]), room - used
        count, timed, total = _first(
            mode[s], fraction[s], limit, 18 if source_family[s] == 6 else 6, index[mine], code[mine], family[mine],
            sizes, places, at_random,
        )  # fmt: skip
        if timed:
            _sort(places, timed, chain[0], by_time)
            total += _stamps(by_time, timed, time[mine])
            if total > limit:
                count, total = _shorten(by_time, timed, count, total, limit, sizes, time[mine], chain)
            timed = _keep(by_time, timed, count, order[mine])
        for q in range(count - timed):
            order[offsets[s] + timed + q] = at_random[q]
        used += total
        timed_of[s], lengths[s], taken[s] = timed, total, count


@compiled
def _first(
    mode: Any, fraction: Any, limit: Any, base: Any, index: Any, code: Any, family: Any, sizes: Any, places: Any,
    at_random: Any,
) -> Any:  # fmt: skip
    """How many candidates fit if every timestamp is short, how many of them have one, and the tokens of all else."""
    total, timed, untimed, lost = 0, 0, 0, _0
    for j in range(len(index)):
        now = (np.uint64(j + 1) * fraction + _LOW) >> _32
        has_time = int(mode == FULL or (mode != NONE and now == lost))
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
    return 2 if time[later & _LOW] - time[earlier & _LOW] < 256 else 5


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
        where[by_time[q] & _LOW] = q
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
def _keep(by_time: Any, timed: Any, count: Any, out: Any) -> Any:
    """The numbers by time, but for those given up; how many they are."""
    kept = 0
    for q in range(timed):
        number = by_time[q] & _LOW
        out[kept] = number
        kept += int(number < np.uint64(count))
    return kept
