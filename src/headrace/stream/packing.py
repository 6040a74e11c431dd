"""A stream of rows of tokens, packed while it is read: the loader.

    loader = headrace.open("tokens").stream(batch_size=4, shuffle=True, pack=4096)  # four bins of 4,096 tokens a batch
    for batch in loader: ...                                                        # as of rows packed before

The rows of each rank are read a window of `buffer_rows` at a time, and a window becomes bins of its own, as in
`packing_plan`. Lengths are known before, so the number of batches is arithmetic: every rank has as many as the one with
the most bins needs, and what a rank lacks is filled up with bins that train nothing, false in batch["valid"]. No rank
waits for another. Every row with tokens is in one bin, those of the tail too.

A state is where the pass began and how many batches every rank has received. On as many ranks with the same batch size
the window it stands in is read and packed again, and the next batch is the one that would have come. Elsewhere the rows
that nobody has received are dealt out anew. Memory: a window of rows beside what a stream holds, and lengths, 4 bytes a
row.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.errors import CorruptShard, InputError, SettingsError, StreamError
from headrace.packing.alignment import shift_left
from headrace.packing.bins import Bins
from headrace.stream.batch import Batch, in_format, make_batch
from headrace.stream.columns import Columns, cut, from_table, gather, join
from headrace.stream.loader import StreamLoader
from headrace.stream.options import VALID, StreamOptions
from headrace.stream.pack_rows import PackRows
from headrace.stream.packed import MADE, PackedBatches
from headrace.stream.packed_batch import Laid, make_packed_batch
from headrace.stream.packing_plan import PackingPlan, PackingReport
from headrace.stream.passes import check_options, checked_state, delivered, plan_pass, reader_name
from headrace.stream.ragged import Ragged
from headrace.stream.reader import read_share
from headrace.stream.row_lengths import row_lengths
from headrace.stream.share import advance, resolve_remainder
from headrace.stream.topology import Topology, confirm

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

_KIND = "headrace_packing"
_NUMBERS = ("batches", "world_size", "batch_size")


class PackingLoader(StreamLoader):
    """Batches of bins for one rank, every row with tokens in one of them over all ranks, the same number on each.

    lengths: tokens of every row of the index, int32 [N]. Batches are those of packed rows, see `packed_batch`; other
    columns that were asked for come beside, a value a sequence of the batch's real bins. Raises `InputError` for rows
    that are too long where the settings say so.
    """

    def __init__(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        *,
        lengths: I32,
        topology: Topology | None = None,
    ) -> None:
        assert options.pack_rows is not None
        self._packing_options = options
        self._pack = options.pack_rows
        self._batches = packing_settings(options)
        self._lengths = lengths
        self._given = 0
        self._planned: PackingPlan | None = None
        rows = replace(
            options,
            batch_size=self._pack.buffer_rows,
            columns=columns_to_read(self._pack, options.columns),
            batch_format="numpy",
            remainder="pad",
            packed="off",
            pack=None,
            transform=None,
            memory="pageable",
        )
        super().__init__(index, _TokenBlocks(read_block, self._pack), rows, topology=topology)
        self.remainder = resolve_remainder(options.remainder, self.topology.world_size)
        check_options(index, replace(rows, batch_format=options.batch_format), consumers=self.topology.world_size)
        self._packing.check_lengths()

    @property
    def dropped_rows(self) -> int:
        """Rows that too_long="drop" leaves out of the present pass, over all ranks."""
        return self.report().dropped_rows

    def report(self) -> PackingReport:
        """The present pass in numbers, over all ranks, from its beginning to its end."""
        return self._packing.report()

    def __len__(self) -> int:
        """Batches of the present pass from where it goes on; the same on every rank."""
        confirm(self.topology)
        return self._packing.steps - self._given

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is after the batches handed out so far: JSON, the same on every rank."""
        return {
            _KIND: 1,
            "start": self._start.to_dict(),
            "batches": self._given + self._received,
            "world_size": self.topology.world_size,
            "batch_size": self._packing_options.batch_size,
            "pack": self._identity,
        }

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Continue from a saved state: exactly on as many ranks with the same batch size, else with the rows left.

        Raises `StreamError` if the state is not of this split, seed, shuffle and packing.
        """
        numbers = [values.get(name) for name in _NUMBERS] if isinstance(values, Mapping) else []
        if not numbers or values.get(_KIND) != 1 or any(type(each) is not int or each < 0 for each in numbers):
            raise StreamError(
                "packing state: it is not what state_dict() of a packing stream gave; pass it on unchanged"
            )
        if values.get("pack") != self._identity:
            raise StreamError(
                "packing state: it was saved with other settings of pack= or packed=; bins would hold other rows: pass"
                " the saved ones, or begin the epoch anew"
            )
        batches, world_size, batch_size = (int(values[name]) for name in _NUMBERS)
        start = checked_state(values["start"], self.index, self.options)
        same = (world_size, batch_size) == (self.topology.world_size, self._packing_options.batch_size)
        plan = self._plan_of(start, world_size=max(1, world_size), batch_size=max(1, batch_size))
        if batches > plan.steps:
            raise StreamError(
                f"packing state: it counts {batches} batches of a pass that has {plan.steps}; pass it on unchanged"
            )
        if not same:
            start, batches = start.at(plan.left_after(batches)), 0
        self._begin(start)
        self._given = batches

    def _begin(self, state: Any) -> None:
        super()._begin(state)
        self._given, self._planned = 0, None

    @property
    def _identity(self) -> str:
        return f"{self._pack.identity}-{self._batches.last_token}"

    @property
    def _packing(self) -> PackingPlan:
        if self._planned is None:
            world_size = self.topology.world_size
            self._planned = self._plan_of(
                self._start, world_size=world_size, batch_size=self._packing_options.batch_size
            )
        return self._planned

    def _plan_of(self, start: Any, *, world_size: int, batch_size: int) -> PackingPlan:
        topology = Topology(rank=0, world_size=world_size)
        return PackingPlan(
            plan=plan_pass(self.index, self.options, start, topology=topology, workers=0),
            lengths=self._lengths,
            first_row=self.index.first_row,
            pack=self._pack,
            counted="runtime" if self._batches.last_token == "drop" else "stored",
            batch_size=batch_size,
            shuffle=self.options.shuffle,
            seed=self.options.seed,
            epoch=start.epoch,
        )

    def _pass_batches(self, read_block: ReadBlock) -> Generator[Batch, None, None]:
        """The rest of the pass."""
        reader = reader_name(self.topology, worker=0, workers=0)
        return delivered(self._made(read_block, reader), self._packing_options, reader=reader)

    def _made(self, read_block: ReadBlock, reader: str) -> Generator[Batch, None, None]:
        plan, rank, size = self._packing, self.topology.rank, self._packing_options.batch_size
        steps, given = plan.steps - self._given, 0
        parts: list[tuple[Laid, Columns]] = []
        ready = 0
        for part in self._laid(read_block, plan, rank, reader):
            parts.append(part)
            ready += len(part[0].tokens)
            if ready == size:
                yield self._batch(parts, ready)
                parts, ready, given = [], 0, given + 1
        if self.remainder == "exact":
            if ready:
                yield self._batch(parts, ready)
            return
        for _ in range(steps - given):
            yield self._batch([*parts, (self._filling(size - ready), {})], ready)
            parts, ready = [], 0

    def _laid(self, read_block: ReadBlock, plan: PackingPlan, rank: int, reader: str) -> Iterator[tuple[Laid, Columns]]:
        """Bins of this rank from where the pass goes on, in parts that end where batches and windows end."""
        size = self._packing_options.batch_size
        ends = np.cumsum(plan.bins_of_windows(rank))
        window = int(np.searchsorted(ends, self._given * size, side="right"))
        if window == len(ends):
            return
        at = self._given * size - (int(ends[window - 1]) if window else 0)
        room = size
        with closing(self._windows(read_block, rank, window, reader)) as windows:
            for columns, bins, lengths in zip(
                windows, plan.windows(rank, window), plan.window_lengths(rank, window), strict=True
            ):
                columns = cut(columns, 0, len(lengths))  # the rest fills the last window up
                tokens: Any = columns[self._pack.tokens]
                if not np.array_equal(tokens.lengths, lengths):
                    raise CorruptShard(
                        f"{reader}: rows have other lengths than when they were counted; the shards changed: index the"
                        " dataset again"
                    )
                kept = plan.kept(lengths)
                while at < len(bins):
                    stop = min(len(bins), at + room)
                    yield self._lay(columns, bins[at:stop], kept)
                    room = room - (stop - at) or size
                    at = stop
                at = 0

    def _windows(self, read_block: ReadBlock, rank: int, first: int, reader: str) -> Generator[Columns, None, None]:
        """The columns of each window of this rank's rows, from window `first` on."""
        left = advance(
            self._start.remaining,
            first,
            world_size=self.topology.world_size,
            workers=0,
            batch_size=self._pack.buffer_rows,
            remainder="pad",
        )
        plan = plan_pass(self.index, self.options, self._start.at(left), topology=self.topology, workers=0)
        return read_share(
            self.index,
            read_block,
            plan=plan,
            share=plan.share(rank=rank),
            options=self.options,
            columns=self.options.check_columns(self.index.schema.names, "pad"),
            reader=reader,
            make=_whole_windows,
        )

    def _lay(self, columns: Columns, bins: Bins, kept: I64) -> tuple[Laid, Columns]:
        """Some bins of a window, end to end, and the other columns of their rows."""
        rows = bins.sequences
        lengths = kept[rows]
        ends = np.cumsum(lengths)
        ids = _picked(columns[self._pack.tokens], rows, lengths).astype(np.int64)
        if self._pack.mask is None:
            mask = np.ones(len(ids), np.uint8)
        else:
            mask = _picked(columns[self._pack.mask], rows, lengths).astype(np.uint8)
        if self._pack.mask is None or self._pack.mask_alignment == "unshifted":
            mask = shift_left(mask, ends)
        else:
            mask[ends - 1] = 0
        laid = Laid(input_ids=ids, loss_mask=mask, lengths=lengths, sequences=bins.counts, tokens=bins.loads(kept))
        own = (self._pack.tokens, self._pack.mask, VALID)
        others = {name: column for name, column in columns.items() if name not in own}
        return laid, gather([others], rows) if others else {}

    def _filling(self, bins: int) -> Laid:
        """Bins of a few filling tokens, that train nothing."""
        tokens = min(2, self._pack.capacity)
        ones = np.ones(bins, np.int64)
        return Laid(
            input_ids=np.full(bins * tokens, self._batches.pad_id, np.int64),
            loss_mask=np.zeros(bins * tokens, np.uint8),
            lengths=ones * tokens,
            sequences=ones,
            tokens=ones * tokens,
        )

    def _no_others(self) -> list[Columns]:
        """The other columns of no sequence; nothing where none were asked for."""
        own = (self._pack.tokens, self._pack.mask)
        fields = [self.index.schema.field(name) for name in self.options.columns or () if name not in own]
        empty = pa.schema(fields).empty_table()
        none = np.zeros(0, np.int64)
        return [gather([from_table(empty, arrow=False, where="no rows")], none)] if fields else []

    def _batch(self, parts: Sequence[tuple[Laid, Columns]], real: int) -> Batch:
        laid = Laid.join([part for part, _ in parts])
        batch = in_format(make_packed_batch(laid, self._batches), self._packing_options.batch_format)
        others = [columns for _, columns in parts if columns] or self._no_others()
        if others:
            beside = make_batch(join(others), self._packing_options.batch_format)
            assert isinstance(beside, dict)
            batch |= beside
        if self.remainder == "pad":
            valid = np.arange(len(laid.tokens)) < real
            batch |= in_format({VALID: valid}, self._packing_options.batch_format)
        return batch


def packing_loader(
    index: SplitIndex,
    read_block: ReadBlock,
    options: StreamOptions,
    *,
    topology: Topology | None,
    contents: str | None = None,
    cache_dir: Path | None = None,
) -> PackingLoader:
    """A loader over these blocks, whose lengths are counted now, or known from before; see `row_lengths`."""
    assert options.pack_rows is not None
    packing_settings(options)
    column = options.pack_rows.lengths or options.pack_rows.tokens
    lengths = row_lengths(index, read_block, column, contents=contents, cache_dir=cache_dir)
    return PackingLoader(index, read_block, options, lengths=lengths, topology=topology)


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
    short = column.lengths[rows] < lengths
    if short.any():
        raise InputError("a mask is shorter than the tokens of its row; write the file anew")
    return Ragged(values=column.values, starts=column.starts[rows], lengths=lengths, missing=None).compact().values
