"""Reuse the memory of pools once no view of it is held.

A pool is tens of megabytes. To touch memory fresh from the operating system costs about as much as
to gather the rows. Batches are views, so their memory is free again when the last of them is gone.
CPython's reference count of the array that owns the memory shows this exactly. On interpreters
where counts are less exact, each request allocates.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

_COUNTS_ARE_EXACT = (
    sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
)
_PROBE = [np.empty(0, np.uint8)]
_ONLY_OURS = sys.getrefcount(_PROBE[0])  # the reference count of an array that only our list holds
_LEAST_BYTES = 1 << 16  # the allocator itself reuses smaller pieces
_WASTE = 2  # a buffer may be this many times larger than its content


class Buffers:
    """Arrays whose memory returns to this object automatically.

    For one thread; views may be dropped in any thread.
    """

    def __init__(self) -> None:
        self._spare: list[npt.NDArray[np.uint8]] = []

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an uninitialised array of this shape and type."""
        requested_dtype = np.dtype(dtype)
        size = math.prod(shape) * requested_dtype.itemsize
        if not _COUNTS_ARE_EXACT or size < _LEAST_BYTES:
            return np.empty(shape, requested_dtype)
        best = -1
        for number in range(len(self._spare)):
            capacity = len(self._spare[number])
            fits = (
                size <= capacity <= _WASTE * size
                and sys.getrefcount(self._spare[number]) == _ONLY_OURS
            )
            if fits and (best < 0 or capacity < len(self._spare[best])):
                best = number
        # Keeps the least recently used in front.
        self._spare.append(np.empty(size, np.uint8) if best < 0 else self._spare.pop(best))
        return self._spare[-1][:size].view(requested_dtype).reshape(shape)

    def trim(self, most: int) -> None:
        """Release free buffers, least recently used first, until at most `most` are free."""
        numbers = range(len(self._spare))
        free = [number for number in numbers if sys.getrefcount(self._spare[number]) == _ONLY_OURS]
        for number in reversed(free[: max(0, len(free) - most)]):
            del self._spare[number]
