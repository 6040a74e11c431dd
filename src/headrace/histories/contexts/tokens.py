"""Make tokens from candidates, and training arrays from tokens.

Compiled by numba, extra `histories`.

A segment takes the longest prefix of its candidates whose tokens fit into what is free in its
context. Prefixes of a random order are random subsets. Another candidate never reduces the number
of tokens (a gap cut in two saves at most one token, a measurement has seven), so candidates are
taken until one does not fit. The candidates taken are laid out by mode:

    full      by time, every one with its timestamp: absolute, then the distance to the one before
    partial   ⌈fraction × taken⌉ of them lose their timestamp and stand in random order, at random
              positions between the others, which stay in order of time; distances skip measurements
              without a timestamp
    none      in random order, without timestamps

Each measurement draws the order of its fields: entity, peer, result and timestamp.

The first step finds what a segment takes. It counts the first candidates that would fit if every
time distance were short, and sorts those with a timestamp by time, in buckets. Then it drops the
last candidate until the others fit; each time, two distances in a chain become one. So the work is
proportional to what is taken. The second step writes the tokens, measurement after measurement.
Inside a measurement no branch depends on the field order, which no processor could predict: the
start of each field is the sum of the lengths of the fields before it. Nothing stays in memory
between segments, and the interpreter lock is released.

`to_arrays` turns tokens into the arrays of training loops. L + 1 tokens are drawn for a context of
L, so that the last position has a target too. Inputs are the first L; the target of a position is
the next token *in the same segment*. The last token of a segment has no target: there the target is
pad and `targets_segmentation` is 0, so mask the loss there. Segments are numbered 1, 2, … in a
context and 0 is padding; positions count from 0 in each segment. Nothing is masked by the value of
a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np

from headrace.arrays import I32, I64
from headrace.compiled import compiled
from headrace.draws import FIELDS, POSITIONS
from headrace.histories.contexts import vocabulary as v
from headrace.histories.contexts.options import ARRAYS, Keys
from headrace.histories.contexts.sample import FULL, NONE, Candidates, ContextSegments, draw_word
from headrace.histories.contexts.tokeniser import PLAIN, Layout

FIELD_ORDERS = tuple(permutations(range(4)))  # entity, peer, result, time
_0, _1, _2, _4, _5, _8, _9 = (np.uint64(number) for number in (0, 1, 2, 4, 5, 8, 9))
_16, _17, _24, _32 = (np.uint64(number) for number in (16, 17, 24, 32))
_LOW = np.uint64((1 << 32) - 1)
_ONES = np.uint64(0x01010101)
_BYTE = np.uint64(255)


def _bytes_before(order: tuple[int, ...], field: int) -> int:
    """Return a mask of the fields before one, where field f is byte f of a word."""
    return sum(0xFF << (8 * earlier) for earlier in order[: order.index(field)])


_BEFORE = np.array(
    [[_bytes_before(order, field) for field in range(4)] for order in FIELD_ORDERS], np.uint64
)


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Tokens of contexts, and how much each segment takes.

    tokens_BT: int32 [B, T], 0 behind the last measurement.
    lengths: int64 [S], tokens of each segment.
    measurements: int64 [S], measurements of each segment, a prefix of its candidates.
    """

    tokens_BT: I32  # noqa: N815 - B contexts, T positions
    lengths: I64
    measurements: I64


def make_tokens(
    segments: ContextSegments,
    candidates: Candidates,
    contexts: int,
    room: int,
    layout: Layout = PLAIN,
) -> Tokens:
    """Write the contexts of the segments.

    contexts: B; room: T, at least as long as any measurement.
    """
    tokens = np.zeros((contexts, room), np.int32)
    entity_sizes = layout.entity_sizes.astype(np.uint64)
    peer_sizes = layout.peer_sizes.astype(np.uint64)
    order, timed, lengths, counts = _fit(
        segments.context,
        segments.mode,
        segments.fraction,
        candidates.offsets,
        candidates.index,
        candidates.time,
        candidates.result_sizes,
        candidates.family,
        candidates.source_family,
        layout.entity_sizes,
        layout.peer_sizes,
        room,
    )
    _build(
        segments.context,
        segments.key,
        candidates.offsets,
        order,
        timed,
        lengths,
        counts,
        candidates.time,
        candidates.code,
        candidates.family,
        candidates.address,
        candidates.source_family,
        candidates.source,
        candidates.result_sizes,
        candidates.results,
        entity_sizes,
        peer_sizes,
        tokens,
    )
    return Tokens(tokens, lengths, counts)


def to_arrays(tokens: Tokens, segments: ContextSegments, keys: Keys) -> dict[str, I32]:
    """Return int32 [B, L] arrays: the six of MaxText, or "inputs", "targets", "segmentation",
    "positions".

    targets_position is that of the inputs. Among the four, segmentation is 1, 2, … at tokens and 0
    in padding, and a position has a target if its target is not 0.
    The arrays lie in one block. Several separate arrays would be returned to the system after every
    batch, and page faults on each of their pages in the next batch would cost more than filling
    them.
    """
    contexts, room = tokens.tokens_BT.shape
    block = np.empty((len(ARRAYS[keys]), contexts, room - 1), np.int32)
    _fill_arrays(tokens.tokens_BT, segments.context, tokens.lengths, block)
    return dict(zip(ARRAYS[keys], block, strict=True))


@compiled
def _fit(  # noqa: PLR0913, PLR0914, PLR0917 - one loop of a numba kernel
    context: Any,
    mode: Any,
    fraction: Any,
    offsets: Any,
    index: Any,
    time: Any,
    results: Any,
    family: Any,
    source_family: Any,
    entity_sizes: Any,
    peer_sizes: Any,
    room: Any,
) -> Any:
    """Find the longest prefixes of the candidates that fit; return (order, timed, lengths, counts).

    Segment s takes the first counts[s] of offsets[s] : offsets[s + 1]; timed[s] of them have a
    timestamp; they make lengths[s] tokens; int64 [S].
    order: uint64 [M], per segment the numbers of the candidates with a timestamp, by time, then of
    those without, in their order; counted from the segment's first candidate.
    """
    order = np.empty(len(index), np.uint64)
    timed_of = np.zeros(len(context), np.int64)
    lengths = np.zeros(len(context), np.int64)
    counts = np.zeros(len(context), np.int64)
    most = 1
    for s in range(len(context)):
        most = max(most, offsets[s + 1] - offsets[s])
    sizes = np.empty(most + 1, np.int64)  # tokens of a candidate without its timestamp
    # of candidates with a timestamp: index in the row × 2**32 + number
    positions = np.empty(most + 1, np.uint64)
    by_time = np.empty(most + 1, np.uint64)
    at_random = np.empty(most + 1, np.uint64)  # numbers of the candidates without
    chain = np.empty((3, most + 1), np.int64)
    used = 0
    last = -1
    for s in range(len(context)):
        if context[s] != last:
            used = 0
            last = context[s]
        limit = room - used
        part = slice(offsets[s], offsets[s + 1])
        count, timed, total = _first(
            mode[s],
            fraction[s],
            limit,
            1 + entity_sizes[source_family[s]],
            index[part],
            results[part],
            family[part],
            peer_sizes,
            sizes,
            positions,
            at_random,
        )
        if timed:
            _sort(positions, timed, chain[0], by_time)
            total += _stamps(by_time, timed, time[part])
            if total > limit:
                count, total = _shorten(
                    by_time, timed, count, total, limit, sizes, time[part], chain
                )
            timed = _keep(by_time, timed, count, order[part])
        for q in range(count - timed):
            order[offsets[s] + timed + q] = at_random[q]
        used += total
        timed_of[s] = timed
        lengths[s] = total
        counts[s] = count
    return order, timed_of, lengths, counts


@compiled
def _first(  # noqa: PLR0913, PLR0917 - arrays of a numba kernel
    mode: Any,
    fraction: Any,
    limit: Any,
    base: Any,
    index: Any,
    results: Any,
    family: Any,
    peer_sizes: Any,
    sizes: Any,
    positions: Any,
    at_random: Any,
) -> Any:
    """Count the candidates that fit if every timestamp is short, those with a timestamp, and the
    tokens of all but timestamps.
    """
    total = timed = untimed = 0
    lost = _0
    for j in range(len(index)):
        now = (np.uint64(j + 1) * fraction + _LOW) >> _32
        has_time = int(mode == FULL or (mode != NONE and now == lost))
        lost = now
        size = base + results[j] + peer_sizes[family[j]]
        stamps = timed + has_time
        if total + size + 2 * stamps + (7 if stamps else 0) > limit:
            return j, timed, total
        total += size
        sizes[j] = size
        # Write to both lists; only one count advances.
        positions[timed] = (np.uint64(index[j]) << _32) | np.uint64(j)
        at_random[untimed] = np.uint64(j)
        timed += has_time
        untimed += 1 - has_time
    return len(index), timed, total


@compiled
def _sort(positions: Any, count: Any, ends: Any, out: Any) -> None:
    """Sort indices, ascending. They are uniform, so `count` buckets hold about one each."""
    low = high = positions[0]
    for q in range(count):
        low = min(low, positions[q])
        high = max(high, positions[q])
    low >>= _32
    scale = (np.uint64(count) << _32) // ((high >> _32) - low + np.uint64(1))
    ends[: count + 1] = 0
    for q in range(count):
        ends[(((positions[q] >> _32) - low) * scale >> _32) + _1] += 1
    for q in range(count):
        ends[q + 1] += ends[q]
    for q in range(count):
        bucket = ((positions[q] >> _32) - low) * scale >> _32
        out[ends[bucket]] = positions[q]
        ends[bucket] += 1
    for q in range(1, count):
        value = out[q]
        p = q
        while p > 0 and out[p - 1] > value:
            out[p] = out[p - 1]
            p -= 1
        out[p] = value


@compiled
def _stamp(earlier: Any, later: Any, time: Any) -> Any:
    if time[later & _LOW] - time[earlier & _LOW] < 256:
        return 2
    return 5


@compiled
def _stamps(by_time: Any, timed: Any, time: Any) -> Any:
    total = 9
    for q in range(1, timed):
        total += _stamp(by_time[q - 1], by_time[q], time)
    return total


@compiled
def _shorten(  # noqa: PLR0913, PLR0917 - arrays of a numba kernel
    by_time: Any, timed: Any, count: Any, total: Any, limit: Any, sizes: Any, time: Any, chain: Any
) -> Any:
    """Drop the last candidates until the rest fits; return how many are left, and their tokens."""
    before = chain[0]
    after = chain[1]
    where = chain[2]
    where[:count] = -1
    for q in range(timed):
        before[q] = q - 1
        after[q] = q + 1
        where[by_time[q] & _LOW] = q
    while total > limit:
        count -= 1
        total -= sizes[count]
        q = where[count]
        if q < 0:
            continue
        p = before[q]
        r = after[q]
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
    count_stored = 0
    for q in range(timed):
        number = by_time[q] & _LOW
        out[count_stored] = number
        count_stored += int(number < np.uint64(count))
    return count_stored


@compiled
def _build(  # noqa: C901, PLR0913, PLR0914, PLR0915, PLR0917 - one loop of a numba kernel
    context: Any,
    key: Any,
    offsets: Any,
    order: Any,
    timed: Any,
    lengths: Any,
    counts: Any,
    times: Any,
    codes: Any,
    family: Any,
    address: Any,
    source_family: Any,
    source: Any,
    result_sizes: Any,
    results: Any,
    entity_sizes: Any,
    peer_sizes: Any,
    tokens: Any,
) -> None:
    used = 0
    last = -1
    for s in range(len(context)):
        if context[s] != last:
            used = 0
            last = context[s]
        out = tokens[last, used : used + lengths[s]]
        first = offsets[s]
        numbers = order[first : offsets[s + 1]]
        used += lengths[s]
        at = _0
        with_time = without = 0
        previous = np.int64(0)
        untimed = counts[s] - timed[s]
        for position in range(counts[s]):
            has_time = untimed == 0
            if timed[s] and untimed:  # else there is nothing to draw
                chance = (
                    (draw_word(key[s], POSITIONS + position) >> _32)
                    * np.uint64(counts[s] - position)
                ) >> _32
                has_time = np.int64(chance) >= untimed - without
            m = first + np.int64(numbers[with_time if has_time else timed[s] + without])
            with_time += has_time
            without += not has_time

            stamp = _0
            value = times[m]
            if has_time:
                stamp = _9
                if with_time > 1:  # not the first
                    value = times[m] - previous
                    stamp = _2 if value < 256 else _5
                previous = times[m]
            code = codes[m]
            result = np.uint64(result_sizes[m])
            peer = peer_sizes[family[m]]
            entity = entity_sizes[source_family[s]]
            sizes = entity | peer << _8 | result << _16 | stamp << _24
            fields = ((draw_word(key[s], FIELDS + position) >> _32) * _24) >> _32
            out[at] = v.START
            at += _1
            _address(out, at + _sum(sizes & _BEFORE[fields, 0]), v.ENTITY, entity, source, s)
            _address(out, at + _sum(sizes & _BEFORE[fields, 1]), v.PEER, peer, address, m)
            to = at + _sum(sizes & _BEFORE[fields, 2])
            if results.shape[1]:
                for q in range(result):
                    out[to + np.uint64(q)] = results[m, q]
            elif not result:
                pass
            elif code == 0:
                out[to] = v.FAILED
            else:
                out[to] = v.LATENCY
                out[to + _1] = v.BYTE + (code >> 8)
                out[to + _2] = v.BYTE + (code & 255)
            if has_time:
                _time(out, at + _sum(sizes & _BEFORE[fields, 3]), stamp, value)
            at += entity + peer + result + stamp


@compiled
def _sum(lengths: Any) -> Any:
    """Sum the four bytes of a word; the sum is below 256."""
    return (lengths * _ONES >> _24) & _BYTE


@compiled
def _address(out: Any, at: Any, role: Any, size: Any, addresses: Any, row: Any) -> None:
    """Write an address of 16 bytes, or the last bytes of one of 4; nothing if size is 0."""
    if size == _5:
        out[at] = role
        for q in range(_4):
            out[at + _1 + q] = v.BYTE + np.int32(addresses[row, q])
    elif size == _17:
        out[at] = role + 1
        for q in range(_16):
            out[at + _1 + q] = v.BYTE + np.int32(addresses[row, q])
    elif size:
        out[at] = role
        for q in range(_1, size):
            out[at + q] = v.BYTE + np.int32(addresses[row, _4 + q - size])


@compiled
def _time(out: Any, at: Any, size: Any, value: Any) -> None:
    """Write a role and the bytes of a time, big-endian: 8 for an absolute time, 1 or 4 for a
    distance.
    """
    if size == _2:
        out[at] = v.TIME_DELTA
        out[at + _1] = v.BYTE + value
        return
    if size == _5:
        out[at] = v.TIME_LONG_DELTA
    else:
        out[at] = v.TIME_ABSOLUTE
    for q in range(_1, size):
        out[at + q] = v.BYTE + ((value >> np.int64(_8 * (size - _1 - q))) & 255)


@compiled
def _fill_arrays(tokens: Any, context: Any, lengths: Any, block: Any) -> None:
    """Fill int32 [B, L] arrays, those of `ARRAYS` in their order."""
    arrays, contexts, width = block.shape
    all_six = arrays == 6
    inputs = block[0]
    segment = block[2]
    if all_six:
        position = block[1]
        targets = block[3]
    else:
        position = block[3]
        targets = block[1]
    target_position = block[4 % arrays]  # used only if there are six
    target_segment = block[5 % arrays]
    s = 0
    for b in range(contexts):
        inputs[b] = tokens[b, :width]
        used = number = 0
        while s < len(context) and context[s] == b:
            number += 1
            end = min(used + lengths[s], width)
            # the last token of a segment has no target
            last = max(used, min(used + lengths[s] - 1, width))
            targets[b, used:last] = tokens[b, used + 1 : last + 1]
            targets[b, last:end] = 0
            segment[b, used:end] = number
            _count(position[b, used:end])
            if all_six:
                target_segment[b, used:last] = number
                target_segment[b, last:end] = 0
                _count(target_position[b, used:end])
            used = end
            s += 1
        targets[b, used:] = 0
        segment[b, used:] = 0
        position[b, used:] = 0
        if all_six:
            target_segment[b, used:] = 0
            target_position[b, used:] = 0


@compiled
def _count(out: Any) -> None:
    for t in range(len(out)):
        out[t] = t
