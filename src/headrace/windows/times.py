"""The time of a row, from the time of its entity's first row. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.series.axis import Frequency, month_places

I64 = npt.NDArray[np.int64]

_DAY_US = 86_400_000_000


def times_at(frequency: Frequency, first_times: I64, positions: I64) -> I64:
    """Microseconds since 1970 of the rows `positions` steps behind the first of their entity; int64, same length.

    Calendar months count from their start, or from their end where the first is the last day of its month, or a day
    that other months do not have.
    """
    if not frequency.months:
        return first_times + positions * frequency.micros
    months, since, until = month_places(first_times)
    wanted = months + positions * frequency.months
    from_start = (since < 28 * _DAY_US) & (until > _DAY_US)
    return np.where(from_start, _start(wanted) + since, _start(wanted + 1) - until)


def _start(months: I64) -> I64:
    return months.astype("datetime64[M]").astype("datetime64[us]").astype(np.int64)
