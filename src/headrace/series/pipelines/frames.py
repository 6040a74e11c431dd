"""Provide pipelines over data frames: one that is fitted once for all rows, and one that is fitted
for every entity.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import polars as pl

from headrace.arrays import F64, I64
from headrace.errors import InputError, SettingsError
from headrace.series.arrays.scalers import Values
from headrace.series.arrays.steps import StepData
from headrace.series.pipelines.fitted import AnyScalers, Fitted, fit, from_bytes, merge, to_bytes
from headrace.series.pipelines.objects import to_sklearn
from headrace.series.pipelines.settings import PipelineSettings, Strategy


@dataclass(frozen=True)
class SortedRows:
    """The rows of a frame sorted by entity.

    matrix: float64 [R, C]; order: the position of each row in the frame.
    """

    matrix: F64
    offsets: I64
    entities: list[str]
    order: I64


class FramePipeline(ABC):
    """A pipeline that scales table columns and holds fitted scalers.

    A subclass defines how rows are grouped.
    """

    headrace_strategy: ClassVar[Strategy]

    def __init__(self, pipeline: Any, columns: Sequence[str]) -> None:
        self._settings = PipelineSettings(
            strategy=self.headrace_strategy, pipeline=pipeline, columns=tuple(columns)
        )
        self._part: AnyScalers | None = None

    @classmethod
    def of_part(cls, part: AnyScalers) -> Self:
        """Make a fitted pipeline from a part."""
        pipeline = cls(list(part.pipeline), part.columns)
        pipeline._part = part
        return pipeline

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
        """Return whether `fit` has been called, or the pipeline was taken from a run."""
        return self._part is not None

    @property
    def part(self) -> AnyScalers:
        """The fitted part. Raises `SettingsError` before `fit`."""
        if self._part is None:
            raise SettingsError(
                "the pipeline is not fitted", remedy="call fit first, with the rows in train"
            )
        return self._part

    def fit(self, frame: Any) -> Self:
        """Fit on all rows of the table, replacing an earlier fit, and return the pipeline itself.

        Raises `InputError` if a column has no value.
        """
        self._part = self._fitted(frame).parts[0]
        return self

    def transform(self, frame: Any) -> Any:
        """Return the table with scaled columns, float64; rows, order and other columns are
        unchanged.

        Raises `SettingsError` before `fit`, `InputError` for columns that are missing or hold no
        numbers.
        """
        rows = self._rows(as_polars(frame))
        values = self.part.apply(rows.matrix, rows.offsets, rows.entities, np.float64)
        return _put_back(frame, self.columns, rows, values)

    def inverse_transform(self, frame: Any) -> Any:
        """Return the table with its scaled columns in their own units, float64.

        Raises as `transform`.
        """
        rows = self._rows(as_polars(frame))
        values = self.part.invert(rows.matrix, rows.offsets, rows.entities)
        return _put_back(frame, self.columns, rows, values)

    @abstractmethod
    def _rows(self, frame: pl.DataFrame) -> SortedRows:
        """Return the scaled columns of a table, sorted by entity."""

    def _fitted(self, frame: Any) -> Fitted:
        rows = self._rows(as_polars(frame))
        strategy = self.headrace_strategy
        return fit(
            [self._settings],
            self.columns,
            rows.matrix,
            rows.offsets,
            rows.entities,
            strategy=strategy,
        )

    def _plain(self) -> tuple[bytes | None, list[StepData], list[str]]:
        """Return a pickle's content as bytes and plain data, the same on every version."""
        if self._part is None:
            fitted = None
        else:
            fitted = to_bytes(self._part)
        return fitted, list(self.steps), list(self.columns)


class UnifiedPipeline(FramePipeline):
    """A pipeline that scales table columns with the same numbers for every row.

    pipeline: steps as data, or scikit-learn's objects.
    columns: the columns that it scales; others stay.

    Tables are polars, pandas or Arrow, and are returned as the same kind; nulls and NaN stay
    missing.
    """

    headrace_strategy: ClassVar[Strategy] = "unified"

    def sklearn(self) -> Any:
        """Return the fitted scikit-learn Pipeline. Raises `SettingsError` before `fit`."""
        return to_sklearn(self.part, None)

    def _rows(self, frame: pl.DataFrame) -> SortedRows:
        matrix = matrix_of(frame, self.columns)
        return SortedRows(
            matrix, np.array([0, len(matrix)], np.int64), ["all"], np.arange(len(matrix))
        )

    def __reduce__(self) -> Any:
        return (_unified, self._plain())


def _unified(fitted: bytes | None, steps: list[StepData], columns: list[str]) -> UnifiedPipeline:
    pipeline = UnifiedPipeline(steps, columns)
    if fitted is None:
        pipeline._part = None
    else:
        pipeline._part = from_bytes(fitted)
    return pipeline


class GroupedPipeline(FramePipeline):
    """A pipeline that scales table columns with the numbers of each row's entity.

    pipeline: steps as data, or scikit-learn's objects.
    columns: the columns that it scales; others stay.
    group_identifier: the entity column.

    Tables are polars, pandas or Arrow, and are returned as the same kind; nulls and NaN stay
    missing. An entity that was not fitted raises `InputError`: unscaled rows are never returned.
    """

    headrace_strategy: ClassVar[Strategy] = "per_group"

    def __init__(
        self, pipeline: Any, columns: Sequence[str], group_identifier: str = "gauge_id"
    ) -> None:
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
                f"this entity was fitted before, like {len(twice) - 1} others of this table",
                column=self.group_identifier,
                value=twice[0],
                remedy="give all rows of an entity at once, or fit again with fit",
            )
        self._part = merge([Fitted((self._part,)), more]).parts[0]
        return self

    def sklearn(self, entity: str) -> Any:
        """Return the fitted scikit-learn Pipeline of one entity.

        Raises `InputError` for one that was not fitted.
        """
        return to_sklearn(self.part, entity)

    def _rows(self, frame: pl.DataFrame) -> SortedRows:
        """Sort rows by entity, keeping their order within it.

        Raises `InputError` for rows without an entity.
        """
        matrix = matrix_of(frame, self.columns)
        check_column(frame, self.group_identifier)
        names = frame[self.group_identifier].cast(pl.String)
        if names.null_count():
            raise InputError(
                f"{names.null_count()} rows have no entity",
                column=self.group_identifier,
                remedy="name them",
            )
        codes = names.rank("dense").to_numpy().astype(np.int64) - 1
        order = np.argsort(codes, kind="stable")
        offsets = np.append(0, np.cumsum(np.bincount(codes))).astype(np.int64)
        return SortedRows(matrix[order], offsets, names.unique().sort().to_list(), order)

    def __reduce__(self) -> Any:
        return (_grouped, (*self._plain(), self.group_identifier))


def _grouped(
    fitted: bytes | None, steps: list[StepData], columns: list[str], group: str
) -> GroupedPipeline:
    pipeline = GroupedPipeline(steps, columns, group)
    if fitted is None:
        pipeline._part = None
    else:
        pipeline._part = from_bytes(fitted)
    return pipeline


def as_polars(frame: Any) -> pl.DataFrame:
    """Convert a polars, pandas or Arrow table to polars. Raises `InputError` for anything else."""
    if isinstance(frame, pl.DataFrame):
        return frame
    try:
        if hasattr(frame, "itertuples"):
            return pl.from_pandas(frame)
        return pl.DataFrame(frame)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"{type(frame).__name__} is not a table ({error})",
            remedy="give a polars, pandas or Arrow table",
        ) from error


def as_caller_type(frame: Any, table: pl.DataFrame) -> Any:
    """Convert a polars table to the kind of table that the caller passed as `frame`."""
    if isinstance(frame, pl.DataFrame):
        return table
    if hasattr(frame, "itertuples"):
        return table.to_pandas()
    return table.to_arrow()


def matrix_of(frame: pl.DataFrame, columns: Sequence[str]) -> F64:
    """Return columns as float64 [R, C], NaN for nulls.

    Raises `InputError` if one is missing or holds no numbers.
    """
    for name in columns:
        check_column(frame, name)
    try:
        return frame.select(
            pl.col(list(columns)).cast(pl.Float64).fill_null(float("nan"))
        ).to_numpy()
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"columns {', '.join(columns)} are not all numbers ({error})", remedy="give numbers"
        ) from error


def check_column(frame: pl.DataFrame, name: str) -> None:
    """Raise `InputError` unless the table has this column."""
    if name not in frame.columns:
        raise InputError(
            "not in the table",
            column=name,
            remedy=f"choose one of {', '.join(frame.columns)}",
        )


def _put_back(frame: Any, columns: Sequence[str], rows: SortedRows, values: Values) -> Any:
    """Return the frame with these columns replaced, as the kind of table that was given."""
    unsorted = np.empty_like(values)
    unsorted[rows.order] = values
    table = as_polars(frame).with_columns(
        pl.Series(name, np.ascontiguousarray(unsorted[:, at])).fill_nan(None)
        for at, name in enumerate(columns)
    )
    result = as_caller_type(frame, table)
    if hasattr(frame, "itertuples"):
        result.index = frame.index
    return result
