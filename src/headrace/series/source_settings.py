"""Define the settings of the source of series and of its times, with the rules that connect them."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from headrace.checks import duration_us
from headrace.formats.dates import date_word
from headrace.run.settings import RecipeSettings
from headrace.series.arrays.axis import Frequency
from headrace.series.parts import read_names
from headrace.settings import Names, known_duration
from headrace.storage.settings import LocalPath, Places

if TYPE_CHECKING:
    from headrace.series.config import Series

FILE_NAME = "file_name"

_EPOCH = date(1970, 1, 1).toordinal()
Rule = Literal["mean", "sum", "total", "min", "max", "first", "last"]
_source = partial(Field, json_schema_extra={"panel": "Source"})
column = partial(Field, json_schema_extra={"panel": "Columns and times"})


def repeated(*default: str, panel: str, description: str) -> Any:
    """Declare a setting whose flag may be repeated."""
    return Field(default, json_schema_extra={"panel": panel, "flag": "repeated"}, description=description)


def rules(value: object) -> object:
    """Read a single rule as the rule of all columns."""
    return {"*": value} if isinstance(value, str) else value


def listed_days(value: object) -> object:
    """Read @FILE as the days in it, and return a calendar's days sorted. Raises `ValueError` if a text is not a day."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple):
        return value
    texts = []
    for each in map(str, given):
        if each.startswith("@"):
            try:
                texts += Path(each[1:]).expanduser().read_text("utf-8-sig").split()
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"business_days: {each[1:]} cannot be read ({error}); check its path") from None
        else:
            texts.append(each)
    for each in texts:
        try:
            date.fromisoformat(each)
        except ValueError:
            raise ValueError(f"business_days names {each!r}, which is not a day; write days as 2024-12-31") from None
    return tuple(sorted({date.fromisoformat(each).isoformat() for each in texts}))


def known_zone(value: str | None) -> str | None:
    """Return the name of a time zone unchanged. Raises `ValueError` if it is unknown."""
    import polars as pl  # imported late: settings alone must not load data libraries

    try:
        pl.Series([0]).cast(pl.Datetime("us")).dt.replace_time_zone(value)
    except pl.exceptions.PolarsError:
        raise ValueError(f"time_zone {value!r} is not known; give one such as Europe/Berlin or UTC") from None
    return value


class SourceSettings(RecipeSettings):
    """Base of `Series`: its source, and how entities and times are read from it."""

    source: Places = Field((), description="Files, directories or glob patterns of time series.")
    region_time_series_base_dirs: Mapping[str, Path] = _source(
        default_factory=dict,
        description="Directories of series by region, instead of source. An entity's region is its name up to the "
        "first _.",
    )
    reader: Literal["table", "wide", "xarray", "grdc", "camels_us"] = _source(
        "table",
        description="Kind of source; wide: tables with a column per entity, each file named after the value it "
        "holds; xarray: NetCDF files and Zarr stores; grdc: text files of the Global Runoff Data Centre; camels_us: "
        "the root of that data set's text files.",
    )
    comment: str | None = _source(None, min_length=1, description="Prefix of lines of CSV files to skip, e.g. #.")
    decimal: Literal[".", ","] = _source(".", description="Decimal mark of the numbers in CSV files.")
    encoding: str = _source("utf-8", description="Encoding of CSV files, e.g. latin-1, utf-16 or cp1252.")
    forcing: Literal["daymet", "maurer", "maurer_extended", "nldas"] = _source(
        "daymet", description="Forcing product of camels_us."
    )
    entities: Names | None = _source(None, description="Prepare only these entities; one without data is left out.")
    entities_file: LocalPath | None = _source(None, description="File of the entities to prepare, one name per line.")
    entity: str = column(
        FILE_NAME,
        min_length=1,
        description="Column of the entity in long tables; file_name: each file is an entity, named by the file without "
        "its extension.",
    )
    time: str = column("date", min_length=1, description="Column of the time.")
    time_format: Names = repeated(
        "iso",
        panel="Columns and times",
        description="How times are written: iso, an epoch such as epoch_s, or a strptime pattern; several are tried in "
        "turn. Times without offset are UTC.",
    )
    time_zone: Annotated[str | None, AfterValidator(known_zone)] = column(
        None,
        description="Time zone of times without an offset, e.g. Europe/Berlin; the output is in UTC. Default: UTC.",
    )
    ambiguous_times: Literal["in_order", "earlier", "later", "error"] = column(
        "in_order",
        description="How to read a time that occurs twice in time_zone; in_order: the first row is the earlier, "
        "the next the later; error: leave out its entity.",
    )
    nonexistent_times: Literal["error", "drop", "forward"] = column(
        "error",
        description="What to do with rows at a time that does not exist in time_zone; forward: read it with the offset "
        "before the change; error: leave out their entity.",
    )
    frequency: str = column(
        "infer",
        description="Step of all series, e.g. 1d, 1h, 15m or 1mo; 1b: business days; infer: the step of most "
        "entities; coarsest: the longest step of any entity, for resample.",
    )
    business_days: Annotated[Names, BeforeValidator(listed_days)] = column(
        (),
        description="Business days of 1b: YYYY-MM-DD, or @FILE with one a line. Default: Monday to Friday.",
    )
    snap: str | None = column(
        None, description="Move times to the nearest step if it is at most this far, e.g. 2m; needs frequency."
    )
    resample: Annotated[Mapping[str, Rule], BeforeValidator(rules)] = column(
        {},
        description="Combine the rows of each step by a rule per column: mean, sum, min, max, first or last of the "
        "values; total: their sum, and 0 in steps without values. * stands for all others; one rule alone is for all "
        "columns.",
    )

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

    @field_validator("snap", "gap", "label_horizon", check_fields=False)
    @classmethod
    def _known_duration(cls, value: str | None, field: ValidationInfo) -> str | None:
        return value if value is None else known_duration(str(field.field_name), value)

    @field_validator("frequency")
    @classmethod
    def _known_frequency(cls, value: str) -> str:
        return value if value in ("infer", "coarsest") else Frequency.parse(value).word

    @property
    def snap_us(self) -> int | None:
        """The largest distance over which times are moved to a step, in microseconds; None: they are not moved."""
        return None if self.snap is None else duration_us("snap", self.snap)

    def rule(self, column: str) -> str:
        """Return the `resample` rule of a column."""
        return self.resample.get(column) or self.resample["*"]

    @cached_property
    def step(self) -> Frequency:
        """The frequency. Raises `ValueError` if it is still to be inferred."""
        days = [date.fromisoformat(each).toordinal() - _EPOCH for each in self.business_days]
        return Frequency.parse(self.frequency).on(days)

    @property
    def rewritten_text(self) -> bool:
        """Return whether CSV files are decoded, or stripped of comments, before they are read."""
        return self.comment is not None or self.encoding != "utf-8"

    def listed(self) -> list[str] | None:
        """List the requested entities, sorted and distinct; None for all. Raises `SettingsError`."""
        if self.entities_file is None:
            return None if self.entities is None else sorted(set(self.entities))
        return read_names(self.entities_file)


def time_faults(settings: Series) -> Iterator[str]:
    """Yield a message for each contradiction in settings of times."""
    columns, given = settings.columns(), settings.resample.keys()
    if settings.snap_us is not None:
        known = settings.frequency not in ("infer", "coarsest")
        step = Frequency.parse(settings.frequency).micros if known else 0
        if not step:
            yield f"snap needs a frequency of a fixed length, e.g. 1h, and it is {settings.frequency!r}"
        if settings.snap_us * 2 > step:
            yield f"snap is {settings.snap!r}; give at most half of the frequency {settings.frequency}"
        if given:
            yield "give resample or snap, not both"
    if settings.business_days and settings.frequency != "1b":
        yield "business_days are of frequency 1b; give it too"
    if given and settings.frequency == "infer":
        yield "resample needs a frequency, e.g. 1d or coarsest"
    if settings.frequency == "coarsest" and not given:
        yield "frequency is 'coarsest', which needs resample to combine finer rows"
    if strangers := sorted(given - {"*", *columns}):
        yield f"resample names {', '.join(strangers)}, which is not a column of values"
    if left := [each for each in columns if given and not {each, "*"} & given]:
        yield f"resample has no rule for {', '.join(left)}; give one, or one for '*'"
    if settings.duplicate_times == "nearest" and settings.snap is None:
        yield "duplicate_times is 'nearest', which needs snap; give 'first' or 'last'"
    if settings.time_zone is not None and any(each.startswith("epoch") for each in settings.time_format):
        yield "time_format is an epoch, which counts instants; leave time_zone out"


def source_faults(settings: Series) -> Iterator[str]:
    """Yield a message for each contradiction in settings of the source and static files."""
    file_is_entity, regions = settings.entity == FILE_NAME, settings.region_time_series_base_dirs
    static, static_regions = settings.static, settings.region_static_attributes_base_dirs
    if bool(settings.source) == bool(regions):
        yield "give either source or region_time_series_base_dirs, and not both"
    if settings.reader == "camels_us" and (len(settings.source) != 1 or not file_is_entity):
        yield f"reader 'camels_us' takes one source, the data set's root directory, and entity {FILE_NAME!r}"
    if settings.reader in ("wide", "grdc") and not file_is_entity:
        yield f"reader {settings.reader!r} finds the entities itself; leave entity as {FILE_NAME!r}"
    if regions and settings.reader not in ("table", "xarray"):
        yield f"reader {settings.reader!r} takes source; regions are for 'table' and 'xarray'"
    if regions and not file_is_entity:
        yield f"regions have a file per entity; leave entity as {FILE_NAME!r}"
    if settings.entities is not None and settings.entities_file:
        yield "give entities or entities_file, not both"
    if settings.pipelines_from is not None and settings.missing_static in ("mean", "median"):
        yield (
            f"missing_static is {settings.missing_static!r}, which this run would compute from its own entities, not "
            f"from those that trained; give 'error' or 'drop_entity' with pipelines_from"
        )
    if settings.entities == ():
        yield "entities is empty; give at least one, or leave it out for all"
    if static and static_regions:
        yield "give static or region_static_attributes_base_dirs, not both"
    if bool(static or static_regions) != bool(settings.static_features):
        yield "static files and static_features go together; give both or neither"
    if (static or static_regions) and file_is_entity and settings.static_entity is None:
        yield "static_entity is missing; name the column of the static files that holds the entity"
    if len(set(settings.static_features)) < len(settings.static_features):
        yield "static_features names a column twice; name each once"
