"""The global order of an epoch: position g = 0..N-1 → one row. Pure.

1. The blocks, permuted by a keyed hash of (seed, epoch, block identity) and laid end to end, are a line of N places.
2. The line is cut into L lanes; the first N mod L lanes are one row longer.
3. Inside a lane, each window of `window_rows` places is permuted by its own key.
4. Position g is in lane g mod L, at g div L of it.

The order is a function of the index, seed, epoch, L and window_rows: not of ranks, workers, threads or batch size.
Building it costs O(blocks); a question about n positions costs O(n) plus the windows it touches, each made alone.

`Order` is what plans, readers and questions ask of an order. Other orders are made of this one: see `mixed`, `relaned`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U64
from headrace.dataset.index import SplitIndex
from headrace.digest import derive_key, hash_texts, hash_words, permutation

_NAME_KEY = derive_key(0, "block identity")
_HASH_ROWS = 1 << 14  # one part's hash state stays in the processor's cache


class Reads(NamedTuple):
    """Blocks that runs of positions need, an entry for each run and block; int64, parallel.

    run: place in the list of runs; block: block number; laying: tells the times apart that an epoch repeats a block.
    """

    run: I64
    block: I64
    laying: I64


@dataclass(frozen=True, slots=True)
class Pieces:
    """Rows of blocks that hold what some positions ask for: item i is row index[i] of the pieces laid end to end.

    pieces: (block number, first row, stop row), none empty, a block maybe more than once; index: int64 [n], None: all
    rows of the pieces as they lie.
    """

    pieces: list[tuple[int, int, int]]
    index: I64 | None

    @property
    def rows(self) -> int:
        """How many rows the pieces have together."""
        return sum(stop - start for _, start, stop in self.pieces)


class Order(Protocol):
    """One epoch's order of rows: positions 0..rows-1, places on a line of blocks, rows in blocks.

    Consumers whose number divides `lanes` need different blocks; positions of one round, lanes * window_rows, are
    shuffled among themselves, so whoever reads round by round needs few blocks at a time.
    """

    @property
    def rows(self) -> int:
        """The positions there are."""

    @property
    def lanes(self) -> int:
        """L: positions of one residue modulo L follow the line."""

    @property
    def window_rows(self) -> int:
        """Rows of a lane that are shuffled among themselves."""

    @property
    def shuffle(self) -> bool:
        """Whether rows are shuffled at all."""

    def line_of(self, positions: I64) -> I64:
        """The place on the line of each position; int64, same length."""

    def locate(self, places: I64) -> tuple[I64, I64]:
        """(block number, row inside the block) of each place on the line."""

    def positions_of_row(self, block: int, row: int) -> I64:
        """Every position at which a row is delivered, ascending; none or several where an epoch is no whole pass."""

    def reads(self, first: I64, last: I64) -> Reads:
        """The blocks that each run of positions first, first + L, .. last needs for its windows."""

    def pieces_of(self, positions: I64) -> Pieces:
        """What holds the rows of ascending positions [n > 0]."""


def block_identities(index: SplitIndex) -> U64:
    """A stable identity of each block, from shard name and place in the shard alone: uint64 [B, 3].

    Independent of seed and epoch, and of which other shards there are.
    """
    high, low = hash_texts(_NAME_KEY, pa.array(index.shards, pa.large_string()))
    return np.column_stack([high[index.shard_of_block], low[index.shard_of_block], index.block.astype(np.uint64)])


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochOrder:
    """One epoch's order of rows.

    blocks: block numbers along the line, int64 [B]; line: first place of each, then N, int64 [B+1].
    """

    blocks: I64
    line: I64
    seed: int
    epoch: int
    lanes: int
    window_rows: int
    shuffle: bool

    @property
    def rows(self) -> int:
        """N, the rows of the epoch."""
        return int(self.line[-1])

    def lane_starts(self, lanes: I64) -> I64:
        """The first place on the line of each lane; lane number L gives N."""
        short, longer = divmod(self.rows, self.lanes)
        return lanes * short + np.minimum(lanes, longer)

    def line_of(self, positions: I64) -> I64:
        """The place on the line of each position; int64 in [0, N) → int64, same length."""
        lane, offset = positions % self.lanes, positions // self.lanes
        if not self.shuffle:
            return self.lane_starts(lane) + offset
        window = offset // self.window_rows
        inside = offset - window * self.window_rows
        shuffled = np.empty_like(offset)
        groups, members = _grouped(window * self.lanes + lane)
        for group, of_group in zip(groups.tolist(), members, strict=True):
            shuffled[of_group] = self._window(group % self.lanes, group // self.lanes)[inside[of_group]]
        return self.lane_starts(lane) + window * self.window_rows + shuffled

    def pieces_of(self, positions: I64) -> Pieces:
        """What holds the rows of ascending positions [n > 0]: the windows they lie in.

        Windows are whole; without shuffle, the rows between the first and the last asked for of a lane.
        """
        offset = positions // self.lanes
        lane = positions - offset * self.lanes
        inside, group = offset, lane
        if self.shuffle:
            window = offset // self.window_rows
            inside = offset - window * self.window_rows
            group = (window - window[0]) * self.lanes + lane
        groups, members = _grouped(group)
        starts, stops = np.empty(len(groups), np.int64), np.empty(len(groups), np.int64)
        index = np.empty(len(positions), np.int64)
        lane_starts = self.lane_starts(np.arange(self.lanes + 1, dtype=np.int64))
        base = 0
        for number, of_group in enumerate(members):
            within = inside[of_group]
            if self.shuffle:
                one = int(groups[number])
                at_lane, at_window = one % self.lanes, one // self.lanes + int(window[0])
                shuffled = self._window(at_lane, at_window)
                index[of_group] = base + shuffled[within]
                first, rows = at_window * self.window_rows, len(shuffled)
            else:
                at_lane = int(groups[number])
                first, rows = int(within[0]), int(within[-1] - within[0]) + 1
                index[of_group] = within + (base - first)
            starts[number] = lane_starts[at_lane] + first
            stops[number] = starts[number] + rows
            base += rows
        as_it_lies = not self.shuffle and len(groups) == 1 and base == len(positions)
        return Pieces(self._pieces(starts, stops), None if as_it_lies else index)

    def locate(self, places: I64) -> tuple[I64, I64]:
        """(block number, row inside the block) of each place on the line."""
        at = np.searchsorted(self.line, places, side="right") - 1
        return self.blocks[at], places - self.line[at]

    def places_of(self, blocks: I64, rows: I64) -> I64:
        """The inverse of `locate`: the place on the line of each (block number, row inside the block)."""
        along = np.empty_like(self.blocks)
        along[self.blocks] = np.arange(len(self.blocks), dtype=np.int64)
        return self.line[along[blocks]] + rows

    def positions_of(self, places: I64) -> I64:
        """The inverse of `line_of`: the position of each place on the line; int64 in [0, N) → int64, same length."""
        starts = self.lane_starts(np.arange(self.lanes + 1, dtype=np.int64))
        lane = np.searchsorted(starts[:-1], places, side="right") - 1
        offset = places - starts[lane]
        if self.shuffle:
            window, inside = np.divmod(offset, self.window_rows)
            groups, member = np.unique(window * self.lanes + lane, return_inverse=True)
            offset = np.empty_like(places)
            for number, group in enumerate(groups.tolist()):
                of_window = member == number
                shuffled = self._window(group % self.lanes, group // self.lanes)
                back = np.empty_like(shuffled)
                back[shuffled] = np.arange(len(shuffled), dtype=np.int64)
                offset[of_window] = group // self.lanes * self.window_rows + back[inside[of_window]]
        return offset * self.lanes + lane

    def positions_of_row(self, block: int, row: int) -> I64:
        """The one position at which a row is delivered: int64 [1]."""
        return self.positions_of(self.places_of(np.array([block], np.int64), np.array([row], np.int64)))

    def reads(self, first: I64, last: I64) -> Reads:
        """The blocks that each run of positions first, first + L, .. last needs for its windows.

        A block that a lane border cuts appears once for each lane.
        """
        begins, ends = self.spans(first, last)
        run, along = expand(begins, ends, self.line)
        holds_rows = self.line[along + 1] > self.line[along]
        run, block = run[holds_rows], self.blocks[along[holds_rows]]
        return Reads(run, block, np.zeros(len(block), np.int64))

    def spans(self, first: I64, last: I64) -> tuple[I64, I64]:
        """[begin, end) on the line of the windows that each run of positions needs."""
        lane = first % self.lanes
        starts, stops = self.lane_starts(lane), self.lane_starts(lane + 1)
        begins = starts + first // self.lanes // self.window_rows * self.window_rows
        ends = starts + (last // self.lanes // self.window_rows + 1) * self.window_rows
        return begins, np.minimum(ends, stops)

    def _pieces(self, starts: I64, stops: I64) -> list[tuple[int, int, int]]:
        """Stretches of the line, none empty, as rows of blocks; blocks without rows are in none."""
        pieces = []
        firsts = np.searchsorted(self.line, starts, side="right") - 1
        lasts = np.searchsorted(self.line, stops, side="left") - 1
        for start, stop, first, last in zip(
            starts.tolist(), stops.tolist(), firsts.tolist(), lasts.tolist(), strict=True
        ):
            for along in range(first, last + 1):
                begin, end = int(self.line[along]), int(self.line[along + 1])
                if begin < end:
                    pieces.append((int(self.blocks[along]), max(start, begin) - begin, min(stop, end) - begin))
        return pieces

    def _window(self, lane: int, window: int) -> I64:
        lane_rows = int(np.diff(self.lane_starts(np.array([lane, lane + 1], np.int64)))[0])
        rows = min(self.window_rows, lane_rows - window * self.window_rows)
        return permutation(derive_key(self.seed, "window", self.epoch, lane, window), rows)


def pieces_one_by_one(order: Order, positions: I64) -> Pieces:
    """`Order.pieces_of` of any order, place by place: of each block the rows from the first to the last asked for."""
    places = order.line_of(positions)
    numbers, rows = order.locate(places)
    blocks, which = np.unique(numbers, return_inverse=True)
    along = np.full(len(blocks), np.iinfo(np.int64).max)
    np.minimum.at(along, which, places)
    by_place = np.argsort(along)  # blocks are fetched as they lie on the line
    rank = np.empty_like(by_place)
    rank[by_place] = np.arange(len(by_place))
    return span_rows(blocks[by_place], rank[which], rows)


def span_rows(blocks: I64, which: I64, rows: I64) -> Pieces:
    """Of each block the rows from the first to the last asked for: item i is row rows[i] of blocks[which[i]]."""
    starts = np.full(len(blocks), np.iinfo(np.int64).max)
    stops = np.zeros(len(blocks), np.int64)
    np.minimum.at(starts, which, rows)
    np.maximum.at(stops, which, rows + 1)
    begins = np.cumsum(stops - starts) - (stops - starts)
    pieces = list(zip(blocks.tolist(), starts.tolist(), stops.tolist(), strict=True))
    return Pieces(pieces, rows - starts[which] + begins[which])


def expand(begins: I64, ends: I64, line: I64) -> tuple[I64, I64]:
    """Every (span, entry of the line) that overlap; spans [begin, end) are not empty."""
    first = np.searchsorted(line, begins, side="right") - 1
    counts = np.searchsorted(line, ends - 1, side="right") - first
    span = np.repeat(np.arange(len(begins), dtype=np.int64), counts)
    return span, np.arange(len(span)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)


def epoch_order(
    rows: I64, identities: U64, *, seed: int, epoch: int, lanes: int, window_rows: int, shuffle: bool
) -> EpochOrder:
    """The order of one epoch from the rows [B] and identities [B, 3] of its blocks.

    Without shuffle the blocks keep their natural order and each lane is read from its first row to its last.
    """
    blocks = np.arange(len(rows), dtype=np.int64)
    if shuffle:
        blocks = _shuffled_blocks(derive_key(seed, "blocks", epoch), identities)
    line = np.concatenate([[0], np.cumsum(rows[blocks])]).astype(np.int64)
    return EpochOrder(
        blocks=blocks, line=line, seed=seed, epoch=epoch, lanes=lanes, window_rows=window_rows, shuffle=shuffle
    )


def _grouped(groups: I64) -> tuple[I64, list[Any]]:
    """The distinct numbers, ascending, and the places where each stands, ascending: a slice if it is the only one."""
    if not len(groups):
        return groups, []
    if groups[0] == groups[-1] and (groups == groups[0]).all():
        return groups[:1], [slice(None)]
    small = int(groups.max()) < 1 << 16  # numpy sorts 16-bit numbers by their digits, in one pass
    by_group = np.argsort(groups.astype(np.uint16) if small else groups, kind="stable")
    cuts = np.flatnonzero(np.diff(groups[by_group])) + 1
    members = np.split(by_group, cuts)
    return groups[[each[0] for each in members]], members


def _shuffled_blocks(key: tuple[int, int], identities: U64) -> I64:
    """Block numbers sorted by the keyed hash of their identity; equal hashes keep the natural order."""
    high, low = np.empty(len(identities), np.uint64), np.empty(len(identities), np.uint64)
    for begin in range(0, len(identities), _HASH_ROWS):
        part = slice(begin, begin + _HASH_ROWS)
        high[part], low[part] = hash_words(key, identities[part])
    return np.lexsort((low, high)).astype(np.int64)
