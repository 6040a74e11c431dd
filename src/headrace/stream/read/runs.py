"""Read adjacent blocks in one call.

Row groups of ten thousand rows take a third more time one after the other than together. So where
blocks are read in the order of a file, those that follow one another are decoded as a run. A run
that cannot be read is read block by block, so that an error names its block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from headrace.arrays import Bools
from headrace.dataset.indexed import ReadBlock


@runtime_checkable
class RunReader(Protocol):
    """A `ReadBlock` that can also read several blocks at once."""

    def continues(self) -> Bools:
        """Return which blocks may be read together with the one before them: bool [B]."""

    def read_run(self, numbers: range, columns: Sequence[str]) -> pa.Table:
        """Read blocks each of which continues the one before it."""


def run_reader(read_block: object) -> RunReader | None:
    """Return a `ReadBlock` if it reads runs; None if it reads block by block."""
    return read_block if isinstance(read_block, RunReader) else None


def continues_of(read_block: ReadBlock) -> Bools:
    """Return which blocks may be read together with the one before them: bool [B]; empty for none
    of any number.
    """
    reader = run_reader(read_block)
    if reader is not None:
        return reader.continues()
    return np.zeros(0, bool)
