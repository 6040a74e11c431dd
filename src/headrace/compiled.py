"""Functions compiled by numba, which release the interpreter lock. Extra `histories`."""

from __future__ import annotations

from typing import Any

from headrace.errors import MissingExtra

try:
    from numba import njit
except ImportError as error:
    raise MissingExtra("numba", "histories") from error


def compiled(function: Any) -> Any:
    """The function, compiled at its first call; the code is kept for other processes where there is a place for it."""
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # no directory to keep compiled code in: each process compiles anew
        return njit(nogil=True, error_model="numpy")(function)
