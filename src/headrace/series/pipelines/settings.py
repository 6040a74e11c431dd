"""Define pipelines as settings, checked before any work: their steps, who they are fitted for, and
their columns.

A step is data: `{"step": "StandardScaler", "with_mean": False}`, from YAML or scikit-learn objects.
The data hold everything that decides the result, so the run id distinguishes two settings of a
scaler. Steps that cannot be written as data (user functions, user classes) are refused. So is a
pipeline that is fitted already: its data do not hold what it learned, so a run would fit it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from pathlib import PurePath
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator, Field, field_validator, model_validator

from headrace.digest import derive_key
from headrace.errors import MissingExtra, SettingsError, setting_name
from headrace.keyed_hash import hash_texts
from headrace.series.arrays.steps import (
    ENCODERS,
    FUNCTIONS,
    NATIVE,
    StepData,
    complete,
    why_not_invertible,
)
from headrace.settings import Names, Settings

_NAN = "nan"  # JSON has no such number

# Parameters without effect on results, left out of the data; the same for encoders; and defaults to
# be left alone.
_NO_EFFECT = {"copy", "n_jobs", "verbose", "memory", "transform_input"}
_NO_EFFECT_ENCODING = {"dtype", "sparse_output", "encoded_missing_value"}
_LEFT_ENCODING = {"min_frequency": None, "max_categories": None, "feature_name_combiner": "concat"}
_CONTAINERS = {
    "ColumnTransformer": "give a list of pipelines, each with its columns",
    "FeatureUnion": "give one pipeline of steps; a step must keep the columns as they are",
}
_ELSEWHERE = ("sklearn.preprocessing", "sklearn.impute")
_FILES = (".joblib", ".skops", ".pkl", ".pickle", ".json")
_NOT_LEARNED = {"n_features_in_", "feature_names_in_"}  # even steps that learn nothing keep these


def as_steps(value: Any) -> list[StepData]:
    """Return a pipeline's steps, given as a word, a mapping, a list of them, or scikit-learn
    objects.

    Raises `SettingsError` for steps that cannot be written as data, `MissingExtra` for a step that
    needs scikit-learn.
    """
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        return _one(value)
    steps: list[StepData] = []
    for step in value:
        # scikit-learn's (name, step)
        named = isinstance(step, tuple) and len(step) == 2 and isinstance(step[0], str)
        steps += _one(step[1] if named else step)
    return steps


def refuse_fitted(value: Any) -> None:
    """Raise `SettingsError` for a fitted pipeline, a pipeline with a fitted step, or a file
    of one.
    """
    if isinstance(value, PurePath) or (isinstance(value, str) and value.lower().endswith(_FILES)):
        raise SettingsError(
            "a file with fitted steps, which would be fitted again on this run's train rows",
            setting="pipeline",
            value=str(value),
            remedy=(
                f"give steps, e.g. [StandardScaler], or {setting_name('pipelines_from')} to reuse a"
                " run's pipelines"
            ),
        )
    if isinstance(value, list | tuple):
        for step in value:
            if not isinstance(step, str | Mapping):
                refuse_fitted(step)
        return
    name = _fitted_word(value)
    if name is not None:
        raise SettingsError(
            f"{name} is fitted already, and would be fitted again on this run's train rows",
            remedy=(
                "give an unfitted one: sklearn.base.clone(…) of scikit-learn's, the .steps of"
                " one of headrace's"
            ),
        )


def _fitted_word(value: Any) -> str | None:
    """Return the name of the fitted object that a pipeline is or holds; None without one."""
    cls = type(value)
    if cls.__module__.partition(".")[0] == "headrace":
        if getattr(value, "is_fitted", True):
            return cls.__name__
        return None
    if isinstance(value, type) or not hasattr(value, "get_params"):
        return None
    for step in (value, *value.get_params(deep=True).values()):
        # the test of scikit-learn's check_is_fitted, ignoring attributes of steps that learn
        # nothing
        if hasattr(step, "get_params") and not isinstance(step, type):
            learned = set()
            for name in vars(step):
                if name.endswith("_") and not name.startswith("__"):
                    learned.add(name)
            if learned - _NOT_LEARNED:
                return type(step).__name__
    return None


def is_native(steps: Sequence[StepData]) -> bool:
    """Return whether all steps are native, that is, computed here as arrays."""
    return all(step["step"] in NATIVE for step in steps)


def goes_back(step: StepData, transformer: Any) -> bool:
    """Return whether a step's scikit-learn object can invert values; False for an imputer.

    An imputer inverts only columns that it added indicators for.
    """
    return step["step"] != "SimpleImputer" and hasattr(transformer, "inverse_transform")


def build(step: StepData) -> Any:
    """Return the unfitted scikit-learn object of a step. Raises `MissingExtra`."""
    word = step["step"]
    params = _without(step, {"step"})
    for name, value in params.items():
        if value == _NAN:
            params[name] = float("nan")
        elif name in ("feature_range", "quantile_range"):
            params[name] = tuple(value)
        elif word == "FunctionTransformer" and value is not None:
            params[name] = FUNCTIONS[value].call
    if word == "FunctionTransformer":
        params["check_inverse"] = False  # the check treats NaN as a failure
    if word == "MaxAbsScaler" and not params["clip"]:
        del params["clip"]  # older versions have no clip
    return _class(word)(**params)


def _one(value: Any) -> list[StepData]:
    if value is None or value == "passthrough":
        return []
    if isinstance(value, str):
        return _from_word(value, {})
    if isinstance(value, Mapping):
        if "step" in value:
            return _from_word(str(value["step"]), _without(value, {"step"}))
        word, params = next(iter(value.items()), ("", None))
        if len(value) != 1 or not (params is None or isinstance(params, Mapping)):
            raise SettingsError(
                "not a step",
                setting="pipeline",
                value=dict(value),
                remedy="write it as {step: StandardScaler}, with its parameters beside `step`",
            )
        return _from_word(str(word), params or {})
    steps = getattr(value, "steps", None)
    if isinstance(steps, list):  # a scikit-learn Pipeline
        return [step for _, step_object in steps for step in _one(step_object)]
    cls = type(value)
    word = cls.__name__
    if word in _CONTAINERS:
        raise SettingsError("not a step here", setting="step", value=word, remedy=_CONTAINERS[word])
    if isinstance(value, type):
        raise SettingsError(
            f"{value.__name__} is a class",
            setting="step",
            remedy=f"give an object, {value.__name__}()",
        )
    if not hasattr(value, "get_params") or cls.__module__.partition(".")[0] != "sklearn":
        raise SettingsError(
            f"{cls.__module__}.{word} cannot be written as data, so no run id could tell its"
            " versions apart",
            setting="step",
            remedy=(
                f"give scikit-learn's transformers or the steps {', '.join(NATIVE)}, or make the"
                " column beforehand"
            ),
        )
    params = _without(value.get_params(deep=False), _NO_EFFECT)
    return _from_word(word, _functions(params) if word == "FunctionTransformer" else params)


def _from_word(word: str, params: Mapping[str, Any]) -> list[StepData]:
    if word == "passthrough":
        return []
    if word in ENCODERS:
        left = set()
        for name, value in _LEFT_ENCODING.items():
            if name in params and params[name] == value:
                left.add(name)
        return [complete(word, _without(params, left | _NO_EFFECT_ENCODING))]
    if word not in NATIVE:
        return [_checked(word, params)]
    if (
        word == "FunctionTransformer"
        and "inverse_func" not in params
        and params.get("func") in FUNCTIONS
    ):
        params = {**params, "inverse_func": FUNCTIONS[params["func"]].inverse}
    return [complete(word, _without(params, _NO_EFFECT))]


def _without(params: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name not in names}


def _functions(params: Mapping[str, Any]) -> dict[str, Any]:
    named: dict[str, str | None] = {}
    for name in ("func", "inverse_func"):
        function = params[name]
        # compare numpy functions by identity: == could run the code of a foreign object
        named[name] = next(
            (word for word, known in FUNCTIONS.items() if known.call is function), None
        )
        if function is not None and named[name] is None:
            raise SettingsError(
                "this function of a FunctionTransformer cannot be written as data",
                setting=name,
                value=getattr(function, "__name__", function),
                remedy=(
                    "give one of numpy's, e.g. func=numpy.log1p, inverse_func=numpy.expm1, or make"
                    " the column beforehand"
                ),
            )
    for name in ("kw_args", "inv_kw_args"):
        if params.get(name):
            raise SettingsError(
                "a FunctionTransformer passes no arguments on here",
                setting=name,
                value=params[name],
                remedy="leave it out",
            )
    return named


def _checked(word: str, params: Mapping[str, Any]) -> StepData:
    """Return a step that scikit-learn computes, with all its parameters."""
    try:
        transformer = _class(word)(**params)
    except TypeError as error:
        raise SettingsError(
            str(error),
            setting="step",
            value=word,
            remedy="see its page in scikit-learn's documentation",
        ) from error
    full = _without(transformer.get_params(deep=False), _NO_EFFECT)
    if "random_state" in full and full["random_state"] is None:
        full["random_state"] = 0  # the same bytes on every run
    for name, value in full.items():
        if isinstance(value, tuple):
            full[name] = value = list(value)
        try:
            json.dumps(value)
        except TypeError:
            raise SettingsError(
                f"this value of {word} cannot be written as data",
                setting=name,
                value=value,
                remedy="give numbers, texts or lists",
            ) from None
        if isinstance(value, float) and value != value:
            full[name] = _NAN
    return {"step": word, **full}


def _class(word: str) -> Any:
    import importlib

    try:
        for name in _ELSEWHERE:
            cls = getattr(importlib.import_module(name), word, None)
            if isinstance(cls, type) and hasattr(cls, "transform"):
                return cls
    except ImportError:
        raise MissingExtra("scikit-learn", "series") from None
    raise SettingsError(
        "not a known step",
        setting="step",
        value=word,
        remedy=(
            f"give one of {', '.join(NATIVE)} or the transformers of {' and '.join(_ELSEWHERE)}"
        ),
    )


Strategy = Literal["per_group", "unified"]

_STANDARD = {"strategy": "per_group", "pipeline": ["StandardScaler"]}
_FITTED_ENTITIES = 100  # by default; their train rows are in memory


class PipelineSettings(Settings):
    """One pipeline over some columns.

    strategy: "per_group" fits every entity on its own train rows, "unified" fits once for all.
    pipeline: steps, in order: words with parameters (`{step: StandardScaler, with_mean: false}`),
    or through Python a scikit-learn transformer or Pipeline, a `GroupedPipeline` or a
    `UnifiedPipeline`. No steps leave values as they are. columns: which it scales; None: all of its
    role.
    fit_on_n_entities: how many entities a unified pipeline of time series is fitted on, by default
    100; their train rows are in memory.
    """

    strategy: Strategy
    pipeline: tuple[StepData, ...]
    columns: Names | None = None
    fit_on_n_entities: int | None = Field(None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _from_objects(cls, value: Any) -> Any:
        if isinstance(value, PipelineSettings):
            return value
        try:
            refuse_fitted(value.get("pipeline") if isinstance(value, dict) else value)
            if not isinstance(value, dict):
                raise ValueError(f"a pipeline is {value!r}; give strategy and pipeline")
            pipeline = value.get("pipeline")
            for_strategy = getattr(pipeline, "headrace_strategy", None)
            # GroupedPipeline, UnifiedPipeline
            if pipeline is not None and for_strategy is not None:
                if value.get("strategy", for_strategy) != for_strategy:
                    raise ValueError(
                        f"strategy is {value['strategy']!r} and the pipeline is a"
                        f" {type(pipeline).__name__}; give strategy {for_strategy!r}, or another"
                        " pipeline"
                    )
                value = {"columns": pipeline.columns, **value, "pipeline": list(pipeline.steps)}
            if "pipeline" in value:
                return {**value, "pipeline": tuple(as_steps(value["pipeline"]))}
            return value
        except SettingsError as error:
            raise ValueError(error.marked) from error

    @field_validator("columns")
    @classmethod
    def _some_columns(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and not value:
            raise ValueError(
                "columns is empty; name at least one, or leave it out for all of the role"
            )
        if value is not None and len(set(value)) < len(value):
            raise ValueError(f"columns are {', '.join(value)}; name each once")
        return value

    @model_validator(mode="after")
    def _fits(self) -> PipelineSettings:
        if self.encoder is None and any(step["step"] in ENCODERS for step in self.pipeline):
            words = " -> ".join(step["step"] for step in self.pipeline)
            raise ValueError(
                f"pipeline is {words}; an encoder is the only step of its pipeline, give it its own"
            )
        if self.strategy == "per_group" and self.fit_on_n_entities is not None:
            raise ValueError(
                f"fit_on_n_entities is {self.fit_on_n_entities} and strategy is per_group, which"
                " fits every entity on its own; leave fit_on_n_entities out, or give strategy:"
                " unified"
            )
        return self

    @property
    def encoder(self) -> StepData | None:
        """The step that encodes texts as numbers; None if this pipeline scales numbers."""
        alone = len(self.pipeline) == 1 and self.pipeline[0]["step"] in ENCODERS
        if alone:
            return self.pipeline[0]
        return None


# Unified, so that it also applies to entities that were not fitted; one entity is enough to fit it.
_AS_THEY_ARE = PipelineSettings(strategy="unified", pipeline=(), fit_on_n_entities=1)
Pipelines = Annotated[
    tuple[PipelineSettings, ...],
    BeforeValidator(lambda value: value if isinstance(value, list | tuple) else (value,)),
]


class Preprocessing(Settings):
    """The pipelines of features, target and static features.

    Several for one role must name their columns.

    joblib: "write" adds `.joblib` files beside the safe form, "never" leaves them out.
    """

    features: Pipelines = Field((PipelineSettings(**_STANDARD),), min_length=1)
    target: PipelineSettings = PipelineSettings(**_STANDARD)
    static_features: Pipelines = Field(
        (PipelineSettings(strategy="unified", pipeline=("StandardScaler",)),), min_length=1
    )
    joblib: Literal["write", "never"] = "write"

    def resolved(
        self,
        *,
        targets: Sequence[str],
        features: Sequence[str],
        static_features: Sequence[str] = (),
        categories: Sequence[str] = (),
    ) -> Resolved:
        """Return every pipeline with its columns; categories, which are features, get a pipeline
        without steps.

        Raises `SettingsError` if pipelines do not fit the columns.
        """
        for target in set(targets).intersection(features):
            raise SettingsError(
                "also a feature, which hands the answer to the model",
                setting="target",
                value=target,
                remedy=(
                    "take it out of the features (earlier values of the target are an input by"
                    f" {setting_name('is_autoregressive')})"
                ),
            )
        for pipeline in self.features:
            _check_time_series("features", pipeline)
            if not set(targets).isdisjoint(pipeline.columns or ()):
                raise SettingsError(
                    f"features: target {targets[0]!r} is among the columns",
                    setting="preprocessing_configs",
                    remedy="take it out, the target has a pipeline of its own",
                )
        _check_time_series("target", self.target)
        if tuple(self.target.columns or targets) != tuple(targets):
            raise SettingsError(
                f"target: columns are {', '.join(self.target.columns or ())}, the target is"
                f" {', '.join(targets)}",
                setting="preprocessing_configs",
                remedy="leave columns out",
            )
        _check_goes_back(self.target)
        if static_features and any(
            pipeline.strategy == "per_group" for pipeline in self.static_features
        ):
            raise SettingsError(
                "static_features: strategy is per_group, but an entity has one row of static"
                " features, and on its own it would be scaled to nothing",
                setting="preprocessing_configs",
                remedy="give strategy: unified",
            )
        return Resolved(
            features=(
                *map(
                    _with_count,
                    _covered(
                        "features", self.features, sorted(set(features).difference(categories))
                    ),
                ),
                *(
                    [_AS_THEY_ARE.model_copy(update={"columns": tuple(categories)})]
                    if categories
                    else ()
                ),
            ),
            target=(_with_count(self.target.model_copy(update={"columns": tuple(targets)})),),
            static_features=_covered("static_features", self.static_features, static_features),
        )


class Resolved(Settings):
    """Pipelines with their columns; together they cover each role's columns once."""

    features: tuple[PipelineSettings, ...]
    target: tuple[PipelineSettings, ...]
    static_features: tuple[PipelineSettings, ...]

    @property
    def time_series(self) -> tuple[PipelineSettings, ...]:
        """The pipelines of the target, then of the features."""
        return self.target + self.features

    @property
    def static_scaling(self) -> tuple[PipelineSettings, ...]:
        """The pipelines of static features that are numbers."""
        return tuple(pipeline for pipeline in self.static_features if pipeline.encoder is None)

    @property
    def static_encoding(self) -> tuple[PipelineSettings, ...]:
        """The pipelines of static features that are texts."""
        return tuple(pipeline for pipeline in self.static_features if pipeline.encoder is not None)

    @property
    def encoded(self) -> frozenset[str]:
        """The static features that are texts."""
        return frozenset(
            column for pipeline in self.static_encoding for column in pipeline.columns or ()
        )

    @property
    def unified_entities(self) -> int:
        """Number of entities whose train rows the unified pipelines need; 0 without such a
        pipeline.
        """
        return max(
            (
                pipeline.fit_on_n_entities or 0
                for pipeline in self.time_series
                if pipeline.strategy == "unified"
            ),
            default=0,
        )


def chosen_entities(entities: Sequence[str], count: int, seed: int) -> list[str]:
    """Choose `count` entities by their keyed hash, in its order; all if there are no more.

    The first n of them equal `chosen_entities(entities, n, seed)`, so pipelines with different
    counts share the rows that were read.
    """
    names = sorted(set(entities))
    high, low = hash_texts(derive_key(seed, "series.unified"), pa.array(names, pa.string()))
    return [names[index] for index in np.lexsort((low, high))[:count].tolist()]


def _check_time_series(role: str, pipeline: PipelineSettings) -> None:
    """Raise `SettingsError` for a pipeline that cannot scale columns of time series."""
    if pipeline.encoder is not None:
        raise SettingsError(
            f"{role}: {pipeline.encoder['step']} makes numbers of texts, and these are numbers",
            setting="preprocessing_configs",
            remedy="use it in static_features",
        )


def _with_count(pipeline: PipelineSettings) -> PipelineSettings:
    """Return a pipeline of time series with the number of entities that it is fitted on."""
    if pipeline.strategy == "per_group" or pipeline.fit_on_n_entities is not None:
        return pipeline
    return pipeline.model_copy(update={"fit_on_n_entities": _FITTED_ENTITIES})


def _check_goes_back(target: PipelineSettings) -> None:
    """Raise `SettingsError` if a step of the target's pipeline has no inverse."""
    native = is_native(target.pipeline)
    for step in target.pipeline:
        reason = None
        if native:
            reason = why_not_invertible(step)
        elif step["step"] != "Log" and not goes_back(step, build(step)):
            reason = f"{step['step']} has no inverse_transform"
        if reason is not None:
            raise SettingsError(
                f"target: predictions could not be brought back: {reason}, or choose another step",
                setting="preprocessing_configs",
            )


def _covered(
    role: str, pipelines: Sequence[PipelineSettings], columns: Sequence[str]
) -> tuple[PipelineSettings, ...]:
    """Return the pipelines of a role if together they name each column once.

    Raises `SettingsError` otherwise.
    """
    if not columns:
        return ()
    if len(pipelines) == 1 and pipelines[0].columns is None:
        return (pipelines[0].model_copy(update={"columns": tuple(sorted(columns))}),)
    named = [column for pipeline in pipelines for column in pipeline.columns or ()]
    unknown = sorted(set(named) - set(columns))
    left = sorted(set(columns) - set(named))
    twice = sorted({column for column in named if named.count(column) > 1})
    wrong = ""
    if any(pipeline.columns is None for pipeline in pipelines):
        wrong = f"has {len(pipelines)} pipelines, and one does not name its columns; name them"
    elif unknown:
        names = ", ".join(sorted(columns))
        wrong = f"columns {', '.join(unknown)} are not among the {role}: {names}; correct the names"
    elif twice:
        wrong = f"columns {', '.join(twice)} are in two pipelines; choose one"
    elif left:
        wrong = (
            f"columns {', '.join(left)} are in no pipeline; add them, or a pipeline without steps"
            " (pipeline: []) that leaves them as they are"
        )
    if wrong:
        raise SettingsError(f"{role}: {wrong}", setting="preprocessing_configs")
    return tuple(pipelines)
