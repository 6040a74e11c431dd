"""One pipeline, fitted for every entity on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.errors import SettingsError
from headrace.recipes.series.pipelines.fitted import Fitted, Part, fit, merge
from headrace.recipes.series.pipelines.frames import as_polars, put_back, rows_of
from headrace.recipes.series.pipelines.frozen import from_bytes, to_bytes
from headrace.recipes.series.pipelines.settings import PipelineSettings
from headrace.recipes.series.pipelines.sklearn_objects import to_sklearn
from headrace.recipes.series.pipelines.step_data import StepData, steps_of


class GroupedPipeline:
    """Scales columns of a table with numbers of each row's own entity.

    pipeline: steps as data, or scikit-learn's objects. columns: those it scales, others stay. group_identifier: column
    of the entity. Tables are polars', pandas' or Arrow's, and come back as what they were; nulls and NaN stay missing.
    An entity that was not fitted is an `InputError`: unscaled rows are never handed out.
    """

    headrace_strategy = "per_group"

    def __init__(self, pipeline: Any, columns: Sequence[str], group_identifier: str = "gauge_id") -> None:
        self._settings = PipelineSettings(strategy="per_group", pipeline=pipeline, columns=tuple(columns))
        self.group_identifier = group_identifier
        self._part: Part | None = None

    @classmethod
    def of_part(cls, part: Part, group_identifier: str = "gauge_id") -> GroupedPipeline:
        """A fitted one."""
        made = cls(steps_of(part.steps), part.columns, group_identifier)
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

    @property
    def entities(self) -> tuple[str, ...]:
        """The entities that it was fitted for, ascending."""
        return self.part.entities or ()

    def fit(self, frame: Any) -> GroupedPipeline:
        """Fit every entity of the table, anew; itself."""
        self._part = self._fitted(frame).parts[0]
        return self

    def add(self, frame: Any) -> GroupedPipeline:
        """Fit the entities of one more table, which must be new ones; itself."""
        fitted = self._fitted(frame)
        self._part = (merge([Fitted((self._part,)), fitted]) if self._part else fitted).parts[0]
        return self

    def transform(self, frame: Any) -> Any:
        """The table with scaled columns, float64."""
        rows = rows_of(as_polars(frame), self.columns, self.group_identifier)
        return put_back(
            frame, self.columns, rows, self.part.apply(rows.matrix, rows.offsets, rows.entities, np.float64)
        )

    def inverse_transform(self, frame: Any) -> Any:
        """The table with its scaled columns in their own units."""
        rows = rows_of(as_polars(frame), self.columns, self.group_identifier)
        return put_back(frame, self.columns, rows, self.part.invert(rows.matrix, rows.offsets, rows.entities))

    def sklearn(self, entity: str) -> Any:
        """The fitted scikit-learn Pipeline of one entity. Raises `InputError` for one that was not fitted."""
        return to_sklearn(self.part, entity)

    def _fitted(self, frame: Any) -> Fitted:
        rows = rows_of(as_polars(frame), self.columns, self.group_identifier)
        return fit([self._settings], self.columns, rows.matrix, rows.offsets, rows.entities, strategy="per_group")

    def __reduce__(self) -> Any:
        plain = (list(self.steps), list(self.columns), self.group_identifier)
        return (_grouped, (None if self._part is None else to_bytes(self._part), *plain))


def _grouped(fitted: bytes | None, steps: list[StepData], columns: list[str], group: str) -> GroupedPipeline:
    made = GroupedPipeline(steps, columns, group)
    made._part = None if fitted is None else from_bytes(fitted)
    return made
