"""Find which columns of tables are the time, the entity and the label.

Each guess has its evidence: names decide first, then what the values can be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64, I64
from headrace.cli.init.look import (
    NAMED_TIME,
    NULLS,
    Column,
    Look,
    Unsure,
    id_like,
    look_of,
    named,
    nameless,
    numeric_column,
)
from headrace.cli.init.times import (
    TimeForms,
    number_time_format,
    short_year_formats,
    time_forms,
)
from headrace.errors import InputError, SettingsError, setting
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.text_columns import as_text, nulled, with_one_time
from headrace.formats.type_words import PERIOD
from headrace.formats.types import is_text
from headrace.report.words import pluralise

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
    *("gauge", "basin", "station", "sensor", "sku", "ticker", "symbol", "region", "state"),
    *("visitor", "aircraft", "vehicle", "operator", "probe", "prb", "src", "host"),
)
PEER_WORDS = (  # the other end of an event: seldom whose it is
    *("dst_addr", "destination", "dest", "dst", "peer", "remote", "server", "anchor", "to_"),
    *("item", "product", "stock", "page", "url", "merchant", "article", "airport"),
)
_LABEL_WORDS = (
    *("label", "target", "class", "outcome", "survived", "churn", "default", "fraud", "diagnosis"),
    *("species", "sentiment", "response", "y"),
)
_MOST_CLASSES = 20
_MAYBE_TIMES = frozenset(
    (
        *("date", "time", "datetime", "timestamp", "month", "year", "quarter", "week"),
        *("epoch", "ts", "when"),
    )
)
_DAYS_SINCE_1900 = frozenset(("date", "time", "datetime", "timestamp", "day"))
_EXCEL_DAYS = 30_000, 55_000
_PARTS = {"year": "%Y", "month": "%m", "day": "%d", "hour": "%H"}
_WORD = re.compile(r"[a-z]+")
_LIKE_TIME = (  # 1939 Jan, 1950Q1, 2010/1/1; 1-Jan-93, 1.2.93
    r"(?i)^\s*((1[6-9]|2[0-3])\d\d[-/. ]?(\d\d?\b|q[1-4]|[a-z]{3,9}\b)"
    r"|\d\d?[-/. ]([a-z]{3,9}|\d\d?)[-/. ]\d\d)"
)
# 1.5, 1,5, 1.234,5; but not the address 10.0.0.1
_FRACTION = r"^\s*[-+]?([0-9]*[.,]|[0-9]{1,3}(\.[0-9]{3})+,|[0-9]{1,3}(,[0-9]{3})+\.)[0-9]+\s*$"
_ID = r"^[0-9a-fA-F-]*[0-9][0-9a-fA-F-]*$"
_ID_BYTES = 16  # of the shortest
NO_TIME = "none"  # for the name of a column
_LEAST_WIDE = 3  # columns named like times
_CLOCKS = {r"^\d{1,2}:\d{2}$": "%H:%M", r"^\d{1,2}:\d{2}:\d{2}$": "%H:%M:%S"}
_LEAST_DAYS = 2  # of a time, for a cutoff between them
_DAY_US = 86_400_000_000
_OWN_TIMES = 0.98  # share of rows of a panel whose entity and time no other row has
_PRESENT = 0.5  # share of the dates between an entity's first and last at which it has a row
_LATER = frozenset(
    (
        *("updated", "modified", "changed", "deleted", "closed", "ended", "finished", "due"),
        *("expires", "expiry", "until", "end", "stop", "last", "loaded", "exported"),
        *("discharge", "discharged", "delivered", "resolved", "completed", "cancelled", "settled"),
    )
)
_BIRTH = frozenset(("birth", "dob", "born", "birthday", "birthdate", "dateofbirth"))
_RECENT_S = 946_684_800, 2_051_222_400  # seconds since 1970, of 2000 to 2035
TIME_WORDS = ("date", "time", "datetime", "timestamp", "created", "occurred", "day", "event")
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


def time_columns(sample: Look) -> list[Column]:
    """Return the columns that may be the time."""
    typed = []
    for name in sample.everywhere("time"):
        if _BIRTH.isdisjoint(_WORD.findall(name.lower())):
            typed.append(sample.columns[name])
    return typed or [*number_times(sample)] or years(sample)


def best_time(sample: Look, matches: Sequence[Column]) -> Column:
    """Return the likeliest of the columns that may be the time: with several days, by name, with
    fewest missing.

    Raises `Unsure` if these tell two columns not apart, and the two differ.
    """
    evidence = {}
    for column in matches:
        days = np.unique(instants(sample, column) // _DAY_US)
        evidence[column.name] = (
            len(days) >= _LEAST_DAYS,
            column.time_format != PERIOD,  # others are finer
            not _of_later(column.name),
            _time_rank(column.name),
            -column.missing,
        )
    most = max(evidence.values())
    alike = [column for column in matches if evidence[column.name] == most]
    first = instants(sample, alike[0])
    if not all(np.array_equal(first, instants(sample, column)) for column in alike[1:]):
        alike.sort(key=lambda column: float(np.mean(instants(sample, column))))
        names = [column.name for column in alike]
        raise Unsure.of(
            f"each of {', '.join(names)} may be the time",
            "time",
            [*names, NO_TIME],
            path=sample.source[0],
            remedy=f"give {setting('time', names[0])} if a row is known from it on, or another",
        )
    return alike[0]


def named_time(sample: Look, name: str) -> Column:
    """Return the column that is to be the time, with the format of most of its values."""
    best = sample.known(name, "time")
    for number in (*number_times(sample, name), *years(sample, sure=False)):
        if number.name == name:
            return number
    if best.content == "text":
        refuse_short_years(sample)
        forms = time_forms([table[name] for _, table in sample.tables])
        if forms is None:
            raise SettingsError(
                f"no time is read from texts such as {_first_text(sample, name)!r}",
                setting="time",
                value=name,
                remedy="write them as 2025-01-31 13:15, or give another column",
            )
        return replace(best, time_format=forms.forms[0])
    return best


def _first_text(sample: Look, name: str) -> str:
    texts = pa.chunked_array([chunk for _, table in sample.tables for chunk in table[name].chunks])
    return str(next(filter(None, texts.to_pylist()), ""))


def _of_later(name: str) -> bool:
    """Return whether a time is named as one that is known only after the row happened."""
    return not _LATER.isdisjoint(_WORD.findall(name.lower()))


def _time_rank(name: str) -> int:
    """Score how well the words of a name fit a time: higher for earlier ones, 0 for none."""
    ranks = [0]
    for word in _WORD.findall(name.lower()):
        for rank, time_word in enumerate(TIME_WORDS):
            if word.endswith(time_word):
                ranks.append(len(TIME_WORDS) - rank)
    return max(ranks)


def number_times(sample: Look, named_time: str | None = None) -> Iterator[Column]:
    """Yield the columns of numbers that a split reads as times; seconds since 1970 only if the name
    says so, or it is the named one.
    """
    for name in sample.everywhere("number"):
        words = _WORD.findall(name.lower())
        is_named = named(name, TIME_WORDS) or not _MAYBE_TIMES.isdisjoint(words)
        is_named = is_named or name == named_time
        form = number_time_format([table[name] for _, table in sample.tables])
        may_be_excel = form is None and not _DAYS_SINCE_1900.isdisjoint(words)
        if may_be_excel and _are_excel_days(sample, name):
            form = "excel_days"
        if form == "yyyymmdd" or (form is not None and is_named and not id_like(name)):
            yield replace(sample.columns[name], content="time", time_format=form)


def _are_excel_days(sample: Look, name: str) -> bool:
    """Return whether all numbers of a column are of the size of days since 1900, 1982 to 2050."""
    for _, table in sample.tables:
        numbers = numeric_column(table[name])
        if numbers is None or not len(numbers.drop_null()):
            return False
        span = pc.min_max(numbers).as_py()
        if span["min"] < _EXCEL_DAYS[0] or span["max"] > _EXCEL_DAYS[1]:
            return False
    return True


def date_parts(sample: Look) -> tuple[tuple[str, ...], str] | None:
    """Return the columns of year, month and day, and of the hour if there is one, and the format of
    their texts with blanks between them; None without them.
    """
    lower = {name.lower(): name for name in sample.everywhere("number")}
    if not {"year", "month", "day"} <= set(lower):
        return None
    names = [word for word in _PARTS if word in lower]
    form = " ".join(_PARTS[word] for word in names)
    return tuple(lower[word] for word in names), form


def with_joined(sample: Look, parts: Sequence[str], form: str) -> Look:
    """Return the look with these columns as one, under the name of the first, as a run reads it."""
    tables = [(name, with_one_time(table, parts)) for name, table in sample.tables]
    joined = look_of(sample.source, sample.root, sample.names, sample.bytes, tables)
    time = replace(joined.columns[parts[0]], content="time", time_format=form)
    columns = {**joined.columns, parts[0]: time}
    return replace(joined, columns=columns, complete=sample.complete)


def mixed_times(sample: Look) -> Iterator[tuple[str, TimeForms]]:
    """Yield the columns of text whose times are written in several forms."""
    for name in sample.everywhere("text"):
        forms = time_forms([table[name] for _, table in sample.tables])
        if forms is not None and len(forms.forms) > 1:
            yield name, forms


def refuse_short_years(sample: Look) -> None:
    """Raise `Unsure` for a column of times whose years have two digits: of which century, and which
    part is the year, no value shows.
    """
    for column in sample.columns.values():
        for _, table in sample.tables:
            is_there = column.content == "text" and column.name in table.column_names
            if not is_there or not is_text(table[column.name].type):
                continue
            forms = short_year_formats(nulled(table[column.name], NULLS))
            if forms:
                flags = " or ".join(setting("time_format", form) for form in forms)
                raise Unsure.of(
                    f"its years have two digits, as in {_least_like_time(sample, column.name)!r}",
                    "time_format",
                    forms,
                    path=sample.source[0],
                    column=column.name,
                    remedy=f"give {flags}",
                )


def refuse_doubtful_times(sample: Look) -> None:
    """Refuse a column that may be a time and is not read as one: by its name, by several forms, or
    as columns named like times. Such rows are not drawn at random unasked.

    Raises `Unsure`, and `InputError` for times that must be written anew.
    """
    refuse_short_years(sample)
    _refuse_births(sample)
    for name, forms in mixed_times(sample):
        if not forms.unread:
            raise InputError(
                f"its times are written in several forms: {', '.join(forms.forms)}",
                path=sample.source[0],
                column=name,
                remedy="write them in one form, such as 2025-01-31 12:00",
            )
    dated = [name for name in sample.columns if NAMED_TIME.fullmatch(name)]
    if len(dated) >= _LEAST_WIDE:
        raise Unsure.of(
            f"is wide: columns are named like times, e.g. {', '.join(dated[:3])}",
            "time",
            [NO_TIME],
            path=sample.source[0],
            remedy=(
                "write a row per time, e.g. by melt in pandas, or give"
                f" {setting('time', NO_TIME)} to draw rows at random"
            ),
        )
    for column in sample.columns.values():
        if column.content == "time" and column.in_files < len(sample.tables):
            lacking = sample.lacking(column.name)
            raise Unsure.of(
                f"is a time, and {pluralise(len(lacking), 'file')} of {len(sample.tables)} lack it",
                "time",
                [NO_TIME],
                path=sample.source[0],
                column=column.name,
                remedy=(
                    f"give the files of one table, without {', '.join(lacking[:3])}"
                    f"{', …' if len(lacking) > 3 else ''}; or {setting('time', NO_TIME)} to draw"
                    " rows at random"
                ),
            )
    readable = [column.name for column in years(sample, sure=False)]
    for column in sample.columns.values():
        if column.content in ("text", "number") and _may_be_time(sample, column.name):
            raise _doubtful(sample, column, readable)


def _doubtful(sample: Look, column: Column, readable: Sequence[str]) -> Unsure:
    """Return the error for a column that may be a time. readable: columns of years."""
    name = column.name
    problem = f"may be a time, and {_least_like_time(sample, name)!r} is not read as one"
    remedy = "write its times as 2025-01-31"
    if name in readable:
        problem = "may be the time, or a number as others"
        remedy = f"give {setting('time', name)} to split by it"
    elif time_forms([table[name] for _, table in sample.tables if name in table.column_names]):
        remedy = f"correct such values, or give {setting('time', name)} to drop these rows"
    elif column.content == "text":
        remedy = f"give {setting('time_format', '%d/%m/%y')} as it is written, or {remedy}"
    return Unsure.of(
        problem,
        "time",
        [*readable, NO_TIME],
        path=sample.source[0],
        column=name,
        remedy=f"{remedy}; or give {setting('time', NO_TIME)} to draw rows at random",
    )


def _refuse_births(sample: Look) -> None:
    """Raise `Unsure` for data whose times are days of birth, or seconds that no name calls so."""
    for name in sample.everywhere("time"):
        raise Unsure.of(
            "is a day of birth rather than of a row",
            "time",
            [NO_TIME, name],
            path=sample.source[0],
            column=name,
            remedy=(
                f"give {setting('time', NO_TIME)} to draw rows at random, or"
                f" {setting('time', name)}"
            ),
        )
    for name in sample.everywhere("number"):
        if names_entity(name) or not _are_recent(sample, name):
            continue
        raise Unsure.of(
            "may be a time, as seconds since 1970 or a part of them",
            "time",
            [name, NO_TIME],
            path=sample.source[0],
            column=name,
            remedy=(
                f"give {setting('time', name)}, or {setting('time', NO_TIME)} to draw rows at"
                " random"
            ),
        )


def _are_recent(sample: Look, name: str) -> bool:
    """Return whether all numbers of a column are seconds since 1970, or 1,000 or a million times
    as many, from 2000 to 2035.
    """
    parts = [numeric_column(table[name]) for _, table in sample.tables]
    values = np.concatenate([np.zeros(0)] + [_integers(part) for part in parts if part is not None])
    if not len(values):
        return False
    for unit in (1, 10**3, 10**6, 10**9):
        if values.min() >= _RECENT_S[0] * unit and values.max() <= _RECENT_S[1] * unit:
            return True
    return False


def _integers(part: pa.ChunkedArray) -> F64:
    values: F64 = np.asarray(part.drop_null().to_numpy(), np.float64)
    return values


def _may_be_time(sample: Look, name: str) -> bool:
    """Return whether a column's name, or most of its texts, are like those of times."""
    if not _MAYBE_TIMES.isdisjoint(_WORD.findall(name.lower())):
        return True
    for _, table in sample.tables:
        if name in table.column_names and is_text(table[name].type):
            like = pc.match_substring_regex(table[name], _LIKE_TIME)
            return (pc.mean(like).as_py() or 0) > _MOSTLY
    return False


def _least_like_time(sample: Look, name: str) -> str:
    """Return the first value of a column that does not look like a time, else the first."""
    column = pl.concat([_texts(table[name], name) for _, table in sample.tables]).drop_nulls()
    others = column.filter(~column.str.contains(_LIKE_TIME))
    return str([*others[:1], *column[:1], ""][0])


def years(sample: Look, *, sure: bool = True) -> list[Column]:
    """Return the columns of whole years; sure: only those by which each entity has one row."""
    matches = []
    for name in sample.everywhere("number"):
        if "year" in _WORD.findall(name.lower()):
            parts = [table[name] for _, table in sample.tables]
            if number_time_format(parts, ("%Y",)) == "%Y":
                time = replace(sample.columns[name], content="time", time_format="%Y")
                owners = [owner.name for owner in entities(sample, time)]
                if not sure or any(is_panel(sample, time, owner) for owner in owners):
                    matches.append(time)
    return matches


def has_content(sample: Look) -> bool:
    """Return whether a column is more than an id or a nested value."""
    for column in sample.columns.values():
        is_plain = column.content in ("text", "number", "time") and not column.nested
        is_named = not id_like(column.name) and not nameless(column.name)
        if is_plain and is_named and not _are_ids(sample, column.name):
            return True
    return False


def _are_ids(sample: Look, name: str) -> bool:
    """Return whether most texts of a column are digits of base 16, as many in each."""
    texts = pl.concat([_texts(table[name], name) for _, table in sample.tables]).drop_nulls()
    ids = texts.filter(texts.str.contains(_ID))
    lengths = ids.str.len_bytes()
    is_one_size = len(ids) > 0 and lengths.n_unique() == 1 and ids.n_unique() == len(ids)
    return len(ids) > _MOSTLY * len(texts) and is_one_size and lengths[0] >= _ID_BYTES


def entities(sample: Look, time: Column | None) -> list[Candidate]:
    """Return the columns that may be the entity, the likeliest first; numbers, and without a
    time all others too, only if their name says so.
    """
    usable = []
    for column in sample.columns.values():
        is_usual = column.content in ("text", "number")
        if not is_usual or column.in_files < len(sample.tables):
            continue
        if time is not None and column.name == time.name:
            continue
        if nameless(column.name) or time_of_day(sample, column.name):
            continue
        if not names_entity(column.name) and (not time or column.content == "number"):
            continue  # numbers are counts and readings rather than names
        if _may_name(sample, column.name):
            matches = candidate(sample, column.name)
            most = _MOST_OWN * max(1, matches.rows - matches.missing)
            if _LEAST_ENTITIES <= matches.distinct <= most:
                usable.append(matches)
    return sorted(
        usable,
        key=lambda matches: (
            -named(matches.name, _ENTITY_WORDS),
            named(matches.name, PEER_WORDS) > 0,
            not id_like(matches.name),
            -matches.distinct,
        ),
    )


def names_entity(name: str) -> bool:
    """Return whether a column's name says that it is an entity, or an identifier."""
    return bool(named(name, _ENTITY_WORDS)) or id_like(name)


def candidate(sample: Look, name: str) -> Candidate:
    column = pl.concat([_texts(table[name], name) for _, table in sample.tables])
    return Candidate(name, column.drop_nulls().n_unique(), len(column), column.null_count())


def _may_name(sample: Look, name: str) -> bool:
    """Return True if values can be identifiers: text, or whole numbers."""
    for _, table in sample.tables:
        numbers = numeric_column(table[name])
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
    fractions = pc.match_substring_regex(texts, _FRACTION)
    return (pc.mean(fractions).as_py() or 0) > _MOSTLY


def instants(sample: Look, time: Column) -> I64:
    """Return the times in the rows that were looked at, in microseconds since 1970."""
    micros: I64 = np.concatenate([_micros(table, time) for _, table in sample.tables])
    there: I64 = micros[micros != MISSING]
    return there


def _micros(table: pa.Table, time: Column) -> I64:
    """Return the times of a table in microseconds since 1970, MISSING where there is none."""
    column = table[time.name]
    if is_text(column.type):
        column = nulled(column, ("", *NULLS))
    return parse_dates(column, time.time_format or "auto").micros


def _texts(column: pa.ChunkedArray, name: str) -> pl.Series:
    return pl.Series(name, as_text(column, NULLS, name), dtype=pl.String)


def _rows_of(sample: Look, time: Column, entity: str) -> pl.DataFrame:
    """Return the entity and the time of the rows that have both."""
    parts = []
    for _, table in sample.tables:
        parts.append(
            pl.DataFrame({"entity": _texts(table[entity], entity), "time": _micros(table, time)})
        )
    return pl.concat(parts).filter(pl.col("time") != MISSING).drop_nulls()


def series_owners(sample: Look, time: Column) -> list[str]:
    """Return the columns named like entities of which nearly no two rows share a time."""
    owners = []
    for matches in entities(sample, time):
        if named(matches.name, _ENTITY_WORDS):
            rows = _rows_of(sample, time, matches.name)
            if len(rows.unique()) >= _OWN_TIMES * len(rows):
                owners.append(matches.name)
    return owners


def is_panel(sample: Look, time: Column | None, entity: str) -> bool:
    """Return whether each entity has one row at most of the times between its first and last, as
    tickers have; events of customers are rarer, or several at once.
    """
    if time is None:
        return False
    rows = _rows_of(sample, time, entity)
    if not len(rows) or len(rows.unique()) < _OWN_TIMES * len(rows):
        return False
    dates = rows["time"].unique().sort()
    spans = rows.group_by("entity").agg(
        pl.len().alias("rows"),
        pl.col("time").min().alias("first"),
        pl.col("time").max().alias("last"),
    )
    between = dates.search_sorted(spans["last"]) - dates.search_sorted(spans["first"]) + 1
    return (
        len(spans) > 1 and len(rows) >= _PRESENT * int(between.sum()) and len(rows) > 2 * len(spans)
    )


def labels(sample: Look) -> list[tuple[str, int]]:
    """Return the columns that are named like a label and have few values, each with their number,
    the likeliest first.
    """
    matches = []
    for name in sample.columns:
        rank = _label_rank(name)
        is_complete = sample.columns[name].in_files == len(sample.tables)
        is_plain = sample.columns[name].content in ("text", "number")
        if rank is None or not is_plain or not is_complete or sample.columns[name].missing:
            continue
        distinct = candidate(sample, name).distinct
        if 1 < distinct <= _MOST_CLASSES:
            matches.append((distinct > 2, rank, name, distinct))
    return [(name, distinct) for _, _, name, distinct in sorted(matches)]


def _label_rank(name: str) -> int | None:
    for rank, word in enumerate(_LABEL_WORDS):
        if word in name.lower().replace("-", "_").split("_"):
            return rank
    return None


def all_integers(sample: Look, name: str) -> bool:
    """Return whether all numbers of a column are whole and have at most 15 digits."""
    for _, table in sample.tables:
        numbers = numeric_column(table[name]) if name in table.column_names else None
        if numbers is not None:
            values = np.asarray(numbers.drop_null().to_numpy(), np.float64)
            if (values != np.floor(values)).any() or (np.abs(values) >= 1e15).any():
                return False
    return True


def time_of_day(sample: Look, name: str) -> str | None:
    """Return the format of a column that holds times of day; None for others."""
    parts = [table[name] for _, table in sample.tables if name in table.column_names]
    if not all(is_text(part.type) for part in parts):
        return None
    for pattern, form in _CLOCKS.items():
        if all(pc.all(pc.match_substring_regex(part, pattern)).as_py() for part in parts):
            return form
    return None


def clock_of(sample: Look, time: Column) -> Column | None:
    """Return the column of the time of day that belongs to a column of dates; None without one."""
    if (instants(sample, time) % _DAY_US).any():
        return None
    for name in sample.everywhere("text"):
        form = time_of_day(sample, name)
        if form is not None and named(name, TIME_WORDS):
            return replace(sample.columns[name], time_format=form)
    return None
