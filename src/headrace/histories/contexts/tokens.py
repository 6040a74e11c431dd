"""Candidates into tokens, segment by segment in plain Python: what tokens are, for a few contexts, or without numba.

`token_kernels` makes the same tokens a hundred times as fast.

A segment takes the longest prefix of its candidates whose tokens fit into what is left of its context. Prefixes of a
random order are random subsets, and one candidate more never makes fewer tokens (a gap cut in two saves at most one
token, a measurement has seven), so candidates are taken until one does not fit. Those taken are laid out by mode:

    full      by time, every one with its timestamp: absolute, then the distance to the one before
    partial   ⌈fraction × taken⌉ of them lose their timestamp and stand in random order, at random places between the
              others, which stay in order of time; their distances skip what has no timestamp
    none      in random order, without timestamps

Inside a measurement source, destination, result and timestamp stand in an order of its own.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import Literal

import numpy as np

from headrace.arrays import I32, I64, U8
from headrace.draws import FIELDS, POSITIONS, below, draw
from headrace.histories.contexts import vocabulary as v
from headrace.histories.contexts.sample import ADDRESS_BYTES, FULL, PARTIAL, Candidates, Segments

Kernel = Literal["auto", "numba", "numpy"]

FIELD_ORDERS = np.array(list(permutations(range(4))), np.int64)  # source, destination, result, time


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """tokens_BT: int32 [B, T], standard ids, 0 behind the last measurement; what each segment takes of it:
    lengths: int64 [S], in tokens; taken: int64 [S], in measurements, a prefix of its candidates."""

    tokens_BT: I32  # noqa: N815 - B contexts, T places
    lengths: I64
    taken: I64


def tokens_in_python(segments: Segments, found: Candidates, contexts: int, room: int) -> Tokens:
    """The contexts of the segments. contexts: B; room: T, at least as long as any measurement."""
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
    """The tokens of a segment, and how many of its candidates they are."""
    mine = slice(found.offsets[number], found.offsets[number + 1])
    place, time = found.index[mine].tolist(), found.time[mine].tolist()
    source = _address(v.SOURCE_V4, int(found.source_family[number]), found.source[number])
    peers = zip(found.family[mine].tolist(), found.address[mine], strict=True)
    fields = [
        (source, _address(v.DESTINATION_V4, family, address), _value(v.ROUND_TRIP, code, 2) if code else [v.FAILED])
        for (family, address), code in zip(peers, found.code[mine].tolist(), strict=True)
    ]
    mode, fraction = int(segments.mode[number]), int(segments.fraction[number])

    by_time: list[tuple[int, int]] = []  # place in the row, and number, of the candidates taken with a timestamp
    at_random: list[int] = []  # the numbers of those without
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
    for order, chance in zip(orders, chances, strict=True):  # selection sampling of the places without a timestamp
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
    """Tell if a place of a random order loses its timestamp, such that of any first n places ⌈fraction × n⌉ do."""
    ceiling = (1 << 32) - 1
    return ((place + 1) * fraction + ceiling) >> 32 > (place * fraction + ceiling) >> 32


def _stamps(times: list[int]) -> int:
    """How many tokens the timestamps of neighbours take."""
    return sum(len(_stamp(before, time)) for before, time in pairwise([-1, *times]))


def _stamp(previous: int, time: int) -> list[int]:
    """A timestamp behind another; previous: −1 for none."""
    if previous < 0:
        return _value(v.TIME_ABSOLUTE, time, 8)
    delta = time - previous
    return _value(v.TIME_DELTA, delta, 1) if delta < 256 else _value(v.TIME_LONG_DELTA, delta, 4)


def _address(role: int, family: int, address: U8) -> list[int]:
    """role: that of IPv4; the one of IPv6 follows it."""
    return [role + (family == 6), *(v.BYTE + each for each in address[: ADDRESS_BYTES[family]].tolist())] * (family > 0)


def _value(role: int, value: int, size: int) -> list[int]:
    return [role, *(v.BYTE + each for each in value.to_bytes(size, "big"))]
