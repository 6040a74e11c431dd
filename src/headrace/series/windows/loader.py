"""Stream windows as items: choose their order, and gather the batches of one rank in this process.

Epoch positions are shared among ranks as those of rows are, see `stream.loader.items`. An epoch has
all windows, read from the mapped store, or those of a chunk of entities that is copied to memory,
see `Chunked`. `shuffle` chooses how its order maps positions 0..N-1 to window numbers:

- "everywhere": one permutation of all windows. It takes 8 bytes a window, or nothing for very large
counts.
- "nearby": groups of entities that are close in the store are permuted, laid end to end and cut
  into lanes; the next segments of all lanes are permuted together. At any time an epoch reads in
  one region per lane, so a store larger than memory is read page after page. It is the order of
  rows in a stream with one group, see `stream.order`.
- "none": in the order of their numbers.

An order depends on the windows, seed and epoch, and for "nearby" on the lanes and their segments.
It does not depend on ranks or batches, so a state resumes on any number of ranks and with any batch
size.

A pass over chunks permutes the entities with its own key and cuts this sequence into chunks of a
fixed number of entities. An epoch is a chunk. Chunks follow from the seed and the epoch number, so
every rank computes the same ones, and resuming needs only the epoch number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, Unpack, get_args

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.checks import check_integer, check_word
from headrace.digest import canonical_json, derive_key, sha256_hex
from headrace.draws import permuted
from headrace.errors import SettingsError, setting, setting_name
from headrace.keyed_hash import hash_texts, permutation
from headrace.sealed import MOST_LANES
from headrace.series.windows.windows import Windows
from headrace.stream.loader.items import (
    MADE_TOGETHER,
    ItemArguments,
    ItemPass,
    ItemPasses,
    item_index,
    item_options,
    no_block,
)
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.epoch import epoch_order
from headrace.stream.order.lanes import Lanes
from headrace.stream.order.state import StreamState
from headrace.stream.ranks.topology import Topology, confirm_rank
from headrace.stream.read.ahead import result_of, start_threads
from headrace.stream.read.batch import Batch, import_torch


class ChunkPlan:
    """The chunks of `chunk_size` entities of all epochs; a pass is as many epochs as it takes to
    see every entity once.

    Raises `SettingsError` if there is no entity.
    """

    def __init__(self, entities: int, seed: int, *, chunk_size: int) -> None:
        if not entities:
            raise SettingsError(
                "no entity has a window to train on", remedy="prepare more, or ask for less"
            )
        self.seed = seed
        self.chunk_size = chunk_size
        self._entities = entities

    def locate(self, epoch: int) -> tuple[int, int]:
        """Return (pass, chunk within it) of an epoch, both from 0."""
        return divmod(epoch, -(-self._entities // self.chunk_size))

    def entities(self, epoch: int) -> I64:
        """Return the entities of an epoch's chunk, ascending."""
        number, chunk = self.locate(epoch)
        order = permutation(derive_key(self.seed, "chunks", number), self._entities)
        return np.sort(order[chunk * self.chunk_size : (chunk + 1) * self.chunk_size])


def check_chunk_size(chunk_size: int | None) -> None:
    """Raise `SettingsError` unless the setting is None, or an integer of 1 or more."""
    if chunk_size is not None:
        check_integer("windows: chunk_size", chunk_size, least=1)


class Chunked(ChunkPlan):
    """A chunk plan that loads each epoch's chunk of windows into memory; a pass has every window
    once.

    Entities without a window are in no chunk.
    """

    def __init__(self, windows: Windows, *, seed: int, chunk_size: int) -> None:
        self._windows = windows
        self._able = np.flatnonzero(windows.per_entity)
        super().__init__(len(self._able), seed, chunk_size=chunk_size)
        self.identity = sha256_hex(canonical_json([windows.identity, chunk_size]))
        self._cached: tuple[int, Windows] | None = None
        self._coming: tuple[int, Future[Windows]] | None = None

    def entities(self, epoch: int) -> I64:
        """Return the entities of the epoch's chunk, ascending."""
        return self._able[super().entities(epoch)]

    def count(self, epoch: int) -> int:
        """Count the windows of the epoch's chunk."""
        return int(self._windows.per_entity[self.entities(epoch)].sum())

    def windows(self, epoch: int) -> Windows:
        """Return the windows of the epoch's chunk, and start reading the next chunk.

        Re-raises errors of reading.
        """
        if self._cached is None or self._cached[0] != epoch:
            self._cached = None  # release it first, so that memory never holds more than two chunks
            coming = self._coming
            self._coming = None
            ready = None
            if coming is not None and coming[0] == epoch:
                ready = result_of(coming[1])
            self._cached = (epoch, self._load(epoch) if ready is None else ready)
        if self._coming is None or self._coming[0] != epoch + 1:
            thread = start_threads(1, name="headrace-chunk")
            self._coming = (epoch + 1, thread.submit(self._load, epoch + 1))
            thread.shutdown(wait=False)  # the thread ends when the chunk is read
        return self._cached[1]

    def close(self) -> None:
        """Wait for a read in progress, and release it and the chunk held."""
        if self._coming is not None and not self._coming[1].cancel():
            self._coming[1].exception()
        self._cached = self._coming = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached": None, "_coming": None}

    def _load(self, epoch: int) -> Windows:
        return self._windows.in_memory(self.entities(epoch))


log = logging.getLogger("headrace")

Shuffle = Literal["everywhere", "nearby", "none"]

# windows whose permutation is kept, 32 MiB; above, each position is computed when needed
_KEPT = 1 << 22
_GROUP_ROWS = 1 << 16  # rows of a group of neighbouring entities in "nearby"
_NAMES = derive_key(0, "entity identity")


def _everywhere(count: int, *, seed: int, epoch: int) -> Callable[[I64], I64]:
    key = derive_key(seed, "windows", epoch)
    if count <= _KEPT:
        order = permutation(key, count)
        return lambda positions: order[positions]
    word = np.array([(key[0] ^ (key[1] * 0x9E3779B97F4A7C15)) & 0xFFFFFFFFFFFFFFFF], np.uint64)
    return lambda positions: permuted(word, np.array([count], np.int64), positions)


def _nearby(windows: Windows, state: StreamState) -> Callable[[I64], I64]:
    names = windows.store.entities.names
    rows = windows.store.entities.rows
    if len(rows):
        group = np.concatenate([[0], np.cumsum(rows)[:-1] // _GROUP_ROWS])
    else:
        group = np.empty(0, np.int64)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    high, low = hash_texts(_NAMES, names.take(pa.array(starts)))
    identities = np.column_stack([high, low, np.zeros(len(high), np.uint64)])
    if len(starts):
        counts = np.add.reduceat(windows.per_entity, starts)
    else:
        counts = np.empty(0, np.int64)
    first = np.cumsum(counts) - counts
    order = epoch_order(
        counts,
        identities,
        seed=state.seed,
        epoch=state.epoch,
        lanes=state.lanes,
        window_rows=state.window_rows,
        groups=1,
        shuffle=True,
    )

    def numbers(positions: I64) -> I64:
        group, inside = order.locate(order.line_of(positions))
        window: I64 = first[group] + inside
        return window

    return numbers


class WindowStreamArguments(ItemArguments, total=False):
    """The options of a window stream other than its batch size; see `WindowLoader`."""

    shuffle: Shuffle
    seed: int
    chunk_size: int | None
    lanes: int
    lane_windows: int
    topology: Topology | None


class WindowItems:
    """Windows as stream items: each epoch has all of them, mapped, or a chunk of them.

    shuffle: their order.
    """

    def __init__(
        self, windows: Windows, chunks: Chunked | None, *, shuffle: Shuffle, lanes: Lanes
    ) -> None:
        self.windows = windows
        self.chunks = chunks
        self.shuffle = shuffle
        self.lanes = lanes
        self.split = windows.split
        self.identity = sha256_hex(canonical_json([(chunks or windows).identity, shuffle]))

    def count(self, epoch: int) -> int:
        """Count the windows of an epoch, over all ranks."""
        if self.chunks is None:
            return len(self.windows)
        return self.chunks.count(epoch)

    def chunk(self, epoch: int) -> tuple[int, int] | None:
        """Return (pass over all entities, chunk within it), or None without chunks."""
        if self.chunks is None:
            return None
        return self.chunks.locate(epoch)

    def sample(self) -> dict[str, Any]:
        """Return an empty batch."""
        return self.windows.batch([])

    def batches(
        self, state: StreamState, positions: Iterator[I64], options: StreamOptions
    ) -> Generator[dict[str, Any], None, None]:
        """Gather each batch with one copy. Windows are located for many batches at a time."""
        if self.chunks is None:
            windows = self.windows
        else:
            windows = self.chunks.windows(state.epoch)
        convert: Callable[[dict[str, Any]], dict[str, Any]] = dict
        if options.batch_format == "torch":
            convert = partial(as_tensors, torch=import_torch())
        size = options.batch_size
        order: Callable[[I64], I64] = lambda positions: positions  # noqa: E731 - the identity, unless shuffled
        if self.shuffle == "everywhere":
            order = _everywhere(state.rows, seed=state.seed, epoch=state.epoch)
        elif self.shuffle == "nearby":
            order = _nearby(windows, state)
        for chunk in positions:
            located = windows.locate(order(chunk))
            parts = [located.part(begin, begin + size) for begin in range(0, len(chunk), size)]
            for first in range(0, len(parts), MADE_TOGETHER):
                group = parts[first : first + MADE_TOGETHER]
                for part, labels in zip(
                    group, [convert(windows.gather_labels(part)) for part in group], strict=True
                ):
                    # No name holds the values while the loop has them, so their memory is free once
                    # it drops them.
                    yield {**convert(windows.gather_values(part)), **labels}


class WindowLoader(StreamLoader):
    """Batches for one rank: over all ranks, every window of the epoch once, and the same number of
    batches on each.

    chunk_size: entities of a chunk in memory; an epoch is then a chunk, one of `epochs`, see
    `Chunked`. None: an epoch is all windows, read from the mapped store.
    shuffle: "everywhere" permutes all windows; "nearby" permutes groups of entities that are close
    in the store, which suits a store larger than memory; "none" keeps their order.
    lanes, lane_windows: for "nearby", the number of lanes that are mixed, and the windows that each
    contributes at a time. topology: this rank; None: detected now.
    options: see `StreamOptions`.

    Batches are dicts of torch tensors (dates as int64 microseconds) or numpy arrays with the shapes
    of `Windows.gather`. Their array "valid", bool [B], is false for windows that only fill the last
    step; in that step a rank may have no valid window.

    Raises `SettingsError` for settings that cannot work.
    """

    def __init__(  # noqa: PLR0913 - all are settings
        self,
        windows: Windows,
        *,
        batch_size: int,
        shuffle: Shuffle = "everywhere",
        seed: int = 0,
        chunk_size: int | None = None,
        lanes: int = 16,
        lane_windows: int = 4096,
        topology: Topology | None = None,
        **options: Unpack[ItemArguments],
    ) -> None:
        check_integer("windows: lanes", lanes, least=1, most=MOST_LANES)
        check_integer("windows: lane_windows", lane_windows, least=1)
        check_word("windows: shuffle", shuffle, get_args(Shuffle))
        check_chunk_size(chunk_size)
        checked = item_options(batch_size, options, shuffle=shuffle != "none", seed=seed)
        self.epochs: Chunked | None = None
        if chunk_size is not None:
            self.epochs = Chunked(windows, seed=seed, chunk_size=chunk_size)
        items = WindowItems(
            windows, self.epochs, shuffle=shuffle, lanes=Lanes(lanes, lane_windows, 1)
        )
        super().__init__(item_index(items), no_block, checked, ItemPasses, topology=topology)
        count = items.count(0)
        if self.remainder == "drop" and count and not self.current.steps:
            raise SettingsError(
                f"{setting('remainder', 'drop')} leaves no step: the first epoch has {count}"
                f" windows, and a step of {self.topology.world_size} ranks takes"
                f" {self.topology.world_size * batch_size}",
                setting="remainder",
                value="drop",
                remedy=(
                    f"give a smaller {setting_name('batch_size')} or larger chunks, or pass"
                    f" {setting('remainder', 'pad')}"
                ),
            )

    def __len__(self) -> int:
        """Number of batches of the present epoch, with those before a loaded state; after its end,
        of the next epoch.
        """
        confirm_rank(self.topology)
        if self._delivered.is_over:
            following = self.passes.begin(self.epoch + 1, self.current)
        else:
            following = self.current
        assert following.steps is not None
        return following.batches_done + following.steps

    def read(self) -> Generator[Batch, None, None]:
        """Read the batches of the present pass from its beginning, monitored but not counted."""
        current = self.current
        if (
            isinstance(current, ItemPass)
            and not current.steps
            and not current.is_partial
            and current.dropped_rows
        ):
            left_out = current.dropped_rows
            log.warning(
                'epoch %d has no step: remainder="drop" leaves out its %d windows',
                self.epoch,
                left_out,
            )
        yield from super().read()


def as_tensors(batch: Mapping[str, Any], torch: Any) -> dict[str, Any]:
    """Return arrays as tensors that share their memory; dates as int64 microseconds."""
    result = {}
    for name, values in batch.items():
        result[name] = torch.from_numpy(
            values.view(np.int64) if values.dtype.kind == "M" else values
        )
    return result
