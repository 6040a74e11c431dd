"""Integers of one type as another, never wrapped around."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def as_type(values: npt.NDArray[Any], dtype: np.dtype[Any], what: str) -> npt.NDArray[Any]:
    """Integers as another type, without copying where they are of it. Raises `ValueError` if a value does not fit."""
    if values.dtype == dtype:
        return np.ascontiguousarray(values)
    if values.dtype.kind not in "iub":
        raise ValueError(f"{what} are {values.dtype}; give integers")
    if len(values) and not np.can_cast(values.dtype, dtype):
        limits = np.iinfo(dtype)
        for value in (int(values.min()), int(values.max())):
            if not limits.min <= value <= limits.max:
                raise ValueError(f"{what}: {value} does not fit {dtype.name}; give {limits.min} to {limits.max}")
    return values.astype(dtype)
