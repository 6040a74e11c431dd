"""Compile functions with numba, without the interpreter lock. Extra `histories`.

numba does not invalidate its cache when this file changes; remove `__pycache__` after an edit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from headrace.errors import MissingExtra

try:
    from numba import njit
except ImportError as error:
    raise MissingExtra("numba", "histories") from error

__all__ = ["compiled", "kernel"]


def read_only(array: np.ndarray[Any, Any]) -> Any:
    """View an array as contiguous and read-only, so that a kernel is compiled for one kind of
    input.
    """
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def compiled(function: Any) -> Any:
    """Compile a function at its first call; other processes reuse the code if a cache directory is
    writable.
    """
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # no directory to keep compiled code in: each process compiles anew
        return njit(nogil=True, error_model="numpy")(function)


def kernel(*written: str) -> Callable[[Any], Any]:
    """Compile a function for one kind of input: `read_only` views of its arrays, except those it
    writes, by name.
    """

    def decorate(function: Any) -> Any:
        inner = compiled(function)
        names = function.__code__.co_varnames

        @wraps(function)
        def call(*arguments: Any) -> Any:
            converted = list(arguments)
            for number, argument in enumerate(arguments):
                if isinstance(argument, np.ndarray) and names[number] not in written:
                    converted[number] = read_only(argument)
            return inner(*converted)

        return call

    return decorate
