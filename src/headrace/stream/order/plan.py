"""The plan: what every consumer will read, known from the index alone. Pure: no files, no clock, no torch.

Steps and rows are arithmetic. Bytes and read amplification follow from which blocks a consumer's pools need: its
positions are c (mod C) and group d holds the positions d (mod D), so it touches exactly the groups d = c modulo
gcd(D, C), and in each pool the rounds that lie there. A block is decoded once for each row of pools that follow one
another and need it; a small split, once by every consumer. If C divides D every block is decoded by one consumer,
except for the at most L-1 blocks that a lane border cuts. That is what a stream decodes, or a little more: see
`bytes_per_consumer`. Cost is O(blocks + pools * L + C).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from typing import NamedTuple

import numpy as np

from headrace.arrays import I64
from headrace.dataset.html import table_html
from headrace.dataset.index import SplitIndex
from headrace.stream.order.epoch import Order
from headrace.stream.order.lanes import OPEN_BYTES, choose_lanes, estimate_block_bytes, is_small
from headrace.stream.order.layout import lay_epoch, sources_of
from headrace.stream.order.pools import MOST_POOLS_AHEAD, first_pool_end, least_pool_rows, rows_of_pools
from headrace.stream.order.regions import Regions, RegionShare
from headrace.stream.order.remaining import Remaining
from headrace.stream.order.share import Remainder, Share, consumer_number, count_steps, resolve_remainder, share_of

_PREFETCH_BYTES, _PREFETCH_BLOCKS = 1 << 25, 256  # what streams decode ahead unless told otherwise
_WORTH_A_WORD, _WORTH_A_CHANGE = 1.01, 1.05
_NEARLY = 1.3  # more lanes mix more rows, which is worth some decoding


def estimate_peak_bytes(plan: Plan) -> int:
    """What one consumer holds at most, about: a gathered pool, its decoded blocks, and what is decoded ahead.

    Windows of the lanes it touches, each with a block more than it fills; never more than the decoded split twice.
    """
    order, blocks = plan.order, plan.block_bytes
    row_bytes = int(blocks.sum()) / max(1, plan.split_rows)
    touched = order.lanes // gcd(order.groups, plan.consumers)
    window_bytes = (order.window_rows if order.shuffle else 1) * row_bytes
    pool = window_bytes * order.lanes / plan.consumers
    decoded = touched * (window_bytes + int(blocks.max(initial=0)))
    ahead = min(_PREFETCH_BYTES, int(plan.bytes_per_consumer.max(initial=0)))
    return int(min(pool + decoded + ahead, 2 * int(blocks.sum())))


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What a pass would deliver, counted position by position; a sound plan has no overlap and nothing missing."""

    delivered_rows: int
    overlap_rows: int
    missing_rows: int
    dropped_rows: int
    padded_rows: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """Who reads which rows when, for one epoch and one topology; build it with `make_plan`.

    Pure arithmetic over the index, so that it can be asked for any number of ranks and workers. Consumers are numbered
    worker × world_size + rank; a rank takes the batches of its workers in turn. split_rows: N, also where an order has
    fewer or more. block_bytes: of each block, int64 [B]. regions: of whole shards for each reader, else None.
    """

    order: Order
    remaining: Remaining
    world_size: int
    workers: int
    batch_size: int
    remainder: Remainder
    split_rows: int
    regions: Regions | None = None
    block_bytes: I64 = field(repr=False)

    def _repr_html_(self) -> str:
        """For notebooks: steps, rows and bytes of the readers, and whether anything is decoded twice."""
        rows, read = self.rows_per_consumer, self.bytes_per_consumer
        facts: list[list[object]] = [
            ["rows of the epoch", self.order.rows],
            ["steps of each rank", self.steps_per_rank],
            ["readers (ranks x workers)", self.consumers],
            ["lanes", self.order.lanes],
            ["rows of a reader", f"{rows.min():,} to {rows.max():,}"],
            ["MB decoded by a reader", f"{read.min() / 1e6:,.1f} to {read.max() / 1e6:,.1f}"],
            ["read amplification, at most", f"{self.read_amplification:.2f}"],
            ["repeated rows", self.padded_rows],
            ["rows left out", self.dropped_rows],
        ]
        ranks = f"{self.world_size:,} rank{'s' if self.world_size != 1 else ''}"
        workers = f" of {self.workers} workers" if self.workers else ""
        title = f"plan: {ranks}{workers}, batches of {self.batch_size:,}"
        return table_html(title, ["", ""], facts)

    @property
    def consumers(self) -> int:
        """C, the (rank, worker) pairs; no worker processes count as one worker."""
        return self.world_size * max(1, self.workers)

    @property
    def steps_per_consumer(self) -> int:
        """Batches each consumer gives; the same for all."""
        if self.regions is not None:
            return self.regions.steps(self.remaining, batch_size=self.batch_size, remainder=self.remainder)
        return count_steps(
            self.remaining.total, consumers=self.consumers, batch_size=self.batch_size, remainder=self.remainder
        )

    @property
    def steps_per_rank(self) -> int:
        """Batches each rank receives; the same for all."""
        return self.steps_per_consumer * max(1, self.workers)

    @property
    def dropped_rows(self) -> int:
        """Rows that "drop" leaves out: less than one step of all consumers, but for whole shards."""
        if self.regions is not None:
            return self.remaining.total - int(self.rows_per_consumer.sum())
        return self.remaining.total % (self.consumers * self.batch_size) if self.remainder == "drop" else 0

    @property
    def padded_rows(self) -> int:
        """Filling rows of "pad", over all consumers: less than one step of all consumers, but for whole shards."""
        given = self.steps_per_consumer * self.consumers * self.batch_size
        return given - self.remaining.total if self.remainder == "pad" else 0

    def share(self, *, rank: int, worker: int = 0) -> Share:
        """The part of one (rank, worker)."""
        return self._share(consumer_number(rank=rank, worker=worker, world_size=self.world_size))

    @cached_property
    def rows_per_consumer(self) -> I64:
        """Real rows each consumer delivers: int64 [C], numbered worker * world_size + rank."""
        if self.regions is not None:
            return np.array([share.rows for share in self._region_shares], np.int64)
        return np.array([self._share(consumer).rows for consumer in range(self.consumers)], np.int64)

    @cached_property
    def bytes_per_consumer(self) -> I64:
        """Bytes of the blocks each consumer decodes, as estimated from the index: int64 [C].

        At most: it takes every consumer that touches a lane to need each window of it, which one that takes fewer rows
        than there are windows does not, and a block that is needed again later to be decoded again, which a stream that
        reads far enough ahead does not.
        """
        if self.keeps_split:
            reads = np.array([self._share(consumer).items > 0 for consumer in range(self.consumers)])
            return np.where(reads, self._needed_bytes, 0).astype(np.int64)
        group, block, pool, _ = self._needs
        pairs, where = np.unique(group * max(1, len(self.block_bytes)) + block, return_inverse=True)
        order = np.lexsort((pool, where))
        along, pool = where[order], pool[order]
        again = np.ones(len(along), np.bool_)
        again[1:] = (np.diff(along) > 0) | (np.diff(pool) > self._pools_kept)
        blocks = pairs[along[again]] % max(1, len(self.block_bytes))
        groups = self._groups
        per_group = np.bincount(pairs[along[again]] // max(1, len(self.block_bytes)), self.block_bytes[blocks], groups)
        return (per_group[np.arange(self.consumers) % groups] + self._bytes_of_filling).astype(np.int64)

    @property
    def read_amplification(self) -> float:
        """Bytes decoded by all consumers over the bytes of the blocks that still hold rows; 1.0 is each block once.

        At most, as `bytes_per_consumer`.
        """
        return float(self.bytes_per_consumer.sum()) / self._needed_bytes if self._needed_bytes else 1.0

    @property
    def decoded_again_bytes(self) -> int:
        """Bytes that all consumers together decode beyond each block once: what the amplification costs, at most."""
        return max(0, int(self.bytes_per_consumer.sum()) - self._needed_bytes)

    @cached_property
    def _needed_bytes(self) -> int:
        if self.keeps_split:
            return int(self.block_bytes.sum()) if self.remaining.total else 0
        _, block, _, laying = self._needs
        blocks = max(1, len(self.block_bytes))
        return int(self.block_bytes[np.unique(laying * blocks + block) % blocks].sum())

    @property
    def _groups(self) -> int:
        """How many kinds of consumers there are: those of one kind need the same blocks."""
        return self.consumers if self.regions is not None else gcd(self.order.groups, self.consumers)

    @property
    def keeps_split(self) -> bool:
        """Whether every reader decodes the whole split once and keeps it: it is small, and one permutation."""
        order, decoded = self.order, int(self.block_bytes.sum())
        one_round = order.groups == 1 and order.lanes * order.window_rows >= self.split_rows
        return order.shuffle and self.regions is None and one_round and is_small(self.split_rows, decoded)

    @cached_property
    def _pools_kept(self) -> int:
        """For how many pools a block stays decoded that the pools between do not need."""
        small = int(self.block_bytes.sum()) <= _PREFETCH_BYTES and len(self.block_bytes) <= _PREFETCH_BLOCKS
        return MOST_POOLS_AHEAD if small else 1

    @cached_property
    def _bytes_of_filling(self) -> I64:
        """Bytes that a consumer without a row of its own decodes to fill its batches: int64 [C]."""
        found = np.zeros(self.consumers, np.int64)
        for consumer in np.flatnonzero(self.rows_per_consumer == 0).tolist():
            share = self._share(consumer)
            if share.items:
                position = self.remaining.positions(np.array([share.place_of(0)], np.int64))
                block, _ = self.order.locate(self.order.line_of(position))
                found[consumer] = self.block_bytes[block[0]]
        return found

    def coverage(self) -> Coverage:
        """Count every position that every consumer would deliver. O(rows) time, one byte a row."""
        seen = np.zeros(self.order.rows, np.uint8)
        overlap = filled = 0
        for consumer in range(self.consumers):
            share = self._share(consumer)
            positions = self.remaining.positions(share.places(0, share.rows))
            overlap += int(np.count_nonzero(seen[positions]))
            seen[positions] = 1
            filled += share.items - share.rows
        delivered = int(np.count_nonzero(seen))
        return Coverage(
            delivered_rows=delivered,
            overlap_rows=overlap,
            missing_rows=self.remaining.total - delivered - self.dropped_rows,
            dropped_rows=self.dropped_rows,
            padded_rows=filled,
        )

    def owner(self, place: int) -> tuple[int, int]:
        """(consumer, item) that a place of what remains belongs to; the item may be beyond what "drop" delivers."""
        if self.regions is None:
            return place % self.consumers, place // self.consumers
        begins = np.array([share.begin for share in self._region_shares], np.int64)
        consumer = int(np.searchsorted(begins, place, side="right")) - 1
        return consumer, place - int(begins[consumer])

    def _share(self, consumer: int) -> Share:
        if self.regions is not None:
            return self._region_shares[consumer]
        return share_of(
            self.remaining.total,
            consumer=consumer,
            consumers=self.consumers,
            batch_size=self.batch_size,
            remainder=self.remainder,
        )

    @cached_property
    def _region_shares(self) -> list[RegionShare]:
        assert self.regions is not None
        return self.regions.shares(self.remaining, batch_size=self.batch_size, remainder=self.remainder)

    @cached_property
    def _needs(self) -> _Needs:
        """The blocks that each pool of each kind of consumer needs, an entry for each window run that needs one."""
        shares = [self._share(0)] if self.regions is None else self._region_shares
        parts = [self._needs_of(number, share) for number, share in enumerate(shares)]
        return _Needs(*(np.concatenate(each) for each in zip(*parts, strict=True)))

    def _needs_of(self, number: int, share: Share) -> _Needs:
        """Those of one region; of all consumers together where they stride."""
        strides, residues = self.regions is None, self.order.groups
        begin, rows = (0, self.remaining.total - self.dropped_rows) if strides else (share.place_of(0), share.rows)
        left = self.remaining.keep(np.array([begin], np.int64), np.array([begin + rows], np.int64))
        if not left.total:
            return _Needs(*(np.empty(0, np.int64) for _ in range(4)))
        least_rows = least_pool_rows(int(self.block_bytes.sum()) // max(1, self.split_rows))
        _, pool_rows = rows_of_pools(self.order, share.stride, least_rows=least_rows)
        ends = first_pool_end(
            self.order, self.remaining.first, origin=share.origin, consumers=share.stride, least_rows=least_rows
        )
        limits = np.unique([*ends, *range(ends[1], left.ranges[-1][1] + pool_rows, pool_rows)])
        starts, stops = np.array(left.ranges, np.int64).T
        shift = starts - np.concatenate([[0], np.cumsum(stops - starts)[:-1]])
        cuts = np.unique(np.concatenate([starts, limits[(limits > starts[0]) & (limits < stops[-1])]]))
        of_range = np.searchsorted(starts, cuts, side="right") - 1
        until = np.minimum(np.append(cuts[1:], stops[-1]), stops[of_range])
        held = cuts < until  # a cut between two ranges begins nothing
        cuts, until, of_range = cuts[held], until[held], of_range[held]
        counts = np.minimum(residues, until - cuts)
        part = np.repeat(np.arange(len(cuts)), counts)
        first = cuts[part] + np.arange(len(part)) - np.repeat(np.cumsum(counts) - counts, counts)
        reads = self.order.reads(first, first + (until[part] - 1 - first) // residues * residues)
        group = (first - shift[of_range[part]]) % self._groups if strides else np.full(len(part), number)
        pool = np.searchsorted(limits, cuts, side="right")[part]
        return _Needs(group[reads.run], reads.block, pool[reads.run], reads.laying)


class _Needs(NamedTuple):
    """Blocks that pools need; int64, parallel. group: the kind of consumer; laying: see `Reads`."""

    group: I64
    block: I64
    pool: I64
    laying: I64


def better_lanes(plan: Plan, plan_of: Callable[[int], Plan]) -> tuple[int, float] | None:
    """(L, read amplification) of the lanes with which these consumers decode less, computed for each candidate.

    plan_of: the same plan with so many lanes. None where nothing that was tried is better by a twentieth, and for a
    split that stays in memory, whose mixing is worth more than decoding it once. Candidates are what the consumers
    divide, about as many lanes as now or fewer; of those that decode little the nearest.
    """
    if plan.regions is not None or plan.keeps_split or plan.read_amplification < _WORTH_A_WORD:
        return None
    consumers, lanes = plan.consumers, plan.order.lanes
    tried = {consumers * max(1, each) for each in (-(-lanes // consumers), lanes // consumers, 8, 4, 2, 1)} - {lanes}
    found = [(plan_of(each).read_amplification, abs(each - lanes), each) for each in sorted(tried)]
    least = min(amplified for amplified, _, _ in found) if found else plan.read_amplification
    near = min((each for each in found if each[0] <= least * _NEARLY), key=lambda each: each[1], default=None)
    if near is None or near[0] * _WORTH_A_CHANGE > plan.read_amplification:
        return None
    return near[2], near[0]


def make_plan(
    index: SplitIndex,
    *,
    batch_size: int,
    world_size: int = 1,
    workers: int = 0,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = False,
    lanes: int | None = None,
    window_rows: int | None = None,
    shuffle_rows: int | None = None,
    remainder: Remainder | None = None,
    remaining: Remaining | None = None,
    groups: int | None = None,
    memory_bytes: int = OPEN_BYTES,
    samples_per_epoch: int | None = None,
    order: Order | None = None,
    regions: Regions | None = None,
) -> Plan:
    """The plan of one epoch; what is None is chosen as a stream chooses it. O(blocks).

    order: of the epoch, where it is known already; the settings of an order are not looked at then.
    regions: of this topology, in that order.
    """
    consumers = world_size * max(1, workers)
    if order is None:
        chosen = choose_lanes(
            index,
            shuffle=shuffle,
            readers=consumers,
            batch_size=batch_size,
            lanes=lanes,
            shuffle_rows=shuffle_rows,
            memory_bytes=memory_bytes,
            sources=sources_of(index),
        )
        order = lay_epoch(
            index,
            seed=seed,
            epoch=epoch,
            lanes=chosen.lanes,
            window_rows=chosen.window_rows if window_rows is None else window_rows,
            groups=chosen.groups if groups is None else groups,
            shuffle=shuffle,
            samples_per_epoch=samples_per_epoch,
        )
    return Plan(
        order=order,
        remaining=Remaining.everything(order.rows) if remaining is None else remaining,
        world_size=world_size,
        workers=workers,
        batch_size=batch_size,
        remainder=resolve_remainder(remainder, consumers),
        split_rows=index.total_rows,
        regions=regions,
        block_bytes=estimate_block_bytes(index),
    )
