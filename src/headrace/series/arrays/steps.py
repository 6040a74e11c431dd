"""Define the native steps, which need no scikit-learn: their parameters, and how a fitted step maps
values.

A step is data: a word and its parameters. Words, parameters and results equal scikit-learn's where
it has such a transformer; it has none for `Log`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np

from headrace.arrays import F64, I64
from headrace.errors import SettingsError

StepData = dict[str, Any]  # {"step": WORD, parameter: value, …}

ENCODERS = ("OneHotEncoder", "OrdinalEncoder")

_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Function:
    """A function of single values that a pipeline may name.

    inverse: the name of its inverse; None: it has none. above: the result is finite for values
    greater than this, and at `above` itself only if `closed`.
    """

    call: Callable[..., Any]
    inverse: str | None = None
    above: float = -np.inf
    closed: bool = False


FUNCTIONS = {
    "arcsinh": Function(np.arcsinh, "sinh"),
    "cbrt": Function(np.cbrt, "power_3"),
    "exp": Function(np.exp, "log"),
    "exp2": Function(np.exp2, "log2"),
    "expm1": Function(np.expm1, "log1p"),
    "identity": Function(np.positive, "identity"),
    "log": Function(np.log, "exp", 0.0),
    "log10": Function(np.log10, "power_of_10", 0.0),
    "log1p": Function(np.log1p, "expm1", -1.0),
    "log2": Function(np.log2, "exp2", 0.0),
    "negative": Function(np.negative, "negative"),
    "power_3": Function(lambda x: x * x * x, "cbrt"),
    "power_of_10": Function(lambda x: np.power(10.0, x), "log10"),
    "sinh": Function(np.sinh, "arcsinh"),
    "sqrt": Function(np.sqrt, "square", 0.0, closed=True),
    "square": Function(np.square, "sqrt"),
    "tanh": Function(np.tanh, "arctanh"),
    "arctanh": Function(np.arctanh, "tanh", -1.0),
}


# Converters of parameters to step data; a ValueError states the expected value.


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _number(value: Any, least: float = -1e300) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < 1e300:
        raise ValueError("a number" if least < 0 else "0 or more")
    return float(value)


def _pair(low: float, high: float) -> Callable[[Any], list[float]]:
    def convert(value: Any) -> list[float]:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise ValueError("two numbers")
        first = _number(value[0])
        second = _number(value[1])
        if not low <= first < second <= high:
            raise ValueError(f"two ascending numbers from {low:g} to {high:g}")
        return [first, second]

    return convert


def _one_of(*words: Any) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if (not isinstance(value, str) and value is not None) or value not in words:
            raise ValueError(f"one of {', '.join(map(str, words))}")
        return value

    return convert


def _categories(value: Any) -> Any:
    if isinstance(value, str) and value == "auto":
        return value
    if not isinstance(value, list | tuple) or not all(map(_are_different_texts, value)):
        raise ValueError("auto, or for each column a list of different texts")
    return list(map(list, value))


def _are_different_texts(value: Any) -> bool:
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(text, str) for text in value) and len(set(value)) == len(value)


def _unknown_value(value: Any) -> Any:
    if value is not None:
        _number(value)
    return value


_FUNCTION = _one_of(None, *FUNCTIONS)

# name → default, conversion
_PARAMETERS: dict[str, dict[str, tuple[Any, Callable[[Any], Any]]]] = {
    "StandardScaler": {"with_mean": (True, _flag), "with_std": (True, _flag)},
    "MinMaxScaler": {"feature_range": ([0, 1], _pair(-1e30, 1e30)), "clip": (False, _flag)},
    "MaxAbsScaler": {"clip": (False, _flag)},
    "RobustScaler": {
        "with_centering": (True, _flag),
        "with_scaling": (True, _flag),
        "quantile_range": ([25.0, 75.0], _pair(0, 100)),
        "unit_variance": (False, _flag),
    },
    "PowerTransformer": {
        "method": ("yeo-johnson", _one_of("yeo-johnson", "box-cox")),
        "standardize": (True, _flag),
    },
    "FunctionTransformer": {"func": (None, _FUNCTION), "inverse_func": (None, _FUNCTION)},
    "Log": {"offset": (0.0, _number), "mean_share": (0.0, lambda value: _number(value, 0.0))},
    "OneHotEncoder": {
        "categories": ("auto", _categories),
        "drop": (None, _one_of(None, "first", "if_binary")),
        "handle_unknown": ("error", _one_of("error", "ignore")),
    },
    "OrdinalEncoder": {
        "categories": ("auto", _categories),
        "handle_unknown": ("error", _one_of("error", "use_encoded_value")),
        "unknown_value": (None, _unknown_value),
    },
}

NATIVE = tuple(word for word in _PARAMETERS if word not in ENCODERS)


def complete(word: str, params: Mapping[str, Any]) -> StepData:
    """Return the step for a word of `NATIVE` or `ENCODERS` with all its parameters, defaults filled
    in.

    Raises `SettingsError` for an unknown parameter or value.
    """
    known = _PARAMETERS[word]
    for name in params:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            if near:
                remedy = f"did you mean {near[0]!r}?"
            else:
                remedy = f"choose one of {', '.join(known)}"
            raise SettingsError(f"not a parameter of {word}", setting=name, remedy=remedy)
    full = {}
    for name, (default, convert) in known.items():
        value = params.get(name, default)
        try:
            full[name] = convert(value)
        except ValueError as error:
            raise SettingsError(
                f"not a value of {word}", setting=name, value=value, remedy=f"give {error}"
            ) from None
    if word == "Log" and not full["offset"] and not full["mean_share"]:
        raise SettingsError(
            "with mean_share 0, zeros have no logarithm",
            setting="offset",
            value=0,
            remedy="give Log an offset, e.g. 0.01",
        )
    if word == "OrdinalEncoder":
        value = full["unknown_value"]
        if (value is not None) != (full["handle_unknown"] == "use_encoded_value"):
            raise SettingsError(
                f"handle_unknown of {word} is {full['handle_unknown']!r}",
                setting="unknown_value",
                value=value,
                remedy=(
                    "give a number, e.g. -1, with handle_unknown: use_encoded_value, and none"
                    " otherwise"
                ),
            )
    return {"step": word, **full}


def why_not_invertible(step: StepData) -> str | None:
    """Return the reason why this step cannot be inverted; None if it can."""
    if step["step"] == "FunctionTransformer" and step["func"] and not step["inverse_func"]:
        return f"FunctionTransformer({step['func']}) has no inverse; give inverse_func"
    if step.get("clip"):
        return f"{step['step']} clips, and what is clipped cannot be brought back; set clip: false"
    return None


@dataclass(frozen=True)
class FittedStep:
    """A step and its measured numbers: arrays [G, C], one row per fit.

    A step is a curve and then a linear part, (x - offset) / scale; most steps have only one of the
    two.
    """

    step: StepData
    fitted: Mapping[str, F64]

    @cached_property
    def linear(self) -> tuple[F64, F64] | None:  # noqa: PLR0911 - one case each
        """The pair (offset, scale) [G, C]; None for a step without a linear part."""
        word = self.step["step"]
        step = self.step
        fitted = self.fitted
        if word == "StandardScaler":
            return self._standard(with_mean=step["with_mean"], with_std=step["with_std"])
        if word == "PowerTransformer" and step["standardize"]:
            return self._standard()
        if word == "MinMaxScaler":
            low, high = step["feature_range"]
            scale = _no_zero(fitted["data_max"] - fitted["data_min"]) / (high - low)
            return fitted["data_min"] - low * scale, scale
        if word == "MaxAbsScaler":
            return np.zeros_like(fitted["max_abs"]), _no_zero(fitted["max_abs"])
        if word == "RobustScaler":
            if step["with_centering"]:
                offset = fitted["median"]
            else:
                offset = np.zeros_like(fitted["median"])
            if not step["with_scaling"]:
                return offset, np.ones_like(offset)
            scale = _no_zero(fitted["high"] - fitted["low"])
            if step["unit_variance"]:
                low, high = (
                    NormalDist().inv_cdf(percent / 100) for percent in step["quantile_range"]
                )
                scale = scale / (high - low)
            return offset, scale
        return None

    def _standard(self, *, with_mean: bool = True, with_std: bool = True) -> tuple[F64, F64]:
        mean = self.fitted["mean"]
        var = self.fitted["var"]
        seen = self.fitted["seen"]
        with np.errstate(over="ignore"):
            constant = var <= seen * _EPS * var + np.square(seen * mean * _EPS)
        if with_std:
            scale = np.where(constant, 1.0, np.sqrt(var))
        else:
            scale = np.ones_like(var)
        return mean if with_mean else np.zeros_like(mean), scale

    @property
    def is_always_finite(self) -> bool:
        """Return whether every finite value has a finite result."""
        return self.linear is not None and self.step["step"] != "PowerTransformer"

    def forward(self, x: F64, group: I64) -> F64:
        """Apply the step to values [N, C] of the groups [N]; NaN or infinite if there is no
        result.
        """
        word = self.step["step"]
        step = self.step
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            if word == "PowerTransformer":
                x = power(step["method"], x, self.fitted["lambda"][group])
            elif word == "Log":
                x = np.log(x + self.fitted["offset"][group])
            elif word == "FunctionTransformer" and step["func"] is not None:
                x = np.asarray(FUNCTIONS[step["func"]].call(x))
            if self.linear is not None:
                offset, scale = self.linear
                x = (x - offset[group]) / scale[group]
            if step.get("clip"):
                return np.clip(x, *step.get("feature_range", (-1.0, 1.0)))
            return x

    def backward(self, y: F64, group: I64) -> F64:
        """Invert the step for values [N, C] of the groups [N]."""
        word = self.step["step"]
        step = self.step
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            if self.linear is not None:
                offset, scale = self.linear
                y = y * scale[group] + offset[group]
            if word == "PowerTransformer":
                return _power_back(step["method"], y, self.fitted["lambda"][group])
            if word == "Log":
                return np.exp(y) - self.fitted["offset"][group]
            if word == "FunctionTransformer" and step["inverse_func"] is not None:
                return np.asarray(FUNCTIONS[step["inverse_func"]].call(y))
            return y


def _no_zero(scale: F64) -> F64:
    return np.where(scale < 10 * _EPS, 1.0, scale)


def power(method: str, x: F64, exponent: F64) -> F64:
    """Apply the power transforms of Yeo and Johnson (2000), or Box and Cox (1964), with an exponent
    for each value.

    NaN stays NaN; Box-Cox of 0 or less is NaN.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        if method == "box-cox":
            return np.where(x > 0, _raised(np.log(np.where(x > 0, x, np.nan)), exponent), np.nan)
        above = _raised(np.log1p(np.maximum(x, 0.0)), exponent)
        below = -_raised(np.log1p(-np.minimum(x, 0.0)), 2.0 - exponent)
        return np.where(x >= 0, above, below)  # NaN is not >= 0, and np.minimum keeps it


def _power_back(method: str, y: F64, exponent: F64) -> F64:
    if method == "box-cox":
        return np.exp(_lowered(y, exponent))
    above = np.expm1(_lowered(np.maximum(y, 0.0), exponent))
    below = -np.expm1(_lowered(-np.minimum(y, 0.0), 2.0 - exponent))
    return np.where(y >= 0, above, below)


def _raised(logarithm: F64, exponent: F64) -> F64:
    flat = np.abs(exponent) < _EPS
    return np.where(flat, logarithm, np.expm1(exponent * logarithm) / np.where(flat, 1.0, exponent))


def _lowered(y: F64, exponent: F64) -> F64:
    flat = np.abs(exponent) < _EPS
    return np.where(flat, y, np.log1p(exponent * y) / np.where(flat, 1.0, exponent))
