"""The time of a row, from the time of its entity's first row. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64
from headrace.series.axis import Frequency, month_places


def times_at(frequency: Frequency, first_times: I64, from_end: npt.NDArray[np.bool_], positions: I64) -> I64:
    """Microseconds since 1970 of the rows `positions` steps behind the first of their entity; int64, same length.

    from_end: whether calendar months of the entity are counted from their end, as month ends are.
    """
    if not frequency.months:
        return first_times + positions * frequency.micros
    months, since, until = month_places(first_times)
    wanted = months + positions * frequency.months
    return np.where(from_end, _start(wanted + 1) - until, _start(wanted) + since)


def _start(months: I64) -> I64:
    return months.astype("datetime64[M]").astype("datetime64[us]").astype(np.int64)
