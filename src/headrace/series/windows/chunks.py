"""Choose which entities are in memory together, epoch by epoch: chunks of passes over all of them.

A pass permutes the entities by its own key and cuts this line into chunks: every so many entities, or as many as have
at most so many rows together. An epoch is a chunk. All of it is a function of the seed, the number of the epoch and the
entities' rows, so every rank has the same chunks, and a resume needs no more than the number of the epoch.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np

from headrace.arrays import I64
from headrace.checks import check_integer
from headrace.digest import canonical_json, derive_key, permutation, sha256_hex
from headrace.errors import SettingsError
from headrace.series.windows.windows import Windows
from headrace.stream.read.ahead import start_threads

_MIB = 1 << 20


class ChunkPlan:
    """The chunks of all epochs.

    rows: of each entity, int64 [E], E ≥ 1. chunk_size: entities of a chunk; or max_rows: most rows of a chunk, at least
    those of the longest entity. Raises `SettingsError` where that cannot be.
    """

    def __init__(self, rows: I64, seed: int, *, chunk_size: int | None = None, max_rows: int | None = None) -> None:
        if not len(rows):
            raise SettingsError("chunks: there is no entity with a window to train on; prepare more, or ask for less")
        if max_rows is not None and max_rows < rows.max():
            raise SettingsError(
                f"chunks: the memory is for {max_rows} rows at a time, the longest entity has {rows.max()}; allow more"
                " memory"
            )
        self.rows, self.seed, self.chunk_size, self.max_rows = rows, seed, chunk_size, max_rows
        self._before = [0]  # how many chunks the passes have together, as far as asked for

    def of_pass(self, number: int) -> tuple[I64, I64]:
        """Return all entities in this pass's order, and where each chunk begins in it and the last one ends."""
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
        """Return (pass, chunk of it) of an epoch, both from 0."""
        if self.chunk_size is not None:
            return divmod(epoch, -(-len(self.rows) // self.chunk_size))
        while self._before[-1] <= epoch:  # how many chunks a pass has depends on its order
            self._before.append(self._before[-1] + len(self.of_pass(len(self._before) - 1)[1]) - 1)
        number = int(np.searchsorted(self._before, epoch, side="right")) - 1
        return number, epoch - self._before[number]

    def entities(self, epoch: int) -> I64:
        """Return the entities of an epoch's chunk, ascending."""
        number, chunk = self.place(epoch)
        order, borders = self.of_pass(number)
        return np.sort(order[borders[chunk] : borders[chunk + 1]])


def check_chunks(chunk_size: int | None, memory_limit_mib: int | None) -> None:
    """Raise `SettingsError` unless at most one of the two is given, as an integer of 1 or more."""
    for name, value in (("chunk_size", chunk_size), ("memory_limit_mib", memory_limit_mib)):
        if value is not None:
            check_integer(f"windows: {name}", value, least=1)
    if chunk_size is not None and memory_limit_mib is not None:
        raise SettingsError(
            f"windows: chunk_size is {chunk_size} and memory_limit_mib is {memory_limit_mib}; give one of them"
        )


class Chunked(ChunkPlan):
    """Every epoch has the windows of one chunk, in memory; over a pass every window comes once.

    chunk_size: entities of a chunk; or memory_limit_mib: MiB that this chunk and the next take together, in each
    process. Entities without a window are in no chunk.
    """

    def __init__(
        self, windows: Windows, *, seed: int, chunk_size: int | None = None, memory_limit_mib: int | None = None
    ) -> None:
        check_chunks(chunk_size, memory_limit_mib)
        self._windows, self._able = windows, np.flatnonzero(windows.per_entity)
        row_bytes = 4 * windows.matrices.columns
        max_rows = None if memory_limit_mib is None else memory_limit_mib * _MIB // 2 // row_bytes
        super().__init__((windows.ends - windows.begins)[self._able], seed, chunk_size=chunk_size, max_rows=max_rows)
        self.identity = sha256_hex(canonical_json([windows.identity, chunk_size, memory_limit_mib]))
        self._held: tuple[int, Windows] | None = None
        self._coming: tuple[int, Future[Windows]] | None = None

    def entities(self, epoch: int) -> I64:
        """Return the entities of the epoch's chunk, ascending."""
        return self._able[super().entities(epoch)]

    def count(self, epoch: int) -> int:
        """Count the windows of the epoch's chunk."""
        return int(self._windows.per_entity[self.entities(epoch)].sum())

    def windows(self, epoch: int) -> Windows:
        """Return those of the epoch's chunk, and have the next chunk read. Raises what reading it raised."""
        if self._held is None or self._held[0] != epoch:
            self._held = None  # before another is read: there are never more than two
            coming, self._coming = self._coming, None
            ready = coming[1].result() if coming is not None and coming[0] == epoch else None
            self._held = (epoch, self._load(epoch) if ready is None else ready)
        if self._coming is None or self._coming[0] != epoch + 1:
            thread = start_threads(1, name="headrace-chunk")
            self._coming = (epoch + 1, thread.submit(self._load, epoch + 1))
            thread.shutdown(wait=False)  # it ends with the chunk
        return self._held[1]

    def close(self) -> None:
        """Wait for what is being read, and let go of it and of the chunk held."""
        if self._coming is not None and not self._coming[1].cancel():
            self._coming[1].exception()
        self._held = self._coming = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_coming": None}

    def _load(self, epoch: int) -> Windows:
        return self._windows.in_memory(self.entities(epoch))
