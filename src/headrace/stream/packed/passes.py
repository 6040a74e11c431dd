"""A pass over rows of tokens that are packed while they are read: from a plan to batches. Shared by both loaders.

Windows of rows come from the same readers as any stream; their bins are those of `packing_plan`. A part of a window is
laid end to end by one gather for each column, whatever the number of its sequences.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I32, I64
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.errors import CorruptShard, InputError, SettingsError
from headrace.packing.alignment import shift_left
from headrace.packing.bins import Bins
from headrace.stream.loader.options import VALID, StreamOptions
from headrace.stream.loader.passes import check_options, delivered, plan_pass, reader_name
from headrace.stream.order.share import Remainder, advance, resolve_remainder
from headrace.stream.order.state import StreamState
from headrace.stream.packed.batches import MADE, PackedBatches
from headrace.stream.packed.pack_rows import PackRows
from headrace.stream.packed.packed_batch import Laid, make_packed_batch
from headrace.stream.packed.plan import PackingPlan
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.batch import Batch, in_format, make_batch
from headrace.stream.read.columns import Columns, cut, from_table, gather, join
from headrace.stream.read.ragged import Ragged
from headrace.stream.read.reader import read_share


class PackingPasses:
    """Passes over the rows of a split, `consumers` readers each; picklable if `read_block` is.

    lengths: tokens of every row of the index, int32 [N]. rows: how rows are read, a window as a batch; remainder: what
    becomes of the last batch of bins. Raises `SettingsError` for options that packing does not have, `InputError` for
    rows that are too long where the settings say so.
    """

    def __init__(
        self, index: SplitIndex, read_block: ReadBlock, options: StreamOptions, *, lengths: I32, consumers: int
    ) -> None:
        assert options.pack_rows is not None
        self.index, self.options, self.consumers = index, options, consumers
        self.pack, self.form = options.pack_rows, packing_settings(options)
        self.remainder: Remainder = resolve_remainder(options.remainder, consumers)
        self.rows = replace(
            options,
            batch_size=self.pack.buffer_rows,
            columns=columns_to_read(self.pack, options.columns),
            batch_format="numpy",
            remainder="pad",
            packed="off",
            pack=None,
            transform=None,
            memory="pageable",
        )
        check_options(index, replace(self.rows, batch_format=options.batch_format), consumers=consumers)
        self.read_block: ReadBlock = _TokenBlocks(read_block, self.pack)
        self._lengths = lengths

    @property
    def identity(self) -> str:
        """A digest of what decides which rows lie in which bin."""
        return f"{self.pack.identity}-{self.form.last_token}"

    def plan(self, start: StreamState, *, consumers: int | None = None, batch_size: int | None = None) -> PackingPlan:
        """The bins of the pass that begins at `start`; consumers, batch_size: of another topology than this one."""
        topology = Topology(rank=0, world_size=consumers or self.consumers)
        return PackingPlan(
            plan=plan_pass(self.index, self.rows, start, topology=topology, workers=0),
            lengths=self._lengths,
            first_row=self.index.first_row,
            pack=self.pack,
            counted="runtime" if self.form.last_token == "drop" else "stored",
            batch_size=batch_size or self.options.batch_size,
            shuffle=self.rows.shuffle,
            seed=self.rows.seed,
            epoch=start.epoch,
        )

    def batches(
        self,
        read_block: ReadBlock,
        start: StreamState,
        plan: PackingPlan,
        *,
        topology: Topology,
        worker: int,
        workers: int,
        given: int,
    ) -> Generator[Any, None, None]:
        """The batches of one (rank, worker) of the pass that begins at `start`, after the first `given` of them."""
        reader = reader_name(topology, worker=worker, workers=workers)
        consumer = worker * topology.world_size + topology.rank
        return delivered(self._made(read_block, start, plan, consumer, given, reader), self.options, reader=reader)

    def _made(
        self, read_block: ReadBlock, start: StreamState, plan: PackingPlan, consumer: int, given: int, reader: str
    ) -> Generator[Batch, None, None]:
        left = plan.steps - given
        parts: list[tuple[Laid, Columns]] = []
        ready = 0
        with closing(self._laid(read_block, start, plan, consumer, given, reader)) as laid:
            for part in laid:
                parts.append(part)
                ready += len(part[0].tokens)
                if ready == plan.batch_size:
                    yield self._batch(parts, ready)
                    parts, ready, left = [], 0, left - 1
        if self.remainder == "exact":
            if ready:
                yield self._batch(parts, ready)
            return
        for _ in range(left):
            yield self._batch([*parts, (self._filling(plan.batch_size - ready), {})], ready)
            parts, ready = [], 0

    def _laid(
        self, read_block: ReadBlock, start: StreamState, plan: PackingPlan, consumer: int, given: int, reader: str
    ) -> Generator[tuple[Laid, Columns], None, None]:
        """Bins from where the pass goes on, in parts that end where batches and windows end."""
        size = plan.batch_size
        ends = np.cumsum(plan.bins_of_windows(consumer))
        window = int(np.searchsorted(ends, given * size, side="right"))
        if window == len(ends):
            return
        at = given * size - (int(ends[window - 1]) if window else 0)
        room = size
        known = zip(plan.windows(consumer, window), plan.window_lengths(consumer, window), strict=True)
        with closing(self._windows(read_block, start, consumer, window, reader)) as windows:
            for columns, (bins, lengths) in zip(windows, known, strict=True):
                columns = cut(columns, 0, len(lengths))  # the rest fills the last window up
                self._check(columns, lengths, reader)
                kept = plan.kept(lengths)
                while at < len(bins):
                    stop = min(len(bins), at + room)
                    yield self._lay(columns, bins[at:stop], kept)
                    room = room - (stop - at) or size
                    at = stop
                at = 0

    def _windows(
        self, read_block: ReadBlock, start: StreamState, consumer: int, first: int, reader: str
    ) -> Generator[Columns, None, None]:
        """The columns of each window of this reader's rows, from window `first` on."""
        left = advance(
            start.remaining,
            first,
            world_size=self.consumers,
            workers=0,
            batch_size=self.pack.buffer_rows,
            remainder="pad",
        )
        topology = Topology(rank=consumer, world_size=self.consumers)
        plan = plan_pass(self.index, self.rows, start.at(left), topology=topology, workers=0)
        return read_share(
            self.index,
            read_block,
            plan=plan,
            share=plan.share(rank=consumer),
            options=self.rows,
            columns=self.rows.check_columns(self.index.schema.names),
            reader=reader,
            make=_whole_windows,
        )

    def _check(self, columns: Columns, lengths: I64, reader: str) -> None:
        tokens: Any = columns[self.pack.tokens]
        if not np.array_equal(tokens.lengths, lengths):
            raise CorruptShard(
                f"{reader}: rows have other lengths than when they were counted; the shards changed, or column"
                f" {self.pack.lengths or self.pack.tokens} says something else: open the dataset again"
            )
        if self.pack.mask is None:
            return
        mask: Any = columns[self.pack.mask]
        unlike = np.flatnonzero(mask.lengths != lengths)
        if len(unlike):
            row = int(unlike[0])
            raise InputError(
                f"{reader}: a row has {lengths[row]} values in column {self.pack.tokens} and {mask.lengths[row]} in"
                f" {self.pack.mask}; a mask is as long as its tokens: write the file anew"
            )

    def _lay(self, columns: Columns, bins: Bins, kept: I64) -> tuple[Laid, Columns]:
        """Some bins of a window, end to end, and the other columns of their rows."""
        rows = bins.sequences
        lengths = kept[rows]
        ends = np.cumsum(lengths)
        ids = _picked(columns[self.pack.tokens], rows, lengths).astype(np.int64)
        if self.pack.mask is None:
            mask = np.ones(len(ids), np.uint8)
        else:
            mask = _picked(columns[self.pack.mask], rows, lengths).astype(np.uint8)
        if self.pack.mask is None or self.pack.mask_alignment == "unshifted":
            mask = shift_left(mask, ends)
        else:
            mask[ends - 1] = 0
        laid = Laid(input_ids=ids, loss_mask=mask, lengths=lengths, sequences=bins.counts, tokens=bins.loads(kept))
        own = (self.pack.tokens, self.pack.mask, VALID)
        others = {name: column for name, column in columns.items() if name not in own}
        return laid, gather([others], rows) if others else {}

    def _filling(self, bins: int) -> Laid:
        """Bins of a few filling tokens, that train nothing."""
        tokens = min(2, self.pack.capacity)
        ones = np.ones(bins, np.int64)
        return Laid(
            input_ids=np.full(bins * tokens, self.form.pad_id, np.int64),
            loss_mask=np.zeros(bins * tokens, np.uint8),
            lengths=ones * tokens,
            sequences=ones,
            tokens=ones * tokens,
        )

    def _batch(self, parts: Sequence[tuple[Laid, Columns]], real: int) -> Batch:
        laid = Laid.join([part for part, _ in parts])
        batch = in_format(make_packed_batch(laid, self.form), self.options.batch_format)
        others = [columns for _, columns in parts if columns] or self._no_others()
        if others:
            beside = make_batch(join(others), self.options.batch_format)
            assert isinstance(beside, dict)
            batch |= beside
        return batch | in_format({VALID: np.arange(len(laid.tokens)) < real}, self.options.batch_format)

    def _no_others(self) -> list[Columns]:
        """The other columns of no sequence; nothing where none were asked for."""
        own = (self.pack.tokens, self.pack.mask)
        fields = [self.index.schema.field(name) for name in self.rows.columns or () if name not in own]
        empty = pa.schema(fields).empty_table()
        none = np.zeros(0, np.int64)
        return [gather([from_table(empty, arrow=False, where="no rows")], none)] if fields else []


def packing_settings(options: StreamOptions) -> PackedBatches:
    """How bins become batches. Raises `SettingsError` for options that a packing stream does not have."""
    if options.packed == "off":
        raise SettingsError('pack= makes packed batches; leave packed="off" out')
    if options.remainder == "drop":
        raise SettingsError('pack= puts every row into a bin; use remainder="pad", or "exact" on one rank')
    if options.distribution != "balanced" or options.on_bad_block != "raise":
        raise SettingsError(
            f'pack= knows the lengths of all rows before it begins; distribution="{options.distribution}" and'
            f' on_bad_block="{options.on_bad_block}" decide later: use "balanced" and "raise"'
        )
    if options.batch_format not in ("torch", "numpy"):
        raise SettingsError(
            f'pack= makes tensors or arrays; use batch_format="torch" or "numpy", not "{options.batch_format}"'
        )
    if options.lists != "ragged":
        raise SettingsError(
            'pack= makes rows of its own; leave lists="padded" out, see headrace.PackedBatches(pad_to=)'
        )
    return options.packed_batches or PackedBatches()


def columns_to_read(pack: PackRows, asked: Sequence[str] | None) -> tuple[str, ...]:
    """Tokens, mask, and what else was asked for. Raises `SettingsError` for names that batches have otherwise."""
    own = [name for name in (pack.tokens, pack.mask) if name is not None]
    others = [name for name in asked or () if name not in own]
    taken = [name for name in others if name in (*MADE, VALID)]
    if taken:
        raise SettingsError(f"pack: columns {taken} are in the way of what packed batches hold; leave them out")
    return (*own, *others)


class _TokenBlocks:
    """Blocks of rows of tokens: lists of whole numbers, and a mask as long as each. Picklable; safe from any thread."""

    def __init__(self, read_block: ReadBlock, pack: PackRows) -> None:
        self._read_block, self._pack = read_block, pack

    def __call__(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        table = self._read_block(number, columns)
        for name in (self._pack.tokens, self._pack.mask):
            if name is None or name not in table.column_names:
                continue
            kind = table.schema.field(name).type
            lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
            if lists and pa.types.is_boolean(kind.value_type) and name == self._pack.mask:
                place = table.schema.get_field_index(name)
                table = table.set_column(place, name, table[name].cast(pa.list_(pa.uint8())))
            elif not lists or not pa.types.is_integer(kind.value_type):
                raise InputError(f"column {name} is {kind}; packing needs lists of whole numbers")
            if table[name].null_count:
                raise InputError(f"column {name} holds nulls; a sequence without tokens is an empty list")
        return table


def _whole_windows(columns: Columns, batch_size: int) -> Iterator[Columns]:
    """Windows as columns, for `read_share`."""
    rows = len(next(iter(columns.values())))
    return (cut(columns, start, start + batch_size) for start in range(0, rows, batch_size))


def _picked(column: Any, rows: I64, lengths: I64) -> npt.NDArray[Any]:
    """The first `lengths` values of these rows' lists, end to end."""
    return Ragged(values=column.values, starts=column.starts[rows], lengths=lengths, missing=None).compact().values
