"""A column of dates as microseconds, by one stated form. Pure.

A form says how values are written: "iso" (no offset), "iso_zoned", "yyyymmdd", "epoch_s", "epoch_ms", "pattern" or
"pattern_zoned". Forms with an offset and epochs give instants; the others give wall-clock time. Text is read by
Arrow's ISO parser when the whole column allows it, which costs about 25 ns a value, else form by form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, Bools
from headrace.formats.schema import is_text

if TYPE_CHECKING:
    import polars as pl

INSTANTS = frozenset({"iso_zoned", "epoch_s", "epoch_ms", "pattern_zoned"})
MISSING = np.iinfo(np.int64).min

_DAY_US = 86_400_000_000
_DATE, _CLOCK = r"\d{4}-\d{1,2}-\d{1,2}", r"[ T]\d{1,2}(:\d{2}(:\d{2}(\.\d+)?)?)?"
_ISO = rf"^{_DATE}({_CLOCK})?$"
_ISO_ZONED = rf"^{_DATE}{_CLOCK}( ?[+-]\d{{2}}(:?\d{{2}})?|Z)$"
# How many digits a number must have to be told apart without a declared format.
_AUTO_NUMBERS = {"yyyymmdd": (10**7, 10**8), "epoch_s": (10**9, 10**10), "epoch_ms": (10**12, 10**13)}


@dataclass(frozen=True)
class Dates:
    """micros int64 [N], `MISSING` where there is no date; unreadable bool [N]: a value that is there and is no date."""

    micros: I64
    unreadable: Bools
    forms: frozenset[str]


def parse_dates(column: pa.ChunkedArray, date_format: str) -> Dates:
    """Read a column of text, numbers, dates or timestamps.

    date_format: see `TemporalSplit`. Every form that was met is in `forms`; whether several are fine is up to the
    caller.
    """
    kind = column.type
    if is_text(kind):
        return _from_text(column, date_format)
    if pa.types.is_timestamp(kind):
        return _from_timestamps(column, kind)
    if pa.types.is_date(kind):
        days = column.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        return _known(_filled(pc.multiply(days, _DAY_US)), column.null_count, "iso")
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        values = np.asarray(pc.fill_null(column.cast(pa.float64(), safe=False), np.nan).to_numpy(), np.float64)
        return _from_numbers(values, date_format)
    everything = np.asarray(pc.is_valid(column).to_numpy(), np.bool_)
    return Dates(np.full(len(column), MISSING), everything, frozenset())


def _known(micros: I64, nulls: int, form: str) -> Dates:
    return Dates(micros, np.zeros(len(micros), np.bool_), frozenset({form} if len(micros) > nulls else ()))


def _filled(values: pa.ChunkedArray) -> I64:
    values = values.cast(pa.int64())
    return np.asarray((pc.fill_null(values, MISSING) if values.null_count else values).to_numpy(), np.int64)


def _from_timestamps(column: pa.ChunkedArray, kind: pa.TimestampType) -> Dates:
    micros = _filled(column)
    if kind.unit != "us":
        present = micros != MISSING
        micros = micros // 1_000 if kind.unit == "ns" else micros * {"s": 1_000_000, "ms": 1_000}[kind.unit]
        micros = np.where(present, micros, MISSING)
    return _known(micros, column.null_count, "iso_zoned" if kind.tz else "iso")


def _from_text(column: pa.ChunkedArray, date_format: str) -> Dates:
    if date_format in ("auto", "iso"):
        for type_, form in ((pa.timestamp("us"), "iso"), (pa.timestamp("us", "UTC"), "iso_zoned")):
            try:
                return _known(_filled(pc.cast(column, type_)), column.null_count, form)
            except pa.ArrowInvalid:
                continue  # not all values are of this form
    import polars as pl

    text = pl.Series("text", column, dtype=pl.String)
    present = text.is_not_null().to_numpy()
    micros = np.full(len(text), MISSING)
    forms: set[str] = set()

    def take(form: str, values: pl.Series) -> None:
        got = values.cast(pl.Int64).fill_null(MISSING).to_numpy()
        new = (micros == MISSING) & (got != MISSING)
        if new.any():
            micros[new] = got[new]
            forms.add(form)

    if date_format in ("auto", "iso"):
        take("iso", _iso(text))
        take("iso_zoned", _iso_zoned(text))
    elif date_format not in _AUTO_NUMBERS:
        zoned = "%z" in date_format or "%:z" in date_format or "%#z" in date_format
        take("pattern_zoned" if zoned else "pattern", _by_pattern(text, date_format, "UTC" if zoned else None))
    if date_format == "auto" or date_format in _AUTO_NUMBERS:
        left = text.set(pl.Series(micros != MISSING), None)
        numbers = left.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
        found = _from_numbers(numbers, date_format)
        micros = np.where(micros == MISSING, found.micros, micros)
        forms |= found.forms
    return Dates(micros, present & (micros == MISSING), frozenset(forms))


def _iso(text: pl.Series) -> pl.Series:
    import polars as pl

    plain = text.set(~text.str.contains(_ISO).fill_null(False), None).str.replace("T", " ", literal=True)
    micros = pl.select(
        pl.coalesce(
            pl.lit(plain).str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="us", strict=False),
            pl.lit(plain + ":00").str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False),
            pl.lit(plain + ":00:00").str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False),
            pl.lit(plain).str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us")),
        )
    )
    return micros.to_series()


def _iso_zoned(text: pl.Series) -> pl.Series:
    zoned = text.set(~text.str.contains(_ISO_ZONED).fill_null(False), None).str.replace("T", " ", literal=True)
    zoned = zoned.str.replace("Z$", "+00:00").str.replace(r"([+-]\d{2})$", "$1:00")
    zoned = zoned.str.replace(r" ?([+-]\d{2}):?(\d{2})$", "$1:$2")
    with_seconds = zoned.str.replace(r"^(\S+ \d{1,2})([+-])", "$1:00$2")
    with_seconds = with_seconds.str.replace(r"^(\S+ \d{1,2}:\d{2})([+-])", "$1:00$2")
    parsed = with_seconds.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%:z", time_unit="us", time_zone="UTC", strict=False)
    return parsed


def _by_pattern(text: pl.Series, pattern: str, time_zone: str | None) -> pl.Series:
    import polars as pl

    has_time = any(
        directive in pattern for directive in ("%H", "%I", "%M", "%S", "%T", "%R", "%r", "%X", "%s", "%c", "%k")
    )
    if not has_time:
        return text.str.to_date(pattern, strict=False).cast(pl.Datetime("us"))
    return text.str.to_datetime(pattern, time_unit="us", time_zone=time_zone, strict=False)


def _from_numbers(values: npt.NDArray[np.float64], date_format: str) -> Dates:
    present = ~np.isnan(values)
    micros = np.full(len(values), MISSING)
    forms: set[str] = set()
    for form, (low, high) in _AUTO_NUMBERS.items():
        if date_format not in ("auto", form):
            continue
        fits = present & (micros == MISSING) & (np.abs(values) < 2**53)
        if date_format == "auto":
            fits &= (values >= low) & (values < high)
        if form == "yyyymmdd":
            got, ok = _calendar(np.where(fits, values, 0))
            fits &= ok
        else:
            fits &= np.abs(values) < (9e12 if form == "epoch_s" else 9e15)
            got = np.rint(np.where(fits, values, 0) * (1e6 if form == "epoch_s" else 1e3)).astype(np.int64)
        if fits.any():
            micros[fits] = got[fits]
            forms.add(form)
    return Dates(micros, present & (micros == MISSING), frozenset(forms))


def _calendar(values: npt.NDArray[np.float64]) -> tuple[I64, Bools]:
    """YYYYMMDD numbers as microseconds, and which of them are real days."""
    whole = np.isfinite(values) & (values == np.floor(values)) & (values >= 10_101) & (values < 10**8)
    number = np.where(whole, values, 19_700_101).astype(np.int64)
    year, month, day = number // 10_000, number // 100 % 100, number % 100
    ok = whole & (month >= 1) & (month <= 12) & (day >= 1)
    months = ((year - 1970) * 12 + np.where(ok, month, 1) - 1).astype("datetime64[M]")
    first = months.astype("datetime64[D]")
    length = ((months + np.timedelta64(1, "M")).astype("datetime64[D]") - first).astype(np.int64)
    ok &= day <= length
    days = first.astype(np.int64) + np.where(ok, day, 1) - 1
    return days * _DAY_US, ok
