"""Encode parts of a time as two columns each, a point on a circle, so a year's end is near its beginning. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.arrays import F32, F64, I64
from headrace.series.arrays.axis import DAY_US

_HOUR_US = DAY_US // 24


def _share_of(unit: str) -> Callable[[I64], F64]:
    """Return the share of its calendar month or year that has passed at each time, 0 to 1."""

    def share(micros: I64) -> F64:
        whole = micros.view("datetime64[us]").astype(f"datetime64[{unit}]")
        begin, end = (each.astype("datetime64[us]").view(np.int64) for each in (whole, whole + 1))
        return np.asarray((micros - begin) / (end - begin), np.float64)

    return share


_SHARES: dict[str, Callable[[I64], F64]] = {
    "hour_of_day": lambda micros: np.asarray(micros % DAY_US // _HOUR_US / 24, np.float64),
    # 1970 began on a Thursday; Monday is 0
    "day_of_week": lambda micros: np.asarray((micros // DAY_US + 3) % 7 / 7, np.float64),
    "day_of_month": _share_of("M"),
    "day_of_year": _share_of("Y"),
}
CALENDAR = tuple(_SHARES)


def calendar_names(parts: Sequence[str]) -> list[str]:
    """Return the column names of these parts of a time."""
    return [f"{part}_{wave}" for part in parts for wave in ("sin", "cos")]


def calendar_of(parts: Sequence[str], micros: I64) -> F32:
    """Return the columns of these parts at the given times, [N, 2 · parts]."""
    angles = [2 * np.pi * _SHARES[part](micros) for part in parts]
    waves = [wave(angle) for angle in angles for wave in (np.sin, np.cos)]
    return np.stack(waves, axis=1).astype(np.float32)
