"""Make tokens from candidates, and training arrays from tokens, compiled by numba. Extra `histories`.

Makes the same tokens as `tokens`, context after context. The first step finds what a segment takes. It counts the first
candidates that would fit if every time distance were short, and sorts those with a timestamp by time, in buckets. Then
it drops the last candidate until the rest fits; each time, two distances in a chain become one. So the work is
proportional to what is taken. The second step writes the tokens, measurement after measurement. Inside a measurement no
branch depends on the field order, which no processor could predict: the start of each field is the sum of the lengths
of the fields before it. Nothing is kept between segments, and the interpreter lock is released.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.arrays import I32
from headrace.compiled import compiled
from headrace.draws import FIELDS, POSITIONS
from headrace.histories.contexts import vocabulary as v
from headrace.histories.contexts.draw_kernels import draw_word
from headrace.histories.contexts.options import ARRAYS, Keys
from headrace.histories.contexts.sample import FULL, NONE, Candidates, Segments
from headrace.histories.contexts.tokens import FIELD_ORDERS, Tokens
from headrace.histories.contexts.vocabulary import Vocabulary

_0, _1, _2, _3, _4, _5, _8, _9 = (np.uint64(each) for each in (0, 1, 2, 3, 4, 5, 8, 9))
_16, _17, _24, _32 = (np.uint64(each) for each in (16, 17, 24, 32))
_LOW, _ONES, _BYTE = np.uint64((1 << 32) - 1), np.uint64(0x01010101), np.uint64(255)
# Four lengths are the bytes of a word; this masks, for each order and field, the bytes of the fields before it.
_BEFORE = np.array(
    [
        [sum(0xFF << (8 * each) for each in order[: order.index(f)]) for f in range(4)]
        for order in FIELD_ORDERS.tolist()
    ],
    np.uint64,
)


def tokens_in_numba(segments: Segments, found: Candidates, contexts: int, room: int) -> Tokens:
    """Compute `tokens_in_python`, compiled."""
    tokens = np.zeros((contexts, room), np.int32)
    order, timed, lengths, taken = _fit(
        segments.context, segments.mode, segments.fraction, found.offsets, found.index, found.time, found.result_sizes,
        found.family, found.source_family, room,
    )  # fmt: skip
    _build(
        segments.context, segments.key, found.offsets, order, timed, lengths, taken, found.time, found.code,
        found.family, found.address, found.source_family, found.source, found.result_sizes, found.results, tokens,
    )  # fmt: skip
    return Tokens(tokens, lengths, taken)


def batch_in_numba(tokens: Tokens, segments: Segments, vocab: Vocabulary, keys: Keys) -> dict[str, I32]:
    """Compute `batch_of`, compiled.

    The arrays lie in one block. Several separate arrays would be returned to the system after every batch, and page
    faults on each of their pages in the next batch would cost more than filling them.
    """
    contexts, room = tokens.tokens_BT.shape
    block = np.empty((len(ARRAYS[keys]), contexts, room - 1), np.int32)
    _batch(tokens.tokens_BT, segments.context, tokens.lengths, np.int32(vocab == "compat"), block)
    return dict(zip(ARRAYS[keys], block, strict=True))


@compiled
def _fit(
    context: Any, mode: Any, fraction: Any, offsets: Any, index: Any, time: Any, results: Any, family: Any,
    source_family: Any, room: Any,
) -> Any:  # fmt: skip
    """Find the longest prefixes of the candidates that fit; return (order, timed, lengths, taken).

    Segment s takes the first taken[s] of offsets[s] : offsets[s + 1]; timed[s] of them have a timestamp; they make
    lengths[s] tokens; int64 [S].
    order: uint64 [M], per segment the numbers of the candidates with a timestamp, by time, then of those without, in
    their given order; counted from the segment's first candidate.
    """
    order = np.empty(len(index), np.uint64)
    timed_of, lengths, taken = (
        np.zeros(len(context), np.int64),
        np.zeros(len(context), np.int64),
        np.zeros(len(context), np.int64),
    )
    most = 1
    for s in range(len(context)):
        most = max(most, offsets[s + 1] - offsets[s])
    sizes = np.empty(most + 1, np.int64)  # tokens of a candidate without its timestamp
    places = np.empty(most + 1, np.uint64)  # of candidates with a timestamp: index in the row × 2**32 + number
    by_time = np.empty(most + 1, np.uint64)
    at_random = np.empty(most + 1, np.uint64)  # numbers of the candidates without
    chain = np.empty((3, most + 1), np.int64)
    used, last = 0, -1
    for s in range(len(context)):
        if context[s] != last:
            used, last = 0, context[s]
        mine, limit = slice(offsets[s], offsets[s + 1]), room - used
        count, timed, total = _first(
            mode[s], fraction[s], limit, 18 if source_family[s] == 6 else 6, index[mine], results[mine], family[mine],
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
    return order, timed_of, lengths, taken


@compiled
def _first(
    mode: Any, fraction: Any, limit: Any, base: Any, index: Any, results: Any, family: Any, sizes: Any, places: Any,
    at_random: Any,
) -> Any:  # fmt: skip
    """Count the candidates that fit if every timestamp is short, those with a timestamp, and the tokens of all else."""
    total, timed, untimed, lost = 0, 0, 0, _0
    for j in range(len(index)):
        now = (np.uint64(j + 1) * fraction + _LOW) >> _32
        has_time = int(mode == FULL or (mode != NONE and now == lost))
        lost = now
        size = base + results[j] + (0 if family[j] == 0 else 17 if family[j] == 6 else 5)
        stamps = timed + has_time
        if total + size + 2 * stamps + (7 if stamps else 0) > limit:
            return j, timed, total
        total += size
        sizes[j] = size
        places[timed] = (np.uint64(index[j]) << _32) | np.uint64(j)  # write to both lists; only one count advances
        at_random[untimed] = np.uint64(j)
        timed += has_time
        untimed += 1 - has_time
    return len(index), timed, total


@compiled
def _sort(places: Any, count: Any, ends: Any, out: Any) -> None:
    """Sort indices, ascending. They are uniform, so `count` buckets hold about one each."""
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
    """Drop the last candidates until the rest fits; return how many are left, and their tokens."""
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
    """Write the numbers by time, without the dropped candidates; return how many there are."""
    kept = 0
    for q in range(timed):
        number = by_time[q] & _LOW
        out[kept] = number
        kept += int(number < np.uint64(count))
    return kept


@compiled
def _build(
    context: Any, key: Any, offsets: Any, order: Any, timed: Any, lengths: Any, taken: Any, times: Any, codes: Any,
    family: Any, address: Any, source_family: Any, source: Any, result_sizes: Any, results: Any, tokens: Any,
) -> None:  # fmt: skip
    used, last = 0, -1
    for s in range(len(context)):
        if context[s] != last:
            used, last = 0, context[s]
        out, numbers, first = tokens[last, used : used + lengths[s]], order[offsets[s] : offsets[s + 1]], offsets[s]
        used += lengths[s]
        at, with_time, without, previous = _0, 0, 0, np.int64(-1)
        untimed = taken[s] - timed[s]
        for place in range(taken[s]):
            has_time = untimed == 0
            if timed[s] and untimed:  # else there is nothing to draw
                chance = ((draw_word(key[s], POSITIONS + place) >> _32) * np.uint64(taken[s] - place)) >> _32
                has_time = np.int64(chance) >= untimed - without
            m = first + np.int64(numbers[with_time if has_time else timed[s] + without])
            with_time += has_time
            without += not has_time

            stamp, value = _0, times[m]
            if has_time:
                stamp = _9
                if previous >= 0:
                    value = times[m] - previous
                    stamp = _2 if value < 256 else _5
                previous = times[m]
            code = codes[m]
            result = np.uint64(result_sizes[m])
            peer = _0 if family[m] == 0 else _17 if family[m] == 6 else _5
            mine = _17 if source_family[s] == 6 else _5
            sizes = mine | peer << _8 | result << _16 | stamp << _24
            fields = ((draw_word(key[s], FIELDS + place) >> _32) * _24) >> _32
            out[at] = v.START
            at += _1
            _address(out, at + _sum(sizes & _BEFORE[fields, 0]), v.SOURCE_V4, source_family[s], source[s])
            if peer:
                _address(out, at + _sum(sizes & _BEFORE[fields, 1]), v.DESTINATION_V4, family[m], address[m])
            to = at + _sum(sizes & _BEFORE[fields, 2])
            if results.shape[1]:
                for q in range(result):
                    out[to + np.uint64(q)] = results[m, q]
            elif code == 0:
                out[to] = v.FAILED
            else:
                out[to] = v.ROUND_TRIP
                out[to + _1], out[to + _2] = v.BYTE + (code >> 8), v.BYTE + (code & 255)
            if has_time:
                _time(out, at + _sum(sizes & _BEFORE[fields, 3]), stamp, value)
            at += mine + peer + result + stamp


@compiled
def _sum(lengths: Any) -> Any:
    """Sum the four bytes of a word; the sum is below 256."""
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
def _time(out: Any, at: Any, size: Any, value: Any) -> None:
    """Write a role and the bytes of a time, big-endian: 8 for an absolute time, 1 or 4 for a distance."""
    if size == _2:
        out[at] = v.TIME_DELTA
        out[at + _1] = v.BYTE + value
        return
    out[at] = v.TIME_LONG_DELTA if size == _5 else v.TIME_ABSOLUTE
    for q in range(_1, size):
        out[at + q] = v.BYTE + ((value >> np.int64(_8 * (size - _1 - q))) & 255)


@compiled
def _batch(tokens: Any, context: Any, lengths: Any, lower: Any, block: Any) -> None:
    """Fill int32 [B, L] arrays, those of `ARRAYS` in their order."""
    arrays, contexts, width = block.shape
    all_six = arrays == 6
    inputs, segment = block[0], block[2]
    position, targets = (block[1], block[3]) if all_six else (block[3], block[1])
    target_position, target_segment = block[4 % arrays], block[5 % arrays]  # used only if there are six
    s = 0
    for b in range(contexts):
        _copy(tokens[b, :width], lower, inputs[b])
        used, number = 0, 0
        while s < len(context) and context[s] == b:
            number += 1
            end = min(used + lengths[s], width)
            last = max(used, min(used + lengths[s] - 1, width))  # the last token of a segment has no target
            _copy(tokens[b, used + 1 : last + 1], lower, targets[b, used:last])
            targets[b, last:end] = 0
            segment[b, used:end] = number
            _count(position[b, used:end])
            if all_six:
                target_segment[b, used:last], target_segment[b, last:end] = number, 0
                _count(target_position[b, used:end])
            used = end
            s += 1
        targets[b, used:], segment[b, used:], position[b, used:] = 0, 0, 0
        if all_six:
            target_segment[b, used:], target_position[b, used:] = 0, 0


@compiled
def _copy(tokens: Any, lower: Any, out: Any) -> None:
    for t in range(len(tokens)):
        out[t] = max(tokens[t] - lower, 0)


@compiled
def _count(out: Any) -> None:
    for t in range(len(out)):
        out[t] = t
