"""Candidates into tokens, for many contexts at once in numpy. `kernels` has the same, compiled, several times as fast.

A segment takes the longest prefix of its candidates whose tokens fit into what is left of its context. Prefixes of a
random order are random subsets, and one candidate more never makes fewer tokens (a gap cut in two saves at most one
token, a measurement has seven), so the longest prefix is found by bisection. Those taken are laid out by mode:

    full      by time, every one with its timestamp: absolute, then the distance to the one before
    partial   ⌈fraction × taken⌉ of them lose their timestamp and stand in random order, at random places between the
              others, which stay in order of time; their distances skip what has no timestamp
    none      in random order, without timestamps

Inside a measurement source, destination, result and timestamp stand in an order of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace.arrays import I32, I64, U64
from headrace.draws import FIELDS, POSITIONS, below, draw
from headrace.histories.contexts import vocabulary as v
from headrace.histories.contexts.sample import FULL, PARTIAL, Candidates, Segments

Kernel = Literal["auto", "numba", "numpy"]

FIELD_ORDERS = np.array(list(permutations(range(4))), np.int64)  # source, destination, result, time
_NEVER = np.iinfo(np.int64).max
_SIZES = np.array([0, 0, 0, 0, 4, 0, 16], np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """tokens_BT: int32 [B, T], standard ids, 0 behind the last measurement; what each segment takes of it:
    lengths: int64 [S], in tokens; taken: int64 [S], in measurements, a prefix of its candidates."""

    tokens_BT: I32  # noqa: N815 - B contexts, T places
    lengths: I64
    taken: I64


def without_time(fraction: U64, places: I64) -> npt.NDArray[np.bool_]:
    """Which places of a random order lose their timestamp, such that of any first n they are ⌈fraction × n⌉."""
    ceiling = np.uint64((1 << 32) - 1)
    at = places.astype(np.uint64)
    return ((at + np.uint64(1)) * fraction + ceiling) >> np.uint64(32) > (at * fraction + ceiling) >> np.uint64(32)


def tokens_in_numpy(segments: Segments, found: Candidates, contexts: int, room: int) -> Tokens:
    """The contexts of the segments. contexts: B; room: T, at least as long as any measurement."""
    count = np.diff(found.offsets)
    places = np.arange(int(count.max(initial=1)))[None, :]
    at = np.minimum(found.offsets[:-1, None] + places, max(len(found.index) - 1, 0))
    partial = (segments.mode == PARTIAL)[:, None]
    timed = np.where(partial, ~without_time(segments.fraction[:, None], places), (segments.mode == FULL)[:, None])
    base = 2 + _SIZES[found.source_family][:, None] + np.where(found.code[at] == 0, 1, 3)
    base += np.where(found.family[at] > 0, 1 + _SIZES[found.family[at]], 0)

    taken, lengths = np.zeros(len(count), np.int64), np.zeros(len(count), np.int64)
    used = np.zeros(contexts, np.int64)
    number = np.arange(len(count)) - np.searchsorted(segments.context, segments.context)
    for turn in range(int(number.max(initial=-1)) + 1):  # what a segment may use depends on those before it
        mine = np.flatnonzero(number == turn)
        left = room - used[segments.context[mine]]
        taken[mine], lengths[mine] = _longest_prefix(base[mine], found.time[at[mine]], timed[mine], count[mine], left)
        used[segments.context[mine]] += lengths[mine]
    flat = _laid_out(segments, found, at, timed, taken)
    tokens = np.zeros((contexts, room), np.int32)
    tokens[np.arange(room)[None, :] < used[:, None]] = flat
    return Tokens(tokens, lengths, taken)


def _longest_prefix(base: I64, time: I64, timed: npt.NDArray[np.bool_], count: I64, room: I64) -> tuple[I64, I64]:
    """How many of the first candidates fit into the room, and their tokens."""
    sums = np.cumsum(base, axis=1)
    stamps = np.cumsum(timed, axis=1)
    inside = np.arange(base.shape[1])[None, :] < count[:, None]

    def fitting(most: int) -> I64:
        length = sums + np.where(stamps > 0, 9 + most * (stamps - 1), 0)
        counts: I64 = ((length <= room[:, None]) & inside).sum(axis=1)
        return counts

    def length_of(chosen: I64) -> I64:
        first = np.arange(base.shape[1])[None, :] < chosen[:, None]
        ordered = np.sort(np.where(timed & first, time, _NEVER), axis=1)
        gaps = np.where(ordered[:, 1:] == _NEVER, 0, np.where(ordered[:, 1:] - ordered[:, :-1] < 256, 2, 5))
        lengths: I64 = (base * first).sum(axis=1) + gaps.sum(axis=1) + 9 * (timed & first).any(axis=1)
        return lengths

    low, high = fitting(5), fitting(2)
    while (low < high).any():
        middle = (low + high + 1) // 2
        fits = length_of(middle) <= room
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low, length_of(low)


def _laid_out(
    segments: Segments, found: Candidates, at: I64, timed: npt.NDArray[np.bool_], taken: I64
) -> npt.NDArray[np.uint16]:
    """The tokens of everything taken, segment after segment, as one flat array."""
    width = at.shape[1]
    places = np.arange(width)[None, :]
    first = places < taken[:, None]
    index = found.index[at]
    by_time = np.argsort(np.where(timed & first, index, _NEVER), axis=1, kind="stable")
    at_random = np.argsort(np.where(~timed & first, places, _NEVER), axis=1, kind="stable")
    chosen = _places_without_time(segments, (~timed & first).sum(axis=1), taken, width)
    earlier = np.cumsum(chosen, axis=1)
    with_time = np.maximum(places - earlier, 0)
    order = np.where(
        chosen,
        np.take_along_axis(at_random, np.maximum(earlier - 1, 0), axis=1),
        np.take_along_axis(by_time, with_time, axis=1),
    )
    sorted_times = np.take_along_axis(found.time[at], by_time, axis=1)
    before = np.concatenate([np.full((len(at), 1), -1, np.int64), sorted_times[:, :-1]], axis=1)
    previous = np.take_along_axis(before, with_time, axis=1)

    segment, place = np.nonzero(first)
    measurement = np.take_along_axis(at, order, axis=1)[first]
    stamped = ~chosen[first]
    previous = np.where(with_time == 0, -1, previous)[first]
    orders = FIELD_ORDERS[below(draw(segments.key[segment], FIELDS + place), 24)]
    return _fields(found, segment, measurement, stamped, previous, orders)


def _places_without_time(segments: Segments, without: I64, taken: I64, width: int) -> npt.NDArray[np.bool_]:
    """For each place whether a measurement without a timestamp stands there: uniform, by selection sampling."""
    chosen = np.zeros((len(taken), width), bool)
    left = without.copy()
    for place in range(width):
        free = np.maximum(taken - place, 0)
        chosen[:, place] = below(draw(segments.key, POSITIONS + place), free) < left
        left -= chosen[:, place]
    return chosen


def _fields(
    found: Candidates, segment: I64, measurement: I64, stamped: npt.NDArray[np.bool_], previous: I64, orders: I64
) -> npt.NDArray[np.uint16]:
    """Every measurement as its start token and four fields of at most `width` tokens; what is unused is left out."""
    family, source_family = found.family[measurement], found.source_family[segment]
    long = (family == 6).any() or (source_family == 6).any()
    address = 16 if long else 4
    width = 1 + max(address, 8)
    tokens = np.zeros((len(measurement), 4, width), np.uint16)
    lengths = np.zeros((len(measurement), 4), np.int64)

    tokens[:, 0, 0] = np.where(source_family == 6, v.SOURCE_V6, v.SOURCE_V4)
    tokens[:, 0, 1 : 1 + address] = found.source[segment, :address]
    lengths[:, 0] = 1 + _SIZES[source_family]
    tokens[:, 1, 0] = np.where(family == 6, v.DESTINATION_V6, v.DESTINATION_V4)
    tokens[:, 1, 1 : 1 + address] = found.address[measurement, :address]
    lengths[:, 1] = np.where(family > 0, 1 + _SIZES[family], 0)

    code = found.code[measurement]
    tokens[:, 2, 0] = np.where(code == 0, v.FAILED, v.ROUND_TRIP)
    tokens[:, 2, 1], tokens[:, 2, 2] = code >> 8, code & 255
    lengths[:, 2] = np.where(code == 0, 1, 3)

    time = found.time[measurement]
    delta = np.where(previous < 0, 0, time - previous)
    role = np.where(previous < 0, v.TIME_ABSOLUTE, np.where(delta < 256, v.TIME_DELTA, v.TIME_LONG_DELTA))
    size = np.where(previous < 0, 8, np.where(delta < 256, 1, 4))
    value = np.where(previous < 0, time, delta) << (8 * (8 - size))  # its bytes come first
    tokens[:, 3, 0] = role
    tokens[:, 3, 1:9] = value.astype(">i8").view(np.uint8).reshape(-1, 8)
    lengths[:, 3] = np.where(stamped, 1 + size, 0)

    tokens[:, :, 1:] += v.BYTE
    every = np.arange(len(measurement))[:, None]
    tokens, lengths = tokens[every, orders], lengths[every, orders]
    rows = np.full((len(measurement), 1 + 4 * width), v.START, np.uint16)
    rows[:, 1:] = tokens.reshape(len(measurement), 4 * width)
    kept = np.ones(rows.shape, bool)
    kept[:, 1:] = (np.arange(width)[None, None, :] < lengths[:, :, None]).reshape(len(measurement), 4 * width)
    return rows[kept]
