"""Find the format of times.

Values that are valid in only one order decide between day first and month first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats.dates import MISSING, Dates, parse_dates
from headrace.formats.text_columns import nulled
from headrace.formats.type_words import PERIOD
from headrace.formats.types import is_text

_YEARS = 1600, 2400  # numbers that would be times outside these years stay numbers
# All are in 1973; smaller numbers are more likely counts.
_EPOCHS = {"epoch_s": 1e8, "epoch_ms": 1e11, "epoch_us": 1e14, "epoch_ns": 1e17}

TIME_FORMATS = (
    "iso",
    "yyyymmdd",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d.%m.%Y",
    "%Y/%m/%d",
    "%d/%m/%Y %H:%M",
    "%m/%d/%Y %H:%M",
    "%d.%m.%Y %H:%M",
    "%Y/%m/%d %H:%M",
    "%d/%m/%Y %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
    "%d.%m.%Y %H:%M:%S",
    "%Y/%m/%d %H:%M:%S",
    "%d/%m/%Y %I:%M %p",
    "%m/%d/%Y %I:%M %p",
    "%d/%m/%Y %I:%M:%S %p",
    "%m/%d/%Y %I:%M:%S %p",
    *_EPOCHS,
    PERIOD,  # 1950Q1, 1939 Jan
)
_WORDS = r"(?i)(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)"
_IN_WORDS = (  # forms with an English month
    *(
        f"{day}{clock}"
        for day in (
            *("%d %b %Y", "%d-%b-%Y", "%d%b%Y", "%d/%b/%Y", "%b %d, %Y", "%b %d %Y"),
            *("%d %B %Y", "%B %d, %Y", "%B %d %Y"),
        )
        for clock in ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
    ),
    *("%d%b%Y:%H:%M:%S", "%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %Y"),
    *("%a %b %d %H:%M:%S %z %Y", "%a, %d %b %Y %H:%M:%S", "%a, %d %b %Y %H:%M:%S %z"),
)
_WHOLE_COLUMNS = ("yyyymmdd", PERIOD)  # forms of all values or none
NUMBERS = ("yyyymmdd", *_EPOCHS)
_SHORT_YEARS = tuple(
    f"{day}{clock}"
    for day in (
        *("%d/%m/%y", "%m/%d/%y", "%d.%m.%y", "%d-%m-%y", "%m-%d-%y", "%y-%m-%d", "%y/%m/%d"),
        *("%d-%b-%y", "%d %b %y", "%b-%y", "%b %y"),
    )
    for clock in ("", " %H:%M", " %H:%M:%S", " %I:%M %p")
)


@dataclass(frozen=True)
class TimeForms:
    """Formats that read a column's values, to be tried in this order; () if the column's type is a
    time.

    unread: a share of the values. doubt: a warning if day and month might be swapped; else "".
    """

    forms: tuple[str, ...]
    unread: float
    doubt: str


def time_format(columns: Sequence[pa.ChunkedArray], declared: str | None = None) -> str | None:
    """Return the format that reads all values of these columns; None if there is none, or
    no value.

    declared: a format that is tried before those which four digits of a year make certain.
    """
    columns = [_distinct(column) for column in columns if len(column)]
    for form in _forms_of(columns) if declared is None else (declared, *_forms_of(columns)):
        if all(_is_time(column, form) for column in columns) and any(
            len(column) > column.null_count for column in columns
        ):
            return form
    return None


def _forms_of(columns: Sequence[pa.ChunkedArray]) -> Sequence[str]:
    """Return the formats that values may have; those with a month in words only if one has one."""
    for column in columns:
        if is_text(column.type):
            first = nulled(column.slice(0, 100), ("",)).drop_null()
            if pc.any(pc.match_substring_regex(first, _WORDS)).as_py():
                return (*TIME_FORMATS, *_IN_WORDS)
    return TIME_FORMATS


def short_year_formats(column: pa.ChunkedArray) -> list[str]:
    """Return the formats of years of two digits that read all values of a column of texts."""
    texts = nulled(_distinct(column), ("",)).drop_null()
    return [form for form in _SHORT_YEARS if len(texts) and bool(_read(texts, form).all())]


def number_time_format(columns: Sequence[pa.ChunkedArray], more: Sequence[str] = ()) -> str | None:
    """Return the format that reads all numbers of these columns as times of plausible years; None
    if there is none.

    Days are written YYYYMMDD. Seconds since 1970, and finer units, count only if they are large
    enough. more: strptime patterns to try after these.
    """
    columns = [_distinct(column).drop_null() for column in columns]
    columns = [column for column in columns if len(column)]
    for form in (*NUMBERS, *more):
        if columns and all(_reads_all(column, form) for column in columns):
            return form
    return None


def day_first_doubt(columns: Sequence[pa.ChunkedArray], form: str | None) -> str:
    """Return a warning if the format with day and month swapped also reads all values; else ""."""
    other = _swapped(form)
    columns = [_distinct(column) for column in columns if len(column)]
    if other is None or not columns or not all(_is_time(column, other) for column in columns):
        return ""
    return _doubt(form, other)


def time_forms(columns: Sequence[pa.ChunkedArray]) -> TimeForms | None:
    """Find the formats of a column that may mix several; None if half of it or more is left unread.

    Whole numbers count as seconds since 1970, or finer units, only if they are large enough for
    recent times.
    """
    columns = [column for column in columns if len(column) > column.null_count]
    if not columns:
        return None
    typed = [is_typed_time(column) for column in columns]
    if any(typed):
        return TimeForms((), 0.0, "") if all(typed) else None
    if all(_is_time(_distinct(column), "yyyymmdd") for column in columns):  # every one is a day
        return TimeForms(("yyyymmdd",), 0.0, "")
    if all(is_text(column.type) for column in columns):
        return _text_forms(columns)
    if all(
        pa.types.is_integer(column.type) or pa.types.is_floating(column.type) for column in columns
    ):
        for form in _EPOCHS:
            if all(_read(column.drop_null(), form).all() for column in columns):
                return TimeForms((form,), 0.0, "")
    return None


def _text_forms(columns: Sequence[pa.ChunkedArray]) -> TimeForms | None:
    """Find the formats of columns of text; None if half of the texts or more is left unread."""
    chunks: list[pa.Array] = []
    for column in columns:
        chunks += column.cast(pa.large_string()).chunks
    values = pc.unique(pa.chunked_array(chunks))
    left = nulled(pa.chunked_array([values.drop_null()]), ("",)).drop_null()
    total = len(left)
    forms: list[str] = []
    doubts: list[str] = []
    for form in _forms_of([left]):
        if form in _WHOLE_COLUMNS:
            continue
        if not len(left):
            break
        read = _read(left, form)
        other = _swapped(form)
        if other is not None:  # prefer the format that reads more; keep both if both are needed
            read_other = _read(left, other)
            if read_other.sum() > read.sum():
                form, read, other, read_other = other, read_other, form, read
            if read.any() and read_other[read].all():
                doubts.append(_doubt(form, other))
        if read.any():
            forms.append(form)
            left = left.filter(pa.array(~read))
    unread = len(left) / max(1, total)
    if forms and unread < 0.5:
        return TimeForms(tuple(forms), unread, " ".join(doubts))
    return None


def _read(column: pa.ChunkedArray, form: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which values a format reads as times of a plausible year: bool [N]."""
    dates = parse_dates(column, form)
    ok = (dates.micros != MISSING) & _in_years(dates)
    if form in _EPOCHS:
        values = np.asarray(
            pc.cast(column.filter(pa.array(ok)), pa.float64(), safe=False).to_numpy(), np.float64
        )
        ok[np.flatnonzero(ok)[values < _EPOCHS[form]]] = False
    return np.asarray(ok, np.bool_)


def _in_years(dates: Dates) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    micros = np.where(dates.micros == MISSING, 0, dates.micros)
    years = micros.astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
    return np.asarray((years > _YEARS[0]) & (years < _YEARS[1]), np.bool_)


def _reads_all(column: pa.ChunkedArray, form: str) -> bool:
    """Return True if the format reads every value of a column, and the column looks like times."""
    if form == "yyyymmdd":
        return _is_time(column, form)
    return bool(_read(column, form).all())


def _is_time(column: pa.ChunkedArray, form: str) -> bool:
    column_type = column.type
    typed = is_typed_time(column)
    if typed or not is_text(column_type):
        if (
            typed != (form == "iso")
            or pa.types.is_boolean(column_type)
            or pa.types.is_floating(column_type)
        ):
            return False
        if not typed and form not in NUMBERS:
            return False
    if form == PERIOD and not _has_words(column):
        return False
    dates = parse_dates(nulled(column, ("",)), form)
    there = dates.micros != MISSING
    return bool(there.any() and not dates.unreadable.any() and _in_years(dates)[there].all())


def _has_words(column: pa.ChunkedArray) -> bool:
    """Return whether texts are more than numbers, which may be years or counts."""
    return not pc.all(pc.match_substring_regex(column, r"^\s*[0-9]*\s*$")).as_py()


def is_typed_time(column: pa.ChunkedArray) -> bool:
    """Return True if the column's type is a time."""
    return bool(pa.types.is_timestamp(column.type) or pa.types.is_date(column.type))


def _distinct(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if is_text(column.type):
        return pa.chunked_array([pc.unique(column)])
    return column


def _swapped(form: str | None) -> str | None:
    """Return the format with day and month swapped; None if it has none."""
    if form is None or ("%d/%m" not in form and "%m/%d/%Y" not in form):
        return None
    if "%d/%m" in form:
        return form.replace("%d/%m", "%m/%d")
    return form.replace("%m/%d", "%d/%m")


def _doubt(form: str | None, other: str) -> str:
    return (
        f"BEWARE: no sampled value tells day from month; {form} is assumed, but {other} would read"
        " them as well. Ask whoever wrote the data."
    )
