"""Functions compiled by numba, which release the interpreter lock. Extra `histories`.

`ir`, `types`, `instructions` and `intrinsic` are llvmlite's and numba's, for kernels that are not Python; what these
share stands here. The cache of compiled code does not see when this file changes: remove `__pycache__` then.
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

__all__ = [
    "compiled",
    "instructions",
    "intrinsic",
    "ir",
    "loaded",
    "lowest_bit",
    "pointer",
    "read_only",
    "spread",
    "types",
]

instructions: Any = cgutils  # what LLVM's builder lacks: loops, branches, local variables


def intrinsic(function: Any) -> Any:
    """A function of kernels whose LLVM instructions are written by hand, as numba's `intrinsic` describes."""
    return numba_intrinsic(function)


def pointer(builder: Any, data: Any, at: Any, pointed: Any) -> Any:
    """To what begins at element `at` of an array's data, as something of this type."""
    return builder.bitcast(builder.gep(data, [at]), pointed.as_pointer())


def loaded(builder: Any, data: Any, at: Any, pointed: Any, align: int) -> Any:
    """What begins there. align: bytes of which its address is a multiple."""
    return builder.load(pointer(builder, data, at, pointed), align=align)


def spread(builder: Any, vector: Any, value: Any) -> Any:
    """A vector with the same value in all its lanes."""
    made = ir.Constant(vector, ir.Undefined)
    for place in range(vector.count):
        made = builder.insert_element(made, value, ir.Constant(ir.IntType(32), place))
    return made


@intrinsic
def lowest_bit(typing: Any, bits: Any) -> Any:  # noqa: ARG001
    """The number of the lowest bit of a word that is 1; 64 if there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


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
