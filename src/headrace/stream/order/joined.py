"""Compose orders from other orders. Pure.

Each position, and each place, of a joined order belongs to one member, so most questions are
answered by the members and combined. If ranks have whole shards, the members are one order per
rank, end to end.

An epoch that is not one pass takes a given number of rows from one or several sources, each
continued where it stopped. Every source is an endless sequence of its own epochs, each with its own
order: index q is position q mod N_d of own epoch q // N_d. Epoch E of the stream takes the indices
E*n_d .. (E+1)*n_d - 1 of source d, where n_d is its quota, and interleaves the sources in turns of
D rows. So N_d consecutive indices that start an own epoch hold every row once. Places are those of
the own epochs that the epoch touches, end to end. Orders of own epochs are built on demand.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Unpack

import numpy as np

from headrace.arrays import I64, U64, offsets_from_lengths
from headrace.digest import derive_key
from headrace.stream.order.epoch import (
    EpochOrder,
    Order,
    OrderSettings,
    Pool,
    Reads,
    each_number,
    epoch_order,
)
from headrace.stream.order.interleave import Interleave
from headrace.stream.order.remaining import count_out, split_at

_LONGEST_LINE = 1 << 56  # of places; all parts of a chain together stay in 64 bits
_MOST_KEPT_ORDERS = 4  # each is arrays as long as its blocks


class JoinedOrder(Order):
    """An order whose positions and places belong to its members."""

    @abstractmethod
    def _split(self, positions: I64, /) -> tuple[I64, I64]:
        """Return (member number, position in the member) of each position."""

    @abstractmethod
    def _member(self, number: int) -> tuple[Order, int]:
        """Return a member, and where its places begin."""

    @abstractmethod
    def _split_places(self, line_positions: I64, /) -> tuple[I64, I64]:
        """Return (member number, place in the member) of each place."""

    def line_of(self, positions: I64) -> I64:
        which, inside = self._split(positions)
        line_positions = np.empty_like(positions)
        for number, members in each_number(which):
            order, base = self._member(number)
            line_positions[members] = base + order.line_of(inside[members])
        return line_positions

    def locate(self, line_positions: I64) -> tuple[I64, I64]:
        which, inside = self._split_places(line_positions)
        blocks = np.empty_like(line_positions)
        rows = np.empty_like(line_positions)
        for number, members in each_number(which):
            blocks[members], rows[members] = self._member(number)[0].locate(inside[members])
        return blocks, rows

    def pool_of(self, positions: I64) -> Pool:
        which, inside = self._split(positions)
        spans: list[tuple[int, int, int]] = []
        index = np.empty_like(positions)
        laid = 0
        for number, members in each_number(which):
            pool = self._member(number)[0].pool_of(inside[members])
            if pool.items == len(positions):
                return pool
            index[members] = laid + (np.arange(pool.items) if pool.index is None else pool.index)
            spans += pool.spans
            laid += pool.rows
        return Pool(spans=spans, index=index)

    def reads(self, first: I64, last: I64) -> Reads:
        if not len(first):
            return Reads(*np.empty((3, 0), np.int64))
        ends = np.array([first.min(), last.max()])
        which, inside = self._split(ends)
        # members follow one another
        columns = [np.empty((3, 0), np.int64)]
        laid = int(ends[0] - inside[0])
        for number in range(int(which[0]), int(which[1]) + 1):
            order, _ = self._member(number)
            begin = np.where(first < laid, laid + (first - laid) % self.groups, first)
            stop = laid + order.rows - 1
            end = np.where(last > stop, stop - (stop - last) % self.groups, last)
            begin = begin[:, None] + self.groups * np.arange(order.groups // self.groups)
            read = begin <= end[:, None]
            runs = np.nonzero(read)[0]
            begin = begin[read] - laid
            end = end[runs] - laid
            run, block, _ = order.reads(begin, end - (end - begin) % order.groups)
            columns.append(np.stack([runs[run], block, np.full(len(block), number)]))
            laid += order.rows
        return Reads(*np.concatenate(columns, axis=1))


def end_to_end(pairs: Sequence[tuple[I64, I64]]) -> tuple[I64, I64]:
    """Concatenate pairs of parallel arrays; two empty arrays if there are none."""
    first, second = np.concatenate([np.empty((2, 0), np.int64), *map(np.stack, pairs)], axis=1)
    return first, second


@dataclass(frozen=True, kw_only=True, eq=False)
class PartitionOrder(JoinedOrder):
    """One order per rank, end to end.

    Positions follow the lines of `parts`, so it has one lane and one group.

    window_rows: rows of a part that are shuffled together, over all its lanes.
    """

    parts: tuple[Order, ...]

    @cached_property
    def bases(self) -> I64:
        """The position, and the place, at which each part begins, then N."""
        return offsets_from_lengths([part.rows for part in self.parts])

    @property
    def rows(self) -> int:
        return int(self.bases[-1])

    @property
    def first_window_rows(self) -> int:
        return self.parts[0].lanes * self.parts[0].first_window_rows

    def _split(self, positions: I64, /) -> tuple[I64, I64]:
        return split_at(self.bases, positions)

    _split_places = _split

    def _member(self, number: int) -> tuple[Order, int]:
        return self.parts[number], int(self.bases[number])

    def positions_of_rows(self, blocks: I64, rows: I64) -> tuple[I64, I64]:
        by_region = [part.positions_of_rows(blocks, rows) for part in self.parts]
        bases = self.bases.tolist()
        return end_to_end(
            [
                (which, base + positions)
                for base, (which, positions) in zip(bases, by_region, strict=False)
            ]
        )

    def reads(self, first: I64, last: I64) -> Reads:
        return Reads(*np.unique(np.stack(super().reads(first, last)), axis=1))


def lay_partition(
    block_rows: I64,
    identities: U64,
    rank_of_block: I64,
    *,
    ranks: int,
    **settings: Unpack[OrderSettings],
) -> PartitionOrder:
    """Build the order of an epoch in which each rank has whole shards, in O(blocks log blocks)."""
    by_rank = np.argsort(rank_of_block, kind="stable")
    parts = []
    for rank, numbers in enumerate(
        np.split(by_rank, np.searchsorted(rank_of_block[by_rank], np.arange(1, ranks)))
    ):
        region_settings: OrderSettings = {
            **settings,
            "seed": derive_key(settings["seed"], "region", rank)[0],
        }
        parts.append(
            epoch_order(
                block_rows[numbers], identities[numbers], numbers=numbers, **region_settings
            )
        )
    joined_settings: OrderSettings = {
        **settings,
        "lanes": 1,
        "groups": 1,
        "window_rows": parts[0].lanes * parts[0].window_rows,
    }
    return PartitionOrder(parts=tuple(parts), **joined_settings)


class EpochPart(NamedTuple):
    """Positions [begin, end) of an epoch, in the order of `order`, whose own positions count from
    0.
    """

    begin: int
    end: int
    order: Order


@dataclass(frozen=True, kw_only=True, eq=False)
class ChainedOrder(JoinedOrder):
    """Orders in sequence; lanes, groups and window_rows are those of the last."""

    parts: tuple[EpochPart, ...]

    @property
    def rows(self) -> int:
        return self.parts[-1].end

    def _split(self, positions: I64, /) -> tuple[I64, I64]:
        return split_at(np.array([part.begin for part in self.parts], np.int64), positions)

    def _split_places(self, line_positions: I64, /) -> tuple[I64, I64]:
        return split_at(np.arange(len(self.parts), dtype=np.int64) * _LONGEST_LINE, line_positions)

    def _member(self, number: int) -> tuple[Order, int]:
        return self.parts[number].order, number * _LONGEST_LINE

    def positions_of_rows(self, blocks: I64, rows: I64) -> tuple[I64, I64]:
        by_part = []
        for part in self.parts:
            which, positions = part.order.positions_of_rows(blocks, rows)
            inside = positions < part.end - part.begin
            by_part.append((which[inside], part.begin + positions[inside]))
        return end_to_end(by_part)

    def reads(self, first: I64, last: I64) -> Reads:
        """Refuse: reads are computed part by part, see `parts_of`."""
        raise NotImplementedError


def parts_of(order: Order) -> Sequence[EpochPart]:
    """Return the orders of an epoch in sequence; just one if its ranks never changed."""
    if isinstance(order, ChainedOrder):
        return order.parts
    return (EpochPart(0, order.rows, order),)


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedSource(JoinedOrder):
    """The part of one source's endless sequence that an epoch takes; its members are own epochs, by
    number.

    block_rows, identities, numbers: of its blocks; numbers are those in the whole index.
    own_rows: N_d. start: the index at which the epoch begins. count: n_d.
    """

    block_rows: I64
    identities: U64
    numbers: I64
    own_rows: int
    start: int
    count: int
    _orders: dict[int, EpochOrder] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.count

    @property
    def epochs(self) -> range:
        """The own epochs that the epoch touches."""
        if not self.count:
            return range(0)
        return range(
            self.start // self.own_rows, (self.start + self.count - 1) // self.own_rows + 1
        )

    def order(self, own_epoch: int) -> EpochOrder:
        """Build the order of one own epoch."""
        if own_epoch not in self._orders:
            if len(self._orders) >= _MOST_KEPT_ORDERS:
                self._orders.pop(next(iter(self._orders)))
            epoch_settings: OrderSettings = {**self.settings, "epoch": own_epoch}
            self._orders[own_epoch] = epoch_order(
                self.block_rows, self.identities, numbers=self.numbers, **epoch_settings
            )
        return self._orders[own_epoch]

    def _split(self, positions: I64, /) -> tuple[I64, I64]:
        return np.divmod(self.start + positions, self.own_rows)

    def _split_places(self, line_positions: I64, /) -> tuple[I64, I64]:
        return np.divmod(self.epochs.start * self.own_rows + line_positions, self.own_rows)

    def _member(self, number: int) -> tuple[EpochOrder, int]:
        return self.order(number), (number - self.epochs.start) * self.own_rows

    def positions_of_rows(self, blocks: I64, rows: I64) -> tuple[I64, I64]:
        by_epoch = []
        for epoch in self.epochs:
            which, positions = self.order(epoch).positions_of_rows(blocks, rows)
            by_epoch.append((which, epoch * self.own_rows + positions - self.start))
        which, positions = end_to_end(by_epoch)
        inside = (positions >= 0) & (positions < self.count)
        return which[inside], positions[inside]


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedOrder(JoinedOrder):
    """The order of an epoch of one or several sources; see the module docstring."""

    sources: tuple[MixedSource, ...]
    interleave: Interleave

    @property
    def rows(self) -> int:
        return sum(source.count for source in self.sources)

    @cached_property
    def _bases(self) -> I64:
        return offsets_from_lengths(
            [len(source.epochs) * source.own_rows for source in self.sources]
        )

    def _split(self, positions: I64, /) -> tuple[I64, I64]:
        return self.interleave.split(positions)

    def _split_places(self, line_positions: I64, /) -> tuple[I64, I64]:
        return split_at(self._bases, line_positions)

    def _member(self, number: int) -> tuple[MixedSource, int]:
        return self.sources[number], int(self._bases[number])

    def positions_of_rows(self, blocks: I64, rows: I64) -> tuple[I64, I64]:
        by_source = []
        for number, source in enumerate(self.sources):
            which, indexes = source.positions_of_rows(blocks, rows)
            by_source.append((which, self.interleave.join(number, indexes)))
        return end_to_end(by_source)

    def reads(self, first: I64, last: I64) -> Reads:
        by_source = []
        rounds = self.interleave.rounds
        starts = self.interleave.turns_before(np.minimum(first // self.groups, rounds))
        ends = self.interleave.turns_before(np.minimum(last // self.groups + 1, rounds))
        for source, begin, end in zip(self.sources, starts, ends, strict=True):
            runs = np.flatnonzero(begin < end)
            inside = first[runs] % self.groups
            run, block, laying = source.reads(
                begin[runs] * self.groups + inside, (end[runs] - 1) * self.groups + inside
            )
            by_source.append(Reads(runs[run], block, laying))
        nothing = np.empty((3, 0), np.int64)
        return Reads(
            *np.concatenate([nothing, *by_source, *self._reads_of_tails(first, last)], axis=1)
        )

    def _reads_of_tails(self, first: I64, last: I64) -> Iterator[Reads]:
        """Yield the reads of the ends of the sources, which are less than a round of rows each, so
        their rows are asked for one by one.
        """
        tails = self.interleave.rounds * self.groups
        begin = np.where(first < tails, tails + (first - tails) % self.groups, first)
        counts = np.maximum(0, (last - begin) // self.groups + 1)
        run, turn = count_out(counts)
        which, indexes = self.interleave.split(begin[run] + turn * self.groups)
        for number, members in each_number(which):
            source = self.sources[number]
            block, _ = source.locate(source.line_of(indexes[members]))
            laying = (source.start + indexes[members]) // source.own_rows
            yield Reads(*np.unique(np.stack([run[members], block, laying]), axis=1))
