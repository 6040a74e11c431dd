"""Where the sorted measurements of entities are cut into rows. Pure.

A row ends before the measurement that would bring it above the limit, and before one that is too far from its first
for the row's clock. A row has at least one measurement. Entities that fit whatever their peers cost no work.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial

import numpy as np
import numpy.typing as npt

from headrace.arrays import I32, I64, Ints
from headrace.histories.codec.rows import HEADER_BYTES, LARGEST_SPAN, blob_bytes

_MOST_A_MEASUREMENT = 4 + 2 + 4 + 16  # time, code, peer index, a peer of its own
_LEAST_A_MEASUREMENT = 4 + 2
_ROUNDING = 16
_FEW = 16


def cut_rows(entity: Ints, times: I64, peer: Ints | None, is_6: npt.NDArray[np.bool_], max_bytes: int) -> I64:
    """Where rows begin: int64 [R]. entity, times [N] sorted; peer [N] or None: places in `is_6` (families)."""
    if not len(entity):
        return np.zeros(0, np.int64)
    starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(entity[1:] != entity[:-1]) + 1])
    count = np.diff(starts, append=len(entity))
    long = HEADER_BYTES + _ROUNDING + count * _MOST_A_MEASUREMENT > max_bytes
    long |= times[starts + count - 1] - times[starts] > LARGEST_SPAN
    if not long.any():
        return starts
    more = [
        begin + _cuts(times[begin : begin + n], None if peer is None else peer[begin : begin + n], is_6, max_bytes)
        for begin, n in zip(starts[long].tolist(), count[long].tolist(), strict=True)
    ]
    return np.union1d(starts, np.concatenate(more))


def _cuts(times: I64, peer: Ints | None, is_6: npt.NDArray[np.bool_], max_bytes: int) -> I64:
    """Where the rows of one entity begin; one step per row."""
    begin, cuts = 0, [0]
    window = max(1, max_bytes // _LEAST_A_MEASUREMENT)
    while True:
        stop = min(len(times), begin + window)
        stop = begin + int(np.searchsorted(times[begin:stop], times[begin] + LARGEST_SPAN, side="right"))
        four = six = np.zeros(0, np.int32)
        if peer is not None:
            mine = peer[begin:stop]
            new = np.zeros(len(mine), np.bool_)
            new[_first_places(mine, len(is_6))] = True
            six = np.cumsum(new & is_6[mine], dtype=np.int32)
            four = np.cumsum(new, dtype=np.int32) - six
        fits = bisect_right(range(1, stop - begin + 1), max_bytes, key=partial(_bytes_of, four=four, six=six))
        begin += max(1, fits)
        if begin >= len(times):
            return np.array(cuts, np.int64)
        cuts.append(begin)


def _bytes_of(n: int, four: I32, six: I32) -> int:
    """Length of a row of the first n measurements; four, six: peers of each family that so many have."""
    peers = (four[n - 1 : n], six[n - 1 : n]) if len(four) else (np.zeros(1, np.int64),) * 2
    return int(blob_bytes(np.array([n]), *(each.astype(np.int64) for each in peers))[0])


def _first_places(values: Ints, most: int) -> Ints:
    """Where each value below `most` first stands, of those that do."""
    if _FEW * len(values) < most:
        return np.unique(values, return_index=True)[1]
    first = np.full(most, len(values), np.int32)
    # Of what is written to one place the last stays.
    first[values[::-1]] = np.arange(len(values) - 1, -1, -1, dtype=np.int32)
    return first[first < len(values)]
