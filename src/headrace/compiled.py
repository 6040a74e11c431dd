"""Functions compiled by numba, which release the interpreter lock. Extra `histories`.

`ir`, `types`, `instructions` and `intrinsic` are llvmlite's and numba's, for kernels that are not Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.errors import MissingExtra

try:
    from llvmlite import ir
    from numba import njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic as numba_intrinsic
except ImportError as error:
    raise MissingExtra("numba", "histories") from error

__all__ = ["compiled", "instructions", "intrinsic", "ir", "read_only", "types"]

instructions: Any = cgutils  # what LLVM's builder lacks: loops, branches, local variables


def intrinsic(function: Any) -> Any:
    """A function of kernels whose LLVM instructions are written by hand, as numba's `intrinsic` describes."""
    return numba_intrinsic(function)


def read_only(array: np.ndarray[Any, Any]) -> Any:
    """The same values as what every input of a kernel is, so that it is compiled once: contiguous and not writable."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def compiled(function: Any) -> Any:
    """The function, compiled at its first call; the code is kept for other processes where there is a place for it."""
    try:
        return njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # no directory to keep compiled code in: each process compiles anew
        return njit(nogil=True, error_model="numpy")(function)
