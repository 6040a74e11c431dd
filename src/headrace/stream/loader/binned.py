"""Passes over bins of rows: packed sequences, or padded batches of rows of like lengths.

Each rank reads its rows in windows and puts the rows of each window into bins. Bins depend on the
order of the pass and on the lengths of rows alone, so any rank can compute the bins of the others.
Lengths are counted once, by reading one column, and kept beside the index. All ranks have the
number of batches that the rank with the most bins needs. Every row is in one bin, or is left out
by the settings of the source and counted.

A state records where the pass began and how many batches every rank has received. With the same
ranks and batch size, the current window is read and cut into bins again, and the stream continues
with the exact next batch. Otherwise the rows that no rank has received are distributed again.
Memory: one window of rows in addition to the stream's own, and 4 bytes per row for lengths. Cost:
O(rows of the split) once per pass, to find the number of steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from headrace.arrays import I32, I64
from headrace.bins.bins import Bins
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.errors import SettingsError, StreamError, setting, setting_name
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import Pass, Reading, RowPass, RowPasses
from headrace.stream.order.layout import BlendIndex
from headrace.stream.order.plan import Plan, plan_pools
from headrace.stream.order.remaining import Remainder, Remaining, check_batches, resolve_remainder
from headrace.stream.order.remixed import Changed
from headrace.stream.order.state import CountedState, StreamState
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.columns import Columns, cut
from headrace.stream.read.reader import read_share
from headrace.stream.read.transform import TransformContext


class BinnedPasses(ABC):
    """Passes over the rows of a split in bins that each rank fills; picklable if `read_block` is.

    lengths: of every row of the index, int32 [N]. rows: how rows are read, one window per batch.
    bins_per_batch: bins in a batch. remainder: what to do with the last batch of bins.
    """

    settings_words: tuple[str, ...]  # the settings that decide which rows lie in which bin

    def __init__(  # noqa: PLR0913 - what a source knows
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        options: StreamOptions,
        topology: Topology,
        *,
        lengths: I32,
        columns: Sequence[str] | None,
        bins_per_batch: int,
    ) -> None:
        _refuse_steps(index, options)
        self.index = index
        self.read_block = read_block
        self.options = options
        self.topology = topology
        self.lengths = lengths
        self.bins_per_batch = bins_per_batch
        self.remainder: Remainder = resolve_remainder(options.remainder, topology.world_size)
        rows = replace(
            options,
            batch_size=self.window_rows(topology.world_size),
            columns=columns,
            remainder="pad",
            packed="off",
            pack=None,
            batch_tokens=None,
            group_by_length=None,
            global_batch_size=None,
            balance="none",
            transform=None,
            memory="pageable",
            device=None,
        )
        self.rows = RowPasses(index, read_block, rows, topology)

    @property
    @abstractmethod
    def identity(self) -> str:
        """The id of the settings that decide which rows lie in which bin."""

    @abstractmethod
    def window_rows(self, ranks: int) -> int:
        """Return the rows of a window of one of `ranks` ranks."""

    @abstractmethod
    def pass_of(self, rows: RowPass, world_size: int, batch_size: int) -> BinnedPass:
        """Return the pass over these rows on `world_size` ranks, `batch_size` bins a batch."""

    def begin(self, epoch: int, after: Pass | None = None) -> BinnedPass:
        """Begin an epoch; see `Passes`."""
        return self._of(
            self.rows.begin(epoch, after.rows if isinstance(after, BinnedPass) else None)
        )

    def full(self, of: Pass) -> BinnedPass:
        """Return the full epoch of a pass, from its beginning."""
        assert isinstance(of, BinnedPass)
        return self._of(self.rows.full(of.rows))

    def resume(self, values: Mapping[str, Any], changed: Changed = "nothing") -> BinnedPass:
        """Resume from a saved state: exactly with the same ranks and batch size, otherwise with the
        remaining rows.

        A changed blend holds behind the windows that have begun, and their rows that nobody has
        received come first.
        """
        state = CountedState.from_dict(values)
        if state.identity != self.identity:
            words = " or ".join(setting_name(word) for word in self.settings_words)
            raise StreamError(
                f"the state was saved with another {words}, so bins would hold other rows",
                remedy="pass the saved ones, or start the epoch again",
            )
        if changed == "nothing":
            start = self.rows.checked(state.start.to_dict())
        else:
            start = self._of_changed_blend(state.start, changed)
        saved = self.pass_of(self.rows.at(start), state.world_size, state.batch_size)
        if state.batches > saved.steps:
            raise StreamError(
                f"the state counts {state.batches} batches of a pass of {saved.steps}",
                remedy="pass it on unchanged",
            )
        ranks = (self.topology.world_size, self.bins_per_batch)
        is_exact = ranks == (state.world_size, state.batch_size)
        if is_exact and changed == "nothing":
            return replace(saved, delivered=state.batches)
        left = start.at(saved.left_after(state.batches), batches=state.batches)
        if changed != "nothing":
            left = self.rows.checked(self.rows.remixed(left, changed).to_dict())
        if is_exact and left.mixture == start.mixture:
            return replace(saved, delivered=state.batches)
        return self._of(self.rows.at(left))

    def _of_changed_blend(self, saved: StreamState, changed: Changed) -> StreamState:
        """Return `RowPasses.of_changed_blend`. Raises `StreamError` also for removed datasets."""
        start = self.rows.of_changed_blend(saved.to_dict(), changed)
        assert start.mixture is not None
        assert isinstance(self.index, BlendIndex)
        for source in start.mixture.sources:
            if source.name not in self.index.names:
                raise StreamError(
                    "stream state: which rows nobody has received follows from the lengths of all"
                    " that were read together, and the stream has none of this dataset",
                    setting="datasets",
                    value=source.name,
                    remedy=(
                        "open the blend with it, and leave it out of the weights of"
                        f" {setting('schedule')}"
                    ),
                )
        return start

    def _of(self, rows: RowPass) -> BinnedPass:
        return self.pass_of(rows, self.topology.world_size, self.bins_per_batch)


def _refuse_steps(index: SplitIndex, options: StreamOptions) -> None:
    """Raise `SettingsError` if a stage of a blend begins at a step."""
    if not isinstance(index, BlendIndex):
        return
    names = [
        name
        for name in ("pack", "group_by_length", "batch_tokens")
        if getattr(options, name) is not None
    ]
    for stage in index.mixture.stages:
        if stage.begin.unit == "steps":
            raise SettingsError(
                f"a stage begins at {stage.begin}, and {setting_name(names[0])} makes steps of the"
                " lengths of rows, window by window",
                setting="schedule",
                value=str(stage.begin),
                remedy='write it in rows or a share, such as "3M rows" or "80%"',
            )


class BinPart(NamedTuple):
    """Bins of one window, at most as many as a batch still takes.

    columns: those of the window, filling rows at the end included. lengths: of its own rows,
    int64. bins: their sequences are indices of rows in the window.
    """

    columns: Columns
    lengths: I64
    bins: Bins


@dataclass(frozen=True, eq=False)
class BinnedPass(ABC):
    """The rest of an epoch whose rows lie in bins, on `world_size` ranks in batches of `batch_size`
    bins.

    rows: the rows at its beginning. delivered: batches since then.
    """

    passes: Any
    rows: RowPass
    world_size: int
    batch_size: int
    delivered: int = 0
    _known: dict[int, I64] = field(default_factory=dict, repr=False)

    @abstractmethod
    def make_bins(self, lengths: I64, rank: int, window: int) -> Bins:
        """Put the rows of a window into bins; lengths: of its rows, int64."""

    @abstractmethod
    def batches(self, reading: Reading, *, first: int = 0) -> Generator[Any, None, None]:
        """Yield this rank's batches from number `first` on; see `Pass`."""

    @abstractmethod
    def context(self, batch: int) -> TransformContext:
        """Return the position in the epoch of this rank's batch with this number."""

    @abstractmethod
    def rows_after(self, batches: int) -> int:
        """Count what lies in this rank's first `batches` batches, without filling."""

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
        """The number of rows that the settings of the source leave out, over all ranks."""
        return 0

    @cached_property
    def _plan(self) -> Plan:
        return replace(self.rows.plan(), world_size=self.world_size, batch_size=self.window_rows)

    def plan(self) -> Plan:
        """Return the plan of which rank reads which rows when; its batches are windows."""
        return self._plan

    @property
    def window_rows(self) -> int:
        """The rows of a window of one rank."""
        rows: int = self.passes.window_rows(self.world_size)
        return rows

    @property
    def window_count(self) -> int:
        """The number of windows of each rank; the last ones may hold no row of some ranks."""
        return self._plan.steps_per_rank

    def lengths_of(self, rank: int) -> I64:
        """Return the stored length of each row of a rank, in its order: int64 [rows]."""
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
            index = pool.index
            parts.append(laid if index is None else laid[index])
        return np.concatenate(parts)[: rank_rows.rows].astype(np.int64)

    def bins_of_windows(self, rank: int) -> I64:
        """Count the bins of each window of a rank: int64 [windows]."""
        if rank not in self._known:
            self._known[rank] = np.array([len(bins) for _, bins in self.windows(rank)], np.int64)
        return self._known[rank]

    def windows(self, rank: int, first: int = 0) -> Iterator[tuple[I64, Bins]]:
        """Yield each window of a rank from window `first` on: the stored lengths of its rows, and
        its bins.

        Sequences of the bins are indices in the window.
        """
        for window, lengths in self.lengths_of_windows(rank, first):
            yield lengths, self.make_bins(lengths, rank, window)

    def lengths_of_windows(self, rank: int, first: int = 0) -> Iterator[tuple[int, I64]]:
        """Yield the number of each window of a rank, and the stored lengths of its rows."""
        lengths = self.lengths_of(rank)
        size = self.window_rows
        for window in range(first, self.window_count):
            yield window, lengths[window * size : (window + 1) * size]

    def left_after(self, batches: int) -> Remaining:
        """Find the rows that no rank has received after this number of batches on each rank.

        Rows that are left out count as received once their whole window has been delivered.
        """
        positions = [np.zeros(0, np.int64)]
        size = self.window_rows
        for rank in range(self.world_size):
            rank_rows = self._plan.rank_rows(rank)
            left = np.ones(rank_rows.rows, np.bool_)
            delivered_bins = batches * self.batch_size
            for window, (_, bins) in enumerate(self.windows(rank)):
                begin = window * size
                if delivered_bins >= len(bins):
                    left[begin : begin + size] = False
                else:
                    left[begin + bins[:delivered_bins].sequences] = False
                delivered_bins -= min(delivered_bins, len(bins))
                if not delivered_bins:
                    break
            positions.append(
                self._plan.remaining.positions(rank_rows.indices(0, rank_rows.rows)[left])
            )
        return Remaining.of_positions(self._plan.order.rows, np.sort(np.concatenate(positions)))

    def state_after(self, batches: int) -> dict[str, Any]:
        check_batches(batches, self.steps)
        return CountedState(
            start=self.rows.start,
            batches=self.delivered + batches,
            world_size=self.world_size,
            batch_size=self.batch_size,
            identity=self.passes.identity,
        ).to_dict()

    def parts(self, reading: Reading, delivered: int) -> Generator[BinPart, None, None]:
        """Yield this rank's bins after `delivered` batches, in parts that end where batches and
        windows end.
        """
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
            make=_full_windows,
        )
        with closing(windows):
            for columns, (lengths, bins) in zip(windows, self.windows(rank, first), strict=True):
                while at < len(bins):
                    stop = min(len(bins), at + room)
                    yield BinPart(columns, lengths, bins[at:stop])
                    room = room - (stop - at) or size
                    at = stop
                at = 0

    def __getstate__(self) -> dict[str, Any]:
        return {
            **{attribute.name: getattr(self, attribute.name) for attribute in fields(self)},
            "_known": {},
        }


def _full_windows(columns: Columns, batch_size: int) -> Iterator[Columns]:
    """Yield windows as columns, for `read_share`."""
    rows = len(next(iter(columns.values())))
    return (cut(columns, start, start + batch_size) for start in range(0, rows, batch_size))
