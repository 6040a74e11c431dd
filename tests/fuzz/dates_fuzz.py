"""Dates written to be nasty, read by headrace and by others: the same instant, or headrace refuses.

An input is a list of (form, kind, value). kind "text": a value of a text column; "integer", "float": of a column of
numbers; else the Arrow type of a typed column, whose value is its integer. Others are `datetime`, pandas, exact
arithmetic and, where it is installed, DuckDB.
"""

from __future__ import annotations

import datetime as dt
import random
import re
import warnings
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from math import floor
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa

from headrace.formats.dates import EPOCHS, MISSING, Dates, parse_dates
from headrace.split.cutoff import in_utc

Item = tuple[str, str, Any]

EPOCH = dt.datetime(1970, 1, 1)
FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)
UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
TYPES = {f"timestamp[{unit}]": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")}
TYPES |= {f"{name}, UTC": pa.timestamp(kind.unit, "UTC") for name, kind in list(TYPES.items())}
TYPES |= {"date32": pa.date32(), "date64": pa.date64()}
PATTERNS = (
    "%d/%m/%Y",
    "%m/%d/%Y %H:%M",
    "%d.%m.%y",
    "%Y-%m-%d %H:%M:%S",
    "%Y%m%d%H%M%S",
    "%Y%m%d",
    "%Y-%j",
    "%G-W%V-%u",
    "%d %b %Y %H:%M:%S %z",
    "%a, %d %b %Y %H:%M:%S %z",
    "%Y-%m-%dT%H:%M:%S%z",
    "%I:%M %p %d/%m/%Y",
    "%d/%m/%Y %H",
    "%Y-%m-%d %H:%M:%S.%f",
    "%d-%b-%y",
    "%m/%d/%y %H:%M",
)
ZONES = (
    "Europe/Berlin",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Asia/Kathmandu",
    "UTC",
)
NASTY = (
    *(
        "",
        " ",
        "NaT",
        "nan",
        "inf",
        "-inf",
        "0",
        "-0",
        "1e9",
        "1.7e9",
        "1E12",
        "0x10",
        "1_000_000_000",
        "9" * 19,
    ),
    *(
        "9223372036854775807",
        "-9223372036854775808",
        "0000-00-00",
        "0000-01-01",
        "10000-01-01",
        "+2025-01-05",
    ),
    *(
        "2025-02-29",
        "2024-02-30",
        "1900-02-29",
        "2025-13-01",
        "2025-00-10",
        "2025-W01-1",
        "2025-001",
        "20250105T1230Z",
    ),
    *(
        "2016-12-31 23:59:60",
        "2025-01-05 24:00:00",
        "2025-01-05T25:00",
        "25-01-05",
        "05/01/25",
        "٢٠٢٥-٠١-٠٥",
    ),
    *(
        "2025-01-05T12:30:00+24:00",
        "2025-01-05T12:30:00-23:59",
        "2025-01-05T12:30:00+00:60",
        "2025-01-05\x00",
    ),
    *(
        "12:30",
        "now",
        "today",
        "epoch",
        "infinity",
        "-infinity",
        "2025-01-05 BC",
        "2025 Jan 5",
        "2025-01",
        "2025",
    ),
)


def make_input(random_: random.Random) -> list[Item]:
    """Some dates, of which most are nearly well written."""
    return [_item(random_) for _ in range(random_.randint(1, 24))]


def _item(random_: random.Random) -> Item:
    draw = random_.random()
    if draw < 0.45:
        return (
            random_.choice(("auto", "iso")),
            "text",
            _spoiled(random_, _iso(random_, _moment(random_))),
        )
    if draw < 0.6:
        pattern = random_.choice(PATTERNS)
        moment = _moment(random_).replace(
            tzinfo=dt.timezone(dt.timedelta(minutes=random_.choice((0, 60, -210, 345))))
        )
        return pattern, "text", _spoiled(random_, moment.strftime(pattern))
    if draw < 0.8:
        form = random_.choice((*EPOCHS, "excel_days", "yyyymmdd", "auto"))
        value = _number(random_)
        kind = random_.choice(("text", "integer", "float"))
        if kind == "text":
            return (
                form,
                kind,
                _spoiled(random_, random_.choice((str(value), repr(float(value)), f"{value}.5"))),
            )
        return (
            form,
            kind,
            value if kind == "integer" else random_.choice((1.0, 1.0, 1.000_000_1)) * float(value),
        )
    if draw < 0.9:
        name = random_.choice(list(TYPES))
        bits = (
            random_.choice((16, 31, 40, 50, 56, 60, 63))
            if name != "date32"
            else random_.choice((12, 20, 31))
        )
        return "auto", name, random_.choice((1, -1)) * random_.getrandbits(bits)
    if draw < 0.95:
        return (
            random_.choice(ZONES),
            "wall",
            (_moment(random_) - EPOCH) // dt.timedelta(microseconds=1),
        )
    return random_.choice(("auto", "iso", *EPOCHS, *PATTERNS)), "text", random_.choice(NASTY)


def _moment(random_: random.Random) -> dt.datetime:
    low, high = random_.choice(((2, 9998), (1990, 2030), (2000, 2030), (1900, 2100), (1969, 1971)))
    day = dt.datetime(low, 1, 1) + dt.timedelta(days=random_.randrange((high - low) * 365))
    micros = random_.choice(
        (0, 0, 43_200_000_000, 86_399_999_999, random_.randrange(86_400_000_000))
    )
    return day + dt.timedelta(microseconds=micros)


def _iso(random_: random.Random, moment: dt.datetime) -> str:
    day = moment.strftime("%d").lstrip(random_.choice(("", "", "", "0")))
    text = f"{moment.year:04d}-{moment:%m}-{day}"
    clock = random_.choice(("", "%H", "%H:%M", "%H:%M:%S", "%H:%M:%S", "%H:%M:%S.f"))
    if not clock:
        return text
    text += random_.choice(("T", " ", "t")) + moment.strftime(clock.removesuffix(".f"))
    if clock.endswith(".f"):
        digits = f"{moment.microsecond:06d}" + random_.choice(("", "", "999", "5", "0000001"))
        text += random_.choice((".", ".", ",")) + digits[: random_.randint(1, len(digits))]
    return text + random_.choice(
        (
            "",
            "",
            "",
            "Z",
            "z",
            "+00",
            "+0000",
            "+00:00",
            "-00:00",
            "+05:30",
            "-0330",
            "+14:00",
            "-12",
            " +01:00",
            " UTC",
        )
    )


def _number(random_: random.Random) -> int:
    usual = random_.choice(
        (10**4, 10**8, 10**9, 10**10, 10**12, 10**13, 10**15, 10**16, 10**18, 25_569, 2_025_010_512)
    )
    drawn = random_.choice(
        (usual, random_.randrange(usual), -random_.randrange(usual), 2 * usual - 1)
    )
    return drawn if abs(drawn) < 2**63 else 2**63 - 1


def _spoiled(random_: random.Random, text: str) -> str:
    """The text, or in one case of five with a character changed, lost, added or doubled."""
    if not text or random_.random() < 0.8:
        return text
    at, what = random_.randrange(len(text)), random_.choice("0123456789-:/.,+TZ \te\x00")
    return random_.choice(
        (
            text[:at] + what + text[at + 1 :],
            text[:at] + text[at + 1 :],
            text[:at] + what + text[at:],
        )
    )


def check(items: Sequence[Item]) -> None:
    """Raise `AssertionError` where headrace reads an item as another instant than somebody else, or nobody else does."""
    duck = _duck_reads([value for _, kind, value in items if kind == "text"])
    for item in items:
        form, kind, value = item
        if kind == "wall":
            _check_zone(form, value)
            continue
        dates = _read([item])
        if dates.unreadable[0] or dates.micros[0] == MISSING:
            continue
        ours, read_as = int(dates.micros[0]), next(iter(dates.forms))
        others = _others(item, read_as, duck)
        told = f"{item}: headrace reads {ours} as {read_as}, others {others}"
        assert any(each is not None for each in others.values()), f"only headrace reads {told}"
        for name, other in others.items():
            assert other is None or abs(ours - other) <= _slack(item, name), told
    _check_together(items)


def _read(items: Sequence[Item]) -> Dates:
    form, kind, _ = items[0]
    values = [value for _, _, value in items]
    type_ = {"text": pa.string(), "integer": pa.int64(), "float": pa.float64()}.get(kind)
    if type_ is not None:
        return parse_dates(pa.chunked_array([pa.array(values, type_)]), form)
    wide = pa.int32() if kind == "date32" else pa.int64()
    return parse_dates(pa.chunked_array([pa.array(values, wide).cast(TYPES[kind])]), form)


def _check_together(items: Sequence[Item]) -> None:
    """A column is read as its values are, one by one."""
    columns: dict[tuple[str, str], list[Item]] = {}
    for item in items:
        if item[1] != "wall":
            columns.setdefault(item[:2], []).append(item)
    for own in columns.values():
        together, apart = _read(own), [_read([item]) for item in own]
        assert [each.micros[0] for each in apart] == together.micros.tolist(), (
            f"not alike in one column: {own}"
        )
        assert [each.unreadable[0] for each in apart] == together.unreadable.tolist(), (
            f"not alike in one column: {own}"
        )


def _slack(item: Item, name: str) -> int:
    """Microseconds that others may differ by: of fractions behind the last digit, or of numbers that are no integers."""
    form, kind, value = item
    if kind in ("integer", "text") and re.fullmatch(r"-?\d+", str(value)):
        return 0
    if kind == "text" and re.search(r"\d[.,]\d{7,}", value):
        return 1  # some round what headrace cuts off
    if kind == "float" or (kind == "text" and _number_of(value) is not None):
        scale = {"epoch_ns": 1e-3, "excel_days": 86_400e6}.get(
            form, float(EPOCHS.get(form, 1_000_000))
        )
        return 2 + int(abs(float(value)) * scale * 2**-51)
    return 0


def _others(item: Item, read_as: str, duck: dict[str, int]) -> dict[str, int | None]:
    form, kind, value = item
    if kind in TYPES:
        return {"arithmetic": _of_type(kind, value)}
    if read_as in EPOCHS or read_as in ("excel_days", "yyyymmdd"):
        return {"arithmetic": _counted(read_as, value), "pandas": _pandas_number(read_as, value)}
    if read_as in ("iso", "iso_zoned"):
        return {
            "datetime": _fromisoformat(value),
            "pandas": _pandas_text(value),
            "DuckDB": duck.get(value),
        }
    return {"datetime": _strptime(str(value), form)}


def _micros(moment: dt.datetime) -> int | None:
    try:
        naive = moment if moment.tzinfo is None else moment.astimezone(dt.UTC).replace(tzinfo=None)
    except OverflowError:
        return None
    return (naive - EPOCH) // dt.timedelta(microseconds=1)


def _in_years(micros: int) -> int | None:
    first, last = ((each - EPOCH) // dt.timedelta(microseconds=1) for each in (FIRST, LAST))
    return micros if first <= micros <= last else None


def _of_type(kind: str, value: int) -> int | None:
    if kind.startswith("date"):
        return _in_years(value * (86_400_000_000 if kind == "date32" else 1_000))
    unit = kind.removeprefix("timestamp[").partition("]")[0]
    return _in_years(value // 1_000 if unit == "ns" else value * UNITS[unit])


def _number_of(value: Any) -> Fraction | None:
    try:
        return (
            Fraction(str(value).strip()) if re.fullmatch(r"[-+]?[\d.eE+-]+", str(value)) else None
        )
    except (ValueError, ZeroDivisionError):
        return None


def _counted(form: str, value: Any) -> int | None:
    number = _number_of(value)
    if number is None:
        return None
    if form == "yyyymmdd":
        try:
            return (
                _micros(dt.datetime.strptime(f"{int(number):08d}", "%Y%m%d"))
                if number.denominator == 1
                else None
            )
        except ValueError:
            return None
    if form == "epoch_ns":
        return _in_years(floor(number / 1_000))
    scale = {"epoch_days": 86_400_000_000, "excel_days": 86_400_000_000}.get(form) or EPOCHS[form]
    return _in_years(round((number - (25_569 if form == "excel_days" else 0)) * scale))


def _pandas_number(form: str, value: Any) -> int | None:
    number = _number_of(value)
    units = {
        "epoch_s": "s",
        "epoch_ms": "ms",
        "epoch_us": "us",
        "epoch_ns": "ns",
        "epoch_days": "D",
    }
    if number is None or form not in units or number.denominator != 1:
        return None
    try:
        return _pandas_micros(pd.to_datetime(int(number), unit=units[form]))  # type: ignore[call-overload]  # a unit
    except (ValueError, OverflowError):
        return None


def _pandas_micros(stamp: Any) -> int | None:
    if stamp is pd.NaT:
        return None
    naive = stamp if stamp.tzinfo is None else stamp.tz_convert("UTC").tz_localize(None)
    return int(naive.to_datetime64().astype("datetime64[us]").astype(np.int64))


def _pandas_text(text: str) -> int | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _pandas_micros(pd.to_datetime(text, format="ISO8601"))
        except (ValueError, OverflowError, TypeError, AttributeError):
            pass
        if re.search(r"[ Tt]\d$|[ Tt]\d\d?( ?[-+Zz]| UTC|$)|60$", text):
            return None  # its guesses at a clock of hours alone are not a reading
        try:
            return _pandas_micros(pd.to_datetime(text.replace(",", ".")))
        except (ValueError, OverflowError, TypeError, AttributeError):
            return None


def _fromisoformat(text: str) -> int | None:
    """As `datetime` reads ISO; months, days and hours of one digit and the blank before an offset are written out."""
    text = re.sub(
        r"^(\d{4})-(\d{1,2})-(\d{1,2})", lambda m: f"{m[1]}-{int(m[2]):02d}-{int(m[3]):02d}", text
    )
    text = re.sub(r"[ Tt](\d)(?=:|$|[-+Zz ])", r"T0\1", text, count=1)
    text = re.sub(r"( UTC|z)$", "Z", text).replace("t", "T")
    text = re.sub(r" ([+-]\d\d)", r"\1", text)
    try:
        return _micros(dt.datetime.fromisoformat(text))
    except ValueError:
        return None


def _strptime(text: str, pattern: str) -> int | None:
    if "%" not in pattern:
        return None
    if "%f" in pattern:
        text = re.sub(r"(\.\d{6})\d+$", r"\1", text)  # `datetime` has no nanoseconds
    try:
        return _micros(dt.datetime.strptime(text, pattern))
    except ValueError:
        return None


def _check_zone(zone: str, wall_us: int) -> None:
    shown = EPOCH + dt.timedelta(microseconds=wall_us)
    moment = shown.replace(tzinfo=ZoneInfo(zone), fold=0)
    if moment.astimezone(dt.UTC).astimezone(ZoneInfo(zone)).replace(tzinfo=None) != shown:
        return  # a time that clocks skip
    if not 1970 < shown.year < 2037:
        return  # local mean time before, and rules for ever after, which libraries keep differently
    ours = int(in_utc(np.array([wall_us]), np.ones(1, np.bool_), zone)[0])
    assert _micros(moment) == ours, (
        f"{shown} in {zone}: headrace says {ours}, zoneinfo {_micros(moment)}"
    )


def _duck_reads(texts: Sequence[str]) -> dict[str, int]:
    """What DuckDB reads as times; nothing where it is not installed."""
    connection = _duck()
    texts = [each for each in texts if "\x00" not in each and re.match(r"\d{4}-\d", each)]
    if connection is None or not texts:
        return {}
    query = "select t, epoch_us(try_cast(t as {})) from (select unnest($1) as t)"
    rows = []
    for kind, zoned in (("timestamp", False), ("timestamptz", True)):
        rows += connection.execute(
            query.format(kind), [[each for each in texts if _is_zoned(each) is zoned]]
        ).fetchall()
    return {
        text: micros
        for text, micros in rows
        if micros is not None and _in_years(micros) is not None
    }


def _is_zoned(text: str) -> bool:
    return re.search(r":.*([-+]\d|[Zz]|UTC)|[ Tt]\d+ ?([-+]\d|[Zz]|UTC)", text) is not None


@cache
def _duck() -> Any:
    if find_spec("duckdb") is None:
        return None
    import duckdb

    return duckdb.connect()
