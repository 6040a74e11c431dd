"""Windows as items of a stream: batches for one rank, which this process gathers; a thread reads the next chunk.

The positions of an epoch are dealt out to ranks as those of rows are, see `stream.loader.items`. The order of the
positions knows nothing of ranks, so a state resumes on any number of ranks and with any batch size. An epoch has all
windows, straight from the mapped store, or those of a chunk of entities that is copied to memory. Which chunk that is,
is arithmetic (see `series.chunks`), so asking twice, or in another order, changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Unpack

import numpy as np

from headrace.arrays import I64
from headrace.checks import check_integer, check_word
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import SettingsError
from headrace.sealed import MOST_LANES
from headrace.series.arrays.chunks import ChunkPlan
from headrace.series.windows.options import Layout
from headrace.series.windows.order import SHUFFLES, Shuffle, WindowOrder, everywhere, nearby
from headrace.series.windows.windows import Windows
from headrace.stream.loader.items import ItemArguments, ItemPass, ItemPasses, item_index, item_options, no_block
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.lanes import Lanes
from headrace.stream.order.state import StreamState
from headrace.stream.ranks.topology import Topology, confirm
from headrace.stream.read.ahead import start_threads
from headrace.stream.read.batch import Batch, import_torch

log = logging.getLogger("headrace")

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


class WindowItems:
    """Windows as items: all of them every epoch, mapped, or a chunk of them. shuffle: see `order`."""

    def __init__(self, windows: Windows, chunks: Chunked | None, *, shuffle: Shuffle, lanes: Lanes) -> None:
        self.windows, self.chunks, self.shuffle, self.lanes = windows, chunks, shuffle, lanes
        self.split = windows.split
        self.identity = sha256_hex(canonical_json([(chunks or windows).identity, shuffle]))

    def count(self, epoch: int) -> int:
        """Windows of an epoch, over all ranks."""
        return len(self.windows) if self.chunks is None else self.chunks.count(epoch)

    def chunk(self, epoch: int) -> tuple[int, int] | None:
        """(pass over all entities, chunk of it)."""
        return None if self.chunks is None else self.chunks.place(epoch)

    def sample(self) -> dict[str, Any]:
        """A batch of no windows."""
        return self.windows.batch([])

    def batches(
        self, state: StreamState, positions: Iterator[I64], options: StreamOptions
    ) -> Generator[dict[str, Any], None, None]:
        """One gather each. Where windows are is looked up for many batches at once."""
        windows = self.windows if self.chunks is None else self.chunks.windows(state.epoch)
        torch = import_torch() if options.batch_format == "torch" else None
        order, size = self._order(windows, state), options.batch_size
        for piece in positions:
            places = windows.locate(order(piece))
            for begin in range(0, len(piece), size):
                batch = windows.gather(places.part(begin, begin + size), None if torch is None else "views")
                yield batch if torch is None else as_tensors(batch, torch, windows.options.layout)

    def _order(self, windows: Windows, state: StreamState) -> WindowOrder:
        if self.shuffle == "none":
            return lambda positions: positions
        if self.shuffle == "everywhere":
            return everywhere(state.rows, seed=state.seed, epoch=state.epoch)
        entities = windows.store.entities
        return nearby(
            entities.names, entities.rows, windows.per_entity, seed=state.seed, epoch=state.epoch,
            lanes=state.lanes, stretch=state.window_rows,
        )  # fmt: skip


class WindowLoader(StreamLoader):
    """Batches of one rank, every window of the epoch exactly once over all ranks, the same number on each.

    chunk_size or memory_limit_mib: an epoch is a chunk of entities in memory, one of `epochs`, see `Chunked`; neither:
    all windows, straight from the mapped store. shuffle: see `order`; lanes and stretch are of "nearby".
    Batches are dicts of torch tensors (dates as int64 microseconds) or numpy arrays, shaped as `Windows.gather` says,
    and "valid", bool [B], which is false for windows that only fill the last step; there some ranks may have no valid
    one. Other options: see `StreamOptions`. topology: this rank; None: found out now. Raises `SettingsError` for what
    cannot work.
    """

    def __init__(
        self,
        windows: Windows,
        *,
        batch_size: int,
        shuffle: Shuffle = "everywhere",
        seed: int = 0,
        chunk_size: int | None = None,
        memory_limit_mib: int | None = None,
        lanes: int = 16,
        stretch: int = 4096,
        topology: Topology | None = None,
        **options: Unpack[ItemArguments],
    ) -> None:
        for name, value in (("lanes", lanes), ("stretch", stretch)):
            check_integer(f"windows: {name}", value, least=1, most=MOST_LANES if name == "lanes" else None)
        check_word("windows: shuffle", shuffle, SHUFFLES)
        checked = item_options(batch_size, options, shuffle=shuffle != "none", seed=seed)
        self.epochs: Chunked | None = None
        if chunk_size is not None or memory_limit_mib is not None:
            self.epochs = Chunked(windows, seed=seed, chunk_size=chunk_size, memory_limit_mib=memory_limit_mib)
        items = WindowItems(windows, self.epochs, shuffle=shuffle, lanes=Lanes(lanes, stretch, 1))
        super().__init__(item_index(items), no_block, checked, ItemPasses, topology=topology)
        count = items.count(0)
        if self.remainder == "drop" and count and not self.present.steps:
            raise SettingsError(
                f'windows: remainder="drop" leaves no step: the first epoch has {count} windows, and a step'
                f" of {self.topology.world_size} ranks takes {self.topology.world_size * batch_size}; give a smaller"
                ' batch_size or larger chunks, or pass remainder="pad"'
            )

    def __len__(self) -> int:
        """Batches of the present pass from where it began; once it was taken to its end, of the next one."""
        confirm(self.topology)
        following = self.passes.begin(self.epoch + 1, self.present) if self._received.is_over else self.present
        assert following.steps is not None
        return following.steps

    def read(self) -> Generator[Batch, None, None]:
        """The batches of the present pass from its beginning, watched but not counted."""
        present = self.present
        if isinstance(present, ItemPass) and not present.steps and not present.is_partial and present.dropped_rows:
            left_out = present.dropped_rows
            log.warning('epoch %d has no step: remainder="drop" leaves out its %d windows', self.epoch, left_out)
        yield from super().read()


def as_tensors(batch: Mapping[str, Any], torch: Any, layout: Layout = "views") -> dict[str, Any]:
    """Arrays as tensors that share their memory, unless they are to be contiguous; dates become int64 microseconds."""
    tensors = {
        name: torch.from_numpy(values.view(np.int64) if values.dtype.kind == "M" else values)
        for name, values in batch.items()
    }
    return tensors if layout == "views" else {name: each.contiguous() for name, each in tensors.items()}
