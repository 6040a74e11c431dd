"""Orders that are made of others, and the simplest of them: whole shards for each rank. Pure.

A position, and a place, of a joined order is one of a member, so most questions are those of the members, put together.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Unpack

import numpy as np

from headrace.arrays import I64, U64
from headrace.digest import derive_key
from headrace.stream.order.epoch import Order, OrderSettings, Pool, Reads, epoch_order


class JoinedOrder(Order):
    """An order whose positions and places are those of its members."""

    @abstractmethod
    def _split(self, positions: I64, /) -> tuple[I64, I64]:
        """(number of the member, position in the member) of each position."""

    @abstractmethod
    def _member(self, number: int) -> tuple[Order, int]:
        """A member, and where its places begin."""

    @abstractmethod
    def _split_places(self, places: I64, /) -> tuple[I64, I64]:
        """(number of the member, place in the member) of each place."""

    def line_of(self, positions: I64) -> I64:
        which, inside = self._split(positions)
        places = np.empty_like(positions)
        for number, members in each_number(which):
            order, base = self._member(number)
            places[members] = base + order.line_of(inside[members])
        return places

    def locate(self, places: I64) -> tuple[I64, I64]:
        which, inside = self._split_places(places)
        blocks, rows = np.empty_like(places), np.empty_like(places)
        for number, members in each_number(which):
            blocks[members], rows[members] = self._member(number)[0].locate(inside[members])
        return blocks, rows

    def pieces_of(self, positions: I64) -> Pool:
        which, inside = self._split(positions)
        pieces: list[tuple[int, int, int]] = []
        index, laid = np.empty_like(positions), 0
        for number, members in each_number(which):
            found = self._member(number)[0].pieces_of(inside[members])
            if len(members) == len(positions):
                return found
            index[members] = laid + (np.arange(found.items) if found.index is None else found.index)
            pieces += found.pieces
            laid += found.rows
        return Pool(pieces=pieces, index=index, items=len(positions))


def split_at(bases: I64, numbers: I64) -> tuple[I64, I64]:
    """(which range it is in, how far inside) of each number, where the ranges begin at `bases`."""
    which = np.searchsorted(bases, numbers, side="right") - 1
    return which, numbers - bases[which]


def each_number(which: I64) -> Iterator[tuple[int, I64]]:
    """The distinct numbers, ascending, and the places where each stands."""
    for number in np.unique(which).tolist():
        yield number, np.flatnonzero(which == number)


@dataclass(frozen=True, kw_only=True, eq=False)
class RegionOrder(JoinedOrder):
    """One order for each rank, end to end: the positions follow the lines of `parts`, so it has one lane and group.

    window_rows: rows of a part that are shuffled among themselves, over all its lanes.
    """

    parts: tuple[Order, ...]

    @cached_property
    def bases(self) -> I64:
        """The position, and the place, at which each part begins, then N."""
        return np.cumsum([0, *(part.rows for part in self.parts)]).astype(np.int64)

    @property
    def rows(self) -> int:
        return int(self.bases[-1])

    def _split(self, positions: I64, /) -> tuple[I64, I64]:
        return split_at(self.bases, positions)

    _split_places = _split

    def _member(self, number: int) -> tuple[Order, int]:
        return self.parts[number], int(self.bases[number])

    def positions_of_row(self, block: int, row: int) -> I64:
        positions = zip(self.bases.tolist(), self.parts, strict=False)
        return np.concatenate([base + part.positions_of_row(block, row) for base, part in positions])

    def reads(self, first: I64, last: I64) -> Reads:
        found = [np.empty((3, 0), np.int64)]
        for base, part in zip(self.bases.tolist(), self.parts, strict=False):
            runs = np.flatnonzero((first < base + part.rows) & (last >= base))
            begin = np.maximum(first[runs] - base, 0)[:, None] + np.arange(part.groups)
            end = np.broadcast_to(np.minimum(last[runs] - base, part.rows - 1)[:, None], begin.shape)
            held = begin <= end
            owner = np.broadcast_to(runs[:, None], begin.shape)[held]
            begin, end = begin[held], end[held]
            run, block, laying = part.reads(begin, end - (end - begin) % part.groups)
            found.append(np.stack([owner[run], block, laying]))
        return Reads(*np.unique(np.concatenate(found, axis=1), axis=1))


def lay_regions(
    block_rows: I64, identities: U64, rank_of_block: I64, *, ranks: int, **settings: Unpack[OrderSettings]
) -> RegionOrder:
    """The order of an epoch in which each rank has whole shards. O(blocks log blocks)."""
    by_rank = np.argsort(rank_of_block, kind="stable")
    parts = []
    for rank, numbers in enumerate(np.split(by_rank, np.searchsorted(rank_of_block[by_rank], np.arange(1, ranks)))):
        own: OrderSettings = {**settings, "seed": derive_key(settings["seed"], "region", rank)[0]}
        parts.append(epoch_order(block_rows[numbers], identities[numbers], numbers=numbers, **own))
    together = parts[0].lanes * parts[0].window_rows
    return RegionOrder(parts=tuple(parts), lanes=1, window_rows=together, groups=1, shuffle=settings["shuffle"])
