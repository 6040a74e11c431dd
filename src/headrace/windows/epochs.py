"""Epochs that are chunks: the windows of some entities, copied to memory while the chunk before is used.

Which chunk an epoch has is arithmetic (see `series.chunks`), so asking twice, or in another order, changes nothing.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import numpy as np

from headrace.arrays import I64
from headrace.checks import check_integer
from headrace.digest import canonical_json, sha256_hex
from headrace.series.chunks import ChunkPlan
from headrace.stream.read.threads import start_threads
from headrace.windows.windows import Windows

_MIB = 1 << 20


class Chunked:
    """Every epoch has the windows of one chunk, in memory; over a pass every window comes once.

    chunk_size: entities of a chunk; memory_limit_mib: MiB that this chunk and the next take together, in each process.
    Entities without a window are in no chunk.
    """

    def __init__(
        self, windows: Windows, *, seed: int, chunk_size: int | None = None, memory_limit_mib: int | None = None
    ) -> None:
        for name, value in (("chunk_size", chunk_size), ("memory_limit_mib", memory_limit_mib)):
            if value is not None:
                check_integer(f"windows: {name}", value, least=1)
        self._windows = windows
        self._entities = np.flatnonzero(windows.per_entity)
        row_bytes = 4 * windows.matrices.columns
        max_rows = None if memory_limit_mib is None else memory_limit_mib * _MIB // 2 // row_bytes
        rows = (windows.ends - windows.begins)[self._entities]
        self._plan = ChunkPlan(rows, seed, chunk_size=chunk_size, max_rows=max_rows)
        self.identity = sha256_hex(canonical_json([windows.identity, chunk_size, memory_limit_mib]))
        self._held: tuple[int, Windows] | None = None
        self._coming: tuple[int, Future[Windows]] | None = None

    def place(self, epoch: int) -> tuple[int, int]:
        """(pass, chunk of it)."""
        return self._plan.place(epoch)

    def entities(self, epoch: int) -> I64:
        """The entities of the epoch's chunk, ascending."""
        return self._entities[self._plan.entities(epoch)]

    def count(self, epoch: int) -> int:
        """Windows of the epoch's chunk."""
        return int(self._windows.per_entity[self.entities(epoch)].sum())

    def windows(self, epoch: int) -> Windows:
        """Those of the epoch's chunk, and have the next chunk read. Raises what reading it raised."""
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
        if self._coming is not None:
            self._coming[1].cancel()
            self._coming[1].exception() if not self._coming[1].cancelled() else None
        self._held = self._coming = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_coming": None}

    def _load(self, epoch: int) -> Windows:
        return self._windows.in_memory(self.entities(epoch))
