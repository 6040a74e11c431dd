"""One pipeline, fitted once for all entities."""

from __future__ import annotations

from typing import Any, ClassVar

from headrace.series.pipelines.fitted import Part
from headrace.series.pipelines.frame_pipeline import FramePipeline
from headrace.series.pipelines.frames import Rows, as_polars, rows_of
from headrace.series.pipelines.frozen import from_bytes, to_bytes
from headrace.series.pipelines.settings import Strategy
from headrace.series.pipelines.sklearn_objects import to_sklearn
from headrace.series.pipelines.step_data import StepData, steps_of


class UnifiedPipeline(FramePipeline):
    """Scales columns of a table with the same numbers for every row.

    pipeline: steps as data, or scikit-learn's objects. columns: those it scales, others stay. Tables are polars',
    pandas' or Arrow's, and come back as what they were; nulls and NaN stay missing.
    """

    headrace_strategy: ClassVar[Strategy] = "unified"

    @classmethod
    def of_part(cls, part: Part) -> UnifiedPipeline:
        """A fitted one."""
        made = cls(steps_of(part.steps), part.columns)
        made._part = part
        return made

    def fit(self, frame: Any) -> UnifiedPipeline:
        """Fit on all rows of the table, anew; itself. Raises `InputError` where a column has nothing to fit on."""
        self._part = self._fitted(frame).parts[0]
        return self

    def sklearn(self) -> Any:
        """The fitted scikit-learn Pipeline. Raises `SettingsError` before `fit`."""
        return to_sklearn(self.part, None)

    def _rows(self, frame: Any) -> Rows:
        return rows_of(as_polars(frame), self.columns, None)

    def __reduce__(self) -> Any:
        plain = (list(self.steps), list(self.columns))
        return (_unified, (None if self._part is None else to_bytes(self._part), *plain))


def _unified(fitted: bytes | None, steps: list[StepData], columns: list[str]) -> UnifiedPipeline:
    made = UnifiedPipeline(steps, columns)
    made._part = None if fitted is None else from_bytes(fitted)
    return made
