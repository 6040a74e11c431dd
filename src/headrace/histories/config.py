"""Define the settings of histories."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from headrace.errors import SettingsError, setting, setting_name
from headrace.formats.dialect import DialectSetting, dialect_field
from headrace.formats.zones import known_zone, time_us
from headrace.histories import US_PER, IdKind, TimeUnit
from headrace.run.settings import RecipeSettings
from headrace.settings import Duplicates, Names, TimeColumns
from headrace.storage.settings import LocalPath, Places

if TYPE_CHECKING:
    from headrace.histories.reuse import NamedDictionaries

VALUE_TYPES = ("int8", "int16", "int32", "int64", "float32", "float64", "category")
ValueRule = Literal["failed", "drop", "error"]

# Memory per measurement while its partition is sorted and encoded.
WORKING_BYTES = 256
MOST_VALUES = 16  # most columns whose tokens still fit in one field of a measurement
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)


def _as_bytes(value: object) -> object:
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        return value
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def _known_types(types: Mapping[str, str]) -> Mapping[str, str]:
    for name, word in types.items():
        if word not in VALUE_TYPES:
            raise ValueError(
                f"{setting_name('values')} has {name}={word}, which is not a type; choose one of"
                f" {', '.join(VALUE_TYPES)}"
            )
    return dict(sorted(types.items()))


Bytes = Annotated[int, BeforeValidator(_as_bytes)]


def value_role(number: int) -> str:
    """Return the role of the dictionary of a value column."""
    return f"value-{number:02d}"


class Histories(RecipeSettings):
    """The measurements of every entity in time order, as big rows that contexts are drawn from.

    Raises `SettingsError` when built with values that cannot work.
    """

    recipe_name: ClassVar[str] = "histories"

    source: Places = Field(
        min_length=1,
        description="Files, directories or glob patterns; shards and rows in any order.",
    )
    entity: str = Field("src_addr", min_length=1, description="Column of the entity.")
    entity_from: Literal["column", "file_name"] = Field(
        "column",
        description="Where the entity is; file_name: the name of its file, without extension.",
    )
    entity_kind: IdKind = Field(
        "address",
        description=(
            "What an entity is: an IPv4 or IPv6 address, a number below 2³², or any text or number,"
            " stored through a dictionary in the run."
        ),
    )
    time: TimeColumns = Field(
        "event_time",
        json_schema_extra={"flag": "repeated"},
        description=(
            "Column of the time; or several, such as its date and its time of day, which are read"
            " as one with blanks between them, under the name of the first."
        ),
    )
    dialect: DialectSetting = dialect_field()
    time_zone: Annotated[str, AfterValidator(known_zone)] = Field(
        "UTC", description="Time zone of times without an offset, and of train_end."
    )
    ambiguous_times: Literal["error", "earlier", "later"] = Field(
        "error", description="How to read a time that occurs twice in time_zone."
    )
    time_unit: TimeUnit = Field(
        "s", description="What stored times count: whole seconds, milliseconds or microseconds."
    )
    peer: str | None = Field(None, description="Column of the other end. Default: none.")
    peer_kind: IdKind = Field("address", description="What a peer is; see entity_kind.")
    value: str | None = Field(
        "rtt",
        min_length=1,
        description="Column of the latency. May be left out if values is given.",
    )
    values: Annotated[Mapping[str, str], AfterValidator(_known_types)] = Field(
        default_factory=dict,
        description=(
            "More columns of a measurement and their types: int8 to int64, float32, float64 or"
            " category, e.g. price=float32."
        ),
    )
    value_unit: Literal["us", "ms", "s"] = Field("ms", description="Unit of the latency.")
    missing: ValueRule = Field(
        "failed", description="What becomes of nulls and NaN; drop: dropped and counted."
    )
    negative: ValueRule = Field("failed", description="What becomes of values below 0.")
    zero: Literal["value", "failed", "drop", "error"] = Field(
        "value", description="What becomes of 0; value: it is a latency."
    )
    schema_drift: Literal["error", "widen"] = Field(
        "error",
        description=(
            "Shards that lack some of these columns; widen: null there, and types widened where"
            " nothing is lost."
        ),
    )
    bad_rows: Literal["error", "drop"] = Field(
        "error",
        description=(
            "Rows whose entity, time, peer or value cannot be read; drop: dropped and counted."
        ),
    )
    sample_rate: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of rows to keep, chosen by a keyed hash of shard name and row.",
    )
    dictionaries_from: LocalPath | None = Field(
        None,
        description=(
            "Finished run of histories, or its dataset directory, whose codes of texts and"
            " categories are kept; new ones get the codes after them."
        ),
    )
    spellings: Literal["error", "keep"] = Field(
        "error",
        description=(
            "Texts and categories that write one number or time in two ways, such as 12 and 12.0;"
            " keep: they are two."
        ),
    )
    train_ratio: float = Field(
        0.9,
        ge=0,
        le=1,
        description=(
            "Share of entities in train, by a keyed hash; the others are in test. An entity keeps"
            " its split whatever other entities are added. With train_end, the default is 1."
        ),
    )
    train_end: str | None = Field(
        None,
        description=(
            "Measurements before this time are in train, others in test, in every entity; e.g."
            " 2024-10-01, which itself is in test. With train_ratio below 1, train has earlier rows"
            " of entities in train, test later rows of the others; the rest is dropped, counted."
        ),
    )
    duplicates: Duplicates = Field(
        "count",
        description=(
            "Entities with the measurements of another one; group: they share a split; drop: keep"
            " the one that begins first; count: reported; allow: not looked for."
        ),
    )
    content: Names = Field(
        (), description="Columns of a measurement to compare. Default: all but the entity."
    )
    seed: int = Field(
        42, ge=0, lt=2**63, description="Decides the sample, the split and the order of entities."
    )
    max_row_bytes: Bytes = Field(
        8 << 20,
        ge=1,
        le=1 << 31,
        description=(
            "Largest row, e.g. 8MiB. Rows are cut after the last measurement that fits, and have at"
            " least one."
        ),
    )
    memory_limit: Bytes = Field(
        2 << 30,
        ge=1 << 20,
        description="Memory for the work, e.g. 2GiB, besides that of the libraries.",
    )
    partitions: int | None = Field(
        None,
        ge=1,
        le=1 << 12,
        description="Shards of a split. Default: as the memory limit requires.",
    )
    format: Literal["array_record", "arrow"] = Field(
        "array_record",
        description=(
            "Format of the shards: array_record (extra `histories`), for Grain; or arrow, which is"
            " mapped: a context drawn at random reads a whole row of array_record, so rows of"
            " megabytes cost hundreds of times as much."
        ),
    )

    @property
    def time_columns(self) -> tuple[str, ...]:
        """The column of the time, or those of date and clock."""
        return (self.time,) if isinstance(self.time, str) else self.time

    @property
    def time_column(self) -> str:
        """The column of the time, or that of the date, under whose name both are read."""
        return self.time_columns[0]

    @property
    def time_forms(self) -> tuple[str, ...]:
        """How times are written; the first form that reads a value counts."""
        return self.dialect.time_format or ("iso",)

    @model_validator(mode="before")
    @classmethod
    def _dependent_defaults(cls, settings: Any) -> Any:
        if not isinstance(settings, dict):
            return settings
        if settings.get("values") and "value" not in settings:
            settings = {**settings, "value": None}
        if settings.get("train_end") is not None and "train_ratio" not in settings:
            settings = {**settings, "train_ratio": 1.0}
        return settings

    @field_validator("train_end", mode="before")
    @classmethod
    def _date_as_text(cls, value: Any) -> Any:
        if hasattr(value, "isoformat"):  # YAML turns an unquoted date into a date object
            return value.isoformat()
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Histories:
        names = self.columns()
        if not all(names) or len(set(names)) < len(names):
            raise ValueError(
                f"columns are {', '.join(names)};"
                f" {', '.join(map(setting_name, ('entity', 'time', 'peer', 'value')))} and"
                f" {setting_name('values')} must differ"
            )
        if self.value is None and not self.values:
            raise ValueError(
                f"neither {setting_name('value')} nor {setting_name('values')} is given; give a"
                " latency, or other columns such as price=float32"
            )
        if len(self.values) > MOST_VALUES:
            raise ValueError(
                f"{setting_name('values')} has {len(self.values)} columns; give at most"
                f" {MOST_VALUES}"
            )
        if self.peer is None and self.peer_kind != "address":
            raise ValueError(
                f"{setting_name('peer_kind')} is {self.peer_kind!r} without a peer; give"
                f" {setting('peer')}, or leave it out"
            )
        if self.train_end is not None:
            self._check_train_end(self.train_end)
        known = self._measured()
        unknown = [name for name in self.content if name not in known]
        if unknown:
            raise ValueError(
                f"{setting_name('content')} names {unknown}; name some of {', '.join(known)}, which"
                " a measurement consists of"
            )
        return self

    def _check_train_end(self, train_end: str) -> None:
        try:
            micros = time_us("train_end", train_end, self.time_zone)
        except SettingsError as error:
            raise ValueError(error.marked) from None
        if micros % US_PER[self.time_unit]:
            raise ValueError(
                f"{setting_name('train_end')} {train_end} has a fraction of a stored time; give"
                f" {setting('time_unit', 'us')}, or a time without it"
            )
        if self.duplicates == "group":
            raise ValueError(
                f"{setting_name('duplicates')} is 'group' with {setting_name('train_end')}, which"
                " decides the split; give 'drop', 'count' or 'allow'"
            )

    @property
    def cut(self) -> int | None:
        """The stored time where test begins; None if only entities decide."""
        if self.train_end is None:
            return None
        micros = time_us("train_end", self.train_end, self.time_zone)
        return micros // US_PER[self.time_unit]

    def compared(self) -> tuple[str, ...]:
        """Return the columns by which the measurements of two entities are compared."""
        return self.content or tuple(self._measured())

    def columns(self) -> list[str]:
        """Return the names of the columns that are read."""
        measured = [*self.time_columns, *self._measured()[1:]]
        if self.entity_from == "column":
            return [self.entity, *measured]
        return measured

    def _measured(self) -> list[str]:
        """Return the columns that a measurement consists of."""
        optional = [name for name in (self.peer, self.value) if name is not None]
        return [self.time_column, *optional, *self.values]

    def dictionaries(self) -> dict[str, str]:
        """Return the column of each dictionary of texts, by the dictionary's role."""
        columns: dict[str, str] = {}
        if self.entity_kind == "text":
            columns["entity"] = self.entity
        if self.peer_kind == "text":
            columns["peer"] = self.peer or ""
        return columns | {role: column for column, role in self.categories().items()}

    @cached_property
    def reused(self) -> NamedDictionaries | None:
        """The run named by dictionaries_from; None without.

        Raises `SettingsError` if it does not exist, or has measurements of other columns.
        """
        if self.dictionaries_from is None:
            return None
        from headrace.histories.reuse import named_dictionaries  # settings alone open no run

        return named_dictionaries(self, self.dictionaries_from)

    def identity_settings(self) -> dict[str, Any]:
        """Return the settings that can change a byte of output; of the named run its id and the
        digests of its dictionaries, not the path.
        """
        settings = self.identity_without("source", "dictionaries_from")
        settings["train_end"] = self.cut
        if self.reused is not None:
            settings["dictionaries_from"] = self.reused.record
        return settings

    def categories(self) -> dict[str, str]:
        """Return the dictionary's role of each category column."""
        types = enumerate(self.values.items())
        result = {}
        for number, (name, word) in types:
            if word == "category":
                result[name] = value_role(number)
        return result

    @property
    def slice_rows(self) -> int:
        """The measurements of an average partition; a partition of up to twice as many is sorted in
        memory.
        """
        return max(1, self.memory_limit // (16 * self.working_bytes))

    @property
    def working_bytes(self) -> int:
        """The memory that a measurement takes while its partition is sorted and encoded, in
        bytes.
        """
        return WORKING_BYTES + 32 * len(self.values)
