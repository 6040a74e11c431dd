"""The steps that are computed here, without scikit-learn: their names, parameters and defaults.

A step is data: a word and its parameters. Words and parameters are scikit-learn's where it has such a transformer, and
so are the results; `Log` has none there.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import SettingsError
from headrace.series.arrays.functions import FUNCTIONS

_Check = Callable[[Any], str | None]


@dataclass(frozen=True)
class Step:
    """One step of a pipeline: a word of `NATIVE` and all of its parameters."""

    word: str
    params: Mapping[str, Any]


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _number(value: Any) -> str | None:
    return None if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 else "a number"


def _pair(low: float, high: float) -> _Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, list | tuple) or len(value) != 2 or any(_number(each) for each in value):
            return "two numbers"
        return None if low <= value[0] < value[1] <= high else f"two ascending numbers from {low:g} to {high:g}"

    return check


def _function(value: Any) -> str | None:
    return None if value is None or value in FUNCTIONS else f"one of {', '.join(FUNCTIONS)}"


def _method(value: Any) -> str | None:
    return None if value in ("yeo-johnson", "box-cox") else "yeo-johnson or box-cox"


def _share(value: Any) -> str | None:
    return _number(value) or (None if value >= 0 else "0 or more")


NATIVE: dict[str, dict[str, tuple[Any, _Check]]] = {
    "StandardScaler": {"with_mean": (True, _flag), "with_std": (True, _flag)},
    "MinMaxScaler": {"feature_range": ([0, 1], _pair(-1e30, 1e30)), "clip": (False, _flag)},
    "MaxAbsScaler": {"clip": (False, _flag)},
    "RobustScaler": {
        "with_centering": (True, _flag),
        "with_scaling": (True, _flag),
        "quantile_range": ([25.0, 75.0], _pair(0, 100)),
        "unit_variance": (False, _flag),
    },
    "PowerTransformer": {"method": ("yeo-johnson", _method), "standardize": (True, _flag)},
    "FunctionTransformer": {"func": (None, _function), "inverse_func": (None, _function)},
    "Log": {"offset": (0.0, _number), "mean_share": (0.0, _share)},
}


def complete(word: str, params: Mapping[str, Any]) -> Step:
    """The step with all its parameters, defaults filled in. Raises `SettingsError` for what it does not know."""
    known = NATIVE[word]
    for name in params:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise SettingsError(f"{word}: {name!r} is no parameter; {hint}")
    full = {}
    for name, (default, check) in known.items():
        value = params.get(name, default)
        wanted = check(value)
        if wanted is not None:
            raise SettingsError(f"{word}: {name} is {value!r}; give {wanted}")
        full[name] = _plain(value)
    if word == "Log" and not full["offset"] and not full["mean_share"]:
        raise SettingsError("Log: offset is 0 and mean_share is 0, so zeros have no logarithm; give offset, e.g. 0.01")
    return Step(word, full)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [float(each) for each in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def why_not_invertible(step: Step) -> str | None:
    """Why values cannot be brought back through this step; None if they can."""
    if step.word == "FunctionTransformer" and step.params["func"] and not step.params["inverse_func"]:
        return f"FunctionTransformer({step.params['func']}) has no inverse; give inverse_func"
    if step.params.get("clip"):
        return f"{step.word} clips, and what is clipped cannot be brought back; set clip: false"
    return None
