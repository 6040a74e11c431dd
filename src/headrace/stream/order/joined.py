"""Compose orders from other orders. Pure.

Each position, and each place, of a joined order belongs to one member, so most questions are
answered by the members and combined. If ranks have whole shards, the members are one order per
rank, end to end.

An epoch that is not one pass takes its rows from one or several sources, each continued where it
stopped, as a `Schedule` says. Every source is an endless sequence of own epochs: own epoch e of N
rows has the draws e*N .. (e+1)*N - 1. Column d, the positions d (mod D), has a known number of
them, so the own epoch is cut into D groups of exactly these rows. Every row comes once. Places are
those of the own epochs that the epoch touches, end to end. Orders of own epochs are built on
demand.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    each_number,
    epoch_order,
    expand,
    item_type,
)
from headrace.stream.order.lanes import LANE_FAMILY
from headrace.stream.order.remaining import even_parts, split_at
from headrace.stream.order.schedule import ColumnDraws, EpochSegment, Schedule

_LONGEST_LINE = 1 << 56  # of places; all parts of a chain together stay in 64 bits
_OWN_EPOCHS = 32  # whose columns are counted together
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

    def pool_of(self, positions: I64 | range) -> Pool:
        which, inside = self._split(as_array(positions))
        spans: list[Piece] = []
        items = np.arange(len(positions), dtype=item_type(len(positions)))
        parts: list[Ints] = []
        for number, members in each_number(which):
            pool = self._member(number)[0].pool_of(inside[members])
            if pool.items == len(positions):
                return pool
            of_member = items[members]
            if pool.item_of is not None:
                of_member = np.where(pool.item_of < 0, -1, of_member[pool.item_of])
            parts.append(of_member)
            spans += pool.spans
        return Pool(spans=spans, item_of=np.concatenate(parts), items=len(positions))

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

    def round_borders(self, used: I64) -> I64:
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
        starts, stops = self._stretches(
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

    def _stretches(self, lanes: I64 | slice, begin: I64 | int, end: I64 | int) -> tuple[I64, I64]:
        starts, stops = super()._stretches(lanes, begin, end)
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

    def round_borders(self, used: I64) -> I64:
        """Return boundaries of rounds, see `ColumnOrder`; a share of the rests is a round too."""
        after = self.tail.round_borders(np.maximum(used - self._carried, 0))
        return self._carried + np.where(used < self._carried, 0, after)

    def tails(self, boundaries: I64) -> tuple[I64, I64, I64]:
        """Return what is left behind boundaries of rounds, see `ColumnOrder`."""
        return self.tail.tails(boundaries - self._carried)

    @cached_property
    def tail(self) -> ColumnOrder:
        """The order of the rows behind the rounds that are in progress."""
        blocks, firsts, stops = self.earlier.tails(self._rest_borders)
        return ColumnOrder(
            blocks=blocks,
            firsts=firsts,
            line=offsets_from_lengths(stops - firsts),
            column_rows=self.column_rows - self._carried,
            **self.settings,
        )

    @cached_property
    def _rest_borders(self) -> I64:
        return self.earlier.round_borders(self.used)

    @cached_property
    def _rest_starts(self) -> I64:
        """Where the rest of each earlier column starts, laid end to end: int64 [D before + 1]."""
        rests = self._rest_borders - self.used
        return offsets_from_lengths(rests[self.earlier.groups_along])

    @cached_property
    def _rest_ends(self) -> I64:
        """Where the share of each column ends, in the order of the slices: int64 [D]."""
        rests = int(self._rest_starts[-1])
        until = np.cumsum(self.column_rows[self.groups_along]).tolist()
        # integers of any size: a product of rows
        return np.array([rows * rests // max(1, self.rows) for rows in until], np.int64)

    @cached_property
    def _carried(self) -> I64:
        """The rows of rests that each column reads: int64 [D]."""
        carried = np.empty(self.groups, np.int64)
        carried[self.groups_along] = np.diff(self._rest_ends, prepend=0)
        return carried

    @cached_property
    def _carried_from(self) -> I64:
        """Where the share of each column starts: int64 [D]."""
        starts = np.empty(self.groups, np.int64)
        starts[self.groups_along] = self._rest_ends - self._carried[self.groups_along]
        return starts

    def _split(self, positions: I64, /) -> tuple[I64, I64]:
        offset, column = np.divmod(positions, self.groups)
        after = offset - self._carried[column]
        of_rest = after < 0
        inside = after * self.groups + column
        at = (self._carried_from[column] + offset)[of_rest]
        lane, row = split_at(self._rest_starts, at)
        earlier = self.earlier.groups_along[lane]
        inside[of_rest] = (self.used[earlier] + row) * self.earlier.groups + earlier
        return np.where(of_rest, 0, 1), inside

    def _split_places(self, line_positions: I64, /) -> tuple[I64, I64]:
        return split_at(np.array([0, self.earlier.line_length], np.int64), line_positions)

    def _member(self, number: int) -> tuple[Order, int]:
        if number:
            return self.tail, self.earlier.line_length
        return self.earlier, 0

    def positions_of_rows(self, blocks: I64, rows: I64) -> tuple[I64, I64]:
        which, positions = self.earlier.positions_of_rows(blocks, rows)
        row, earlier = np.divmod(positions, self.earlier.groups)
        of_rest = (row >= self.used[earlier]) & (row < self._rest_borders[earlier])
        lane = np.argsort(self.earlier.groups_along)[earlier[of_rest]]
        at = self._rest_starts[lane] + row[of_rest] - self.used[earlier[of_rest]]
        index = np.searchsorted(self._rest_ends, at, side="right")
        column = self.groups_along[index]
        offset = at - self._carried_from[column]
        which_behind, after = self.tail.positions_of_rows(blocks, rows)
        shift = self._carried[after % self.groups] * self.groups
        return end_to_end(
            [(which[of_rest], offset * self.groups + column), (which_behind, after + shift)]
        )

    def reads(self, first: I64, last: I64) -> Reads:
        column = first % self.groups
        begin = first // self.groups
        end = last // self.groups + 1
        carried = self._carried[column]
        of_rests = self._reads_of_rests(
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
        return Reads(*np.concatenate([of_rests, after], axis=1))

    def _reads_of_rests(self, begin: I64, end: I64) -> Reads:
        """Return the blocks that each run of the rests begin..end-1, laid end to end, needs."""
        runs = np.flatnonzero(begin < end)
        which, lane = expand(begin[runs], end[runs], self._rest_starts)
        run = runs[which]
        low = np.maximum(begin[run], self._rest_starts[lane]) - self._rest_starts[lane]
        high = np.minimum(end[run], self._rest_starts[lane + 1]) - self._rest_starts[lane]
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


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedSource:
    """The blocks of one source, by its name.

    block_rows, identities, numbers: of its blocks; numbers are those in the whole index.
    own_rows: N_d. settings: of the orders of its own epochs.
    """

    name: str
    block_rows: I64
    identities: U64
    numbers: I64
    own_rows: int
    settings: OrderSettings


class OwnEpoch(NamedTuple):
    """One own epoch of a source: its order, and the draws of each column before it, int64 [D]."""

    order: ColumnOrder | ContinuedOrder
    before: I64


class Leg(NamedTuple):
    """Lanes that hold from a position of an epoch on."""

    epoch: int
    position: int
    lanes: int
    window_rows: int
    groups: int


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedOrder(JoinedOrder):
    """The order of an epoch of one or several sources; see the module docstring.

    Its members are the own epochs that it touches, source by source. Its positions count from
    `begin`, a position of the epoch.

    legs: of the run, up to this one. The first starts with the run.
    """

    sources: tuple[MixedSource, ...]
    schedule: Schedule
    legs: tuple[Leg, ...]
    begin: int
    _own_epochs: dict[tuple[int, int], OwnEpoch] = field(default_factory=dict, repr=False)
    _columns_before: dict[tuple[int, int], I64] = field(default_factory=dict, repr=False)
    _ends: dict[tuple[int, int], I64] = field(default_factory=dict, repr=False)

    @property
    def rows(self) -> int:
        return self.schedule.epoch_rows - self.begin

    @cached_property
    def _column_draws(self) -> list[ColumnDraws]:
        """The counts of draws by column of each leg."""
        counts = []
        for leg in self.legs:
            draws = ColumnDraws(
                schedule=self.schedule,
                columns=leg.groups,
                epoch=leg.epoch,
                position=leg.position,
            )
            counts.append(draws)
        return counts

    @cached_property
    def segments(self) -> tuple[EpochSegment, ...]:
        """The segments of constant proportions, by positions of the epoch."""
        segments = self.schedule.segments(self.epoch)
        return tuple(segment for segment in segments if segment.end > self.begin)

    @cached_property
    def _first_own(self) -> I64:
        """The first own epoch of each source that the order touches: int64 [S]."""
        return self.schedule.drawn_before(self.epoch, self.begin) // self._sizes

    @cached_property
    def _sizes(self) -> I64:
        return np.maximum(1, [source.own_rows for source in self.sources]).astype(np.int64)

    @cached_property
    def _members_before(self) -> I64:
        """The number of the first member of each source, then of members: int64 [S + 1]."""
        begin = self.schedule.drawn_before(self.epoch, self.begin)
        end = self.schedule.drawn(self.epoch) + self.schedule.counts(self.epoch)
        last = (end - 1) // self._sizes
        return offsets_from_lengths(np.where(end > begin, last + 1 - self._first_own, 0))

    @cached_property
    def _bases(self) -> I64:
        """The place at which each source's own epochs begin: int64 [S]."""
        return offsets_from_lengths(np.diff(self._members_before) * self._places)

    @property
    def _places(self) -> I64:
        """The places of an own epoch of each source; in each leg, its rows may be cut again."""
        return self._sizes * len(self.legs)

    def _split(self, positions: I64, /) -> tuple[I64, I64]:
        draw, which = self._draws(positions)
        inside = np.empty_like(positions)
        column = positions % self.groups
        for number, members in each_number(which):
            of_column = column[members]
            before = self._own_epoch(number).before[of_column]
            inside[members] = (draw[members] - before) * self.groups + of_column
        return which, inside

    def _draws(self, positions: I64) -> tuple[I64, I64]:
        """Return (draw of its source in its column from the run's begin, member) of positions."""
        source = np.empty_like(positions)
        draw = np.empty_like(positions)
        which = np.empty_like(positions)
        if not len(positions):
            return draw, which
        positions = positions + self.begin
        starts = np.array([segment.begin for segment in self.segments], np.int64)
        for number, in_segment in each_number(np.searchsorted(starts, positions, side="right") - 1):
            segment = self.segments[number]
            at = positions[in_segment]
            source[in_segment], drawn = segment.interleave.number_draws(
                at - segment.begin, self.groups, segment.begin - self.begin
            )
            for of_draws, of_source in each_number(source[in_segment]):
                before = self._before_segment(of_draws, number)
                drawn[of_source] += before[(at[of_source] - self.begin) % self.groups]
            draw[in_segment] = drawn
        begin = self.schedule.drawn_before(self.epoch, int(positions.min()))
        end = self.schedule.drawn_before(self.epoch, int(positions.max()))
        for number, of_source in each_number(source):
            own_rows = self.sources[number].own_rows
            own_epochs = range(int(begin[number]) // own_rows, int(end[number]) // own_rows + 1)
            first = int(self._members_before[number] - self._first_own[number])
            numbers = self._own_epoch_of(number, own_epochs, positions[of_source])
            which[of_source] = first + numbers
        return draw, which

    def _before_segment(self, source: int, number: int) -> I64:
        """Return the draws of each column before a segment, less those in it before the leg: int64
        [D].
        """
        if (source, number) not in self._columns_before:
            segment = self.segments[number]
            begin = max(segment.begin, self.begin)
            at = np.array([begin], np.int64)
            drawn = self._column_draws[-1].drawn(self.epoch, source, at)[0]
            column = np.arange(self.groups, dtype=np.int64)
            drawn -= segment.interleave.draws(
                np.full_like(column, source),
                (column - segment.begin + self.begin) % self.groups,
                np.full_like(column, begin - segment.begin),
                self.groups,
            )
            self._columns_before[source, number] = drawn
        return self._columns_before[source, number]

    def _own_epoch_of(self, source: int, own_epochs: range, positions: I64) -> I64:
        """Return which of these own epochs positions of a source are in: int64, same length."""
        starts = np.array(own_epochs[1:], np.int64) * self.sources[source].own_rows
        epochs, boundaries = self.schedule.find_draws(source, starts)
        boundaries = boundaries[epochs == self.epoch]
        return own_epochs.start + np.searchsorted(boundaries, positions, side="right")

    def _own_epoch(self, number: int) -> OwnEpoch:
        source = int(np.searchsorted(self._members_before, number, side="right")) - 1
        own_epoch = int(self._first_own[source] + number - self._members_before[source])
        key = (source, own_epoch)
        if key not in self._own_epochs:
            if len(self._own_epochs) >= _MOST_KEPT_ORDERS * len(self.sources):
                self._own_epochs.pop(next(iter(self._own_epochs)))
            self._own_epochs[key] = self._lay_own_epoch(source, own_epoch, len(self.legs) - 1)
        return self._own_epochs[key]

    def _lay_own_epoch(self, number: int, own_epoch: int, leg_number: int) -> OwnEpoch:
        """Build the order that an own epoch has in a leg, which may continue that of an earlier
        one.
        """
        source = self.sources[number]
        leg = self.legs[leg_number]
        settings: OrderSettings = {
            **source.settings,
            "epoch": own_epoch,
            "lanes": leg.lanes,
            "window_rows": leg.window_rows,
            "groups": leg.groups,
        }
        drawn = int(self.schedule.drawn_before(leg.epoch, leg.position)[number])
        if drawn > own_epoch * source.own_rows:
            return self._continue_own_epoch(number, own_epoch, leg_number, settings)
        before, after = self._ends_of(number, own_epoch, leg_number)
        # Rows that the run never draws are dealt evenly.
        left = source.own_rows - int((after - before).sum())
        after = after + even_parts(left, leg.groups)
        plain = epoch_order(
            source.block_rows, source.identities, numbers=source.numbers, **settings
        )
        order = ColumnOrder(
            blocks=plain.blocks, line=plain.line, column_rows=after - before, **plain.settings
        )
        return OwnEpoch(order, before)

    def _continue_own_epoch(
        self, number: int, own_epoch: int, leg_number: int, settings: OrderSettings
    ) -> OwnEpoch:
        earlier, before = self._lay_own_epoch(number, own_epoch, leg_number - 1)
        leg = self.legs[leg_number]
        at = np.array([leg.position], np.int64)
        used = self._column_draws[leg_number - 1].drawn(leg.epoch, number, at)[0] - before
        end = np.array([own_epoch + 1], np.int64) * self.sources[number].own_rows
        rows = self._column_draws[leg_number].drawn_before(number, end)[0]
        left = int((earlier.group_rows - used).sum() - rows.sum())
        settings["seed"] = derive_key(settings["seed"], "cut again", own_epoch, leg_number)[0]
        order = ContinuedOrder(
            earlier=earlier,
            used=used,
            column_rows=rows + even_parts(left, leg.groups),
            **settings,
        )
        return OwnEpoch(order, np.zeros_like(rows))

    def _ends_of(self, source: int, own_epoch: int, leg_number: int) -> I64:
        """Return the draws of each column before an own epoch and before the next: int64 [2, D].

        Those of own epochs nearby are counted together, as each count has a fixed cost.
        """
        own_rows = self.sources[source].own_rows
        draws = self._column_draws[leg_number]
        if leg_number < len(self.legs) - 1:
            ends = np.array([own_epoch, own_epoch + 1], np.int64)
            return draws.drawn_before(source, ends * own_rows)
        chunk, inside = divmod(own_epoch - int(self._first_own[source]), _OWN_EPOCHS)
        if (source, chunk) not in self._ends:
            members = int(np.diff(self._members_before)[source])
            begin = chunk * _OWN_EPOCHS
            ends = np.arange(begin, min(begin + _OWN_EPOCHS, members) + 1, dtype=np.int64)
            ends = (self._first_own[source] + ends) * own_rows
            self._ends[source, chunk] = draws.drawn_before(source, ends)
        return self._ends[source, chunk][inside : inside + 2]

    def _split_places(self, line_positions: I64, /) -> tuple[I64, I64]:
        source, inside = split_at(self._bases, line_positions)
        member, line_position = np.divmod(inside, self._places[source])
        return self._members_before[source] + member, line_position

    def _member(self, number: int) -> tuple[Order, int]:
        source = int(np.searchsorted(self._members_before, number, side="right")) - 1
        member = number - int(self._members_before[source])
        base = int(self._bases[source] + member * self._places[source])
        return self._own_epoch(number).order, base

    def positions_of_rows(self, blocks: I64, rows: I64) -> tuple[I64, I64]:
        deliveries = []
        for number in range(int(self._members_before[-1])):
            own_epoch = self._own_epoch(number)
            source = int(np.searchsorted(self._members_before, number, side="right")) - 1
            which, inside = own_epoch.order.positions_of_rows(blocks, rows)
            draw, column = np.divmod(inside, self.groups)
            draw += own_epoch.before[column]
            for segment_number, segment in enumerate(self.segments):
                before = self._before_segment(source, segment_number)[column]
                turns = np.arange(self.groups, dtype=np.int64)
                first = (turns - segment.begin + self.begin) % self.groups
                counts = segment.interleave.draws(
                    np.full_like(turns, source),
                    first,
                    np.full_like(turns, segment.interleave.rows),
                    self.groups,
                )
                in_segment = (draw >= before) & (draw < before + counts[column])
                positions = segment.interleave.find_draws(
                    source,
                    (draw - before)[in_segment],
                    first[column[in_segment]],
                    self.groups,
                )
                deliveries.append((which[in_segment], segment.begin - self.begin + positions))
        which, positions = end_to_end(deliveries)
        return which[positions >= 0], positions[positions >= 0]

    def reads(self, first: I64, last: I64) -> Reads:
        """Return the blocks that each run of positions needs; a run may span own epochs."""
        columns = [np.empty((3, 0), np.int64)]
        column = first % self.groups
        for source in range(len(self.sources)):
            begin = self._draws_before(source, first)
            end = self._draws_before(source, last + self.groups)
            members = range(*self._members_before[source : source + 2].tolist())
            for number in members:
                order, before = self._own_epoch(number)
                low = np.maximum(begin - before[column], 0)
                high = np.minimum(end - before[column], order.group_rows[column])
                runs = np.flatnonzero(low < high)
                inside = column[runs]
                run, block, _ = order.reads(
                    low[runs] * self.groups + inside, (high[runs] - 1) * self.groups + inside
                )
                columns.append(np.stack([runs[run], block, np.full(len(block), number)]))
        return Reads(*np.concatenate(columns, axis=1))

    def _draws_before(self, source: int, positions: I64) -> I64:
        """Count the draws of a source in the columns of positions before them, from the leg's
        begin: int64, same length.
        """
        column = positions % self.groups
        total = self._before_segment(source, 0)[column]
        for begin, end, interleave in self.segments:
            stop = np.clip(positions + self.begin, begin, end) - begin
            first = (column - begin + self.begin) % self.groups
            total = total + interleave.draws(
                np.full_like(positions, source), first, stop, self.groups
            )
        return total
