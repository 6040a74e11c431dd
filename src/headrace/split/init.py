"""Propose the configuration of a temporal split from a look at the data: time, entity, cutoff.

Each guess comes with its reason and the alternatives. Counts cover only the rows that were read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from headrace.arrays import I64
from headrace.cli.init.asked import AskedSplit
from headrace.cli.init.commented import Aside, Section, settings_of
from headrace.cli.init.look import (
    NULLS,
    Column,
    Look,
    id_like,
    inferred,
    known,
    look,
    named,
    number_share,
)
from headrace.cli.init.times import day_first_doubt, number_time_format
from headrace.errors import SettingsError
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.text_columns import as_text, nulled
from headrace.formats.types import is_text
from headrace.report.words import many, size
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
        each = (self.rows - self.missing) / max(1, self.distinct)
        absent = ""
        if self.missing:
            absent = f", {100 * self.missing / self.rows:.1f} % of rows without"
        return f"{self.name} ({self.distinct:,} values, {each:,.1f} rows each{absent})"


def split_sections(asked: AskedSplit) -> tuple[list[Section], str]:
    """Return the sections of the configuration, and a line about the data.

    Raises `SettingsError`, `InputError`.
    """
    found = look(asked.source)
    rows = sum(table.num_rows for _, table in found.tables)
    if not rows:
        raise SettingsError(
            f"{asked.source[0]}: has no rows to look at; give a source that has some"
        )
    time, time_section = _time(found, asked)
    entity, entity_section = _entity(found, asked, time.name)
    split_date, cut_words = _cutoff(found, asked, time)
    about = (
        f"{many(len(found.names), 'file')}, {size(found.bytes)},"
        f" {many(len(found.columns), 'column')}; looked at {many(rows, 'row')} of"
        f" {many(len(found.tables), 'file')}"
    )
    sections = [
        Section(
            f"Written by `headrace init split` after a look at the data: {about}.\n"
            "Paths are relative to where the command is run.",
            {"recipe": "temporal_split", "out": asked.out},
        ),
        Section(
            "The source to split.",
            {"source": asked.source if len(asked.source) > 1 else asked.source[0]},
        ),
        time_section,
        entity_section,
        Section(cut_words, {"split_date": split_date}),
        Section(
            "This share of the entities with rows before the cutoff trains and the others validate;"
            " the seed decides which. Entities that validate may test, unless val_in_test is drop.",
            {"train_ratio": 0.9, "seed": 42, "val_in_test": Aside("drop")},
        ),
        *_column_sections(found, entity, () if asked.types is None else (time.name, entity)),
        Section(
            "layout: a shard per source shard, or single: a file per split. format: same as the"
            " source, or e.g. parquet, which trains several times faster than text. lineage:"
            " columns adds source_shard and source_row.",
            {"layout": "sharded", "format": "same", "lineage": Aside("columns")},
        ),
    ]
    TemporalSplit(
        **{
            name: value
            for name, value in settings_of(sections).items()
            if name not in ("recipe", "out")
        }
    )
    return sections, f"{about}; date {time.name}, entity {entity}, cutoff {split_date}"


def _time(found: Look, asked: AskedSplit) -> tuple[Column, Section]:
    """Choose the time column, and return the section that explains the choice."""
    times = [
        each
        for each in found.columns.values()
        if each.kind == "time" and each.in_files == len(found.tables)
    ]
    times = times or [*_number_times(found)]
    also = ""
    if asked.time is not None:
        name = known(asked.time, found.columns, "--time")
        best = next(
            (each for each in _number_times(found) if each.name == name), found.columns[name]
        )
    elif not times:
        raise SettingsError(
            f"{asked.source[0]}: no column that all files have holds dates; give --time, one of "
            f"{', '.join(list(found.columns)[:20])}"
        )
    else:
        one_day = {
            each.name
            for each in times
            if len(np.unique(_instants(found, each) // _DAY_US)) < _LEAST_DAYS
        }
        best = max(
            times,
            key=lambda each: (
                each.name not in one_day,
                named(each.name, _TIME_WORDS),
                -each.missing,
                -times.index(each),
            ),
        )
        others = [each.name for each in times if each is not best]
        also = " No other column is a date."
        if others:
            also = f" Also dates: {', '.join(others)}."
    columns = [table[best.name] for _, table in found.tables if best.name in table.column_names]
    section = Section(
        f"When a row happened.{also} {day_first_doubt(columns, best.time_format)}".strip()
    )
    section.settings["time"] = best.name
    if best.time_format not in (None, "iso"):
        section.settings["time_format"] = best.time_format
    if best.missing:
        section.settings["bad_rows"] = "drop"
    section.settings["time_zone"] = Aside("UTC")
    return best, section


def _number_times(found: Look) -> Iterator[Column]:
    """Yield the columns of numbers that a split reads as times; seconds since 1970 only if the name
    says so.
    """
    for name in found.everywhere("number"):
        form = number_time_format([table[name] for _, table in found.tables])
        if form == "yyyymmdd" or (form is not None and named(name, _TIME_WORDS)):
            yield replace(found.columns[name], kind="time", time_format=form)


def _entity(found: Look, asked: AskedSplit, time: str) -> tuple[str, Section]:
    """Choose the entity column, and return the section that explains the choice."""
    if asked.entity is not None:
        best = _candidate(found, known(asked.entity, found.columns, "--entity"))
        words = f"No entity may be in both train and test: {best.words()}."
    else:
        candidates = [
            _candidate(found, each.name)
            for each in found.columns.values()
            if each.in_files == len(found.tables)
            and each.name != time
            and each.kind in ("text", "number")
            if _may_name(found, each.name)
        ]
        usable = [
            each
            for each in candidates
            if _LEAST_ENTITIES <= each.distinct <= _MOST_OWN * max(1, each.rows - each.missing)
        ]
        if not usable:
            raise SettingsError(
                f"{asked.source[0]}: no column repeats as an entity's would; give --entity, one of "
                f"{', '.join(list(found.columns)[:20])}"
            )
        usable.sort(
            key=lambda each: (
                -named(each.name, _ENTITY_WORDS),
                not id_like(each.name),
                -each.distinct,
            )
        )
        best = usable[0]
        others = usable[1:4]
        words = (
            f"No entity may be in both train and test. Chosen by name and counts: {best.words()}."
        )
        if others:
            words += f" Others that could be: {', '.join(each.words() for each in others)}."
    section = Section(words, {"entity": best.name})
    if best.missing:
        # or "own", which makes them one entity; both are counted
        section.settings["null_entity"] = "drop"
    return best.name, section


def _candidate(found: Look, name: str) -> Candidate:
    parts = [as_text(table[name], NULLS, name) for _, table in found.tables]
    column = pl.concat([pl.Series(name, part, dtype=pl.String) for part in parts])
    return Candidate(name, column.drop_nulls().n_unique(), len(column), column.null_count())


def _may_name(found: Look, name: str) -> bool:
    """Return True if values can be identifiers: text, or whole numbers."""
    for _, table in found.tables:
        numbers = number_share(table[name])
        if numbers is None and not is_text(table[name].type):
            return False
        values = np.asarray([] if numbers is None else numbers.drop_null().to_numpy(), np.float64)
        if (values != np.floor(values)).any() or (values < 0).any():
            return False
    return True


def _instants(found: Look, time: Column) -> I64:
    """Return the times in the rows that were looked at, in microseconds since 1970."""
    parts = []
    for _, table in found.tables:
        column = table[time.name]
        if is_text(column.type):
            column = nulled(column, ("", *NULLS))
        parts.append(parse_dates(column, time.time_format or "auto").micros)
    micros: I64 = np.concatenate(parts)
    there: I64 = micros[micros != MISSING]
    return there


def _cutoff(found: Look, asked: AskedSplit, time: Column) -> tuple[str, str]:
    """Choose a day from which on about a fifth of the rows lies; also return words about it."""
    dates = np.sort(_instants(found, time))
    if not len(dates):
        raise SettingsError(
            f"{asked.source[0]}: the time column holds no time in the rows sampled; give --time"
        )
    first, last = (
        str(np.datetime64(int(each), "us").astype("datetime64[D]"))
        for each in (dates[0], dates[-1])
    )
    words = f"Dates looked at run from {first} to {last}"
    if asked.split_date is not None:
        return asked.split_date, f"{words}. Rows from here on test."
    at = int(dates[int((1 - _TEST_SHARE) * (len(dates) - 1))])
    day = at - at % _DAY_US
    if day <= int(dates[0]):
        day += _DAY_US
    words += (
        f"; {100 * float((dates >= day).mean()):.0f} % of the rows are from here on and test, "
        "unless their entity trains. The instant itself is test."
    )
    return str(np.datetime64(day, "us").astype("datetime64[D]")), words


def _column_sections(found: Look, entity: str, keep: Sequence[str]) -> list[Section]:
    """Propose types for text columns, texts that mean null, and columns that some files lack.

    keep: columns that stay text if types are inferred from all rows; empty otherwise.
    """
    sections = []
    partial = []
    for each in found.columns.values():
        if each.in_files < len(found.tables):
            partial.append(each)
    if partial or len({tuple(table.schema.types) for _, table in found.tables}) > 1:
        names = ", ".join(each.name for each in partial[:8])
        words = (
            f"Files differ in their columns{f': not all have {names}' if names else ''}. widen"
            " takes all of them."
        )
        sections.append(Section(words, {"schema_drift": "widen"}))
    if keep and (typed := inferred(found, keep)):
        return [*sections, *typed]
    texts = found.texts()
    # an empty column has no type
    numbers = {
        name: "float32"
        for name in texts
        if found.columns[name].kind == "number" and found.columns[name].missing < 1
        if name != entity and not id_like(name)  # identifiers stay text
    }
    if numbers and not keep:
        words = "Text columns that hold numbers. Readers deliver declared columns as numbers."
        sections.append(Section(words, {"types": Aside(numbers)}))
    if any(found.holds(name, NULLS) for name in texts):
        sections.append(Section("Texts that mean missing.", {"null_values": list(NULLS)}))
    return sections
