"""Whole shards for each rank: the global order as one order of its own for each, end to end. Pure.

Rank r has the positions [base_r, base_r + n_r), its region, and takes them one after the other. Steps are equal all the
same: with "pad" as many as the longest region needs, with "drop" as many as the shortest one fills. What is left after
a stop is a range of each region. Another number of ranks takes what is left, laid end to end, in equal parts: every
stop leaves equal parts of these again, so a state needs no word of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headrace.arrays import I64, U64
from headrace.digest import derive_key
from headrace.errors import StreamError
from headrace.stream.order.epoch import EpochOrder, Pieces, Reads, epoch_order, expand
from headrace.stream.order.remaining import Remaining
from headrace.stream.order.share import Remainder, Share, check_batches


@dataclass(frozen=True, kw_only=True)
class Regions:
    """Who has which positions, for one number of ranks; goes into the state.

    distribution: how shards were given out; rows: n_r of each rank.
    assignment: the rank of each shard, where names, seed and epoch do not tell.
    """

    distribution: str
    rows: tuple[int, ...]
    assignment: tuple[int, ...] | None = None

    @cached_property
    def bases(self) -> I64:
        """Where each region begins, then N: int64 [C+1]."""
        return np.concatenate([[0], np.cumsum(np.array(self.rows, np.int64))]).astype(np.int64)

    def bounds(self, remaining: Remaining, ranks: int) -> I64:
        """The places of what remains at which the part of each rank begins, then the end: int64 [R + 1]."""
        if ranks != len(self.rows):
            short, longer = divmod(remaining.total, ranks)
            rows = short + (np.arange(ranks) < longer)
            return np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        return np.array([remaining.count_below(base) for base in self.bases.tolist()], np.int64)

    def steps(self, remaining: Remaining, *, ranks: int, batch_size: int, remainder: Remainder) -> int:
        """Batches that every rank gets."""
        left = np.diff(self.bounds(remaining, ranks))
        return int((left // batch_size).min() if remainder == "drop" else (-(-left // batch_size)).max())

    def shares(self, remaining: Remaining, *, ranks: int, batch_size: int, remainder: Remainder) -> list[RegionShare]:
        """What each rank takes."""
        bounds = self.bounds(remaining, ranks)
        steps = self.steps(remaining, ranks=ranks, batch_size=batch_size, remainder=remainder)
        begins = remaining.positions(np.minimum(bounds[:-1], remaining.total - 1)) if remaining.total else bounds[:-1]
        bases = self.bases[np.searchsorted(self.bases, begins, side="right") - 1].tolist()
        shares = []
        for rank, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
            rows = min(end - begin, steps * batch_size)
            shares.append(
                RegionShare(
                    rank=rank,
                    ranks=ranks,
                    batch_size=batch_size,
                    steps=steps,
                    rows=rows,
                    items=steps * batch_size if remainder == "pad" else rows,
                    rows_left=remaining.total,
                    begin=begin,
                    base=bases[rank],
                )
            )
        return shares

    def advance(
        self, remaining: Remaining, batches: int, *, ranks: int, batch_size: int, remainder: Remainder
    ) -> Remaining:
        """What remains after every rank has received `batches` batches. Raises `StreamError` if there are fewer."""
        steps = self.steps(remaining, ranks=ranks, batch_size=batch_size, remainder=remainder)
        check_batches(batches, steps)
        bounds = self.bounds(remaining, ranks)
        return remaining.keep(np.minimum(bounds[:-1] + batches * batch_size, bounds[1:]), bounds[1:])

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; `from_dict` gives equal regions back."""
        values: dict[str, Any] = {"distribution": self.distribution, "rows": list(self.rows)}
        return values if self.assignment is None else {**values, "assignment": list(self.assignment)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Regions:
        """Read regions back. Raises `StreamError` if these are none."""
        names = {"distribution", "rows"}
        sound = names <= set(values) <= names | {"assignment"} and isinstance(values["distribution"], str)
        if sound and _numbers(values["rows"]) and _numbers(values.get("assignment", [])):
            assignment = values.get("assignment")
            if values["rows"] and all(rank < len(values["rows"]) for rank in assignment or ()):
                return cls(
                    distribution=values["distribution"],
                    rows=tuple(values["rows"]),
                    assignment=None if assignment is None else tuple(assignment),
                )
        raise StreamError("stream state: regions are not what state_dict() gave; pass it on unchanged")


@dataclass(frozen=True, kw_only=True)
class RegionShare(Share):
    """The places of one part of what is left. begin: the first of them; base: the position where its region begins."""

    begin: int
    base: int

    @property
    def stride(self) -> int:
        """Its places follow one another."""
        return 1

    @property
    def origin(self) -> int:
        """The position from which its rounds of windows count."""
        return self.base

    def place_of(self, item: int) -> int:
        """The place item takes; a filling item repeats the last row, or one of another rank's."""
        if item < self.rows:
            return self.begin + item
        return self.place_of(self.rows - 1) if self.rows else self.rank % self.rows_left

    def places(self, start: int, stop: int) -> I64:
        """The places of the own items start..stop-1: int64, ascending."""
        return self.begin + np.arange(start, min(stop, self.rows), dtype=np.int64)

    def items_below(self, place: int) -> int:
        """How many own items lie below a place."""
        return min(self.rows, max(0, place - self.begin))


@dataclass(frozen=True, kw_only=True, eq=False)
class RegionOrder:
    """One order for each rank, end to end. parts: the orders; numbers: the blocks of each in the whole index."""

    parts: tuple[EpochOrder, ...]
    numbers: tuple[I64, ...]
    shuffle: bool

    @cached_property
    def bases(self) -> I64:
        """The position, and the place, at which each part begins, then N."""
        return np.cumsum([0, *(part.rows for part in self.parts)]).astype(np.int64)

    @property
    def rows(self) -> int:
        """N, the rows of the epoch."""
        return int(self.bases[-1])

    @property
    def lanes(self) -> int:
        """One: the positions follow the lines of the parts, but for the lanes and rounds inside them."""
        return 1

    @property
    def groups(self) -> int:
        """One: a region is read as a whole."""
        return 1

    @property
    def window_rows(self) -> int:
        """Rows of a part that are shuffled among themselves, over all its lanes."""
        return self.parts[0].lanes * self.parts[0].window_rows

    def line_of(self, positions: I64) -> I64:
        """The place on the line of each position; int64 in [0, N) → int64, same length."""
        which = np.searchsorted(self.bases, positions, side="right") - 1
        places = np.empty_like(positions)
        for number in np.unique(which).tolist():
            members = which == number
            base = self.bases[number]
            places[members] = base + self.parts[number].line_of(positions[members] - base)
        return places

    def pieces_of(self, positions: I64) -> Pieces:
        """What holds the rows of ascending positions [n > 0]: the windows of the parts they lie in."""
        which = np.searchsorted(self.bases, positions, side="right") - 1
        pieces: list[tuple[int, int, int]] = []
        index, base = np.empty_like(positions), 0
        for number in np.unique(which).tolist():
            members = which == number
            found = self.parts[number].pieces_of(positions[members] - self.bases[number])
            among = np.arange(int(members.sum()), dtype=np.int64) if found.index is None else found.index
            index[members] = base + among
            pieces += [(int(self.numbers[number][block]), start, stop) for block, start, stop in found.pieces]
            base += found.rows
        return Pieces(pieces, index)

    def locate(self, places: I64) -> tuple[I64, I64]:
        """(block number, row inside the block) of each place on the line."""
        which = np.searchsorted(self.bases, places, side="right") - 1
        blocks, rows = np.empty_like(places), np.empty_like(places)
        for number in np.unique(which).tolist():
            members = which == number
            inside, rows[members] = self.parts[number].locate(places[members] - self.bases[number])
            blocks[members] = self.numbers[number][inside]
        return blocks, rows

    def positions_of_row(self, block: int, row: int) -> I64:
        """The one position at which a row is delivered: int64 [1]."""
        for base, part, numbers in zip(self.bases.tolist(), self.parts, self.numbers, strict=False):
            inside = int(np.searchsorted(numbers, block))
            if inside < len(numbers) and numbers[inside] == block:
                position: I64 = base + part.positions_of_row(inside, row)
                return position
        raise StreamError(f"block {block}: is in no region of the order; it has {sum(map(len, self.numbers))} blocks")

    def reads(self, first: I64, last: I64) -> Reads:
        """The blocks that each run of positions first .. last needs for its rounds."""
        run, which = expand(first, last + 1, self.bases)
        found = [Reads(*(np.empty(0, np.int64) for _ in range(3)))]
        for number in np.unique(which).tolist():
            part, base, runs = self.parts[number], int(self.bases[number]), run[which == number]
            if not part.rows:
                continue
            begin = np.maximum(first[runs] - base, 0)[:, None] + np.arange(part.groups)
            end = np.minimum(last[runs] - base, part.rows - 1)[:, None]
            held = begin <= end
            owner = np.broadcast_to(runs[:, None], begin.shape)[held]
            begin, end = begin[held], np.broadcast_to(end, begin.shape)[held]
            each, block, laying = part.reads(begin, end - (end - begin) % part.groups)
            found.append(Reads(owner[each], self.numbers[number][block], laying))
        reads = np.stack([np.concatenate(parts) for parts in zip(*found, strict=True)])
        return Reads(*np.unique(reads, axis=1))


def lay_regions(
    block_rows: I64,
    identities: U64,
    rank_of_block: I64,
    *,
    ranks: int,
    seed: int,
    epoch: int,
    lanes: int,
    window_rows: int,
    groups: int,
    shuffle: bool,
) -> RegionOrder:
    """The order of an epoch in which each rank has whole shards. O(blocks log blocks)."""
    by_rank = np.argsort(rank_of_block, kind="stable")
    numbers = np.split(by_rank, np.searchsorted(rank_of_block[by_rank], np.arange(1, ranks)))
    parts = tuple(
        epoch_order(
            block_rows[each],
            identities[each],
            seed=derive_key(seed, "region", rank)[0],
            epoch=epoch,
            lanes=lanes,
            window_rows=window_rows,
            groups=groups,
            shuffle=shuffle,
        )
        for rank, each in enumerate(numbers)
    )
    return RegionOrder(parts=parts, numbers=tuple(numbers), shuffle=shuffle)


def _numbers(values: Any) -> bool:
    return isinstance(values, Sequence) and all(type(value) is int and value >= 0 for value in values)
