"""A first look at the files of a source: columns, what they hold, how much is missing. From a few files and rows.

Files are taken evenly over the sorted names, so that the same source is seen the same way each time. Text that is all
numbers counts as numbers, text that is all times as times: a CSV has no other way to hold them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.errors import SettingsError
from headrace.formats.listing import list_files
from headrace.formats.schema import is_text
from headrace.formats.source import read_chunks, survey
from headrace.formats.typed import nulled
from headrace.recipes.temporal_split.dates import MISSING, parse_dates

Kind = Literal["number", "time", "text", "other"]

FILES, ROWS = 16, 1 << 18  # that are looked at: of files, of rows in each
NULLS = ("NA",)

_YEARS = 1600, 2400  # numbers that would be times of other years are numbers

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
    "epoch_s",
    "epoch_ms",
)


@dataclass(frozen=True)
class Column:
    """What a column holds in the rows that were looked at. in_files: of those looked at; missing: a share of rows.

    time_format: of a time, None where its type says it.
    """

    name: str
    kind: Kind
    in_files: int
    missing: float
    time_format: str | None = None


@dataclass(frozen=True)
class Look:
    """A source. names and bytes: of all its files; tables: (name, first rows) of those looked at."""

    source: tuple[str, ...]
    names: list[str]
    bytes: int
    tables: list[tuple[str, pa.Table]]
    columns: dict[str, Column]

    def everywhere(self, kind: Kind) -> list[str]:
        """The columns of this kind that all files have, in file order."""
        return [each.name for each in self.columns.values() if each.kind == kind and each.in_files == len(self.tables)]


def look(source: Sequence[str | Path]) -> Look:
    """Look at a source. Raises `InputError` where there are no files or one cannot be read."""
    listing = list_files(source)
    chosen = sorted({int(place) for place in np.linspace(0, len(listing.names) - 1, FILES).round()})
    tables = [(listing.names[place], first_rows(listing.path(place), listing.names[place])) for place in chosen]
    names = list(dict.fromkeys(name for _, table in tables for name in table.column_names))
    columns = {
        name: _column(name, [table[name] for _, table in tables if name in table.column_names]) for name in names
    }
    return Look(tuple(map(str, source)), listing.names, int(listing.sizes.sum()), tables, columns)


def known(name: str, among: Iterable[str], what: str) -> str:
    """The name, if it is among these. Raises `SettingsError` with the nearest one."""
    names = list(among)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1)
    some = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    hint = f"did you mean {near[0]!r}?" if near else f"there are {some}"
    raise SettingsError(f"{what} {name!r} is no column of the source; {hint}")


def number_share(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """The column as float64, null where missing; None if it holds anything else."""
    try:
        if is_text(column.type):
            text = pl.Series("x", nulled(column, ("", *NULLS)), dtype=pl.String).str.strip_chars()
            read = text.cast(pl.Float64, strict=False)
            return None if read.null_count() > text.null_count() else pa.chunked_array([read.to_arrow()])
        if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
            return None
        return column.cast(pa.float64(), safe=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pl.exceptions.PolarsError):
        return None


def time_format(columns: Sequence[pa.ChunkedArray]) -> str | None:
    """The form that all values of these columns are times in; None if there is none, or no value at all."""
    for form in TIME_FORMATS:
        if all(_is_time(column, form) for column in columns) and any(len(each) > each.null_count for each in columns):
            return form
    return None


def _is_time(column: pa.ChunkedArray, form: str) -> bool:
    kind = column.type
    typed = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    if typed or not is_text(kind):
        if typed != (form == "iso") or pa.types.is_boolean(kind) or pa.types.is_floating(kind):
            return False
        if not typed and form not in ("yyyymmdd", "epoch_s", "epoch_ms"):
            return False
    dates = parse_dates(nulled(column, ("",)), form)
    found = dates.micros[dates.micros != MISSING]
    years = found.astype("datetime64[us]").astype("datetime64[Y]").astype(np.int64) + 1970
    if not len(found) or dates.unreadable.any():
        return False
    return bool(years.min() > _YEARS[0] and years.max() < _YEARS[1])


def _column(name: str, parts: Sequence[pa.ChunkedArray]) -> Column:
    rows = max(1, sum(len(part) for part in parts))
    absent = sum(nulled(part, ("", *NULLS)).null_count if is_text(part.type) else part.null_count for part in parts)
    form = time_format(parts) if all(is_text(part.type) or _is_typed_time(part) for part in parts) else None
    if form is not None and form not in ("yyyymmdd", "epoch_s", "epoch_ms"):
        return Column(name, "time", len(parts), absent / rows, form if is_text(parts[0].type) else None)
    numbers = [number_share(part) for part in parts]
    if all(each is not None for each in numbers):
        kind: Kind = "number"
        absent += sum(
            int(np.isnan(np.asarray(each.drop_null().to_numpy(), np.float64)).sum())
            for each in numbers
            if each is not None
        )
    else:
        kind = "text" if any(is_text(part.type) for part in parts) else "other"
    return Column(name, kind, len(parts), absent / rows)


def _is_typed_time(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_timestamp(column.type) or pa.types.is_date(column.type))


def first_rows(path: Path, name: str) -> pa.Table:
    """The first `ROWS` rows of a file, all columns."""
    shard = survey(path, name)
    held: list[pa.Table] = []
    for chunk in read_chunks(shard):
        held.append(chunk.table(shard.schema.names))
        if sum(each.num_rows for each in held) >= ROWS:
            break
    return pa.concat_tables(held).slice(0, ROWS) if held else shard.schema.empty_table()
