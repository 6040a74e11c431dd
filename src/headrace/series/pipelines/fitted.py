"""Fit pipelines to many entities at once, transform with them, bring values back. What the recipe calls.

    plain = preprocessing.resolved(target="q", features=["p", "t"])
    columns = ("q", "p", "t")
    once = fit(plain.time_series, columns, train, offsets, chosen, strategy="unified")     # chosen_entities(...)
    batch = fit(plain.time_series, columns, train, offsets, entities, strategy="per_group")
    scaled = join([once, batch]).transform(rows, offsets, entities)
    everything = join([once, merge([batch, next_batch, ...])])

Matrices are float64 [rows, columns], NaN is missing, and entity e has the rows offsets[e]..offsets[e+1]-1. `fit` is
given train rows only: that no other row reaches it is the caller's part, and `headrace verify` proves it afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import F64, I64, Bools
from headrace.errors import InputError, SettingsError
from headrace.series.arrays.functions import FUNCTIONS
from headrace.series.arrays.scalers import Scalers, Values
from headrace.series.arrays.scalers import merge as merge_scalers
from headrace.series.arrays.scaling import fit_groups, fit_one
from headrace.series.pipelines.objects import ObjectScalers, fit_objects, merge_objects
from headrace.series.pipelines.settings import PipelineSettings, Strategy

Part = Scalers | ObjectScalers


@dataclass(frozen=True)
class Fitted:
    """Fitted pipelines over disjoint columns."""

    parts: tuple[Part, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are scaled."""
        return tuple(column for part in self.parts for column in part.columns)

    def transform(
        self, columns: Sequence[str], matrix: Values, offsets: I64, entities: Sequence[str], dtype: Any = np.float32
    ) -> Values:
        """Scaled values [R, C] of these columns, in their order. NaN stays NaN.

        Raises `InputError` for an entity that was not fitted, and for a value that has none behind its steps;
        `SettingsError` for a column without pipeline.
        """
        out = np.empty(matrix.shape, dtype)
        for part, at in self._where(columns):
            out[:, at] = part.apply(matrix[:, at], offsets, entities, dtype)
        return out

    def inverse_transform(
        self, columns: Sequence[str], scaled: Values, offsets: I64, entities: Sequence[str], dtype: Any = np.float64
    ) -> Values:
        """The values that `transform` made these of, in the columns' own units. Raises as `transform`."""
        out = np.empty(scaled.shape, dtype)
        for part, at in self._where(columns):
            out[:, at] = part.invert(scaled[:, at], offsets, entities, dtype)
        return out

    def part(self, column: str) -> Part:
        """The fitted pipeline of a column. Raises `SettingsError` if there is none."""
        for each in self.parts:
            if column in each.columns:
                return each
        raise SettingsError(f"column {column!r} has no fitted pipeline; there are {', '.join(self.columns)}")

    def _where(self, columns: Sequence[str]) -> list[tuple[Part, list[int]]]:
        place = {column: at for at, column in enumerate(columns)}
        for column in columns:
            self.part(column)
        found = []
        for part in self.parts:
            if not set(part.columns) <= set(place):
                part = _only(part, [column for column in part.columns if column in place])
            if part.columns:
                found.append((part, [place[column] for column in part.columns]))
        return found


def fit(
    pipelines: Sequence[PipelineSettings],
    columns: Sequence[str],
    matrix: F64,
    offsets: I64,
    entities: Sequence[str],
    *,
    strategy: Strategy,
) -> Fitted:
    """Fit the pipelines of this strategy on these rows, which are train rows; the others are left out.

    columns: of the matrix. entities: for "unified" in the order of `chosen_entities`: a pipeline is fitted on the
    first fit_on_n_basins of them. Raises `InputError` where a column has nothing to fit on or a step cannot take it.
    """
    parts: list[Part] = []
    for each in pipelines:
        if each.strategy != strategy:
            continue
        if each.encoder is not None:
            raise SettingsError(f"{each.encoder['step']} makes numbers of texts; it is fitted by fit_encoder")
        names = tuple(each.columns or ())
        rows = matrix[:, [list(columns).index(column) for column in names]]
        native = each.native_steps
        if strategy == "per_group":
            if native is not None:
                parts.append(fit_groups(native, names, rows, offsets, entities))
            else:
                parts.append(fit_objects(each.pipeline, names, rows, offsets, entities))
            continue
        if each.fit_on_n_basins is not None and each.fit_on_n_basins < len(entities):
            rows = rows[: int(offsets[each.fit_on_n_basins])]
        if native is not None:
            parts.append(fit_one(native, names, rows))
        else:
            parts.append(fit_objects(each.pipeline, names, rows, np.array([0, len(rows)]), None))
    return Fitted(tuple(parts))


def merge(batches: Sequence[Fitted]) -> Fitted:
    """One of all entities of several batches' fits of the same pipelines."""
    if not batches:
        return Fitted(())
    parts: list[Part] = []
    for each in zip(*(batch.parts for batch in batches), strict=True):
        native = [part for part in each if isinstance(part, Scalers)]
        objects = [part for part in each if isinstance(part, ObjectScalers)]
        parts.append(merge_scalers(native) if native else merge_objects(objects))
    return Fitted(tuple(parts))


def join(fits: Sequence[Fitted]) -> Fitted:
    """The pipelines of all of them, which are over different columns."""
    parts = tuple(part for each in fits for part in each.parts)
    columns = [column for part in parts for column in part.columns]
    if len(set(columns)) < len(columns):
        raise ValueError("a column has two fitted pipelines")
    return Fitted(parts)


def reasons(pipelines: Sequence[PipelineSettings], columns: Sequence[str], trains: F64) -> str | None:
    """Why an entity cannot be scaled, for the quality report and before any fit; None if it can.

    trains: the rows that train. Looked at are infinite values, columns without a value, and values that the first step
    has no result for.
    """
    missing = np.asarray(np.isnan(trains).all(axis=0), np.bool_)
    outside = without_result(pipelines, columns, trains)
    for each in pipelines:
        if not each.pipeline:
            continue
        for name in each.columns or ():
            at = list(columns).index(name)
            if missing[at]:
                return f"column {name} has no value that trains"
            if outside[:, at].any():
                value = float(trains[int(np.argmax(outside[:, at])), at])
                return f"column {name} holds {value!r}, which {each.pipeline[0]['step']} cannot take"
    return None


def without_result(pipelines: Sequence[PipelineSettings], columns: Sequence[str], rows: F64) -> Bools:
    """The values that the first step of their pipeline has no result for: bool [R, C]."""
    found = np.zeros(rows.shape, np.bool_)
    for each in pipelines:
        if each.pipeline:
            at = [list(columns).index(column) for column in each.columns or ()]
            low, closed = _domain(each)
            values = rows[:, at]
            found[:, at] = np.isinf(values) | (values < low if closed else values <= low)
    return found


def _domain(pipeline: PipelineSettings) -> tuple[float, bool]:
    first = pipeline.pipeline[0]
    if first["step"] == "FunctionTransformer" and first["func"]:
        return FUNCTIONS[first["func"]].above, FUNCTIONS[first["func"]].closed
    if first["step"] == "PowerTransformer" and first["method"] == "box-cox":
        return 0.0, False
    if first["step"] == "Log" and not first["mean_share"]:
        return -float(first["offset"]), False
    return -np.inf, True


def _only(part: Part, columns: Sequence[str]) -> Part:
    if isinstance(part, ObjectScalers):
        if not columns:
            return ObjectScalers((), part.entities, part.steps, part.objects)
        raise InputError(
            f"columns {', '.join(part.columns)} are scaled together by scikit-learn; give all of them at once"
        )
    return part.only(columns)
