"""One pipeline, fitted once for all entities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.errors import SettingsError
from headrace.recipes.series.pipelines.fitted import Part, fit
from headrace.recipes.series.pipelines.frames import as_polars, put_back, rows_of
from headrace.recipes.series.pipelines.frozen import from_bytes, to_bytes
from headrace.recipes.series.pipelines.settings import PipelineSettings
from headrace.recipes.series.pipelines.sklearn_objects import to_sklearn
from headrace.recipes.series.pipelines.step_data import StepData, steps_of


class UnifiedPipeline:
    """Scales columns of a table with the same numbers for every row.

    pipeline: steps as data, or scikit-learn's objects. columns: those it scales, others stay. Tables are polars',
    pandas' or Arrow's, and come back as what they were; nulls and NaN stay missing.
    """

    headrace_strategy = "unified"

    def __init__(self, pipeline: Any, columns: Sequence[str]) -> None:
        self._settings = PipelineSettings(strategy="unified", pipeline=pipeline, columns=tuple(columns))
        self._part: Part | None = None

    @classmethod
    def of_part(cls, part: Part) -> UnifiedPipeline:
        """A fitted one."""
        made = cls(steps_of(part.steps), part.columns)
        made._part = part
        return made

    @property
    def steps(self) -> tuple[StepData, ...]:
        """The steps as data."""
        return self._settings.pipeline

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it scales."""
        return self._settings.columns or ()

    @property
    def part(self) -> Part:
        """What was fitted. Raises `SettingsError` before `fit`."""
        if self._part is None:
            raise SettingsError("the pipeline is not fitted; call fit first, with the rows that train")
        return self._part

    def fit(self, frame: Any) -> UnifiedPipeline:
        """Fit on all rows of the table, anew; itself."""
        rows = rows_of(as_polars(frame), self.columns, None)
        fitted = fit([self._settings], self.columns, rows.matrix, rows.offsets, rows.entities, strategy="unified")
        self._part = fitted.parts[0]
        return self

    def transform(self, frame: Any) -> Any:
        """The table with scaled columns, float64."""
        rows = rows_of(as_polars(frame), self.columns, None)
        return put_back(
            frame, self.columns, rows, self.part.apply(rows.matrix, rows.offsets, rows.entities, np.float64)
        )

    def inverse_transform(self, frame: Any) -> Any:
        """The table with its scaled columns in their own units."""
        rows = rows_of(as_polars(frame), self.columns, None)
        return put_back(frame, self.columns, rows, self.part.invert(rows.matrix, rows.offsets, rows.entities))

    def sklearn(self) -> Any:
        """The fitted scikit-learn Pipeline."""
        return to_sklearn(self.part, None)

    def __reduce__(self) -> Any:
        plain = (list(self.steps), list(self.columns))
        return (_unified, (None if self._part is None else to_bytes(self._part), *plain))


def _unified(fitted: bytes | None, steps: list[StepData], columns: list[str]) -> UnifiedPipeline:
    made = UnifiedPipeline(steps, columns)
    made._part = None if fitted is None else from_bytes(fitted)
    return made
