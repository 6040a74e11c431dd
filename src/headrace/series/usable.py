"""Count the windows that rows would give, and what each column costs, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.arrays import F32, I64
from headrace.errors import InputError
from headrace.report.words import many_entities
from headrace.series.arrays.axis import Axis
from headrace.series.clean import clean
from headrace.series.settings import Series
from headrace.series.store import calendar_rows
from headrace.series.tables import TableStore, stored_columns
from headrace.series.times import Observed, put_on_clock
from headrace.series.windows.windows import WindowOptions, windows_of

# Example lengths of inputs and horizon, by the least number of steps a year.
_LENGTHS = (
    (8_000.0, (168, 24)),
    (200.0, (28, 7)),
    (40.0, (26, 4)),
    (10.0, (12, 3)),
    (3.0, (8, 2)),
    (0.0, (5, 1)),
)
_NAMED = 3  # columns in a message


@dataclass(frozen=True)
class ColumnCost:
    """The windows that a column alone costs. missing_share: of its values, in 0 to 1."""

    windows: int
    column: str
    missing_share: float


@dataclass(frozen=True)
class Usable:
    """The windows of an example length that rows give; `str` says it in a line.

    per_entity: windows of each entity that passes. possible: windows if no value were missing.
    costs: of columns, the most expensive first. failed: entities that are left out, and why.
    absent_share: share of steps without a row, of entities that pass.
    """

    options: WindowOptions
    per_entity: Mapping[str, int]
    possible: int
    costs: Sequence[ColumnCost]
    failed: Mapping[str, str]
    absent_share: float

    def __str__(self) -> str:
        lengths = f"{self.options.input_length} + {self.options.output_length}"
        total = sum(self.per_entity.values())
        words = f"{total:,} of {self.possible:,} windows of {lengths} steps are usable"
        for cost in self.costs[:_NAMED]:
            words += f", {cost.column} ({cost.missing_share:.0%} missing) costs {cost.windows:,}"
        without = [name for name, count in self.per_entity.items() if not count]
        if without:
            words += f"; {len(without):,} of {many_entities(len(self.per_entity))}"
            words += f" have none, such as {without[0]}"
        if self.failed:
            name, why = next(iter(self.failed.items()))
            words += f"; {many_entities(len(self.failed))} would be left out, such as {name}: {why}"
        return words


def count_usable(settings: Series, observed: Mapping[str, Observed]) -> Usable:
    """Clean the rows of entities as a run does, and count windows of an example length.

    The length depends on the step: days have 28 steps of input and a horizon of 7.
    """
    axes: dict[str, Axis] = {}
    matrices: list[F32] = []
    failed: dict[str, str] = {}
    steps = 0
    absent = 0
    for entity, rows in observed.items():
        try:
            cleaned = clean(settings, put_on_clock(settings, rows), entity)
        except InputError as error:
            failed[entity] = str(error)
            continue
        axes[entity] = cleaned.axis
        steps += cleaned.axis.rows
        absent += cleaned.added_rows
        calendar = calendar_rows(settings, cleaned.axis)
        matrices.append(np.hstack([cleaned.values, calendar]).astype(np.float32))
    options = _example(settings)
    counter = _Counter(settings, options, axes)
    usable = counter.count(matrices)
    possible = int(counter.count([np.zeros_like(matrix) for matrix in matrices]).sum())
    return Usable(
        options,
        dict(zip(axes, usable.tolist(), strict=True)),
        possible,
        _costs(settings, counter, matrices, possible),
        failed,
        absent / max(1, steps),
    )


def _example(settings: Series) -> WindowOptions:
    lengths = (1, 1)
    for least, example in reversed(_LENGTHS):
        if settings.step.steps_per_year >= least:
            lengths = example
    return WindowOptions(input_length=lengths[0], output_length=lengths[1])


@dataclass(frozen=True)
class _Counter:
    """Counts the windows of entities with these axes."""

    settings: Series
    options: WindowOptions
    axes: Mapping[str, Axis]

    def count(self, matrices: Sequence[F32]) -> I64:
        """Return the number of windows of each entity: int64 [E]."""
        if not matrices:
            return np.zeros(0, np.int64)
        store = TableStore(stored_columns(self.settings), self.axes, matrices)
        return windows_of(store, "all", self.options).per_entity


def _costs(
    settings: Series, counter: _Counter, matrices: Sequence[F32], possible: int
) -> list[ColumnCost]:
    """Return what each column costs alone, the most expensive first."""
    if not matrices:
        return []
    costs = []
    missing = np.isnan(np.concatenate(matrices)).mean(axis=0)
    for number in np.flatnonzero(missing).tolist():
        alone = []
        for matrix in matrices:
            only = np.zeros_like(matrix)
            only[:, number] = matrix[:, number]
            alone.append(only)
        lost = possible - int(counter.count(alone).sum())
        if lost:
            costs.append(ColumnCost(lost, settings.columns[number], float(missing[number])))
    return sorted(costs, key=lambda cost: (-cost.windows, cost.column))
