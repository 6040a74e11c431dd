"""Settings of the features that a split joins to its rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationInfo, field_validator, model_validator

from headrace.checks import duration_us
from headrace.dataset.tables import with_paths
from headrace.formats.time_formats import DATE_WORDS
from headrace.formats.type_words import TypeWords
from headrace.settings import Names, Settings, known_duration
from headrace.storage.settings import Places


class Features(Settings):
    """A table of features; each row of a split gets the latest one of its entity that was known at its time.

    A feature is known from `known_at` on, and not before its own `event_time`. Raises `SettingsError` when built with
    values that cannot work.
    """

    source: Places = Field(min_length=1, description="Files, directories or glob patterns of features, or a table.")
    event_time: str = Field(min_length=1, description="Column of the time that a feature is about.")
    entity: str | None = Field(
        None, min_length=1, description="Column of the entity. Default: the name of that column in the rows."
    )
    known_at: str | None = Field(
        None,
        min_length=1,
        description="Column of the time from which a feature was known: when it arrived or was corrected. "
        "Default: event_time.",
    )
    columns: Names = Field((), description="Columns that rows get. Default: all but entity, event_time and known_at.")
    max_age: str | None = Field(
        None, description="Features older than this at the time of a row are not joined, such as 90d."
    )
    prefix: str = Field("", description="Prefix of the names of the columns in the output.")
    types: TypeWords = Field(default_factory=dict, description="Types of text columns, e.g. balance=float64.")
    time_format: str = Field(
        "auto",
        examples=["auto", *DATE_WORDS],
        description="How event_time and known_at are written, in the words of the setting for rows.",
    )

    def __init__(self, **values: Any) -> None:
        super().__init__(**{name: with_paths(value) for name, value in values.items()})

    @field_validator("max_age")
    @classmethod
    def _known_duration(cls, value: str | None) -> str | None:
        return None if value is None else known_duration("max_age", value)

    @field_validator("time_format")
    @classmethod
    def _known_format(cls, value: str, field: ValidationInfo) -> str:
        from headrace.formats.dates import date_word  # settings alone load no data libraries

        return value if value == "auto" else date_word(value, str(field.field_name), "auto")

    @model_validator(mode="after")
    def _consistent(self) -> Features:
        twice = next((name for name in self.columns if self.columns.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"columns names {twice!r} twice; name it once")
        if self.event_time in (self.entity, self.known_at):
            role = "entity" if self.event_time == self.entity else "known_at"
            raise ValueError(f"event_time and {role} are both {self.event_time!r}; name two columns, or leave it out")
        return self

    @property
    def max_age_us(self) -> int | None:
        """The greatest age of a feature that is joined, in microseconds."""
        return None if self.max_age is None else duration_us("max_age", self.max_age)

    def files(self) -> list[tuple[Path, str]]:
        """List the files of the source and their names relative to its root, sorted by name."""
        from headrace.formats.source import find_files  # settings alone load no data libraries

        return find_files(self.source)


def listed(value: object) -> object:
    """Wrap a single table of features in a list."""
    return (value,) if isinstance(value, dict | Features) else tuple(value) if isinstance(value, list) else value


def files_of(joins: Sequence[Features]) -> list[tuple[Path, str]]:
    """List the files of all tables of features, with names that begin with the number of their table."""
    return [(path, f"{folder(number)}{name}") for number, each in enumerate(joins) for path, name in each.files()]


def folder(number: int) -> str:
    """Return the prefix of the file names of a table of features."""
    return f"join[{number}]/"


def is_of_join(joins: Sequence[Features], name: str) -> bool:
    """Return True if a file of the run's source holds features, judging by its name."""
    return any(name.startswith(folder(number)) for number in range(len(joins)))
