"""Batches of rows of like lengths.

    stream = headrace.open("rows").stream(shuffle=True, batch_tokens=16384, lists="padded")

A padded batch is as wide as its longest row, so rows of unlike lengths are mostly padding: of
uniform lengths from 3 to 59, batches of rows in random order hold 57 % of real values. Here each
rank sorts the rows of a window by length and cuts them into batches; see `bins.by_length`.

A window is `WINDOW_BATCHES` batches of a rank or more, less than twice as many. The number of
batches decides the share of real values, not the number of rows: of the lengths above, 10 batches
give 90 %, 50 give 97.5 %, 130 give 99 %. All ranks cut a window into as many batches as the rank
that needs the most. Batches of a window come in an order that is drawn, the same on every rank, so
the batches of a step have like lengths and costs.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from headrace.arrays import F64, I32, I64
from headrace.bins.bins import Bins
from headrace.bins.by_length import BatchBound
from headrace.dataset.counts import count_lengths
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.digest import canonical_json, derive_key, sha256_hex
from headrace.errors import CorruptShard, InputError, setting
from headrace.keyed_hash import permutation
from headrace.stream.loader.binned import BinnedPass, BinnedPasses, BinPart
from headrace.stream.loader.options import VALID, StreamOptions
from headrace.stream.loader.passes import MakePasses, Reading, RowPass
from headrace.stream.order.balance import CostModel
from headrace.stream.order.layout import BlendIndex
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.batch import Batch, make_batch
from headrace.stream.read.columns import gather
from headrace.stream.read.ragged import Ragged
from headrace.stream.read.reader import mark_sources
from headrace.stream.read.transform import TransformContext

WINDOW_BATCHES = 64  # 98 % real values of uniform lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthGroups:
    """Group rows by the lengths of a column into batches within a bound.

    column: lists, or whole numbers that are lengths.
    """

    column: str
    bound: BatchBound

    @classmethod
    def of(cls, options: StreamOptions, column: str) -> LengthGroups:
        """Return the groups that the options of a stream ask for."""
        bound = BatchBound(
            rows=options.batch_size,
            tokens=options.batch_tokens,
            multiple=options.pad_to_multiple_of,
        )
        return cls(column=column, bound=bound)

    @property
    def identity(self) -> str:
        """The digest of the settings that decide which rows are in which batch."""
        bound = {name: getattr(self.bound, name) for name in self.bound.__slots__}
        return sha256_hex(canonical_json({"column": self.column, **bound}))

    def passes_of(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,  # noqa: ARG002 - they made these settings
        *,
        contents: str | None,
        cache_dir: Path | None,
    ) -> MakePasses:
        """Count the lengths of all rows, and return the passes over the batches; see `RowSource`.

        Raises `SettingsError` for a column without lengths, `InputError` for a row wider than a
        batch.
        """
        lengths = self._lengths(index, read_block, contents=contents, cache_dir=cache_dir)
        self._check_widths(lengths)
        return partial(LengthPasses, lengths=lengths)

    def count_tokens(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        *,
        contents: str | None,
        cache_dir: Path | None,
    ) -> I64:
        """Count the lengths of rows, which batches keep; see `RowSource`."""
        lengths = self._lengths(index, read_block, contents=contents, cache_dir=cache_dir)
        return lengths.astype(np.int64)

    def _lengths(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        *,
        contents: str | None,
        cache_dir: Path | None,
    ) -> I32:
        return count_lengths(
            index,
            read_block,
            self.column,
            needed_by=setting("group_by_length"),
            contents=contents,
            cache_dir=cache_dir,
        )

    def _check_widths(self, lengths: I32) -> None:
        if self.bound.tokens is None:
            return
        wide = np.flatnonzero(self.bound.widths(lengths.astype(np.int64)) > self.bound.tokens)
        if len(wide):
            longest = int(self.bound.widths(lengths[wide].astype(np.int64)).max())
            raise InputError(
                f"the row is {lengths[wide[0]]} long, a batch holds {self.bound.tokens}; there are"
                f" {len(wide)} such rows",
                row=int(wide[0]) + 1,
                column=self.column,
                remedy=(
                    f"set {setting('batch_tokens', longest)} or more, or cut these rows when"
                    " preparing"
                ),
            )


@dataclass(frozen=True, kw_only=True)
class LengthReport:
    """Figures of a pass, over all ranks; known before it begins.

    rows: delivered rows. batches: over all ranks. filling_batches: those without a row of their
    own. tokens: the lengths of all rows. padded_tokens: rows times width. real: tokens over
    padded_tokens. imbalance: the cost of the slowest rank of each step over the mean rank, summed
    over all steps, by the default `CostModel`.
    """

    rows: int
    batches: int
    filling_batches: int
    tokens: int
    padded_tokens: int
    real: float
    imbalance: float


class LengthPasses(BinnedPasses):
    """Passes over the rows of a split in batches of like lengths.

    lengths: of every row of the index, int32 [N]. A bin is a batch.
    """

    settings_words = ("batch_tokens", "group_by_length", "batch_size", "pad_to_multiple_of")

    def __init__(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        topology: Topology,
        *,
        lengths: I32,
    ) -> None:
        assert options.grouped_column is not None
        self.groups = LengthGroups.of(options, options.grouped_column)
        self.mean_width = 1.0
        if len(lengths):
            self.mean_width = float(self.groups.bound.widths(lengths.astype(np.int64)).mean())
        self.total_rows = len(lengths)
        super().__init__(
            index,
            read_block,
            options,
            topology,
            lengths=lengths,
            columns=options.columns,
            bins_per_batch=1,
        )

    @property
    def identity(self) -> str:
        return self.groups.identity

    def window_rows(self, ranks: int) -> int:
        """Return the rows of the largest number of equal windows that hold `WINDOW_BATCHES` batches
        of a rank.
        """
        bound = self.groups.bound
        batch_rows = float(bound.rows)
        if bound.tokens is not None:
            batch_rows = min(batch_rows, bound.tokens / self.mean_width)
        rank_rows = -(-self.total_rows // ranks)
        windows = max(1, int(rank_rows / (WINDOW_BATCHES * batch_rows)))
        rows = max(1, -(-rank_rows // windows))
        if bound.tokens is None:  # full batches, except the last of a pass
            rows = -(-rows // bound.rows) * bound.rows
        return rows

    def pass_of(self, rows: RowPass, world_size: int, batch_size: int) -> LengthPass:
        return LengthPass(self, rows, world_size, batch_size)


@dataclass(frozen=True, eq=False)
class LengthPass(BinnedPass):
    """The rest of an epoch in batches of like lengths; see `BinnedPass`."""

    passes: LengthPasses
    _last: dict[int, Bins] = field(default_factory=dict, repr=False)

    @cached_property
    def _batches_of_windows(self) -> I64:
        """The batches of each window, as many as the rank needs that needs the most: int64."""
        most = np.zeros(self.window_count, np.int64)
        for rank in range(self.world_size):
            for window, lengths in self.lengths_of_windows(rank):
                most[window] = max(most[window], self.passes.groups.bound.fewest(lengths))
        return most

    def bins_of_windows(self, rank: int) -> I64:  # noqa: ARG002 - the same on every rank
        return self._batches_of_windows

    def make_bins(self, lengths: I64, rank: int, window: int) -> Bins:  # noqa: ARG002 - the order is the same on every rank
        start = self.rows.start
        count = int(self._batches_of_windows[window])
        bins = self.passes.groups.bound.cut(lengths, count)
        if not start.shuffle:
            return bins
        key = derive_key(start.seed, "batches by length", start.epoch, window)
        return bins.take(permutation(key, count))

    def report(self) -> LengthReport:
        """Return the figures of the pass, over all ranks, from where its rows begin."""
        bound = self.passes.groups.bound
        rows = tokens = padded = filling = 0
        costs: list[F64] = []
        even_tokens = CostModel().even_tokens
        for rank in range(self.world_size):
            of_rank = [np.zeros(0)]
            for lengths, bins in self.windows(rank):
                widths = np.zeros(len(bins), np.int64)
                filled = np.flatnonzero(bins.counts)
                if len(filled):
                    widths[filled] = np.maximum.reduceat(
                        bound.widths(lengths)[bins.sequences], bins.offsets[filled]
                    )
                rows += len(bins.sequences)
                tokens += int(lengths.sum())
                padded += int((bins.counts * widths).sum())
                filling += len(bins) - len(filled)
                of_rank.append(bins.counts * (widths + widths * widths / even_tokens))
            costs.append(np.concatenate(of_rank))
        by_step = np.stack(costs)
        total = float(by_step.sum())
        return LengthReport(
            rows=rows,
            batches=by_step.size,
            filling_batches=filling,
            tokens=tokens,
            padded_tokens=padded,
            real=tokens / padded if padded else 1.0,
            imbalance=float(by_step.max(axis=0).sum()) * self.world_size / total if total else 1.0,
        )

    def rows_after(self, batches: int) -> int:
        """Count the rows in this rank's first `batches` batches."""
        first = self.delivered
        return int(self._rows_before[first + batches] - self._rows_before[first])

    @cached_property
    def _rows_before(self) -> I64:
        """The rows of this rank before each of its batches: int64 [batches + 1]."""
        counts = [np.zeros(1, np.int64)]
        for _, bins in self.windows(self.passes.topology.rank):
            counts.append(bins.counts)
        return np.cumsum(np.concatenate(counts))

    def context(self, batch: int) -> TransformContext:
        """Return the context of this rank's batch; steps count from the last distribution of rows
        over ranks.
        """
        rank = self.passes.topology.rank
        step = self.delivered + batch
        ends = np.cumsum(self._batches_of_windows)
        window = int(np.searchsorted(ends, step, side="right"))
        bins = self._last.get(window)
        if bins is None:
            _, bins = next(self.windows(rank, window))
            self._last.clear()
            self._last[window] = bins
        rows = bins.bin(step - int(ends[window]) + len(bins))
        indices = self._plan.rank_rows(rank).index_of(0) + self.world_size * (
            window * self.window_rows + rows
        )
        positions = self._plan.remaining.positions(indices)
        if not len(rows):
            positions = np.array([-1], np.int64)
        return TransformContext(
            seed=self.passes.options.seed,
            epoch=self.epoch,
            step=step,
            rank=rank,
            positions=positions,
        )

    def batches(self, reading: Reading, *, first: int = 0) -> Generator[Batch, None, None]:
        checked = None
        if reading.counts is not None:
            reading.counts.restart(first)
        with closing(self.parts(reading, self.delivered + first)) as parts:
            for part in parts:
                if part.columns is not checked:
                    self._check(part)
                    checked = part.columns
                yield self._batch(part, reading)

    def _batch(self, part: BinPart, reading: Reading) -> Batch:
        options = self.passes.options
        rows = part.bins.sequences
        if not len(rows):  # a rank without rows for this step
            rows = np.zeros(1, np.int64)
        columns = gather([part.columns], rows)
        if not len(part.bins.sequences):
            columns[VALID] = np.zeros(1, np.bool_)
        index = self.passes.index
        if isinstance(index, BlendIndex):
            columns = mark_sources(columns)
            if reading.counts is not None:
                reading.counts.add_columns(columns, len(rows), len(index.names))
        return make_batch(columns, options.batch_format, options.padding)

    def _check(self, part: BinPart) -> None:
        """Raise `CorruptShard` if rows have other lengths than when they were counted."""
        column: Any = part.columns.get(self.passes.groups.column)
        if not isinstance(column, Ragged):
            return
        if not np.array_equal(column.lengths[: len(part.lengths)], part.lengths):
            raise CorruptShard(
                f"on {self.passes.topology}, rows have other lengths than when they were counted;"
                " the shards changed",
                column=self.passes.groups.column,
                remedy="open the dataset again",
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**BinnedPass.__getstate__(self), "_last": {}}
