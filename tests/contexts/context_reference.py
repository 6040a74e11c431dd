"""What the compiled steps of contexts must give, in numpy."""

from __future__ import annotations

import numpy as np

from headrace.arrays import ranges
from headrace.draws import FRACTION, MODE, OFFSET, WINDOW, draw, permuted, segment_keys, unit
from headrace.histories.contexts.options import ARRAYS
from headrace.histories.contexts.sample import (
    FULL,
    LN2,
    NONE,
    PARTIAL,
    TENTH,
)


def below(words, n):
    """Map random words to integers 0..n-1."""
    return (((words >> np.uint64(32)) * np.asarray(n).astype(np.uint64)) >> np.uint64(32)).astype(
        np.int64
    )


def log_uniform(words, low, high):
    """Map random words to log-uniform integers in low..high."""
    begin, end = log2(low.astype(np.float64)), log2(high.astype(np.float64) + 1)
    drawn = np.floor(exp2(begin + unit(words) * (end - begin))).astype(np.int64)
    return np.clip(drawn, low, high)


def log2(x):
    part, power = np.frexp(x)
    low = part < 0.7071067811865476
    part, power = np.where(low, part * 2, part), power - low
    z = (part - 1) / (part + 1)
    square, total = z * z, np.zeros_like(z)
    for odd in range(21, 0, -2):
        total = total * square + 1.0 / odd
    return power + total * z * (2.0 / LN2)


def exp2(y):
    floor = np.floor(y)
    x, total = (y - floor) * LN2, np.ones_like(y)
    for term in range(18, 0, -1):
        total = total * x / term + 1
    return np.ldexp(total, floor.astype(np.int32))


def permuted_prefixes(keys, sizes, offsets):
    """The first offsets[k + 1] - offsets[k] places of each key k's permutation, end to end."""
    counts = np.diff(offsets)
    return permuted(np.repeat(keys, counts), np.repeat(sizes, counts), ranges(0, counts))


def draw_modes(keys, full_below=0.4, partial_below=0.7):
    """Mode, fraction and key of the one segment of each sampled context."""
    own = segment_keys(keys, np.zeros(len(keys), np.int64))
    chance = unit(draw(own, MODE))
    mode = np.where(
        chance < full_below, FULL, np.where(chance < partial_below, PARTIAL, NONE)
    ).astype(np.uint8)
    word = draw(own, FRACTION) >> np.uint64(32)
    return mode, TENTH + ((word * (np.uint64(8) * TENTH)) >> np.uint64(32)), own


def draw_indices(segments, fills, offsets):
    """The position in its row of every candidate."""
    drawn = log_uniform(draw(segments.key, WINDOW), fills, segments.count)
    window = np.where(segments.sampled, drawn, segments.count)
    slack = segments.count - window + 1
    begin = segments.start + np.where(segments.sampled, below(draw(segments.key, OFFSET), slack), 0)
    return np.repeat(begin, np.diff(offsets)) + permuted_prefixes(segments.key, window, offsets)


def to_arrays(tokens, segments, keys):
    """The arrays of training loops, from the segment of every token."""
    segment_BT, position_BT = numbered(tokens, segments)
    drawn = tokens.tokens_BT
    inputs, segment, position = drawn[:, :-1], segment_BT[:, :-1], position_BT[:, :-1]
    has_target = (segment > 0) & (segment_BT[:, 1:] == segment)
    targets = np.where(has_target, drawn[:, 1:], np.int32(0))
    arrays = (inputs, targets, segment, position)
    if keys == "maxtext":
        arrays = (
            inputs,
            position,
            segment,
            targets,
            position,
            np.where(has_target, segment, np.int32(0)),
        )
    return dict(zip(ARRAYS[keys], arrays, strict=True))


def numbered(tokens, segments):
    """The segment number (0 in padding) of every token and its position in the segment; int32 [B, T]."""
    contexts, room = tokens.tokens_BT.shape
    begin = (
        np.cumsum(tokens.lengths) - tokens.lengths
    )  # offsets in the tokens of all contexts, without padding
    first = np.searchsorted(segments.context, segments.context)
    number = np.arange(len(first)) - first + 1
    used = np.bincount(segments.context, tokens.lengths, contexts).astype(np.int64)
    real = np.arange(room)[None, :] < used[:, None]
    segment, position = np.zeros((contexts, room), np.int32), np.zeros((contexts, room), np.int32)
    segment[real] = np.repeat(number, tokens.lengths)
    position[real] = np.arange(int(used.sum())) - np.repeat(begin, tokens.lengths)
    return segment, position
