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

from headrace.arrays import I64
from headrace.errors import StreamError
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


def _numbers(values: Any) -> bool:
    return isinstance(values, Sequence) and all(type(value) is int and value >= 0 for value in values)
