"""Stream numbered items: an epoch has N of them, and each is made from its position in that epoch.

Windows of series and contexts of histories are such items. They are in no block and have their own
order: an `Items` says how many an epoch has and makes those at given positions. Everything else
works as for rows. Rank r of R takes positions r, r + R, … of those left, `batch_size` at a time, so
a step of all ranks is a run of positions. The loader, its workers and its state (`order.state`) are
the same. No rank depends on which positions the others take, so a state resumes exactly on any
number of ranks and with any batch size.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NoReturn, Protocol, TypedDict, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64
from headrace.checks import check_integer, check_word
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.errors import StreamError, setting
from headrace.sealed import MOST_EPOCHS, short_repr
from headrace.stream.loader.options import VALID, Memory, StreamOptions, check_options
from headrace.stream.loader.passes import Pass, Reading, RowPass, RowPasses
from headrace.stream.loader.source import StreamSource
from headrace.stream.order.lanes import Lanes
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import RankRows, Remainder
from headrace.stream.order.state import StreamState
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.batch import in_format
from headrace.stream.read.transform import Transform
from headrace.stream.workers.options import WorkerArguments

ItemFormat = Literal["torch", "numpy"]
# batches whose small arrays are made in turn: after each gather, the cache is cold
MADE_TOGETHER = 16
_POSITIONS = 1 << 14  # per lookup; a lookup for one batch costs almost as much


class ItemArguments(TypedDict, total=False):
    """The options of a stream of items other than its batch size; see `StreamOptions`."""

    remainder: Remainder | None
    batch_format: ItemFormat
    transform: Transform | None
    memory: Memory
    device: str | None
    read_threads: int | None
    prefetch_bytes: int
    stall_seconds: float | None


class LoopItemArguments(ItemArguments, WorkerArguments, total=False):
    """The options of a stream of items that may have worker processes."""


class Items(Protocol):
    """The items of every epoch; picklable. Errors in making items are raised unchanged."""

    @property
    def split(self) -> str:
        """The name of the split that items are made from, for messages."""

    @property
    def identity(self) -> str:
        """A word that changes whenever an epoch may have other items, or other items at its
        positions.
        """

    @property
    def lanes(self) -> Lanes:
        """The lanes that a new stream records in its states, from which `batches` reads them."""

    def count(self, epoch: int) -> int:
        """Return the number of items of an epoch, over all ranks."""

    def chunk(self, epoch: int) -> tuple[int, int] | None:
        """Return an epoch as (pass over all items, chunk of that pass); None if every epoch is a
        whole pass.
        """

    def sample(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return a batch of no items, which shows names, types and shapes."""

    def batches(
        self, state: StreamState, positions: Iterator[I64], options: StreamOptions
    ) -> Generator[dict[str, Any], None, None]:
        """Yield batches in the format of the options, each of the next `options.batch_size`
        positions of an epoch.

        positions: in pieces of whole batches, except the last. Position p is item p of the state's
        epoch.
        """


@dataclass(frozen=True, kw_only=True)
class ItemIndex(SplitIndex):
    """An index of items in the form of an index of blocks, with one block that is never read."""

    items: Items

    @property
    def identity(self) -> str:
        """The identity of the items."""
        return self.items.identity


def item_index(items: Items) -> ItemIndex:
    """Return the index of these items, with the number that the first epoch has."""
    nothing = np.zeros(1, np.int64)
    fields = []
    for name, array in items.sample().items():
        values = int(np.prod(array.shape[1:]))
        dtype = pa.list_(pa.from_numpy_dtype(array.dtype), values)
        fields.append(pa.field(name, dtype, nullable=False))
    return ItemIndex(
        split=items.split,
        schema=pa.schema(fields),
        shards=(items.split,),
        formats=("items",),
        shard_of_block=nothing,
        block=nothing,
        rows=np.array([items.count(0)], np.int64),
        offset=nothing,
        length=nothing,
        items=items,
    )


def item_options(
    batch_size: int, requested: ItemArguments, *, shuffle: bool, seed: int
) -> StreamOptions:
    """Build the settings of a stream of items.

    Raises `SettingsError` for values that cannot work.
    """
    check_options(requested, ItemArguments.__annotations__)
    check_word("batch_format", requested.get("batch_format", "torch"), get_args(ItemFormat))
    return StreamOptions(
        batch_size=batch_size, shuffle=shuffle, seed=seed, packed="off", **requested
    )


def item_source(
    items: Items, batch_size: int, requested: ItemArguments, *, shuffle: bool, seed: int
) -> StreamSource:
    """Return the source of a stream of items.

    Raises `SettingsError` for options that cannot work.
    """
    options = item_options(batch_size, requested, shuffle=shuffle, seed=seed)
    return StreamSource(item_index(items), no_block, options, ItemPasses)


def no_block(block: int, columns: Sequence[str] | None) -> NoReturn:
    """Fail if called: a placeholder for the block reader of a stream, as items have no blocks."""
    raise AssertionError(f"block {block} of items, columns {columns}")


class ItemPasses(RowPasses):
    """Passes over items, as batches of `options.batch_size` items on each rank; see `RowPasses`."""

    def __init__(
        self, index: SplitIndex, read_block: ReadBlock, options: StreamOptions, topology: Topology
    ) -> None:
        super().__init__(index, read_block, options, topology)
        assert isinstance(index, ItemIndex)
        self.items = index.items

    def of_epoch(self, epoch: int) -> SplitIndex:
        """Return the index with the number of items of this epoch."""
        return replace(self.index, rows=np.array([self.items.count(epoch)], np.int64))

    def begin(self, epoch: int, after: Pass | None = None) -> ItemPass:
        """Begin an epoch, in the lanes of the previous pass."""
        check_integer("epoch", epoch, least=0, most=MOST_EPOCHS)
        lanes = self.items.lanes
        if isinstance(after, ItemPass):
            lanes = Lanes(after.start.lanes, after.start.window_rows, after.start.groups)
        pass_number, chunk = self.items.chunk(epoch) or (None, None)
        return self.at(
            self.state_of(
                epoch, lanes, rows=self.items.count(epoch), pass_number=pass_number, chunk=chunk
            )
        )

    def at(self, start: StreamState) -> ItemPass:
        """Return the pass that starts at a state."""
        return ItemPass(self, start)

    def checked(self, values: Mapping[str, Any]) -> StreamState:
        """Return a saved state that belongs to these items, this seed and shuffle.

        Raises `StreamError` for others.
        """
        state = StreamState.from_dict(values)
        if (state.split, state.index) != (self.index.split, self.index.identity):
            raise StreamError(
                f"stream state: it is of split {short_repr(state.split)} with index"
                f" {short_repr(state.index[:12])}, this stream reads"
                f" {short_repr(self.index.split)} with {short_repr(self.index.identity[:12])}; the"
                f" run, the options of windows or contexts, {setting('shuffle')} or the chunks are"
                " others than when it was saved",
                remedy="open them as they were, or start the epoch again",
            )
        state.check_order(seed=self.options.seed, shuffle=self.options.shuffle)
        state.check_index(self.of_epoch(state.epoch))
        here = self.begin(state.epoch).start
        if (
            state.changes
            or state.shard_partition is not None
            or (state.pass_number, state.chunk) != (here.pass_number, here.chunk)
        ):
            raise StreamError(
                f"stream state: epoch {state.epoch} of {state.split!r} is not one that this stream"
                f" gives: chunk {state.chunk} of pass {state.pass_number}, here chunk"
                f" {here.chunk} of pass {here.pass_number}",
                remedy="pass what state_dict() gave, unchanged, or start the epoch again",
            )
        return state

    def continued(self, state: StreamState) -> StreamState:
        """Return the state unchanged: the order of items does not depend on ranks."""
        return state


class _ItemPlan(Plan):
    """The plan of items: a rank makes only the items that it delivers."""

    @property
    def keeps_split(self) -> bool:
        """False: no decoded split stays in memory."""
        return False

    @property
    def bytes_per_rank(self) -> I64:
        """Bytes of the arrays of each rank's items, without filling items; int64 [R]."""
        return self.rows_per_rank * (int(self.block_bytes.sum()) // max(1, self.split_rows))

    @property
    def _needed_bytes(self) -> int:
        return int(self.bytes_per_rank.sum())


@dataclass(frozen=True, eq=False)
class ItemPass(RowPass):
    """The rest of an epoch of items. start: the state where it begins."""

    passes: ItemPasses
    _plan: ClassVar[type[Plan]] = _ItemPlan

    def batches(self, reading: Reading, *, first: int = 0) -> Generator[dict[str, Any], None, None]:  # noqa: ARG002
        """Yield this rank's batches from number `first` on, without reading blocks."""
        rank_rows = self._rank_rows
        options = self.passes.options
        size = options.batch_size
        if first * size >= rank_rows.items:
            return
        with closing(
            self.passes.items.batches(self.start, self._positions(rank_rows, first), options)
        ) as item_batches:
            for batch, mask in zip(item_batches, self._masks(rank_rows, first), strict=True):
                yield {**batch, **mask}

    def _masks(self, rank_rows: RankRows, first: int) -> Iterator[dict[str, Any]]:
        """Yield which items of each batch from number `first` on are valid, made for many batches
        in turn.
        """
        size = self.passes.options.batch_size
        form = self.passes.options.batch_format
        for begin in range(first * size, rank_rows.items, MADE_TOGETHER * size):
            valid = (
                np.arange(begin, min(begin + MADE_TOGETHER * size, rank_rows.items))
                < rank_rows.rows
            )
            yield from [
                in_format({VALID: valid[at : at + size]}, form) for at in range(0, len(valid), size)
            ]

    def _positions(self, rank_rows: RankRows, first: int) -> Iterator[I64]:
        """Yield the positions of this rank's items from batch `first` on, in pieces of whole
        batches.

        Filling items repeat one position.
        """
        size = self.passes.options.batch_size
        left = self.start.remaining
        chunk = max(1, _POSITIONS // size) * size
        for begin in range(first * size, rank_rows.items, chunk):
            end = min(begin + chunk, rank_rows.items)
            indices = rank_rows.indices(begin, end)
            if (filling := end - max(begin, rank_rows.rows)) > 0:
                indices = np.concatenate(
                    [indices, np.full(filling, rank_rows.index_of(rank_rows.rows))]
                )
            yield left.positions(indices)
