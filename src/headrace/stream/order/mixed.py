"""Order the rows of one or several sources, each continued from epoch to epoch. Pure.

A `Schedule` says which source has each row of a run. Every source is an endless sequence of own
epochs: own epoch e of N rows has the draws e*N .. (e+1)*N - 1. Column d, the rows d (mod D) of the
run from where D begins to hold, has a known number of them, so the own epoch is cut into D groups
of exactly these rows. Every row comes once.

A small source, which every rank holds whole, has no columns: draw k is place k mod N of the
permutation of own epoch k div N, and many own epochs are permuted at once.

Places are those of the members, end to end: the own epochs that the epoch touches, or a small
source. Orders of own epochs are built on demand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from headrace.arrays import I64, U64, Bools, Ints, as_array, offsets_from_lengths
from headrace.digest import derive_key
from headrace.errors import StreamError
from headrace.keyed_hash import permutations
from headrace.stream.order.epoch import (
    Order,
    OrderSettings,
    Pool,
    Reads,
    distinct_numbers,
    epoch_order,
    item_type,
)
from headrace.stream.order.joined import ColumnOrder, JoinedOrder, end_to_end
from headrace.stream.order.remaining import count_out, even_parts, split_at
from headrace.stream.order.schedule import ColumnDraws, RunSegment, Schedule

_OWN_EPOCHS = 32  # whose columns are counted together
_MOST_KEPT_ORDERS = 4  # each is arrays as long as its blocks
_PERMUTED_ROWS = 1 << 14  # of own epochs of a small source, permuted together


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedSource:
    """The blocks of one source, by its name.

    block_rows, identities, numbers: of its blocks; numbers are those in the whole index.
    own_rows: N_d. settings: of the orders of its own epochs. is_small: every rank holds it whole.
    A source that a changed blend no longer has has rows and no blocks.
    """

    name: str
    block_rows: I64
    identities: U64
    numbers: I64
    own_rows: int
    settings: OrderSettings
    is_small: bool


class OwnEpoch(NamedTuple):
    """One own epoch of a source: its order, and the draws of each column before it, int64 [D]."""

    order: ColumnOrder
    before: I64


class Leg(NamedTuple):
    """Lanes that hold from a row of the run on."""

    begin: int
    lanes: int
    window_rows: int
    groups: int


@dataclass(frozen=True, kw_only=True, eq=False)
class RepeatedOrder(Order):
    """All own epochs of a small source: position k is its draw k, places are its rows.

    begin, end: the draws that are asked for.
    """

    source: MixedSource
    begin: int
    end: int

    @property
    def rows(self) -> int:
        return self.end

    def line_of(self, positions: I64) -> I64:
        rows = self.source.own_rows
        own_epoch, row_turns = np.divmod(positions, rows)
        if rows == 1 or not self.shuffle:
            return row_turns
        line_positions = np.empty_like(positions)
        for _, members in distinct_numbers(own_epoch // self._permuted_together):
            epochs = own_epoch[members]
            first = int(epochs.min())
            orders = permutations(self._key, rows, first=first, count=int(epochs.max()) - first + 1)
            line_positions[members] = orders[epochs - first, row_turns[members]]
        return line_positions

    def locate(self, line_positions: I64) -> tuple[I64, I64]:
        at, rows = split_at(self._line, line_positions)
        return self.source.numbers[at], rows

    def positions_of_rows(self, blocks: I64, rows: I64) -> tuple[I64, I64]:
        at = np.searchsorted(self.source.numbers, blocks)
        at = np.minimum(at, len(self.source.numbers) - 1)
        which = np.flatnonzero((self.source.numbers[at] == blocks) & (rows < self._rows_at[at]))
        line_positions = self._line[at[which]] + rows[which]
        deliveries = []
        for draws in self._parts_of_draws():
            drawn = self.line_of(draws)
            order = np.argsort(drawn, kind="stable")
            first = np.searchsorted(drawn[order], line_positions, side="left")
            last = np.searchsorted(drawn[order], line_positions, side="right")
            row, turn = count_out(last - first)
            deliveries.append((which[row], draws[order[first[row] + turn]]))
        return end_to_end(deliveries)

    def reads(self, first: I64, last: I64) -> Reads:
        """Return all blocks for each run of positions."""
        del last
        blocks = self.source.numbers[self._rows_at > 0]
        run = np.repeat(np.arange(len(first), dtype=np.int64), len(blocks))
        return Reads(run, np.tile(blocks, len(first)), np.zeros(len(run), np.int64))

    def pool_of(self, positions: I64 | range) -> Pool:
        spans = []
        for block, rows in zip(self.source.numbers.tolist(), self._rows_at.tolist(), strict=True):
            if rows:
                spans.append((block, 0, rows))
        row_of = self.line_of(as_array(positions))
        item_of: Ints = np.argsort(row_of, kind="stable").astype(item_type(len(row_of)))
        return Pool(spans=spans, item_of=item_of, row_of=row_of[item_of], items=len(row_of))

    def _parts_of_draws(self) -> Iterator[I64]:
        size = self._permuted_together * self.source.own_rows
        for begin in range(self.begin, self.end, size):
            yield np.arange(begin, min(begin + size, self.end), dtype=np.int64)

    @property
    def _permuted_together(self) -> int:
        return max(1, _PERMUTED_ROWS // self.source.own_rows)

    @property
    def _rows_at(self) -> I64:
        return self.source.block_rows

    @cached_property
    def _line(self) -> I64:
        return offsets_from_lengths(self._rows_at)

    @cached_property
    def _key(self) -> tuple[int, int]:
        return derive_key(self.seed, "own epochs")


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedOrder(JoinedOrder):
    """The order of rows [begin, end) of a run; see the module docstring.

    Its members are the own epochs that it touches, source by source, or a small source.

    legs: of the run, up to this one. The first starts with the run. schedules: of each leg.
    """

    sources: tuple[MixedSource, ...]
    schedules: tuple[Schedule, ...]
    legs: tuple[Leg, ...]
    begin: int
    end: int
    _own_epochs: dict[tuple[int, int], OwnEpoch] = field(default_factory=dict, repr=False)
    _columns_before: dict[tuple[int, int], I64] = field(default_factory=dict, repr=False)
    _ends: dict[tuple[int, int], I64] = field(default_factory=dict, repr=False)

    @property
    def rows(self) -> int:
        return self.end - self.begin

    @property
    def schedule(self) -> Schedule:
        """The schedule of its rows."""
        return self.schedules[-1]

    @cached_property
    def segments(self) -> tuple[RunSegment, ...]:
        """The segments of constant proportions, by rows of the run."""
        return self.schedule.segments(self.begin, self.end)

    @cached_property
    def _column_draws(self) -> list[ColumnDraws]:
        """The counts of draws by column of each leg."""
        counts = []
        for leg, schedule in zip(self.legs, self.schedules, strict=True):
            draws = ColumnDraws(schedule=schedule, columns=leg.groups, begin=leg.begin)
            counts.append(draws)
        return counts

    @cached_property
    def _sizes(self) -> I64:
        return np.maximum(1, [source.own_rows for source in self.sources]).astype(np.int64)

    @cached_property
    def _is_small(self) -> Bools:
        return np.array([source.is_small for source in self.sources], np.bool_)

    @cached_property
    def _drawn(self) -> tuple[I64, I64]:
        """The draws of each source before the first row, and before the end: int64 [S]."""
        return self.schedule.drawn_before(self.begin), self.schedule.drawn_before(self.end)

    @cached_property
    def _first_own(self) -> I64:
        """The first own epoch of each source that the order touches: int64 [S]."""
        return self._drawn[0] // self._sizes

    @cached_property
    def _members_before(self) -> I64:
        """The number of the first member of each source, then of members: int64 [S + 1]."""
        begin, end = self._drawn
        members = np.where(self._is_small, 1, (end - 1) // self._sizes + 1 - self._first_own)
        return offsets_from_lengths(np.where(end > begin, members, 0))

    @cached_property
    def _bases(self) -> I64:
        """The place at which the members of each source begin: int64 [S]."""
        return offsets_from_lengths(np.diff(self._members_before) * self._sizes)

    def rows_by_source(self, begin: int, end: int) -> dict[str, int]:
        """Count the rows of each source at positions [begin, end)."""
        counts = self.schedule.drawn_before(self.begin + end)
        counts = counts - self.schedule.drawn_before(self.begin + begin)
        rows = {}
        for source, count in zip(self.sources, counts.tolist(), strict=True):
            if count or len(source.numbers):
                rows[source.name] = count
        return rows

    def _column_of(self, positions: I64) -> I64:
        """Return the column of each position."""
        return (positions + (self.begin - self.legs[-1].begin)) % self.groups

    def _first_of_columns(self, segment: RunSegment, column: I64) -> I64:
        """Return the first place of columns in a segment."""
        return (column + (self.legs[-1].begin - segment.begin)) % self.groups

    def _split(self, positions: I64, /) -> tuple[I64, I64]:
        which = np.empty_like(positions)
        inside = np.empty_like(positions)
        if not len(positions):
            return which, inside
        source, draw = self._number_draws(positions, small=False)
        column = self._column_of(positions)
        small = self._is_small[source]
        if small.any():
            which[small] = self._members_before[source[small]]
            inside[small] = self._number_draws(positions, small=True)[1][small]
        begin = self.schedule.drawn_before(self.begin + int(positions.min()))
        end = self.schedule.drawn_before(self.begin + int(positions.max()))
        for number, of_source in distinct_numbers(source):
            if self.sources[number].is_small:
                continue
            own_rows = self.sources[number].own_rows
            own_epochs = range(int(begin[number]) // own_rows, int(end[number]) // own_rows + 1)
            first = int(self._members_before[number] - self._first_own[number])
            which[of_source] = first + self._own_epoch_of(number, own_epochs, positions[of_source])
        for number, members in distinct_numbers(which):
            if not self._source_of_member(number).is_small:
                of_column = column[members]
                before = self._own_epoch(number).before[of_column]
                inside[members] = (draw[members] - before) * self.groups + of_column
        return which, inside

    def _number_draws(self, positions: I64, *, small: bool) -> tuple[I64, I64]:
        """Return (source, draw) of positions: of sources in columns numbered by column from the
        leg's begin; of small sources from the run's begin.
        """
        source = np.empty_like(positions)
        draw = np.empty_like(positions)
        rows = positions + self.begin
        starts = np.array([segment.begin for segment in self.segments], np.int64)
        for number, in_segment in distinct_numbers(np.searchsorted(starts, rows, side="right") - 1):
            segment = self.segments[number]
            at = rows[in_segment] - segment.begin
            if small:
                of_source, drawn = segment.interleave.number_draws(at, 1, 0)
                draw[in_segment] = drawn + self.schedule.drawn_before(segment.begin)[of_source]
                continue
            origin = int(segment.begin - self.legs[-1].begin) % self.groups
            source[in_segment], drawn = segment.interleave.number_draws(at, self.groups, origin)
            column = self._column_of(positions[in_segment])
            for of_draws, members in distinct_numbers(source[in_segment]):
                if not self.sources[of_draws].is_small:
                    drawn[members] += self._before_segment(of_draws, number)[column[members]]
            draw[in_segment] = drawn
        return source, draw

    def _before_segment(self, source: int, number: int) -> I64:
        """Return the draws of each column before a segment, less those in it before the leg: int64
        [D].
        """
        if (source, number) not in self._columns_before:
            segment = self.segments[number]
            begin = max(segment.begin, self.legs[-1].begin)
            drawn = self._column_draws[-1].drawn(source, np.array([begin], np.int64))[0]
            column = np.arange(self.groups, dtype=np.int64)
            drawn -= segment.interleave.draws(
                np.full_like(column, source),
                self._first_of_columns(segment, column),
                np.full_like(column, begin - segment.begin),
                self.groups,
            )
            self._columns_before[source, number] = drawn
        return self._columns_before[source, number]

    def _own_epoch_of(self, source: int, own_epochs: range, positions: I64) -> I64:
        """Return which of these own epochs positions of a source are in: int64, same length."""
        starts = np.array(own_epochs[1:], np.int64) * self.sources[source].own_rows
        boundaries = self.schedule.find_draws(source, starts)
        boundaries = boundaries[boundaries >= 0] - self.begin
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
        drawn = int(self.schedules[leg_number].drawn_before(leg.begin)[number])
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
        at = np.array([leg.begin], np.int64)
        used = self._column_draws[leg_number - 1].drawn(number, at)[0] - before
        end = np.array([own_epoch + 1], np.int64) * self.sources[number].own_rows
        rows = self._column_draws[leg_number].drawn_before(number, end)[0]
        blocks, firsts, stops = earlier.undelivered(used)
        left = int((stops - firsts).sum() - rows.sum())
        settings["seed"] = derive_key(settings["seed"], "cut again", own_epoch, leg_number)[0]
        order = ColumnOrder(
            blocks=blocks,
            firsts=firsts,
            line=offsets_from_lengths(stops - firsts),
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
        member, line_position = np.divmod(inside, self._sizes[source])
        return self._members_before[source] + member, line_position

    def _source_of_member(self, number: int) -> MixedSource:
        return self.sources[int(np.searchsorted(self._members_before, number, side="right")) - 1]

    def _member(self, number: int) -> tuple[Order, int]:
        source = int(np.searchsorted(self._members_before, number, side="right")) - 1
        member = number - int(self._members_before[source])
        base = int(self._bases[source] + member * self._sizes[source])
        if self.sources[source].is_small:
            return self._repeated(source), base
        return self._own_epoch(number).order, base

    def _repeated(self, source: int) -> RepeatedOrder:
        if not len(self.sources[source].numbers):
            name = self.sources[source].name
            raise StreamError(
                f"rows of {name} are asked for, which the blend no longer has",
                setting="datasets",
                value=name,
                remedy="open the blend as it was before it changed",
            )
        begin, end = (int(drawn[source]) for drawn in self._drawn)
        settings = self.sources[source].settings
        return RepeatedOrder(source=self.sources[source], begin=begin, end=end, **settings)

    def positions_of_rows(self, blocks: I64, rows: I64) -> tuple[I64, I64]:
        deliveries = []
        for source, mixed_source in enumerate(self.sources):
            if not len(mixed_source.numbers):
                continue
            for number in range(*self._members_before[source : source + 2].tolist()):
                if mixed_source.is_small:
                    which, draws = self._repeated(source).positions_of_rows(blocks, rows)
                    positions = self.schedule.find_draws(source, draws) - self.begin
                    deliveries.append((which, positions))
                else:
                    deliveries += self._positions_in_own_epoch(source, number, blocks, rows)
        which, positions = end_to_end(deliveries)
        inside = (positions >= 0) & (positions < self.rows)
        return which[inside], positions[inside]

    def _positions_in_own_epoch(
        self, source: int, number: int, blocks: I64, rows: I64
    ) -> Iterator[tuple[I64, I64]]:
        own_epoch = self._own_epoch(number)
        which, inside = own_epoch.order.positions_of_rows(blocks, rows)
        draw, column = np.divmod(inside, self.groups)
        draw += own_epoch.before[column]
        columns = np.arange(self.groups, dtype=np.int64)
        for segment_number, segment in enumerate(self.segments):
            before = self._before_segment(source, segment_number)[column]
            first = self._first_of_columns(segment, columns)
            end = np.full_like(columns, segment.interleave.rows)
            counts = segment.interleave.draws(
                np.full_like(columns, source), first, end, self.groups
            )
            in_segment = (draw >= before) & (draw < before + counts[column])
            positions = segment.interleave.find_draws(
                source, (draw - before)[in_segment], first[column[in_segment]], self.groups
            )
            yield which[in_segment], segment.begin - self.begin + positions

    def reads(self, first: I64, last: I64) -> Reads:
        """Return the blocks that each run of positions needs; a run may span own epochs."""
        columns = [np.empty((3, 0), np.int64)]
        column = self._column_of(first)
        for source, mixed_source in enumerate(self.sources):
            members = range(*self._members_before[source : source + 2].tolist())
            if not members:
                continue
            begin = self._draws_before(source, first)
            end = self._draws_before(source, last + self.groups)
            if mixed_source.is_small:
                runs = np.flatnonzero(begin < end)
                run, block, _ = self._repeated(source).reads(first[runs], last[runs])
                columns.append(np.stack([runs[run], block, np.full(len(block), members[0])]))
                continue
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
        column = self._column_of(positions)
        total = np.zeros_like(positions)
        if not self.sources[source].is_small:
            total += self._before_segment(source, 0)[column]
        for segment in self.segments:
            rows = np.clip(positions + self.begin, segment.begin, segment.end)
            total = total + segment.interleave.draws(
                np.full_like(positions, source),
                self._first_of_columns(segment, column),
                rows - segment.begin,
                self.groups,
            )
        return total
