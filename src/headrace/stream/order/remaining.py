"""What is left of an epoch: ranges of positions, read as one sequence. Pure.

An epoch that has not begun is the single range [0, N). A stop in the middle of a worker round leaves holes below the
position; a stop in a resumed round leaves holes inside holes. All of that is one sorted list of ranges. Put end to end
they are the sequence that consumers stride over, so a resume needs no divisibility rule. Cost is O(ranges).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.arrays import I64


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """The positions of an epoch that nobody has received, in order.

    rows: N, the rows of the whole epoch.
    ranges: [start, stop) of positions; sorted, not empty, not touching one another. One state has one form.
    """

    rows: int
    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def everything(cls, rows: int) -> Remaining:
        """An epoch of `rows` rows before its first batch."""
        return cls(rows=rows, ranges=((0, rows),) if rows else ())

    @classmethod
    def of(cls, rows: int, *, position: int, holes: Iterable[tuple[int, int]]) -> Remaining:
        """`holes` below `position`, then `position`..`rows`; holes are sorted and disjoint (see `state`)."""
        parts = np.array([*holes, (position, rows)], np.int64).reshape(-1, 2)
        return cls(rows=rows, ranges=_joined(parts[:, 0], parts[:, 1]))

    @classmethod
    def of_positions(cls, rows: int, positions: I64) -> Remaining:
        """These positions, ascending, each once."""
        return cls(rows=rows, ranges=_joined(positions, positions + 1))

    @property
    def position(self) -> int:
        """Everything from here to the end of the epoch is left."""
        return self.ranges[-1][0] if self._has_tail else self.rows

    @property
    def holes(self) -> tuple[tuple[int, int], ...]:
        """The ranges below `position` that are left too."""
        return self.ranges[:-1] if self._has_tail else self.ranges

    @property
    def first(self) -> int:
        """The lowest position left; N when nothing is left."""
        return self.ranges[0][0] if self.ranges else self.rows

    @cached_property
    def total(self) -> int:
        """M, how many positions are left."""
        return int(self._before[-1])

    def positions(self, places: I64) -> I64:
        """The positions at these places of the sequence; places int64 in [0, M) → positions, same shape."""
        if len(self.ranges) == 1:
            return places + self.ranges[0][0]
        part = np.searchsorted(self._before, places, side="right") - 1
        return self._starts[part] + (places - self._before[part])

    def count_below(self, position: int) -> int:
        """How many positions left are smaller than `position`: the place where it is, or would be."""
        part = int(np.searchsorted(self._starts, position, side="right")) - 1
        if part < 0:
            return 0
        inside = min(position, int(self._stops[part])) - int(self._starts[part])
        return int(self._before[part]) + inside

    def keep(self, starts: I64, stops: I64) -> Remaining:
        """Only these [start, stop) places of the sequence; sorted and disjoint, cut to M."""
        starts, stops = np.minimum(starts, self.total), np.minimum(stops, self.total)
        starts, stops = starts[starts < stops], stops[starts < stops]
        if not len(starts):
            return Remaining(rows=self.rows, ranges=())
        # A kept run of places may cross several ranges: cut it at every border first.
        borders = self._before[1:-1]
        at = np.searchsorted(starts, borders, side="right") - 1
        inside = (at >= 0) & (borders > starts[at]) & (borders < stops[at])
        cuts = borders[inside]
        starts, stops = np.sort(np.concatenate([starts, cuts])), np.sort(np.concatenate([stops, cuts]))
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
        return np.concatenate([[0], np.cumsum(self._stops - self._starts)]).astype(np.int64)

    @property
    def _has_tail(self) -> bool:
        return bool(self.ranges) and self.ranges[-1][1] == self.rows


def _joined(starts: I64, stops: I64) -> tuple[tuple[int, int], ...]:
    """Sorted disjoint ranges without the empty ones, touching ones made one."""
    starts, stops = starts[starts < stops], stops[starts < stops]
    if not len(starts):
        return ()
    apart = starts[1:] > stops[:-1]
    first = np.concatenate([[True], apart])
    last = np.concatenate([apart, [True]])
    return tuple(zip(starts[first].tolist(), stops[last].tolist(), strict=True))
