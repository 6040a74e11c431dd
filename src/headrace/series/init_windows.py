"""Which features would starve the windows: missing so often that few windows would be whole with them.

Windows are counted in the rows that would train, of the entities that were looked at, for a window of a usual length.
What lies behind the cut has no say in which columns are chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.arrays import F64, I64, Bools
from headrace.formats.dates import MISSING
from headrace.series.arrays import gaps
from headrace.series.arrays.axis import DAY_US, Frequency, place
from headrace.series.arrays.cuts import cut
from headrace.series.observed import Observed

_DAYS_OF_SHORT_STEPS = 14  # of a window, where steps are shorter than a day; else it takes a year
_LEAST = 0.5  # of the windows that the target alone allows


@dataclass(frozen=True)
class Starved:
    """Features that would starve windows of `steps` steps.

    left_out: feature → windows that are whole with it alone. possible: windows that the target alone allows; before,
    after: windows with all features, and without those that are left out.
    """

    steps: int
    left_out: dict[str, int]
    possible: int
    before: int
    after: int

    def __str__(self) -> str:
        told = ", ".join(f"{name} ({count:,})" for name, count in self.left_out.items())
        return (
            f"of {self.possible:,} windows of {self.steps:,} steps that could train in what was looked at, few are "
            f"whole with {told}; {self.before:,} with all features, {self.after:,} without"
        )


def train_rows(observed: Sequence[tuple[str, Observed]], frequency: Frequency, train: float) -> list[F64]:
    """The rows of each entity that would train, on its axis: float64 [rows, C], NaN where missing."""
    found = []
    for _, one in observed:
        known = one.times != MISSING
        placed = place(one.times[known], frequency)
        positions, first = np.unique(placed.positions, return_index=True)
        values = np.full((placed.axis.rows, one.values.shape[1]), np.nan)
        values[positions] = one.values[known][placed.rows[first]]
        found.append(values[: cut(~np.isnan(values[:, 0]), train, 0.0).val_row])
    return found


def starved(columns: Sequence[str], trains: Sequence[F64], frequency: Frequency, gap: int) -> Starved | None:
    """What starves windows; None where nothing does. columns: the target, then features; gap: steps that are filled."""
    steps = _window(frequency, trains)
    targets: list[Bools] = [~np.isnan(rows[:, 0]) for rows in trains]
    there = [_there(rows[:, 1:], gap) for rows in trains]
    names = list(columns[1:])

    def whole(features: Sequence[int]) -> int:
        return sum(_windows(rows[:, list(features)], own, steps) for rows, own in zip(there, targets, strict=True))

    possible, before = whole([]), whole(range(len(names)))
    if not names or before >= _LEAST * possible:
        return None
    alone = [whole([at]) for at in range(len(names))]
    kept = [at for at in range(len(names)) if alone[at] >= _LEAST * possible]
    while len(kept) > 1 and whole(kept) < _LEAST * possible:
        kept.remove(min(kept, key=lambda at: (alone[at], names[at])))
    left_out = {names[at]: alone[at] for at in range(len(names)) if at not in kept}
    return Starved(steps, left_out, possible, before, whole(kept))


def _window(frequency: Frequency, trains: Sequence[F64]) -> int:
    usual = frequency.steps_per_year
    if frequency.micros and frequency.micros < DAY_US:
        usual = _DAYS_OF_SHORT_STEPS * DAY_US / frequency.micros
    third = float(np.median([len(rows) for rows in trains])) / 3 if trains else 0.0
    return max(2, int(min(usual, third)))


def _there(values: F64, gap: int) -> Bools:
    """Which values there are when short gaps are filled."""
    filled = values.copy()
    found = gaps.find(np.isnan(filled))
    gaps.fill(filled, found.take(found.length <= gap))
    return ~np.isnan(filled)


def _windows(there: Bools, target: Bools, steps: int) -> int:
    """Windows of `steps` rows that have all values, and end with a target."""
    if len(there) < steps:
        return 0
    bad: I64 = np.concatenate([[0], np.cumsum(~there.all(axis=1))])
    return int(np.count_nonzero((bad[steps:] == bad[:-steps]) & target[steps - 1 :]))
