"""Spread tables whose rows belong to many entities, so that any batch of entities can be read on
its own.

Rows of a source file are gathered into chunks of about `_CHUNK_ROWS`, sorted by entity, and written
end to end: `stage/spread/part-N.times` int64 and `part-N.values` float64 [rows, C].
`part-N.parquet` lists the runs: entity, first row, rows. An entity's rows in source order are its
runs in the order of files and positions. Memory is O(chunk) and O(runs).
"""

from __future__ import annotations

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

from headrace.arrays import F64, I64, Bools
from headrace.digest import canonical_json
from headrace.errors import InputError, setting
from headrace.formats.dates import MISSING
from headrace.formats.partitions import partition_types
from headrace.formats.text_columns import as_text
from headrace.gate.json import read_object
from headrace.gate.parquet import read_run_table
from headrace.run.context import STAGE_DIRECTORY, RunContext, Task, TaskFiles
from headrace.series.reasons import NOT_LISTED, NULL_ENTITY
from headrace.series.settings import Series
from headrace.series.sources import (
    EntitySource,
    entity_source,
    misread_period,
    parse,
    shards_of,
    tables,
    unread_time,
    unread_value,
)
from headrace.series.store import publishing
from headrace.series.times import Observed

_CHUNK_ROWS = 1 << 19
_RUNS = pa.schema([("entity", pa.string()), ("first_row", pa.int64()), ("rows", pa.int64())])


def _name(number: int, suffix: str) -> str:
    return f"{STAGE_DIRECTORY}/spread/part-{number:05d}.{suffix}"


@dataclass(frozen=True)
class _EntityRows:
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


@dataclass(frozen=True)
class _SpreadShard:
    """A source file to spread.

    types: types of columns in file names.
    """

    settings: Series
    path: Path
    name: str
    types: Mapping[str, pa.DataType]

    def rows(self) -> Iterator[_EntityRows]:  # noqa: PLR0914 - the columns of a row and where an entity begins
        """Yield the rows of requested entities, in chunks."""
        settings = self.settings
        key = settings.entity
        requested = None
        if settings.requested_entities is not None:
            requested = pa.array(settings.requested_entities, pa.large_string())
        read = 0
        names = [key, settings.time_column, *settings.columns]
        for table in tables(settings, self.path, self.name, names, self.types):
            # null_values apply to values only: an entity may be called NA
            entities = as_text(table[key], (), key, self.path)
            if isinstance(entities, pa.ChunkedArray):
                entities = entities.combine_chunks()
            keep = np.asarray(entities.is_valid())
            if settings.bad_rows == "error" and not keep.all():
                row = read + int(np.argmin(keep)) + 1
                raise InputError(
                    "missing",
                    path=self.path,
                    row=row,
                    column=key,
                    remedy=f"correct it, or give {setting('bad_rows', 'drop')}",
                )
            dropped = {NULL_ENTITY.word: int((~keep).sum())}
            if requested is not None:
                listed = np.asarray(pc.is_in(entities, value_set=requested))
                dropped[NOT_LISTED.word] = int((keep & ~listed).sum())
                keep = keep & listed
            parsed = parse(settings, settings.columns, table, read, str(self.path))
            times = parsed.times
            values = parsed.values
            unread: dict[str, str] = {}
            for row in sorted(parsed.unread):
                entity = entities[row].as_py()
                if keep[row] and entity not in unread:
                    error = unread_value(settings, table, parsed.unread, read, row)
                    unread[entity] = error.at(path=self.path).marked
            untimed = self._untimed(table, read, entities, keep & (times == MISSING))
            if not keep.all():  # avoid copying if all rows stay
                entities = entities.filter(pa.array(keep))
                times = times[keep]
                values = values[keep]
            yield _EntityRows(entities, times, values, unread, untimed, table.num_rows, dropped)
            read += table.num_rows

    def _untimed(
        self, table: pa.Table, read: int, entities: pa.Array, without_time: Bools
    ) -> dict[str, str]:
        """Return the message about the first row without a time of each entity.

        read: the rows of the file before this table.
        """
        untimed: dict[str, str] = {}
        unread = np.flatnonzero(without_time)
        if not len(unread):
            return untimed
        misread = misread_period(self.settings, table, unread)
        for row in unread.tolist():
            entity = entities[row].as_py()
            if entity not in untimed:
                named = row if misread is None else misread
                error = unread_time(self.settings, table, named, read)
                untimed[entity] = error.at(path=self.path).marked
        return untimed


@dataclass(frozen=True)
class OpenedSource:
    """A source that can be read entity by entity.

    lost_rows: rows of long tables without an entity in use, by reason.
    empty: names of tables without rows.
    """

    source: EntitySource
    lost_rows: Counter[str]
    empty: list[str]


def open_source(
    settings: Series, context: RunContext, files: Sequence[tuple[Path, str]]
) -> OpenedSource:
    """Open the source; tables of many entities are spread first."""
    if settings.entity_is_file:
        return OpenedSource(entity_source(settings, files), Counter(), [])
    shards = shards_of(files)
    types = partition_types(name for _, name in shards)
    tasks = []
    for number, (path, name) in enumerate(shards):
        shard = _SpreadShard(settings, path, name, types)
        tasks.append(Task(name, path.stat().st_size, partial(_spread, shard, number), [path]))
    receipts = context.stage("spread", tasks, durable=False)
    lost = Counter[str]()
    for receipt in receipts:
        lost += Counter(receipt.extra["dropped"])
    empty = [receipt.subject for receipt in receipts if not receipt.rows_in]
    source = _spread_source(settings, context.run, len(shards))
    return OpenedSource(source, lost, empty)


def _spread(shard: _SpreadShard, number: int, files: TaskFiles) -> dict[str, Any]:
    """Spread one source file. A row whose time or values cannot be read fails its entity, not the
    file.

    Raises `InputError` if the file cannot be read at all, or a row has no entity and that is an
    error.
    """
    dropped: Counter[str] = Counter()
    bad: dict[str, dict[str, str]] = {"values": {}, "time": {}}
    runs = [_RUNS.empty_table()]
    chunk: list[_EntityRows] = []
    pending = 0
    written = 0
    read = 0
    with (
        publishing(files, _name(number, "times")) as times_file,
        publishing(files, _name(number, "values")) as values_file,
    ):

        def flush() -> None:
            """Write the rows of a chunk sorted by entity, with each entity's rows in source
            order.
            """
            nonlocal pending, written
            entities = pa.concat_arrays([rows.entities for rows in chunk]).dictionary_encode()
            codes = entities.indices.to_numpy()
            order = np.argsort(codes, kind="stable")
            times_file.write(np.concatenate([rows.times for rows in chunk])[order].data)
            values_file.write(np.concatenate([rows.values for rows in chunk])[order].data)
            counts = np.bincount(codes, minlength=len(entities.dictionary))
            starts = np.cumsum(counts) - counts + written
            names = entities.dictionary.cast(pa.string())
            runs.append(pa.table([names, starts, counts], schema=_RUNS))
            chunk.clear()
            written += pending
            pending = 0

        for rows in shard.rows():
            dropped.update(rows.dropped)
            # The first message of an entity counts.
            bad["values"] = rows.unread | bad["values"]
            bad["time"] = rows.untimed | bad["time"]
            chunk.append(rows)
            read += rows.read
            pending += len(rows.times)
            if pending >= _CHUNK_ROWS:
                flush()
        if pending:
            flush()
    with publishing(files, _name(number, "parquet")) as file:
        pq.write_table(pa.concat_tables(runs), file, compression="zstd")
    files.write(_name(number, "json"), canonical_json(bad))
    return {"rows_in": read, "dropped": dict(sorted(dropped.items()))}


def _spread_source(settings: Series, run: Path, parts: int) -> EntitySource:
    """Open `parts` spread files; the source includes requested entities that have no rows."""
    tables = []
    bad: dict[str, dict[str, str]] = {"values": {}, "time": {}}
    for part in range(parts):
        table = pl.DataFrame(read_run_table(run / _name(part, "parquet"), _RUNS))
        tables.append(table.with_columns(part=pl.lit(part)))
        messages = read_object(run / _name(part, "json"))
        for role in bad:
            bad[role] = messages[role] | bad[role]  # the first file's message counts
    # Keeps an entity's runs in source order.
    runs = pl.concat(tables).sort("entity", maintain_order=True)
    names = sorted({*runs["entity"].unique(), *(settings.requested_entities or ())})
    keys = pl.Series(names, dtype=pl.String)
    starts = runs["entity"].search_sorted(keys, "left").to_list()
    ends = runs["entity"].search_sorted(keys, "right").to_list()
    width = len(settings.columns)

    def rows(number: int, requested: Sequence[str]) -> Observed:
        name = names[number]
        if name in bad["values"]:
            raise InputError(bad["values"][name])
        times = [np.empty(0, np.int64)]
        values = [np.empty((0, width))]
        for _, first, count, part in runs[starts[number] : ends[number]].iter_rows():
            path = run / _name(part, "times")
            times.append(np.fromfile(path, np.int64, count, offset=first * 8))
            path = run / _name(part, "values")
            flat = np.fromfile(path, np.float64, count * width, offset=first * width * 8)
            values.append(flat.reshape(count, width))
        bad_time = InputError(bad["time"][name]) if name in bad["time"] else None
        all_values = np.concatenate(values)
        return Observed(np.concatenate(times), all_values[:, : len(requested)], bad_time)

    return EntitySource(names, rows)


def read_in_memory(settings: Series, files: Sequence[tuple[Path, str]]) -> EntitySource:
    """Read a source without writing anything: tables of many entities whole, O(rows) of memory."""
    if settings.entity_is_file:
        return entity_source(settings, files)
    shards = shards_of(files)
    types = partition_types(name for _, name in shards)
    parts: list[_EntityRows] = []
    bad: dict[str, dict[str, str]] = {"values": {}, "time": {}}
    for path, name in shards:
        for rows in _SpreadShard(settings, path, name, types).rows():
            parts.append(rows)
            bad["values"] = rows.unread | bad["values"]
            bad["time"] = rows.untimed | bad["time"]
    return _grouped(settings, parts, bad)


def _grouped(
    settings: Series, parts: Sequence[_EntityRows], bad: Mapping[str, Mapping[str, str]]
) -> EntitySource:
    """Group rows by entity. bad: of `_spread`."""
    row_of = _rows_by_entity([rows.entities for rows in parts])
    times = np.concatenate([np.empty(0, np.int64), *(rows.times for rows in parts)])
    width = len(settings.columns)
    values = np.concatenate([np.empty((0, width)), *(rows.values for rows in parts)])
    names = list(row_of)

    def read(number: int, requested: Sequence[str]) -> Observed:
        name = names[number]
        if name in bad["values"]:
            raise InputError(bad["values"][name])
        at = row_of[name]
        bad_time = InputError(bad["time"][name]) if name in bad["time"] else None
        return Observed(times[at], values[at, : len(requested)], bad_time)

    return EntitySource(names, read)


def _rows_by_entity(parts: Sequence[pa.Array]) -> dict[str, I64]:
    """Return the rows of each entity, ascending, in the order of their names."""
    texts = [pa.array([], pa.large_string()), *(part.cast(pa.large_string()) for part in parts)]
    rows = pl.DataFrame({"entity": pl.Series(pa.concat_arrays(texts))}).with_row_index("row")
    groups = rows.group_by("entity", maintain_order=True).agg(pl.col("row").cast(pl.Int64))
    return {name: np.array(numbers) for name, numbers in groups.sort("entity").iter_rows()}
