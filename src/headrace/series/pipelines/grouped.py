"""One pipeline, fitted for every entity on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from headrace.errors import InputError
from headrace.series.pipelines.fitted import Fitted, Part, merge
from headrace.series.pipelines.frame_pipeline import FramePipeline
from headrace.series.pipelines.frames import Rows, as_polars, rows_of
from headrace.series.pipelines.frozen import from_bytes, to_bytes
from headrace.series.pipelines.settings import Strategy
from headrace.series.pipelines.sklearn_objects import to_sklearn
from headrace.series.pipelines.step_data import StepData, steps_of


class GroupedPipeline(FramePipeline):
    """Scales columns of a table with numbers of each row's own entity.

    pipeline: steps as data, or scikit-learn's objects. columns: those it scales, others stay. group_identifier: column
    of the entity. Tables are polars', pandas' or Arrow's, and come back as what they were; nulls and NaN stay missing.
    An entity that was not fitted is an `InputError`: unscaled rows are never handed out.
    """

    headrace_strategy: ClassVar[Strategy] = "per_group"

    def __init__(self, pipeline: Any, columns: Sequence[str], group_identifier: str = "gauge_id") -> None:
        super().__init__(pipeline, columns)
        self.group_identifier = group_identifier

    @classmethod
    def of_part(cls, part: Part, group_identifier: str = "gauge_id") -> GroupedPipeline:
        """A fitted one."""
        made = cls(steps_of(part.steps), part.columns, group_identifier)
        made._part = part
        return made

    @property
    def entities(self) -> tuple[str, ...]:
        """The entities that it was fitted for, ascending. Raises `SettingsError` before `fit`."""
        return self.part.entities or ()

    def fit(self, frame: Any) -> GroupedPipeline:
        """Fit every entity of the table, anew; itself. Raises `InputError` where a column has nothing to fit on."""
        self._part = self._fitted(frame).parts[0]
        return self

    def add(self, frame: Any) -> GroupedPipeline:
        """Fit the entities of one more table; itself. Raises `InputError` for an entity that was fitted before."""
        if self._part is None:
            return self.fit(frame)
        more = self._fitted(frame)
        twice = sorted(set(self.entities).intersection(more.parts[0].entities or ()))
        if twice:
            raise InputError(
                f"column {self.group_identifier!r}: entity {twice[0]!r} was fitted before, like {len(twice) - 1} others"
                " of this table; give all rows of an entity at once, or fit anew with fit"
            )
        self._part = merge([Fitted((self._part,)), more]).parts[0]
        return self

    def sklearn(self, entity: str) -> Any:
        """The fitted scikit-learn Pipeline of one entity. Raises `InputError` for one that was not fitted."""
        return to_sklearn(self.part, entity)

    def _rows(self, frame: Any) -> Rows:
        return rows_of(as_polars(frame), self.columns, self.group_identifier)

    def __reduce__(self) -> Any:
        plain = (list(self.steps), list(self.columns), self.group_identifier)
        return (_grouped, (None if self._part is None else to_bytes(self._part), *plain))


def _grouped(fitted: bytes | None, steps: list[StepData], columns: list[str], group: str) -> GroupedPipeline:
    made = GroupedPipeline(steps, columns, group)
    made._part = None if fitted is None else from_bytes(fitted)
    return made
