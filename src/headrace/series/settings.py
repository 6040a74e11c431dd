"""Define the settings of series: the source, the columns, the times, the cuts and the pipelines.

`faults` has the rules that connect several settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
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

from headrace.credentials import refuse_credentials
from headrace.digest import sha256_hex
from headrace.errors import SettingsError
from headrace.folds.settings import Folds
from headrace.formats.dialect import DialectSetting, dialect_field
from headrace.formats.zones import known_zone, time_us, zone_version
from headrace.run.settings import RecipeSettings
from headrace.series.arrays.axis import CALENDAR, Frequency, calendar_names
from headrace.series.division import Division, read_names
from headrace.series.faults import find_faults
from headrace.series.pipelines.settings import Preprocessing, Resolved
from headrace.settings import Duplicates, Names, TimeColumns, known_duration, never_groups
from headrace.storage.settings import LocalPath, Places

if TYPE_CHECKING:
    from headrace.series.reuse import NamedRun

FILE_NAME = "file_name"

Rule = Literal["mean", "sum", "total", "min", "max", "first", "last", "nearest"]

_INFERRED = ("infer", "coarsest")
_source = partial(Field, json_schema_extra={"panel": "Source"})
_column = partial(Field, json_schema_extra={"panel": "Columns and times"})
_static = partial(Field, json_schema_extra={"panel": "Static features"})
_rows = partial(Field, json_schema_extra={"panel": "Rows that do not fit"})
_held_out = partial(Field, json_schema_extra={"panel": "Held-out entities"})


def _repeated(*default: str, panel: str, description: str) -> Any:
    """Declare a setting whose flag may be repeated."""
    extra: dict[str, Any] = {"panel": panel, "flag": "repeated"}
    return Field(default, json_schema_extra=extra, description=description)


def _as_rules(value: object) -> object:
    """Read a single rule as the rule of all columns."""
    if isinstance(value, str):
        return {"*": value}
    return value


def _without_credentials(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return names unchanged. Raises `SettingsError` if the path of an @FILE holds a secret."""
    for name in names or ():
        if name.startswith("@"):
            refuse_credentials(name[1:])
    return names


NamesOrFile = Annotated[Names, AfterValidator(_without_credentials)]


def _target_or_run(schema: dict[str, Any]) -> None:
    schema["required"].remove("target")
    # The named run has the target.
    schema["anyOf"] = [{"required": ["target"]}, {"required": ["pipelines_from"]}]


class Series(RecipeSettings):
    """Time series of many entities: on a regular axis, cleaned, split by time and scaled by what
    trains.

    Raises `SettingsError` when built with values that cannot work.
    """

    model_config = ConfigDict(json_schema_extra=_target_or_run)

    recipe_name: ClassVar[str] = "series"

    source: Places = Field(
        min_length=1,
        description=(
            "Files, directories or glob patterns of time series: tables, or NetCDF files and Zarr"
            " stores."
        ),
    )
    dialect: DialectSetting = dialect_field({"panel": "Source"})
    schema_drift: Literal["error", "widen"] = _source(
        "error",
        description="Files that lack some targets or features; widen: null there.",
    )
    entities: NamesOrFile | None = _source(
        None,
        description=(
            "Prepare only these entities; one without data is left out; @FILE: one name a line."
        ),
    )
    entity: str = _column(
        FILE_NAME,
        min_length=1,
        description=(
            "Column of the entity in long tables; file_name: each file is an entity, named"
            " by the file without its extension."
        ),
    )
    time: TimeColumns = Field(
        "date",
        json_schema_extra={"panel": "Columns and times", "flag": "repeated"},
        description=(
            "Column of the time; or several, such as its date and its time of day, which are read"
            " as one with blanks between them, under the name of the first."
        ),
    )
    time_zone: Annotated[str | None, AfterValidator(known_zone)] = _column(
        None,
        description=(
            "Time zone of times without an offset, e.g. Europe/Berlin, and of steps of days and"
            " longer, which stay in it; shorter steps are in UTC. Default: UTC."
        ),
    )
    ambiguous_times: Literal["in_order", "earlier", "later", "error"] = _column(
        "in_order",
        description=(
            "How to read a time that occurs twice in time_zone; in_order: the first row is"
            " the earlier, the next the later, in rows that are sorted; error: leave out its"
            " entity."
        ),
    )
    frequency: str = _column(
        "infer",
        description=(
            "Step of all series, e.g. 1d, 1h, 15m or 1mo; 1w-mon: weeks that begin on Monday; 1b:"
            " Monday to Friday; infer: the step of most entities; coarsest: the longest step of any"
            " entity, for resample."
        ),
    )
    resample: Annotated[Mapping[str, Rule], BeforeValidator(_as_rules)] = _column(
        {},
        description=(
            "Combine the rows of each step by a rule per column: mean, sum, min, max, first or last"
            " of the values; total: their sum, and 0 in steps without values. * stands for all"
            " others; one rule alone is for all columns. nearest, for all columns: the value"
            " nearest to the step, at most half a step away."
        ),
    )
    target: Names = Field(
        min_length=1,
        json_schema_extra={"panel": "Columns and times", "flag": "repeated"},
        description=(
            "Column to predict, or several, scaled alike; the first decides where shares cut."
        ),
    )
    past_features: Names = _column(
        (), description="Features known only up to the last input, such as a sensor."
    )
    future_features: Names = _column(
        (), description="Features known ahead too, such as promotions or a weather forecast."
    )
    categories: Mapping[str, Names] = _column(
        {},
        description=(
            "Text features, and the texts that each may hold; stored as positions in this list,"
            " from 1. 0 is any other text of a run that reuses pipelines."
        ),
    )
    calendar: Names = _column(
        (),
        description="Parts of the time as features, each as a sine and a cosine: "
        + ", ".join(CALENDAR)
        + ".",
    )
    static: Places = _repeated(
        panel="Static features", description="Files of static attributes, joined on static_entity."
    )
    static_entity: str | None = _static(
        None, description="Column of the static files with the entity."
    )
    static_features: Names = _static(
        (),
        description=(
            "Columns of the static files: numbers, or texts that a pipeline of"
            " preprocessing_configs encodes. An entity that lacks one is left out."
        ),
    )
    train_ratio: float = Field(
        0.6,
        gt=0,
        le=1,
        description=(
            "Share of each entity's observed targets that goes to train; what is left goes to test."
        ),
    )
    val_ratio: float = Field(
        0.2, ge=0, lt=1, description="Share of each entity's observed targets that goes to val."
    )
    train_end: str | None = Field(
        None,
        description=(
            "Rows before this time are in train, in every entity, instead of a share of its"
            " targets; e.g. 2010-10-01, which itself is not in train."
        ),
    )
    val_end: str | None = Field(
        None,
        description=(
            "Rows from train_end to before this time are in val, later ones in test. Default: none."
        ),
    )
    val_entities: NamesOrFile = _held_out(
        (),
        description=(
            "Entities held out for val; only they are in it; @FILE: one name a line."
            " With dates, their rows between train_end and val_end; with shares, all their rows."
        ),
    )
    test_entities: NamesOrFile = _held_out(
        (),
        description=(
            "Entities held out for test; only they are in it; @FILE: one name a line. With"
            " dates, their rows from val_end; with shares, all their rows."
        ),
    )
    trim: Literal["all", "target", "none"] = Field(
        "all",
        description=(
            "Where a series begins and ends; all: at the first and last value of all"
            " columns; target: at those of the target; none: at its first and last row, which keeps"
            " warm-up weather and known futures."
        ),
    )
    gap: str | None = Field(
        None,
        description=(
            "Rows closer than this before a cut are in no split, such as 30d. Give at least the"
            " time until a target is known (a purge)."
        ),
    )
    folds: Folds = Field(
        None,
        description=(
            "Prepare folds instead of one split: rolling cuts from train_end and"
            " val_end, such as rolling:n=5,step=365d. Scalers are those of fold 0."
        ),
    )
    min_train_years: float = Field(
        0.0,
        ge=0,
        description="Years of observed targets that an entity needs in train; 0: one target.",
    )
    bad_rows: Literal["error", "drop"] = _rows(
        "error",
        description=(
            "What to do with rows between two steps, rows after the first of one time, rows without"
            " a readable time, at one that time_zone skips, or without an entity; error: leave out"
            " their entity, and fail if they have none; drop: counted."
        ),
    )
    duplicates: Annotated[Duplicates, never_groups("every entity of series is in all splits")] = (
        _rows(
            "count",
            description=(
                "Entities with the values and times of an earlier one; drop: keep the first, in the"
                " order of entities; count: reported; allow: not looked for. Not group: every"
                " entity is in all splits."
            ),
        )
    )
    max_imputation_gap_size: int = Field(
        5,
        ge=0,
        description=(
            "Longest gap, in steps, that is filled with the value before it; longer gaps stay."
        ),
    )
    preprocessing_configs: Preprocessing = Field(
        default_factory=Preprocessing,
        description="Pipelines for features, target and static_features.",
    )
    pipelines_from: LocalPath | None = Field(
        None,
        description=(
            "Finished run, or its dataset directory, whose fitted pipelines scale this run's rows."
            " They are not fitted again, every row is in test, and targets may be missing. Other"
            " settings default to those of that run."
        ),
    )
    batch_size: int = Field(
        50, ge=1, description="Entities processed at a time, which decides memory."
    )
    seed: int = Field(
        42,
        ge=0,
        lt=2**63,
        description="Chooses the entities that unified pipelines are fitted on.",
    )
    layout: Literal["files", "packed"] = Field(
        "files", description="Parquet files of a split: one per entity, or one per batch."
    )

    @model_validator(mode="before")
    @classmethod
    def _complete_from_run(cls, values: Any) -> Any:
        """Take settings that are not given from the run of `pipelines_from`."""
        from headrace.series.reuse import completed  # settings alone open no run

        if not isinstance(values, dict) or values.get("pipelines_from") is None:
            return values
        if values.keys() >= cls.model_fields.keys():
            # These are settings of a finished run, and the run that they name may be gone.
            return values
        try:
            return completed(values)
        except SettingsError as error:
            raise ValueError(error.marked) from None

    @field_validator("gap")
    @classmethod
    def _known_duration(cls, value: str | None) -> str | None:
        return None if value is None else known_duration("gap", value)

    @field_validator("frequency")
    @classmethod
    def _known_frequency(cls, value: str) -> str:
        if value in _INFERRED:
            return value
        return Frequency.parse(value).word

    @field_validator("train_end", "val_end", mode="before")
    @classmethod
    def _known_time(cls, value: Any, field: ValidationInfo) -> Any:
        if hasattr(value, "isoformat"):  # YAML turns an unquoted date into a date object
            value = value.isoformat()
        try:
            if isinstance(value, str):
                time_us(field.field_name or "", value)
        except SettingsError as error:
            raise ValueError(error.marked) from None
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Series:
        """Raise `ValueError` for the first inconsistency found."""
        for message in find_faults(self):
            raise ValueError(message)
        try:
            _ = self.resolved
        except SettingsError as error:
            raise ValueError(error.marked) from None
        return self

    @property
    def entity_is_file(self) -> bool:
        """Whether each file is an entity, named by the file."""
        return self.entity == FILE_NAME

    @property
    def needs_frequency(self) -> bool:
        """Whether the frequency is still to be found in the source."""
        return self.frequency in _INFERRED

    @cached_property
    def step(self) -> Frequency:
        """The frequency, of days or longer in `time_zone`.

        Weeks that `resample` makes begin on Monday unless they have a weekday. Raises `ValueError`
        if it is still to be inferred.
        """
        step = Frequency.parse(self.frequency).in_zone(self.time_zone)
        return step.from_monday() if self.resample else step

    def with_frequency(self, word: str) -> Series:
        """Return the same settings with the frequency that was found in the source."""
        settings = self.model_copy(update={"frequency": word})
        for name in ("step", "cuts", "division"):  # they may follow from the frequency
            settings.__dict__.pop(name, None)
        return settings

    @property
    def step_zone(self) -> str | None:
        """The zone whose clocks show the times of steps; None for UTC, and for a frequency that is
        still to be inferred.
        """
        return None if self.needs_frequency else self.step.zone

    @property
    def takes_order(self) -> bool:
        """Whether the order of the rows within a step matters."""
        return not {"first", "last"}.isdisjoint(self.resample.values())

    def rule(self, column: str) -> str:
        """Return the `resample` rule of a column."""
        return self.resample.get(column) or self.resample["*"]

    @property
    def takes_absence(self) -> bool:
        """Whether a step without rows has a value: 0 in columns that `resample` takes the total
        of.
        """
        return "total" in self.resample.values()

    @property
    def empty_step(self) -> list[float]:
        """The values of a step without rows: missing, or 0 if `resample` takes the total."""
        values = [float("nan")] * len(self.columns)
        if self.resample:
            for number, name in enumerate(self.columns):
                if self.rule(name) == "total":
                    values[number] = 0.0
        return values

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The column of the time, or those of date and clock."""
        if isinstance(self.time, str):
            return (self.time,)
        return self.time

    @property
    def time_column(self) -> str:
        """The column of the time; of a date and a clock that are joined, that of the date."""
        return self.time_columns[0]

    @property
    def time_forms(self) -> tuple[str, ...]:
        """How times are written; the first form that reads a value counts."""
        return self.dialect.time_format or ("iso",)

    @cached_property
    def missing_numbers(self) -> tuple[float, ...]:
        """The numbers among `null_values` of the dialect, which are missing in any form and in
        columns of numbers too.
        """
        numbers = []
        for text in self.dialect.null_values:
            with suppress(ValueError):
                numbers.append(float(text.replace(self.dialect.decimal, ".")))
        return tuple(numbers)

    @cached_property
    def requested_entities(self) -> list[str] | None:
        """The requested entities, sorted and distinct; None for all. Raises `SettingsError`."""
        if self.entities is None:
            return None
        return sorted(set(read_names(self.entities)))

    @cached_property
    def feature_names(self) -> list[str]:
        """The features: those of the past, then those known ahead, in the order given."""
        return [*self.past_features, *self.future_features]

    @cached_property
    def columns(self) -> list[str]:
        """The value columns: the targets, then the features, in the order given."""
        return [*self.target, *self.feature_names]

    @cached_property
    def calendar_columns(self) -> list[str]:
        """The columns made from times, which come after the features."""
        return calendar_names(self.calendar)

    @cached_property
    def future_names(self) -> list[str]:
        """The features known ahead, then the calendar columns, which always are."""
        return [*self.future_features, *self.calendar_columns]

    @cached_property
    def stored_columns(self) -> list[str]:
        """The columns of the store and of the readable files: values, then calendar."""
        return [*self.columns, *self.calendar_columns]

    @property
    def entity_column(self) -> str:
        """The name of the entity column in the output."""
        if self.entity_is_file:
            return self.static_entity or "entity"
        return self.entity

    @property
    def optional_columns(self) -> tuple[str, ...]:
        """The columns that a file may lack."""
        if self.schema_drift == "widen":
            return tuple(self.columns)
        if self.fits:
            return ()
        return self.target

    @property
    def fits(self) -> bool:
        """Whether this run fits pipelines, and does not reuse those of another run."""
        return self.pipelines_from is None

    @cached_property
    def resolved(self) -> Resolved:
        """The pipelines, each with its columns."""
        return self.preprocessing_configs.resolved(
            targets=self.target,
            features=self.feature_names,
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
        from headrace.series.reuse import contradiction, named_run  # settings alone open no run

        named = named_run(self.pipelines_from)
        message = contradiction(self.model_dump(mode="json"), named)
        if message is not None:
            raise SettingsError(
                message,
                setting="pipelines_from",
                value=str(self.pipelines_from),
                remedy="leave the setting out",
            )
        return named

    @property
    def ratios(self) -> dict[str, float]:
        """The share of the observed targets of each split."""
        train = self.train_ratio
        val = self.val_ratio
        return {"train": train, "val": val, "test": max(0.0, round(1 - train - val, 9))}

    @property
    def cut_by_dates(self) -> bool:
        """Whether the cuts are at dates, and not at shares of targets."""
        return self.train_end is not None

    @cached_property
    def cuts(self) -> tuple[int, int] | None:
        """The times where val and test begin, in microseconds since 1970; None if the cuts are by
        shares of targets.
        """
        if self.train_end is None:
            return None
        first = self._cut("train_end", self.train_end)
        if self.val_end is None:
            return first, first
        return first, self._cut("val_end", self.val_end)

    def _cut(self, name: str, text: str) -> int:
        return time_us(name, text, self.step_zone, clock=self.step_zone)

    @cached_property
    def division(self) -> Division:
        """The division of rows into segments.

        Raises `SettingsError` for tables and files that do not define it.
        """
        return Division.from_settings(self)

    def identity_settings(self) -> dict[str, Any]:
        """Return the settings that can change a byte of output; of files the names and contents,
        not the paths.
        """
        settings = self.identity_without("source", "static")
        requested = self.requested_entities
        if requested is not None:
            settings["entities"] = sha256_hex("\n".join(requested).encode())
        held_out = self.division.held_out
        settings |= {
            "static_features": list(self.static_features),
            "categories": {name: ["", *texts] for name, texts in self.categories.items()},
            "train_end": self.cuts and self.cuts[0],
            "val_end": self.val_end and self.cuts and self.cuts[1],
            "val_entities": sorted(name for name in held_out if held_out[name] == "val"),
            "test_entities": sorted(name for name in held_out if held_out[name] == "test"),
        }
        if not self.needs_frequency:
            settings["frequency"] = self.step.word
        if self.time_zone is not None:
            settings["time_zone_version"] = zone_version(self.time_zone)
        if self.reused is not None:
            settings["pipelines_from"] = self.reused.record()
        return settings

    def source_files(self) -> list[tuple[Path, str]]:
        """Find the files of series and static attributes, with names below `series/` and
        `static/`, sorted by name.
        """
        from headrace.series.sources import source_files  # imported late: it imports the settings

        return source_files(self)

    def source_places(self) -> Sequence[str | Path]:
        """List the files, directories and patterns of series and static attributes, as given."""
        return [*self.source, *self.static]


def output_roles(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of the entity column, and the time format, in the output of a run with these
    settings.
    """
    entity = config["entity"]
    if entity == FILE_NAME:
        entity = config["static_entity"] or "entity"
    return {"entity": entity, "time_format": "auto"}
