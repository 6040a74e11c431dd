"""The order of an epoch whose ranks changed on the way: orders that follow one another. Pure.

A number of ranks that divides the groups changes nothing. Other ranks would need every lane each, so a change takes two
steps. What is left of the round is dealt to the new ranks group by group (`RestOfRound`), and no row moves. From the
round's border on, where every lane stands at the border of a window, the tails of the lanes are laid end to end and cut
into new lanes (`cut_again`). Every row that is left comes once, and the state needs a few integers for each change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from headrace.arrays import I64
from headrace.digest import derive_key
from headrace.stream.order.epoch import EpochOrder, Order, Pieces, Reads
from headrace.stream.order.lanes import Lanes


class Part(NamedTuple):
    """Positions [begin, end) of an epoch, in the order of `order`, whose own positions count from 0."""

    begin: int
    end: int
    order: Order


def parts_of(order: Order) -> Sequence[Part]:
    """The orders that follow one another in an epoch; one, if its ranks never changed."""
    return order.parts if isinstance(order, ChainedOrder) else (Part(0, order.rows, order),)


def round_border(order: EpochOrder, position: int) -> int:
    """The first position from `position` on at which every lane stands at the border of a window, or the end."""
    round_rows = order.lanes * (order.window_rows if order.shuffle else 1)
    return min(-(-position // round_rows) * round_rows, order.rows)


def cut_again(order: EpochOrder, border: int, lanes: Lanes) -> EpochOrder:
    """The rows that an order leaves from the border of a round on, in other lanes. O(blocks left + lanes)."""
    taken = np.minimum(border // order.lanes, order.lane_rows)
    by_start = np.argsort(order.lane_starts, kind="stable")
    starts = (order.lane_starts + taken)[by_start]
    stops = (order.lane_starts + order.lane_rows)[by_start]
    blocks, firsts, ends = order.stretches(starts, stops)
    return EpochOrder(
        blocks=blocks,
        firsts=firsts,
        line=np.concatenate([[0], np.cumsum(ends - firsts)]).astype(np.int64),
        seed=derive_key(order.seed, "cut again", order.epoch, border)[0],
        epoch=order.epoch,
        lanes=lanes.lanes,
        window_rows=lanes.window_rows,
        groups=lanes.groups if order.shuffle else lanes.lanes,
        shuffle=order.shuffle,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class RestOfRound:
    """Positions [begin, end) of a round of `base`, dealt to `ranks` ranks: each has a run of whole groups, but for two.

    Position p here is for rank p mod R, which takes its R-th part of the groups' rows, laid end to end group by group.
    """

    base: EpochOrder
    begin: int
    end: int
    ranks: int

    @property
    def rows(self) -> int:
        """How many positions are left of the round."""
        return self.end - self.begin

    @property
    def lanes(self) -> int:
        """One for each rank."""
        return self.ranks

    @property
    def groups(self) -> int:
        """One for each rank."""
        return self.ranks

    @property
    def window_rows(self) -> int:
        """All that a rank takes is one round."""
        return max(1, -(-self.rows // self.ranks))

    @property
    def shuffle(self) -> bool:
        """Only a shuffled order has rounds that can be left in the middle."""
        return True

    def line_of(self, positions: I64) -> I64:
        """The place on the line of `base` of each position."""
        return self.base.line_of(self._base_positions(positions))

    def locate(self, places: I64) -> tuple[I64, I64]:
        """(block number, row inside the block) of each place on the line."""
        return self.base.locate(places)

    def positions_of_row(self, block: int, row: int) -> I64:
        """The position at which a row is delivered: int64 [1], or none if it is of another round."""
        position = self.base.positions_of_row(block, row)
        position = position[(position >= self.begin) & (position < self.end)]
        group, offset = position % self.base.groups, position // self.base.groups
        dealt = self._group_starts[group] + offset - self._first[group]
        rank = np.searchsorted(self._rank_starts, dealt, side="right") - 1
        return rank + (dealt - self._rank_starts[rank]) * self.ranks

    def reads(self, first: I64, last: I64) -> Reads:
        """The blocks that each run of positions first, first + R, .. last needs."""
        rank = first % self.ranks
        begin = self._rank_starts[rank] + first // self.ranks
        end = self._rank_starts[rank] + last // self.ranks + 1
        lowest = np.searchsorted(self._group_starts, begin, side="right") - 1
        counts = np.searchsorted(self._group_starts, end - 1, side="right") - lowest
        run = np.repeat(np.arange(len(first), dtype=np.int64), counts)
        group = lowest[run] + np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
        from_ = np.maximum(begin[run], self._group_starts[group])
        until = np.minimum(end[run], self._group_starts[group + 1]) - 1
        held = from_ <= until
        run, group, from_, until = run[held], group[held], from_[held], until[held]
        shift = self._first[group] - self._group_starts[group]
        found = self.base.reads((from_ + shift) * self.base.groups + group, (until + shift) * self.base.groups + group)
        return Reads(run[found.run], found.block, found.laying)

    def pieces_of(self, positions: I64) -> Pieces:
        """What holds the rows of ascending positions of one rank [n > 0]."""
        return self.base.pieces_of(self._base_positions(positions))

    def _base_positions(self, positions: I64) -> I64:
        dealt = self._rank_starts[positions % self.ranks] + positions // self.ranks
        group = np.searchsorted(self._group_starts, dealt, side="right") - 1
        return (self._first[group] + dealt - self._group_starts[group]) * self.base.groups + group

    @cached_property
    def _first(self) -> I64:
        """The place in its own sequence of the first row that is left of each group: int64 [D]."""
        group = np.arange(self.base.groups, dtype=np.int64)
        return (self.begin - group + self.base.groups - 1) // self.base.groups

    @cached_property
    def _group_starts(self) -> I64:
        """Where each group's rows begin, laid end to end, then their number: int64 [D + 1]."""
        group = np.arange(self.base.groups, dtype=np.int64)
        stops = (self.end - group + self.base.groups - 1) // self.base.groups
        return np.concatenate([[0], np.cumsum(stops - self._first)]).astype(np.int64)

    @cached_property
    def _rank_starts(self) -> I64:
        """Where each rank's part of them begins, then their number: int64 [R + 1]."""
        short, longer = divmod(self.rows, self.ranks)
        rows = short + (np.arange(self.ranks) < longer)
        return np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class ChainedOrder:
    """Orders that follow one another; lanes, groups and window_rows are those of the last."""

    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        """N, the rows of the epoch."""
        return self.parts[-1].end

    @property
    def lanes(self) -> int:
        """L of the last part."""
        return self.parts[-1].order.lanes

    @property
    def groups(self) -> int:
        """D of the last part."""
        return self.parts[-1].order.groups

    @property
    def window_rows(self) -> int:
        """w of the last part."""
        return self.parts[-1].order.window_rows

    @property
    def shuffle(self) -> bool:
        """Whether rows are shuffled at all."""
        return self.parts[-1].order.shuffle

    def line_of(self, positions: I64) -> I64:
        """A place for each position, which tells the parts apart; int64 in [0, N) → int64, same length."""
        places = np.empty_like(positions)
        for number, members in self._by_part(positions):
            part = self.parts[number]
            places[members] = self._bases[number] + part.order.line_of(positions[members] - part.begin)
        return places

    def locate(self, places: I64) -> tuple[I64, I64]:
        """(block number, row inside the block) of each place."""
        blocks, rows = np.empty_like(places), np.empty_like(places)
        which = np.searchsorted(self._bases, places, side="right") - 1
        for number in np.unique(which).tolist():
            members = which == number
            found = self.parts[number].order.locate(places[members] - self._bases[number])
            blocks[members], rows[members] = found
        return blocks, rows

    def positions_of_row(self, block: int, row: int) -> I64:
        """The one position at which a row is delivered: int64 [1]."""
        found = [np.zeros(0, np.int64)]
        for part in self.parts:
            positions = part.begin + part.order.positions_of_row(block, row)
            found.append(positions[(positions >= part.begin) & (positions < part.end)])
        return np.concatenate(found)

    def pieces_of(self, positions: I64) -> Pieces:
        """What holds the rows of ascending positions [n > 0]; each lies in one part, as pools end with parts."""
        ((number, _),) = self._by_part(positions)
        part = self.parts[number]
        return part.order.pieces_of(positions - part.begin)

    def reads(self, first: I64, last: I64) -> Reads:
        """Asked of each part by itself: see `parts_of`."""
        raise NotImplementedError

    def _by_part(self, positions: I64) -> list[tuple[int, I64]]:
        begins = np.array([part.begin for part in self.parts], np.int64)
        which = np.searchsorted(begins, positions, side="right") - 1
        return [(number, np.flatnonzero(which == number)) for number in np.unique(which).tolist()]

    @cached_property
    def _bases(self) -> I64:
        """Where the places of each part begin: int64 [parts]. A part's line is never longer than the epoch's first."""
        return np.arange(len(self.parts), dtype=np.int64) * self.parts[0].order.rows
