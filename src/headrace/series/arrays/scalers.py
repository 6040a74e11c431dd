"""Fit, apply and invert the scalers of many entities for all rows at once, as plain arrays that are
stored as JSON.

One `Scalers` is one pipeline of native steps over some columns, fitted for every entity separately
or once for all. It stores what a step measured (means, variances, least and greatest values). The
numbers used for scaling follow from these by scikit-learn's rules, so the results match
scikit-learn. Work is in float64, in blocks of rows, so memory in addition to the result is bounded.
Fitting costs a few passes over the rows per step; `RobustScaler` sorts them, and `PowerTransformer`
searches its exponent for each group and column with scikit-learn (extra `series`).
"""

from __future__ import annotations

import base64
import difflib
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64, I64, Bools
from headrace.errors import CorruptShard, InputError, MissingExtra, SettingsError, setting_name
from headrace.series.arrays.statistics import (
    counts,
    extremes,
    means,
    quantiles,
    row_groups,
    variances,
)
from headrace.series.arrays.steps import (
    NATIVE,
    FittedStep,
    StepData,
    complete,
    power,
    why_not_invertible,
)

Values = npt.NDArray[np.floating[Any]]

_BLOCK = 1 << 13  # rows of a block that stays in the processor's cache
_FEW = 64  # with this many times more fitted entities than requested, search one by one
_READABLE = 1000  # most entities whose numbers stay readable in the JSON

MEASURED = {
    "StandardScaler": ("mean", "seen", "var"),
    "MinMaxScaler": ("data_max", "data_min", "seen"),
    "MaxAbsScaler": ("max_abs", "seen"),
    "RobustScaler": ("high", "low", "median", "seen"),
    "PowerTransformer": ("lambda", "mean", "seen", "var"),
    "FunctionTransformer": (),
    "Log": ("offset",),
}


@dataclass(frozen=True)
class BaseScalers(ABC):
    """One fitted pipeline over `columns`: a fit for each of the ascending `entities`, or one for
    all (None).
    """

    columns: tuple[str, ...]
    entities: tuple[str, ...] | None
    pipeline: tuple[StepData, ...]

    @abstractmethod
    def apply(
        self, matrix: Values, offsets: I64, entities: Sequence[str], dtype: Any = np.float32
    ) -> Values:
        """Return scaled values [R, C] of `dtype`; NaN stays NaN.

        entities: one for each group of rows that `offsets` [len+1] delimits.
        Raises `InputError` for an entity without a fit, and for a value without a finite result.
        """

    @abstractmethod
    def invert(self, scaled: Values, offsets: I64, entities: Sequence[str]) -> F64:
        """Return the values [R, C] that `apply` scaled.

        Raises `InputError` for an entity without a fit, `SettingsError` if a step has no inverse.
        """

    def index_of(self, entities: Sequence[str] | pa.Array) -> I64:
        """Return the index of each entity's fit, int64 [len(entities)].

        Raises `InputError` for one without a fit.
        """
        if self.entities is None:
            return np.zeros(len(entities), np.int64)
        # `index_in` would build its hash table on each call
        if len(entities) * _FEW < len(self.entities):
            if isinstance(entities, pa.Array):
                names = entities.to_pylist()
            else:
                names = entities
            at = [bisect_left(self.entities, str(name)) for name in names]
            if all(
                self.entities[index : index + 1] == (name,)
                for index, name in zip(at, names, strict=True)
            ):
                return np.array(at, np.int64)
        if isinstance(entities, pa.Array):
            texts = entities
        else:
            texts = pa.array(list(entities), pa.string())
        indices = pc.index_in(
            texts.cast(pa.string()), value_set=pa.array(self.entities, pa.string())
        )
        if indices.null_count:
            stranger = texts.filter(indices.is_null())[0].as_py()
            near = ""
            for name in difflib.get_close_matches(str(stranger), self.entities[:10_000], n=1):
                near = f", near: {name!r}"
            raise InputError(
                f"entity {stranger!r}: no pipeline was fitted for it ({len(self.entities):,}"
                f" entities have one{near}), and unscaled values are never returned",
                value=stranger,
                remedy=(
                    "give entities of this run, or prepare with strategy: unified, which fits one"
                    " pipeline for all"
                ),
            )
        return np.asarray(indices.to_numpy(), np.int64)

    def _words(self) -> str:
        return (
            " -> ".join(str(step.get("func") or step["step"]) for step in self.pipeline)
            or "no step"
        )

    def _check_finite(
        self, scaled: Values, before: Values, entities: Sequence[str], groups: I64
    ) -> None:
        """Raise `InputError` if a value has no finite result.

        groups: index of each row's entity.
        """
        if (first_bad := _first(~np.isfinite(scaled) & ~np.isnan(before))) is not None:
            row, column = first_bad
            # The largest is the cause: in the train rows it makes the results of all others
            # infinite too.
            rows = np.flatnonzero((groups == groups[row]) & ~np.isfinite(scaled[:, column]))
            row = int(rows[np.nanargmax(np.abs(before[rows, column]))])
            names_it = setting_name("null_values")
            raise InputError(
                f"entity {entities[int(groups[row])]!r} has no finite value after"
                f" {self._words()} as {scaled.dtype}",
                column=self.columns[column],
                value=float(before[row, column]),
                remedy=f"correct the data or name it in {names_it}, or choose other steps",
            )


@dataclass(frozen=True, repr=False)
class Scalers(BaseScalers):
    """A fitted pipeline of native steps.

    measured: for each step, arrays [G, C] with one row per entity, or one row for all.
    """

    measured: tuple[Mapping[str, F64], ...]

    def __repr__(self) -> str:
        if self.entities is None:
            whom = "one for all"
        else:
            whom = f"{len(self.entities):,} entities"
        return f"Scalers({', '.join(self.columns)}: {self._words()}, {whom})"

    @cached_property
    def steps(self) -> tuple[FittedStep, ...]:
        """The steps, each with its measured numbers."""
        return tuple(map(FittedStep, self.pipeline, self.measured))

    def apply(
        self, matrix: Values, offsets: I64, entities: Sequence[str], dtype: Any = np.float32
    ) -> Values:
        """Return scaled values; see `BaseScalers`."""
        fit_of_entity = self.index_of(entities)
        out = np.empty(matrix.shape, dtype)
        for start in range(0, len(out), _BLOCK):
            stop = min(len(out), start + _BLOCK)
            groups = row_groups(offsets, start, stop)
            x = before = np.asarray(matrix[start:stop], np.float64)
            fits = fit_of_entity[groups]
            for step in self.steps:
                x = step.forward(x, fits)
            with np.errstate(over="ignore"):
                out[start:stop] = x
            self._check_finite(out[start:stop], before, entities, groups)
        return out

    def invert(self, scaled: Values, offsets: I64, entities: Sequence[str]) -> F64:
        """Return values in their own units; see `BaseScalers`."""
        for step in self.pipeline:
            reason = why_not_invertible(step)
            if reason is not None and not step.get("clip"):
                columns = ", ".join(self.columns)
                raise SettingsError(f"columns {columns} cannot be brought back: {reason}")
        fit_of_entity = self.index_of(entities)
        out = np.empty(scaled.shape)
        for start in range(0, len(out), _BLOCK):
            stop = min(len(out), start + _BLOCK)
            y = np.asarray(scaled[start:stop], np.float64)
            fits = fit_of_entity[row_groups(offsets, start, stop)]
            for fitted_step in reversed(self.steps):
                y = fitted_step.backward(y, fits)
            out[start:stop] = y
        return out

    def only(self, columns: Sequence[str]) -> Scalers:
        """Return these scalers for some of their columns."""
        if tuple(columns) == self.columns:
            return self
        at = [self.columns.index(column) for column in columns]
        return self._selected(tuple(columns), self.entities, lambda values: values[:, at])

    def select(self, entities: Sequence[str]) -> Scalers:
        """Return these scalers for some of the entities.

        Raises `InputError` for one that was not fitted.
        """
        if self.entities is None:
            return self
        names = tuple(sorted(set(entities)))
        indices = self.index_of(names)
        return self._selected(self.columns, names, lambda values: values[indices])

    @classmethod
    def merge(cls, parts: Sequence[Scalers]) -> Scalers:
        """Join fits of the same pipeline for different entities.

        Raises `ValueError` if they do not fit together.
        """
        first = parts[0]
        if any(part.columns != first.columns or part.pipeline != first.pipeline for part in parts):
            raise ValueError("only fits of the same pipeline over the same columns can be merged")
        joined: list[Mapping[str, F64]] = []
        for steps in zip(*(part.measured for part in parts), strict=True):
            joined.append(
                {name: np.concatenate([step[name] for step in steps]) for name in steps[0]}
            )
        entities = tuple(chain.from_iterable(part.entities or () for part in parts))
        return cls(first.columns, entities, first.pipeline, tuple(joined))._ascending()

    def _ascending(self) -> Scalers:
        """Return these scalers with entities in order.

        Raises `ValueError` if one was fitted twice.
        """
        entities = self.entities or ()
        if len(set(entities)) < len(entities):
            raise ValueError("an entity was fitted twice")
        order = sorted(range(len(entities)), key=entities.__getitem__)
        names = tuple(entities[index] for index in order)
        return self._selected(self.columns, names, lambda values: values[order])

    def _selected(
        self, columns: tuple[str, ...], entities: tuple[str, ...] | None, take: Callable[[F64], F64]
    ) -> Scalers:
        measured: list[Mapping[str, F64]] = []
        for numbers in self.measured:
            measured.append({name: take(values) for name, values in numbers.items()})
        return Scalers(columns, entities, self.pipeline, tuple(measured))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; numbers keep all their bits.

        With more than `_READABLE` entities the arrays are base64 of little-endian float64, which
        takes a tenth of the memory.
        """
        steps = []
        for step in self.steps:
            params = dict(step.step)
            word = params.pop("step")
            fitted = {name: _encoded(values) for name, values in sorted(step.fitted.items())}
            steps.append({"step": word, "params": params, "fitted": fitted})
        return {
            "columns": list(self.columns),
            "entities": None if self.entities is None else list(self.entities),
            "steps": steps,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Scalers:
        """Read scalers from `to_json`. Raises `CorruptShard` for anything else."""
        try:
            columns = tuple(map(str, record["columns"]))
            entities = None
            if record["entities"] is not None:
                entities = tuple(map(str, record["entities"]))
            shape = (1 if entities is None else len(entities), len(columns))
            if entities is not None and list(entities) != sorted(set(entities)):
                raise ValueError("entities are not ascending")
            steps = []
            measured = []
            for step in record["steps"]:
                word = step["step"]
                if word not in NATIVE:
                    raise ValueError(f"step {word!r} is not known")
                fitted = {
                    name: _decoded(values).reshape(shape) for name, values in step["fitted"].items()
                }
                if set(fitted) != set(MEASURED[word]) or not all(
                    np.isfinite(numbers).all() for numbers in fitted.values()
                ):
                    raise ValueError(f"step {word!r} lacks numbers that it needs")
                steps.append(complete(word, step["params"]))
                measured.append(fitted)
            return cls(columns, entities, tuple(steps), tuple(measured))
        except (KeyError, TypeError, ValueError, AttributeError, SettingsError) as error:
            raise CorruptShard(
                f"the fitted pipelines are damaged ({error})",
                remedy="restore them or prepare the run again",
            ) from error


def _encoded(values: F64) -> list[Any] | str:
    if len(values) <= _READABLE:
        return list(values.tolist())
    return base64.b64encode(np.ascontiguousarray(values, "<f8").tobytes()).decode()


def _decoded(values: Any) -> F64:
    if isinstance(values, str):
        return np.frombuffer(base64.b64decode(values, validate=True), "<f8").astype(np.float64)
    return np.array(values, np.float64)


def fit_scalers(
    steps: Sequence[StepData],
    columns: Sequence[str],
    matrix: F64,
    offsets: I64 | None = None,
    entities: Sequence[str] | None = None,
) -> Scalers:
    """Fit native steps for each entity on its own rows, or once on all rows (entities None).

    matrix: float64 [R, C], NaN is missing; offsets: [len(entities) + 1]. Each step is fitted on the
    output of the steps before it. Raises `InputError` if a column of an entity has no value, or one
    that a step cannot take.
    """
    matrix = np.asarray(matrix, np.float64)
    if offsets is None or entities is None:
        offsets = np.array([0, len(matrix)], np.int64)
    groups = np.empty(0, np.int64)
    if len(matrix):
        groups = row_groups(offsets, 0, len(matrix))
    _check_rows(columns, matrix, offsets, entities, needs_values=bool(steps))
    measured: list[Mapping[str, F64]] = []
    for step in steps:
        measured.append(_measure(step, matrix, offsets))
        now = FittedStep(step, measured[-1])
        if len(measured) == len(steps) and now.is_always_finite:
            break
        before = matrix
        matrix = now.forward(matrix, groups)
        if (first_bad := _first(~np.isfinite(matrix) & ~np.isnan(before))) is not None:
            row, column = first_bad
            raise InputError(
                f"{_who(entities, int(groups[row]))} has no finite value after"
                f" {step.get('func') or step['step']}",
                column=columns[column],
                value=float(before[row, column]),
                remedy="correct the data, or choose a step that is defined for it",
            )
    if entities is None:
        return Scalers(tuple(columns), None, tuple(steps), tuple(measured))
    return Scalers(tuple(columns), tuple(entities), tuple(steps), tuple(measured))._ascending()


def _who(entities: Sequence[str] | None, group: int) -> str:
    return "the group of all entities" if entities is None else f"entity {entities[group]!r}"


def _check_rows(
    columns: Sequence[str],
    matrix: F64,
    offsets: I64,
    entities: Sequence[str] | None,
    *,
    needs_values: bool,
) -> None:
    """Raise `InputError` for a group without rows, for infinite values, and if `needs_values` for a
    column of a group without values.
    """
    short = np.flatnonzero(np.diff(offsets) < 1)
    if len(short):
        raise InputError(
            f"{_who(entities, int(short[0]))} has no rows to fit a scaler on",
            remedy="leave it out",
        )
    infinite = _first(np.isinf(matrix))
    if infinite is not None:
        row, column = infinite
        group = int(np.searchsorted(offsets, row, "right")) - 1
        raise InputError(
            f"{_who(entities, group)} cannot be scaled",
            column=columns[column],
            value=float(matrix[row, column]),
            remedy="correct the data or leave the entity out",
        )
    empty = _first(counts(matrix, offsets) == 0) if needs_values else None
    if empty is not None:
        group, column = empty
        raise InputError(
            f"{_who(entities, group)} has no value among the rows to fit a scaler on",
            column=columns[column],
            remedy="leave the entity or the column out",
        )


def _first(mask: Bools) -> tuple[int, int] | None:
    if mask.any():
        row, column = divmod(int(np.argmax(mask)), mask.shape[1])
        return row, column
    return None


def _measure(  # noqa: PLR0911 - one case each
    step: StepData,
    matrix: F64,
    offsets: I64,
) -> dict[str, F64]:
    word = step["step"]
    if word == "FunctionTransformer":
        return {}
    if word == "Log":
        _, mean = means(matrix, offsets)
        return {"offset": step["offset"] + step["mean_share"] * mean}
    if word == "PowerTransformer":
        try:
            from sklearn.preprocessing import PowerTransformer
        except ImportError:
            raise MissingExtra("scikit-learn", "series") from None
        method = step["method"]
        exponents = np.empty((len(offsets) - 1, matrix.shape[1]))
        for group, (start, stop) in enumerate(pairwise(offsets.tolist())):
            try:
                exponents[group] = (
                    PowerTransformer(method=method, standardize=False)
                    .fit(matrix[start:stop])
                    .lambdas_
                )
            except ValueError as error:
                raise InputError(
                    f"PowerTransformer({method}) fails: {error}", remedy="choose another step"
                ) from error
        transformed = power(method, matrix, exponents[row_groups(offsets, 0, len(matrix))])
        return {"lambda": exponents, **_moments(transformed, offsets)}
    if word == "StandardScaler":
        return _moments(matrix, offsets)
    seen = counts(matrix, offsets)
    if word == "RobustScaler":
        low, high = (percent / 100 for percent in step["quantile_range"])
        bounds = quantiles(matrix, offsets, (low, 0.5, high))
        return {"low": bounds[0], "median": bounds[1], "high": bounds[2], "seen": seen}
    least, greatest = extremes(matrix, offsets)
    if word == "MinMaxScaler":
        return {"data_min": least, "data_max": greatest, "seen": seen}
    return {"max_abs": np.maximum(np.abs(least), np.abs(greatest)), "seen": seen}


def _moments(matrix: F64, offsets: I64) -> dict[str, F64]:
    seen, mean = means(matrix, offsets)
    return {"mean": mean, "var": variances(matrix, offsets, seen, mean), "seen": seen}
