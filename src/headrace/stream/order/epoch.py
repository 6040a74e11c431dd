"""Map positions of an epoch's global order to rows: position g = 0..N-1 → one row. Pure.

1. The blocks, permuted by a keyed hash of (seed, epoch, block identity) and laid end to end, form a
line of N places.
2. The line is cut into L slices, and a keyed permutation of (seed, epoch) deals them to L lanes.
   The first N mod L lanes have one row more.
3. The lanes l = d (mod D) are group d. A round is the next `window_rows` rows of every lane; the
   first round is shorter, see `first_window_rows`. All rows of a group's round are permuted
   together, by a key of (seed, epoch, group, round).
4. Position g is in group g mod D, at place g div D of that group's sequence.

A rank that takes the positions r (mod R) owns the groups r (mod R) whenever R divides D, and a step
of any batch size mixes all lanes. The order is a function of the index, seed, epoch, L, D and
window_rows. It does not depend on ranks, workers, threads or memory. Unshuffled, D = L and each
lane is read from its first row to its last. Building an order costs O(blocks + L); a question about
n positions costs O(n) plus the rounds that they touch, each permuted alone.

`Order` is the protocol that plans, readers and questions use. Other orders are composed from this
one: see `joined`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypedDict, Unpack, cast

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U64, Ints, as_array, offsets_from_lengths
from headrace.dataset.index import SplitIndex, text_array
from headrace.digest import derive_key
from headrace.keyed_hash import hash_texts, hash_words, inverse_permutation, permutation
from headrace.stream.order.balance import RowCosts, balanced, runs_key
from headrace.stream.order.remaining import count_out, even_parts, split_at

_NAME_KEY = derive_key(0, "block identity")
FIRST_ROWS = 1 << 18  # of the first round: the loop waits for them
_LARGE_ROUND_ROWS = 1 << 19
_ROWS_IN_CACHE = 1 << 14
_BRIDGED_ROWS = 64  # between pieces of a block that are read as one


class Reads(NamedTuple):
    """The blocks that runs of positions need, one entry per run and block; int64, parallel.

    run: index in the list of runs. block: block number. laying: distinguishes repetitions of a
    block in one epoch.
    """

    run: I64
    block: I64
    laying: I64


Piece = tuple[int, int, int]  # block number, first row, stop row
Pieces = tuple[I64, I64, I64]  # the same of many


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Rows of blocks that hold the rows at some positions, in pieces laid end to end.

    spans: the pieces, none empty; a block may repeat. item_of: the item that takes each row, int32
    [rows] (int64 if there are more items), -1 for none; None for all rows in order. row_of: if
    several items may take a row, the row of each entry of `item_of`, ascending, int64 [entries].
    items: their number. filling: how many items at the end repeat the one before them.

    The order is kept by row: laid out so, a round is read and written front to back.
    """

    spans: list[Piece]
    item_of: Ints | None
    items: int
    row_of: I64 | None = None
    filling: int = 0

    @property
    def index(self) -> I64 | None:
        """The row of each item: int64 [items]; None for all rows of the pieces in order."""
        distinct = self.items - self.filling
        if self.item_of is None:
            return np.minimum(np.arange(self.items), distinct - 1) if self.filling else None
        index = np.empty(self.items, np.int64)
        if self.row_of is not None:
            index[self.item_of] = self.row_of
        elif distinct == len(self.item_of):
            index[self.item_of] = np.arange(distinct)
        else:
            rows = np.flatnonzero(self.item_of >= 0)
            index[self.item_of[rows]] = rows
        index[distinct:] = index[distinct - 1]
        return index

    @property
    def blocks(self) -> list[int]:
        """The blocks of the pieces, each once, in order of first use."""
        return list(dict.fromkeys(block for block, _, _ in self.spans))

    @property
    def rows(self) -> int:
        """Total rows of the pieces."""
        return sum(stop - start for _, start, stop in self.spans)


class OrderSettings(TypedDict):
    """Everything that the order of an epoch depends on, except its blocks; see the module
    docstring.
    """

    seed: int
    epoch: int
    lanes: int
    window_rows: int
    groups: int
    shuffle: bool


def settings_of(values: Any) -> OrderSettings:
    """Return the settings of an order or a state."""
    return cast(
        OrderSettings, {name: getattr(values, name) for name in OrderSettings.__annotations__}
    )


def first_window_rows(*, lanes: int, window_rows: int, rows: int) -> int:
    """Return the rows of a lane in the first round of a shuffled order of `rows` rows.

    All lanes together have at most 262,144, so that the first batch does not wait for a whole
    round. An order that is one permutation has no other round.
    """
    if lanes == 1 and window_rows >= rows:
        return window_rows
    return min(window_rows, max(1, FIRST_ROWS // lanes))


@dataclass(frozen=True, kw_only=True, eq=False)
class Order(ABC):
    """One epoch's order of rows: positions 0..rows-1, places on a line of blocks, rows in blocks.

    lanes: L, the slices of the line that are read side by side. window_rows: rows of a lane that
    one round takes. groups: D; positions of one residue modulo D take their rows from the lanes of
    one group, so consumers whose number divides D need different lanes. shuffle: whether rows are
    shuffled at all. The positions of one round are shuffled among themselves within their groups,
    so a reader that goes round by round needs few blocks at a time.
    """

    seed: int
    epoch: int
    lanes: int
    window_rows: int
    groups: int
    shuffle: bool

    @property
    def settings(self) -> OrderSettings:
        """Everything that the order depends on, except its blocks."""
        return settings_of(self)

    @property
    @abstractmethod
    def rows(self) -> int:
        """The number of positions."""

    @property
    def first_window_rows(self) -> int:
        """The rows of a lane in the first round."""
        return self.window_rows

    @abstractmethod
    def line_of(self, positions: I64) -> I64:
        """Return the place on the line of each position; int64, same length."""

    @abstractmethod
    def locate(self, line_positions: I64) -> tuple[I64, I64]:
        """Return (block number, row inside the block) of each place on the line."""

    @abstractmethod
    def positions_of_rows(self, blocks: I64, rows: I64) -> tuple[I64, I64]:
        """Return every (index of the row asked for, position) at which rows of blocks are
        delivered; int64, parallel.

        A row may have none or several if an epoch is not one pass. A round that holds some of the
        rows is permuted once.
        """

    @abstractmethod
    def reads(self, first: I64, last: I64) -> Reads:
        """Return the blocks that each run of positions first, first + D, ..

        last needs for its rounds.
        """

    @abstractmethod
    def pool_of(self, positions: I64 | range) -> Pool:
        """Return the pieces of blocks that hold the rows of ascending positions [n > 0]."""


def natural_rows(index: SplitIndex, order: Order, positions: I64) -> I64:
    """Return the row number in the natural order of the split at each position; int64, same
    length.
    """
    blocks, rows = order.locate(order.line_of(positions))
    return index.first_row[blocks] + rows


def block_identities(index: SplitIndex) -> U64:
    """Return a stable identity of each block, from shard name and index in the shard alone: uint64
    [B, 3].

    It does not depend on seed, epoch or the other shards.
    """
    high, low = hash_texts(_NAME_KEY, text_array(index.shards))
    return np.column_stack(
        [high[index.shard_of_block], low[index.shard_of_block], index.block.astype(np.uint64)]
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochOrder(Order):
    """The order of one whole pass over blocks.

    blocks: block numbers along the line, int64 [P]. line: the first place of each, then N, int64
    [P+1]. firsts: the row of each block at its first place, int64 [P], if the line holds parts of
    blocks; None for 0. groups: D, a divisor of lanes.
    costs: of the rows, if like ones share steps. run_rows: rows of a run of them, see `balance`.
    """

    blocks: I64
    line: I64
    firsts: I64 | None = None
    costs: RowCosts | None = None
    run_rows: int = 1
    # the last one, by group, round
    _large_round: dict[tuple[int, int], I64] = field(default_factory=dict, repr=False)

    @property
    def rows(self) -> int:
        """N, the rows of the epoch."""
        return int(self.line[-1])

    @cached_property
    def group_rows(self) -> I64:
        """The number of rows of each group: int64 [D]."""
        of_lanes = even_parts(self.rows, self.lanes)
        rows: I64 = of_lanes.reshape(-1, self.groups).sum(axis=0)
        return rows

    @cached_property
    def lane_rows(self) -> I64:
        """The number of rows of each lane: int64 [L]."""
        short, longer = np.divmod(self.group_rows, self._group_lanes)
        turn = np.arange(self._group_lanes, dtype=np.int64)[:, None]
        return (short + (turn < longer)).ravel()

    @cached_property
    def lane_starts(self) -> I64:
        """The first place on the line of each lane: int64 [L]."""
        by_slice = np.arange(self.lanes, dtype=np.int64)
        if self.shuffle:
            by_slice = permutation(derive_key(self.seed, "lanes", self.epoch), self.lanes)
        rows = self.lane_rows[by_slice]
        starts = np.empty(self.lanes, np.int64)
        starts[by_slice] = np.cumsum(rows) - rows
        return starts

    def _segments(self, lanes: I64 | slice, begin: I64 | int, end: I64 | int) -> tuple[I64, I64]:
        """Return the places [start, stop) on the line that are rows begin..end-1 of lanes."""
        starts = self.lane_starts[lanes]
        rows = self.lane_rows[lanes]
        return starts + np.minimum(begin, rows), starts + np.minimum(end, rows)

    def _row_of_lane(self, lane: I64, line_positions: I64) -> I64:
        """Return which row of its lane is at each place of the line."""
        return line_positions - self.lane_starts[lane]

    def line_of(self, positions: I64) -> I64:
        if not self.shuffle:
            return self.lane_starts[positions % self.groups] + positions // self.groups
        line_positions = np.empty_like(positions)
        for group, round_, members, inside in self._by_round(positions):
            starts, counts = self._lanes_of_round(group, round_)
            rows = self._permuted(group, round_, starts, counts)[inside]
            ends = np.cumsum(counts)
            lane = np.searchsorted(ends, rows, side="right")
            line_positions[members] = starts[lane] + rows - (ends - counts)[lane]
        return line_positions

    def pool_of(self, positions: I64 | range) -> Pool:
        """Return the pieces that hold the rows of ascending positions [n > 0]: all rows of the
        rounds of their groups.

        Without shuffle, all rows of each lane from the first to the last one asked for.
        """
        rounds = list(self._by_round(positions))
        starts: list[I64] = []
        counts: list[I64] = []
        for group, round_, _, inside in rounds:
            if self.shuffle:
                lane_begin, rows = self._lanes_of_round(group, round_)
            else:
                first, stop = _limits(inside)
                lane_begin = self.lane_starts[group : group + 1] + first
                rows = np.array([stop - first], np.int64)
            starts.append(lane_begin)
            counts.append(rows)
        segment_starts = np.concatenate(starts)
        spans = self.rows_between(segment_starts, segment_starts + np.concatenate(counts))
        items = len(positions)
        if not self.shuffle and len(rounds) == 1 and isinstance(rounds[0][3], slice):
            return Pool(spans=_listed(spans), item_of=None, items=items)
        item_of: Ints = np.empty(sum(int(rows.sum()) for rows in counts), item_type(items))
        # round by round, so that what is written at random stays in the processor's cache
        base = 0
        for (group, round_, members, inside), lanes, rows in zip(
            rounds, starts, counts, strict=True
        ):
            of_round = item_of[base : base + int(rows.sum())]
            base += len(of_round)
            if self.shuffle:
                selected: Ints = self._permuted(group, round_, lanes, rows)[inside]
            else:
                selected = _numbers(inside) - _limits(inside)[0]
            if len(selected) < len(of_round):
                of_round.fill(-1)
            of_round[selected] = _numbers(members, items, of_round.dtype)
        if self.firsts is not None:
            spans, item_of = _bridged(spans, item_of)
        return Pool(spans=_listed(spans), item_of=item_of, items=items)

    def _by_round(
        self, positions: I64 | range
    ) -> Iterator[tuple[int, int, slice | I64, slice | I64]]:
        """Sort ascending positions by round and group: (group, round, indices into `positions`,
        offsets).

        Positions that are evenly apart, like those of a rank, need no sorting, because their groups
        alternate.
        """
        evenly = as_range(positions, self.groups)
        if evenly and self.groups % evenly.step == 0:
            return self._in_turn(evenly, self.groups // evenly.step)
        return self._sorted_by_round(as_array(positions))

    def _sorted_by_round(self, positions: I64) -> Iterator[tuple[int, int, I64, I64]]:
        """Sort any positions by round and group, as `_by_round` does."""
        groups = self.groups
        offset, group = np.divmod(positions, groups)
        round_ = self._round_of(offset, self._group_lanes)
        inside = offset - self._rows_before_round(round_) * self._group_lanes
        # small keys are sorted faster
        least = int(round_.min()) if len(positions) else 0
        keys, members = grouped((round_ - least) * groups + group)
        for key, of_key in zip(keys.tolist(), members, strict=True):
            yield int(key % groups), least + int(key // groups), of_key, inside[of_key]

    def _in_turn(self, positions: range, turns: int) -> Iterator[tuple[int, int, slice, slice]]:
        """Cut positions whose groups alternate every `turns` by round, as `_by_round` does."""
        begin, group = np.divmod(as_array(positions[:turns]), self.groups)
        end = begin + (len(positions) - np.arange(len(begin)) + turns - 1) // turns
        by_group = np.argsort(group).tolist()
        ends = np.array([begin.min(), end.max() - 1])
        rounds = self._round_of(ends, self._group_lanes).tolist()
        for number in range(rounds[0], rounds[1] + 1):
            offsets = self._group_lanes * self._rows_before_round(np.array([number, number + 1]))
            border = int(offsets[0])
            firsts = np.maximum(begin, border)
            lasts = np.minimum(end, offsets[1])
            for turn in by_group:
                first = int(firsts[turn])
                last = int(lasts[turn])
                since = int(begin[turn])
                if first < last:
                    of_turn = slice(
                        turn + (first - since) * turns, turn + (last - 1 - since) * turns + 1, turns
                    )
                    yield int(group[turn]), number, of_turn, slice(first - border, last - border)

    def locate(self, line_positions: I64) -> tuple[I64, I64]:
        at, rows = split_at(self.line, line_positions)
        return self.blocks[at], rows if self.firsts is None else rows + self.firsts[at]

    def positions_of_rows(self, blocks: I64, rows: I64) -> tuple[I64, I64]:
        """Return the one (index of the row asked for, position) of each row that the line holds."""
        first = np.searchsorted(self.blocks, blocks, side="left", sorter=self._by_block)
        last = np.searchsorted(self.blocks, blocks, side="right", sorter=self._by_block)
        which, turn = count_out(last - first)  # several where the line is made of parts of blocks
        along = self._by_block[first[which] + turn]
        if self.firsts is None:
            inside = rows[which]
        else:
            inside = rows[which] - self.firsts[along]
        on_line = (inside >= 0) & (inside < np.diff(self.line)[along])
        which = which[on_line]
        line_positions = (self.line[along] + inside)[on_line]
        # of lanes that begin together the last has rows
        by_start = np.lexsort((self.lane_rows, self.lane_starts))
        lane = by_start[
            np.searchsorted(self.lane_starts[by_start], line_positions, side="right") - 1
        ]
        offset = self._row_of_lane(lane, line_positions)
        group = lane % self.groups
        if self.shuffle:
            round_ = self._round_of(offset, 1)
            boundaries = self._rows_before_round(np.stack([round_, round_ + 1]))
            inside = line_positions - self._segments(lane, *boundaries)[0]
            inside += self._rows_before(group, round_, lane // self.groups)
            offset = self._shuffled_offsets(group, round_, inside)
        return which, offset * self.groups + group

    def _shuffled_offsets(self, group: I64, round_: I64, inside: I64) -> I64:
        """Return the offsets in their groups of rows that lie at `inside` of unshuffled rounds."""
        offset = self._rows_before_round(round_) * self._group_lanes
        keys, members = grouped(round_ * self.groups + group)
        numbers, groups = np.divmod(keys, self.groups)
        counts = self._rows_before(groups, numbers, self.lanes // self.groups)
        rounds = zip(groups.tolist(), numbers.tolist(), counts.tolist(), members, strict=True)
        for of_group, number, count, in_round in rounds:
            if self.costs is None:
                key = derive_key(self.seed, "round", self.epoch, of_group, number)
                offset[in_round] += inverse_permutation(key, count, inside[in_round])
                continue
            lanes = self._lanes_of_round(of_group, number)
            mixed = self._permuted(of_group, number, *lanes)
            turns = np.empty_like(mixed)
            turns[mixed] = np.arange(len(mixed))
            offset[in_round] += turns[inside[in_round]]
        return offset

    def _rows_before(self, group: I64, round_: I64, among: I64 | int) -> I64:
        """Count the rows of the first `among` lanes of a group's round.

        The first lanes of a group have one row more.
        """
        short, longer = np.divmod(self.group_rows[group], self._group_lanes)
        long_lanes = np.minimum(among, longer)
        before = self._rows_before_round(round_)
        left = short - before
        window = self._rows_before_round(round_ + 1) - before
        short_rows, every_length = (np.clip(rows, 0, window) for rows in (left, left + 1))
        return np.asarray(long_lanes * every_length + (among - long_lanes) * short_rows, np.int64)

    @cached_property
    def _by_block(self) -> I64:
        """The entries of the line, sorted by block number."""
        return np.argsort(self.blocks, kind="stable")

    def reads(self, first: I64, last: I64) -> Reads:
        """Return the blocks that each run of positions first, first + D, ..

        last needs for its rounds.

        A block that a lane border cuts appears once per lane.
        """
        per_group = self.lanes // self.groups
        run = np.repeat(np.arange(len(first), dtype=np.int64), per_group)
        lane = (first % self.groups)[:, None] + self.groups * np.arange(per_group, dtype=np.int64)
        rounds = self._round_of(np.stack([first, last]) // self.groups, per_group)
        rounds[1] += 1
        begin, end = self._rows_before_round(rounds)[:, :, None]
        starts, ends = (rows.ravel() for rows in self._segments(lane, begin, end))
        not_empty = starts < ends
        span, along = expand(starts[not_empty], ends[not_empty], self.line)
        holds_rows = self.line[along + 1] > self.line[along]
        span = span[holds_rows]
        block = self.blocks[along[holds_rows]]
        return Reads(run[not_empty][span], block, np.zeros(len(block), np.int64))

    @cached_property
    def first_window_rows(self) -> int:
        if not self.shuffle:
            return max(1, self.rows)  # in the order of the files, one round is as good as many
        return first_window_rows(lanes=self.lanes, window_rows=self.window_rows, rows=self.rows)

    @property
    def _group_lanes(self) -> int:
        """The number of lanes of a group."""
        return self.lanes // self.groups

    def _rows_before_round(self, round_: I64) -> I64:
        """Return the rows of a lane before each round."""
        before = self.first_window_rows + (round_ - 1) * self.window_rows
        return np.where(round_ > 0, before, 0)

    def _round_of(self, offset: I64, lanes: int) -> I64:
        """Return the round of each row of a sequence that takes rows of `lanes` lanes."""
        first = lanes * self.first_window_rows
        return np.maximum(-1, (offset - first) // (lanes * self.window_rows)) + 1

    def _lanes_of_round(self, group: int, round_: int) -> tuple[I64, I64]:
        """Return (first place on the line, rows) of each lane of a group's round, int64 [L / D]."""
        lanes = slice(group, None, self.groups)
        first_row, last_row = self._rows_before_round(np.array([round_, round_ + 1])).tolist()
        starts, stops = self._segments(lanes, first_row, last_row)
        return starts, stops - starts

    def _permuted(self, group: int, round_: int, starts: I64, counts: I64) -> I64:
        """Return the permutation of a group's round, whose lanes are given: int64 [rows].

        It lists which row of these lanes, laid end to end, is delivered first, second, …
        """
        rows = int(counts.sum())
        mixed = self._large_round.get((group, round_))
        if mixed is None:
            mixed = permutation(derive_key(self.seed, "round", self.epoch, group, round_), rows)
            if self.costs is not None:
                costs = self.costs.between(*self.rows_between(starts, starts + counts))
                begin, end = self._rows_before_round(np.array([round_, round_ + 1])).tolist()
                lane_positions = int(np.clip(self.lane_rows.min() - begin, 0, end - begin))
                # as many as every group can fill
                runs = lane_positions * len(counts) // self.run_rows
                key = runs_key(self.seed, self.epoch, round_)
                mixed = balanced(mixed, costs, runs=runs, run_rows=self.run_rows, key=key)
            # a small split asks for its only round in pieces
            if rows > _LARGE_ROUND_ROWS or self.costs is not None:
                self._large_round.clear()
                self._large_round[group, round_] = mixed
        return mixed

    def rows_between(self, starts: I64, stops: I64) -> Pieces:
        """Return stretches of the line as (block number, first row, stop row), none empty; int64,
        parallel.
        """
        starts, stops = starts[starts < stops], stops[starts < stops]
        span, along = expand(starts, stops, self.line)
        lows = np.maximum(starts[span], self.line[along])
        ends = np.minimum(stops[span], self.line[along + 1])
        not_empty = lows < ends
        along = along[not_empty]
        lows = lows[not_empty]
        ends = ends[not_empty]
        if self.firsts is None:
            shift = self.line[along]
        else:
            shift = self.line[along] - self.firsts[along]
        return self.blocks[along], lows - shift, ends - shift


@dataclass(frozen=True, slots=True, eq=False)
class LocatedRows:
    """Rows of blocks in any order: item i is row `index[i]` of the pieces laid end to end.

    index: int64 [items]; a row may be there several times.
    """

    spans: list[Piece]
    index: I64


def span_rows(blocks: I64, rows: I64) -> LocatedRows:
    """Return the range of rows of each block that items need, each block once; item i is row
    rows[i] of block blocks[i].
    """
    needed, which = np.unique(blocks, return_inverse=True)
    starts = np.full(len(needed), np.iinfo(np.int64).max)
    stops = np.zeros(len(needed), np.int64)
    np.minimum.at(starts, which, rows)
    np.maximum.at(stops, which, rows + 1)
    offsets = offsets_from_lengths(stops - starts)
    spans = list(zip(needed.tolist(), starts.tolist(), stops.tolist(), strict=True))
    return LocatedRows(spans, rows - starts[which] + offsets[which])


def item_type(items: int) -> type[np.int32 | np.int64]:
    """Return the type that numbers this many items; half as wide, they take half of the time."""
    if items < 1 << 31:
        return np.int32
    return np.int64


def as_range(numbers: I64 | range, alone: int) -> range | None:
    """Return the range that ascending numbers are, or None; one number has the step `alone`."""
    if isinstance(numbers, range):
        return numbers
    if not len(numbers):
        return None
    step = alone
    if len(numbers) > 1:
        step = int(numbers[1] - numbers[0])
    first = int(numbers[0])
    last = int(numbers[-1])
    if step <= 0 or last - first != step * (len(numbers) - 1):
        return None
    # in pieces, as fresh memory for the differences would take longer than to compare them
    for begin in range(0, len(numbers), _ROWS_IN_CACHE):
        part = numbers[begin : begin + _ROWS_IN_CACHE + 1]
        if not (part[1:] - part[:-1] == step).all():
            return None
    return range(first, last + 1, step)


def _listed(spans: Pieces) -> list[Piece]:
    """Return pieces as a list."""
    return list(zip(*(numbers.tolist() for numbers in spans), strict=True))


def _bridged(spans: Pieces, item_of: Ints) -> tuple[Pieces, Ints]:
    """Join pieces that lie close in a block, as each has a fixed cost; rows between have no item.

    item_of: of each row of the pieces, end to end.
    """
    blocks, starts, stops = spans
    gaps = starts[1:] - stops[:-1]
    joins = (np.diff(blocks) == 0) & (gaps >= 0) & (gaps <= _BRIDGED_ROWS)
    shift = offsets_from_lengths(np.where(joins, gaps, 0))
    bridged = np.full(len(item_of) + int(shift[-1]), -1, item_of.dtype)
    bridged[np.arange(len(item_of)) + np.repeat(shift, stops - starts)] = item_of
    is_first = np.append(True, ~joins)
    is_last = np.append(~joins, True)
    return (blocks[is_first], starts[is_first], stops[is_last]), bridged


def _limits(numbers: slice | I64) -> tuple[int, int]:
    """Return the least number and the one after the largest."""
    if isinstance(numbers, slice):
        return numbers.start, numbers.stop
    return int(numbers.min()), int(numbers.max()) + 1


def _numbers(
    numbers: slice | I64, stop: int | None = None, dtype: npt.DTypeLike = np.int64
) -> Ints:
    """Return the numbers of a slice, which may be open where they end before `stop`."""
    if isinstance(numbers, slice):
        return np.arange(*numbers.indices(numbers.stop if stop is None else stop), dtype=dtype)
    return numbers


def expand(starts: I64, ends: I64, line: I64) -> tuple[I64, I64]:
    """Return every overlapping pair of (span, entry of the line); spans [begin, end) are
    not empty.
    """
    first = np.searchsorted(line, starts, side="right") - 1
    counts = np.searchsorted(line, ends - 1, side="right") - first
    span, turn = count_out(counts)
    return span, first[span] + turn


def epoch_order(
    rows: I64,
    identities: U64,
    *,
    numbers: I64 | None = None,
    costs: RowCosts | None = None,
    run_rows: int = 1,
    **settings: Unpack[OrderSettings],
) -> EpochOrder:
    """Build the order of one epoch from the rows [B] and identities [B, 3] of its blocks.

    numbers: of the blocks; None counts from 0. costs, run_rows: see `EpochOrder`. Without shuffle
    the blocks keep their natural order, each lane is a group of its own, and `groups` is ignored.
    """
    blocks = np.arange(len(rows), dtype=np.int64)
    # by the keyed hash of their identity; equal hashes keep the natural order
    if settings["shuffle"]:
        key = derive_key(settings["seed"], "blocks", settings["epoch"])
        high = np.empty(len(identities), np.uint64)
        low = np.empty(len(identities), np.uint64)
        for begin in range(0, len(identities), _ROWS_IN_CACHE):
            part = slice(begin, begin + _ROWS_IN_CACHE)
            high[part], low[part] = hash_words(key, identities[part])
        blocks = np.lexsort((low, high)).astype(np.int64)
    else:
        settings["groups"] = settings["lanes"]
    if numbers is None:
        along = blocks
    else:
        along = numbers[blocks]
    return EpochOrder(
        blocks=along,
        line=offsets_from_lengths(rows[blocks]),
        costs=costs,
        run_rows=run_rows,
        **settings,
    )


def grouped(groups: I64) -> tuple[I64, list[Any]]:
    """Return the distinct numbers, ascending, and the ascending indices of each; a slice if there
    is one number.
    """
    if not len(groups):
        return groups, []
    if groups[0] == groups[-1] and (groups == groups[0]).all():
        return groups[:1], [slice(None)]
    small = int(groups.max()) < 1 << 16  # numpy sorts 16-bit numbers by their digits, in one pass
    by_group = np.argsort(groups.astype(np.uint16) if small else groups, kind="stable")
    cuts = np.flatnonzero(np.diff(groups[by_group])) + 1
    members = np.split(by_group, cuts)
    return groups[[indices[0] for indices in members]], members


def distinct_numbers(which: I64) -> Iterator[tuple[int, Any]]:
    """Yield each distinct number, ascending, with the indices where it occurs, as `grouped` gives
    them.
    """
    numbers, members = grouped(which)
    return zip(numbers.tolist(), members, strict=True)
