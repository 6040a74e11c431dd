"""Read the text files of CAMELS-US.

A basin has two text files. A forcing file begins with latitude, elevation (m) and area (m²), one
per line, then names, then rows with year, month, day and hour; names differ between products in
case, unit and separator. A streamflow file has no header: gauge, year, month, day, cubic feet per
second, quality flag; -999 is missing. The columns are

    dayl, prcp, srad, swe, tmax, tmin, vp
                  the forcing's, in its units (s, mm/day, W/m2, mm, C, C, Pa)
    qobs          streamflow in mm/day over the basin's area
    qobs_cfs      streamflow in cubic feet per second
    estimated     1 if the flag marks an estimate (A:e), else 0

Days that only one of the files has become rows with missing values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from headrace.arrays import F64, I64
from headrace.errors import InputError
from headrace.formats.registry import open_bytes

if TYPE_CHECKING:
    from headrace.series.settings import Series

FORCING_NAME = re.compile(r"(\d+)_lump_\w+_forcing_leap\.txt(\.gz)?")
FLOW_NAME = re.compile(r"(\d+)_streamflow_qc\.txt(\.gz)?")
FORCING = ("dayl", "prcp", "srad", "swe", "tmax", "tmin", "vp")
FLOW = ("qobs", "qobs_cfs", "estimated")

_HEADER_LINES = 4
_DATE = ("year", "mnth", "day")
_CUBIC_FOOT = 0.3048**3
_DAY_S = 86_400
_MM = 1_000


def basin_files(root: Path, forcing: str, *, may_lack_flow: bool) -> list[tuple[Path, str]]:
    """Find the files of all basins below the data set's root, with names relative to it.

    Raises `InputError`.
    """
    named = []
    for directory, pattern in (
        (f"basin_mean_forcing/{forcing}", FORCING_NAME),
        ("usgs_streamflow", FLOW_NAME),
    ):
        files = []
        for path in (root / directory).rglob("*.txt*"):
            if pattern.fullmatch(path.name):
                files.append(path)
        if not files and (directory != "usgs_streamflow" or not may_lack_flow):
            raise InputError(
                "holds no files of CAMELS-US",
                path=root / directory,
                remedy="give the data set's root as source",
            )
        named += [(path, path.relative_to(root).as_posix()) for path in files]
    return named


def read_basin(settings: Series, paths: Sequence[Path], columns: Sequence[str]) -> tuple[I64, F64]:
    """Read times and the requested columns of a basin for all days in either of its files.

    Raises `InputError`.
    """
    # an ungauged basin has none
    flow_path = next((path for path in paths if "streamflow" in path.name), None)
    forcing_path = next(path for path in paths if path != flow_path)
    area, forcing = _forcing(forcing_path)
    if flow_path is None:
        days = forcing.with_columns(pl.lit(None, pl.Float64).alias(name) for name in FLOW)
    else:
        names = ["gauge", *_DATE, "qobs_cfs", "flag"]
        table = _table(flow_path, _text(flow_path), names, names[:-1], 1)
        cfs = np.where(table["qobs_cfs"] < 0, np.nan, table["qobs_cfs"])
        # in numpy, because polars multiplies by the reciprocal
        mm = cfs * _CUBIC_FOOT * _DAY_S / area * _MM
        estimated = table["flag"].fill_null("").str.ends_with(":e").cast(pl.Float64)
        flow = pl.DataFrame(
            {"time": table["time"], "qobs": mm, "qobs_cfs": cfs, "estimated": estimated}
        )
        days = forcing.join(flow, on="time", how="full", coalesce=True).sort("time")
    for name in columns:
        if name not in (*FORCING, *FLOW):
            known = ", ".join(column for column in days.columns if column != "time")
            raise InputError(
                "not in CAMELS-US",
                path=forcing_path,
                column=name,
                remedy=f"choose one of {known}",
            )
    values = np.array(days.select(columns).to_numpy(), np.float64).reshape(len(days), len(columns))
    for number in settings.missing_numbers:
        values[values == number] = np.nan
    return days["time"].dt.epoch("us").to_numpy(), values


def _forcing(path: Path) -> tuple[float, pl.DataFrame]:
    """Return the area in m², and the forcing columns by time."""
    lines = _text(path).split(b"\n", _HEADER_LINES)
    if not lines[_HEADER_LINES:] or not lines[-1]:
        raise InputError(
            f"has no rows after its {_HEADER_LINES} header lines",
            path=path,
            remedy="fetch it again",
        )
    header = lines[_HEADER_LINES - 1].decode("latin-1").split()
    names = [word.partition("(")[0].lower() for word in header]  # without units
    if names[:4] != [*_DATE, "hr"] or set(names[4:]) != set(FORCING):
        raise InputError(
            f"it names {', '.join(names)}, which are not those of a CAMELS-US forcing",
            path=path,
            row=f"line {_HEADER_LINES}",
            remedy="give the data set's own files",
        )
    try:
        area = float(lines[2])
    except ValueError:
        raise InputError(
            "not the basin's area in m²",
            path=path,
            row="line 3",
            value=lines[2].decode("latin-1"),
            remedy="fetch it again",
        ) from None
    return area, _table(path, lines[-1], names, names, _HEADER_LINES + 1).select("time", *names[4:])


def _text(path: Path) -> bytes:
    """Return the bytes with one space between fields and none at line ends. Raises `InputError`."""
    with open_bytes(path, "gz" if path.suffix == ".gz" else "none") as stream:
        data = stream.read()
    data = data.replace(b"\t", b" ").replace(b"\r\n", b"\n")
    if b"\r" in data:
        line = 1 + data.count(b"\n", 0, data.index(b"\r"))
        raise InputError(
            "a carriage return without a newline",
            path=path,
            row=f"line {line}",
            remedy="end lines with LF or CRLF",
        )
    return re.sub(rb"(?m)^ +| +$", b"", re.sub(rb" {2,}", b" ", data)).rstrip(b"\n") + b"\n"


def _table(
    path: Path, rows: bytes, names: Sequence[str], numbers: Sequence[str], first_line: int
) -> pl.DataFrame:
    """Return the columns of all rows, `numbers` as float64 and the others as text, with the day's
    time as `time`.
    """
    try:
        text = pl.read_csv(
            rows, separator=" ", has_header=False, infer_schema=False, truncate_ragged_lines=False
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"cannot be read from here on ({reason})",
            path=path,
            row=f"line {first_line}",
            remedy="fetch it again",
        ) from error
    if text.width != len(names):
        raise InputError(
            f"it has {text.width} fields, {len(names)} were expected",
            path=path,
            row=f"line {first_line}",
            remedy="fetch it again",
        )
    text.columns = list(names)
    table = text.with_columns(pl.col(numbers).cast(pl.Float64, strict=False))
    for row in (
        table.with_row_index("row")
        .filter(pl.any_horizontal(pl.col(numbers).is_null()))["row"]
        .head(1)
    ):
        raise InputError(
            "not all fields are numbers",
            path=path,
            row=f"line {first_line + row}",
            value=text.row(row),
            remedy="correct it",
        )
    date = pl.concat_str(pl.col(_DATE).cast(pl.Int64), separator="-")
    table = table.with_columns(
        date=date, time=date.str.to_datetime("%Y-%m-%d", time_unit="us", strict=False)
    )
    wrong = table["time"].is_null() | (table["time"].diff().dt.total_days() <= 0)
    for row in wrong.fill_null(False).arg_true().head(1):
        raise InputError(
            "not a day after the one before",
            path=path,
            row=f"line {first_line + row}",
            value=table["date"][row],
            remedy="correct it",
        )
    return table
