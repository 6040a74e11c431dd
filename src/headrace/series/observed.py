"""Read the rows of one entity as they are: times and values, nothing cleaned yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import F64, I64
from headrace.errors import InputError
from headrace.formats import parquet
from headrace.formats.date_words import advice
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.detect import Kind, detect, holds_nothing, kind_of_name
from headrace.formats.open_parquet import open_file
from headrace.formats.schema import hint, is_text
from headrace.formats.shard import column_name
from headrace.formats.source import read_chunks, survey
from headrace.formats.text_columns import nulled
from headrace.series.config import Series


@dataclass(frozen=True)
class Observed:
    """The rows of one entity in source order.

    times: microseconds, `MISSING` where there is none or it cannot be read: int64 [N]; values: NaN where missing:
    float64 [N, C], columns as `Series.columns()`. bad_time: the first row without a time, told.
    """

    times: I64
    values: F64
    bad_time: str | None = None

    def known_times(self) -> I64:
        """Select the times that could be read."""
        return np.asarray(self.times[self.times != MISSING], np.int64)


@dataclass(frozen=True)
class Parsed:
    """A chunk of rows, as in `Observed`. bad: rows with a value that is no number → what is wrong with them."""

    times: I64
    values: F64
    bad: dict[int, str]


def read_file(settings: Series, path: Path, name: str, columns: Sequence[str]) -> Observed:
    """Read a file that is one entity, with these columns of values.

    Raises `InputError` if it cannot be read, or a value is no number.
    """
    times, values, bad_time, first_row = [], [], None, 0
    for table in tables(path, name, [settings.time, *columns]):
        parsed = parse(settings, columns, table, first_row)
        if parsed.bad:
            raise InputError(f"{path}: {parsed.bad[min(parsed.bad)]}")
        if bad_time is None and (parsed.times == MISSING).any():
            row = int(np.argmax(parsed.times == MISSING))
            bad_time = f"{path}: {tell_time(settings, table, row, first_row)}"
        times.append(parsed.times)
        values.append(parsed.values)
        first_row += len(parsed.times)
    if len(times) == 1:
        return Observed(times[0], values[0], bad_time)
    empty = np.empty(0, np.int64), np.empty((0, len(columns)))
    return Observed(np.concatenate([empty[0], *times]), np.concatenate([empty[1], *values]), bad_time)


def tables(path: Path, name: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Read some columns of a data file, in pieces; none of an empty file. Raises `InputError` if a column is absent."""
    kind = kind_of_name(path.name)
    if kind is None or kind != Kind("parquet", "none"):
        kind = detect(path)
    if holds_nothing(path, kind):
        return
    if kind.format == "parquet":  # opened once: of small files that is most of the work
        with open_file(path, kind) as file:
            raw = {column_name(each): each for each in file.schema_arrow.names}
            _all_there(path, columns, raw)
            if file.metadata.num_rows <= parquet.CHUNK_ROWS:
                yield file.read([raw[each] for each in columns], use_threads=False).rename_columns(list(columns))
                return
    shard = survey(path, name)
    if shard.content == "nothing":
        return
    _all_there(path, columns, shard.schema.names)
    for chunk in read_chunks(shard, columns):
        yield chunk.table(columns)


def _all_there(path: Path, columns: Sequence[str], present: Sequence[str] | dict[str, str]) -> None:
    for each in columns:
        if each not in present:
            known = list(present)
            shown = ", ".join(known[:12]) + (f", … ({len(known)} columns)" if len(known) > 12 else "")
            raise InputError(f"{path}: has no column {each!r}; it has {shown}{hint(known)}")


def parse(settings: Series, columns: Sequence[str], table: pa.Table, first_row: int) -> Parsed:
    """Parse times and values of some rows. Errors name the row, counted from 1 behind `first_row`."""
    times = _times(table[settings.time], settings)
    values = np.empty((table.num_rows, len(columns)))
    bad: dict[int, str] = {}
    for place, name in enumerate(columns):
        try:
            unread = _values(table[name], settings, values[:, place])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, TypeError):
            kind = table[name].type
            raise InputError(f"column {name!r} is {kind}, which is no number; name a column of numbers") from None
        for row in unread:
            bad.setdefault(row, _tell_value(table, name, row, first_row))
    for number in settings.missing_numbers:
        values[values == number] = np.nan
    infinite = np.isinf(values)
    if infinite.any():
        for row, place in zip(*(each.tolist() for each in np.nonzero(infinite)), strict=True):
            bad.setdefault(row, _tell_value(table, columns[place], row, first_row))
    return Parsed(times, values, bad)


def _tell_value(table: pa.Table, name: str, row: int, first_row: int) -> str:
    return (
        f"row {first_row + row + 1}: {name} is {table[name][row].as_py()!r}, which is no finite number; correct it, or "
        f"name it in null_values or missing_numbers"
    )


def tell_time(settings: Series, table: pa.Table, row: int, first_row: int) -> str:
    """Say what is wrong with the time of a row that has none."""
    value = table[settings.time][row].as_py()
    why = "which is missing; correct it"
    if value is not None and value != "":
        form = " or ".join(settings.time_format)
        why = f"which is no time of time_format: {advice(value, form, 'time_format')}"
    return f"row {first_row + row + 1}: {settings.time} is {value!r}, {why}, or give bad_rows='drop'"


def _times(column: pa.ChunkedArray, settings: Series) -> I64:
    kind = column.type
    if pa.types.is_timestamp(kind):  # says itself what it counts
        return parse_dates(column, "auto").micros
    column = nulled(column, ("",))
    micros = np.full(len(column), MISSING)
    for form in settings.time_format:
        micros = np.where(micros == MISSING, parse_dates(column, form).micros, micros)
        if not (micros == MISSING).any():
            break
    return np.asarray(micros, np.int64)


def _values(column: pa.ChunkedArray, settings: Series, into: F64) -> list[int]:
    """Write a column as float64 with NaN for missing; the rows whose text is no number."""
    if not is_text(column.type):
        if pa.types.is_temporal(column.type):
            raise TypeError(f"{column.type} is no number")
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        if not pa.types.is_floating(column.type):
            column = column.cast(pa.float64(), safe=False)
        into[:] = column.to_numpy()  # null becomes NaN
        return []
    column = nulled(column, ("", *settings.null_values))
    read = pl.Series("value", column, dtype=pl.String).str.strip_chars().cast(pl.Float64, strict=False)
    into[:] = read.fill_null(np.nan).to_numpy()
    if read.null_count() == column.null_count:
        return []
    present = np.asarray(pc.is_valid(column).to_numpy(), np.bool_)
    return list(np.flatnonzero(present & read.is_null().to_numpy()).tolist())
