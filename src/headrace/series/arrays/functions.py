"""Functions that a pipeline may name: numpy's own, with their inverses and where they are defined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Function:
    """A function of single values.

    inverse: the name of its inverse, None where it has none. above: finite for values greater than this; at `above`
    itself only where `closed`.
    """

    call: Callable[..., Any]
    inverse: str | None = None
    above: float = -np.inf
    closed: bool = False


FUNCTIONS = {
    "arcsinh": Function(np.arcsinh, "sinh"),
    "cbrt": Function(np.cbrt, "power_3"),
    "exp": Function(np.exp, "log"),
    "exp2": Function(np.exp2, "log2"),
    "expm1": Function(np.expm1, "log1p"),
    "identity": Function(np.positive, "identity"),
    "log": Function(np.log, "exp", 0.0),
    "log10": Function(np.log10, "power_of_10", 0.0),
    "log1p": Function(np.log1p, "expm1", -1.0),
    "log2": Function(np.log2, "exp2", 0.0),
    "negative": Function(np.negative, "negative"),
    "power_3": Function(lambda x: x * x * x, "cbrt"),
    "power_of_10": Function(lambda x: np.power(10.0, x), "log10"),
    "sinh": Function(np.sinh, "arcsinh"),
    "sqrt": Function(np.sqrt, "square", 0.0, closed=True),
    "square": Function(np.square, "sqrt"),
    "tanh": Function(np.tanh, "arctanh"),
    "arctanh": Function(np.arctanh, "tanh", -1.0),
}

_NUMPY = {function.call: name for name, function in FUNCTIONS.items() if isinstance(function.call, np.ufunc)}


def name_of(call: object) -> str | None:
    """The name of one of numpy's functions that a pipeline may use; None for any other."""
    try:
        return _NUMPY.get(call)  # type: ignore[call-overload,no-any-return]  # any object may be asked about
    except TypeError:  # not hashable
        return None
