"""Find the complete windows in many entities' rows, as segments instead of a list of windows. Pure.

A window that starts at row s has its inputs in rows s..s+L-1 and its horizon in rows s+L..s+L+H-1.
Every run of missing rows forbids a range of starts, one range for each role that rows have in a
window. One sweep over the borders of these ranges finds the starts that an entity's rows allow and
no range forbids. It costs O(gaps log gaps + entities), whatever the number of windows. Missing
values are found by one pass in pieces that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from headrace.arrays import F32, I64, Bools

Targets = Literal["all", "any", "none"]

_SCAN_VALUES = 1 << 18
_STRETCHES_PER_SEGMENT = 16


@dataclass(frozen=True)
class Runs:
    """Runs of rows starts[i]..ends[i]-1, ascending and separate; int64 [N]."""

    starts: I64
    ends: I64

    @classmethod
    def of_rows(cls, rows: I64) -> Runs:
        """Join ascending, distinct row numbers into runs."""
        if not len(rows):
            return cls(rows, rows)
        last = np.flatnonzero(np.diff(rows) != 1)
        return cls(rows[np.concatenate([[0], last + 1])], rows[np.append(last, len(rows) - 1)] + 1)


NOTHING = Runs(np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True)
class Missing:
    """Positions of missing values in the flat matrix, row × columns + column; ascending int64."""

    positions: I64
    columns: int

    @classmethod
    def find(cls, matrices: Sequence[F32], columns: int) -> Missing:
        """Find all NaN in row-major matrices [rows, columns] whose rows follow one another."""
        positions = [np.empty(0, np.int64)]
        base = 0
        for matrix in matrices:
            flat = matrix.reshape(-1)
            for begin in range(0, len(flat), _SCAN_VALUES):
                positions.append(
                    np.flatnonzero(np.isnan(flat[begin : begin + _SCAN_VALUES])) + (base + begin)
                )
            base += len(flat)
        return cls(np.concatenate(positions), columns)

    def runs(
        self, columns: slice | int | list[int], missing: Literal["some", "all"] = "some"
    ) -> Runs:
        """Find runs of rows in which some or all of these columns are missing."""
        selected = np.zeros(self.columns, bool)
        selected[columns] = True
        row, column = np.divmod(self.positions, self.columns)
        row = row[selected[column]]
        first = np.flatnonzero(np.diff(row, prepend=-1))
        rows = row[first]
        if missing == "all":
            rows = rows[np.diff(first, append=len(row)) == selected.sum()]
        return Runs.of_rows(rows)


@dataclass(frozen=True)
class WindowRuns:
    """Windows by number: segment i holds the count[i] starts first[i], first[i] + stride, ….

    entity: the entity of the rows. All int64 [S], ordered by `first`. Window numbers run through
    the segments in order.
    """

    entity: I64
    first: I64
    count: I64
    stride: int = 1

    @cached_property
    def ends(self) -> I64:
        """Number of windows up to and including each segment; int64 [S]."""
        return np.cumsum(self.count, dtype=np.int64)

    @cached_property
    def _first_segments(self) -> tuple[int, I64]:
        """Return a shift, and the segment of the first window of every 2 ** shift windows."""
        shift = max(
            0, (len(self) // (_STRETCHES_PER_SEGMENT * max(1, len(self.ends)))).bit_length() - 1
        )
        return shift, np.searchsorted(self.ends, np.arange(0, len(self), 1 << shift), side="right")

    def __len__(self) -> int:
        """Number of all windows."""
        if len(self.ends):
            return int(self.ends[-1])
        return 0

    def locate(self, numbers: I64) -> tuple[I64, I64]:
        """Return (start row, entity) of each window number 0..len-1; int64, same length."""
        shift, first_of = self._first_segments
        segment = first_of[numbers >> shift]
        # A binary search for numbers in random order costs a tenth of their gather, so only few of
        # them take it.
        after = np.flatnonzero(self.ends[segment] <= numbers)
        segment[after] = np.searchsorted(self.ends, numbers[after], side="right")
        inside = numbers - (self.ends[segment] - self.count[segment])
        return self.first[segment] + inside * self.stride, self.entity[segment]

    def per_entity(self, entities: int) -> I64:
        """Count the windows of each entity; int64 [entities]."""
        return np.bincount(self.entity, self.count, entities).astype(np.int64)

    def of_entities(self, selected: Bools) -> WindowRuns:
        """Return only the segments of the selected entities; bool [entities]."""
        mask = selected[self.entity]
        return WindowRuns(self.entity[mask], self.first[mask], self.count[mask], self.stride)


def find_valid_sequences(  # noqa: PLR0913, PLR0914 - all are settings
    starts: I64,
    ends: I64,
    *,
    input_length: int,
    output_length: int,
    horizons: Sequence[int] | None = None,
    inputs: Runs = NOTHING,
    future: Runs = NOTHING,
    target: Runs = NOTHING,
    targets: Targets = "all",
    stride: int = 1,
) -> WindowRuns:
    """Find the windows within the entities' rows, starts[e]..ends[e]-1, that miss nothing they
    need.

    inputs: runs of rows that may not be among a window's inputs.
    future: runs of rows that may not be in its horizon.
    target: runs of rows without a target.
    targets: whether "all", "any" or "none" of a window's horizons must have a target.
    horizons: the steps 1..output_length that are predicted; None: all.
    stride: rows between the starts of windows, counted from the first row of an entity's range.
    Entities' ranges are ascending and do not overlap.
    """
    window = input_length + output_length
    blocked = [
        _starts_with(inputs, 0, input_length),
        _starts_with(future, input_length, window),
        *_without_target(
            target,
            targets,
            input_length,
            tuple(horizons or range(1, output_length + 1)),
            output_length,
        ),
    ]
    last = ends - window + 1  # the first start whose window crosses the entity's end
    entity = np.flatnonzero(last > starts)
    allowed = Runs(starts[entity], last[entity])
    limits = np.iinfo(np.int64)
    # The empty range between adjacent entities is a border too, so no remaining range crosses from
    # one to the other.
    outside = Runs(np.append(limits.min, allowed.ends), np.append(allowed.starts, limits.max))
    boundaries, depth = _depth([outside, *blocked])
    free = np.flatnonzero(depth[:-1] == 0)
    first = boundaries[free]
    stop = boundaries[free + 1]
    owner = np.searchsorted(allowed.starts, first, side="right") - 1
    grid = starts[entity[owner]]
    first = grid + -(-(first - grid) // stride) * stride
    count = np.maximum(-(-(stop - first) // stride), 0)
    nonempty = count > 0
    return WindowRuns(entity[owner[nonempty]], first[nonempty], count[nonempty], stride)


def _starts_with(rows: Runs, begin: int, end: int) -> Runs:
    """Return the starts s whose rows s+begin..s+end-1 touch one of these runs; the results may
    overlap.
    """
    if end > begin:
        return Runs(rows.starts - end + 1, rows.ends - begin)
    return NOTHING


def _without_target(
    missing: Runs,
    targets: Targets,
    input_length: int,
    horizons: tuple[int, ...],
    output_length: int,
) -> list[Runs]:
    if targets == "none" or not output_length:
        return []
    steps = [input_length + horizon - 1 for horizon in horizons]
    if targets == "all":
        if len(horizons) == horizons[-1] - horizons[0] + 1:
            return [_starts_with(missing, steps[0], steps[-1] + 1)]
        return [_starts_with(missing, step, step + 1) for step in steps]
    # A window is blocked if all its steps miss their target, that is, at starts forbidden for every
    # step.
    boundaries, depth = _depth([_starts_with(missing, step, step + 1) for step in steps])
    full = np.flatnonzero(depth == len(steps))
    if len(full):
        return [Runs(boundaries[full], boundaries[full + 1])]
    return []


def _depth(ranges: list[Runs]) -> tuple[I64, I64]:
    """Return boundaries, ascending, and the number of ranges that cover the rows from each boundary
    to the next.
    """
    boundaries = np.concatenate([part for runs in ranges for part in (runs.starts, runs.ends)])
    deltas = np.repeat(
        [step for _ in ranges for step in (1, -1)],
        [len(runs.starts) for runs in ranges for _ in (1, -1)],
    )
    # The parts are ascending, so this is nearly a merge; np.unique is far slower.
    order = np.argsort(boundaries, kind="stable")
    boundaries = boundaries[order]
    deltas = deltas[order]
    last = np.append(boundaries[1:] != boundaries[:-1], True)[: len(boundaries)]
    return boundaries[last], np.cumsum(deltas)[last]
