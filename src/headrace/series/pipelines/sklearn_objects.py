"""A native fit as scikit-learn's own fitted objects, for those who want to go on with them."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.arrays import F64
from headrace.errors import MissingExtra, SettingsError
from headrace.series.arrays.fitted_step import FittedStep
from headrace.series.arrays.scalers import Scalers
from headrace.series.pipelines.fitted import Part
from headrace.series.pipelines.objects import ObjectScalers
from headrace.series.pipelines.step_data import build


def to_sklearn(part: Part, entity: str | None) -> Any:
    """The fitted scikit-learn Pipeline of an entity (None: of a fit for all). Raises `InputError` for a stranger."""
    place = int(part.places([entity or "all"])[0])
    if isinstance(part, ObjectScalers):
        return part.objects[place]
    return _pipeline(part, place)


def _pipeline(part: Scalers, place: int) -> Any:
    try:
        from sklearn.pipeline import Pipeline
    except ImportError:
        raise MissingExtra("scikit-learn", "series") from None
    return Pipeline(
        [(f"{number}_{each.step.word}", _step(each, place)) for number, each in enumerate(part.steps)]
        or [("as_is", "passthrough")]
    )


def _step(step: FittedStep, place: int) -> Any:
    made = build({"step": step.step.word, **step.step.params})
    fitted = {name: values[place].copy() for name, values in step.fitted.items()}
    columns = next((len(values) for values in fitted.values()), 0)
    if made is None:
        return _log(fitted["offset"])
    if columns:
        made.n_features_in_ = columns
    if step.step.word == "PowerTransformer":
        made.lambdas_ = fitted["lambda"]
        if step.standard is not None:
            made._scaler = _standard(fitted, step.standard[1][place])
        return made
    if step.step.word == "StandardScaler":
        assert step.affine is not None
        return _standard(fitted, step.affine[1][place], made)
    if step.step.word == "MinMaxScaler":
        assert step.affine is not None
        made.data_min_, made.data_max_ = fitted["data_min"], fitted["data_max"]
        made.data_range_ = made.data_max_ - made.data_min_
        made.scale_ = 1.0 / step.affine[1][place]
        made.min_ = made.feature_range[0] - made.data_min_ * made.scale_
        made.n_samples_seen_ = int(fitted["seen"].max())
    if step.step.word == "MaxAbsScaler":
        assert step.affine is not None
        made.max_abs_, made.scale_ = fitted["max_abs"], step.affine[1][place]
        made.n_samples_seen_ = int(fitted["seen"].max())
    if step.step.word == "RobustScaler":
        assert step.affine is not None
        made.center_ = fitted["median"] if made.with_centering else None
        made.scale_ = step.affine[1][place] if made.with_scaling else None
    return made


def _standard(fitted: dict[str, F64], scale: F64, made: Any = None) -> Any:
    if made is None:
        made = build({"step": "StandardScaler", "with_mean": True, "with_std": True})
    made.mean_, made.var_, made.n_features_in_ = fitted["mean"], fitted["var"], len(fitted["mean"])
    if not made.with_std:
        made.var_ = None
    made.scale_ = scale if made.with_std else None
    seen = fitted["seen"].astype(np.int64)
    made.n_samples_seen_ = int(seen[0]) if len(set(seen.tolist())) == 1 else seen
    return made


def _log(offset: F64) -> Any:
    if len(set(offset.tolist())) > 1:
        raise SettingsError("Log has no counterpart in scikit-learn where columns have offsets of their own")
    from sklearn.preprocessing import FunctionTransformer

    value = float(offset[0])
    return FunctionTransformer(
        func=_log_of, inverse_func=_back, kw_args={"offset": value}, inv_kw_args={"offset": value}
    )


def _log_of(x: F64, offset: float) -> F64:
    return np.asarray(np.log(x + offset))


def _back(x: F64, offset: float) -> F64:
    return np.asarray(np.exp(x) - offset)
