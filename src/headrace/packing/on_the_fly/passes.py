"""Pack rows of tokens while they are streamed.

    # four bins of 4,096 tokens a batch
    loader = headrace.open("tokens").stream(batch_size=4, shuffle=True, pack=4096)
    for batch in loader: ...  # as from prepared packed rows

Each rank packs windows of `buffer_rows` of its rows by itself; see `binned` for steps, states and
costs. Filling bins, false in batch["valid"], train nothing. Every row with tokens is in one bin.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

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
    setting,
    setting_name,
)
from headrace.packing.read.batches import MADE, PackedBatches, make_packed_batch
from headrace.packing.read.packed_rows import holds_whole_numbers
from headrace.stream.loader.binned import BinnedPass, BinnedPasses
from headrace.stream.loader.options import BLEND_SOURCE, VALID, StreamOptions
from headrace.stream.loader.passes import Reading, RowPass
from headrace.stream.order.layout import BlendIndex
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.batch import Batch, in_format, make_batch
from headrace.stream.read.columns import Columns, cut, from_table, gather, join
from headrace.stream.read.ragged import Ragged
from headrace.stream.read.transform import TransformContext

if TYPE_CHECKING:
    from headrace.packing.on_the_fly.settings import PackRows


@dataclass(frozen=True, kw_only=True)
class PackingReport:
    """Figures of a pass, over all ranks; known before it begins.

    rows: packed rows. bins: their bins. filling_bins: bins that only fill up last batches, and
    train nothing. tokens: in bins. fill: their share of the capacity of the bins. truncated_rows,
    truncated_tokens, dropped_rows, dropped_tokens: the effect of too_long. empty_rows: rows without
    tokens.
    """

    rows: int
    bins: int
    filling_bins: int
    tokens: int
    fill: float
    truncated_rows: int
    truncated_tokens: int
    dropped_rows: int
    dropped_tokens: int
    empty_rows: int


def check_packing(options: StreamOptions) -> PackedBatches:
    """Return how bins become batches.

    Raises `SettingsError` for options that packing does not support.
    """
    early = "knows the lengths of all rows before it begins"
    for name, possible, why in (
        ("packed", ("auto", "varlen", "padded"), "makes packed batches"),
        ("remainder", ("pad", "exact"), "puts every row into a bin"),
        ("distribution", ("balanced",), early),
        ("on_bad_block", ("raise",), early),
        ("batch_format", ("torch", "numpy"), "makes tensors or arrays"),
        ("lists", ("ragged",), "makes rows of its own, see headrace.PackedBatches(pad_to=)"),
    ):
        value = getattr(options, name)
        if isinstance(value, str) and value not in possible:
            raise SettingsError(
                f"{setting('pack')} {why}",
                setting=name,
                value=value,
                remedy=f"use {setting(name, *possible)}",
            )
    if options.form is not None:
        return cast(PackedBatches, options.form)
    return PackedBatches()


class PackingPasses(BinnedPasses):
    """Passes over the rows of a split, packed into bins by each rank; picklable if `read_block` is.

    lengths: tokens of every row of the index, int32 [N]. rows: how rows are read, one window per
    batch. remainder: what to do with the last batch of bins. Raises `SettingsError` for options
    that packing does not support, `InputError` for rows that are too long if the settings make that
    an error.
    """

    settings_words = ("pack", "packed")

    def __init__(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        topology: Topology,
        *,
        lengths: I32,
    ) -> None:
        self.pack = cast("PackRows", options.pack)
        self.form = check_packing(options)
        pack_columns = [name for name in (self.pack.tokens, self.pack.mask) if name is not None]
        self.others = [
            name for name in options.columns or () if name not in (*pack_columns, BLEND_SOURCE)
        ]
        self.sources = [BLEND_SOURCE] if isinstance(index, BlendIndex) else []
        clashing = [name for name in self.others if name in (*MADE, VALID)]
        if clashing:
            raise SettingsError(
                f"{setting_name('columns')} has {clashing}, which packed batches make themselves",
                value=clashing,
                remedy="leave them out",
            )
        super().__init__(
            index,
            partial(_read_tokens, read_block, pack_columns),
            options,
            topology,
            lengths=lengths,
            columns=(*pack_columns, *self.others, *self.sources),
            bins_per_batch=options.batch_size,
        )
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

    def window_rows(self, ranks: int) -> int:  # noqa: ARG002 - the same on any ranks
        return self.pack.buffer_rows

    def pass_of(self, rows: RowPass, world_size: int, batch_size: int) -> PackingPass:
        return PackingPass(self, rows, world_size, batch_size)


@dataclass(frozen=True, eq=False)
class PackingPass(BinnedPass):
    """The rest of an epoch whose rows are packed; see `BinnedPass`."""

    passes: PackingPasses

    @property
    def dropped_rows(self) -> int:
        """The number of rows that too_long="drop" leaves out, over all ranks."""
        return self.report().dropped_rows

    def make_bins(self, lengths: I64, rank: int, window: int) -> Bins:
        settings = self.passes.pack
        start = self.rows.start
        retained = settings.retained(lengths, self.passes.longest)
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
        return bins.shuffled(seed) if start.shuffle else bins

    def report(self) -> PackingReport:
        """Return the figures of the pass, over all ranks, from where its rows begin.

        Rows that are too long or empty are counted too, although they are not packed.
        """
        packed = np.concatenate([self.lengths_of(rank) for rank in range(self.world_size)])
        retained = self.passes.pack.retained(packed, self.passes.longest)
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
        if reading.counts is not None:
            reading.counts.restart(first)
        parts: list[tuple[PackedRows, Columns]] = []
        ready = 0
        with closing(self._laid(reading, self.delivered + first)) as laid:
            for part in laid:
                parts.append(part)
                ready += len(part[0])
                if ready == size:
                    yield self._batch(parts, ready, reading)
                    parts = []
                    ready = 0
                    left = left - 1
        if self.passes.remainder == "exact":
            if ready:
                yield self._batch(parts, ready, reading)
            return
        for _ in range(left):
            yield self._batch([*parts, self._filling(size - ready)], ready, reading)
            parts = []
            ready = 0

    def _laid(
        self, reading: Reading, delivered: int
    ) -> Generator[tuple[PackedRows, Columns], None, None]:
        """Yield bins from the current position, in parts that end where batches and windows end."""
        checked = None
        with closing(self.parts(reading, delivered)) as parts:
            for part in parts:
                # the last window was filled up with padding rows
                columns = cut(part.columns, 0, len(part.lengths))
                if part.columns is not checked:
                    self._check(columns, part.lengths)
                    checked = part.columns
                retained = self.passes.pack.retained(part.lengths, self.passes.longest)
                yield self._lay(columns, part.bins, retained)

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
        laid = PackedRows.of_sequences(ids, mask, lengths, bins.offsets)
        if self.passes.sources:
            laid = replace(laid, sources=np.asarray(columns[BLEND_SOURCE])[rows])
        return laid, self._beside(columns, rows)

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
        if self.passes.sources:
            laid = replace(laid, sources=np.full(bins, -1, np.int64))
        schema = pa.schema([self.passes.index.schema.field(name) for name in self.passes.others])
        return laid, self._beside(
            from_table(schema.empty_table(), arrow=False, where="no rows"), np.zeros(0, np.int64)
        )

    def _batch(
        self, parts: Sequence[tuple[PackedRows, Columns]], real: int, reading: Reading
    ) -> Batch:
        laid = parts[0][0]
        form = self.passes.options.batch_format
        if len(parts) > 1:
            laid = PackedRows.concatenate([part for part, _ in parts])
        index = self.passes.index
        if laid.sources is not None and reading.counts and isinstance(index, BlendIndex):
            reading.counts.add(laid.sources, laid.sequence_lengths, len(index.names))
        batch = in_format(make_packed_batch(laid, self.passes.form), form)
        if self.passes.others:
            batch |= cast(dict[str, Any], make_batch(join([columns for _, columns in parts]), form))
        return batch | in_format({VALID: np.arange(len(laid)) < real}, form)


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


def _picked(column: Any, rows: I64, lengths: I64) -> npt.NDArray[Any]:
    """Return the first `lengths` values of these rows' lists, end to end."""
    return (
        Ragged(values=column.values, starts=column.starts[rows], lengths=lengths, missing=None)
        .compact()
        .values
    )
