"""Settings of series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from headrace.digest import sha256_hex
from headrace.errors import SettingsError
from headrace.formats.dates import date_word
from headrace.run.settings import RecipeSettings
from headrace.series.arrays.axis import Frequency
from headrace.series.pipelines.settings import Preprocessing, Resolved
from headrace.settings import Names
from headrace.storage.settings import LocalPath, Places

if TYPE_CHECKING:
    from headrace.run.context import RunContext
    from headrace.run.prepare import Outcome

FILE_NAME = "file_name"
SPLITS = ("train", "val", "test")
FILLED = "__filled"  # behind a column's name: where its values were carried forward

_RATIOS_SUM = 1e-9
_SOURCE: dict[str, Any] = {"panel": "Source"}
_COLUMNS: dict[str, Any] = {"panel": "Columns and times"}
_STATIC: dict[str, Any] = {"panel": "Static features"}
_ROWS: dict[str, Any] = {"panel": "Rows that do not fit", "former_words": {"fail": "error"}}
_REPEATED: dict[str, Any] = {"flag": "repeated"}


def _numbers(value: object) -> object:
    if isinstance(value, int | float):
        return (float(value),)
    return tuple(value) if isinstance(value, list) else value


Numbers = Annotated[tuple[float, ...], BeforeValidator(_numbers)]


class Series(RecipeSettings):
    """Time series of many entities: on a regular axis, cleaned, split by time and scaled by what trains.

    Raises `SettingsError` when built with values that cannot work.
    """

    recipe_name: ClassVar[str] = "series"

    source: Places = Field((), description="Files, directories or glob patterns of time series.")
    region_time_series_base_dirs: Mapping[str, Path] = Field(
        default_factory=dict,
        json_schema_extra=_SOURCE,
        description="Directories of series by region, instead of source; an entity's region is its name up to the "
        "first _.",
    )
    reader: Literal["table", "camels_us"] = Field(
        "table",
        json_schema_extra=_SOURCE,
        description="What the source is; camels_us: the root of that data set's text files.",
    )
    forcing: Literal["daymet", "maurer", "maurer_extended", "nldas"] = Field(
        "daymet", json_schema_extra=_SOURCE, description="Forcing product of camels_us."
    )
    entities: Names | None = Field(
        None, json_schema_extra=_SOURCE, description="Only these entities; one without data fails."
    )
    entities_file: LocalPath | None = Field(
        None, json_schema_extra=_SOURCE, description="File of the entities to prepare, a name per line."
    )
    entity: str = Field(
        FILE_NAME,
        min_length=1,
        json_schema_extra=_COLUMNS,
        description="Column of the entity in long tables; file_name: a file is an entity, named as the file without "
        "its extension.",
    )
    time: str = Field("date", min_length=1, json_schema_extra=_COLUMNS, description="Column of the time.")
    time_format: Names = Field(
        ("iso",),
        json_schema_extra=_COLUMNS | _REPEATED,
        description="How times are written: iso, an epoch such as epoch_s, or a strptime pattern; several are tried in "
        "turn. Times without offset are UTC.",
    )
    frequency: str = Field(
        "infer",
        json_schema_extra=_COLUMNS,
        description="Step of all series, e.g. 1d, 1h, 15m or 1mo; infer: the step that most entities have.",
    )
    target: str = Field(min_length=1, json_schema_extra=_COLUMNS, description="Column to be predicted.")
    features: Names = Field((), json_schema_extra=_COLUMNS, description="Forcing columns.")
    null_values: Names = Field(("NA",), json_schema_extra=_COLUMNS, description="Texts that mean missing.")
    missing_numbers: Numbers = Field(
        (), json_schema_extra=_COLUMNS, description="Numbers that mean missing, e.g. -999."
    )
    static: Places = Field(
        (), json_schema_extra=_STATIC | _REPEATED, description="Files of static attributes, joined on static_entity."
    )
    region_static_attributes_base_dirs: Mapping[str, Path] = Field(
        default_factory=dict,
        json_schema_extra=_STATIC,
        description="Directories of static attributes by region, instead of static.",
    )
    static_entity: str | None = Field(
        None, json_schema_extra=_STATIC, description="Column of the static files that holds the entity."
    )
    static_features: Names = Field(
        (),
        json_schema_extra=_STATIC,
        description="Columns of the static files: numbers, or texts that a pipeline of preprocessing_configs encodes.",
    )
    missing_static: Literal["error", "drop_entity", "mean", "median"] = Field(
        "error",
        json_schema_extra=_STATIC,
        description="What to do with an entity that lacks a static feature; mean and median are of the retained "
        "entities.",
    )
    train_ratio: float = Field(
        0.6,
        gt=0,
        le=1,
        json_schema_extra={"former": ["train_prop"]},
        description="Share of each entity's observed targets that train; the three ratios sum to 1.",
    )
    val_ratio: float = Field(
        0.2,
        ge=0,
        lt=1,
        json_schema_extra={"former": ["val_prop"]},
        description="Share of each entity's observed targets that validate.",
    )
    test_ratio: float = Field(
        0.2,
        ge=0,
        lt=1,
        json_schema_extra={"former": ["test_prop"]},
        description="Share of each entity's observed targets that test.",
    )
    min_train_years: float = Field(
        5.0, ge=0, description="Years' worth of observed targets that an entity needs to train on."
    )
    duplicate_times: Literal["error", "first", "last"] = Field(
        "error",
        json_schema_extra=_ROWS,
        description="What to do with rows of one time: leave out their entity with an error, or keep one row.",
    )
    off_grid: Literal["error", "drop"] = Field(
        "error",
        json_schema_extra=_ROWS,
        description="What to do with rows between two steps; error: leave out their entity.",
    )
    bad_rows: Literal["error", "drop"] = Field(
        "error",
        json_schema_extra=_ROWS | {"former": ["bad_times"]},
        description="What to do with rows without a readable time; error: leave out their entity.",
    )
    null_entity: Literal["error", "drop"] = Field(
        "error", json_schema_extra=_ROWS, description="What to do with rows of long tables that have no entity."
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
    batch_size: int = Field(50, ge=1, description="Entities that are worked on at a time, which decides memory.")
    seed: int = Field(42, ge=0, lt=2**63, description="Chooses the entities that unified pipelines are fitted on.")
    layout: Literal["files", "packed"] = Field(
        "files", description="Parquet files of a split: one for each entity, or one for each batch."
    )

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
        ratios = self.train_ratio + self.val_ratio + self.test_ratio
        if abs(ratios - 1) > _RATIOS_SUM:
            raise ValueError(
                f"train_ratio {self.train_ratio} + val_ratio {self.val_ratio} + test_ratio {self.test_ratio} = "
                f"{ratios:g}; make them sum to 1"
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
        """List the columns of values: the target, then the features sorted by name."""
        return [self.target, *sorted(self.features)]

    def resolved(self) -> Resolved:
        """Assign columns to the pipelines."""
        return self.preprocessing_configs.resolved(
            target=self.target, features=sorted(self.features), static_features=sorted(self.static_features)
        )

    @property
    def entity_column(self) -> str:
        """The name of the entity column in the output."""
        return self.static_entity or "entity" if self.entity == FILE_NAME else self.entity

    def filled_columns(self) -> list[str]:
        """List the columns that may be filled."""
        return self.columns() if self.impute_target == "forward" else sorted(self.features)

    def mask_columns(self) -> list[str]:
        """List the mask columns, which stand behind the others; none unless asked for."""
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
        """Find the files of series and static attributes, with names below `series/` and `static/`, sorted by name."""
        from headrace.series.files import source_files  # files are found by what settings say

        return source_files(self)

    def source_places(self) -> Sequence[str | Path]:
        """List files, directories and patterns of series and of static attributes, as given."""
        regions = (self.region_time_series_base_dirs, self.region_static_attributes_base_dirs)
        return [*self.source, *self.static, *(place for each in regions for place in each.values())]

    def execute(self, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
        """Do the work in the run directory; see `headrace.prepare`."""
        from headrace.series.recipe import execute  # the recipe imports its settings

        return execute(self, context, files)
