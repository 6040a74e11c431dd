"""The text files of CAMELS-US: basin mean forcing and streamflow of one basin as columns.

A forcing file begins with latitude, elevation (m) and area (m²), one a line, then names, then rows with year, month,
day and hour; names differ between products in case, unit and separator. A streamflow file has no header: gauge, year,
month, day, cubic feet per second, quality flag; -999 is missing. The columns given are

    dayl, prcp, srad, swe, tmax, tmin, vp     the forcing's, in its units (s, mm/day, W/m2, mm, C, C, Pa)
    qobs          streamflow in mm/day over the basin's area
    qobs_cfs      streamflow in cubic feet per second
    estimated     1 where the flag says so (A:e), else 0

Days of one file that the other has not are rows with missing values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from headrace.arrays import F64, I64
from headrace.errors import InputError
from headrace.formats.detect import open_bytes
from headrace.series.config import Series
from headrace.series.observed import Observed

FORCING = ("dayl", "prcp", "srad", "swe", "tmax", "tmin", "vp")
FLOW = ("qobs", "qobs_cfs", "estimated")

_HEADER_LINES = 3
_DATE_COLUMNS = ("year", "mnth", "day", "hr")
_CUBIC_FOOT = 0.3048**3
_DAY_S, _MM = 86_400, 1_000


def read_basin(settings: Series, paths: Sequence[Path], asked: Sequence[str]) -> Observed:
    """The asked columns of a basin on all days that one of its two files has. Raises `InputError`."""
    flow_path = next(each for each in paths if "streamflow" in each.name)
    forcing_path = next(each for each in paths if each != flow_path)
    area, days, forcing = _forcing(forcing_path)
    flow_days, flow = _flow(flow_path, area)
    columns = forcing | flow
    for name in asked:
        if name not in columns:
            raise InputError(f"{forcing_path}: has no column {name!r}; CAMELS-US has {', '.join(columns)}")
    every = np.unique(np.concatenate([days, flow_days]))
    values = np.full((len(every), len(asked)), np.nan)
    for place, name in enumerate(asked):
        own = flow_days if name in flow else days
        values[np.searchsorted(every, own), place] = columns[name]
    for number in settings.missing_numbers:
        values[values == number] = np.nan
    return Observed(every.astype("datetime64[D]").astype("datetime64[us]").astype(np.int64), values)


def _forcing(path: Path) -> tuple[float, I64, dict[str, F64]]:
    """Area in m², days since 1970, and the columns."""
    data = _text(path)
    lines = data.split(b"\n", _HEADER_LINES + 1)
    if len(lines) < _HEADER_LINES + 2:
        raise InputError(f"{path}: has no rows behind its {_HEADER_LINES + 1} header lines; fetch it again")
    names = [_plain(each) for each in lines[_HEADER_LINES].decode("latin-1").split()]
    if names[: len(_DATE_COLUMNS)] != list(_DATE_COLUMNS) or set(names[4:]) != set(FORCING):
        raise InputError(f"{path}: line {_HEADER_LINES + 1} names {', '.join(names)}; this is no CAMELS-US forcing")
    try:
        area = float(lines[2])
    except ValueError:
        raise InputError(f"{path}: line 3 is {lines[2]!r}, the basin's area in m² was expected") from None
    first_line = _HEADER_LINES + 2
    table = _numbers(path, _table(path, lines[_HEADER_LINES + 1], len(names), first_line), first_line)
    columns = {name: np.ascontiguousarray(table[:, place]) for place, name in enumerate(names) if name in FORCING}
    return area, _days(path, table[:, :3], first_line), columns


def _flow(path: Path, area: float) -> tuple[I64, dict[str, F64]]:
    rows = _table(path, _text(path), 6, 1)
    table = _numbers(path, rows[:, :5], 1)
    cfs = np.where(table[:, 4] < 0, np.nan, table[:, 4])
    estimated = rows[:, 5].fill_null("").str.ends_with(":e").cast(pl.Float64).to_numpy()
    mm = cfs * _CUBIC_FOOT * _DAY_S / area * _MM
    return _days(path, table[:, 1:4], 1), {"qobs": mm, "qobs_cfs": cfs, "estimated": estimated}


def _text(path: Path) -> bytes:
    """The bytes with one space between fields and none at the ends of lines. Raises `InputError`."""
    with open_bytes(path, "gz" if path.suffix == ".gz" else "none") as stream:
        data = stream.read()
    data = data.replace(b"\t", b" ").replace(b"\r\n", b"\n")
    if b"\r" in data:
        line = 1 + data.count(b"\n", 0, data.index(b"\r"))
        raise InputError(f"{path}: line {line}: a carriage return stands without a newline; end lines with LF or CRLF")
    return re.sub(rb"(?m)^ +| +$", b"", re.sub(rb" {2,}", b" ", data)).rstrip(b"\n") + b"\n"


def _plain(name: str) -> str:
    """A column's name without unit, in small letters."""
    return name.partition("(")[0].lower()


def _table(path: Path, rows: bytes, width: int, first_line: int) -> pl.DataFrame:
    """The fields of all rows as text."""
    try:
        table = pl.read_csv(rows, separator=" ", has_header=False, infer_schema=False, truncate_ragged_lines=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        said = str(error).partition("\n")[0]
        raise InputError(f"{path}: cannot be read from line {first_line} on ({said}); fetch it again") from error
    if table.width != width:
        raise InputError(f"{path}: line {first_line} has {table.width} fields, {width} were expected; fetch it again")
    return table


def _numbers(path: Path, table: pl.DataFrame, first_line: int) -> F64:
    """The fields as numbers, [rows, width]."""
    read = table.select(pl.all().cast(pl.Float64, strict=False))
    unread = np.flatnonzero(read.select(pl.any_horizontal(pl.all().is_null())).to_series().to_numpy())
    if len(unread):
        row = int(unread[0])
        raise InputError(f"{path}: line {first_line + row}: {table.row(row)!r} are not all numbers; correct it")
    return np.asarray(read.to_numpy(), np.float64)


def _days(path: Path, dates: F64, first_line: int) -> I64:
    """Days since 1970 of rows of year, month, day; each once, ascending."""
    year, month, day = dates.T.astype(np.int64)
    months = ((year - 1970) * 12 + np.clip(month, 1, 12) - 1).astype("datetime64[M]")
    first = months.astype("datetime64[D]")
    days = first.astype(np.int64) + day - 1
    length = ((months + np.timedelta64(1, "M")).astype("datetime64[D]") - first).astype(np.int64)
    wrong = (month < 1) | (month > 12) | (day < 1) | (day > length) | (np.diff(days, prepend=days[:1] - 1) <= 0)
    if wrong.any():
        row = int(np.argmax(wrong))
        told = "-".join(str(int(each)) for each in dates[row])
        raise InputError(f"{path}: line {first_line + row}: {told} is no day behind the one before; correct it")
    return np.asarray(days, np.int64)
