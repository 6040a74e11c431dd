"""Settings of series."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from headrace.checks import duration_us, instant_us
from headrace.digest import sha256_hex
from headrace.errors import SettingsError
from headrace.formats.dates import date_word
from headrace.run.settings import RecipeSettings
from headrace.series.arrays.axis import Frequency
from headrace.series.pipelines.settings import Preprocessing, Resolved
from headrace.series.time_settings import Rule, days_of, known_zone, listed_days, rules, time_faults
from headrace.settings import Duplicates, Names, known_duration, never_groups
from headrace.storage.settings import LocalPath, Places

if TYPE_CHECKING:
    from headrace.run.context import RunContext
    from headrace.run.prepare import Outcome
    from headrace.series.reuse import NamedRun

FILE_NAME = "file_name"
SPLITS = ("train", "val", "test")
FILLED = "__filled"  # behind a column's name: where its values were carried forward

_RATIOS_SUM = 1e-9
_ROWS: dict[str, Any] = {"panel": "Rows that do not fit", "former_words": {"fail": "error"}}
_source = partial(Field, json_schema_extra={"panel": "Source"})
_column = partial(Field, json_schema_extra={"panel": "Columns and times"})
_static = partial(Field, json_schema_extra={"panel": "Static features"})
_rows = partial(Field, json_schema_extra=_ROWS)


def _repeated(*default: str, panel: str, description: str) -> Any:
    return Field(default, json_schema_extra={"panel": panel, "flag": "repeated"}, description=description)


def _ratio(default: float, former: str, **bounds: Any) -> Any:
    return Field(default, json_schema_extra={"former": [former]}, **bounds)


def _numbers(value: object) -> object:
    if isinstance(value, int | float):
        return (float(value),)
    return tuple(value) if isinstance(value, list) else value


def _target_or_run(schema: dict[str, Any]) -> None:
    schema["required"].remove("target")
    schema["anyOf"] = [{"required": ["target"]}, {"required": ["pipelines_from"]}]  # that run has the target


class Series(RecipeSettings):
    """Time series of many entities: on a regular axis, cleaned, split by time and scaled by what trains.

    Raises `SettingsError` when built with values that cannot work.
    """

    model_config = ConfigDict(json_schema_extra=_target_or_run)

    recipe_name: ClassVar[str] = "series"
    later: ClassVar[Sequence[tuple[str, ...]]] = (
        *(("duplicates",), ("train_end",), ("val_end",), ("pipelines_from",)),
        *(("comment",), ("decimal",), ("encoding",), ("business_days",), ("snap",), ("resample",)),
        ("time_zone", "ambiguous_times", "nonexistent_times"),
    )

    source: Places = Field((), description="Files, directories or glob patterns of time series.")
    region_time_series_base_dirs: Mapping[str, Path] = _source(
        default_factory=dict,
        description="Directories of series by region, instead of source; an entity's region is its name up to the "
        "first _.",
    )
    reader: Literal["table", "wide", "xarray", "grdc", "camels_us"] = _source(
        "table",
        description="What the source is; wide: tables with a column for each entity, each file named as what it "
        "holds; xarray: NetCDF files and Zarr stores; grdc: text files of the Global Runoff Data Centre; camels_us: "
        "the root of that data set's text files.",
    )
    comment: str | None = _source(
        None, min_length=1, description="Beginning of lines of CSV files that are left out, e.g. #."
    )
    decimal: Literal[".", ","] = _source(".", description="Decimal mark of the numbers in CSV files.")
    encoding: str = _source("utf-8", description="Encoding of CSV files, e.g. latin-1, utf-16 or cp1252.")
    forcing: Literal["daymet", "maurer", "maurer_extended", "nldas"] = _source(
        "daymet", description="Forcing product of camels_us."
    )
    entities: Names | None = _source(None, description="Only these entities; one without data fails.")
    entities_file: LocalPath | None = _source(None, description="File of the entities to prepare, a name per line.")
    entity: str = _column(
        FILE_NAME,
        min_length=1,
        description="Column of the entity in long tables; file_name: a file is an entity, named as the file without "
        "its extension.",
    )
    time: str = _column("date", min_length=1, description="Column of the time.")
    time_format: Names = _repeated(
        "iso",
        panel="Columns and times",
        description="How times are written: iso, an epoch such as epoch_s, or a strptime pattern; several are tried in "
        "turn. Times without offset are UTC.",
    )
    time_zone: Annotated[str | None, AfterValidator(known_zone)] = _column(
        None,
        description="Zone of the clocks that times without an offset were read from, e.g. Europe/Berlin; the output is "
        "in UTC. None: they are in UTC.",
    )
    ambiguous_times: Literal["in_order", "earlier", "later", "error"] = _column(
        "in_order",
        description="Which instant a time is that the clocks of time_zone show twice; in_order: the first row the "
        "earlier, the next the later; error: leave out its entity.",
    )
    nonexistent_times: Literal["error", "drop", "forward"] = _column(
        "error",
        description="What to do with rows at a time that the clocks of time_zone skip; forward: read it by the offset "
        "before the change; error: leave out their entity.",
    )
    frequency: str = _column(
        "infer",
        description="Step of all series, e.g. 1d, 1h, 15m or 1mo; 1b: business days; infer: the step that most "
        "entities have; coarsest: the longest that an entity has, for resample.",
    )
    business_days: Annotated[Names, BeforeValidator(listed_days)] = _column(
        (),
        description="Days that steps of 1b are: YYYY-MM-DD, or @FILE with one a line; Monday to Friday unless given.",
    )
    snap: str | None = _column(
        None, description="Move times that are at most this far from a step to it, e.g. 2m; needs frequency."
    )
    resample: Annotated[Mapping[str, Rule], BeforeValidator(rules)] = _column(
        {},
        description="Join the rows of each step into one, by a rule for each column: mean, sum, min, max, first or "
        "last of the values that are there; * for all others, or one rule for all.",
    )
    target: str = _column(min_length=1, description="Column to be predicted.")
    features: Names = _column((), description="Forcing columns.")
    null_values: Names = _column(("NA",), description="Texts that mean missing.")
    missing_numbers: Annotated[tuple[float, ...], BeforeValidator(_numbers)] = _column(
        (), description="Numbers that mean missing, e.g. -999."
    )
    static: Places = _repeated(
        panel="Static features", description="Files of static attributes, joined on static_entity."
    )
    region_static_attributes_base_dirs: Mapping[str, Path] = _static(
        default_factory=dict, description="Directories of static attributes by region, instead of static."
    )
    static_entity: str | None = _static(None, description="Column of the static files that holds the entity.")
    static_features: Names = _static(
        (),
        description="Columns of the static files: numbers, or texts that a pipeline of preprocessing_configs encodes.",
    )
    missing_static: Literal["error", "drop_entity", "mean", "median"] = _static(
        "error",
        description="What to do with an entity that lacks a static feature; mean and median are of the retained "
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
        "which itself does not train.",
    )
    val_end: str | None = Field(
        None,
        description="Rows from train_end to before this time validate, the rest tests; none validate unless given.",
    )
    min_train_years: float = Field(
        5.0, ge=0, description="Years' worth of observed targets that an entity needs to train on."
    )
    duplicate_times: Literal["error", "first", "last", "nearest"] = _rows(
        "error",
        description="What to do with rows of one time: leave out their entity with an error, or keep one row; nearest: "
        "the one that snap moved least.",
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
        description="Entities with the values and times of an earlier one; drop: the first stays, in the order of "
        "entities; count: reported; allow: not looked for. Not group: every entity is in all splits.",
    )
    max_imputation_gap_size: int = Field(
        5, ge=0, description="Longest gap, in steps, that is filled with the value before it; longer ones are left."
    )
    impute_target: Literal["never", "forward"] = Field(
        "never", description="How gaps of the target are filled; forward: as those of features."
    )
    filled_mask: Literal["off", "columns"] = Field(
        "off", description="How filled values are marked; columns: by a column NAME__filled for each."
    )
    preprocessing_configs: Preprocessing = Field(
        default_factory=Preprocessing, description="Pipelines for features, target and static_features."
    )
    pipelines_from: LocalPath | None = Field(
        None,
        description="Finished run, or its dataset directory, whose fitted pipelines scale this run's rows. They are "
        "never fitted again; every row is in test, and a target may be missing. Settings that are not given are "
        "those of that run.",
    )
    batch_size: int = Field(50, ge=1, description="Entities that are worked on at a time, which decides memory.")
    seed: int = Field(42, ge=0, lt=2**63, description="Chooses the entities that unified pipelines are fitted on.")
    layout: Literal["files", "packed"] = Field(
        "files", description="Parquet files of a split: one for each entity, or one for each batch."
    )

    @model_validator(mode="before")
    @classmethod
    def _as_the_named_run(cls, values: Any) -> Any:
        from headrace.series.reuse import completed  # settings alone open no run

        asked = isinstance(values, dict) and values.get("pipelines_from") is not None
        whole = asked and values.keys() >= cls.model_fields.keys()  # of a run that was made; the named one may be gone
        try:
            return completed(values) if asked and not whole else values
        except SettingsError as error:
            raise ValueError(str(error)) from None

    @field_validator("train_end", "val_end", mode="before")
    @classmethod
    def _known_time(cls, value: Any, field: ValidationInfo) -> Any:
        text = value.isoformat() if hasattr(value, "isoformat") else value  # YAML reads an unquoted date as a date
        try:
            if isinstance(text, str):
                instant_us(field.field_name or "", text)
        except SettingsError as error:
            raise ValueError(str(error)) from None
        return text

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str) -> str:
        try:
            return codecs.lookup(value).name
        except LookupError:
            raise ValueError(f"encoding {value!r} is not known; give one such as utf-8, latin-1 or cp1252") from None

    @field_validator("time_format")
    @classmethod
    def _known_formats(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            date_word(each, "time_format")
        return value

    @field_validator("snap")
    @classmethod
    def _known_tolerance(cls, value: str | None) -> str | None:
        return value if value is None else known_duration("snap", value)

    @field_validator("frequency")
    @classmethod
    def _known_frequency(cls, value: str) -> str:
        return value if value in ("infer", "coarsest") else Frequency.parse(value).word

    @model_validator(mode="after")
    def _consistent(self) -> Series:
        """Raise `ValueError` for the first of these that holds."""
        ratios = self.train_ratio + self.val_ratio + self.test_ratio
        ratios_given = any(
            getattr(self, name) != type(self).model_fields[name].default
            for name in ("train_ratio", "val_ratio", "test_ratio")
        )
        names = self.columns()
        file_is_entity, regions = self.entity == FILE_NAME, self.region_time_series_base_dirs
        roles = [self.time, *names, *([] if file_is_entity else [self.entity])]
        repeated = min((each for each in roles if roles.count(each) > 1), default=None)
        static = bool(self.static) + bool(self.region_static_attributes_base_dirs)
        for wrong, told in (
            (not self.time_format, "time_format is empty; give at least one"),
            *time_faults(self),
            (
                abs(ratios - 1) > _RATIOS_SUM,
                f"train_ratio {self.train_ratio} + val_ratio {self.val_ratio} + test_ratio {self.test_ratio} = "
                f"{ratios:g}; make them sum to 1",
            ),
            (
                self.train_end is not None and ratios_given,
                f"train_end is {self.train_end!r} and ratios are given; cut by dates or by shares of targets",
            ),
            (self.val_end is not None and self.train_end is None, "val_end is given without train_end; give both"),
            (
                self.cuts is not None and self.cuts[0] > self.cuts[1],
                f"train_end {self.train_end} is behind val_end {self.val_end}; exchange them",
            ),
            (
                self.target in self.features,
                f"the target {self.target!r} is also a feature, which would leak it; take it out of features: models "
                f"that read its past ask for that when they read windows",
            ),
            (repeated, f"column {repeated!r} has more than one role; time, entity, target and features differ"),
            (
                self.filled_mask == "columns" and any(f"{each}{FILLED}" in names for each in names),
                f"a column's name ends with {FILLED!r}, which masks end with; rename it",
            ),
            (
                bool(self.source) == bool(regions),
                "give either source or region_time_series_base_dirs, and not both",
            ),
            (
                self.reader == "camels_us" and (len(self.source) != 1 or not file_is_entity),
                f"reader 'camels_us' takes one source, the data set's root directory, and entity {FILE_NAME!r}",
            ),
            (
                self.reader in ("wide", "grdc") and not file_is_entity,
                f"reader {self.reader!r} finds the entities itself; leave entity as {FILE_NAME!r}",
            ),
            (
                bool(regions) and self.reader not in ("table", "xarray"),
                f"reader {self.reader!r} takes source; regions are for 'table' and 'xarray'",
            ),
            (regions and not file_is_entity, f"regions have a file per entity; leave entity as {FILE_NAME!r}"),
            (self.entities is not None and self.entities_file, "give entities or entities_file, not both"),
            (
                self.pipelines_from is not None and self.missing_static in ("mean", "median"),
                f"missing_static is {self.missing_static!r}, which would be that of this run's entities, not of those "
                f"that trained; give 'error' or 'drop_entity' with pipelines_from",
            ),
            (self.entities == (), "entities is empty; give at least one, or leave it out for all"),
            (static > 1, "give static or region_static_attributes_base_dirs, not both"),
            (
                bool(static) != bool(self.static_features),
                "static files and static_features go together; give both or neither",
            ),
            (
                static and file_is_entity and self.static_entity is None,
                "static_entity is missing; name the column of the static files that holds the entity",
            ),
            (
                len(set(self.static_features)) < len(self.static_features),
                "static_features names a column twice; name each once",
            ),
        ):
            if wrong:
                raise ValueError(told)
        try:
            _ = self.resolved
        except SettingsError as error:
            raise ValueError(str(error)) from None
        return self

    def columns(self) -> list[str]:
        """List the columns of values: the target, then the features sorted by name."""
        return [self.target, *sorted(self.features)]

    @cached_property
    def resolved(self) -> Resolved:
        """The pipelines with their columns."""
        return self.preprocessing_configs.resolved(
            target=self.target, features=sorted(self.features), static_features=sorted(self.static_features)
        )

    @cached_property
    def reused(self) -> NamedRun | None:
        """The run that pipelines_from names; None if pipelines are fitted.

        Raises `SettingsError` if it is not there, or these settings contradict its pipelines.
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
        """The times where val and test begin, in microseconds since 1970; None: cut by shares of targets."""
        if self.train_end is None:
            return None
        first = instant_us("train_end", self.train_end)
        return first, first if self.val_end is None else instant_us("val_end", self.val_end)

    @property
    def may_lack(self) -> list[str]:
        """List the columns that a file may lack."""
        return [] if self.pipelines_from is None else [self.target]

    @property
    def snap_us(self) -> int | None:
        """How far times are moved to a step, in microseconds; None: not at all."""
        return None if self.snap is None else duration_us("snap", self.snap)

    def rule(self, column: str) -> str:
        """Return the rule by which `resample` joins the values of a column."""
        return self.resample.get(column) or self.resample["*"]

    @cached_property
    def step(self) -> Frequency:
        """The frequency. Raises `ValueError` while it is to be inferred."""
        return Frequency.parse(self.frequency).on(days_of(self.business_days))

    @property
    def rewritten_text(self) -> bool:
        """Whether CSV files are decoded, or freed of comments, before they are read."""
        return self.comment is not None or self.encoding != "utf-8"

    @property
    def entity_column(self) -> str:
        """The name of the entity column in the output."""
        return self.static_entity or "entity" if self.entity == FILE_NAME else self.entity

    def filled_columns(self) -> list[str]:
        """List the columns that may be filled: all, or all but the target."""
        return self.columns()[0 if self.impute_target == "forward" else 1 :]

    def mask_columns(self) -> list[str]:
        """List the mask columns, which stand behind the others, of the last of these; none unless asked for."""
        return [f"{each}{FILLED}" for each in self.filled_columns()] if self.filled_mask == "columns" else []

    def listed(self) -> list[str] | None:
        """List the entities that were asked for, sorted, each once; None for all. Raises `SettingsError`."""
        if self.entities_file is None:
            return None if self.entities is None else sorted(set(self.entities))
        try:
            lines = self.entities_file.read_text("utf-8-sig").split("\n")  # a name may hold U+2028
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{self.entities_file}: cannot be read ({error}); check its path") from error
        names = sorted({line.strip() for line in lines if line.strip()})
        if not names:
            raise SettingsError(f"{self.entities_file}: names no entity; write one name per line")
        return names

    def identity_settings(self) -> dict[str, Any]:
        """Return the settings that can change a byte of output: of files their names and contents, not their places."""
        regions = {"region_time_series_base_dirs", "region_static_attributes_base_dirs"}
        settings = self.identity_without("source", "static", "entities", "entities_file", *regions)
        listed = self.listed()
        settings["entities"] = None if listed is None else sha256_hex("\n".join(listed).encode())
        settings |= {name: sorted(settings[name]) for name in ("features", "static_features")}  # stored by name
        settings["regions"] = sorted(self.region_time_series_base_dirs)
        settings |= {name: instant_us(name, settings[name]) for name in ("train_end", "val_end") if name in settings}
        if self.reused is not None:  # what lies there counts, not the place
            settings["pipelines_from"] = self.reused.record()
        return settings

    def source_files(self) -> list[tuple[Path, str]]:
        """Find the files of series and static attributes, with names below `series/` and `static/`, sorted by name."""
        from headrace.series.sources import source_files  # files are found by what settings say

        return source_files(self)

    def source_places(self) -> Sequence[str | Path]:
        """List files, directories and patterns of series and of static attributes, as given."""
        regions = (self.region_time_series_base_dirs, self.region_static_attributes_base_dirs)
        return [*self.source, *self.static, *(place for each in regions for place in each.values())]

    def execute(self, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        """Do the work in the run directory; see `headrace.prepare`."""
        from headrace.series.recipe import execute  # the recipe imports its settings

        return execute(self, context, files)


def output_roles(config: Mapping[str, Any]) -> dict[str, str]:
    """Name the column of the entity in the output of a run with these settings."""
    own = config["entity"]
    return {"entity": (config["static_entity"] or "entity") if own == FILE_NAME else own, "time_format": "auto"}
