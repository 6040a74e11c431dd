"""The plan: what every consumer will read, known from the index alone. Pure: no files, no clock, no torch.

Steps and rows are arithmetic. Bytes and read amplification follow from which lanes a consumer touches: its positions
are c (mod C) and lane l holds the positions l (mod L), so it touches exactly the lanes l = c (mod gcd(L, C)). If C
divides L every block is decoded by one consumer, except for the at most L-1 blocks that a lane border cuts. Cost is
O(blocks + C).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import gcd, lcm

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.dataset.index import SplitIndex
from headrace.stream.order import EpochOrder, block_identities, epoch_order
from headrace.stream.remaining import Remaining
from headrace.stream.share import Remainder, Share, consumer_number, count_steps, resolve_remainder, share_of

I64 = npt.NDArray[np.int64]

_MOST_LANES_PER_CONSUMER = 16
_MOST_SHUFFLE_ROWS = 1 << 18
_VARIABLE_BYTES = 32  # guess for a text or list value when the file says less


def estimate_block_bytes(index: SplitIndex) -> I64:
    """Bytes each block takes when decoded, int64 [B]: the larger of what its schema and its length in the file say."""
    row_bytes = sum(_value_bytes(column.type) for column in index.schema)
    return np.maximum(index.rows * max(1, row_bytes), np.where(index.rows > 0, index.length, 0)).astype(np.int64)


def choose_lanes(consumers: int, *, shuffle: bool, largest_block_bytes: int, memory_bytes: int) -> int:
    """L for a first topology: lcm(C, k), k the largest power of two up to 16 whose open blocks fit; C unshuffled."""
    if not shuffle:
        return consumers
    spread = _MOST_LANES_PER_CONSUMER
    while spread > 1 and spread // gcd(consumers, spread) * largest_block_bytes > memory_bytes:
        spread //= 2
    return lcm(consumers, spread)


def choose_window_rows(
    consumers: int, lanes: int, *, shuffle_rows: int | None, row_bytes: int, memory_bytes: int
) -> int:
    """Rows of a lane shuffled at a time, so that a consumer's windows together hold about `shuffle_rows` rows."""
    if shuffle_rows is None:
        shuffle_rows = min(_MOST_SHUFFLE_ROWS, max(1, memory_bytes // (4 * max(1, row_bytes))))
    return max(1, shuffle_rows * consumers // lanes)


def choose_order(
    index: SplitIndex, consumers: int, *, shuffle: bool, lanes: int | None, shuffle_rows: int | None, memory_bytes: int
) -> tuple[int, int]:
    """(L, window_rows) of a stream that begins on this many consumers; given lanes are kept."""
    block_bytes = estimate_block_bytes(index)
    if lanes is None:
        largest = int(block_bytes.max(initial=0))
        lanes = choose_lanes(consumers, shuffle=shuffle, largest_block_bytes=largest, memory_bytes=memory_bytes)
    row_bytes = int(block_bytes.sum()) // max(1, index.total_rows)
    return lanes, choose_window_rows(
        consumers, lanes, shuffle_rows=shuffle_rows, row_bytes=row_bytes, memory_bytes=memory_bytes
    )


def estimate_peak_bytes(plan: Plan, *, prefetch_bytes: int = 1 << 28) -> int:
    """What one consumer holds at most, about: a gathered pool, its decoded blocks, and what is decoded ahead.

    Windows of the lanes it touches, each with a block more than it fills; never more than the decoded split twice.
    """
    order, blocks = plan.order, plan.block_bytes
    row_bytes = int(blocks.sum()) / max(1, order.rows)
    touched = order.lanes // gcd(order.lanes, plan.consumers)
    window_bytes = (order.window_rows if order.shuffle else 1) * row_bytes
    pool = window_bytes * order.lanes / plan.consumers
    decoded = touched * (window_bytes + int(blocks.max(initial=0)))
    ahead = min(prefetch_bytes, int(plan.bytes_per_consumer.max(initial=0)))
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
    """Who reads which rows when, for one epoch and one topology; build it with `make_plan`."""

    order: EpochOrder
    remaining: Remaining
    world_size: int
    workers: int
    batch_size: int
    remainder: Remainder
    block_bytes: I64 = field(repr=False)

    @property
    def consumers(self) -> int:
        """C, the (rank, worker) pairs; no worker processes count as one worker."""
        return self.world_size * max(1, self.workers)

    @property
    def steps_per_consumer(self) -> int:
        """Batches each consumer gives; the same for all."""
        return count_steps(
            self.remaining.total, consumers=self.consumers, batch_size=self.batch_size, remainder=self.remainder
        )

    @property
    def steps_per_rank(self) -> int:
        """Batches each rank receives; the same for all."""
        return self.steps_per_consumer * max(1, self.workers)

    @property
    def dropped_rows(self) -> int:
        """Rows that "drop" leaves out: less than one step of all consumers."""
        return self.remaining.total % (self.consumers * self.batch_size) if self.remainder == "drop" else 0

    @property
    def padded_rows(self) -> int:
        """Filling rows of "pad", over all consumers: less than one step of all consumers."""
        given = self.steps_per_consumer * self.consumers * self.batch_size
        return given - self.remaining.total if self.remainder == "pad" else 0

    def share(self, *, rank: int, worker: int = 0) -> Share:
        """The part of one (rank, worker)."""
        return self._share(consumer_number(rank=rank, worker=worker, world_size=self.world_size))

    @cached_property
    def rows_per_consumer(self) -> I64:
        """Real rows each consumer delivers: int64 [C], numbered worker * world_size + rank."""
        return np.array([self._share(consumer).rows for consumer in range(self.consumers)], np.int64)

    @cached_property
    def bytes_per_consumer(self) -> I64:
        """Bytes of the blocks each consumer decodes, as estimated from the index: int64 [C].

        An upper bound: it takes every consumer that touches a lane to need all blocks of it.
        """
        groups = gcd(self.order.lanes, self.consumers)
        per_group = np.bincount(self._reads[0] % groups, weights=self._reads[1], minlength=groups)
        return per_group[np.arange(self.consumers) % groups].astype(np.int64)

    @property
    def read_amplification(self) -> float:
        """Bytes decoded by all consumers over the bytes of the blocks that still hold rows; 1.0 is each block once."""
        holds_rows = np.zeros(len(self.block_bytes), np.bool_)
        holds_rows[self._reads[2]] = True
        needed = int(self.block_bytes[holds_rows].sum())
        return float(self.bytes_per_consumer.sum()) / needed if needed else 1.0

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

    def _share(self, consumer: int) -> Share:
        return share_of(
            self.remaining.total,
            consumer=consumer,
            consumers=self.consumers,
            batch_size=self.batch_size,
            remainder=self.remainder,
        )

    @cached_property
    def _reads(self) -> tuple[I64, I64, I64]:
        """Every (lane, bytes, block) that is read: a block that a lane border cuts appears once for each lane."""
        order = self.order
        starts = order.lane_starts(np.arange(order.lanes + 1, dtype=np.int64))
        window = self.remaining.first // order.lanes // order.window_rows
        begins = np.minimum(starts[:-1] + window * order.window_rows, starts[1:])  # windows before it are finished
        if not self.remaining.total:
            begins = starts[1:]
        lanes = np.flatnonzero(begins < starts[1:])
        first = np.searchsorted(order.line, begins[lanes], side="right") - 1
        last = np.searchsorted(order.line, starts[1:][lanes] - 1, side="right") - 1
        counts = last - first + 1
        lane = np.repeat(lanes, counts)
        along = np.arange(len(lane)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
        holds_rows = order.line[along + 1] > order.line[along]
        block = order.blocks[along[holds_rows]]
        return lane[holds_rows], self.block_bytes[block], block


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
    memory_bytes: int = 1 << 30,
) -> Plan:
    """The plan of one epoch; what is None is chosen as a stream chooses it. O(blocks)."""
    consumers = world_size * max(1, workers)
    if lanes is None or window_rows is None:
        lanes, chosen_rows = choose_order(
            index, consumers, shuffle=shuffle, lanes=lanes, shuffle_rows=shuffle_rows, memory_bytes=memory_bytes
        )
        window_rows = chosen_rows if window_rows is None else window_rows
    order = epoch_order(
        index.rows,
        block_identities(index),
        seed=seed,
        epoch=epoch,
        lanes=lanes,
        window_rows=window_rows,
        shuffle=shuffle,
    )
    return Plan(
        order=order,
        remaining=Remaining.everything(index.total_rows) if remaining is None else remaining,
        world_size=world_size,
        workers=workers,
        batch_size=batch_size,
        remainder=resolve_remainder(remainder, consumers),
        block_bytes=estimate_block_bytes(index),
    )


def _value_bytes(kind: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _value_bytes(kind.value_type)
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:  # Arrow has no width for variable types
        return _VARIABLE_BYTES
