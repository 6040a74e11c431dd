"""What DataLoader workers are reading, in memory that outlives them: a killed worker cannot say it any more.

float64 [workers, 1 + 2 × threads]: the worker's process, then a place for each thread that reads, of two numbers:
block + 1 (0: none yet), and since when it is read, or minus the moment at which it was. Written by the worker, once
before and once after a block; read by the loop's process. Nothing is locked: the places of a worker have one writer.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from headrace.arrays import F64


def notes_shape(workers: int, threads: int) -> tuple[int, int]:
    """The shape of the memory for so many workers of so many reading threads."""
    return max(1, workers), 1 + 2 * threads


class WorkerNotes:
    """A worker's own row. slot: float64 [1 + 2 × threads]."""

    def __init__(self, slot: F64) -> None:
        self._slot = slot
        slot[:] = 0.0
        slot[0] = os.getpid()
        self._free = list(range(1, len(slot), 2))

    def begin(self, block: int) -> int:
        """A thread reads this block now; its place, for `end`."""
        place = self._free.pop() if self._free else 0  # more readers than places: this one is not told
        if place:
            self._slot[place] = block + 1
            self._slot[place + 1] = time.monotonic()
        return place

    def end(self, place: int) -> None:
        """It has read it."""
        if place:
            self._slot[place + 1] = -time.monotonic()
            self._free.append(place)


def process_of(slot: Any) -> int:
    """The process of the worker that wrote this row; 0: none has yet."""
    return int(slot[0])


def being_read(slot: Any) -> list[tuple[float, int]]:
    """(since when, block) of each block that is being read in a row, the oldest first."""
    blocks, moments = _places(slot)
    return sorted((float(since), int(block) - 1) for block, since in zip(blocks, moments, strict=True) if since > 0)


def read_last(slot: Any) -> int | None:
    """The block that was read last in a row."""
    blocks, moments = _places(slot)
    read = [(-float(until), int(block) - 1) for block, until in zip(blocks, moments, strict=True) if until < 0]
    return max(read)[1] if read else None


def _places(slot: Any) -> tuple[F64, F64]:
    values = np.asarray(slot, np.float64)
    return values[1::2], values[2::2]
