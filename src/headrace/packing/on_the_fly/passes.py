"""Pack rows of tokens while they are streamed.

    # four bins of 4,096 tokens a batch
    loader = headrace.open("tokens").stream(batch_size=4, shuffle=True, pack=4096)
    for batch in loader: ...  # as from prepared packed rows

Each rank reads its rows in windows of `buffer_rows` and packs each window by itself. Bins depend on
the order of the pass and on lengths alone, so any rank can compute the bins of the others. Lengths
are counted once by reading one column, and kept beside the index. All ranks have the number of
batches that the rank with the most bins needs; filling bins, false in batch["valid"], train
nothing. Every row with tokens is in one bin.

A state records where the pass began and how many batches every rank has received. With the same
ranks and batch size, the current window is read and packed again, and the stream continues with the
exact next batch. Otherwise the rows that no rank has received are distributed again. Memory: one
window of rows in addition to the stream's own, and 4 bytes per row for lengths. Cost: O(rows of the
split) once per pass, to find the number of steps.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I32, I64
from headrace.bins.bins import Bins, Counted, costs
from headrace.bins.pack import pack
from headrace.bins.rows import PackedRows, shift_left
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.digest import derive_key
from headrace.errors import (
    CorruptShard,
    InputError,
    SettingsError,
    StreamError,
    setting,
    setting_name,
)
from headrace.packing.on_the_fly.settings import PackingReport, PackRows, check_packing
from headrace.packing.read.batches import MADE, make_packed_batch
from headrace.packing.read.packed_rows import holds_whole_numbers
from headrace.stream.loader.options import VALID, StreamOptions
from headrace.stream.loader.passes import Pass, Reading, RowPass, RowPasses
from headrace.stream.order.plan import Plan, plan_pools
from headrace.stream.order.remaining import Remainder, Remaining, check_batches, resolve_remainder
from headrace.stream.order.state import CountedState
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.batch import Batch, in_format, make_batch
from headrace.stream.read.columns import Columns, cut, from_table, gather, join
from headrace.stream.read.ragged import Ragged
from headrace.stream.read.reader import read_share
from headrace.stream.read.transform import TransformContext


class PackingPasses:
    """Passes over the rows of a split, packed into bins by each rank; picklable if `read_block` is.

    lengths: tokens of every row of the index, int32 [N]. rows: how rows are read, one window per
    batch. remainder: what to do with the last batch of bins. Raises `SettingsError` for options
    that packing does not support, `InputError` for rows that are too long if the settings make that
    an error.
    """

    def __init__(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        topology: Topology,
        *,
        lengths: I32,
    ) -> None:
        self.index = index
        self.options = options
        self.topology = topology
        self.lengths = lengths
        self.pack, self.form = cast(PackRows, options.source), check_packing(options)
        self.remainder: Remainder = resolve_remainder(options.remainder, topology.world_size)
        pack_columns = [name for name in (self.pack.tokens, self.pack.mask) if name is not None]
        self.others = [name for name in options.columns or () if name not in pack_columns]
        clashing = [name for name in self.others if name in (*MADE, VALID)]
        if clashing:
            raise SettingsError(
                f"{setting_name('columns')} has {clashing}, which packed batches make themselves",
                value=clashing,
                remedy="leave them out",
            )
        rows = replace(
            options,
            batch_size=self.pack.buffer_rows,
            columns=(*pack_columns, *self.others),
            remainder="pad",
            packed="off",
            pack=None,
            transform=None,
            memory="pageable",
            device=None,
        )
        self.read_block: ReadBlock = partial(_read_tokens, read_block, pack_columns)
        self.rows = RowPasses(index, self.read_block, rows, topology)
        if self.form.last_token == "drop":
            self.counted: Counted = "runtime"
        else:
            self.counted = "stored"
        # most tokens of a row in a bin
        self.longest = self.pack.capacity + (1 if self.counted == "runtime" else 0)
        long = np.flatnonzero(lengths > self.longest)
        if self.pack.too_long == "error" and len(long):
            raise InputError(
                f"the row has {lengths[long[0]]} tokens, a bin holds {self.longest}; there are"
                f" {len(long)} such rows",
                row=int(long[0]) + 1,
                remedy=(
                    f"choose a larger {setting_name('capacity')}, or"
                    f" {setting('too_long', 'truncate', 'drop')}"
                ),
            )

    @property
    def identity(self) -> str:
        """The id of the settings that decide which rows lie in which bin."""
        return f"{self.pack.identity}-{self.form.last_token}"

    def begin(self, epoch: int, after: Pass | None = None) -> PackingPass:
        """Begin an epoch; see `Passes`."""
        return self._of(
            self.rows.begin(epoch, after.rows if isinstance(after, PackingPass) else None)
        )

    def full(self, of: Pass) -> PackingPass:
        """Return the full epoch of a pass, from its beginning."""
        assert isinstance(of, PackingPass)
        return self._of(self.rows.full(of.rows))

    def resume(self, values: Mapping[str, Any]) -> PackingPass:
        """Resume from a saved state: exactly with the same ranks and batch size, otherwise with the
        remaining rows.
        """
        state = CountedState.from_dict(values)
        if state.identity != self.identity:
            raise StreamError(
                f"the state was saved with another {setting('pack')} or {setting('packed')}, so"
                " bins would hold other rows",
                remedy="pass the saved ones, or start the epoch again",
            )
        rows = self.rows.at(self.rows.checked(state.start.to_dict()))
        saved = PackingPass(self, rows, state.world_size, state.batch_size)
        if state.batches > saved.steps:
            raise StreamError(
                f"the state counts {state.batches} batches of a pass of {saved.steps}",
                remedy="pass it on unchanged",
            )
        if (state.world_size, state.batch_size) == (
            self.topology.world_size,
            self.options.batch_size,
        ):
            return replace(saved, delivered=state.batches)
        left = saved.left_after(state.batches)
        return self._of(self.rows.at(rows.start.at(left, batches=state.batches)))

    def _of(self, rows: RowPass) -> PackingPass:
        return PackingPass(self, rows, self.topology.world_size, self.options.batch_size)


@dataclass(frozen=True, eq=False)
class PackingPass:
    """The rest of an epoch whose rows are packed, on `world_size` ranks in batches of `batch_size`
    bins.

    rows: the rows at its beginning. delivered: batches since then.
    """

    passes: PackingPasses
    rows: RowPass
    world_size: int
    batch_size: int
    delivered: int = 0
    _known: dict[int, I64] = field(default_factory=dict, repr=False)

    @property
    def epoch(self) -> int:
        return self.rows.epoch

    @property
    def batches_done(self) -> int:
        return self.rows.batches_done + self.delivered

    @property
    def is_partial(self) -> bool:
        return bool(self.delivered or self.rows.is_partial)

    @property
    def steps(self) -> int:
        """The number of batches that each rank receives, set by the rank with the most bins."""
        return self._all_steps - self.delivered

    @cached_property
    def _all_steps(self) -> int:
        most = max(int(self.bins_of_windows(rank).sum()) for rank in range(self.world_size))
        return -(-most // self.batch_size)

    @property
    def dropped_rows(self) -> int:
        """The number of rows that too_long="drop" leaves out, over all ranks."""
        return self.report().dropped_rows

    @cached_property
    def _plan(self) -> Plan:
        return replace(self.rows.plan(), world_size=self.world_size)

    def plan(self) -> Plan:
        """Return the plan of which rank reads which rows when; its batches are windows."""
        return self._plan

    def lengths_of(self, rank: int) -> I64:
        """Return the stored tokens of each row of a rank, in its order: int64 [rows]."""
        plan = self._plan
        firsts = self.passes.index.first_row
        rank_rows = plan.rank_rows(rank)
        parts = [np.zeros(0, np.int32)]
        for pool in plan_pools(plan.order, plan.remaining, rank_rows) if rank_rows.rows else ():
            laid = np.concatenate(
                [
                    self.passes.lengths[firsts[block] + start : firsts[block] + stop]
                    for block, start, stop in pool.spans
                ]
            )
            parts.append(laid if pool.index is None else laid[pool.index])
        return np.concatenate(parts)[: rank_rows.rows].astype(np.int64)

    def bins_of_windows(self, rank: int) -> I64:
        """Count the bins of each window of a rank: int64 [windows]."""
        if rank not in self._known:
            self._known[rank] = np.array([len(bins) for _, bins in self.windows(rank)], np.int64)
        return self._known[rank]

    def windows(self, rank: int, first: int = 0) -> Iterator[tuple[I64, Bins]]:
        """Yield each window of a rank from window `first` on: the stored tokens of its rows, and
        its bins.

        Sequences of the bins are indices in the window.
        """
        settings = self.passes.pack
        start = self.rows.start
        lengths = self.lengths_of(rank)
        size = settings.buffer_rows
        for window in range(first, -(-len(lengths) // size)):
            of_window = lengths[window * size : (window + 1) * size]
            retained = self.retained_lengths(of_window)
            taking = np.flatnonzero(retained)
            seed = derive_key(start.seed, "stream.pack", start.epoch, rank, window)[0] >> 1
            bins = pack(
                costs(retained[taking], self.passes.counted),
                settings.capacity,
                algorithm=settings.algorithm,
                seed=seed,
                max_sequences=settings.max_sequences,
            )
            bins = Bins(bins.offsets, taking[bins.sequences])
            yield of_window, bins.shuffled(seed) if start.shuffle else bins

    def retained_lengths(self, lengths: I64) -> I64:
        """Return the tokens of rows after packing: long rows truncated, 0 for rows that are left
        out.
        """
        if self.passes.pack.too_long == "drop":
            return np.where(lengths > self.passes.longest, 0, lengths)
        return np.minimum(lengths, self.passes.longest)

    def left_after(self, batches: int) -> Remaining:
        """Find the rows that no rank has received after this number of batches on each rank.

        Rows that are left out count as received once their whole window has been delivered.
        """
        positions = [np.zeros(0, np.int64)]
        size = self.passes.pack.buffer_rows
        for rank in range(self.world_size):
            rank_rows = self._plan.rank_rows(rank)
            left = np.ones(rank_rows.rows, np.bool_)
            received_bins = batches * self.batch_size
            for window, (_, bins) in enumerate(self.windows(rank)):
                begin = window * size
                if received_bins >= len(bins):
                    left[begin : begin + size] = False
                else:
                    left[begin + bins[:received_bins].sequences] = False
                received_bins -= min(received_bins, len(bins))
                if not received_bins:
                    break
            positions.append(
                self._plan.remaining.positions(rank_rows.indices(0, rank_rows.rows)[left])
            )
        return Remaining.of_positions(self._plan.order.rows, np.sort(np.concatenate(positions)))

    def report(self) -> PackingReport:
        """Return the figures of the pass, over all ranks, from where its rows begin.

        Rows that are too long or empty are counted too, although they are not packed.
        """
        packed = np.concatenate([self.lengths_of(rank) for rank in range(self.world_size)])
        retained = self.retained_lengths(packed)
        bins = sum(int(self.bins_of_windows(rank).sum()) for rank in range(self.world_size))
        long = packed > self.passes.longest
        cut = long & (retained > 0)
        dropped = long & (retained == 0)
        loads = costs(retained[retained > 0], self.passes.counted)
        return PackingReport(
            rows=int(np.count_nonzero(retained)),
            bins=bins,
            filling_bins=self._all_steps * self.batch_size * self.world_size - bins,
            tokens=int(retained.sum()),
            fill=int(loads.sum()) / (bins * self.passes.pack.capacity) if bins else 0.0,
            truncated_rows=int(np.count_nonzero(cut)),
            truncated_tokens=int((packed - retained)[cut].sum()),
            dropped_rows=int(np.count_nonzero(dropped)),
            dropped_tokens=int(packed[dropped].sum()),
            empty_rows=int(np.count_nonzero(packed == 0)),
        )

    def state_after(self, batches: int) -> dict[str, Any]:
        check_batches(batches, self.steps)
        return CountedState(
            start=self.rows.start,
            batches=self.delivered + batches,
            world_size=self.world_size,
            batch_size=self.batch_size,
            identity=self.passes.identity,
        ).to_dict()

    def context(self, batch: int) -> TransformContext:
        """Return the context of this rank's n-th batch; steps count from the last distribution of
        rows over ranks.
        """
        seed = self.passes.options.seed
        rank = self.passes.topology.rank
        return TransformContext(
            seed=seed, epoch=self.epoch, step=self.delivered + batch, rank=rank, positions=None
        )

    def rows_after(self, batches: int) -> int:
        """Count the bins in this rank's first `batches` batches, without filling bins."""
        bins = int(self.bins_of_windows(self.passes.topology.rank).sum())
        size = self.batch_size
        return max(
            0, min((self.delivered + batches) * size, bins) - min(self.delivered * size, bins)
        )

    def batches(self, reading: Reading, *, first: int = 0) -> Generator[Batch, None, None]:
        size = self.batch_size
        left = self.steps - first
        parts: list[tuple[PackedRows, Columns]] = []
        ready = 0
        with closing(self._laid(reading, self.delivered + first)) as laid:
            for part in laid:
                parts.append(part)
                ready += len(part[0])
                if ready == size:
                    yield self._batch(parts, ready)
                    parts = []
                    ready = 0
                    left = left - 1
        if self.passes.remainder == "exact":
            if ready:
                yield self._batch(parts, ready)
            return
        for _ in range(left):
            yield self._batch([*parts, self._filling(size - ready)], ready)
            parts = []
            ready = 0

    def _laid(
        self, reading: Reading, delivered: int
    ) -> Generator[tuple[PackedRows, Columns], None, None]:
        """Yield bins from the current position, in parts that end where batches and windows end."""
        passes, rank = self.passes, self.passes.topology.rank
        size = room = self.batch_size
        ends = np.cumsum(self.bins_of_windows(rank))
        first = int(np.searchsorted(ends, delivered * size, side="right"))
        if first == len(ends):
            return
        at = delivered * size - (int(ends[first - 1]) if first else 0)
        windows = read_share(
            self.rows.after(first).plan(),
            reading.read_block,
            passes.rows.options,
            topology=passes.topology,
            memory=passes.rows.memory,
            make=_whole_windows,
        )
        with closing(windows):
            for columns, (lengths, bins) in zip(windows, self.windows(rank, first), strict=True):
                # the last window was filled up with padding rows
                columns = cut(columns, 0, len(lengths))
                self._check(columns, lengths)
                retained = self.retained_lengths(lengths)
                while at < len(bins):
                    stop = min(len(bins), at + room)
                    yield self._lay(columns, bins[at:stop], retained)
                    room = room - (stop - at) or size
                    at = stop
                at = 0

    def _check(self, columns: Columns, lengths: I64) -> None:
        pack = self.passes.pack
        reader = str(self.passes.topology)
        tokens: Any = columns[pack.tokens]
        if not np.array_equal(tokens.lengths, lengths):
            raise CorruptShard(
                f"on {reader}, rows have other lengths than when they were counted; the shards"
                " changed, or this column is not about the tokens",
                column=pack.lengths or pack.tokens,
                remedy="open the dataset again",
            )
        if pack.mask is None:
            return
        mask: Any = columns[pack.mask]
        unlike = np.flatnonzero(mask.lengths != lengths)
        if len(unlike):
            row = int(unlike[0])
            raise InputError(
                f"on {reader}, a row has {mask.lengths[row]} values and {lengths[row]} in column"
                f" {pack.tokens}",
                column=pack.mask,
                remedy="write the file anew, each mask as long as its tokens",
            )

    def _lay(self, columns: Columns, bins: Bins, retained: I64) -> tuple[PackedRows, Columns]:
        """Return some bins of a window, end to end, and the other columns of their rows."""
        pack = self.passes.pack
        rows = bins.sequences
        lengths = retained[rows]
        ends = np.cumsum(lengths)
        ids = _picked(columns[pack.tokens], rows, lengths).astype(np.int64)
        mask = np.ones(len(ids), np.uint8)
        if pack.mask is not None:
            mask = _picked(columns[pack.mask], rows, lengths).astype(np.uint8)
        if pack.mask is None or pack.mask_alignment == "unshifted":
            mask = shift_left(mask, ends)
        else:
            mask[ends - 1] = 0
        return PackedRows.of_sequences(ids, mask, lengths, bins.offsets), self._beside(
            columns, rows
        )

    def _beside(self, columns: Columns, rows: I64) -> Columns:
        """Return the columns of some rows that are not tokens or masks."""
        if self.passes.others:
            return gather([{name: columns[name] for name in self.passes.others}], rows)
        return {}

    def _filling(self, bins: int) -> tuple[PackedRows, Columns]:
        """Return bins of a few padding tokens, which train nothing, and empty other columns."""
        lengths = np.full(bins, min(2, self.passes.pack.capacity))
        ids = np.full(int(lengths.sum()), self.passes.form.pad_id, np.int64)
        laid = PackedRows.of_sequences(
            ids, np.zeros(len(ids), np.uint8), lengths, np.arange(bins + 1)
        )
        schema = pa.schema([self.passes.index.schema.field(name) for name in self.passes.others])
        return laid, self._beside(
            from_table(schema.empty_table(), arrow=False, where="no rows"), np.zeros(0, np.int64)
        )

    def _batch(self, parts: Sequence[tuple[PackedRows, Columns]], real: int) -> Batch:
        laid = parts[0][0]
        form = self.passes.options.batch_format
        if len(parts) > 1:
            laid = PackedRows.concatenate([part for part, _ in parts])
        batch = in_format(make_packed_batch(laid, self.passes.form), form)
        if self.passes.others:
            batch |= cast(dict[str, Any], make_batch(join([columns for _, columns in parts]), form))
        return batch | in_format({VALID: np.arange(len(laid)) < real}, form)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **{attribute.name: getattr(self, attribute.name) for attribute in fields(self)},
            "_known": {},
        }


def _read_tokens(
    read_block: ReadBlock, names: Sequence[str], number: int, columns: Sequence[str] | None
) -> pa.Table:
    """Read a block.

    Raises `InputError` unless its columns of tokens and mask are lists of integers without nulls.
    """
    table = read_block(number, columns)
    for name in names:
        if name not in table.column_names:
            continue
        column_type = table.schema.field(name).type
        if not holds_whole_numbers(column_type, or_truth=name != names[0]):
            raise InputError(
                "not lists of whole numbers",
                column=name,
                value=str(column_type),
                remedy="name a column of token ids",
            )
        if not holds_whole_numbers(column_type):
            index = table.schema.get_field_index(name)
            table = table.set_column(index, name, table[name].cast(pa.list_(pa.uint8())))
        if table[name].null_count:
            raise InputError(
                "it holds nulls",
                column=name,
                remedy="write an empty list for a sequence without tokens",
            )
    return table


def _whole_windows(columns: Columns, batch_size: int) -> Iterator[Columns]:
    """Yield windows as columns, for `read_share`."""
    rows = len(next(iter(columns.values())))
    return (cut(columns, start, start + batch_size) for start in range(0, rows, batch_size))


def _picked(column: Any, rows: I64, lengths: I64) -> npt.NDArray[Any]:
    """Return the first `lengths` values of these rows' lists, end to end."""
    return (
        Ragged(values=column.values, starts=column.starts[rows], lengths=lengths, missing=None)
        .compact()
        .values
    )
