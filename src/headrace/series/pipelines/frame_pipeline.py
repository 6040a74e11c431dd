"""What pipelines over data frames have in common, whether fitted once for all rows or for each entity."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from headrace.errors import SettingsError
from headrace.series.pipelines.fitted import Fitted, Part, fit
from headrace.series.pipelines.frames import Rows, put_back
from headrace.series.pipelines.settings import PipelineSettings, Strategy
from headrace.series.pipelines.step_data import StepData


class FramePipeline(ABC):
    """Scales columns of a table; what is fitted is a `Part`. How its rows are grouped is said by a subclass."""

    headrace_strategy: ClassVar[Strategy]

    def __init__(self, pipeline: Any, columns: Sequence[str]) -> None:
        self._settings = PipelineSettings(strategy=self.headrace_strategy, pipeline=pipeline, columns=tuple(columns))
        self._part: Part | None = None

    @property
    def steps(self) -> tuple[StepData, ...]:
        """The steps as data."""
        return self._settings.pipeline

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it scales."""
        return self._settings.columns or ()

    @property
    def is_fitted(self) -> bool:
        """Whether `fit` has been called, or it was taken from a run."""
        return self._part is not None

    @property
    def part(self) -> Part:
        """What was fitted. Raises `SettingsError` before `fit`."""
        if self._part is None:
            raise SettingsError("the pipeline is not fitted; call fit first, with the rows that train")
        return self._part

    def transform(self, frame: Any) -> Any:
        """The table with scaled columns, float64; rows, order and other columns as they were.

        Raises `SettingsError` before `fit`, `InputError` for columns that are missing or hold no numbers.
        """
        rows = self._rows(frame)
        return put_back(
            frame, self.columns, rows, self.part.apply(rows.matrix, rows.offsets, rows.entities, np.float64)
        )

    def inverse_transform(self, frame: Any) -> Any:
        """The table with its scaled columns in their own units, float64. Raises as `transform`."""
        rows = self._rows(frame)
        return put_back(frame, self.columns, rows, self.part.invert(rows.matrix, rows.offsets, rows.entities))

    @abstractmethod
    def _rows(self, frame: Any) -> Rows:
        """The scaled columns of a table, its entities end to end."""

    def _fitted(self, frame: Any) -> Fitted:
        rows = self._rows(frame)
        strategy = self.headrace_strategy
        return fit([self._settings], self.columns, rows.matrix, rows.offsets, rows.entities, strategy=strategy)
