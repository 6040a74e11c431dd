"""Which entities are in memory together, epoch by epoch: chunks of passes over all of them. Pure.

A pass permutes the entities by its own key and cuts this line into chunks: every so many entities, or as many as have
at most so many rows together. An epoch is a chunk. All of it is a function of the seed, the number of the epoch and the
entities' rows, so every rank has the same chunks, and a resume needs no more than the number of the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64
from headrace.digest import derive_key, permutation
from headrace.errors import SettingsError


@dataclass(frozen=True, eq=False)
class ChunkPlan:
    """The chunks of all epochs.

    rows: of each entity, int64 [E], E ≥ 1. chunk_size: entities of a chunk; max_rows: most rows of a chunk, at least
    those of the longest entity; give one of the two. Raises `SettingsError` where that cannot be.
    """

    rows: I64
    seed: int
    chunk_size: int | None = None
    max_rows: int | None = None
    _before: list[int] = field(default_factory=lambda: [0], init=False, repr=False)

    def __post_init__(self) -> None:
        if (self.chunk_size is None) == (self.max_rows is None):
            raise SettingsError(
                f"chunks: chunk_size is {self.chunk_size} and max_rows is {self.max_rows}; give one of them"
            )
        if not len(self.rows):
            raise SettingsError("chunks: there is no entity with a window to train on; prepare more, or ask for less")
        if self.chunk_size is not None and self.chunk_size < 1:
            raise SettingsError(f"chunks: chunk_size is {self.chunk_size}; give 1 entity or more")
        if self.max_rows is not None and self.max_rows < self.rows.max():
            raise SettingsError(
                f"chunks: the memory is for {self.max_rows} rows at a time, the longest entity has {self.rows.max()};"
                " allow more memory"
            )

    def of_pass(self, number: int) -> tuple[I64, I64]:
        """(all entities in this pass's order, where each chunk begins in it and where the last one ends)."""
        order = permutation(derive_key(self.seed, "chunks", number), len(self.rows))
        if self.chunk_size is not None:
            return order, np.append(np.arange(0, len(order), self.chunk_size), len(order))
        assert self.max_rows is not None
        ends = np.cumsum(self.rows[order])
        borders = [0]
        while borders[-1] < len(order):
            held = int(ends[borders[-1] - 1]) if borders[-1] else 0
            borders.append(int(np.searchsorted(ends, held + self.max_rows, side="right")))
        return order, np.array(borders, np.int64)

    def place(self, epoch: int) -> tuple[int, int]:
        """(pass, chunk of it) of an epoch, both from 0."""
        if self.chunk_size is not None:
            return divmod(epoch, -(-len(self.rows) // self.chunk_size))
        while self._before[-1] <= epoch:  # how many chunks a pass has depends on its order
            self._before.append(self._before[-1] + len(self.of_pass(len(self._before) - 1)[1]) - 1)
        number = int(np.searchsorted(self._before, epoch, side="right")) - 1
        return number, epoch - self._before[number]

    def entities(self, epoch: int) -> I64:
        """The entities of an epoch's chunk, ascending."""
        number, chunk = self.place(epoch)
        order, borders = self.of_pass(number)
        return np.sort(order[borders[chunk] : borders[chunk + 1]])


def choose_entities(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.bool_]:
    """The `count` entities whose keyed hashes are the smallest: bool [E]; more entities beside them change little."""
    chosen = np.zeros(len(high), bool)
    chosen[np.lexsort((low, high))[:count]] = True
    return chosen
