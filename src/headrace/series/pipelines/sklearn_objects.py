"""A native fit as scikit-learn's own fitted objects, for those who want to go on with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.arrays import F64
from headrace.errors import MissingExtra, SettingsError
from headrace.series.arrays.scalers import Scalers
from headrace.series.arrays.steps import FittedStep
from headrace.series.pipelines.objects import ObjectScalers
from headrace.series.pipelines.step_data import build


def to_sklearn(part: Scalers | ObjectScalers, entity: str | None) -> Any:
    """Return the fitted scikit-learn Pipeline of an entity; None: of a fit for all.

    Raises `InputError` for an entity that was not fitted, `SettingsError` for a step that scikit-learn does not have.
    """
    place = int(part.places([entity or "all"])[0])
    if isinstance(part, ObjectScalers):
        return part.objects[place]
    try:
        from sklearn.pipeline import Pipeline
    except ImportError:
        raise MissingExtra("scikit-learn", "series") from None
    steps = [(f"{number}_{each.step['step']}", _step(each, place)) for number, each in enumerate(part.steps)]
    return Pipeline(steps or [("as_is", "passthrough")])


def _step(step: FittedStep, place: int) -> Any:
    word = step.step["step"]
    fitted = {name: values[place].copy() for name, values in step.fitted.items()}
    if word == "Log":
        return _log(fitted["offset"])
    made = build(step.step)
    scale = None if step.linear is None else step.linear[1][place]
    if word == "StandardScaler":
        return _standard(made, fitted, scale)
    if fitted:
        made.n_features_in_ = len(next(iter(fitted.values())))
    if word == "PowerTransformer":
        made.lambdas_ = fitted["lambda"]
        if scale is not None:
            made._scaler = _standard(build({"step": "StandardScaler"}), fitted, scale)
    if word in ("MinMaxScaler", "MaxAbsScaler"):
        made.n_samples_seen_ = int(fitted["seen"].max())
    if word == "MinMaxScaler":
        assert scale is not None
        made.data_min_, made.data_max_ = fitted["data_min"], fitted["data_max"]
        made.data_range_ = made.data_max_ - made.data_min_
        made.scale_ = 1.0 / scale
        made.min_ = made.feature_range[0] - made.data_min_ * made.scale_
    if word == "MaxAbsScaler":
        made.max_abs_, made.scale_ = fitted["max_abs"], scale
    if word == "RobustScaler":
        made.center_ = fitted["median"] if made.with_centering else None
        made.scale_ = scale if made.with_scaling else None
    return made


def _standard(made: Any, fitted: Mapping[str, F64], scale: F64 | None) -> Any:
    made.mean_, made.n_features_in_ = fitted["mean"], len(fitted["mean"])
    made.var_, made.scale_ = (fitted["var"], scale) if made.with_std else (None, None)
    seen = fitted["seen"].astype(np.int64)
    made.n_samples_seen_ = int(seen[0]) if len(set(seen.tolist())) == 1 else seen
    return made


def _log(offset: F64) -> Any:
    from sklearn.preprocessing import FunctionTransformer

    if len(set(offset.tolist())) > 1:
        raise SettingsError("Log has no counterpart in scikit-learn where columns have offsets of their own")
    value = {"offset": float(offset[0])}
    return FunctionTransformer(func=_log_of, inverse_func=_back, kw_args=value, inv_kw_args=value)


def _log_of(x: F64, offset: float) -> F64:
    return np.asarray(np.log(x + offset))


def _back(x: F64, offset: float) -> F64:
    return np.asarray(np.exp(x) - offset)
