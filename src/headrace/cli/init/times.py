"""Find the form in which times are written.

Values that can be only one of them tell day first from month first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats.dates import MISSING, Dates, parse_dates
from headrace.formats.schema import is_text
from headrace.formats.text_columns import nulled

_YEARS = 1600, 2400  # numbers that would be times of other years are numbers
_EPOCHS = {"epoch_s": 1e8, "epoch_ms": 1e11}  # in 1973: smaller numbers are rather counts

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
    "epoch_s",
    "epoch_ms",
)
_NUMBERS = ("yyyymmdd", "epoch_s", "epoch_ms")


@dataclass(frozen=True)
class TimeForms:
    """Forms that read a column's values when tried in this order; () where its type says it.

    unread: a share of the values. doubt: where day and month could be the other way round, what to say of it; else "".
    """

    forms: tuple[str, ...]
    unread: float
    doubt: str


def time_format(columns: Sequence[pa.ChunkedArray]) -> str | None:
    """Return the form in which all values of these columns are times; None if there is none, or no value at all."""
    columns = [_distinct(each) for each in columns if len(each)]
    for form in TIME_FORMATS:
        if all(_is_time(column, form) for column in columns) and any(len(each) > each.null_count for each in columns):
            return form
    return None


def day_first_doubt(columns: Sequence[pa.ChunkedArray], form: str | None) -> str:
    """Warn of a form whose values would also be times with day and month the other way round; "" for no doubt."""
    other = _swapped(form)
    columns = [_distinct(each) for each in columns if len(each)]
    if other is None or not columns or not all(_is_time(column, other) for column in columns):
        return ""
    return _doubt(form, other)


def time_forms(columns: Sequence[pa.ChunkedArray]) -> TimeForms | None:
    """Find the forms of a column that may be written in several; None if nothing reads most of it.

    Whole numbers are seconds or milliseconds since 1970 only where they are large enough to be of our time.
    """
    columns = [each for each in columns if len(each) > each.null_count]
    if not columns:
        return None
    if all(is_typed_time(each) for each in columns):
        return TimeForms((), 0.0, "")
    if any(is_typed_time(each) for each in columns):
        return None
    if not all(is_text(each.type) for each in columns):
        return _epochs(columns)
    values = pc.unique(pa.chunked_array([chunk for each in columns for chunk in each.cast(pa.large_string()).chunks]))
    left = nulled(pa.chunked_array([values.drop_null()]), ("",)).drop_null()
    total = len(left)
    forms: list[str] = []
    doubts: list[str] = []
    for form in (each for each in TIME_FORMATS if each != "yyyymmdd"):
        if not len(left):
            break
        read = _read(left, form)
        other = _swapped(form)
        if other is not None:  # the one that reads more; both, if both are needed
            read_other = _read(left, other)
            if read_other.sum() > read.sum():
                form, read, other, read_other = other, read_other, form, read
            if read.any() and read_other[read].all():
                doubts.append(_doubt(form, other))
        if read.any():
            forms.append(form)
            left = left.filter(pa.array(~read))
    unread = len(left) / max(1, total)
    return TimeForms(tuple(forms), unread, " ".join(doubts)) if forms and unread < 0.5 else None


def _epochs(columns: Sequence[pa.ChunkedArray]) -> TimeForms | None:
    for form in ("epoch_ms", "epoch_s"):
        numeric = all(pa.types.is_integer(each.type) or pa.types.is_floating(each.type) for each in columns)
        if numeric and all(_read(each.drop_null(), form).all() for each in columns):
            return TimeForms((form,), 0.0, "")
    return None


def _read(column: pa.ChunkedArray, form: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which values a form reads as times of a year that can be meant: bool [N]."""
    found = parse_dates(column, form)
    ok = (found.micros != MISSING) & _in_years(found)
    if form in _EPOCHS:
        values = np.asarray(pc.cast(column.filter(pa.array(ok)), pa.float64()).to_numpy(), np.float64)
        ok[np.flatnonzero(ok)[values < _EPOCHS[form]]] = False
    return np.asarray(ok, np.bool_)


def _in_years(dates: Dates) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    shown = np.where(dates.micros == MISSING, 0, dates.micros)
    years = shown.astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
    return np.asarray((years > _YEARS[0]) & (years < _YEARS[1]), np.bool_)


def _is_time(column: pa.ChunkedArray, form: str) -> bool:
    kind = column.type
    typed = is_typed_time(column)
    if typed or not is_text(kind):
        if typed != (form == "iso") or pa.types.is_boolean(kind) or pa.types.is_floating(kind):
            return False
        if not typed and form not in _NUMBERS:
            return False
    dates = parse_dates(nulled(column, ("",)), form)
    there = dates.micros != MISSING
    return bool(there.any() and not dates.unreadable.any() and _in_years(dates)[there].all())


def is_typed_time(column: pa.ChunkedArray) -> bool:
    """Return True if the type says that these are times."""
    return bool(pa.types.is_timestamp(column.type) or pa.types.is_date(column.type))


def _distinct(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([pc.unique(column)]) if is_text(column.type) else column


def _swapped(form: str | None) -> str | None:
    """The form with day and month the other way round; None where it has no such twin."""
    if form is None or ("%d/%m" not in form and "%m/%d/%Y" not in form):
        return None
    return form.replace("%d/%m", "%m/%d") if "%d/%m" in form else form.replace("%m/%d", "%d/%m")


def _doubt(form: str | None, other: str) -> str:
    return (
        f"BEWARE: no value looked at tells day from month; {form} is assumed, and {other} would read them as well. "
        "Ask their author."
    )
