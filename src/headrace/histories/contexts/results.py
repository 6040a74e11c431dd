"""Make the tokens of results: the latency, followed by the value columns. See `vocabulary`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.arrays import I32, I64, U16, Bools
from headrace.histories.codec.values import Values, is_missing
from headrace.histories.contexts import vocabulary as v

_BESIDE = 1 + 17 + 17 + 9 + 3  # start, source, destination, timestamp, latency


def longest_measurement(values: Mapping[str, str]) -> int:
    """Return the largest number of tokens of any measurement. values: names and types of the value columns."""
    return _BESIDE + sum(1 + np.dtype(each).itemsize for each in values.values())


def result_sizes(codes: U16, values: Values, has_latency: bool | Bools) -> I64:
    """Count the tokens of each result: int64 [M]. has_latency: one bool for all, or bool [M]."""
    sizes = np.where(codes == 0, 1, 3) * has_latency
    for column in values:
        sizes += np.where(is_missing(column), 0, 1 + column.dtype.itemsize)
    return sizes.astype(np.int64)


def result_tokens(codes: U16, values: Values, *, has_latency: bool) -> I32:
    """Write the tokens of each result from the left: int32 [M, W]; W = 0 if there is only a latency."""
    if not values and has_latency:
        return np.zeros((len(codes), 0), np.int32)
    width = 3 * has_latency + sum(1 + each.dtype.itemsize for each in values)
    tokens, at = np.zeros((len(codes), width), np.int32), np.zeros(len(codes), np.int64)
    if has_latency:
        tokens[:, 0] = np.where(codes == 0, v.FAILED, v.ROUND_TRIP)
        tokens[:, 1], tokens[:, 2] = v.BYTE + (codes >> 8), v.BYTE + (codes & 255)
        at += np.where(codes == 0, 1, 3)
    for number, column in enumerate(values):
        rows = np.flatnonzero(~is_missing(column))
        there: Any = column[rows] - 1 if column.dtype.kind == "u" else column[rows]  # codes in rows count from 1
        size = column.dtype.itemsize
        told = there.astype(column.dtype.newbyteorder(">")).view(np.uint8).reshape(len(rows), size)
        tokens[rows, at[rows]] = v.VALUE + number
        tokens[rows[:, None], at[rows][:, None] + 1 + np.arange(size)] = v.BYTE + told.astype(np.int32)
        at[rows] += 1 + size
    return tokens
