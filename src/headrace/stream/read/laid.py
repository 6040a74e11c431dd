"""Lay out the rows of a large pool for chunks that are gathered one after the other.

Each chunk of a pool takes rows from everywhere in its blocks. Taken at random from hundreds of
megabytes, each value costs a miss of the processor's cache, five times what it costs from a chunk.
So blocks are read front to back once, and their rows are laid chunk after chunk. Inside a chunk
they stay in the order of the blocks until it is gathered, within the cache. Blocks can be dropped
one by one while they are laid, so the rows are never there twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64
from headrace.stream.read.buffers import Buffers
from headrace.stream.read.columns import Column, Columns, concatenate, gather


class LaidPool:
    """The rows of a pool: item i is row `index[i]` of them; only the last item may be repeated.

    example: columns of any rows. rows: of the pool. chunk_rows: items of a chunk. Its memory is not
    reused: the blocks of the next pool take its place.
    """

    def __init__(self, example: Columns, index: I64, *, rows: int, chunk_rows: int) -> None:
        self.names = list(example)
        self._index = index
        self._chunk_rows = chunk_rows
        others = np.flatnonzero(index != index[-1])
        self._items = 1 + (int(others[-1]) + 1 if len(others) else 0)  # without the repetitions
        self._target = np.full(rows, -1, np.int64)  # of each row; -1: another rank delivers it
        self._turns: list[I64] = []
        for start in range(0, self._items, chunk_rows):
            of_chunk = index[start : min(start + chunk_rows, self._items)]
            turn = np.argsort(of_chunk)
            self._target[of_chunk[turn]] = np.arange(start, start + len(turn))
            inverse = np.empty_like(turn)
            inverse[turn] = np.arange(len(turn))
            self._turns.append(inverse)
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._others: dict[str, dict[int, Column]] = {}
        for name, column in example.items():
            if isinstance(column, np.ndarray):
                shape = (self._items, *column.shape[1:])
                self._arrays[name] = np.empty(shape, column.dtype)
            else:  # lists and texts are laid end to end, and gathered from there
                self._others[name] = {}

    def lay(self, first: int, columns: Columns) -> None:
        """Lay the rows from `first` on; several threads may lay other columns at the same time."""
        for name, column in columns.items():
            if name in self._others:
                self._others[name][first] = column
                continue
            rows: Any = column
            target = self._target[first : first + len(rows)]
            if target.min(initial=0) < 0:
                required = target >= 0
                self._arrays[name][target[required]] = rows[required]
            else:
                self._arrays[name][target] = rows

    def join(self) -> None:
        """Put lists and texts end to end, after the last row was laid."""
        for name, parts in self._others.items():
            self._others[name] = {0: concatenate([parts[first] for first in sorted(parts)])}

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return len(self._turns)

    def items_of(self, number: int) -> int:
        """Count the items of a chunk; the last one has the repetitions too."""
        if number == self.chunks - 1:
            return len(self._index) - number * self._chunk_rows
        return self._chunk_rows

    def chunk(self, number: int, names: Sequence[str], memory: Buffers) -> Columns:
        """Gather these columns of a chunk, in this order."""
        start = number * self._chunk_rows
        index = self._index[start : start + self.items_of(number)]
        turn = self._turns[number]
        if len(turn) < len(index):
            turn = np.append(turn, np.full(len(index) - len(turn), turn[-1]))
        gathered: Columns = {}
        others: Columns = {}
        for name in names:
            if name in self._others:
                others[name] = self._others[name][0]
                continue
            laid = self._arrays[name][start : start + self._chunk_rows]
            rows = memory.empty((len(turn), *laid.shape[1:]), laid.dtype)
            np.take(laid, turn, axis=0, out=rows, mode="clip")
            gathered[name] = rows
        if others:
            gathered.update(gather([others], index, memory))
        return {name: gathered[name] for name in names}
