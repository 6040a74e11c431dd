"""Spread tables whose rows belong to many entities, so that any batch of entities can be read on its own.

Rows of a source file are gathered into pieces of about `_PIECE_ROWS`, sorted by entity, and written end to end:
`stage/spread/part-N.times` int64 and `part-N.values` float64 [rows, C]. `part-N.parquet` lists the runs: entity, first
row, rows. An entity's rows in source order are its runs in the order of files and positions. Memory is O(piece) and
O(runs).

A wide table has a time column and a column for each entity, and all its cells are values of one column of the series.
Its file is named after that column: `flow.csv` and `rain.csv` have the flow and the rain of each entity. With a target
and no features, every file holds the target, whatever its name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.arrays import F64, I64
from headrace.digest import canonical_json
from headrace.errors import InputError
from headrace.formats.dates import MISSING
from headrace.formats.partitions import partition_types
from headrace.formats.registry import stem_of_name
from headrace.formats.text_columns import as_text
from headrace.run.context import STAGE_DIRECTORY, RunContext, Task, TaskFiles
from headrace.series.arrays.axis import occurrences
from headrace.series.config import Series
from headrace.series.source_settings import FILE_NAME
from headrace.series.sources import (
    EntitySource,
    entity_source,
    first_unread,
    parse,
    parse_values,
    shards_of,
    tables,
    tell_time,
    times_of,
)
from headrace.series.store import publishing
from headrace.series.times import Observed

_PIECE_ROWS = 1 << 19
_RUNS = pa.schema([("entity", pa.string()), ("first_row", pa.int64()), ("rows", pa.int64())])


def _name(number: int, what: str) -> str:
    return f"{STAGE_DIRECTORY}/spread/part-{number:05d}.{what}"


@dataclass(frozen=True)
class _Rows:
    """Rows of several entities.

    entities: text [N].
    unread, untimed: messages about values and times that cannot be read, by entity.
    read: number of rows of the table that they come from.
    dropped: number of rows without an entity in use, by reason.
    """

    entities: pa.Array
    times: I64
    values: F64
    unread: dict[str, str]
    untimed: dict[str, str]
    read: int
    dropped: dict[str, int]


def _read_long(
    settings: Series, path: Path, name: str, wanted: pa.Array | None, partitions: Mapping[str, pa.DataType]
) -> Iterator[_Rows]:
    """Yield the rows of a long table, in pieces. wanted: entities; None for all."""
    read = 0
    for table in tables(settings, path, name, [settings.entity, settings.time, *settings.columns()], partitions):
        # null_values apply to values only: an entity may be called NA
        entities = as_text(table[settings.entity], (), f"{path}: column {settings.entity!r}")
        entities = entities.combine_chunks() if isinstance(entities, pa.ChunkedArray) else entities
        keep = np.asarray(entities.is_valid())
        if settings.null_entity == "error" and not keep.all():
            row = int(np.argmin(keep))
            where = f"{path}: row {read + row + 1}: {settings.entity}"
            raise InputError(f"{where} is missing: correct it, or give null_entity='drop'")
        dropped = {"null_entity": int((~keep).sum())}
        if wanted is not None:
            known = np.asarray(pc.is_in(entities, value_set=wanted))
            dropped["not_listed"] = int((keep & ~known).sum())
            keep = keep & known
        times, values, bad = parse(settings, settings.columns(), table, read, str(path))
        unread: dict[str, str] = {}
        for row in sorted(bad):
            if keep[row]:
                unread.setdefault(entities[row].as_py(), f"{path}: {bad[row]}")
        untimed: dict[str, str] = {}
        for row in np.flatnonzero(keep & (times == MISSING)).tolist():
            if entities[row].as_py() not in untimed:
                untimed[entities[row].as_py()] = f"{path}: {tell_time(settings, table, row, read)}"
        if not keep.all():  # avoid copying if all rows are kept
            entities, times, values = entities.filter(pa.array(keep)), times[keep], values[keep]
        yield _Rows(entities, times, values, unread, untimed, table.num_rows, dropped)
        read += table.num_rows


def _read_wide(
    settings: Series, path: Path, name: str, wanted: pa.Array | None, partitions: Mapping[str, pa.DataType]
) -> Iterator[_Rows]:
    """Yield the rows of a table with a column for each entity, whose cells are values of one column."""
    columns, column, read = settings.columns(), wide_column(settings, path), 0
    for table in tables(settings, path, name, None, partitions):
        known = [each for each in table.column_names if each != settings.time]
        names = known if wanted is None else sorted({*known}.intersection(wanted.to_pylist()))
        if settings.time not in table.column_names:
            shown = ", ".join(table.column_names[:12])
            raise InputError(f"{path}: has no column {settings.time!r}; it has {shown}; correct time")
        times = times_of(settings, table, read)
        untimed = first_unread(settings, path, table, times, read)
        size = max(1, _PIECE_ROWS // max(1, len(times)))  # entities per piece
        for begin in range(0, len(names), size):
            own = names[begin : begin + size]
            values, unread = np.full((len(own), len(times), len(columns)), np.nan), dict[str, str]()
            for at, each in enumerate(own):
                try:
                    parsed, bad = parse_values(settings, [each], table, read)
                except InputError as error:
                    unread[each] = f"{path}: {error}"
                    continue
                values[at, :, column] = parsed[:, 0]
                unread |= {each: f"{path}: {bad[min(bad)]}"} if bad else {}
            entities = pa.array(own, pa.large_string()).take(np.repeat(np.arange(len(own)), len(times)))
            told = {} if untimed is None else dict.fromkeys(own, untimed)
            rows = values.reshape(-1, len(columns))
            yield _Rows(entities, np.tile(times, len(own)), rows, unread, told, 0 if begin else len(times), {})
        read += len(times)


def open_source(
    settings: Series, context: RunContext, files: Sequence[tuple[Path, str]]
) -> tuple[EntitySource, Counter[str], list[str]]:
    """Open the source; also count rows of long tables without an entity in use, and list tables without rows."""
    if settings.entity == FILE_NAME and settings.reader != "wide":
        return entity_source(settings, files), Counter(), []
    shards = shards_of(settings, files)
    types = partition_types(name for _, name in shards)
    tasks = [
        Task(name, path.stat().st_size, partial(_spread, settings, path, name, number, types), [path])
        for number, (path, name) in enumerate(shards)
    ]
    receipts = context.stage("spread", tasks, durable=False)
    left_out = sum((Counter(receipt.result["dropped"]) for receipt in receipts), Counter[str]())
    empty = [receipt.subject for receipt in receipts if not receipt.result["rows_read"]]
    holds = [wide_column(settings, path) for path, _ in shards] if settings.reader == "wide" else []
    return _spread_source(settings, context.run, len(shards), holds), left_out, empty


def _spread(
    settings: Series, path: Path, name: str, number: int, partitions: Mapping[str, pa.DataType], files: TaskFiles
) -> dict[str, Any]:
    """Spread one source file. A row whose time or values cannot be read fails its entity, not the file.

    partitions: types of columns in file names.

    Raises `InputError` if the file cannot be read at all, or a row has no entity and that is an error.
    """
    read_rows = _read_wide if settings.reader == "wide" else _read_long
    listed = settings.listed()
    wanted = None if listed is None else pa.array(listed, pa.large_string())
    dropped: Counter[str] = Counter()
    bad: dict[str, dict[str, str]] = {"values": {}, "time": {}}
    runs = [_RUNS.empty_table()]
    piece: list[tuple[pa.Array, I64, F64]] = []
    held = written = read = 0
    with (
        publishing(files, _name(number, "times")) as times_file,
        publishing(files, _name(number, "values")) as values_file,
    ):

        def flush() -> None:
            """Write the rows of a piece sorted by entity, with each entity's rows in source order."""
            nonlocal held, written
            entities, times, values = zip(*piece, strict=True)
            encoded = pa.concat_arrays(entities).dictionary_encode()
            codes = encoded.indices.to_numpy()
            order = np.argsort(codes, kind="stable")
            times_file.write(np.concatenate(times)[order].data)
            values_file.write(np.concatenate(values)[order].data)
            counts = np.bincount(codes, minlength=len(encoded.dictionary))
            columns = [encoded.dictionary.cast(pa.string()), np.cumsum(counts) - counts + written, counts]
            runs.append(pa.table(columns, schema=_RUNS))
            piece.clear()
            held, written = 0, written + held

        for rows in read_rows(settings, path, name, wanted, partitions):
            dropped.update(rows.dropped)
            for what, told in (("values", rows.unread), ("time", rows.untimed)):
                bad[what] = told | bad[what]  # the first message counts
            piece.append((rows.entities, rows.times, rows.values))
            read += rows.read
            held += len(rows.times)
            if held >= _PIECE_ROWS:
                flush()
        if held:
            flush()
    with publishing(files, _name(number, "parquet")) as file:
        pq.write_table(pa.concat_tables(runs), file, compression="zstd")
    files.write(_name(number, "json"), canonical_json(bad))
    return {"rows_read": read, "dropped": dict(sorted(dropped.items()))}


def wide_column(settings: Series, path: Path) -> int:
    """Return the index, in `Series.columns()`, of the column that a wide file holds. Raises `InputError`."""
    columns, stem = settings.columns(), stem_of_name(path.name)
    if len(columns) == 1:
        return 0
    if stem not in columns:
        raise InputError(
            f"{path}: a wide table is named as the column that it holds, one of {', '.join(columns)}; rename it, or "
            f"leave it out of source"
        )
    return columns.index(stem)


def joined(times: I64, values: F64, holds: I64) -> tuple[I64, F64]:
    """Join rows of equal time; each row has a value in only one column, and contributes it to the row of its time.

    holds: the column of each row, int64 [N]. A time that repeats within a column stays repeated, so that nothing is
    lost. Rows come in time order.
    """
    occurrence = occurrences(times, holds)
    order = np.lexsort((occurrence, times))
    own, again = times[order], occurrence[order]
    begins = np.append(True, (own[1:] != own[:-1]) | (again[1:] != again[:-1]))[: len(own)]
    made = np.full((int(begins.sum()), values.shape[1]), np.nan)
    made[np.cumsum(begins) - 1, holds[order]] = values[order, holds[order]]
    return own[begins], made


def _spread_source(settings: Series, run: Path, parts: int, holds: Sequence[int]) -> EntitySource:
    """Open `parts` spread files; the source includes requested entities that have no rows.

    holds: for wide tables, the column that each part holds; rows of one time are then joined into one.
    """
    files = (run / _name(number, "parquet") for number in range(parts))
    runs = pl.concat([pl.read_parquet(path).with_columns(part=pl.lit(number)) for number, path in enumerate(files)])
    runs = runs.sort("entity", maintain_order=True)  # keeps an entity's runs in source order
    names = sorted({*runs["entity"].unique(), *(settings.listed() or ())})
    begins, ends = (
        runs["entity"].search_sorted(pl.Series(names, dtype=pl.String), side).to_numpy() for side in ("left", "right")
    )
    bad: dict[str, dict[str, str]] = {"values": {}, "time": {}}
    for number in range(parts):
        for what, told in json.loads((run / _name(number, "json")).read_bytes()).items():
            bad[what] = told | bad[what]  # the first file's message counts
    width = len(settings.columns())

    def rows(number: int, columns: Sequence[str]) -> Observed:
        name = names[number]
        if name in bad["values"]:
            raise InputError(bad["values"][name])
        times, values, held = [np.empty(0, np.int64)], [np.empty((0, width))], [np.empty(0, np.int64)]
        for _, first, count, part in runs[int(begins[number]) : int(ends[number])].iter_rows():
            times.append(np.fromfile(run / _name(part, "times"), np.int64, count, offset=first * 8))
            flat = np.fromfile(run / _name(part, "values"), np.float64, count * width, offset=first * width * 8)
            values.append(flat.reshape(count, width))
            held.append(np.full(count, holds[part] if holds else 0, np.int64))
        all_times, all_values = np.concatenate(times), np.concatenate(values)
        if holds:
            all_times, all_values = joined(all_times, all_values, np.concatenate(held))
        return Observed(all_times, all_values[:, : len(columns)], bad["time"].get(name))

    return EntitySource(names, rows)
