"""Pipelines as settings: which steps, fitted for whom, over which columns. Checked before any work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator, Field, field_validator, model_validator

from headrace.digest import derive_key, hash_texts
from headrace.errors import SettingsError
from headrace.series.arrays.steps import ENCODERS, StepData, why_not_invertible
from headrace.series.pipelines.step_data import as_steps, build, goes_back, is_native, refuse_fitted
from headrace.settings import Names, Settings

Strategy = Literal["per_group", "unified"]

_STANDARD = {"strategy": "per_group", "pipeline": ["StandardScaler"]}


class PipelineSettings(Settings):
    """One pipeline over some columns.

    strategy: "per_group" fits every entity on its own train rows, "unified" fits once for all.
    pipeline: steps, in order: words with parameters (`{step: StandardScaler, with_mean: false}`), or through Python a
    scikit-learn transformer or Pipeline, a `GroupedPipeline` or a `UnifiedPipeline`. No steps leave values as they are.
    columns: which it scales; None: all of its role.
    fit_on_n_basins: how many entities a unified pipeline of time series is fitted on; their train rows are in memory.
    """

    strategy: Strategy
    pipeline: tuple[StepData, ...]
    columns: Names | None = None
    fit_on_n_basins: int | None = Field(None, ge=1)

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
            if pipeline is not None and for_strategy is not None:  # GroupedPipeline, UnifiedPipeline
                if value.get("strategy", for_strategy) != for_strategy:
                    raise ValueError(
                        f"strategy is {value['strategy']!r} and the pipeline is a {type(pipeline).__name__}; "
                        f"give strategy {for_strategy!r}, or another pipeline"
                    )
                value = {"columns": pipeline.columns, **value, "pipeline": list(pipeline.steps)}
            return {**value, "pipeline": tuple(as_steps(value["pipeline"]))} if "pipeline" in value else value
        except SettingsError as error:
            raise ValueError(str(error)) from error

    @field_validator("columns")
    @classmethod
    def _some_columns(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and not value:
            raise ValueError("columns is empty; name at least one, or leave it out for all of the role")
        if value is not None and len(set(value)) < len(value):
            raise ValueError(f"columns are {', '.join(value)}; name each once")
        return value

    @model_validator(mode="after")
    def _fits(self) -> PipelineSettings:
        if self.encoder is None and any(each["step"] in ENCODERS for each in self.pipeline):
            words = " -> ".join(each["step"] for each in self.pipeline)
            raise ValueError(f"pipeline is {words}; an encoder is the only step of its pipeline, give it its own")
        if self.strategy == "per_group" and self.fit_on_n_basins is not None:
            raise ValueError(
                f"fit_on_n_basins is {self.fit_on_n_basins} and strategy is per_group, which fits every entity on its "
                f"own; leave fit_on_n_basins out, or give strategy: unified"
            )
        return self

    @property
    def encoder(self) -> StepData | None:
        """The step that makes numbers of texts; None if this pipeline scales numbers."""
        alone = len(self.pipeline) == 1 and self.pipeline[0]["step"] in ENCODERS
        return self.pipeline[0] if alone else None


def _one_or_more(value: object) -> object:
    return value if isinstance(value, list | tuple) else (value,)


Pipelines = Annotated[tuple[PipelineSettings, ...], BeforeValidator(_one_or_more)]


class Preprocessing(Settings):
    """The pipelines of features, target and static features. Several for one role must name their columns.

    joblib: "write" adds `.joblib` files beside the safe form, "never" leaves them out.
    """

    features: Pipelines = Field((PipelineSettings(**_STANDARD),), min_length=1)
    target: PipelineSettings = PipelineSettings(**_STANDARD)
    static_features: Pipelines = Field(
        (PipelineSettings(strategy="unified", pipeline=("StandardScaler",)),), min_length=1
    )
    joblib: Literal["write", "never"] = "write"

    def resolved(self, *, target: str, features: Sequence[str], static_features: Sequence[str] = ()) -> Resolved:
        """Return every pipeline with its columns. Raises `SettingsError` where they do not fit the columns."""
        if target in features:
            raise SettingsError(
                f"target {target!r} is among the features, which hands the answer to the model; take it out "
                f"(earlier values of the target are an input by is_autoregressive)"
            )
        for role, pipelines in (("features", self.features), ("target", (self.target,))):
            for each in pipelines:
                where = f"preprocessing_configs.{role}"
                if each.encoder is not None:
                    raise SettingsError(
                        f"{where}: {each.encoder['step']} makes numbers of texts, and {role} are numbers; use it in "
                        f"static_features"
                    )
                if role == "features" and target in (each.columns or ()):
                    raise SettingsError(
                        f"{where}: target {target!r} is among the columns; take it out, the target has a pipeline of "
                        f"its own"
                    )
                if each.strategy == "unified" and each.fit_on_n_basins is None:
                    raise SettingsError(
                        f"{where}: strategy is unified without fit_on_n_basins; give how many entities it is fitted "
                        f"on, e.g. fit_on_n_basins: 100 (their train rows are held in memory)"
                    )
        if tuple(self.target.columns or (target,)) != (target,):
            raise SettingsError(
                f"preprocessing_configs.target: columns are {', '.join(self.target.columns or ())}, the target is "
                f"{target}; leave columns out"
            )
        for step in self.target.pipeline:
            reason = None
            if is_native(self.target.pipeline):
                reason = why_not_invertible(step)
            elif step["step"] != "Log" and not goes_back(step, build(step)):
                reason = f"{step['step']} has no inverse_transform"
            if reason is not None:
                raise SettingsError(
                    f"preprocessing_configs.target: predictions could not be brought back: {reason}, or choose another "
                    f"step"
                )
        if static_features and any(each.strategy == "per_group" for each in self.static_features):
            raise SettingsError(
                "preprocessing_configs.static_features: strategy is per_group, but an entity has one row of static "
                "features, and on its own it would be scaled to nothing; give strategy: unified"
            )
        return Resolved(
            features=_covered("features", self.features, features),
            target=(self.target.model_copy(update={"columns": (target,)}),),
            static_features=_covered("static_features", self.static_features, static_features),
        )


class Resolved(Settings):
    """Pipelines that name their columns; together they cover each role's columns once."""

    features: tuple[PipelineSettings, ...]
    target: tuple[PipelineSettings, ...]
    static_features: tuple[PipelineSettings, ...]

    @property
    def time_series(self) -> tuple[PipelineSettings, ...]:
        """Target first, then features."""
        return self.target + self.features

    @property
    def static_scaling(self) -> tuple[PipelineSettings, ...]:
        """Those of static features that are numbers."""
        return tuple(each for each in self.static_features if each.encoder is None)

    @property
    def static_encoding(self) -> tuple[PipelineSettings, ...]:
        """Those of static features that are texts."""
        return tuple(each for each in self.static_features if each.encoder is not None)

    @property
    def encoded(self) -> frozenset[str]:
        """The static features that are texts."""
        return frozenset(column for each in self.static_encoding for column in each.columns or ())

    @property
    def unified_entities(self) -> int:
        """Count the entities whose train rows the unified pipelines need; 0 where there is no such pipeline."""
        return max((each.fit_on_n_basins or 0 for each in self.time_series if each.strategy == "unified"), default=0)


def chosen_entities(entities: Sequence[str], count: int, seed: int) -> list[str]:
    """`count` of the entities by their keyed hash, in its order; all if there are no more.

    The first n of them are what `chosen_entities(entities, n, seed)` gives, so pipelines with different counts share
    the rows that were read.
    """
    names = sorted(set(entities))
    high, low = hash_texts(derive_key(seed, "series.unified"), pa.array(names, pa.string()))
    return [names[place] for place in np.lexsort((low, high))[:count].tolist()]


def _covered(role: str, pipelines: Sequence[PipelineSettings], columns: Sequence[str]) -> tuple[PipelineSettings, ...]:
    """The pipelines of a role, which together name each of its columns once. Raises `SettingsError` if they do not."""
    if not columns:
        return ()
    if len(pipelines) == 1 and pipelines[0].columns is None:
        return (pipelines[0].model_copy(update={"columns": tuple(sorted(columns))}),)
    named = [column for each in pipelines for column in each.columns or ()]
    unknown, left = sorted(set(named) - set(columns)), sorted(set(columns) - set(named))
    twice = sorted({column for column in named if named.count(column) > 1})
    wrong = ""
    if any(each.columns is None for each in pipelines):
        wrong = f"has {len(pipelines)} pipelines, and one does not name its columns; name them"
    elif unknown:
        names = ", ".join(sorted(columns))
        wrong = f"columns {', '.join(unknown)} are not among the {role}: {names}; correct the names"
    elif twice:
        wrong = f"columns {', '.join(twice)} are in two pipelines; choose one"
    elif left:
        wrong = (
            f"columns {', '.join(left)} are in no pipeline; add them, or a pipeline without steps (pipeline: []) that "
            f"leaves them as they are"
        )
    if wrong:
        raise SettingsError(f"preprocessing_configs.{role}: {wrong}")
    return tuple(pipelines)
