"""Bin numbers: readable edges, and counts between them. Pure numpy, O(values) each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.arrays import F64, I64

_STEPS = (1, 2, 2.5, 5, 10)
_STRETCHES = 72  # number of bins in time, over the width of a page
_DAY = 86400.0
_YEAR = 365.25 * 86400.0
_CLOCK = np.array(
    [
        1,
        10,
        60,
        600,
        3600,
        _DAY / 4,
        _DAY,
        7 * _DAY,
        30 * _DAY,
        _YEAR / 4,
        *(_YEAR * n for n in (1, 3, 10, 30, 100, 1000, 10_000, 1_000_000)),
    ]
)


def even_edges(low: float, high: float, *, most: int = 24, integral: bool = True) -> F64:
    """Return the edges of at most `most` bins of one round width that cover low..high.

    integral: the width is a whole number, 1 or more.
    """
    width = (high - low) / most
    power = 1.0
    if width > 0:
        power = 10.0 ** np.floor(np.log10(width))
    step = next(power * digit for digit in _STEPS if power * digit >= width)
    if integral:
        step = max(1.0, float(np.ceil(step)))
    first = np.floor(low / step)
    count = max(1, int(np.floor(high / step) - first) + 1)
    while count > most:  # rounding outwards may add a bin
        step *= 2
        first = np.floor(low / step)
        count = int(np.floor(high / step) - first) + 1
    return np.asarray((first + np.arange(count + 1)) * step, np.float64)


def growing_edges(low: float, high: float) -> F64:
    """Return edges from 1, 2, 5, 10, 20, … that cover low..high, both above 0; powers of ten over a
    wide range.
    """
    first = int(np.floor(np.log10(low)))
    last = int(np.floor(np.log10(high))) + 1
    wide = last - first > 12
    stride = -(-(last - first) // 36)
    digits = [1, 2, 5]
    if wide:
        digits = [1]
    steps: list[float] = []
    for power in range(first, last + stride, stride):
        for digit in digits:
            steps.append(digit * 10.0**power)
    edges = np.array(steps)
    begin = max(0, int(np.searchsorted(edges, low, "right")) - 1)
    end = int(np.searchsorted(edges, high, "right"))
    return np.asarray(edges[begin : end + 1], np.float64)


def span_edges(values: F64) -> tuple[F64, bool]:
    """Return edges like `edges_for`, for seconds of 1 and more, at units of clocks and
    calendars.
    """
    low = float(values.min())
    high = float(values.max())
    if high < 50 * low:
        unit = 1.0
        for candidate in (60.0, 3600.0, _DAY, _YEAR):
            if high >= 4 * candidate:
                unit = candidate
        return even_edges(low / unit, high / unit, integral=unit == 1) * unit, False
    end = int(np.searchsorted(_CLOCK, high, "right"))
    begin = int(np.searchsorted(_CLOCK, low, "right")) - 1
    return np.asarray(_CLOCK[max(0, begin) : max(end, 1) + 1], np.float64), True


def time_edges(low: float, high: float) -> F64:
    """Return edges of even intervals of time that cover low..high."""
    return np.asarray(
        low + max((high - low) / _STRETCHES, 1.0) * np.arange(_STRETCHES + 1), np.float64
    )


def edges_for(values: F64) -> tuple[F64, bool]:
    """Return edges for a histogram of values, and whether they grow.

    They grow if the smallest value is above 0 and the largest is at least 50 times the smallest.
    """
    low = float(values.min())
    high = float(values.max())
    if low > 0 and high >= 50 * low:
        return growing_edges(low, high), True
    return even_edges(low, high), False


def counted(values: F64, edges: F64, weights: F64 | None = None) -> F64:
    """Count values, or sum their weights, in each bin [edge, next edge): float64 [bins]."""
    return np.bincount(_bin_of(values, edges), weights=weights, minlength=len(edges) - 1).astype(
        np.float64
    )


def _bin_of(values: F64, edges: F64) -> I64:
    return np.asarray(
        np.clip(np.searchsorted(edges, values, "right") - 1, 0, len(edges) - 2), np.int64
    )


def spread(starts: F64, ends: F64, weights: F64, edges: F64) -> F64:
    """Spread weights evenly over their spans [begin, end] and sum them in bins of time: float64
    [bins].

    A span of length 0 falls into the bin that contains it. The sum over bins equals the sum of
    weights if the edges cover all spans. O(spans + edges) time and memory.
    """
    moments = ends <= starts
    sums = counted(starts[moments], edges, weights[moments])
    starts = starts[~moments]
    ends = ends[~moments]
    weights = weights[~moments]
    pace = weights / (ends - starts)
    # A span adds its rate to all bins from its beginning on, and subtracts it again from its end
    # on.
    for at, sign in ((starts, 1.0), (ends, -1.0)):
        at = np.clip(at, edges[0], edges[-1])
        bin_index = _bin_of(at, edges)
        within = np.bincount(
            bin_index, weights=pace * (edges[bin_index + 1] - at), minlength=len(edges) - 1
        )
        before = np.cumsum(np.bincount(bin_index + 1, weights=pace, minlength=len(edges)))[:-1]
        sums += sign * (within + before * np.diff(edges))
    return np.maximum(sums, 0.0)  # rounding may leave sums slightly below 0


def covering(starts: F64, ends: F64, edges: F64) -> F64:
    """Count the spans [begin, end] that touch each bin: float64 [bins].

    O(spans + edges) time and memory.
    """
    first = _bin_of(starts, edges)
    last = _bin_of(ends, edges)
    change = np.bincount(first, minlength=len(edges)) - np.bincount(last + 1, minlength=len(edges))
    return np.cumsum(change)[:-1].astype(np.float64)


def thinned(values: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """Return at most `most` of the values, evenly spaced, including the first and the last."""
    if len(values) <= most:
        return values
    return values[np.linspace(0, len(values) - 1, most).astype(np.int64)]
