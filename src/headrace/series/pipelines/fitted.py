"""Fit pipelines to many entities at once, transform with them, and invert them.

The recipe calls this module.

    plain = preprocessing.resolved(targets=["q"], features=["p", "t"])
    columns = ("q", "p", "t")
    # chosen: by chosen_entities(...)
    once = fit(plain.time_series, columns, train, offsets, chosen, strategy="unified")
    batch = fit(plain.time_series, columns, train, offsets, entities, strategy="per_group")
    scaled = join([once, batch]).transform(rows, offsets, entities)
    everything = join([once, merge([batch, next_batch, ...])])

Matrices are float64 [rows, columns], NaN is missing, and entity e has the rows
offsets[e]..offsets[e+1]-1. The caller must pass only train rows to `fit`; `headrace verify` proves
afterwards that no other row reached it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import F64, I64, Bools
from headrace.dataset.sound import damaged
from headrace.digest import canonical_json
from headrace.errors import SettingsError
from headrace.series.arrays.scalers import Scalers, Values, fit_scalers
from headrace.series.arrays.steps import FUNCTIONS
from headrace.series.pipelines.objects import ObjectScalers, fit_objects, from_skops, to_skops
from headrace.series.pipelines.settings import PipelineSettings, Strategy, is_native

AnyScalers = Scalers | ObjectScalers


@dataclass(frozen=True)
class Fitted:
    """Fitted pipelines over disjoint columns."""

    parts: tuple[AnyScalers, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are scaled."""
        return tuple(column for part in self.parts for column in part.columns)

    def transform(
        self,
        columns: Sequence[str],
        matrix: Values,
        offsets: I64,
        entities: Sequence[str],
        dtype: Any = np.float32,
    ) -> Values:
        """Return scaled values [R, C] of these columns, in their order. NaN stays NaN.

        Raises `InputError` for an entity that was not fitted, and for a value without a finite
        result; `SettingsError` for a column without a pipeline.
        """
        out = np.empty(matrix.shape, dtype)
        for part, at in self._where(columns):
            out[:, at] = part.apply(matrix[:, at], offsets, entities, dtype)
        return out

    def inverse_transform(
        self, columns: Sequence[str], scaled: Values, offsets: I64, entities: Sequence[str]
    ) -> F64:
        """Return the values that `transform` scaled, in the columns' own units.

        Raises as `transform`.
        """
        out = np.empty(scaled.shape)
        for part, at in self._where(columns):
            out[:, at] = part.invert(scaled[:, at], offsets, entities)
        return out

    def part(self, column: str) -> AnyScalers:
        """Return the fitted pipeline of a column. Raises `SettingsError` if there is none."""
        for part in self.parts:
            if column in part.columns:
                return part
        raise SettingsError(
            "no pipeline is fitted",
            column=column,
            remedy=f"choose one of {', '.join(self.columns)}",
        )

    def _where(self, columns: Sequence[str]) -> list[tuple[AnyScalers, list[int]]]:
        index_of = {column: at for at, column in enumerate(columns)}
        for column in columns:
            self.part(column)
        parts: list[tuple[AnyScalers, list[int]]] = []
        for part in self.parts:
            names = [column for column in part.columns if column in index_of]
            if names:
                parts.append((part.only(names), [index_of[column] for column in names]))
        return parts

    def split(self) -> tuple[list[dict[str, Any]], list[list[Any]]]:
        """Return the JSON of every part, and the scikit-learn objects of the parts that
        have them.
        """
        records: list[dict[str, Any]] = []
        objects: list[list[Any]] = []
        for part in self.parts:
            if isinstance(part, Scalers):
                records.append(part.to_json())
                continue
            if part.entities is None:
                entities = None
            else:
                entities = list(part.entities)
            steps = [dict(step) for step in part.pipeline]
            records.append(
                {
                    "columns": list(part.columns),
                    "entities": entities,
                    "objects": steps,
                    "place": len(objects),
                }
            )
            objects.append(list(part.objects))
        return records, objects

    @classmethod
    def together(cls, records: Sequence[Mapping[str, Any]], objects: Any, where: str) -> Fitted:
        """Join the results of `split`. Raises `CorruptShard` if they do not fit together."""
        parts: list[AnyScalers] = []
        try:
            for record in records:
                if "objects" not in record:
                    parts.append(Scalers.from_json(record))
                    continue
                if record["entities"] is None:
                    entities = None
                else:
                    entities = tuple(map(str, record["entities"]))
                fitted = tuple(objects[record["place"]])
                if len(fitted) != (1 if entities is None else len(entities)):
                    raise ValueError("there are not as many objects as entities")
                parts.append(
                    ObjectScalers(
                        tuple(map(str, record["columns"])),
                        entities,
                        tuple(record["objects"]),
                        fitted,
                    )
                )
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise damaged(where, f"is damaged ({error})") from error
        return cls(tuple(parts))


def to_bytes(part: AnyScalers) -> bytes:
    """Return one fitted pipeline as bytes; equal fits give equal bytes."""
    records, objects = Fitted((part,)).split()
    return canonical_json(records) + b"\n" + (to_skops(objects) if objects else b"")


def from_bytes(data: bytes) -> AnyScalers:
    """Read a fitted pipeline from `to_bytes`."""
    head, _, tail = data.partition(b"\n")
    return Fitted.together(
        json.loads(head), from_skops(tail, "pipeline") if tail else None, "pipeline"
    ).parts[0]


def fit(
    pipelines: Sequence[PipelineSettings],
    columns: Sequence[str],
    matrix: F64,
    offsets: I64,
    entities: Sequence[str],
    *,
    strategy: Strategy,
) -> Fitted:
    """Fit the pipelines of this strategy on these train rows; pipelines of the other strategy are
    skipped.

    columns: the columns of the matrix.
    entities: for "unified" in the order of `chosen_entities`; a pipeline is fitted on the first
    fit_on_n_entities of them.
    Raises `InputError` if a column has nothing to fit on or a step cannot take it.
    """
    parts: list[AnyScalers] = []
    for pipeline in pipelines:
        if pipeline.strategy != strategy:
            continue
        if pipeline.encoder is not None:
            raise SettingsError(
                f"{pipeline.encoder['step']} makes numbers of texts", remedy="use fit_encoder"
            )
        names = tuple(pipeline.columns or ())
        rows = matrix[:, [list(columns).index(column) for column in names]]
        make: Any = fit_scalers if is_native(pipeline.pipeline) else fit_objects
        if strategy == "per_group":
            parts.append(make(pipeline.pipeline, names, rows, offsets, entities))
        else:
            if pipeline.fit_on_n_entities is not None and pipeline.fit_on_n_entities < len(
                entities
            ):
                rows = rows[: int(offsets[pipeline.fit_on_n_entities])]
            parts.append(make(pipeline.pipeline, names, rows, offsets, None))
    return Fitted(tuple(parts))


def merge(batches: Sequence[Fitted]) -> Fitted:
    """Merge several batches' fits of the same pipelines for different entities."""
    return Fitted(
        tuple(
            type(parts[0]).merge(parts)
            for parts in zip(*(batch.parts for batch in batches), strict=True)
        )
    )


def join(fits: Sequence[Fitted]) -> Fitted:
    """Join pipelines over different columns. Raises `ValueError` if a column has two."""
    joined = Fitted(tuple(part for fitted in fits for part in fitted.parts))
    if len(set(joined.columns)) < len(joined.columns):
        raise ValueError("a column has two fitted pipelines")
    return joined


def reasons(
    pipelines: Sequence[PipelineSettings], columns: Sequence[str], trains: F64
) -> str | None:
    """Return why an entity cannot be scaled, for the quality report and before any fit; None if it
    can.

    trains: the train rows. Checks infinite values, columns without a value, and values for which
    the first step has no result.
    """
    outside = without_result(pipelines, columns, trains)
    for pipeline in pipelines:
        for name in pipeline.columns or () if pipeline.pipeline else ():
            at = list(columns).index(name)
            if np.isnan(trains[:, at]).all():
                return f"column {name} has no value in train"
            if outside[:, at].any():
                value = float(trains[int(np.argmax(outside[:, at])), at])
                return (
                    f"column {name} holds {value!r}, which {pipeline.pipeline[0]['step']} cannot"
                    " take"
                )
    return None


def without_result(
    pipelines: Sequence[PipelineSettings], columns: Sequence[str], rows: F64
) -> Bools:
    """Find the values for which the first step of their pipeline has no result: bool [R, C]."""
    outside = np.zeros(rows.shape, np.bool_)
    for pipeline in pipelines:
        if pipeline.pipeline:
            at = [list(columns).index(column) for column in pipeline.columns or ()]
            first = pipeline.pipeline[0]
            low = -np.inf
            closed = True
            if first["step"] == "FunctionTransformer" and first["func"]:
                low = FUNCTIONS[first["func"]].above
                closed = FUNCTIONS[first["func"]].closed
            elif first["step"] == "PowerTransformer" and first["method"] == "box-cox":
                low = 0.0
                closed = False
            elif first["step"] == "Log" and not first["mean_share"]:
                low = -float(first["offset"])
                closed = False
            values = rows[:, at]
            outside[:, at] = np.isinf(values) | (values < low if closed else values <= low)
    return outside
