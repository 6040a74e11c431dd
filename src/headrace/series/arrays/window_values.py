"""Fill the missing values of windows, and scale windows by their own past. Pure.

A window is filled from its own rows up to the last one given, so nothing that comes after its
origin reaches its inputs, and a live forecast is filled as its training windows were.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from headrace.arrays import F32, I64, Bools

Incomplete = Literal["skip", "keep", "zero", "forward", "linear", "seasonal"]
WindowScale = Literal["none", "mean", "standard"]


def fill_windows(values: F32, rule: Incomplete, *, season: int, stepwise: Bools) -> F32:
    """Return windows [B, T, C] whose missing values are filled from other rows of the same window.

    zero: by 0. forward: by the last value before. linear: by the line between the values around a
    gap, and after the last value as forward. seasonal: by the value `season` rows before, which may
    be filled itself, and as forward where there is none.

    Before the first value of a column all but zero fill with this value; a column without one is 0.
    keep and skip fill nothing. stepwise: columns, bool [C], that linear fills as forward, because
    nothing lies between their values.
    """
    missing = np.isnan(values)
    if rule in ("skip", "keep") or not missing.any():
        return values
    filled = values.copy()
    if rule != "zero":
        some = np.flatnonzero(missing.any(axis=(1, 2)))
        filled[some] = _from_rows(values[some], missing[some], rule, season, stepwise)
    filled[np.isnan(filled)] = 0
    return filled


def _from_rows(values: F32, missing: Bools, rule: Incomplete, season: int, stepwise: Bools) -> F32:
    """Fill from other rows. Columns without a value stay missing."""
    steps = values.shape[1]
    row = np.arange(steps)[None, :, None]
    before = np.maximum.accumulate(np.where(missing, -1, row), axis=1)
    after = np.where(missing, steps, row)[:, ::-1]
    after = np.minimum.accumulate(after, axis=1)[:, ::-1]
    earlier = _at(values, np.maximum(before, 0))
    later = _at(values, np.minimum(after, steps - 1))
    forward = np.where(before >= 0, earlier, later)
    if rule == "linear":
        inside = missing & (before >= 0) & (after < steps) & ~stepwise
        fraction = (row - before) / np.maximum(after - before, 1)
        line = earlier + (later.astype(np.float64) - earlier) * fraction
        return np.where(inside, line, forward).astype(np.float32)
    if rule == "seasonal":
        filled = values.copy()
        for start in range(season, steps, season):
            block = filled[:, start : start + season]
            previous = filled[:, start - season : start][:, : block.shape[1]]
            np.copyto(block, previous, where=np.isnan(block))
        return np.where(np.isnan(filled), forward, filled)
    return forward


def _at(values: F32, rows: I64) -> F32:
    return np.take_along_axis(values, rows, axis=1)


def scale_of_past(past: F32, rule: WindowScale) -> tuple[F32, F32]:
    """Return the centre and the scale of the past of targets [B, L, T]; float32 [B, T].

    mean: 0, and the mean of absolute values. standard: mean and standard deviation. Missing values
    do not count. Of a past that is constant, or without a value, the scale is 1.
    """
    observed = ~np.isnan(past)
    count = np.maximum(observed.sum(axis=1), 1)
    values = np.where(observed, past, 0).astype(np.float64)
    centre = np.zeros(count.shape)
    if rule == "mean":
        scale = np.abs(values).sum(axis=1) / count
    else:
        centre = values.sum(axis=1) / count
        deviation = np.where(observed, values - centre[:, None], 0)
        scale = np.sqrt(np.square(deviation).sum(axis=1) / count)
    # A constant past has a deviation of rounding errors, or none.
    scale = np.where(scale > 1e-6 * np.abs(centre), scale, 1)
    return centre.astype(np.float32), scale.astype(np.float32)
