"""A configuration for a temporal split, from a look at the data: date, entity, cutoff.

Guesses are said with their reasons and what else there was; what is counted is counted in the rows that were looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.cli.init.asked import AskedSplit
from headrace.cli.init.commented import Aside, Section, settings_of
from headrace.cli.init.look import NULLS, Column, Look, id_like, known, look, named, number_share
from headrace.cli.init.times import day_first_doubt
from headrace.errors import SettingsError
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.schema import is_text
from headrace.formats.text_columns import as_text, nulled
from headrace.split.config import TemporalSplit

_TEST_SHARE = 0.2  # of rows, at about which the cutoff is proposed
_DAY_US = 86_400_000_000
_ENTITY_WORDS = (
    *("customer", "client", "user", "account", "entity", "patient", "device", "card", "member", "session", "household"),
    *("tailnum", "driver", "store", "shop", "merchant", "person", "subject", "group"),
)
_DATE_WORDS = ("date", "time", "datetime", "timestamp", "created", "occurred", "day", "event")
_MOST_OWN = 0.8  # entities of a row: a column with more distinct values is rather a key of rows


@dataclass(frozen=True)
class Candidate:
    """A column that may be the entity: distinct values and rows without one, of those looked at."""

    name: str
    distinct: int
    rows: int
    missing: int

    @property
    def rows_each(self) -> float:
        """Rows of an entity on average."""
        return (self.rows - self.missing) / max(1, self.distinct)

    def words(self) -> str:
        """The counts, for people."""
        absent = f", {100 * self.missing / self.rows:.1f} % of rows without" if self.missing else ""
        return f"{self.name} ({self.distinct:,} values, {self.rows_each:,.1f} rows each{absent})"


def split_sections(asked: AskedSplit) -> tuple[list[Section], str]:
    """The sections of the configuration, and a line about the data. Raises `SettingsError`, `InputError`."""
    found = look(asked.source)
    rows = sum(table.num_rows for _, table in found.tables)
    if not rows:
        raise SettingsError(f"{asked.source[0]}: has no rows to look at; give a source that has some")
    date, date_words = _date(found, asked)
    entity, entity_words = _entity(found, asked, date.name)
    micros = _micros(found, date)
    split_date, cut_words = _cutoff(micros, asked)
    about = (
        f"{len(found.names):,} files, {found.bytes / 1e6:,.1f} MB, {len(found.columns)} columns; "
        f"looked at {rows:,} rows of {len(found.tables):,} files"
    )
    sections = [
        Section(
            f"Written by `headrace init split` after a look at the data: {about}.\n"
            "Paths are relative to where the command is run.",
            {"recipe": "temporal_split", "out": asked.out},
        ),
        Section("What is split.", {"source": asked.source if len(asked.source) > 1 else asked.source[0]}),
        Section(date_words, _date_settings(date)),
        Section(entity_words, _entity_settings(entity)),
        Section(cut_words, {"split_date": split_date}),
        Section(
            "Of the entities with rows before the cutoff so many train, the others validate; the seed decides which. "
            "Entities that validate may test, unless val_in_test is drop.",
            {"train_ratio": 0.9, "seed": 42, "val_in_test": Aside("drop")},
        ),
        *_column_sections(found, entity.name),
        Section(
            "layout: a shard per source shard, or single: a file per split. format: same as the source, or e.g. "
            "parquet, which trains several times faster than text. lineage: columns adds source_shard and source_row.",
            {"layout": "sharded", "format": "same", "lineage": Aside("columns")},
        ),
        _ties_section(found, entity.name, micros),
    ]
    TemporalSplit(**{name: value for name, value in settings_of(sections).items() if name not in ("recipe", "out")})
    return sections, f"{about}; date {date.name}, entity {entity.name}, cutoff {split_date}"


def _date(found: Look, asked: AskedSplit) -> tuple[Column, str]:
    """The date column and why it."""
    times = [each for each in found.columns.values() if each.kind == "time" and each.in_files == len(found.tables)]
    if asked.date_column is not None:
        column = found.columns[known(asked.date_column, found.columns, "--date-column")]
        return column, f"When a row happened. {_doubt(found, column)}".strip()
    if not times:
        raise SettingsError(
            f"{asked.source[0]}: no column that all files have holds dates; give --date-column, one of "
            f"{', '.join(list(found.columns)[:20])}"
        )
    best = max(times, key=lambda each: (named(each.name, _DATE_WORDS), -each.missing, -times.index(each)))
    others = [each.name for each in times if each is not best]
    also = f" Also dates: {', '.join(others)}." if others else " No other column is a date."
    return best, f"When a row happened.{also} {_doubt(found, best)}".strip()


def _doubt(found: Look, date: Column) -> str:
    columns = [table[date.name] for _, table in found.tables if date.name in table.column_names]
    return day_first_doubt(columns, date.time_format)


def _date_settings(date: Column) -> dict[str, Any]:
    settings: dict[str, Any] = {"date_column": date.name}
    if date.time_format not in (None, "iso"):
        settings["date_format"] = date.time_format
    if date.missing:
        settings["null_date"] = "drop"
    return {**settings, "timezone": Aside("UTC")}


def _entity(found: Look, asked: AskedSplit, date: str) -> tuple[Candidate, str]:
    """The entity column and why it."""
    if asked.group_column is not None:
        chosen = _candidate(found, known(asked.group_column, found.columns, "--group-column"))
        return chosen, f"Whose rows must not be on both sides: {chosen.words()}."
    names = [
        each.name
        for each in found.columns.values()
        if each.in_files == len(found.tables) and each.name != date and each.kind in ("text", "number")
    ]
    candidates = [_candidate(found, name) for name in names if _may_name(found, name)]
    usable = [
        each
        for each in candidates
        if each.distinct > 1 and each.distinct <= _MOST_OWN * max(1, each.rows - each.missing)
    ]
    if not usable:
        raise SettingsError(
            f"{asked.source[0]}: no column repeats as an entity's would; give --group-column, one of "
            f"{', '.join(list(found.columns)[:20])}"
        )
    ranked = sorted(usable, key=lambda each: (-named(each.name, _ENTITY_WORDS), not id_like(each.name), -each.distinct))
    best, others = ranked[0], ranked[1:4]
    words = f"Whose rows must not be on both sides. Taken for its name and counts: {best.words()}."
    if others:
        words += f" Others that could be: {', '.join(each.words() for each in others)}."
    return best, words


def _entity_settings(entity: Candidate) -> dict[str, Any]:
    settings: dict[str, Any] = {"group_column": entity.name}
    if entity.missing:
        settings["null_group"] = "drop"  # or "own": all of them one entity; either way they are counted
    return settings


def _candidate(found: Look, name: str) -> Candidate:
    column = _joined(found, name)
    return Candidate(name, column.drop_nulls().n_unique(), len(column), column.null_count())


def _may_name(found: Look, name: str) -> bool:
    """Whether values can be names: text, or whole numbers."""
    for _, table in found.tables:
        column = table[name]
        numbers = number_share(column)
        if numbers is None:
            if not is_text(column.type):
                return False
            continue
        values = np.asarray(numbers.drop_null().to_numpy(), np.float64)
        if (values != np.floor(values)).any() or (values < 0).any():
            return False
    return True


def _joined(found: Look, name: str) -> pl.Series:
    """The column of all looked-at rows as text, null where missing."""
    parts = [as_text(table[name], NULLS, name) for _, table in found.tables]
    return pl.concat([pl.Series(name, part, dtype=pl.String) for part in parts])


def _micros(found: Look, date: Column) -> npt.NDArray[np.int64]:
    """The date of every looked-at row in microseconds, `MISSING` where it has none."""
    parts = []
    for _, table in found.tables:
        column = table[date.name]
        form = date.time_format or "auto"
        parts.append(parse_dates(nulled(column, ("", *NULLS)) if is_text(column.type) else column, form).micros)
    return np.concatenate(parts)


def _cutoff(micros: npt.NDArray[np.int64], asked: AskedSplit) -> tuple[str, str]:
    """A day from which on about a fifth of the rows lies."""
    dates = np.sort(micros[micros != MISSING])
    if not len(dates):
        raise SettingsError(f"{asked.source[0]}: the date column has no date in the rows looked at; give --date-column")
    first, last = (str(np.datetime64(int(each), "us").astype("datetime64[D]")) for each in (dates[0], dates[-1]))
    if asked.split_date is not None:
        return asked.split_date, f"Dates looked at run from {first} to {last}. Rows from here on test."
    at = int(dates[int((1 - _TEST_SHARE) * (len(dates) - 1))])
    day = at - at % _DAY_US
    if day <= int(dates[0]):
        day += _DAY_US
    behind = float((dates >= day).mean())
    words = (
        f"Dates looked at run from {first} to {last}; {100 * behind:.0f} % of the rows are from here on and test, "
        "unless their entity trains. The instant itself is test."
    )
    return str(np.datetime64(day, "us").astype("datetime64[D]")), words


def _column_sections(found: Look, entity: str) -> list[Section]:
    """Types that text columns could have, texts that mean null, columns that some files lack."""
    sections = []
    partial = [each for each in found.columns.values() if each.in_files < len(found.tables)]
    if partial or len({tuple(table.schema.types) for _, table in found.tables}) > 1:
        names = ", ".join(each.name for each in partial[:8])
        words = f"Files differ in their columns{f': not all have {names}' if names else ''}. widen takes all of them."
        sections.append(Section(words, {"schema_drift": "widen"}))
    texts = [
        each.name
        for each in found.columns.values()
        if any(is_text(table[each.name].type) for _, table in found.tables if each.name in table.column_names)
    ]
    numbers = {
        name: "float32"
        for name in texts
        if found.columns[name].kind == "number" and name != entity and not id_like(name)  # names are no numbers
    }
    if numbers:
        words = "Text columns that hold numbers; declared, readers deliver them as numbers."
        sections.append(Section(words, {"types": Aside(numbers)}))
    if any(_holds(found, name, NULLS) for name in texts):
        sections.append(Section("Texts that mean missing.", {"null_values": list(NULLS)}))
    return sections


def _holds(found: Look, name: str, texts: Sequence[str]) -> bool:
    return any(
        pl.Series("x", table[name], dtype=pl.String).is_in(list(texts)).any()
        for _, table in found.tables
        if name in table.column_names and is_text(table[name].type)
    )


def _ties_section(found: Look, entity: str, micros: npt.NDArray[np.int64]) -> Section:
    """What to know of the rows: how many are there twice, and how many share entity and time."""
    keys = pl.DataFrame({"entity": _joined(found, entity), "time": micros}).drop_nulls("entity")
    said = [f"{len(keys) - keys.n_unique():,} share entity and time with another"]
    if not any(each.kind == "other" for each in found.columns.values()):  # nested values cannot be compared as text
        frames = [
            pl.DataFrame(
                {name: pl.Series(as_text(table[name], (), name), dtype=pl.String) for name in table.column_names}
            )
            for _, table in found.tables
        ]
        whole = pl.concat(frames, how="diagonal")
        said.insert(0, f"{len(whole) - whole.n_unique():,} are exact copies of others")
    return Section(f"Of the rows looked at {', and '.join(said)}. Neither is changed: every row goes to one split.")
