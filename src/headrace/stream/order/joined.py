"""Compose orders from other orders. Pure.

Each position, and each place, of a joined order belongs to one member, so most questions are
answered by the members and combined. If ranks have whole shards, the members are one order per
rank, end to end.

A pass over a source of which each group has as many rows as its column draws is a `ColumnOrder`.
What its columns leave when others continue is laid as pieces of blocks and is one too; see `mixed`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Unpack

import numpy as np

from headrace.arrays import I64, U64, Bools, Ints, as_array, offsets_from_lengths
from headrace.digest import derive_key
from headrace.stream.order.epoch import (
    EpochOrder,
    Order,
    OrderSettings,
    Piece,
    Pieces,
    Pool,
    Reads,
    distinct_numbers,
    epoch_order,
    item_type,
)
from headrace.stream.order.lanes import LANE_FAMILY
from headrace.stream.order.remaining import split_at

_LONGEST_LINE = 1 << 56  # of places; all parts of a chain together stay in 64 bits


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
        for number, members in distinct_numbers(which):
            order, base = self._member(number)
            line_positions[members] = base + order.line_of(inside[members])
        return line_positions

    def locate(self, line_positions: I64) -> tuple[I64, I64]:
        which, inside = self._split_places(line_positions)
        blocks = np.empty_like(line_positions)
        rows = np.empty_like(line_positions)
        for number, members in distinct_numbers(which):
            blocks[members], rows[members] = self._member(number)[0].locate(inside[members])
        return blocks, rows

    def pool_of(self, positions: I64 | range) -> Pool:
        which, inside = self._split(as_array(positions))
        spans: list[Piece] = []
        items = np.arange(len(positions), dtype=item_type(len(positions)))
        parts: list[Ints] = []
        rows: list[I64] = []
        laid = 0
        repeats = False
        for number, members in distinct_numbers(which):
            pool = self._member(number)[0].pool_of(inside[members])
            if pool.items == len(positions):
                return pool
            of_member = items[members]
            if pool.item_of is not None:
                of_member = np.where(pool.item_of < 0, -1, of_member[pool.item_of])
            parts.append(of_member)
            row_of = np.arange(pool.rows) if pool.row_of is None else pool.row_of
            rows.append(laid + row_of)
            laid += pool.rows
            repeats = repeats or pool.row_of is not None
            spans += pool.spans
        item_of = np.concatenate(parts)
        if not repeats:
            return Pool(spans=spans, item_of=item_of, items=len(positions))
        selected = item_of >= 0
        row_of = np.concatenate(rows)[selected]
        return Pool(spans=spans, item_of=item_of[selected], row_of=row_of, items=len(positions))

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
class ColumnOrder(EpochOrder):
    """One own epoch of a source, or the rest of one, of which each group has as many rows as its
    column draws.

    Row i of group d is asked for as position i*D + d, so these positions need not be consecutive.
    The groups of a rank are neighbours on the line, and every other lane is read backwards, so two
    neighbours read the block that they share at the same time.

    column_rows: of each group, int64 [D]; together all rows.
    """

    column_rows: I64

    @property
    def group_rows(self) -> I64:
        return self.column_rows

    def undelivered(self, used: I64) -> Pieces:
        """Return what is left when each group has delivered its first `used` rows, int64 [D], in
        the order of the line: (block number, first row, stop row); int64, parallel.
        """
        rounds = self._round_of(used, self._group_lanes)
        before = self._rows_before_round(rounds)
        in_progress = used > before * self._group_lanes
        segments = []
        for group in np.flatnonzero(in_progress).tolist():
            delivered = int(used[group] - before[group] * self._group_lanes)
            segments.append(self._left_of_round(group, int(rounds[group]), delivered))
        after = self._rows_before_round(rounds + in_progress)[self._along % self.groups]
        segments.append(self._segments(self._along, after, self.lane_rows[self._along]))
        starts, stops = end_to_end(segments)
        along_line = np.argsort(starts, kind="stable")
        return self.rows_between(starts[along_line], stops[along_line])

    def _left_of_round(self, group: int, round_: int, delivered: int) -> tuple[I64, I64]:
        """Return the places [start, stop) of the rows that a round has not delivered yet."""
        starts, counts = self._lanes_of_round(group, round_)
        if self.shuffle:
            rows = np.sort(self._permuted(group, round_, starts, counts)[delivered:])
        else:
            rows = np.arange(delivered, int(counts.sum()), dtype=np.int64)
        ends = np.cumsum(counts)
        lane = np.searchsorted(ends, rows, side="right")
        line_positions = starts[lane] + rows - (ends - counts)[lane]
        is_first = np.diff(line_positions, prepend=-2) != 1
        is_last = np.append(is_first[1:], True)[: len(line_positions)]
        return line_positions[is_first], line_positions[is_last] + 1

    @cached_property
    def lane_starts(self) -> I64:
        starts = np.empty(self.lanes, np.int64)
        rows = self.lane_rows[self._along]
        starts[self._along] = np.cumsum(rows) - rows
        return starts

    @cached_property
    def _along(self) -> I64:
        """The lanes in the order of their slices: int64 [L]."""
        turns = np.arange(self._group_lanes, dtype=np.int64)
        groups = slices_of_groups(self.groups, shuffle=self.shuffle)
        return (groups[:, None] + self.groups * turns).ravel()

    @cached_property
    def _backwards(self) -> Bools:
        """Whether each lane is read from its end: bool [L]."""
        backwards = np.zeros(self.lanes, np.bool_)
        if self.shuffle:
            backwards[self._along[1::2]] = True
        return backwards

    def _segments(self, lanes: I64 | slice, begin: I64 | int, end: I64 | int) -> tuple[I64, I64]:
        starts, stops = super()._segments(lanes, begin, end)
        backwards = self._backwards[lanes]
        ends = 2 * self.lane_starts[lanes] + self.lane_rows[lanes]
        return np.where(backwards, ends - stops, starts), np.where(backwards, ends - starts, stops)

    def _row_of_lane(self, lane: I64, line_positions: I64) -> I64:
        rows = super()._row_of_lane(lane, line_positions)
        return np.where(self._backwards[lane], self.lane_rows[lane] - 1 - rows, rows)


def slices_of_groups(groups: int, *, shuffle: bool) -> I64:
    """Order groups by their slices of a line, so that those of a rank are neighbours: int64 [D].

    That holds for ranks whose number is a product of the first prime factors of D. Powers of two
    come first in a D of the usual family; other numbers of ranks bring large factors. Without
    shuffle, they keep their order.
    """
    numbers = np.arange(groups, dtype=np.int64)
    if not shuffle:
        return numbers
    factors = prime_factors(groups)
    if LANE_FAMILY[0] % groups:
        factors.reverse()
    keys = [numbers % modulus for modulus in np.cumprod([*factors, 1], dtype=np.int64)]
    return np.lexsort(keys[::-1]).astype(np.int64)


def prime_factors(number: int) -> list[int]:
    """Return the prime factors of a positive number, ascending, as often as they divide it."""
    factors = []
    factor = 2
    while factor * factor <= number:
        while number % factor == 0:
            factors.append(factor)
            number //= factor
        factor += 1
    if number > 1:
        factors.append(number)
    return factors
