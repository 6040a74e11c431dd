"""Plan what every rank will read, from the index alone. Pure: no files, no clock, no torch.

Steps and rows are arithmetic. Bytes and read amplification follow from the blocks that a rank's
pools need. A rank reads the positions r (mod R), and group d holds the positions d (mod D), so the
rank touches exactly the groups d = r modulo gcd(D, R), and in each pool the rounds that lie there.
A block is decoded once for each run of consecutive pools that need it, or once by every rank if the
split is small. If R divides D, one rank decodes each block, except for the at most L-1 blocks that
a lane border cuts. A stream decodes that much or slightly less, see `bytes_per_rank`. If ranks
changed in the middle of an epoch, the parts of its order follow one another. Cost: O(blocks + pools
* L + R).

A rank's items come as pools, the unit of decoding and gathering. Lanes advance in lockstep, so the
rows that a rank takes from one window round (the next window of every lane it touches) are adjacent
in the global order. Small rounds are combined, because each pool has a fixed cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd
from typing import NamedTuple

import numpy as np

from headrace.arrays import I64, concatenated
from headrace.dataset.html import table_html
from headrace.dataset.index import SplitIndex
from headrace.stream.order.balance import RowCosts, step_loads
from headrace.stream.order.epoch import Order, Pool, natural_rows
from headrace.stream.order.joined import EpochPart, parts_of
from headrace.stream.order.lanes import (
    OPEN_BYTES,
    ORDER_BYTES,
    Lanes,
    estimate_block_bytes,
    fits_in_memory,
    mixes_everything,
)
from headrace.stream.order.layout import BlendIndex
from headrace.stream.order.mixed import MixedOrder
from headrace.stream.order.mixture import TokenShare
from headrace.stream.order.remaining import (
    RankRows,
    Remainder,
    Remaining,
    count_out,
    rank_rows_of,
    split_at,
)
from headrace.stream.order.shard_partition import ShardPartition

MOST_POOLS_AHEAD = 16  # whose blocks a reader may hold while it reads one
_LEAST_POOL_ROWS = 1 << 15
_LEAST_POOL_BYTES = 1 << 24
# what streams decode ahead unless told otherwise
_PREFETCH_BYTES = 1 << 25
_PREFETCH_BLOCKS = 256
_WORTH_A_WORD = 1.01
_WORTH_A_CHANGE = 1.05
_NEARLY = 1.3  # more lanes mix more rows, which is worth some decoding


def estimate_peak_bytes(plan: Plan) -> int:
    """Estimate the peak memory of one rank: decoded blocks, a round and its order, and what is
    decoded ahead.

    A split that every rank keeps counts once. Otherwise counts a block for each lane that the rank
    touches and its rows of a round, which are laid end to end, but never more than twice the
    decoded split.
    """
    order = plan.order
    decoded = int(plan.block_bytes.sum())
    round_rows = 1
    if order.shuffle:
        round_rows = min(order.rows, order.lanes * order.window_rows)
    if plan.keeps_split:
        return decoded + ORDER_BYTES * round_rows
    row_bytes = decoded / max(1, plan.split_rows)
    touched = order.lanes // gcd(order.groups, plan.world_size)
    rank_rows = round_rows * touched / order.lanes
    opened = touched * int(plan.block_bytes.max(initial=0)) + 2 * rank_rows * row_bytes
    ahead = min(plan.ahead_bytes(_PREFETCH_BYTES), int(plan.bytes_per_rank.max(initial=0)))
    return int(min(opened + ahead, 2 * decoded) + rank_rows * ORDER_BYTES * order.shuffle)


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """A pass counted position by position; a correct plan has no overlap and nothing missing."""

    delivered_rows: int
    overlap_rows: int
    missing_rows: int
    dropped_rows: int
    padded_rows: int


class PlanStage(NamedTuple):
    """Positions [begin, end) of an epoch of a blend, and how many rows of each source they have."""

    begin: int
    end: int
    rows: dict[str, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Which rank reads which rows when, for one epoch and one number of ranks.

    It is arithmetic over the index, so it can be computed for any number of ranks. shard_partition:
    whole shards for each rank, or equal parts of their rest; else None. costs: of the rows, if
    steps are balanced by them. memory_bytes: what a rank may hold, see `lanes`.
    """

    index: SplitIndex = field(repr=False)
    order: Order
    remaining: Remaining
    world_size: int
    batch_size: int
    remainder: Remainder
    shard_partition: ShardPartition | None = None
    costs: RowCosts | None = field(default=None, repr=False)
    memory_bytes: int = OPEN_BYTES

    @property
    def split_rows(self) -> int:
        """N, the rows of the split, even if an epoch has fewer or more."""
        return self.index.total_rows

    @cached_property
    def block_bytes(self) -> I64:
        """Decoded bytes of each block, as estimated from the index: int64 [B]."""
        return estimate_block_bytes(self.index)

    def _repr_html_(self) -> str:
        """Show steps, rows and bytes of the ranks in notebooks, and the read amplification."""
        rows = self.rows_per_rank
        read = self.bytes_per_rank
        figures: list[list[object]] = [
            ["rows of the epoch", self.order.rows],
            ["steps of each rank", self.steps_per_rank],
            ["lanes", self.order.lanes],
            ["rows of a rank", f"{rows.min():,} to {rows.max():,}"],
            ["MB decoded by a rank", f"{read.min() / 1e6:,.1f} to {read.max() / 1e6:,.1f}"],
            ["read amplification, at most", f"{self.read_amplification:.2f}"],
            ["repeated rows", self.padded_rows],
            ["rows left out", self.dropped_rows],
        ]
        for stage in self.stages:
            counts = [f"{name} {count:,}" for name, count in stage.rows.items()]
            figures.append([f"rows {stage.begin:,} to {stage.end:,}", ", ".join(counts)])
        for name, expected in self.tokens.items():
            figures.append([f"expected tokens of {name}", str(expected)])
        if self.imbalance is not None:
            figures.append(
                ["cost of the slowest rank of a step over the mean", f"{self.imbalance:.3f}"]
            )
        ranks = f"{self.world_size:,} rank{'s' if self.world_size != 1 else ''}"
        return table_html(f"plan: {ranks}, batches of {self.batch_size:,}", ["", ""], figures)

    @property
    def stages(self) -> list[PlanStage]:
        """The stages of the epoch of a blend: a new one begins where the schedule says so, or where
        a source reached its limit. Empty for a single dataset.
        """
        stages: list[PlanStage] = []
        before = None
        for part in parts_of(self.order):
            order = part.order
            if not isinstance(order, MixedOrder) or len(order.sources) == 1:
                return []
            # where ranks changed, a stage goes on
            for segment in order.schedule.segments(order.begin, order.end):
                begin = max(0, segment.begin - order.begin) + part.begin
                end = min(part.end, segment.end - order.begin + part.begin)
                if begin >= end:
                    continue
                rows = order.rows_by_source(begin - part.begin, end - part.begin)
                if segment == before:
                    begin, _, earlier = stages.pop()
                    rows = {name: earlier.get(name, 0) + count for name, count in rows.items()}
                stages.append(PlanStage(begin, end, rows))
                before = segment
        return stages

    @property
    def tokens(self) -> dict[str, TokenShare]:
        """The expected tokens of each source in the epoch, of a blend by tokens; else empty."""
        by_source: dict[str, TokenShare] = {}
        first = parts_of(self.order)[0].order
        last = parts_of(self.order)[-1].order
        if not isinstance(first, MixedOrder) or not isinstance(last, MixedOrder):
            return by_source
        begin = first.schedule.drawn_before(first.begin).tolist()
        end = last.schedule.drawn_before(last.end).tolist()
        if isinstance(self.index, BlendIndex) and self.index.tokens is not None:
            of_source = dict(zip(self.index.names, self.index.tokens, strict=True))
            for number, source in enumerate(last.sources):
                if source.name in of_source:
                    tokens = of_source[source.name]
                    by_source[source.name] = tokens.expected_in(begin[number], end[number])
        return by_source

    @property
    def steps_per_rank(self) -> int:
        """Batches that each rank receives; the same for all."""
        return self.rank_rows(0).steps

    @property
    def dropped_rows(self) -> int:
        """Rows that "drop" leaves out: less than one global batch, unless ranks have whole
        shards.
        """
        return self.remaining.total - int(self.rows_per_rank.sum())

    @property
    def padded_rows(self) -> int:
        """Padding rows of "pad", over all ranks: less than one global batch, unless ranks have
        whole shards.
        """
        batch_rows = self.steps_per_rank * self.world_size * self.batch_size
        if self.remainder == "pad":
            return batch_rows - self.remaining.total
        return 0

    def rank_rows(self, rank: int) -> RankRows:
        """Return the share of one rank."""
        if self.shard_partition is not None:
            return self._region_shares[rank]
        left = self.remaining.total
        size = self.batch_size
        return rank_rows_of(
            left, rank=rank, ranks=self.world_size, batch_size=size, remainder=self.remainder
        )

    @cached_property
    def rows_per_rank(self) -> I64:
        """Real rows that each rank delivers: int64 [R]."""
        if self.shard_partition is not None:
            return np.array([rank_rows.rows for rank_rows in self._region_shares], np.int64)
        delivered = min(
            self.remaining.total, self.steps_per_rank * self.world_size * self.batch_size
        )
        rank = np.arange(self.world_size, dtype=np.int64)
        return np.maximum(0, -(-(delivered - rank) // self.world_size))

    @cached_property
    def bytes_per_rank(self) -> I64:
        """Upper bound on the bytes of the blocks that each rank decodes, estimated from the index:
        int64 [R].

        It assumes that a rank that touches a lane needs every window of it, and decodes a block
        again whenever it is needed again later. A rank with fewer rows than windows, and a stream
        that reads far enough ahead, decode less. Not counted: blocks that a stream decodes twice to
        deliver its first batch sooner, at most an eighth of them.
        """
        if self.keeps_split:
            reads = np.array([self.rank_rows(rank).items > 0 for rank in range(self.world_size)])
            return np.where(reads, self._needed_bytes, 0).astype(np.int64)
        total = np.zeros(self.world_size, np.int64)
        # it decodes a block to pad its batches
        for rank in np.flatnonzero(self.rows_per_rank == 0).tolist():
            rank_rows = self.rank_rows(rank)
            if rank_rows.items:
                position = self.remaining.positions(np.array([rank_rows.index_of(0)], np.int64))
                block, _ = self.order.locate(self.order.line_of(position))
                total[rank] = self.block_bytes[block[0]]
        small = (
            int(self.block_bytes.sum()) <= _PREFETCH_BYTES
            and len(self.block_bytes) <= _PREFETCH_BLOCKS
        )
        # a block stays decoded for so many that do not need it
        pools_ahead = 1
        if small:
            pools_ahead = MOST_POOLS_AHEAD
        for kinds, (group, block, pool, _) in self._needs.items():
            order = np.lexsort((pool, block, group))
            group = group[order]
            block = block[order]
            pool = pool[order]
            again = np.ones(len(group), np.bool_)
            again[1:] = (np.diff(group) > 0) | (np.diff(block) > 0) | (np.diff(pool) > pools_ahead)
            per_group = np.bincount(group[again], self.block_bytes[block[again]], kinds)
            total = total + per_group[np.arange(self.world_size) % kinds].astype(np.int64)
        return total

    @property
    def read_amplification(self) -> float:
        """Bytes decoded by all ranks over the bytes of the blocks that still hold rows; 1.0 means
        each block once.

        An upper bound, like `bytes_per_rank`.
        """
        if self._needed_bytes:
            return float(self.bytes_per_rank.sum()) / self._needed_bytes
        return 1.0

    @property
    def decoded_again_bytes(self) -> int:
        """Upper bound on the bytes that all ranks decode beyond one decode per block."""
        return max(0, int(self.bytes_per_rank.sum()) - self._needed_bytes)

    @cached_property
    def imbalance(self) -> float | None:
        """Cost of the slowest rank of each step over the mean rank, summed over all whole steps.

        1.0 means that no rank waits. None if costs are unknown or there is no whole step. O(rows).
        """
        if self.costs is None:
            return None
        costs = [np.empty((2, 0))]
        global_batch = self.world_size * self.batch_size
        chunk = max(1, _LEAST_POOL_ROWS // global_batch) * global_batch
        for first in range(0, self.remaining.total, chunk):
            indices = np.arange(first, min(first + chunk, self.remaining.total), dtype=np.int64)
            rows = natural_rows(self.index, self.order, self.remaining.positions(indices))
            costs.append(
                step_loads(
                    self.costs.costs[rows], ranks=self.world_size, batch_size=self.batch_size
                )
            )
        slowest, mean = np.concatenate(costs, axis=1).sum(axis=1)
        if mean:
            return float(slowest / mean)
        return None

    @cached_property
    def _needed_bytes(self) -> int:
        if self.keeps_split:
            if self.remaining.total:
                return int(self.block_bytes.sum())
            return 0
        blocks = max(1, len(self.block_bytes))
        needed = [laying * blocks + block for _, block, _, laying in self._needs.values()]
        return int(self.block_bytes[np.unique(concatenated(needed, np.int64)) % blocks].sum())

    @property
    def keeps_split(self) -> bool:
        """True if every rank decodes the whole split once and keeps it, because all ranks need all
        lanes and it fits into memory.
        """
        order = self.order
        return (
            order.shuffle
            and self.shard_partition is None
            and mixes_everything(
                Lanes(order.lanes, order.window_rows, order.groups), self.split_rows
            )
            and fits_in_memory(int(self.block_bytes.sum()), self.memory_bytes)
        )

    def ahead_bytes(self, least: int) -> int:
        """Return how many bytes a rank may decode ahead: at least `least`, and its next round if
        that fits into memory beside this one.

        Half of the rows of open blocks are still needed, see `ahead`.
        """
        order = self.order
        if not order.shuffle or self.shard_partition is not None:
            return least
        touched = order.lanes // gcd(order.groups, self.world_size)
        row_bytes = int(self.block_bytes.sum()) / max(1, self.split_rows)
        round_rows = touched * order.window_rows
        opened = touched * int(self.block_bytes.max(initial=0)) // 2
        room = self.memory_bytes - opened - round_rows * (row_bytes + ORDER_BYTES)
        return max(least, int(min(room, round_rows * row_bytes)))

    def coverage(self) -> Coverage:
        """Count every position that every rank would deliver, in O(rows) time and one byte
        per row.
        """
        seen = np.zeros(self.order.rows, np.uint8)
        overlap = filled = 0
        for rank in range(self.world_size):
            rank_rows = self.rank_rows(rank)
            positions = self.remaining.positions(rank_rows.indices(0, rank_rows.rows))
            overlap += int(np.count_nonzero(seen[positions]))
            seen[positions] = 1
            filled += rank_rows.items - rank_rows.rows
        delivered = int(np.count_nonzero(seen))
        return Coverage(
            delivered_rows=delivered,
            overlap_rows=overlap,
            missing_rows=self.remaining.total - delivered - self.dropped_rows,
            dropped_rows=self.dropped_rows,
            padded_rows=filled,
        )

    def owners(self, indices: I64) -> tuple[I64, I64]:
        """Return (rank, item) of places in the remaining sequence; an item may lie beyond what
        "drop" delivers.
        """
        if self.shard_partition is None:
            return indices % self.world_size, indices // self.world_size
        return split_at(self.shard_partition.bounds(self.remaining, self.world_size)[:-1], indices)

    @cached_property
    def _region_shares(self) -> list[RankRows]:
        assert self.shard_partition is not None
        return self.shard_partition.shares(
            self.remaining,
            ranks=self.world_size,
            batch_size=self.batch_size,
            remainder=self.remainder,
        )

    @cached_property
    def _needs(self) -> dict[int, I64]:
        """The blocks that pools need: int64 [4, needs] of (kind of rank, block, pool, laying), see
        `Reads`.

        The kind of a rank is r modulo the number of kinds that a part of the order distinguishes.
        Parts with the same kinds form one sequence of pools, so a block at their border stays
        decoded.
        """
        by_kinds: dict[int, list[I64]] = {}
        for part in parts_of(self.order):
            if part.end <= self.remaining.first:
                continue
            if self.shard_partition is None:
                kinds = gcd(part.order.groups, self.world_size)
                needs = [self._needs_of(part, self.rank_rows(0), kinds=kinds, rank=None)]
            else:
                kinds = self.world_size
                needs = []
                for rank in range(kinds):
                    rank_rows = self.rank_rows(rank)
                    needs.append(self._needs_of(part, rank_rows, kinds=kinds, rank=rank))
            by_kinds.setdefault(kinds, []).extend(needs)
        return {kinds: np.concatenate(needs, axis=1) for kinds, needs in by_kinds.items()}

    def _needs_of(  # noqa: PLR0914 - one computation
        self, part: EpochPart, rank_rows: RankRows, *, kinds: int, rank: int | None
    ) -> I64:
        """Return the needs of one rank's region in a part, or of all ranks together where they
        stride (rank: None).
        """
        residues = part.order.groups
        left = self._left_in(part, None if rank is None else rank_rows)
        if not left.total:
            return np.empty((4, 0), np.int64)
        ends = pool_limits(
            self.order, rank_rows, self.remaining.first, least_rows=least_pool_rows(self)
        )
        limits = np.fromiter(ends, np.int64)
        starts, stops = np.array(left.ranges, np.int64).T
        indices = self.remaining.counts_below(starts)
        cuts = np.unique(
            np.concatenate([starts, limits[(limits > starts[0]) & (limits < stops[-1])]])
        )
        of_range = np.searchsorted(starts, cuts, side="right") - 1
        until = np.minimum(np.append(cuts[1:], stops[-1]), stops[of_range])
        in_range = cuts < until  # a cut between two ranges begins nothing
        cuts = cuts[in_range]
        until = until[in_range]
        of_range = of_range[in_range]
        counts = np.minimum(residues, until - cuts)
        run, turn = count_out(counts)
        first = cuts[run] + turn
        last = first + (until[run] - 1 - first) // residues * residues
        reads = part.order.reads(first - part.begin, last - part.begin)
        index = indices[of_range[run]] + first - starts[of_range[run]]
        if rank is None:
            group = index % kinds
        else:
            group = np.full(len(run), rank)
        pool = np.searchsorted(limits, cuts, side="right")[run]
        return np.stack([group[reads.run], reads.block, pool[reads.run], reads.laying])

    def _left_in(self, part: EpochPart, rank_rows: RankRows | None) -> Remaining:
        """Return what remains of a part, for one rank's region or for all ranks together (None)."""
        if rank_rows is None:
            begin = 0
            rows = int(self.rows_per_rank.sum())
        else:
            begin = rank_rows.index_of(0)
            rows = rank_rows.rows
        end = min(begin + rows, self.remaining.count_below(part.end))
        begin = max(begin, self.remaining.count_below(part.begin))
        return self.remaining.keep(np.array([begin], np.int64), np.array([end], np.int64))


def better_lanes(plan: Plan, plan_of: Callable[[int], Plan]) -> tuple[int, float] | None:
    """Return (L, read amplification) of a number of lanes with which these ranks decode less, or
    None.

    plan_of: makes the same plan with another number of lanes. Candidates are multiples of the
    ranks, about as many lanes as now or fewer; of those that decode little, the nearest wins. None
    if no candidate is better by a twentieth, and for a split that stays in memory, whose mixing is
    worth more than decoding it once.
    """
    if (
        plan.shard_partition is not None
        or plan.keeps_split
        or plan.read_amplification < _WORTH_A_WORD
    ):
        return None
    ranks = plan.world_size
    lanes = plan.order.lanes
    per_rank = (-(-lanes // ranks), lanes // ranks, 8, 4, 2, 1)
    candidates = {ranks * max(1, count) for count in per_rank} - {lanes}
    amplification = {count: plan_of(count).read_amplification for count in sorted(candidates)}
    if not amplification:
        return None
    least = min(amplification.values())
    good = [count for count, times in amplification.items() if times <= least * _NEARLY]
    nearest = min(good, key=lambda count: abs(count - lanes))
    if amplification[nearest] * _WORTH_A_CHANGE > plan.read_amplification:
        return None
    return nearest, amplification[nearest]


def least_pool_rows(plan: Plan) -> int:
    """Return the smallest useful pool: 32,768 rows, or as many as 16 MiB hold."""
    row_bytes = int(plan.block_bytes.sum()) // max(1, plan.split_rows)
    return max(1, min(_LEAST_POOL_ROWS, _LEAST_POOL_BYTES // max(1, row_bytes)))


def pool_limits(
    order: Order, rank_rows: RankRows, first: int, *, least_rows: int = _LEAST_POOL_ROWS
) -> Iterator[int]:
    """Yield the ascending positions at which the pools of a pass from `first` end: borders of whole
    rounds and parts.

    The first pool is a quarter as long as the others, because the loop waits for it.
    """
    quarter = True
    for begin, end, part in parts_of(order):
        if end <= first:
            continue
        round_rows = part.lanes * (part.window_rows if part.shuffle else 1)
        # whole rounds
        pool_rows = max(1, -(-least_rows * rank_rows.stride // round_rows)) * round_rows
        origin = max(begin, rank_rows.origin)
        if part.shuffle:  # as though the first round, which is shorter, had begun earlier
            origin += part.lanes * part.first_window_rows - round_rows
        at = max(first, begin)
        last = origin + (at - origin) // pool_rows * pool_rows
        if quarter:
            begun = origin + (at - origin) // round_rows * round_rows
            limit = begun + max(1, pool_rows // round_rows // 4) * round_rows
            if limit < min(last + pool_rows, end):
                yield limit
            quarter = False
        yield from range(last + pool_rows, end, pool_rows)
        yield end


def plan_pools(
    order: Order, remaining: Remaining, rank_rows: RankRows, *, least_rows: int = _LEAST_POOL_ROWS
) -> Iterator[Pool]:
    """Yield the rank's pools in order, lazily; together they hold all its items once.

    least_rows: smallest size of a pool; a quarter of it for the first, which the loop waits for.
    """
    if not rank_rows.items:
        return
    item = 0
    for limit in (
        pool_limits(order, rank_rows, remaining.first, least_rows=least_rows)
        if rank_rows.rows
        else ()
    ):
        stop = rank_rows.items_below(remaining.count_below(limit))
        if stop > item:
            # the last pool also fills the last step
            filling = 0
            if stop == rank_rows.rows:
                filling = rank_rows.items - rank_rows.rows
            pool = order.pool_of(remaining.positions_of_run(rank_rows.run(item, stop)))
            yield replace(pool, items=pool.items + filling, filling=filling)
            item = stop
        if item == rank_rows.rows:
            return
    if not rank_rows.rows:
        pool = order.pool_of(remaining.positions(np.array([rank_rows.index_of(0)])))
        yield replace(pool, items=rank_rows.items, filling=rank_rows.items - 1)
