"""A configuration for series, from a look at the data: its sections and their words."""

from __future__ import annotations

from typing import Any

from headrace.cli.init.asked import AskedSeries
from headrace.cli.init.commented import Aside, Section, settings_of
from headrace.series.config import Series
from headrace.series.init_facts import GAP, TRAIN, look_at_series
from headrace.series.init_roles import Draft, draft_of
from headrace.series.init_statics import look_at_statics

_MANY = 10_000  # files per split; more entities are packed


def series_sections(asked: AskedSeries) -> tuple[list[Section], str]:
    """The sections of the configuration, and a line about the data. Raises `SettingsError`, `InputError`."""
    draft = draft_of(asked)
    look_at_series(draft, asked)
    if asked.static:
        look_at_statics(draft, asked)
    sections = _sections(draft, asked)
    Series(**{name: value for name, value in settings_of(sections).items() if name not in ("recipe", "out")})
    return sections, draft.about


def _sections(draft: Draft, asked: AskedSeries) -> list[Section]:
    settings, words = draft.settings, draft.words
    count = len(draft.entities)

    def some(*names: str) -> dict[str, Any]:
        return {name: settings[name] for name in names if name in settings}

    features = " ".join(words[name] for name in ("features", "empty", "near", "starved") if name in words)
    sections = [
        Section(
            f"Written by `headrace init series` after a look at the data: {draft.about}.\n"
            f"Paths are relative to where the command is run. Every setting is explained in docs/series.md.",
            {"recipe": "series", "out": asked.out},
        ),
        Section(words["source"], some("source", "reader", "forcing", "entity")),
        Section(
            f"The time axis, {words['period']} in what was looked at. Missing steps become rows."
            + "".join(f" {words[name]}" for name in ("frequency", "times") if name in words),
            some("time", "time_format", "frequency", "duplicate_times", "off_grid"),
        ),
        Section(
            f"What is predicted, and from what. {features}".strip(),
            some("target", "features", "missing_numbers"),
        ),
    ]
    if "missing_numbers" in words:
        sections[-1].words += f"\n{words['missing_numbers']}."
    if "static" in settings:
        sections.append(
            Section(
                f"Static features. {words.get('static', '')}".strip(),
                some("static", "static_entity", "static_features", "missing_static"),
            )
        )
    sections += [
        Section(
            "Each entity is cut by time, by shares of its observed targets.",
            {"train_prop": TRAIN, "val_prop": 0.2, "test_prop": 0.2},
        ),
        Section(words["min_train_years"], {"min_train_years": settings["min_train_years"]}),
        Section(
            f"{words['gaps']} Gaps of features of at most so many steps are filled with the value before them, longer "
            f"ones are left as they are, and windows over them are not served. A mask column says what was filled.",
            {"max_imputation_gap_size": GAP, "impute_target": "never", "filled_mask": Aside("columns")},
        ),
        _scaling(settings, draft.texts),
        Section(
            "Entities that are worked on at a time decide the memory. The seed chooses those that unified pipelines "
            "are fitted on. layout: files writes one per entity and split, packed one per batch and split.",
            {"batch_size": 50, "seed": 42, "layout": "packed" if count > _MANY else "files"},
        ),
    ]
    return sections


def _scaling(settings: dict[str, Any], texts: list[str]) -> Section:
    own = {"strategy": "per_group", "pipeline": [{"step": "StandardScaler"}]}
    pipelines: dict[str, Any] = {"features": own, "target": {**own, "pipeline": [{"step": "StandardScaler"}]}}
    pipelines["features"] = {**own, "pipeline": [{"step": "StandardScaler"}]}
    if "static" in settings:
        scaled: dict[str, Any] = {"strategy": "unified", "pipeline": [{"step": "StandardScaler"}]}
        encoded = {"strategy": "unified", "columns": texts, "pipeline": [{"step": "OneHotEncoder"}]}
        numbers = [name for name in settings["static_features"] if name not in texts]
        both = [{**scaled, "columns": numbers}, encoded] if numbers else encoded
        pipelines["static_features"] = both if texts else scaled
    return Section(
        "Scaling, fitted on train rows alone. per_group: every entity by its own numbers. unified: one for all, which "
        "keeps what differs between entities; say how many it is fitted on, e.g. {strategy: unified, fit_on_n_basins: "
        "100, pipeline: [...]}.\n"
        "Steps: StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler, PowerTransformer, Log, FunctionTransformer, "
        "e.g. [{step: FunctionTransformer, func: log1p}, {step: StandardScaler}]; see docs/series_pipelines.md.",
        {"preprocessing_configs": pipelines},
    )
