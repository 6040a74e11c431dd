"""Functions compiled by numba, which release the interpreter lock. Extra `histories`.

The cache of compiled code does not see when this file changes: remove `__pycache__` then.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.errors import MissingExtra

try:
    from numba import njit
except ImportError as error:
    raise MissingExtra("numba", "histories") from error

__all__ = ["compiled", "read_only"]


def read_only(array: np.ndarray[Any, Any]) -> Any:
    """View an array as every input of a kernel is, contiguous and read-only, so that it is compiled once."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def compiled(function: Any) -> Any:
    """The function, compiled at its first call; the code is kept for other processes where there is a place for it."""
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # no directory to keep compiled code in: each process compiles anew
        return njit(nogil=True, error_model="numpy")(function)
