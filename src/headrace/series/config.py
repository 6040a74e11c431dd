"""Define the settings of series, and a builder for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from headrace.checks import instant_us
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import SettingsError
from headrace.folds.settings import Folds
from headrace.series.arrays.calendar import CALENDAR, calendar_names
from headrace.series.parts import DIVIDE, Division, undividable
from headrace.series.pipelines.settings import Preprocessing, Resolved
from headrace.series.source_settings import FILE_NAME, SourceSettings, column, repeated, source_faults, time_faults
from headrace.settings import Duplicates, Names, never_groups
from headrace.storage.settings import LocalPath, Places

if TYPE_CHECKING:
    from headrace.series.reuse import NamedRun

FILLED = "__filled"  # suffix of the mask column that marks values carried forward

_ROLES = ("more_targets", "past_features", "future_features", "categories", "calendar")
_RATIOS_SUM = 1e-9
_ROWS: dict[str, Any] = {"panel": "Rows that do not fit", "former_words": {"fail": "error"}}
_static = partial(Field, json_schema_extra={"panel": "Static features"})
_rows = partial(Field, json_schema_extra=_ROWS)
_held = partial(Field, json_schema_extra={"panel": "Held-out entities"})


def _ratio(default: float, former: str, **bounds: Any) -> Any:
    return Field(default, json_schema_extra={"former": [former]}, **bounds)


def _numbers(value: object) -> object:
    if isinstance(value, int | float):
        return (float(value),)
    return tuple(value) if isinstance(value, list) else value


def _target_or_run(schema: dict[str, Any]) -> None:
    schema["required"].remove("target")
    schema["anyOf"] = [{"required": ["target"]}, {"required": ["pipelines_from"]}]  # the named run has the target


class Series(SourceSettings):
    """Time series of many entities: on a regular axis, cleaned, split by time and scaled by what trains.

    Raises `SettingsError` when built with values that cannot work.
    """

    model_config = ConfigDict(json_schema_extra=_target_or_run)

    recipe_name: ClassVar[str] = "series"
    later: ClassVar[Sequence[tuple[str, ...]]] = (
        *((name,) for name in ("duplicates", "train_end", "val_end", "pipelines_from", *DIVIDE, *_ROLES, "trim")),
        *((name,) for name in ("comment", "decimal", "encoding", "business_days", "snap", "resample")),
        ("time_zone", "ambiguous_times", "nonexistent_times"),
    )

    target: str = column(min_length=1, description="Column to predict.")
    more_targets: Names = column(
        (), description="Further columns to predict, scaled like target; target alone decides where shares cut."
    )
    features: Names = column((), description="Forcing columns.")
    past_features: Names = column((), description="Features known only up to the last input, such as sales.")
    future_features: Names = column(
        (), description="Features known ahead, such as promotions. Default: all but past_features."
    )
    categories: Mapping[str, Names] = column(
        {},
        description="Text features, and the texts that each may hold; stored as positions in this list.",
    )
    calendar: Names = column(
        (), description="Parts of the time as features, each as a sine and a cosine: " + ", ".join(CALENDAR) + "."
    )
    null_values: Names = column(("NA",), description="Texts that mean missing.")
    missing_numbers: Annotated[tuple[float, ...], BeforeValidator(_numbers)] = column(
        (), description="Numbers that mean missing, e.g. -999."
    )
    static: Places = repeated(
        panel="Static features", description="Files of static attributes, joined on static_entity."
    )
    region_static_attributes_base_dirs: Mapping[str, Path] = _static(
        default_factory=dict, description="Directories of static attributes by region, instead of static."
    )
    static_entity: str | None = _static(None, description="Column of the static files with the entity.")
    static_features: Names = _static(
        (),
        description="Columns of the static files: numbers, or texts that a pipeline of preprocessing_configs encodes.",
    )
    missing_static: Literal["error", "drop_entity", "mean", "median"] = _static(
        "error",
        description="What to do with an entity that lacks a static feature; mean, median: those of the retained "
        "entities.",
    )
    train_ratio: float = _ratio(
        0.6,
        "train_prop",
        gt=0,
        le=1,
        description="Share of each entity's observed targets that train; the three ratios sum to 1.",
    )
    val_ratio: float = _ratio(
        0.2, "val_prop", ge=0, lt=1, description="Share of each entity's observed targets that validate."
    )
    test_ratio: float = _ratio(
        0.2, "test_prop", ge=0, lt=1, description="Share of each entity's observed targets that test."
    )
    train_end: str | None = Field(
        None,
        description="Rows before this time train, in every entity, instead of a share of its targets; e.g. 2010-10-01, "
        "which does not train itself.",
    )
    val_end: str | None = Field(
        None,
        description="Rows from train_end to before this time validate, and the rest tests. Default: none validate.",
    )
    cut_dates: LocalPath | None = Field(
        None,
        description="Table of entity, train_end and val_end (CSV, Parquet) for entities with their own dates. Others "
        "use train_end and val_end.",
    )
    val_entities: Names = _held(
        (),
        description="Entities held out for validation; only they validate; @FILE: one name a line. With dates they "
        "validate between train_end and val_end, with shares in all rows.",
    )
    test_entities: Names = _held(
        (),
        description="Entities held out for testing; only they test; @FILE: one name a line. With dates they "
        "test from val_end, with shares in all rows.",
    )
    trim: Literal["all", "target", "none"] = Field(
        "all",
        description="Where a series begins and ends; all: at the first and last value of all columns; target: at "
        "those of the target; none: at its first and last row, which keeps warm-up weather and known futures.",
    )
    gap: str | None = Field(None, description="Rows closer than this before a cut are in no split, such as 30d.")
    label_horizon: str | None = Field(
        None,
        description="How long after its time a target is known, e.g. 7d: rows whose target is not known at a cut are "
        "in no split (a purge).",
    )
    folds: Folds = Field(
        None,
        description="Prepare folds instead of one split: cuts that roll on from train_end and val_end, such as "
        "rolling:n=5,step=365d. Scalers are those of fold 0.",
    )
    min_train_years: float = Field(
        5.0, ge=0, description="Years of observed targets that an entity needs for training."
    )
    duplicate_times: Literal["error", "first", "last", "nearest"] = _rows(
        "error",
        description="What to do with several rows of one time; error: leave out their entity; others: keep one row; "
        "nearest: the one that snap moved least.",
    )
    off_grid: Literal["error", "drop"] = _rows(
        "error", description="What to do with rows between two steps; error: leave out their entity."
    )
    bad_rows: Literal["error", "drop"] = Field(
        "error",
        json_schema_extra=_ROWS | {"former": ["bad_times"]},
        description="What to do with rows without a readable time; error: leave out their entity.",
    )
    null_entity: Literal["error", "drop"] = _rows(
        "error", description="What to do with rows of long tables that have no entity."
    )
    duplicates: Annotated[Duplicates, never_groups("every entity of series is in all splits")] = Field(
        "count",
        json_schema_extra=_ROWS,
        description="Entities with the values and times of an earlier one; drop: keep the first, in the order of "
        "entities; count: reported; allow: not looked for. Not group: every entity is in all splits.",
    )
    max_imputation_gap_size: int = Field(
        5, ge=0, description="Longest gap, in steps, that is filled with the value before it; longer gaps stay."
    )
    impute_target: Literal["never", "forward"] = Field(
        "never", description="How gaps of the target are filled; forward: like those of features."
    )
    filled_mask: Literal["off", "columns"] = Field(
        "off", description="How filled values are marked; columns: a column NAME__filled for each."
    )
    preprocessing_configs: Preprocessing = Field(
        default_factory=Preprocessing, description="Pipelines for features, target and static_features."
    )
    pipelines_from: LocalPath | None = Field(
        None,
        description="Finished run, or its dataset directory, whose fitted pipelines scale this run's rows. They are "
        "not fitted again, every row is in test, and targets may be missing. Other settings default to those of that "
        "run.",
    )
    batch_size: int = Field(50, ge=1, description="Entities processed at a time, which decides memory.")
    seed: int = Field(42, ge=0, lt=2**63, description="Chooses the entities that unified pipelines are fitted on.")
    layout: Literal["files", "packed"] = Field(
        "files", description="Parquet files of a split: one per entity, or one per batch."
    )

    @model_validator(mode="before")
    @classmethod
    def _as_the_named_run(cls, values: Any) -> Any:
        from headrace.series.reuse import completed  # settings alone open no run

        asked = isinstance(values, dict) and values.get("pipelines_from") is not None
        # Settings of a finished run: the named one may be gone.
        whole = asked and values.keys() >= cls.model_fields.keys()
        try:
            return completed(values) if asked and not whole else values
        except SettingsError as error:
            raise ValueError(str(error)) from None

    @field_validator("train_end", "val_end", mode="before")
    @classmethod
    def _known_time(cls, value: Any, field: ValidationInfo) -> Any:
        # YAML turns an unquoted date into a date object.
        text = value.isoformat() if hasattr(value, "isoformat") else value
        try:
            if isinstance(text, str):
                instant_us(field.field_name or "", text)
        except SettingsError as error:
            raise ValueError(str(error)) from None
        return text

    @model_validator(mode="after")
    def _consistent(self) -> Series:
        """Raise `ValueError` for the first inconsistency found."""
        for told in self._faults():
            raise ValueError(told)
        try:
            _ = self.resolved
        except SettingsError as error:
            raise ValueError(str(error)) from None
        return self

    def _faults(self) -> Iterator[str]:
        """Yield a message for each inconsistency."""
        names = [*self.targets, *self.features, *(each for each in self.feature_names() if each not in self.features)]
        if not self.time_format:
            yield "time_format is empty; give at least one"
        yield from time_faults(self)
        ratios = self.train_ratio + self.val_ratio + self.test_ratio
        if abs(ratios - 1) > _RATIOS_SUM:
            yield (
                f"train_ratio {self.train_ratio} + val_ratio {self.val_ratio} + test_ratio {self.test_ratio} = "
                f"{ratios:g}; make them sum to 1"
            )
        fields = {name: Series.model_fields[name] for name in ("train_ratio", "val_ratio", "test_ratio")}
        ratios_given = any(getattr(self, name) != own.default for name, own in fields.items())
        if (self.train_end or self.cut_dates) and ratios_given:
            yield "train_end or cut_dates, and ratios are given; cut by dates or by shares of targets"
        if self.val_end is not None and self.train_end is None:
            yield "val_end is given without train_end; give both"
        yield from undividable(self)
        if self.cuts is not None and self.cuts[0] > self.cuts[1]:
            yield f"train_end {self.train_end} is after val_end {self.val_end}; swap them"
        if set(self.targets) & set(self.feature_names()):
            yield (
                f"the target {self.target!r} is also a feature, which would leak it; take it out of features: models "
                f"that read its past ask for it when they read windows"
            )
        for both in sorted(set(self.past_features) & set(self.future_features)):
            yield f"feature {both!r} is in past_features and future_features; choose one"
        strangers = set(self.categories).difference(self.feature_names())
        if strangers or any(len(set(own)) < max(1, len(own)) for own in self.categories.values()):
            yield (
                f"categories of {', '.join(self.categories)}: are not features, or list no text or one twice; "
                "correct them"
            )
        for strange in (each for each in self.calendar if each not in CALENDAR):
            yield f"calendar has {strange!r}; give some of {', '.join(CALENDAR)}"
        if set(self.calendar_columns()) & {*names, self.time} or len(set(self.calendar)) < len(self.calendar):
            yield f"calendar makes {', '.join(self.calendar_columns())}, and one exists already; rename the other"
        roles = [self.time, *names, *([] if self.entity == FILE_NAME else [self.entity])]
        for twice in sorted(each for each in roles if roles.count(each) > 1):
            yield f"column {twice!r} has more than one role; time, entity, target and features differ"
        if self.filled_mask == "columns" and any(f"{each}{FILLED}" in names for each in names):
            yield f"a column's name ends with {FILLED!r}, as those of masks do; rename it"
        yield from source_faults(self)

    def columns(self) -> list[str]:
        """List the value columns: the target, further targets sorted by name, then the features sorted by name."""
        return [*self.targets, *self.feature_names()]

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns to predict: the target, then the others sorted by name."""
        return (self.target, *sorted(self.more_targets))

    def feature_names(self) -> list[str]:
        """List the features of all roles, sorted."""
        return sorted({*self.past_features, *self.future_features} | set(self.features))

    def future_names(self) -> list[str]:
        """List the features known ahead, sorted, then the calendar columns, which are always known ahead."""
        ahead = set(self.future_features) or set(self.feature_names()) - set(self.past_features)
        return [*sorted(ahead), *self.calendar_columns()]

    def calendar_columns(self) -> list[str]:
        """List the columns made from times, which come after the features."""
        return calendar_names(self.calendar)

    def empty_step(self) -> list[float]:
        """Return the values of a step without rows: missing, or 0 if `resample` takes the total."""
        return [0.0 if self.resample and self.rule(name) == "total" else float("nan") for name in self.columns()]

    @cached_property
    def resolved(self) -> Resolved:
        """The pipelines, each with its columns."""
        return self.preprocessing_configs.resolved(
            targets=self.targets,
            features=self.feature_names(),
            static_features=sorted(self.static_features),
            categories=sorted(self.categories),
        )

    @cached_property
    def reused(self) -> NamedRun | None:
        """The run named by pipelines_from; None if pipelines are fitted.

        Raises `SettingsError` if it does not exist, or if these settings contradict its pipelines.
        """
        if self.pipelines_from is None:
            return None
        from headrace.series.reuse import differing, named_run  # settings alone open no run

        named = named_run(self.pipelines_from)
        told = differing(self.model_dump(mode="json"), named)
        if told is not None:
            raise SettingsError(f"pipelines_from {str(self.pipelines_from)!r}: {told}; leave the setting out")
        return named

    @property
    def cuts(self) -> tuple[int, int] | None:
        """The times where val and test begin, in microseconds since 1970; None if the cuts are by shares of targets."""
        if self.train_end is None:
            return None
        first = instant_us("train_end", self.train_end)
        return first, first if self.val_end is None else instant_us("val_end", self.val_end)

    @cached_property
    def division(self) -> Division:
        """The division of rows into stretches. Raises `SettingsError` for tables and files that do not define it."""
        return Division.of(self)

    @property
    def may_lack(self) -> list[str]:
        """The columns that a file may lack."""
        return [] if self.pipelines_from is None else list(self.targets)

    @property
    def entity_column(self) -> str:
        """The name of the entity column in the output."""
        return self.static_entity or "entity" if self.entity == FILE_NAME else self.entity

    def filled_columns(self) -> list[str]:
        """List the columns that may be filled: all, or all but the targets."""
        return self.columns()[0 if self.impute_target == "forward" else len(self.targets) :]

    def mask_columns(self) -> list[str]:
        """List the mask columns, which come last; empty unless masks are requested."""
        return [f"{each}{FILLED}" for each in self.filled_columns()] if self.filled_mask == "columns" else []

    def identity_settings(self) -> dict[str, Any]:
        """Return the settings that can change a byte of output; of files the names and contents, not the paths."""
        regions = {"region_time_series_base_dirs", "region_static_attributes_base_dirs"}
        settings = self.identity_without("source", "static", "entities", "entities_file", *regions)
        listed = self.listed()
        settings["entities"] = None if listed is None else sha256_hex("\n".join(listed).encode())
        settings |= {"more_targets": sorted(self.more_targets)} if self.more_targets else {}
        # In the order of the store.
        settings |= {"features": self.feature_names(), "static_features": sorted(self.static_features)}
        if self.past_features or self.future_features:
            settings = {name: own for name, own in settings.items() if name not in ("past_features", "future_features")}
            ahead = self.future_names()
            settings |= {"future_features": ahead} if set(ahead) < {*self.feature_names(), *ahead} else {}
        for name, side in (("val_entities", "val"), ("test_entities", "test")):
            if name in settings:  # the names count, not the path of their file
                settings[name] = sorted(each for each, own in self.division.held_out.items() if own == side)
        if self.cut_dates is not None:
            settings["cut_dates"] = sha256_hex(canonical_json(dict(self.division.dates)))
        settings["regions"] = sorted(self.region_time_series_base_dirs)
        settings |= {name: instant_us(name, settings[name]) for name in ("train_end", "val_end") if name in settings}
        if self.reused is not None:  # the content counts, not the path
            settings["pipelines_from"] = self.reused.record()
        return settings

    def source_files(self) -> list[tuple[Path, str]]:
        """Find the files of series and static attributes, with names below `series/` and `static/`, sorted by name."""
        from headrace.series.sources import source_files  # imported late: it imports the settings

        return source_files(self)

    def source_places(self) -> Sequence[str | Path]:
        """List the files, directories and patterns of series and static attributes, as given."""
        regions = (self.region_time_series_base_dirs, self.region_static_attributes_base_dirs)
        return [*self.source, *self.static, *(place for each in regions for place in each.values())]


def output_roles(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of the entity column, and the time format, in the output of a run with these settings."""
    own = config["entity"]
    return {"entity": (config["static_entity"] or "entity") if own == FILE_NAME else own, "time_format": "auto"}


class SeriesBuilder:
    """Build the settings of `Series` step by step; `build` checks them all.

        series = (
            headrace.SeriesBuilder("timeseries")
            .target("streamflow")
            .features("precipitation", "temperature")
            .scale("features", StandardScaler(), strategy="unified", fit_on_n_basins=100)
            .split(train=0.6, val=0.2, test=0.2)
            .build()
        )

    Every method returns the builder. A setting that is given again replaces the earlier one, but `scale` adds a
    pipeline to its role. `where` takes any setting of `Series` by name.
    """

    def __init__(self, *source: str | Path) -> None:
        self._settings: dict[str, Any] = {"source": source} if source else {}
        self._pipelines: dict[str, list[dict[str, Any]]] = {}

    def regions(self, time_series: dict[str, str | Path], static: dict[str, str | Path] | None = None) -> SeriesBuilder:
        """Read directories by region, instead of sources."""
        return self.where(region_time_series_base_dirs=time_series, region_static_attributes_base_dirs=static or {})

    def entity(self, column: str) -> SeriesBuilder:
        """Name the entity column of long tables."""
        return self.where(entity=column)

    def time(self, column: str, *formats: str) -> SeriesBuilder:
        """Name the time column and its formats."""
        return self.where(time=column, **({"time_format": formats} if formats else {}))

    def frequency(self, word: str) -> SeriesBuilder:
        """Set the step of all series, e.g. "1d"."""
        return self.where(frequency=word)

    def target(self, column: str) -> SeriesBuilder:
        """Name the column to predict."""
        return self.where(target=column)

    def features(self, *columns: str) -> SeriesBuilder:
        """Name the forcing columns."""
        return self.where(features=columns)

    def static(self, *files: str | Path, entity: str, features: Sequence[str], missing: str = "error") -> SeriesBuilder:
        """Join columns of static files on the column `entity`; without files, those of the regions."""
        return self.where(
            **({"static": files} if files else {}),
            static_entity=entity,
            static_features=tuple(features),
            missing_static=missing,
        )

    def split(self, *, train: float, val: float, test: float) -> SeriesBuilder:
        """Set the shares of each entity's observed targets."""
        return self.where(train_ratio=train, val_ratio=val, test_ratio=test)

    def quality(self, *, min_train_years: float, max_imputation_gap_size: int) -> SeriesBuilder:
        """Set the years of data that an entity needs to train, and the longest gap that is filled."""
        return self.where(min_train_years=min_train_years, max_imputation_gap_size=max_imputation_gap_size)

    def scale(self, role: str, *pipeline: Any, strategy: str, **more: Any) -> SeriesBuilder:
        """Add a pipeline for "features", "target" or "static_features": steps as in `PipelineSettings`, or objects.

        more: columns, fit_on_n_basins.
        """
        if role not in (roles := ("features", "target", "static_features")):
            raise SettingsError(f"scale is given role {role!r}; give one of {', '.join(roles)}")
        steps = pipeline[0] if len(pipeline) == 1 else list(pipeline)
        self._pipelines.setdefault(role, []).append({"strategy": strategy, "pipeline": steps, **more})
        return self

    def where(self, **settings: Any) -> SeriesBuilder:
        """Set any settings of `Series` by name."""
        self._settings.update(settings)
        return self

    def build(self) -> Series:
        """Return the checked settings. Raises `SettingsError` if they cannot work."""
        settings = dict(self._settings)
        if self._pipelines:
            given = {role: each[0] if len(each) == 1 else each for role, each in self._pipelines.items()}
            settings["preprocessing_configs"] = {**settings.get("preprocessing_configs", {}), **given}
        return Series(**settings)
