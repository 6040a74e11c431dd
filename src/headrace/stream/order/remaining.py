"""Describe the rest of an epoch as ranges of positions, read as one sequence, and divide it among
ranks. Pure.

A fresh epoch is the single range [0, N). If ranks have whole shards, claim blocks or pack rows, a
stop leaves ranges below the position, and a stop in a resumed pass leaves ranges of these. All of
that is one sorted list of ranges. Laid end to end they form the sequence that ranks stride over, so
a resume needs no divisibility rule. Cost is O(ranges).

Rank r of R takes the places v = r (mod R) of the sequence, batch_size at a time. Global step k is
the places [k*G, (k+1)*G) with G = R * batch_size, so every rank takes the same number of steps,
whatever the shards look like.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from headrace.arrays import I64, as_array, offsets_from_lengths, ranges
from headrace.errors import SettingsError, StreamError, setting


def split_at(starts: I64, numbers: I64) -> tuple[I64, I64]:
    """Return which range each number is in, and its offset inside, for ranges that start at
    `begins`.
    """
    which = np.searchsorted(starts, numbers, side="right") - 1
    return which, numbers - starts[which]


def count_out(counts: I64) -> tuple[I64, I64]:
    """Repeat each index by its count, and number the repetitions from 0."""
    which = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
    return which, ranges(0, counts)


def even_parts(total: int, parts: int) -> I64:
    """Divide a total into parts that differ by at most one, the larger ones first; int64
    [parts].
    """
    short, longer = divmod(total, parts)
    return short + (np.arange(parts, dtype=np.int64) < longer)


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """The positions of an epoch that nobody has received, in order.

    rows: N, the rows of the whole epoch.
    ranges: [start, stop) of positions; sorted, not empty, not adjacent, so that equal states have
    equal ranges.
    """

    rows: int
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def everything(cls, rows: int) -> Remaining:
        """Make an epoch of `rows` rows before its first batch."""
        return cls(rows=rows, ranges=((0, rows),) if rows else ())

    @classmethod
    def of(cls, rows: int, *, position: int, holes: Iterable[tuple[int, int]]) -> Remaining:
        """Make `holes` below `position` plus `position`..`rows`; holes are sorted and disjoint (see
        `state`).
        """
        parts = np.array([*holes, (position, rows)], np.int64).reshape(-1, 2)
        return cls(rows=rows, ranges=_joined(parts[:, 0], parts[:, 1]))

    @classmethod
    def of_positions(cls, rows: int, positions: I64) -> Remaining:
        """Make the rest from positions, ascending, each once."""
        return cls(rows=rows, ranges=_joined(positions, positions + 1))

    @property
    def position(self) -> int:
        """The position from which everything to the end of the epoch remains."""
        if self._has_tail:
            return self.ranges[-1][0]
        return self.rows

    @property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """The ranges below `position` that remain too."""
        if self._has_tail:
            return self.ranges[:-1]
        return self.ranges

    @property
    def first(self) -> int:
        """The lowest remaining position; N if nothing remains."""
        if self.ranges:
            return self.ranges[0][0]
        return self.rows

    @cached_property
    def total(self) -> int:
        """M, the number of remaining positions."""
        return int(self._before[-1])

    def positions(self, indices: I64) -> I64:
        """Return the positions at these places of the sequence; places int64 in [0, M) → positions,
        same shape.
        """
        if len(self.ranges) == 1:
            return indices + self.ranges[0][0]
        part, inside = split_at(self._before, indices)
        return self._starts[part] + inside

    def positions_of_run(self, indices: range) -> I64 | range:
        """Return the positions at places that are evenly apart [n > 0], as a range if one range
        holds them.
        """
        ends, _ = split_at(self._before, np.array([indices[0], indices[-1]], np.int64))
        if ends[0] == ends[1]:
            shift = int(self._starts[ends[0]] - self._before[ends[0]])
            return range(indices.start + shift, indices.stop + shift, indices.step)
        return self.positions(as_array(indices))

    def indices_of(self, positions: I64) -> I64:
        """Return the places of these positions in the sequence, -1 if received already: the inverse
        of `positions`.
        """
        if not self.ranges:
            return np.full(len(positions), -1, np.int64)
        part, inside = split_at(self._starts, positions)
        return np.where(
            (part >= 0) & (positions < self._stops[part]), self._before[part] + inside, -1
        )

    def counts_below(self, positions: I64) -> I64:
        """Count the remaining positions below each position: the place where it is, or would be."""
        if not self.ranges:
            return np.zeros(len(positions), np.int64)
        part, _ = split_at(self._starts, positions)
        return np.where(
            part < 0,
            0,
            self._before[part] + np.minimum(positions, self._stops[part]) - self._starts[part],
        )

    def count_below(self, position: int) -> int:
        """Count the remaining positions below one position."""
        return int(self.counts_below(np.array([position], np.int64))[0])

    def keep(self, starts: I64, stops: I64) -> Remaining:
        """Keep only these [start, stop) places of the sequence; they are sorted and disjoint, and
        cut to M.
        """
        starts = np.minimum(starts, self.total)
        stops = np.minimum(stops, self.total)
        starts, stops = starts[starts < stops], stops[starts < stops]
        if not len(starts):
            return Remaining(rows=self.rows, ranges=())
        # A kept run of places may cross several ranges: cut it at every border first.
        cuts = self._before[1:-1]
        at = np.searchsorted(starts, cuts, side="right") - 1
        cuts = cuts[(at >= 0) & (cuts > starts[at]) & (cuts < stops[at])]
        starts = np.sort(np.concatenate([starts, cuts]))
        stops = np.sort(np.concatenate([stops, cuts]))
        first = self.positions(starts)
        return Remaining(rows=self.rows, ranges=_joined(first, first + (stops - starts)))

    @cached_property
    def _starts(self) -> I64:
        return np.array([start for start, _ in self.ranges], np.int64)

    @cached_property
    def _stops(self) -> I64:
        return np.array([stop for _, stop in self.ranges], np.int64)

    @cached_property
    def _before(self) -> I64:
        return offsets_from_lengths(self._stops - self._starts)

    @property
    def _has_tail(self) -> bool:
        return bool(self.ranges) and self.ranges[-1][1] == self.rows


def _joined(starts: I64, stops: I64) -> tuple[tuple[int, int], ...]:
    """Merge sorted disjoint ranges that touch, and drop empty ones."""
    starts, stops = starts[starts < stops], stops[starts < stops]
    if not len(starts):
        return ()
    separate = starts[1:] > stops[:-1]
    first = np.concatenate([[True], separate])
    last = np.concatenate([separate, [True]])
    return tuple(zip(starts[first].tolist(), stops[last].tolist(), strict=True))


Remainder = Literal["pad", "drop", "exact"]


def resolve_remainder(remainder: Remainder | None, ranks: int) -> Remainder:
    """Choose how to handle the last, incomplete step: as requested, else "exact" for one rank and
    "pad" for several.
    """
    if remainder is None:
        if ranks == 1:
            return "exact"
        return "pad"
    if remainder == "exact" and ranks > 1:
        raise SettingsError(
            f"{setting('remainder', 'exact')} gives a last batch that not every reader has; here"
            f" are {ranks} ranks",
            remedy='use "pad" (nothing lost, see batch["valid"]) or "drop"',
        )
    return remainder


def count_steps(rows_left: int, *, ranks: int, batch_size: int, remainder: Remainder) -> int:
    """Count the batches that every rank gets from `rows_left` rows."""
    steps, left_over = divmod(rows_left, ranks * batch_size)
    if remainder == "drop" or left_over == 0:
        return steps
    return steps + 1


@dataclass(frozen=True, kw_only=True)
class RankRows:
    """The places of the remaining sequence that one rank takes: begin, begin + stride, …, item by
    item.

    Items 0..rows-1 are rows of its own. Items rows..items-1 only fill the last step of "pad": they
    repeat its last row, or the place `filler` if it has none. origin: the position from which its
    window rounds count.
    """

    begin: int
    stride: int
    batch_size: int
    steps: int
    rows: int
    items: int
    filler: int
    origin: int = 0

    def index_of(self, item: int) -> int:
        """Return the place that an item takes."""
        if self.rows:
            return self.begin + self.stride * min(item, self.rows - 1)
        return self.filler

    def run(self, start: int, stop: int) -> range:
        """Return the places of the own items start..stop-1, ascending."""
        stop = min(stop, self.rows)
        return range(self.begin + self.stride * start, self.begin + self.stride * stop, self.stride)

    def indices(self, start: int, stop: int) -> I64:
        """Return the places of the own items start..stop-1: int64, ascending."""
        return as_array(self.run(start, stop))

    def items_below(self, index: int) -> int:
        """Count the own items below a place."""
        return min(self.rows, max(0, -(-(index - self.begin) // self.stride)))


def rank_rows_of(
    rows_left: int, *, rank: int, ranks: int, batch_size: int, remainder: Remainder
) -> RankRows:
    """Return the share of one rank; over all ranks the own items are each delivered place once."""
    steps = count_steps(rows_left, ranks=ranks, batch_size=batch_size, remainder=remainder)
    rows = max(0, -(-(min(rows_left, steps * ranks * batch_size) - rank) // ranks))
    return RankRows(
        begin=rank,
        stride=ranks,
        batch_size=batch_size,
        steps=steps,
        rows=rows,
        items=steps * batch_size if remainder == "pad" else rows,
        filler=rank % max(1, rows_left),
    )


def advance(
    remaining: Remaining, batches: int, *, ranks: int, batch_size: int, remainder: Remainder
) -> Remaining:
    """Return what remains after every rank has received `batches` batches.

    Raises `StreamError` if there are fewer.
    """
    steps = count_steps(remaining.total, ranks=ranks, batch_size=batch_size, remainder=remainder)
    check_batches(batches, steps)
    begin = np.array([batches * ranks * batch_size], np.int64)
    return remaining.keep(begin, np.array([remaining.total], np.int64))


def check_batches(batches: int, steps: int) -> None:
    """Raise `StreamError` if a pass of `steps` batches per rank cannot have delivered `batches`."""
    if not 0 <= batches <= steps:
        raise StreamError(
            f"the pass has {steps} batches on each rank",
            setting="batches",
            value=batches,
            remedy="pass the number that this rank received since the pass began",
        )
