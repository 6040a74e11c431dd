"""Compose orders from other orders. Pure.

Each position, and each place, of a joined order belongs to one member, so most questions are
answered by the members and combined. If ranks have whole shards, the members are one order per
rank, end to end.

A pass over a source of which each group has as many rows as its column draws is a `ColumnOrder`,
and what other columns leave of it a `ContinuedOrder`; see `mixed`.
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
    Pool,
    Reads,
    distinct_numbers,
    epoch_order,
    expand,
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
    """One own epoch of a source, of which each group has as many rows as its column draws.

    Row i of group d is asked for as position i*D + d, so these positions need not be consecutive.
    The groups of a rank are neighbours on the line, and every other lane is read backwards, so two
    neighbours read the block that they share at the same time.

    column_rows: of each group, int64 [D]; together all rows.
    """

    column_rows: I64

    @property
    def group_rows(self) -> I64:
        return self.column_rows

    @property
    def line_length(self) -> int:
        """The number of places on the line."""
        return self.rows

    @cached_property
    def groups_along(self) -> I64:
        """The groups in the order of their slices of the line: int64 [D]."""
        return slices_of_groups(self.groups, shuffle=self.shuffle)

    def round_boundaries(self, used: I64) -> I64:
        """Return the row of each group, from row `used` on, at which every lane stands at the
        border of a round: int64 [D].
        """
        rounds = self._round_of(np.maximum(used - 1, 0), self._group_lanes)
        boundaries = self._rows_before_round(rounds + 1) * self._group_lanes
        return np.where(used > 0, np.minimum(boundaries, self.group_rows), 0)

    def tails(self, boundaries: I64) -> tuple[I64, I64, I64]:
        """Return what is left behind boundaries of rounds, in the order of the line: (block number,
        first row, stop row); int64, parallel.
        """
        delivered = np.where(
            boundaries < self.group_rows, boundaries // self._group_lanes, self.group_rows
        )
        starts, stops = self._segments(
            self._along, delivered[self._along % self.groups], self.lane_rows[self._along]
        )
        return self.rows_between(starts, stops)

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
        return (self.groups_along[:, None] + self.groups * turns).ravel()

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


@dataclass(frozen=True, kw_only=True, eq=False)
class ContinuedOrder(JoinedOrder):
    """The rest of an own epoch for other columns.

    In each column that drew before, a round is in progress. The rests of these rounds are laid end
    to end and divided among the new columns. The tails behind them are cut again. A column finishes
    its share of the rests first. Positions are as in `ColumnOrder`.

    earlier: the order before. used: the rows that each of its columns drew, int64 [D before].
    column_rows: of each new column, int64 [D]; together all that is left.
    """

    earlier: ColumnOrder | ContinuedOrder
    used: I64
    column_rows: I64

    @property
    def rows(self) -> int:
        return int(self.column_rows.sum())

    @property
    def group_rows(self) -> I64:
        """The number of rows of each column: int64 [D]."""
        return self.column_rows

    @property
    def line_length(self) -> int:
        """The number of places on both lines."""
        return self.earlier.line_length + self.tail.line_length

    @cached_property
    def groups_along(self) -> I64:
        """The groups in the order of their slices of the line: int64 [D]."""
        return slices_of_groups(self.groups, shuffle=self.shuffle)

    def round_boundaries(self, used: I64) -> I64:
        """Return boundaries of rounds, see `ColumnOrder`; a share of the rests is a round too."""
        after = self.tail.round_boundaries(np.maximum(used - self._carried, 0))
        return self._carried + np.where(used < self._carried, 0, after)

    def tails(self, boundaries: I64) -> tuple[I64, I64, I64]:
        """Return what is left behind boundaries of rounds, see `ColumnOrder`."""
        return self.tail.tails(boundaries - self._carried)

    @cached_property
    def tail(self) -> ColumnOrder:
        """The order of the rows behind the rounds that are in progress."""
        blocks, firsts, stops = self.earlier.tails(self._remainder_boundaries)
        return ColumnOrder(
            blocks=blocks,
            firsts=firsts,
            line=offsets_from_lengths(stops - firsts),
            column_rows=self.column_rows - self._carried,
            **self.settings,
        )

    @cached_property
    def _remainder_boundaries(self) -> I64:
        return self.earlier.round_boundaries(self.used)

    @cached_property
    def _remainder_starts(self) -> I64:
        """Where the rest of each earlier column starts, laid end to end: int64 [D before + 1]."""
        rests = self._remainder_boundaries - self.used
        return offsets_from_lengths(rests[self.earlier.groups_along])

    @cached_property
    def _remainder_ends(self) -> I64:
        """Where the share of each column ends, in the order of the slices: int64 [D]."""
        rests = int(self._remainder_starts[-1])
        until = np.cumsum(self.column_rows[self.groups_along]).tolist()
        # integers of any size: a product of rows
        return np.array([rows * rests // max(1, self.rows) for rows in until], np.int64)

    @cached_property
    def _carried(self) -> I64:
        """The rows of rests that each column reads: int64 [D]."""
        carried = np.empty(self.groups, np.int64)
        carried[self.groups_along] = np.diff(self._remainder_ends, prepend=0)
        return carried

    @cached_property
    def _carried_from(self) -> I64:
        """Where the share of each column starts: int64 [D]."""
        starts = np.empty(self.groups, np.int64)
        starts[self.groups_along] = self._remainder_ends - self._carried[self.groups_along]
        return starts

    def _split(self, positions: I64, /) -> tuple[I64, I64]:
        offset, column = np.divmod(positions, self.groups)
        after = offset - self._carried[column]
        in_remainder = after < 0
        inside = after * self.groups + column
        at = (self._carried_from[column] + offset)[in_remainder]
        lane, row = split_at(self._remainder_starts, at)
        earlier = self.earlier.groups_along[lane]
        inside[in_remainder] = (self.used[earlier] + row) * self.earlier.groups + earlier
        return np.where(in_remainder, 0, 1), inside

    def _split_places(self, line_positions: I64, /) -> tuple[I64, I64]:
        return split_at(np.array([0, self.earlier.line_length], np.int64), line_positions)

    def _member(self, number: int) -> tuple[Order, int]:
        if number:
            return self.tail, self.earlier.line_length
        return self.earlier, 0

    def positions_of_rows(self, blocks: I64, rows: I64) -> tuple[I64, I64]:
        which, positions = self.earlier.positions_of_rows(blocks, rows)
        row, earlier = np.divmod(positions, self.earlier.groups)
        in_remainder = (row >= self.used[earlier]) & (row < self._remainder_boundaries[earlier])
        lane = np.argsort(self.earlier.groups_along)[earlier[in_remainder]]
        at = self._remainder_starts[lane] + row[in_remainder] - self.used[earlier[in_remainder]]
        index = np.searchsorted(self._remainder_ends, at, side="right")
        column = self.groups_along[index]
        offset = at - self._carried_from[column]
        tail_members, after = self.tail.positions_of_rows(blocks, rows)
        shift = self._carried[after % self.groups] * self.groups
        return end_to_end(
            [(which[in_remainder], offset * self.groups + column), (tail_members, after + shift)]
        )

    def reads(self, first: I64, last: I64) -> Reads:
        column = first % self.groups
        begin = first // self.groups
        end = last // self.groups + 1
        carried = self._carried[column]
        of_remainders = self._reads_of_remainders(
            self._carried_from[column] + begin,
            self._carried_from[column] + np.minimum(end, carried),
        )
        low = np.maximum(begin - carried, 0)
        high = end - carried
        runs = np.flatnonzero(low < high)
        after = self.tail.reads(
            low[runs] * self.groups + column[runs], (high[runs] - 1) * self.groups + column[runs]
        )
        after = after._replace(run=runs[after.run])
        return Reads(*np.concatenate([of_remainders, after], axis=1))

    def _reads_of_remainders(self, begin: I64, end: I64) -> Reads:
        """Return the blocks that each run of the rests begin..end-1, laid end to end, needs."""
        runs = np.flatnonzero(begin < end)
        which, lane = expand(begin[runs], end[runs], self._remainder_starts)
        run = runs[which]
        low = np.maximum(begin[run], self._remainder_starts[lane]) - self._remainder_starts[lane]
        high = np.minimum(end[run], self._remainder_starts[lane + 1]) - self._remainder_starts[lane]
        some = low < high
        earlier = self.earlier.groups_along[lane[some]]
        reads = self.earlier.reads(
            (self.used[earlier] + low[some]) * self.earlier.groups + earlier,
            (self.used[earlier] + high[some] - 1) * self.earlier.groups + earlier,
        )
        return reads._replace(run=run[some][reads.run])


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
