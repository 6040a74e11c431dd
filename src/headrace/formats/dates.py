"""Parse a column of dates as microseconds, and advise on values that are none. Pure.

A form is how a value was written: "iso" (no offset), "iso_zoned", "yyyymmdd", one of the epochs,
"pattern" or "pattern_zoned". Forms with an offset and epochs give instants; the others give
wall-clock time. Years run from 0001 to 9999: a value outside that range, typed or not, is
unreadable, so no date wraps around. If the whole column allows it, text is read by Arrow's ISO
parser, which costs about 25 ns a value; otherwise form by form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, Bools
from headrace.errors import InputError, setting, setting_name
from headrace.formats.dialect import MEANS_MISSING, null_setting
from headrace.formats.type_words import DATE_WORDS, PERIOD
from headrace.formats.types import is_text

if TYPE_CHECKING:
    import polars as pl


MISSING = np.iinfo(np.int64).min
DAY_US = 86_400_000_000
# 0001-01-01 to 9999-12-31
FIRST_US = -62_135_596_800_000_000
LAST_US = 253_402_300_799_999_999

# Microseconds of one unit of each epoch; nanoseconds are the one unit that is finer.
EPOCHS = {
    "epoch_s": 1_000_000,
    "epoch_ms": 1_000,
    "epoch_us": 1,
    "epoch_ns": 0,
    "epoch_days": DAY_US,
}
_NUMBERS = DATE_WORDS[1:]
INSTANTS = frozenset({"iso_zoned", "pattern_zoned", *EPOCHS})
_UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0}

# Ranges that identify the unit of a number without a declared format: epochs of 2001 to 2286.
USUAL = {
    "yyyymmdd": (10**7, 10**8),
    "epoch_s": (10**9, 10**10),
    "epoch_ms": (10**12, 10**13),
    "epoch_us": (10**15, 10**16),
    "epoch_ns": (10**18, 2**63),
}
# Decimal digits of a count that are microseconds or more.
_FRACTION_DIGITS = {"epoch_s": 6, "epoch_ms": 3, "epoch_us": 0, "epoch_ns": 0}
_DECIMAL = r"^(?P<sign>[+-]?)(?P<integer>[0-9]{1,19})\.(?P<fraction>[0-9]*)$"
_YEAR_2069 = 3_124_224_000_000_000
_YEAR_2070 = 3_155_760_000_000_000
# day 60 is 1900-02-29, which did not exist
_EXCEL_EPOCH = 25_569
_EXCEL_FIRST = 61

_DATE = r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
_CLOCK = r"[ Tt][0-9]{1,2}(:[0-9]{2}(:[0-5][0-9]([.,][0-9]+)?)?)?"
_ISO = rf"^{_DATE}({_CLOCK})?$"
_ISO_ZONED = rf"^{_DATE}{_CLOCK}( ?[+-][0-9]{{2}}(:?[0-9]{{2}})?|[Zz]| UTC)$"


@dataclass(frozen=True)
class Dates:
    """The dates of a column, [N].

    micros int64: `MISSING` if there is no date. unreadable: there is a value, but it is not a date.
    instant: micros count from 1970 in UTC; otherwise they are wall-clock time. forms: every form
    that occurred.
    """

    micros: I64
    unreadable: Bools
    instant: Bools
    forms: frozenset[str]


def parse_dates(  # noqa: PLR0911 - one case each
    column: pa.ChunkedArray,
    date_format: str,
) -> Dates:
    """Parse a column of text, numbers, dates or timestamps.

    date_format: "auto", one of `DATE_WORDS`, or a strptime pattern. The caller decides whether one
    column may have several forms. Raises `InputError` for a pattern that cannot be read.
    """
    type_ = column.type
    if is_text(type_):
        return _from_text(column, date_format)
    if pa.types.is_timestamp(type_):
        return _of_one_form(
            *_scaled(column, _UNIT_US[type_.unit]), "iso_zoned" if type_.tz else "iso"
        )
    if pa.types.is_date32(type_):
        return _of_one_form(*_scaled(column.cast(pa.int32()), DAY_US), "iso")
    if pa.types.is_date64(type_):
        return _of_one_form(*_scaled(column, _UNIT_US["ms"]), "iso")
    if pa.types.is_decimal(type_):
        return _from_text(column.cast(pa.string()), date_format)
    # 202501051230 by "%Y%m%d%H%M", 1935 as a year
    if pa.types.is_integer(type_) and ("%" in date_format or date_format == PERIOD):
        return _from_text(column.cast(pa.string()), date_format)
    if pa.types.is_integer(type_) and type_ != pa.uint64():
        valid = _valid(column)
        integers = np.asarray(pc.fill_null(column.cast(pa.int64()), 0).to_numpy(), np.int64)
        return _from_numbers(
            np.where(valid, integers.astype(np.float64), np.nan), integers, valid, date_format
        )
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        values = np.asarray(
            pc.fill_null(column.cast(pa.float64(), safe=False), np.nan).to_numpy(), np.float64
        )
        return _from_numbers(values, *_as_integers(values), date_format)
    nothing = np.zeros(len(column), np.bool_)
    return Dates(np.full(len(column), MISSING), _valid(column), nothing, frozenset())


def parse_in_turn(column: pa.ChunkedArray, forms: Sequence[str]) -> Dates:
    """Parse each value by the first of these forms that fits."""
    dates = parse_dates(column, forms[0])
    for form in forms[1:]:
        unread = dates.micros == MISSING
        if not unread.any():
            break
        others = parse_dates(column, form)
        dates = Dates(
            np.where(unread, others.micros, dates.micros),
            dates.unreadable & others.unreadable,
            np.where(unread, others.instant, dates.instant),
            dates.forms | others.forms,
        )
    return dates


def typed_times(
    column: pa.ChunkedArray, type_: pa.DataType, forms: Sequence[str]
) -> pa.ChunkedArray:
    """Convert texts of these forms to a type of dates or times.

    Raises `InputError` with row and value, also for a time of day that a date cannot hold.
    """
    micros = parse_in_turn(column, forms).micros
    missing = micros == MISSING
    unread = missing & _valid(column)
    if pa.types.is_date(type_):
        unread |= ~missing & (micros % DAY_US != 0)
    if unread.any():
        row = int(np.flatnonzero(unread)[0])
        value = str(column[row].as_py())
        remedy = advice(value, forms[0])
        if not missing[row]:
            remedy = "it has a time of day; declare it datetime"
        raise InputError(f"it is declared {type_}", row=row + 1, value=value, remedy=remedy)
    stamps = pa.array(micros, pa.timestamp("us", getattr(type_, "tz", None)), mask=missing)
    return pa.chunked_array([stamps.cast(type_)])


def _valid(column: pa.ChunkedArray) -> Bools:
    return np.asarray(pc.is_valid(column).to_numpy(), np.bool_)


def _scaled(column: pa.ChunkedArray, unit_us: int) -> tuple[I64, Bools]:
    """Convert counts of a unit to microseconds, with a mask of valid ones.

    unit_us: 0 for nanoseconds, rounded down.
    """
    counts = column.cast(pa.int64())
    raw = np.asarray(
        (pc.fill_null(counts, MISSING) if counts.null_count else counts).to_numpy(), np.int64
    )
    valid = raw != MISSING  # for a timestamp this means "not a time"
    if unit_us == 1:
        return raw, valid
    if unit_us == 0:
        return np.where(valid, raw // 1_000, MISSING), valid
    fits = (raw >= FIRST_US // unit_us) & (raw <= LAST_US // unit_us)
    return np.where(fits, np.where(fits, raw, 0) * unit_us, MISSING), valid


def _of_one_form(micros: I64, valid: Bools, form: str) -> Dates:
    inside = (micros >= FIRST_US) & (micros <= LAST_US)
    forms = frozenset({form} if inside.any() else ())
    unreadable = valid & ~inside
    if unreadable.any():
        micros = np.where(inside, micros, MISSING)
    return Dates(micros, unreadable, np.full(len(micros), form in INSTANTS), forms)


class _Found:
    """Collects dates form by form; the first form that reads a value wins."""

    def __init__(self, count: int) -> None:
        self.micros = np.full(count, MISSING)
        self.instant = np.zeros(count, np.bool_)
        self.forms: set[str] = set()

    def take(self, form: str, micros: I64) -> None:
        new = (self.micros == MISSING) & (micros >= FIRST_US) & (micros <= LAST_US)
        if new.any():
            self.micros[new] = micros[new]
            self.instant[new] = form in INSTANTS
            self.forms.add(form)

    def dates(self, valid: Bools) -> Dates:
        return Dates(
            self.micros, valid & (self.micros == MISSING), self.instant, frozenset(self.forms)
        )


def _from_text(column: pa.ChunkedArray, date_format: str) -> Dates:
    if date_format in ("auto", "iso"):
        for type_, form in ((pa.timestamp("us"), "iso"), (pa.timestamp("us", "UTC"), "iso_zoned")):
            try:
                return _of_one_form(*_scaled(pc.cast(column, type_), 1), form)
            except pa.ArrowInvalid:
                continue  # not all values are of this form
    import polars as pl

    text = pl.Series("text", column, dtype=pl.String)
    parsed = _Found(len(text))
    if date_format in ("auto", "iso"):
        parsed.take("iso", _micros_of(_iso(text)))
        parsed.take("iso_zoned", _micros_of(_iso_zoned(text)))
    if date_format == "auto" or date_format in _NUMBERS:
        left = text.set(pl.Series(parsed.micros != MISSING), None)
        values = left.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
        integers = left.cast(pl.Int64, strict=False)  # a double holds 53 bits, nanoseconds need 61
        _take_decimals(parsed, left.set(integers.is_not_null(), None), date_format)
        whole_numbers, is_whole = _as_integers(values)
        exact = integers.is_not_null().to_numpy()
        whole_numbers = np.where(exact, integers.fill_null(0).to_numpy(), whole_numbers)
        _take_numbers(parsed, values, whole_numbers, exact | is_whole, date_format)
    elif date_format == PERIOD:
        parsed.take(PERIOD, _begin_of_period(text))
    elif date_format != "iso":
        parsed.take(*_by_pattern(text, date_format))
    return parsed.dates(text.is_not_null().to_numpy())


def _micros_of(values: pl.Series) -> I64:
    import polars as pl

    return np.asarray(values.cast(pl.Int64).fill_null(MISSING).to_numpy(), np.int64)


def _iso(text: pl.Series) -> pl.Series:
    import polars as pl

    plain = _spaced(text.set(~text.str.contains(_ISO).fill_null(False), None))
    micros = pl.select(
        pl.coalesce(
            pl.lit(plain).str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False),
            pl.lit(plain + ":00").str.to_datetime(
                "%Y-%m-%d %H:%M:%S", time_unit="us", strict=False
            ),
            pl.lit(plain + ":00:00").str.to_datetime(
                "%Y-%m-%d %H:%M:%S", time_unit="us", strict=False
            ),
            pl.lit(plain).str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us")),
        )
    )
    return micros.to_series()


_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH_NAME = (
    r"(?P<name>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
)
_YEAR = r"(?P<year>[0-9]{4})"
_MONTH = r"(?P<month>0[1-9]|1[0-2])"
_QUARTER = r"q(?P<quarter>[1-4])"
_WEEK = r"w(?P<week>[0-9]{2})(?:-?(?P<weekday>[1-7]))?"
# 2000Q1, Q1 2000, 2019-W01, 2019-01, 2019M01, Jan 2019, and years that no count is likely to be
_PERIODS = (
    rf"{_YEAR}[- ]?{_QUARTER}",
    rf"{_QUARTER}[- /]?{_YEAR}",
    rf"{_YEAR}[- ]?{_WEEK}",
    rf"{_YEAR}(?:-|/|[- ]?m){_MONTH}",
    rf"{_MONTH_NAME}[- ,]+{_YEAR}",
    rf"{_YEAR}[- ]{_MONTH_NAME}",
    r"(?P<year>1[5-9][0-9]{2}|2[01][0-9]{2})",
)


def _begin_of_period(text: pl.Series) -> I64:
    """Return the first day of each year, quarter, month or ISO week, in microseconds."""
    micros = np.full(len(text), MISSING)
    for pattern in _PERIODS:
        groups = text.str.extract_groups(f"(?i)^{pattern}$").struct.unnest()
        matches = groups["year"].is_not_null().to_numpy() & (micros == MISSING)
        if matches.any():
            micros[matches] = _period_starts(groups.filter(matches))
    return micros


def _period_starts(groups: pl.DataFrame) -> I64:
    """Return where periods begin that have a column `year` and perhaps one of their parts."""
    import polars as pl

    year = groups["year"].cast(pl.Int64).to_numpy() - 1970
    month = np.zeros(len(groups), np.int64)
    if "week" in groups.columns:
        week = groups["week"].cast(pl.Int64).to_numpy()
        day = groups["weekday"].fill_null("1").cast(pl.Int64).to_numpy()
        years = year.astype("datetime64[Y]").astype("datetime64[D]").astype(np.int64)
        first_monday = (years + 3 + 3) // 7 * 7 - 3  # of the week of 4 January
        days = first_monday + (week - 1) * 7
        starts = np.asarray((days + day - 1) * DAY_US, np.int64)
        # A week belongs to the year of its Thursday.
        thursday = (days + 3).astype("datetime64[D]").astype("datetime64[Y]").astype(np.int64)
        return np.where((week > 0) & (thursday == year), starts, MISSING)
    if "quarter" in groups.columns:
        month = (groups["quarter"].cast(pl.Int64).to_numpy() - 1) * 3
    elif "month" in groups.columns:
        month = groups["month"].cast(pl.Int64).to_numpy() - 1
    elif "name" in groups.columns:
        names = groups["name"].str.to_lowercase().str.slice(0, 3)
        month = names.replace_strict(_MONTH_NAMES, range(12), return_dtype=pl.Int64).to_numpy()
    starts = (year * 12 + month).astype("datetime64[M]").astype("datetime64[us]")
    return np.asarray(starts.astype(np.int64))


def _iso_zoned(text: pl.Series) -> pl.Series:
    zoned = text.set(~text.str.contains(_ISO_ZONED).fill_null(False), None).str.replace(
        "([Zz]| UTC)$", "+00:00"
    )
    zoned = _spaced(zoned).str.replace(r"([+-][0-9]{2})$", "$1:00")
    zoned = zoned.str.replace(r" ?([+-][0-9]{2}):?([0-9]{2})$", "$1:$2")
    with_seconds = zoned.str.replace(r"^(\S+ [0-9]{1,2})([+-])", "$1:00$2")
    with_seconds = with_seconds.str.replace(r"^(\S+ [0-9]{1,2}:[0-9]{2})([+-])", "$1:00$2")
    return with_seconds.str.to_datetime(
        "%Y-%m-%d %H:%M:%S%.f%:z", time_unit="us", time_zone="UTC", strict=False
    )


def _spaced(text: pl.Series) -> pl.Series:
    """Normalize ISO texts: a blank before the time and a point before the fraction."""
    return text.str.replace("[Tt]", " ").str.replace(",", ".", literal=True)


def date_word(word: str, name: str, *others: str) -> str:
    """Validate a date format: a word or a strptime pattern.

    Raises `ValueError` naming the setting.
    """
    if word in (*DATE_WORDS, PERIOD):
        return word
    if "%" not in word:
        known = ", ".join((*others, *DATE_WORDS, PERIOD))
        raise ValueError(
            f"{setting_name(name)} is {word!r}; give {known} or a strptime pattern such as %d/%m/%Y"
        )
    import polars as pl

    try:
        _by_pattern(pl.Series(["2025-01-05"]), word)
    except InputError as error:
        raise ValueError(f"{setting_name(name)}: {error.marked}") from None
    directives = _directives(word)
    unknown = sorted(directives - set("aAbBcCdDeFfgGhHIjklmMnpPrRsStTuUvVwWxXyYzZ+"))
    if unknown:
        raise ValueError(
            f"{setting_name(name)} is {word!r}, and %{unknown[0]} is not a directive; correct it"
        )
    if "Z" in directives:
        raise ValueError(
            f"{setting_name(name)} is {word!r}, and the name of a zone (%Z) says no certain offset;"
            " read offsets with %z, or cut the names off"
        )
    dated = directives & set("sDFcvx+") or (
        directives & set("YyG") and directives & set("mbBhjUWV")
    )
    if not dated and word != "%Y":
        raise ValueError(
            f"{setting_name(name)} is {word!r}, which has no year or no month;"
            " give a pattern of dates"
        )
    return word


def _directives(pattern: str) -> set[str]:
    return set(re.findall(r"%[-_0#:.369]*([A-Za-z+])", pattern.replace("%%", "")))


def has_clock(pattern: str) -> bool:
    """Return whether a strptime pattern has a time of day."""
    return bool(_directives(pattern) & set("HIkMSTRrXscl+"))


# What a directive may match. The parser itself is laxer: it skips blanks, reads two digits after %Y
# as a year of the first century and a 60th second as the next minute. So the text must match this
# pattern first.
_LOOKS = {
    **dict.fromkeys("YG", "[0-9]{4}"),
    **dict.fromkeys("ygC", "[0-9]{2}"),
    **dict.fromkeys("mdHIUWV", "[0-9]{1,2}"),
    **dict.fromkeys("ekl", " ?[0-9]{1,2}"),
    **dict.fromkeys("MS", "[0-5]?[0-9]"),
    **dict.fromkeys("bhBaA", "[A-Za-z]+"),
    **dict.fromkeys("pP", "[AaPp][Mm]"),
    **dict.fromkeys("uw", "[0-9]"),
    **dict.fromkeys("TX", "[0-9]{1,2}:[0-5][0-9]:[0-5][0-9]"),
    **dict.fromkeys("Dx", "[0-9]{1,2}/[0-9]{1,2}/[0-9]{2}"),
    "R": "[0-9]{1,2}:[0-5][0-9]",
    "F": "[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}",
    "j": "[0-9]{1,3}",
    "s": "-?[0-9]+",
    "f": "[0-9]{1,9}",
    "z": "(Z|[+-][0-9]{2}(:?[0-9]{2})?)",
    "%": "%",
}
_ADJACENT = {
    **dict.fromkeys("mdHIUWV", "[0-9]{2}"),
    **dict.fromkeys("MS", "[0-5][0-9]"),
    "j": "[0-9]{3}",
}
_TOKEN = re.compile(
    r"%[-_0#:]*(?P<fraction>\.?[369]?)(?P<directive>[A-Za-z+%])|(?P<literal>.)", re.DOTALL
)


def _looks_like(pattern: str) -> str:
    """Translate a strptime pattern to a regular expression; adjacent numbers need all their
    digits.
    """
    tokens = [match.groupdict() for match in _TOKEN.finditer(pattern)]
    parts = []
    for index, token in enumerate(tokens):
        directive = token["directive"]
        if directive is None:
            parts.append(re.escape(token["literal"]))
        elif token["fraction"].startswith("."):
            parts.append(r"(\.[0-9]+)?")
        else:
            near = tokens[max(0, index - 1) : index] + tokens[index + 1 : index + 2]
            packed = any(token["directive"] or str(token["literal"]).isdigit() for token in near)
            parts.append(
                (_ADJACENT if packed else _LOOKS).get(directive) or _LOOKS.get(directive, ".*")
            )
    return f"^{''.join(parts)}$"


def _by_pattern(text: pl.Series, pattern: str) -> tuple[str, I64]:
    """Parse texts by a strptime pattern; return the form and microseconds.

    A time with hours only is read with zero minutes. A two-digit year 69 is refused, because it is
    1969 to some parsers and 2069 to others.
    """
    import polars as pl

    zoned = any(directive in pattern for directive in ("%z", "%:z", "%#z", "%+"))
    directives = _directives(pattern)
    try:
        text = text.set(~text.str.contains(_looks_like(pattern)).fill_null(False), None)
        if not has_clock(pattern):
            micros = text.str.to_date(pattern, strict=False).cast(pl.Datetime("us"))
        else:
            if directives & set("HIkl") and "M" not in directives:
                text = text + " 00"
                pattern = pattern + " %M"
            if ".%f" in pattern:  # Python's fraction; here %f alone would count nanoseconds
                pattern = pattern.replace(".%f", "%.f")
            zone = None
            if zoned:
                zone = "UTC"
            micros = text.str.to_datetime(pattern, time_unit="us", time_zone=zone, strict=False)
    except pl.exceptions.PolarsError as error:
        why = str(error).splitlines()[0]
        raise InputError(
            f"{pattern!r} is not a date pattern ({why})", remedy="correct it"
        ) from None
    parsed = _micros_of(micros)
    if directives & set("ygDx"):
        parsed = np.where((parsed >= _YEAR_2069) & (parsed < _YEAR_2070), MISSING, parsed)
    return "pattern_zoned" if zoned or "s" in directives else "pattern", parsed


def _as_integers(values: npt.NDArray[np.float64]) -> tuple[I64, Bools]:
    """Convert numbers to int64, with a mask of those that are whole and fit."""
    is_whole = (np.abs(values) < 2.0**63) & (values == np.floor(values))
    return np.where(is_whole, values, 0).astype(np.int64), is_whole


def _from_numbers(
    values: npt.NDArray[np.float64], integers: I64, is_whole: Bools, date_format: str
) -> Dates:
    parsed = _Found(len(values))
    _take_numbers(parsed, values, integers, is_whole, date_format)
    return parsed.dates(~np.isnan(values))


def _take_numbers(
    parsed: _Found,
    values: npt.NDArray[np.float64],
    integers: I64,
    is_whole: Bools,
    date_format: str,
) -> None:
    """Read numbers by the declared form, or by their size.

    integers: exact integers where `is_whole`.
    """
    for form in USUAL if date_format == "auto" else (date_format,):
        if form not in _NUMBERS:
            return
        fits = np.isfinite(values)
        if date_format == "auto":
            low, high = USUAL[form]
            fits = (values >= low) & (values < high)
        if not fits.any():
            continue
        if form == "yyyymmdd":
            micros, ok = calendar(integers)
            parsed.take(form, np.where(fits & is_whole & ok, micros, MISSING))
            continue
        epoch = 0
        if form == "excel_days":
            fits = fits & (values >= _EXCEL_FIRST)
            epoch = _EXCEL_EPOCH
        counts = np.where(fits, values, np.nan)
        unit_us = EPOCHS.get(form, DAY_US)
        parsed.take(form, _counted(counts, integers, is_whole, unit_us, epoch))


def _take_decimals(parsed: _Found, text: pl.Series, date_format: str) -> None:
    """Read counts with a decimal point by their digits, rounded down: a float would round those
    that lie just before a microsecond.
    """
    import polars as pl

    groups = text.str.extract_groups(_DECIMAL).struct.unnest()
    matches = groups["integer"].is_not_null().to_numpy()
    if not matches.any():
        return
    groups = groups.filter(matches)
    integer = groups["integer"].cast(pl.Int64, strict=False).fill_null(-1).to_numpy()
    negative = (groups["sign"] == "-").to_numpy()
    for form in USUAL if date_format == "auto" else (date_format,):
        if form not in _FRACTION_DIGITS:
            continue
        if date_format == "auto":
            low, high = USUAL[form]
            fits = (integer >= low) & (integer < high) & ~negative
        else:
            fits = (integer >= 0) & (integer <= LAST_US // (EPOCHS[form] or 1e-3))
        micros = np.full(len(text), MISSING)
        counts = _by_digits(np.where(fits, integer, 0), groups["fraction"], negative, form)
        micros[matches] = np.where(fits, counts, MISSING)
        parsed.take(form, micros)


def _by_digits(integer: I64, fraction: pl.Series, negative: Bools, form: str) -> I64:
    """Convert counts of an epoch to microseconds. integer, fraction: their digits beside the point,
    which `negative` ones have a minus before.
    """
    import polars as pl

    digits = _FRACTION_DIGITS[form]
    counts = integer * 10**digits
    if digits:
        padded = fraction.str.slice(0, digits).str.pad_end(digits, "0")
        counts = counts + padded.cast(pl.Int64).to_numpy()
    has_more = fraction.str.slice(digits).str.contains("[1-9]").to_numpy()
    counts = np.where(negative, -counts - has_more, counts)
    return np.asarray(counts // 1_000 if form == "epoch_ns" else counts, np.int64)


def _counted(
    values: npt.NDArray[np.float64], integers: I64, is_whole: Bools, unit_us: int, epoch: int
) -> I64:
    """Convert counts to microseconds, rounded down. epoch: the count at 1970."""
    written = values
    values = written - epoch
    integers = integers - epoch
    per = unit_us or 1e-3
    fits = (values >= FIRST_US / per) & (values <= LAST_US / per)
    if unit_us == 0:
        fits &= np.abs(values) < 2.0**63  # larger floats have lost the microsecond
        micros = np.where(fits & is_whole, integers, 0) // 1_000
    else:
        micros = np.where(fits & is_whole, integers, 0) * unit_us
    broken = fits & ~is_whole
    if broken.any():
        micros[broken] = _floored(written[broken], unit_us, epoch)
    return np.asarray(np.where(fits, micros, MISSING), np.int64)


def _floored(values: npt.NDArray[np.float64], unit_us: int, epoch: int) -> I64:
    """Convert counts with a fraction to microseconds, rounded down.

    The float that is nearest to a whole microsecond means that microsecond: 0.29 seconds and 16:00
    as two thirds of a day lie a little below it.
    """
    if unit_us == 0:
        return np.floor(values / 1_000).astype(np.int64)
    counted = (values - epoch) * unit_us
    nearest = np.rint(counted)
    is_nearest = nearest / unit_us == values
    if epoch:  # the sum would be rounded once more
        is_nearest = np.abs(counted - nearest) <= np.spacing(values) / 2 * unit_us
    micros = np.where(is_nearest, nearest, np.floor(counted))
    return np.asarray(micros.astype(np.int64))


def calendar(integers: I64) -> tuple[I64, Bools]:
    """Convert YYYYMMDD numbers to microseconds, with a mask of real days."""
    in_range = (integers >= 10_101) & (integers < 10**8)
    number = np.where(in_range, integers, 19_700_101)
    year = number // 10_000
    month = number // 100 % 100
    day = number % 100
    ok = in_range & (month >= 1) & (month <= 12) & (day >= 1)
    months = ((year - 1970) * 12 + np.where(ok, month, 1) - 1).astype("datetime64[M]")
    first = months.astype("datetime64[D]")
    length = ((months + np.timedelta64(1, "M")).astype("datetime64[D]") - first).astype(np.int64)
    ok &= day <= length
    days = first.astype(np.int64) + np.where(ok, day, 1) - 1
    return days * DAY_US, ok


def look_like_hours(micros: I64) -> bool:
    """Return whether all dates read as seconds look like YYYYMMDDHH: 2025010112, which as seconds
    is in 2034.
    """
    there = micros[micros != MISSING]
    seconds = there // 1_000_000
    if (
        not len(there)
        or (there % 1_000_000).any()
        or seconds.min() < 1_900_000_000
        or seconds.max() >= 2_100_000_000
    ):
        return False
    return bool((seconds % 100 < 24).all() and calendar(seconds // 100)[1].all())


def moment(micros: int) -> str:
    """Format a time for people, to the second."""
    return str(np.datetime64(micros, "us").astype("datetime64[s]")).replace("T", " ")


_ZONE = r"(?P<zone> ?[+-]\d\d:?\d\d)?"
_SHOWN_CLOCK = (
    r"(?P<clock>(?P<gap>,? +)\d\d?:\d\d(?P<seconds>:\d\d)?(?P<fraction>\.\d+)?"
    r"(?P<noon> ?[AaPp][Mm])?)?"
)
_MONTHS = "(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_LONG_MONTHS = (
    "(January|February|March|April|May|June|July|August|September|October|November|December)"
)
_YEARS = "write a year of four digits: years run from 0001 to 9999"

# Shape of a text → patterns that parse it; clock, seconds and zone are added as the text has them.
_PATTERNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        rf"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d? {_MONTHS} \d{{4}}{_SHOWN_CLOCK}{_ZONE}",
        ("%a, %d %b %Y",),
    ),
    (rf"\d\d? {_MONTHS} \d{{4}}{_SHOWN_CLOCK}{_ZONE}", ("%d %b %Y",)),
    (rf"\d\d? {_LONG_MONTHS} \d{{4}}{_SHOWN_CLOCK}{_ZONE}", ("%d %B %Y",)),
    (rf"{_MONTHS} \d\d?, \d{{4}}{_SHOWN_CLOCK}{_ZONE}", ("%b %d, %Y",)),
    (rf"{_LONG_MONTHS} \d\d?, \d{{4}}{_SHOWN_CLOCK}{_ZONE}", ("%B %d, %Y",)),
    (rf"\d\d?-{_MONTHS}-\d{{4}}{_SHOWN_CLOCK}{_ZONE}", ("%d-%b-%Y",)),
    (rf"\d\d/{_MONTHS}/\d{{4}}:\d\d:\d\d:\d\d{_ZONE}", ("%d/%b/%Y:%H:%M:%S",)),
    (r"\d{4}-?W\d\d-\d", ("%G-W%V-%u",)),
    (r"\d{4}-\d{3}", ("%Y-%j",)),
    (rf"\d\d?/\d\d?/\d{{4}}{_SHOWN_CLOCK}{_ZONE}", ("%d/%m/%Y", "%m/%d/%Y")),
    (rf"\d\d?-\d\d?-\d{{4}}{_SHOWN_CLOCK}{_ZONE}", ("%d-%m-%Y", "%m-%d-%Y")),
    (rf"\d\d?\.\d\d?\.\d{{4}}{_SHOWN_CLOCK}{_ZONE}", ("%d.%m.%Y",)),
    (rf"\d{{4}}/\d\d?/\d\d?{_SHOWN_CLOCK}{_ZONE}", ("%Y/%m/%d",)),
    (rf"\d{{4}}\.\d\d?\.\d\d?{_SHOWN_CLOCK}{_ZONE}", ("%Y.%m.%d",)),
    (rf"\d{{4}}-\d\d?-\d\d?{_SHOWN_CLOCK}{_ZONE}", ("%Y-%m-%d",)),
    (rf"\d\d?/\d\d?/\d\d{_SHOWN_CLOCK}{_ZONE}", ("%d/%m/%y", "%m/%d/%y")),
    (rf"\d\d?\.\d\d?\.\d\d{_SHOWN_CLOCK}{_ZONE}", ("%d.%m.%y",)),
    (rf"\d\d-\d\d-\d\d{_SHOWN_CLOCK}{_ZONE}", ("%y-%m-%d", "%d-%m-%y")),
    (r"\d{8}T\d{6}", ("%Y%m%dT%H%M%S",)),
    (r"\d{8}T\d{6}(Z|[+-]\d{4})", ("%Y%m%dT%H%M%S%#z",)),
    (r"[12]\d{3}[01]\d[0-3]\d[0-2]\d[0-5]\d[0-5]\d", ("%Y%m%d%H%M%S",)),
    (r"[12]\d{3}[01]\d[0-3]\d[0-2]\d[0-5]\d", ("%Y%m%d%H%M",)),
    (r"[12]\d{3}[01]\d[0-3]\d[0-2]\d", ("%Y%m%d%H",)),
)
_LOOKS_ISO = re.compile(
    r"\d{4}-\d\d?-\d\d?([ Tt]\d\d?(:\d\d(:\d\d([.,]\d+)?)?)?)?( ?[+-]\d\d(:?\d\d)?|[Zz])?"
)
_LIKELY = 1900, 2200  # numbers that give other years are probably in another unit


def time_setting(*words: str) -> str:
    """Write the part of the dialect that names a form of times."""
    return setting("dialect", *({"time_format": word} for word in words))


def advice(value: object, date_format: str) -> str:
    """Advise on a value that does not match `date_format`. A form is only named if it reads the
    value.
    """
    text = None
    if isinstance(value, str):
        text = value
    if text is not None and text.strip() != text:
        return "which has blanks around it; remove them"
    if text in MEANS_MISSING:
        return f"which is not a date; if it means missing, give {null_setting(text)}"
    number = None
    with suppress(ValueError, OverflowError):
        number = None
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            number = float(value)
    return _form_advice(value, number, date_format)


def _form_advice(value: object, number: float | None, date_format: str) -> str:
    """Name the forms that read a value. number: the value, if it is one."""
    patterns = _patterns(value)
    words = []
    for word, example in (*_likely_units(number, date_format), *patterns):
        if _reads(word, value):
            words.append(f"{time_setting(word)}{example}")
    if words:
        return f"no date of form {date_format}; give {' or '.join(words)}{_of_all(date_format)}"
    if isinstance(value, str) and (problem := _iso_fault(value, date_format)) is not None:
        return problem
    if patterns:
        return "which is not an existing day or time of day; correct it"
    form = "%d.%m.%Y"
    correct = f"no date of form {date_format}; correct it"
    if number is not None or form == date_format:
        return correct
    return f"{correct}, or give its form, such as {time_setting(form)}"


def _of_all(date_format: str) -> str:
    """Return the condition of another form than a declared one, which other rows may be of."""
    return "" if date_format in ("auto", "iso") else ", if all dates are of that form"


def _reads(word: str, value: object) -> bool:
    """Return whether a form reads a value."""
    column = pa.chunked_array([[value]])
    return bool(parse_dates(column, word).micros[0] != MISSING)


def _likely_units(number: float | None, date_format: str) -> list[tuple[str, str]]:
    """List the formats that make a likely date of a number, each with that date."""
    if number is None:
        return []
    advices = []
    for word, unit_us in (*EPOCHS.items(), ("excel_days", EPOCHS["epoch_days"])):
        if word == "excel_days":
            count = number - 25_569
        else:
            count = number
        if word == date_format or ("days" in word and not 1_000 <= number < 100_000):
            continue
        try:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
                microseconds=count * (unit_us or 1e-3)
            )
        except (OverflowError, ValueError):
            continue
        far = abs(number) >= 1_000  # nobody writes so small a number of seconds since 1970
        if (
            far
            and _LIKELY[0] <= moment.year < _LIKELY[1]
            and (abs(count * (unit_us or 1e-3)) >= 8.64e10)
        ):
            advices.append((word, f" ({moment:%Y-%m-%d})"))
    return advices


def _patterns(value: object) -> list[tuple[str, str]]:
    text = ""
    if isinstance(value, int | str) and not isinstance(value, bool):
        text = str(value)
    for look, patterns in _PATTERNS:
        match = re.fullmatch(look, text)
        if match is None:
            continue
        parts = match.groupdict()
        clock = _clock_pattern(parts)
        if not parts.get("zone"):
            zone = ""
        elif parts["zone"].startswith(" "):
            zone = " %z"
        else:
            zone = "%z"
        return [(f"{pattern}{clock}{zone}", "") for pattern in patterns]
    return []


def _clock_pattern(parts: Mapping[str, str | None]) -> str:
    """Return the pattern of a time of day. parts: those of `_SHOWN_CLOCK`."""
    if not parts.get("clock"):
        return ""
    pattern = f"{parts['gap']}%I:%M" if parts["noon"] else f"{parts['gap']}%H:%M"
    if parts["seconds"]:
        pattern += ":%S"
    if parts["fraction"]:
        pattern += "%.f"
    if parts["noon"]:
        pattern += " %p" if parts["noon"].startswith(" ") else "%p"
    return pattern


def _iso_fault(text: str, date_format: str) -> str | None:
    """Explain why a text that looks like an ISO date is not one; None if it does not look
    like one.
    """
    if re.match(r"0000-|[+-]?\d{5,}-\d\d?-\d", text):
        return f"which is in no year that a date can have; {_YEARS}"
    if _LOOKS_ISO.fullmatch(text) is None:
        return None
    if re.search(r":60\b", text):
        return (
            "which is a leap second, that no clock of a computer shows; write the second before or"
            " after it"
        )
    if re.search(r"[ Tt]24(:|$)", text):
        return "which is the end of a day; write 00:00 of the next day"
    if date_format not in ("auto", "iso"):
        return f"no date of form {date_format}; give {time_setting('iso')}{_of_all(date_format)}"
    return "which is not an existing day or time of day; correct it"
