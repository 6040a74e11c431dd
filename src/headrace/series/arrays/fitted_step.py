"""One step with what was measured for it: applied to rows and taken back, for fits that stand in rows of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np

from headrace.arrays import F64, I64
from headrace.series.arrays import power
from headrace.series.arrays.functions import FUNCTIONS
from headrace.series.arrays.steps import Step

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class FittedStep:
    """A step and what was measured for it: arrays [G, C], one row a fit, one column a column."""

    step: Step
    fitted: Mapping[str, F64]

    @cached_property
    def affine(self) -> tuple[F64, F64] | None:
        """(offset, scale) [G, C] of steps that are (x - offset) / scale; None for the others."""
        params, fitted = self.step.params, self.fitted
        if self.step.word == "StandardScaler":
            return _standard(params, fitted)
        if self.step.word == "MinMaxScaler":
            low, high = params["feature_range"]
            scale = _no_zero(fitted["data_max"] - fitted["data_min"]) / (high - low)
            return fitted["data_min"] - low * scale, scale
        if self.step.word == "MaxAbsScaler":
            return np.zeros_like(fitted["max_abs"]), _no_zero(fitted["max_abs"])
        if self.step.word == "RobustScaler":
            low, high = (share / 100 for share in params["quantile_range"])
            offset = fitted["median"] if params["with_centering"] else np.zeros_like(fitted["median"])
            if not params["with_scaling"]:
                return offset, np.ones_like(offset)
            scale = _no_zero(fitted["high"] - fitted["low"])
            if params["unit_variance"]:
                scale = scale / (NormalDist().inv_cdf(high) - NormalDist().inv_cdf(low))
            return offset, scale
        return None

    @cached_property
    def standard(self) -> tuple[F64, F64] | None:
        """(offset, scale) behind a power transform; None where it is not standardised."""
        if not self.step.params["standardize"]:
            return None
        return _standard({"with_mean": True, "with_std": True}, self.fitted)

    def forward(self, x: F64, group: I64) -> F64:
        """The values [N, C] of the groups [N] behind this step."""
        word, params = self.step.word, self.step.params
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            if self.affine is not None:
                offset, scale = self.affine
                x = (x - offset[group]) / scale[group]
                if params.get("clip"):
                    low, high = params.get("feature_range", (-1.0, 1.0))
                    x = np.clip(x, low, high)
                return x
            if word == "PowerTransformer":
                x = power.forward(params["method"], x, self.fitted["lambda"][group])
                if self.standard is not None:
                    x = (x - self.standard[0][group]) / self.standard[1][group]
                return x
            if word == "Log":
                return np.log(x + self.fitted["offset"][group])
            return x if params["func"] is None else np.asarray(FUNCTIONS[params["func"]].call(x))

    def backward(self, y: F64, group: I64) -> F64:
        """The values [N, C] before this step."""
        word, params = self.step.word, self.step.params
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            if self.affine is not None:
                offset, scale = self.affine
                return y * scale[group] + offset[group]
            if word == "PowerTransformer":
                if self.standard is not None:
                    y = y * self.standard[1][group] + self.standard[0][group]
                return power.backward(params["method"], y, self.fitted["lambda"][group])
            if word == "Log":
                return np.exp(y) - self.fitted["offset"][group]
            return y if params["inverse_func"] is None else np.asarray(FUNCTIONS[params["inverse_func"]].call(y))


def _standard(params: Mapping[str, Any], fitted: Mapping[str, F64]) -> tuple[F64, F64]:
    mean, var, seen = fitted["mean"], fitted["var"], fitted["seen"]
    constant = var <= seen * _EPS * var + np.square(seen * mean * _EPS)
    scale = np.where(constant, 1.0, np.sqrt(var)) if params["with_std"] else np.ones_like(var)
    return mean if params["with_mean"] else np.zeros_like(mean), scale


def _no_zero(scale: F64) -> F64:
    return np.where(scale < 10 * _EPS, 1.0, scale)
