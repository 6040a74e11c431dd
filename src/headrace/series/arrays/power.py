"""Power transforms with a parameter for every value, and back: Yeo and Johnson (2000), Box and Cox (1964)."""

from __future__ import annotations

import numpy as np

from headrace.arrays import F64

_EPS = float(np.spacing(1.0))


def forward(method: str, x: F64, power: F64) -> F64:
    """The transformed values; `power` has the shape of `x`. NaN stays; Box-Cox of 0 or less is NaN."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if method == "box-cox":
            return np.where(x > 0, _raised(np.log(np.where(x > 0, x, np.nan)), power), np.nan)
        above = _raised(np.log1p(np.maximum(x, 0.0)), power)
        below = -_raised(np.log1p(-np.minimum(x, 0.0)), 2.0 - power)
        return np.where(x >= 0, above, below)  # NaN is not >= 0, and np.minimum keeps it


def backward(method: str, y: F64, power: F64) -> F64:
    """The values whose transforms are `y`; NaN where there is none."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if method == "box-cox":
            return np.exp(_lowered(y, power))
        above = np.expm1(_lowered(np.maximum(y, 0.0), power))
        below = -np.expm1(_lowered(-np.minimum(y, 0.0), 2.0 - power))
        return np.where(y >= 0, above, below)


def _raised(logarithm: F64, power: F64) -> F64:
    flat = np.abs(power) < _EPS
    return np.where(flat, logarithm, np.expm1(power * logarithm) / np.where(flat, 1.0, power))


def _lowered(y: F64, power: F64) -> F64:
    flat = np.abs(power) < _EPS
    return np.where(flat, y, np.log1p(power * y) / np.where(flat, 1.0, power))
