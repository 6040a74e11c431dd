"""Propose the configuration of a split from a look at the data: time, entity, cutoff; without a
time, what is drawn.

Each guess comes with its reason and the alternatives. Counts cover only the rows that were read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64
from headrace.cli.init.asked import AskedSplit
from headrace.cli.init.commented import Aside, Section, settings_of
from headrace.cli.init.look import (
    NULLS,
    Column,
    Look,
    id_like,
    known,
    look,
    named,
    number_share,
)
from headrace.cli.init.times import day_first_doubt, number_time_format, time_forms
from headrace.errors import SettingsError, setting
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.text_columns import as_text, nulled
from headrace.formats.types import is_text
from headrace.report.words import pluralise, size
from headrace.split.random_split import RandomSplit
from headrace.split.settings import TemporalSplit

_TEST_SHARE = 0.2  # share of rows from the proposed cutoff on
_DAY_US = 86_400_000_000
_LEAST_DAYS = 2  # of a time, for a cutoff between them
_ENTITY_WORDS = (
    *(
        "customer",
        "client",
        "user",
        "account",
        "entity",
        "patient",
        "device",
        "card",
        "member",
        "session",
        "household",
    ),
    *("tailnum", "driver", "store", "shop", "merchant", "person", "subject", "group"),
)
_TIME_WORDS = ("date", "time", "datetime", "timestamp", "created", "occurred", "day", "event")
_LEAST_ENTITIES = 3  # a column of two values is a flag
_MOSTLY = 0.5  # share of texts
_MOST_OWN = 0.8  # distinct values per row; a column with more is probably a row key


@dataclass(frozen=True)
class Candidate:
    """A column that may be the entity: distinct values, and rows without a value, among the rows
    read.
    """

    name: str
    distinct: int
    rows: int
    missing: int

    def words(self) -> str:
        """Return the counts as text for people."""
        rows_per_value = (self.rows - self.missing) / max(1, self.distinct)
        absent = ""
        if self.missing:
            absent = f", {100 * self.missing / self.rows:.1f} % of rows without"
        return f"{self.name} ({self.distinct:,} values, {rows_per_value:,.1f} rows each{absent})"


_SHARES = Section(
    "This share of the entities with rows before the cutoff goes to train and the others to val;"
    " the seed decides which. Entities in val may also be in test, unless val_in_test is drop.",
    {"train_ratio": 0.9, "seed": 42, "val_in_test": Aside("drop")},
)


def split_sections(options: AskedSplit) -> tuple[list[Section], str]:
    """Return the sections of the configuration, and a line about the data.

    Raises `SettingsError`, `InputError`.
    """
    sample = look(options.source)
    rows = sum(table.num_rows for _, table in sample.tables)
    if not rows:
        raise SettingsError(
            "has no rows to look at", path=options.source[0], remedy="give a source that has some"
        )
    if options.time is None and options.split_date is None and not _times(sample):
        _refuse_mixed_times(sample)
        return _random_sections(sample, options, rows)
    time, time_section = _time(sample, options)
    entity, entity_section = _entity(sample, options, time.name)
    split_date, cut_words = _cutoff(sample, options, time)
    about = _about(sample, rows)
    sections = [
        Section(
            f"Written by `headrace init split` after a look at the data: {about}.\n"
            "Paths are relative to where the command is run.",
            {"recipe": "temporal_split", "out": options.out},
        ),
        Section(
            "The source to split.",
            {"source": options.source if len(options.source) > 1 else options.source[0]},
        ),
        time_section,
        entity_section,
        Section(cut_words, {"split_date": split_date}),
        *([_SHARES] if entity else []),
        *_column_sections(sample, entity),
        Section(
            "layout: a shard per source shard, or single: a file per split. format: same as the"
            " source, or e.g. parquet, which is read several times faster than text. lineage:"
            " columns adds source_shard and source_row.",
            {"layout": "sharded", "format": "same", "lineage": Aside("columns")},
        ),
    ]
    written = settings_of(sections)
    del written["recipe"], written["out"]
    TemporalSplit(**written)
    whose = f"entity {entity}" if entity else "no entity"
    return sections, f"{about}; date {time.name}, {whose}, cutoff {split_date}"


def _about(sample: Look, rows: int) -> str:
    """Describe the data, and how many rows were looked at."""
    return (
        f"{pluralise(len(sample.names), 'file')}, {size(sample.bytes)},"
        f" {pluralise(len(sample.columns), 'column')}; looked at {pluralise(rows, 'row')} of"
        f" {pluralise(len(sample.tables), 'file')}"
    )


def _random_sections(sample: Look, options: AskedSplit, rows: int) -> tuple[list[Section], str]:
    """Return the sections of a random split, for data in which no column is a time."""
    about = _about(sample, rows)
    if options.entity is not None or _entities(sample, ""):
        by, by_section = _entity(sample, options, "")
        by_section.settings["by"] = by_section.settings.pop("entity")
    else:
        by = "rows"
        words = "Rows are drawn by their values, so that equal rows share a split."
        by_section = Section(f"{words} No column repeats as an entity's would.", {"by": by})
    sections = [
        Section(
            f"Written by `headrace init split` after a look at the data: {about}.\n"
            "Paths are relative to where the command is run.",
            {"recipe": "random_split", "out": options.out},
        ),
        Section(
            "The source to split.",
            {"source": options.source if len(options.source) > 1 else options.source[0]},
        ),
        by_section,
        Section(
            "No column is a time, so rows are drawn: these shares go to val and test, the rest to"
            " train; the seed decides which. stratify: a column of classes, of which each split"
            " gets its share.",
            {"val_ratio": 0.1, "test_ratio": 0.1, "seed": 42, "stratify": Aside("COLUMN")},
        ),
        *_column_sections(sample, by),
        Section(
            "layout: a shard per source shard, or single: a file per split. format: same as the"
            " source, or e.g. parquet, which is read several times faster than text.",
            {"layout": "sharded", "format": "same"},
        ),
    ]
    written = settings_of(sections)
    del written["recipe"], written["out"]
    RandomSplit(**written)
    return sections, f"{about}; no date, so drawn by {by}"


def _times(sample: Look) -> list[Column]:
    """Return the columns that may be the time."""
    times = [sample.columns[name] for name in sample.everywhere("time")]
    return times or [*_number_times(sample)]


def _time(sample: Look, options: AskedSplit) -> tuple[Column, Section]:
    """Choose the time column, and return the section that explains the choice."""
    times = _times(sample)
    also = ""
    if options.time is not None:
        best = sample.columns[known(options.time, sample.columns, "time")]
        for candidate in _number_times(sample):
            if candidate.name == best.name:
                best = candidate
    elif not times:
        raise SettingsError(
            "no column that all files have holds dates",
            path=options.source[0],
            remedy=f"give {setting('time')}, one of {', '.join(list(sample.columns)[:20])}",
        )
    else:
        one_day = set()
        for candidate in times:
            days = np.unique(_instants(sample, candidate) // _DAY_US)
            if len(days) < _LEAST_DAYS:
                one_day.add(candidate.name)
        best = max(
            times,
            key=lambda candidate: (
                candidate.name not in one_day,
                named(candidate.name, _TIME_WORDS),
                -candidate.missing,
                -times.index(candidate),
            ),
        )
        others = [candidate.name for candidate in times if candidate is not best]
        also = " No other column is a date."
        if others:
            also = f" Also dates: {', '.join(others)}."
    columns = [table[best.name] for _, table in sample.tables if best.name in table.column_names]
    section = Section(
        f"When a row happened.{also} {day_first_doubt(columns, best.time_format)}".strip()
    )
    section.settings["time"] = best.name
    section.settings |= _dialect(best)
    if best.missing:
        section.settings["bad_rows"] = "drop"
    section.settings["time_zone"] = Aside("UTC")
    return best, section


def _dialect(time: Column) -> dict[str, Any]:
    """Return the setting that says how a time is written, if one is needed."""
    if time.time_format not in (None, "iso"):
        return {"dialect": {"time_format": time.time_format}}
    return {}


def _number_times(sample: Look) -> Iterator[Column]:
    """Yield the columns of numbers that a split reads as times; seconds since 1970 only if the name
    says so.
    """
    for name in sample.everywhere("number"):
        form = number_time_format([table[name] for _, table in sample.tables])
        if form == "yyyymmdd" or (form is not None and named(name, _TIME_WORDS)):
            yield replace(sample.columns[name], content="time", time_format=form)


def _refuse_mixed_times(sample: Look) -> None:
    """Raise `SettingsError` for a column of times in several forms, which a split cannot read."""
    for name in sample.everywhere("text"):
        forms = time_forms([table[name] for _, table in sample.tables])
        if forms is not None and len(forms.forms) > 1 and not forms.unread:
            raise SettingsError(
                f"its times are written in several forms: {', '.join(forms.forms)}",
                path=sample.source[0],
                column=name,
                remedy="write them in one form, such as 2025-01-31 12:00",
            )


def _entity(sample: Look, options: AskedSplit, time: str) -> tuple[str, Section]:
    """Choose the entity column, and return the section that explains the choice."""
    if options.entity is not None:
        best = _candidate(sample, known(options.entity, sample.columns, "entity"))
        words = f"No entity may be in both train and test: {best.words()}."
    else:
        usable = _entities(sample, time)
        if not usable:
            words = (
                "No column looks like an entity, so rows are split by time alone, without val: an"
                " entity may be in both train and test. Name its column if there is one."
            )
            return "", Section(words, {"entity": Aside("COLUMN")})
        best = usable[0]
        others = usable[1:4]
        words = (
            f"No entity may be in both train and test. Chosen by name and counts: {best.words()}."
        )
        if others:
            words += (
                f" Others that could be: {', '.join(candidate.words() for candidate in others)}."
            )
    section = Section(words, {"entity": best.name})
    if best.missing:
        # or "own", which makes them one entity; both are counted
        section.settings["null_entity"] = "drop"
    return best.name, section


def _entities(sample: Look, time: str) -> list[Candidate]:
    """Return the columns that may be the entity, the likeliest first; numbers, and without a
    time all others too, only if their name says so.
    """
    usable = []
    for column in sample.columns.values():
        is_usual = column.content in ("text", "number")
        if not is_usual or column.in_files < len(sample.tables) or column.name == time:
            continue
        is_named = named(column.name, _ENTITY_WORDS) or id_like(column.name)
        if not is_named and (not time or column.content == "number"):
            continue  # numbers are counts and readings rather than names
        if _may_name(sample, column.name):
            candidate = _candidate(sample, column.name)
            most = _MOST_OWN * max(1, candidate.rows - candidate.missing)
            if _LEAST_ENTITIES <= candidate.distinct <= most:
                usable.append(candidate)
    return sorted(
        usable,
        key=lambda candidate: (
            -named(candidate.name, _ENTITY_WORDS),
            not id_like(candidate.name),
            -candidate.distinct,
        ),
    )


def _candidate(sample: Look, name: str) -> Candidate:
    parts = [as_text(table[name], NULLS, name) for _, table in sample.tables]
    column = pl.concat([pl.Series(name, part, dtype=pl.String) for part in parts])
    return Candidate(name, column.drop_nulls().n_unique(), len(column), column.null_count())


def _may_name(sample: Look, name: str) -> bool:
    """Return True if values can be identifiers: text, or whole numbers."""
    for _, table in sample.tables:
        numbers = number_share(table[name])
        if numbers is None and not is_text(table[name].type):
            return False
        if numbers is None and _are_readings(table[name]):
            return False
        values = np.asarray([] if numbers is None else numbers.drop_null().to_numpy(), np.float64)
        if (values != np.floor(values)).any() or (values < 0).any():
            return False
    return True


def _are_readings(texts: pa.ChunkedArray) -> bool:
    """Return whether most texts are numbers with a fraction, beside words for missing ones."""
    fractions = pc.match_substring_regex(texts, r"^\s*[-+]?[0-9]*\.[0-9]+\s*$")
    return (pc.mean(fractions).as_py() or 0) > _MOSTLY


def _instants(sample: Look, time: Column) -> I64:
    """Return the times in the rows that were looked at, in microseconds since 1970."""
    parts = []
    for _, table in sample.tables:
        column = table[time.name]
        if is_text(column.type):
            column = nulled(column, ("", *NULLS))
        parts.append(parse_dates(column, time.time_format or "auto").micros)
    micros: I64 = np.concatenate(parts)
    there: I64 = micros[micros != MISSING]
    return there


def _cutoff(sample: Look, options: AskedSplit, time: Column) -> tuple[str, str]:
    """Choose a day from which on about a fifth of the rows lies; also return words about it."""
    dates = np.sort(_instants(sample, time))
    if not len(dates):
        raise SettingsError(
            "the time column holds no time in the rows sampled",
            path=options.source[0],
            remedy=f"give {setting('time')}",
        )
    words = f"Dates looked at run from {_day(dates[0])} to {_day(dates[-1])}"
    if options.split_date is not None:
        return options.split_date, f"{words}. Rows from here on are in test."
    at = int(dates[int((1 - _TEST_SHARE) * (len(dates) - 1))])
    day = at - at % _DAY_US
    if day <= int(dates[0]):
        day += _DAY_US
    words += (
        f"; {100 * float((dates >= day).mean()):.0f} % of the rows are from here on and go to"
        " test, except those of entities in train. A row at this instant is in test."
    )
    return _day(day), words


def _day(micros: int) -> str:
    return str(np.datetime64(int(micros), "us").astype("datetime64[D]"))


def _column_sections(sample: Look, entity: str) -> list[Section]:
    """Propose types for text columns, texts that mean null, and columns that some files lack."""
    sections = []
    partial = []
    for column in sample.columns.values():
        if column.in_files < len(sample.tables):
            partial.append(column)
    if partial or len({tuple(table.schema.types) for _, table in sample.tables}) > 1:
        names = ", ".join(column.name for column in partial[:8])
        words = (
            f"Files differ in their columns{f': not all have {names}' if names else ''}. widen"
            " takes all of them."
        )
        sections.append(Section(words, {"schema_drift": "widen"}))
    texts = sample.texts()
    # an empty column has no type
    numbers = {}
    for name in texts:
        column = sample.columns[name]
        is_identifier = name == entity or id_like(name)  # stays text
        if column.content == "number" and column.missing < 1 and not is_identifier:
            numbers[name] = "float32"
    if numbers:
        words = "Text columns that hold numbers, which readers deliver as int64 or float64."
        sections.append(Section(words, {"types": Aside(numbers)}))
    if any(sample.holds(name, NULLS) for name in texts):
        sections.append(
            Section("Texts that mean missing.", {"dialect": {"null_values": list(NULLS)}})
        )
    return sections
