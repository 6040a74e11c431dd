"""Provide a pipeline that is fitted for every entity separately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import polars as pl

from headrace.errors import InputError
from headrace.series.arrays.steps import StepData
from headrace.series.pipelines.fitted import Fitted, from_bytes, merge
from headrace.series.pipelines.objects import to_sklearn
from headrace.series.pipelines.settings import Strategy
from headrace.series.pipelines.unified import FramePipeline, Rows, check_column, matrix_of


class GroupedPipeline(FramePipeline):
    """A pipeline that scales table columns with the numbers of each row's entity.

    pipeline: steps as data, or scikit-learn's objects.
    columns: the columns that it scales; others stay.
    group_identifier: the entity column.

    Tables are polars, pandas or Arrow, and are returned as the same kind; nulls and NaN stay missing. An entity that
    was not fitted raises `InputError`: unscaled rows are never returned.
    """

    headrace_strategy: ClassVar[Strategy] = "per_group"

    def __init__(self, pipeline: Any, columns: Sequence[str], group_identifier: str = "gauge_id") -> None:
        super().__init__(pipeline, columns)
        self.group_identifier = group_identifier

    @property
    def entities(self) -> tuple[str, ...]:
        """The fitted entities, ascending. Raises `SettingsError` before `fit`."""
        return self.part.entities or ()

    def add(self, frame: Any) -> Self:
        """Fit the entities of another table, and return the pipeline itself.

        Raises `InputError` for an entity that was fitted before.
        """
        if self._part is None:
            return self.fit(frame)
        more = self._fitted(frame)
        twice = sorted(set(self.entities).intersection(more.parts[0].entities or ()))
        if twice:
            raise InputError(
                f"column {self.group_identifier!r}: entity {twice[0]!r} was fitted before, like {len(twice) - 1} others"
                " of this table; give all rows of an entity at once, or fit again with fit"
            )
        self._part = merge([Fitted((self._part,)), more]).parts[0]
        return self

    def sklearn(self, entity: str) -> Any:
        """Return the fitted scikit-learn Pipeline of one entity. Raises `InputError` for one that was not fitted."""
        return to_sklearn(self.part, entity)

    def _rows(self, frame: pl.DataFrame) -> Rows:
        """Sort rows by entity, keeping their order within it. Raises `InputError` for rows without an entity."""
        matrix = matrix_of(frame, self.columns)
        check_column(frame, self.group_identifier)
        names = frame[self.group_identifier].cast(pl.String)
        if names.null_count():
            raise InputError(f"column {self.group_identifier!r}: {names.null_count()} rows have no entity; name them")
        codes = names.rank("dense").to_numpy().astype(np.int64) - 1
        order = np.argsort(codes, kind="stable")
        offsets = np.append(0, np.cumsum(np.bincount(codes))).astype(np.int64)
        return Rows(matrix[order], offsets, names.unique().sort().to_list(), order)

    def __reduce__(self) -> Any:
        return (_grouped, (*self._plain(), self.group_identifier))


def _grouped(fitted: bytes | None, steps: list[StepData], columns: list[str], group: str) -> GroupedPipeline:
    made = GroupedPipeline(steps, columns, group)
    made._part = None if fitted is None else from_bytes(fitted)
    return made
