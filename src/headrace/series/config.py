"""What can be asked of series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from headrace.digest import sha256_hex
from headrace.errors import SettingsError
from headrace.formats.dates import date_word
from headrace.run.context import RunContext
from headrace.run.prepare import Outcome
from headrace.series.arrays.axis import Frequency
from headrace.series.pipelines.settings import Preprocessing, Resolved
from headrace.settings import Names, Settings
from headrace.storage.settings import LocalPath, Places

FILE_NAME = "file_name"
SPLITS = ("train", "val", "test")
FILLED = "__filled"  # behind a column's name: where its values were carried forward

_SHARES_SUM = 1e-9


def _numbers(value: object) -> object:
    if isinstance(value, int | float):
        return (float(value),)
    return tuple(value) if isinstance(value, list) else value


Numbers = Annotated[tuple[float, ...], BeforeValidator(_numbers)]


class Series(Settings):
    """Time series of many entities: on a regular axis, cleaned, split by time and scaled by what trains.

    source: files, directories or glob patterns. entity="file_name": a file is an entity, named as the file without its
    extension; else `entity` is a column of long tables.
    region_time_series_base_dirs, region_static_attributes_base_dirs: instead of source and static, {region: directory};
    an entity's region is its name up to the first "_".
    reader: "table" (CSV, TSV, JSON lines, Parquet, Arrow), or "camels_us" (source is the root of that data set's text
    files, forcing the product).
    time: column of the time. time_format: of text and numbers: "iso", an epoch such as "epoch_s" or strptime patterns,
    tried in this order. Times without an offset are UTC.
    target: the column to be predicted. features: forcing columns. null_values: texts that mean missing.
    missing_numbers: numbers that mean missing, e.g. -999.
    static: files of static attributes, joined on static_entity. static_features: columns of them, numbers, or texts
    that a pipeline of preprocessing_configs encodes.
    missing_static: an entity that lacks one is an "error", or leaves the run ("drop_entity"), or gets the "mean" or
    "median" of the retained entities.
    entities, entities_file: only these entities; in the file a name per line. One without data fails.
    train_prop, val_prop, test_prop: shares of each entity's observed targets; they sum to 1.
    min_train_years: entities need as many observed targets to train on as so many years have steps.
    frequency: the step of all series, e.g. "1d", "1h", "15m", "1mo"; "infer" takes the usual one.
    duplicate_times, off_grid, bad_times: rows of a time that another row has, between two steps, or without a readable
    time "fail" their entity, or are dropped and counted ("drop"; of duplicates the "first" or "last" stays).
    null_entity: rows of long tables without entity are an "error", or dropped and counted.
    max_imputation_gap_size: gaps of at most so many steps are filled with the value before them; longer ones are left.
    impute_target: "never", or "forward" as features. filled_mask="columns" adds a column NAME__filled for each.
    preprocessing_configs: pipelines for "features", "target" and "static_features".
    batch_size: entities that are worked on at a time; decides memory.
    seed: of the entities that unified pipelines are fitted on.
    layout: "files" writes a Parquet file per entity and split, "packed" one per batch and split.

    Raises `SettingsError` when built with values that cannot work.
    """

    source: Places = ()
    region_time_series_base_dirs: Mapping[str, Path] = Field(default_factory=dict)
    reader: Literal["table", "camels_us"] = "table"
    forcing: Literal["daymet", "maurer", "maurer_extended", "nldas"] = "daymet"
    entity: str = Field(FILE_NAME, min_length=1)
    time: str = Field("date", min_length=1)
    time_format: Names = ("iso",)
    target: str = Field(min_length=1)
    features: Names = ()
    null_values: Names = ("NA",)
    missing_numbers: Numbers = ()
    static: Places = ()
    region_static_attributes_base_dirs: Mapping[str, Path] = Field(default_factory=dict)
    static_entity: str | None = None
    static_features: Names = ()
    missing_static: Literal["error", "drop_entity", "mean", "median"] = "error"
    entities: Names | None = None
    entities_file: LocalPath | None = None
    train_prop: float = Field(0.6, gt=0, le=1)
    val_prop: float = Field(0.2, ge=0, lt=1)
    test_prop: float = Field(0.2, ge=0, lt=1)
    min_train_years: float = Field(5.0, ge=0)
    frequency: str = "infer"
    duplicate_times: Literal["fail", "first", "last"] = "fail"
    off_grid: Literal["fail", "drop"] = "fail"
    bad_times: Literal["fail", "drop"] = "fail"
    null_entity: Literal["error", "drop"] = "error"
    max_imputation_gap_size: int = Field(5, ge=0)
    impute_target: Literal["never", "forward"] = "never"
    filled_mask: Literal["off", "columns"] = "off"
    preprocessing_configs: Preprocessing = Field(default_factory=Preprocessing)
    batch_size: int = Field(50, ge=1)
    seed: int = Field(42, ge=0, lt=2**63)
    layout: Literal["files", "packed"] = "files"

    @field_validator("time_format")
    @classmethod
    def _known_formats(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            date_word(each, "time_format")
        if not value:
            raise ValueError("time_format is empty; give at least one")
        return value

    @field_validator("frequency")
    @classmethod
    def _known_frequency(cls, value: str) -> str:
        return value if value == "infer" else Frequency.parse(value).word

    @model_validator(mode="after")
    def _consistent(self) -> Series:
        shares = self.train_prop + self.val_prop + self.test_prop
        if abs(shares - 1) > _SHARES_SUM:
            raise ValueError(
                f"train_prop {self.train_prop} + val_prop {self.val_prop} + test_prop {self.test_prop} = {shares:g}; "
                f"make them sum to 1"
            )
        self._check_columns()
        self._check_sources()
        self._check_static()
        try:
            self.resolved()
        except SettingsError as error:
            raise ValueError(str(error)) from None
        return self

    def _check_columns(self) -> None:
        if self.target in self.features:
            raise ValueError(
                f"the target {self.target!r} is also a feature, which would leak it; take it out of features: models "
                f"that read its past ask for that when they read windows"
            )
        names = self.columns()
        roles = [self.time, *names, *([] if self.entity == FILE_NAME else [self.entity])]
        repeated = sorted({each for each in roles if roles.count(each) > 1})
        if repeated:
            raise ValueError(f"column {repeated[0]!r} has more than one role; time, entity, target and features differ")
        if self.filled_mask == "columns" and any(f"{each}{FILLED}" in names for each in names):
            raise ValueError(f"a column's name ends with {FILLED!r}, which masks end with; rename it")

    def _check_sources(self) -> None:
        if bool(self.source) == bool(self.region_time_series_base_dirs):
            raise ValueError("give either source or region_time_series_base_dirs, and not both")
        if self.reader == "camels_us" and (len(self.source) != 1 or self.entity != FILE_NAME):
            raise ValueError(
                f"reader 'camels_us' takes one source, the data set's root directory, and entity {FILE_NAME!r}"
            )
        if self.region_time_series_base_dirs and self.entity != FILE_NAME:
            raise ValueError(f"regions have a file per entity; leave entity as {FILE_NAME!r}")
        if self.entities is not None and self.entities_file is not None:
            raise ValueError("give entities or entities_file, not both")
        if self.entities is not None and not self.entities:
            raise ValueError("entities is empty; give at least one, or leave it out for all")

    def _check_static(self) -> None:
        given = bool(self.static) + bool(self.region_static_attributes_base_dirs)
        if given > 1:
            raise ValueError("give static or region_static_attributes_base_dirs, not both")
        if bool(given) != bool(self.static_features):
            raise ValueError("static files and static_features go together; give both or neither")
        if given and self.entity == FILE_NAME and self.static_entity is None:
            raise ValueError("static_entity is missing; name the column of the static files that holds the entity")
        if len(set(self.static_features)) < len(self.static_features):
            raise ValueError("static_features names a column twice; name each once")

    def columns(self) -> list[str]:
        """The columns of values: the target, then the features sorted by name."""
        return [self.target, *sorted(self.features)]

    def resolved(self) -> Resolved:
        """The pipelines with their columns."""
        return self.preprocessing_configs.resolved(
            target=self.target, features=sorted(self.features), static_features=sorted(self.static_features)
        )

    @property
    def entity_column(self) -> str:
        """What the entity is called in the output."""
        return self.static_entity or "entity" if self.entity == FILE_NAME else self.entity

    def filled_columns(self) -> list[str]:
        """The columns that may be filled."""
        return self.columns() if self.impute_target == "forward" else sorted(self.features)

    def mask_columns(self) -> list[str]:
        """The mask columns behind them, if asked for."""
        return [f"{each}{FILLED}" for each in self.filled_columns()] if self.filled_mask == "columns" else []

    def listed(self) -> list[str] | None:
        """The entities that were asked for, sorted, each once; None for all. Raises `SettingsError`."""
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

    @property
    def recipe_name(self) -> str:
        """The word in manifests and configuration files."""
        return "series"

    def config(self) -> dict[str, Any]:
        """All settings as JSON."""
        return {"recipe": self.recipe_name, **self.model_dump(mode="json")}

    def identity_settings(self) -> dict[str, Any]:
        """The settings that can change a byte of output: of files their names and contents, not where they lie."""
        places = {
            "source",
            "static",
            "region_time_series_base_dirs",
            "region_static_attributes_base_dirs",
            "entities",
            "entities_file",
        }
        settings = self.model_dump(mode="json", exclude=places)
        listed = self.listed()
        settings["entities"] = None if listed is None else sha256_hex("\n".join(listed).encode())
        settings["regions"] = sorted(self.region_time_series_base_dirs)
        return settings

    def source_files(self) -> list[tuple[Path, str]]:
        """The files of series and static attributes, and their names below `series/` and `static/`, sorted by name."""
        from headrace.series.files import source_files  # files are found by what settings say

        return source_files(self)

    def source_places(self) -> Sequence[str | Path]:
        """Files, directories and patterns of series and of static attributes, as given."""
        regions = (self.region_time_series_base_dirs, self.region_static_attributes_base_dirs)
        return [*self.source, *self.static, *(place for each in regions for place in each.values())]

    def execute(self, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        """Do the work in the run directory; see `headrace.prepare`."""
        from headrace.series.recipe import execute  # the recipe imports its settings

        return execute(self, context, files)
