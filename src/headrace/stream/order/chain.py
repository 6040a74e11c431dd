"""The order of an epoch whose ranks changed on the way: orders that follow one another. Pure.

A number of ranks that divides the groups changes nothing. Other ranks would need every lane each, so a change takes two
steps. What is left of the round is dealt to the new ranks group by group (`RestOfRound`), and no row moves. From the
round's border on, where every lane stands at the border of a window, the tails of the lanes are laid end to end and cut
into new lanes (`cut_again`). Every row that is left comes once, and the state needs a few integers for each change.

The order of a blend, or of a part of the rows, is never cut again, since its sources go on in later epochs. All that is
left of its epoch is dealt to the new ranks group by group instead, as the rest of a round is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from headrace.arrays import I64
from headrace.digest import derive_key
from headrace.errors import StreamError
from headrace.stream.order.epoch import EpochOrder, Order, Pool, Reads
from headrace.stream.order.joined import JoinedOrder, split_at
from headrace.stream.order.state import Change

_LONGEST_LINE = 1 << 56  # of places; all parts of a chain together stay in 64 bits


class Part(NamedTuple):
    """Positions [begin, end) of an epoch, in the order of `order`, whose own positions count from 0."""

    begin: int
    end: int
    order: Order


def parts_of(order: Order) -> Sequence[Part]:
    """The orders that follow one another in an epoch; one, if its ranks never changed."""
    return order.parts if isinstance(order, ChainedOrder) else (Part(0, order.rows, order),)


def cut_again(order: EpochOrder, border: int, change: Change) -> EpochOrder:
    """The rows that an order leaves from the border of a round on, in other lanes. O(blocks left + lanes)."""
    taken = np.minimum(border // order.lanes, order.lane_rows)
    by_start = np.argsort(order.lane_starts, kind="stable")
    starts = (order.lane_starts + taken)[by_start]
    stops = (order.lane_starts + order.lane_rows)[by_start]
    blocks, firsts, ends = order.rows_between(starts, stops)
    return EpochOrder(
        blocks=blocks,
        firsts=firsts,
        line=np.concatenate([[0], np.cumsum(ends - firsts)]).astype(np.int64),
        seed=derive_key(order.seed, "cut again", order.epoch, border)[0],
        epoch=order.epoch,
        lanes=change.lanes or 1,
        window_rows=change.window_rows or 1,
        groups=(change.groups if order.shuffle else change.lanes) or 1,
        shuffle=order.shuffle,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class RestOfRound(Order):
    """Positions [begin, end) of `base`, mostly of one round, dealt to R ranks: each has a run of whole groups.

    Position p here is for rank p mod R, which takes its R-th part of the groups' rows, laid end to end group by group.
    There is a lane and a group for each rank. Positions come from all over the round, even if `base` is not shuffled.
    """

    base: Order
    begin: int
    end: int

    @classmethod
    def of(cls, base: Order, begin: int, end: int, *, ranks: int) -> RestOfRound:
        """Deal the rows to so many ranks; a round is the part of a rank of one round of `base`, or of all if less."""
        round_rows = base.lanes * (base.window_rows if base.shuffle else 1)
        window = max(1, -(-min(end - begin, round_rows) // ranks))
        return cls(base=base, begin=begin, end=end, lanes=ranks, groups=ranks, window_rows=window, shuffle=True)

    @property
    def rows(self) -> int:
        return self.end - self.begin

    def line_of(self, positions: I64) -> I64:
        return self.base.line_of(self._base_positions(positions))

    def locate(self, places: I64) -> tuple[I64, I64]:
        return self.base.locate(places)

    def positions_of_row(self, block: int, row: int) -> I64:
        position = self.base.positions_of_row(block, row)
        position = position[(position >= self.begin) & (position < self.end)]
        group, offset = position % self.base.groups, position // self.base.groups
        dealt = self._group_starts[group] + offset - self._first[group]
        rank = np.searchsorted(self._rank_starts, dealt, side="right") - 1
        positions: I64 = np.sort(rank + (dealt - self._rank_starts[rank]) * self.groups)
        return positions

    def reads(self, first: I64, last: I64) -> Reads:
        rank = first % self.groups
        begin = self._rank_starts[rank] + first // self.groups
        end = self._rank_starts[rank] + last // self.groups + 1
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

    def pieces_of(self, positions: I64) -> Pool:
        return self.base.pieces_of(self._base_positions(positions))

    def _base_positions(self, positions: I64) -> I64:
        dealt = self._rank_starts[positions % self.groups] + positions // self.groups
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
        short, longer = divmod(self.rows, self.groups)
        rows = short + (np.arange(self.groups) < longer)
        return np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class ChainedOrder(JoinedOrder):
    """Orders that follow one another; lanes, groups and window_rows are those of the last."""

    parts: tuple[Part, ...]

    @property
    def rows(self) -> int:
        return self.parts[-1].end

    def _split(self, positions: I64, /) -> tuple[I64, I64]:
        return split_at(np.array([part.begin for part in self.parts], np.int64), positions)

    def _split_places(self, places: I64, /) -> tuple[I64, I64]:
        return split_at(np.arange(len(self.parts), dtype=np.int64) * _LONGEST_LINE, places)

    def _member(self, number: int) -> tuple[Order, int]:
        return self.parts[number].order, number * _LONGEST_LINE

    def positions_of_row(self, block: int, row: int) -> I64:
        found = [np.zeros(0, np.int64)]
        for part in self.parts:
            positions = part.begin + part.order.positions_of_row(block, row)
            found.append(positions[(positions >= part.begin) & (positions < part.end)])
        return np.concatenate(found)

    def reads(self, first: I64, last: I64) -> Reads:
        """Asked of each part by itself: see `parts_of`."""
        raise NotImplementedError


def chained(order: Order, changes: Sequence[Change]) -> ChainedOrder:
    """The order of an epoch after changes of its ranks, which `StreamState` has checked.

    Raises `StreamError` where the lanes of a blend, or of a part of the rows, are said to be cut again.
    """
    base, begin = order, 0
    parts = [Part(0, order.rows, order)]
    for number, change in enumerate(changes):
        _, _, last = parts[-1]
        since = change.position - parts[-1].begin
        following: Order
        if change.ranks is not None:
            cuts = [each.position for each in changes[number:] if each.ranks is None]
            end = min([*cuts, order.rows]) - parts[-1].begin
            following = RestOfRound.of(last, since, end, ranks=change.ranks)
        elif isinstance(base, EpochOrder):
            following = base = cut_again(base, change.position - begin, change)
            begin = change.position
        else:
            raise StreamError(
                f"stream state: at position {change.position} the lanes of a blend or of a part of the rows are cut"
                " again, which they never are; pass what state_dict() gave, unchanged"
            )
        parts[-1] = parts[-1]._replace(end=change.position)
        parts.append(Part(change.position, order.rows, following))
    return ChainedOrder(
        parts=tuple(parts),
        lanes=following.lanes,
        window_rows=following.window_rows,
        groups=following.groups,
        shuffle=following.shuffle,
    )
