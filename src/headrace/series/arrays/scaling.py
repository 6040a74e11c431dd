"""Fit pipelines of native steps to groups of rows, every group on its own, all columns at once.

Each step is fitted on what the steps before it made of the rows. The numbers are scikit-learn's. Cost: a few passes
over the rows a step; `RobustScaler` sorts them, and `PowerTransformer` searches its exponent for each group and column
with scikit-learn (extra `series`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.arrays import F64, I64
from headrace.errors import InputError, MissingExtra
from headrace.series.arrays import power
from headrace.series.arrays.fitted_step import FittedStep
from headrace.series.arrays.scalers import Scalers
from headrace.series.arrays.statistics import counts, extremes, means, quantiles, row_groups, variances
from headrace.series.arrays.steps import Step


def fit_groups(
    steps: Sequence[Step], columns: Sequence[str], matrix: F64, offsets: I64, entities: Sequence[str]
) -> Scalers:
    """A fit for each entity, on its own rows. matrix float64 [R, C], NaN missing; offsets [len(entities) + 1].

    Raises `InputError` where a column of an entity has no value, or one that a step cannot take.
    """
    order = sorted(range(len(entities)), key=entities.__getitem__)
    names = tuple(entities[place] for place in order)
    fitted = _fit(steps, columns, matrix, offsets, lambda group: f"entity {entities[group]!r}")
    at = np.array(order, np.int64)
    ordered = tuple(
        FittedStep(each.step, {name: values[at] for name, values in each.fitted.items()}) for each in fitted
    )
    return Scalers(tuple(columns), names, ordered)


def fit_one(steps: Sequence[Step], columns: Sequence[str], matrix: F64) -> Scalers:
    """One fit on all rows, for any entity. Raises as `fit_groups`."""
    offsets = np.array([0, len(matrix)], np.int64)
    fitted = _fit(steps, columns, matrix, offsets, lambda _: "the entities to fit on")
    return Scalers(tuple(columns), None, tuple(fitted))


def _fit(
    steps: Sequence[Step], columns: Sequence[str], matrix: F64, offsets: I64, who: Callable[[int], str]
) -> list[FittedStep]:
    matrix = np.asarray(matrix, np.float64)
    short = np.flatnonzero(np.diff(offsets) < 1)
    if len(short):
        raise InputError(f"{who(int(short[0]))}: has no rows to fit a scaler on; leave it out")
    if np.isinf(matrix).any():
        row, column = (int(each[0]) for each in np.nonzero(np.isinf(matrix)))
        group = int(row_groups(offsets, row, row + 1)[0])
        raise InputError(
            f"{who(group)}, column {columns[column]!r}: holds {matrix[row, column]}, which cannot be scaled; "
            f"correct the data or leave the entity out"
        )
    seen = counts(matrix, offsets)
    if len(steps) and not seen.all():
        group, column = (int(each[0]) for each in np.nonzero(seen == 0))
        raise InputError(
            f"{who(group)}, column {columns[column]!r}: has no value among the rows to fit a scaler on; "
            f"leave the entity or the column out"
        )
    fitted: list[FittedStep] = []
    groups = row_groups(offsets, 0, len(matrix)) if len(matrix) else np.empty(0, np.int64)
    for step in steps:
        now = FittedStep(step, _measure(step, matrix, offsets))
        fitted.append(now)
        if len(fitted) == len(steps) and now.affine is not None:
            break  # finite for every finite value
        before, matrix = matrix, now.forward(matrix, groups)
        lost = ~np.isfinite(matrix) & ~np.isnan(before)
        if lost.any():
            row, column = (int(each[0]) for each in np.nonzero(lost))
            raise InputError(
                f"{who(int(groups[row]))}, column {columns[column]!r}: {float(before[row, column])!r} has no finite "
                f"value behind {step.params.get('func') or step.word}; correct the data, or choose a step that is "
                f"defined for it"
            )
    return fitted


def _measure(step: Step, matrix: F64, offsets: I64) -> dict[str, F64]:
    if step.word == "FunctionTransformer":
        return {}
    if step.word == "Log":
        _, mean = means(matrix, offsets)
        return {"offset": step.params["offset"] + step.params["mean_share"] * mean}
    if step.word == "PowerTransformer":
        return _measure_power(step, matrix, offsets)
    if step.word == "StandardScaler":
        return _moments(matrix, offsets)
    seen = counts(matrix, offsets)
    if step.word == "RobustScaler":
        low, high = (share / 100 for share in step.params["quantile_range"])
        found = quantiles(matrix, offsets, (low, 0.5, high))
        return {"low": found[0], "median": found[1], "high": found[2], "seen": seen}
    least, greatest = extremes(matrix, offsets)
    if step.word == "MinMaxScaler":
        return {"data_min": least, "data_max": greatest, "seen": seen}
    return {"max_abs": np.maximum(np.abs(least), np.abs(greatest)), "seen": seen}


def _moments(matrix: F64, offsets: I64) -> dict[str, F64]:
    seen, mean = means(matrix, offsets)
    return {"mean": mean, "var": variances(matrix, offsets, seen, mean), "seen": seen}


def _measure_power(step: Step, matrix: F64, offsets: I64) -> dict[str, F64]:
    try:
        from sklearn.preprocessing import PowerTransformer
    except ImportError:
        raise MissingExtra("scikit-learn", "series") from None
    powers = np.empty((len(offsets) - 1, matrix.shape[1]))
    for group, (start, stop) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
        search = PowerTransformer(method=step.params["method"], standardize=False)
        try:
            powers[group] = search.fit(matrix[start:stop]).lambdas_
        except ValueError as error:
            raise InputError(f"PowerTransformer({step.params['method']}): {error}; choose another step") from error
    made = power.forward(step.params["method"], matrix, powers[row_groups(offsets, 0, len(matrix))])
    return {"lambda": powers, **_moments(made, offsets)}
