"""Make tokens from candidates in plain Python. This defines the tokens, and serves for a few contexts or without numba.

`token_kernels` makes the same tokens a hundred times faster.

A segment takes the longest prefix of its candidates whose tokens fit into the rest of its context. Prefixes of a random
order are random subsets. Another candidate never reduces the number of tokens (a gap cut in two saves at most one
token, a measurement has seven), so candidates are taken until one does not fit. The candidates taken are laid out by
mode:

    full      by time, every one with its timestamp: absolute, then the distance to the one before
    partial   ⌈fraction × taken⌉ of them lose their timestamp and stand in random order, at random positions between
              the others, which stay in order of time; distances skip measurements without a timestamp
    none      in random order, without timestamps

Each measurement draws the order of its fields: source, destination, result and timestamp.

`batch_of` turns tokens into the arrays of training loops. L + 1 tokens are drawn for a context of L, so that the last
position has a target too. Inputs are the first L; the target of a position is the next token *in the same segment*. The
last token of a segment has no target: there the target is pad and `targets_segmentation` is 0, so mask the loss there.
Segments are numbered 1, 2, … in a context and 0 is padding; positions count from 0 in each segment. Nothing is masked
by the value of a token.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from itertools import pairwise, permutations

import numpy as np

from headrace.arrays import I32, I64, U8
from headrace.draws import FIELDS, POSITIONS, below, draw
from headrace.histories.contexts import vocabulary as v
from headrace.histories.contexts.options import ARRAYS, Keys
from headrace.histories.contexts.sample import ADDRESS_BYTES, FULL, PARTIAL, Candidates, Segments
from headrace.histories.contexts.vocabulary import Vocabulary, in_vocabulary

FIELD_ORDERS = np.array(list(permutations(range(4))), np.int64)  # source, destination, result, time


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """Tokens of contexts, and how much each segment takes.

    tokens_BT: int32 [B, T], standard ids, 0 behind the last measurement.
    lengths: int64 [S], tokens of each segment.
    taken: int64 [S], measurements of each segment, a prefix of its candidates.
    """

    tokens_BT: I32  # noqa: N815 - B contexts, T positions
    lengths: I64
    taken: I64


def tokens_in_python(segments: Segments, found: Candidates, contexts: int, room: int) -> Tokens:
    """Write the contexts of the segments. contexts: B; room: T, at least as long as any measurement."""
    tokens = np.zeros((contexts, room), np.int32)
    lengths, taken = np.zeros(len(segments.row), np.int64), np.zeros(len(segments.row), np.int64)
    used = [0] * contexts
    for number, context in enumerate(segments.context.tolist()):
        begin = used[context]
        made, taken[number] = _segment(segments, found, number, room - begin)
        lengths[number] = len(made)
        used[context] += len(made)
        tokens[context, begin : used[context]] = made
    return Tokens(tokens, lengths, taken)


def _segment(segments: Segments, found: Candidates, number: int, room: int) -> tuple[list[int], int]:
    """Return the tokens of a segment, and the number of candidates in them."""
    mine = slice(found.offsets[number], found.offsets[number + 1])
    place, time = found.index[mine].tolist(), found.time[mine].tolist()
    source = _address(v.SOURCE_V4, int(found.source_family[number]), found.source[number])
    peers = zip(found.family[mine].tolist(), found.address[mine], strict=True)
    if found.results.shape[1]:
        sizes = found.result_sizes[mine].tolist()
        results = [row[:size] for row, size in zip(found.results[mine].tolist(), sizes, strict=True)]
    else:
        results = [_value(v.ROUND_TRIP, code, 2) if code else [v.FAILED] for code in found.code[mine].tolist()]
    fields = [
        (source, _address(v.DESTINATION_V4, family, address), result)
        for (family, address), result in zip(peers, results, strict=True)
    ]
    mode, fraction = int(segments.mode[number]), int(segments.fraction[number])

    by_time: list[tuple[int, int]] = []  # (index in the row, number) of the candidates taken with a timestamp
    at_random: list[int] = []  # the numbers of the candidates without
    for candidate, three in enumerate(fields):
        room -= 1 + sum(map(len, three))
        at = bisect(by_time, (place[candidate], candidate))
        if mode == FULL or (mode == PARTIAL and not loses_time(fraction, candidate)):
            before, after = ([time[each] for _, each in some] for some in (by_time[:at][-1:], by_time[at : at + 1]))
            room += _stamps([*before, *after]) - _stamps([*before, time[candidate], *after])
            if room < 0:
                break
            by_time.insert(at, (place[candidate], candidate))
        elif room < 0:
            break
        else:
            at_random.append(candidate)
    taken = len(by_time) + len(at_random)

    places = np.arange(taken)
    orders = FIELD_ORDERS[below(draw(segments.key[number : number + 1], FIELDS + places), 24)].tolist()
    chances = below(draw(segments.key[number : number + 1], POSITIONS + places), taken - places).tolist()
    without, with_time = iter(at_random), (each for _, each in by_time)
    left, previous, tokens = len(at_random), -1, list[int]()
    for order, chance in zip(orders, chances, strict=True):  # selection sampling of the positions without a timestamp
        stamp: list[int] = []
        if chance < left:
            left -= 1
            candidate = next(without)
        else:
            candidate = next(with_time)
            stamp, previous = _stamp(previous, time[candidate]), time[candidate]
        four = (*fields[candidate], stamp)
        tokens.append(v.START)
        for field in order:
            tokens += four[field]
    return tokens, taken


def loses_time(fraction: int, place: int) -> bool:
    """Check if an index of a random order loses its timestamp; of any first n indices, ⌈fraction × n⌉ do."""
    ceiling = (1 << 32) - 1
    return ((place + 1) * fraction + ceiling) >> 32 > (place * fraction + ceiling) >> 32


def _stamps(times: list[int]) -> int:
    """Count the tokens of the timestamps of neighbours."""
    return sum(len(_stamp(before, time)) for before, time in pairwise([-1, *times]))


def _stamp(previous: int, time: int) -> list[int]:
    """Return the tokens of a timestamp that follows another; previous: −1 for none."""
    if previous < 0:
        return _value(v.TIME_ABSOLUTE, time, 8)
    delta = time - previous
    return _value(v.TIME_DELTA, delta, 1) if delta < 256 else _value(v.TIME_LONG_DELTA, delta, 4)


def _address(role: int, family: int, address: U8) -> list[int]:
    """Return the tokens of an address. role: the role for IPv4; the next id is that for IPv6."""
    return [role + (family == 6), *(v.BYTE + each for each in address[: ADDRESS_BYTES[family]].tolist())] * (family > 0)


def _value(role: int, value: int, size: int) -> list[int]:
    return [role, *(v.BYTE + each for each in value.to_bytes(size, "big"))]


def batch_of(tokens: Tokens, segments: Segments, vocab: Vocabulary, keys: Keys) -> dict[str, I32]:
    """Return int32 [B, L] arrays: the six of MaxText, or "inputs", "targets", "segmentation", "positions".

    targets_position is that of the inputs. Among the four, segmentation is 1, 2, … at tokens and 0 in padding. The four
    have no mask of targets. With the standard vocabulary a position has a target if its target is not 0. With "compat",
    0 is a token too: a position has a target if the next position is in the same segment, except for the last position.
    """
    segment_BT, position_BT = numbered(tokens, segments)  # noqa: N806 - B contexts, T positions
    drawn = in_vocabulary(tokens.tokens_BT, vocab)
    inputs, segment, position = drawn[:, :-1], segment_BT[:, :-1], position_BT[:, :-1]
    has_target = (segment > 0) & (segment_BT[:, 1:] == segment)
    targets = np.where(has_target, drawn[:, 1:], np.int32(0))
    arrays: tuple[I32, ...] = (inputs, targets, segment, position)
    if keys == "maxtext":
        arrays = (inputs, position, segment, targets, position, np.where(has_target, segment, np.int32(0)))
    return {name: array.copy() for name, array in zip(ARRAYS[keys], arrays, strict=True)}


def numbered(tokens: Tokens, segments: Segments) -> tuple[I32, I32]:
    """Return the segment number (0 in padding) of every token and its position in the segment; int32 [B, T]."""
    contexts, room = tokens.tokens_BT.shape
    begin = np.cumsum(tokens.lengths) - tokens.lengths  # offsets in the tokens of all contexts, without padding
    first = np.searchsorted(segments.context, segments.context)
    number = np.arange(len(first)) - first + 1
    used = np.bincount(segments.context, tokens.lengths, contexts).astype(np.int64)
    real = np.arange(room)[None, :] < used[:, None]
    segment, position = np.zeros((contexts, room), np.int32), np.zeros((contexts, room), np.int32)
    segment[real] = np.repeat(number, tokens.lengths)
    position[real] = np.arange(int(used.sum())) - np.repeat(begin, tokens.lengths)
    return segment, position
