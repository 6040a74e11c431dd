"""The plan: what every consumer will read, known from the index alone. Pure: no files, no clock, no torch.

Steps and rows are arithmetic. Bytes and read amplification follow from which lanes a consumer touches: its positions
are c (mod C) and group d holds the positions d (mod D), so it touches exactly the groups d = c (mod gcd(D, C)). If C
divides D every block is decoded by one consumer, except for the at most L-1 blocks that a lane border cuts. Cost is
O(blocks + C).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import gcd

import numpy as np

from headrace.arrays import I64
from headrace.dataset.html import table_html
from headrace.dataset.index import SplitIndex
from headrace.stream.lanes import OPEN_BYTES, choose_lanes, estimate_block_bytes, is_small
from headrace.stream.layout import lay_epoch, sources_of
from headrace.stream.order import Order, Reads
from headrace.stream.pools import least_pool_rows, rows_of_pools
from headrace.stream.regions import Regions, RegionShare
from headrace.stream.remaining import Remaining
from headrace.stream.share import Remainder, Share, consumer_number, count_steps, resolve_remainder, share_of

_PREFETCH_BYTES = 1 << 25  # what streams decode ahead unless told otherwise


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
            ["read amplification", f"{self.read_amplification:.2f}"],
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

        An upper bound: it takes every consumer that touches a lane to need all blocks of it. A block that borders of
        lanes cut counts for each of its lanes, as these are read far apart, unless all is so small that a consumer has
        its blocks at once.
        """
        reads = self._reads
        if self.regions is not None:
            weights = self.block_bytes[reads.block]
            return np.bincount(reads.run, weights=weights, minlength=self.consumers).astype(np.int64)
        groups = gcd(self.order.groups, self.consumers)
        group = (self.remaining.first + reads.run) % groups  # runs are numbered from the first position left
        block = reads.block
        if self._is_held_at_once:
            pairs = np.unique(group * max(1, len(self.block_bytes)) + block)
            group, block = np.divmod(pairs, max(1, len(self.block_bytes)))
        per_group = np.bincount(group, weights=self.block_bytes[block], minlength=groups)
        return per_group[np.arange(self.consumers) % groups].astype(np.int64)

    @property
    def read_amplification(self) -> float:
        """Bytes decoded by all consumers over the bytes of the blocks that still hold rows; 1.0 is each block once."""
        return float(self.bytes_per_consumer.sum()) / self._needed_bytes if self._needed_bytes else 1.0

    @property
    def decoded_again_bytes(self) -> int:
        """Bytes that all consumers together decode beyond each block once: what the amplification costs."""
        return max(0, int(self.bytes_per_consumer.sum()) - self._needed_bytes)

    @cached_property
    def _needed_bytes(self) -> int:
        reads, blocks = self._reads, max(1, len(self.block_bytes))
        laid = np.unique(reads.block if self._is_held_at_once else reads.laying * blocks + reads.block)
        return int(self.block_bytes[laid % blocks].sum())

    @property
    def _is_held_at_once(self) -> bool:
        """Whether what is left is at most a pool of each consumer: then none decodes a block twice."""
        if self.regions is not None:
            return False
        row_bytes = int(self.block_bytes.sum()) // max(1, self.split_rows)
        _, pool_rows = rows_of_pools(self.order, self.consumers, least_rows=least_pool_rows(row_bytes))
        return self.remaining.total <= pool_rows

    @property
    def keeps_split(self) -> bool:
        """Whether every reader decodes the whole split once and keeps it in memory: it is small, and one round."""
        one_round = self.order.lanes * self.order.window_rows >= self.split_rows
        small = is_small(self.split_rows, int(self.block_bytes.sum()))
        return self.order.shuffle and self.regions is None and one_round and small

    @property
    def lanes_without_amplification(self) -> int:
        """The smallest L, not below this one, that C divides: then no two consumers decode the same lane."""
        return -(-self.order.lanes // self.consumers) * self.consumers

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
    def _reads(self) -> Reads:
        """The blocks of each lane's positions, from the first left to the last; of each region, if there are."""
        if self.regions is not None:
            return self._region_reads(self.regions)
        first = self.remaining.first + np.arange(self.order.groups, dtype=np.int64)
        stop = self.remaining.ranges[-1][1] if self.remaining.ranges else 0
        first = first[first < stop]
        return self.order.reads(first, first + (stop - 1 - first) // self.order.groups * self.order.groups)

    def _region_reads(self, regions: Regions) -> Reads:
        bounds = regions.bounds(self.remaining)
        held = np.flatnonzero(bounds[:-1] < bounds[1:])
        first = self.remaining.positions(bounds[:-1][held])
        last = self.remaining.positions(bounds[1:][held] - 1)
        run, block, laying = self.order.reads(first, last)
        return Reads(held[run], block, laying)


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
