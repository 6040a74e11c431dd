"""Gather features, and the rows that need them, by partition of their entities.

Entities are numbered in the order of their hashes, and a partition is a range of numbers. Features of entities without
rows are left out.

A feature is gathered as its keys: its entity, its times, and its position in its file. Its values are fetched in a
second pass over the file, once its partition has found that a row can get them.

A piece is the file of one source shard. For each stretch of its rows it holds a record batch for each partition. A
partition reads only its own batches of every piece. Memory is O(stretch).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import xxhash

from headrace.arrays import I64
from headrace.digest import checksum_file
from headrace.errors import InputError
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.parquet import CHUNK_ROWS
from headrace.formats.schema import is_text
from headrace.formats.shard import Shard
from headrace.formats.source import fit, read_chunks
from headrace.formats.text_columns import nulled, typed
from headrace.formats.write import Written
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.split.cutoff import in_utc
from headrace.split.joins.features import Features
from headrace.split.joins.numbers import EntityNumbers
from headrace.split.scan import check_forms, fault_of, located
from headrace.split.sorting import in_order
from headrace.storage.local import storing
from headrace.storage.places import place_of

BATCH_ROWS, _BATCH_BYTES = 1 << 21, 64 << 20
_PLACE = np.dtype("<i8")
ENTITY, EVENT, KNOWN, ROW = "entity", "event", "known", "row"
NOBODY, UNTIMED = "without_entity", "without_time"  # features that no row can get


@dataclass(frozen=True)
class Join:
    """A surveyed table of features. number: its index among the joined tables.

    read: the schema of the columns to join as they are read. output: the same columns as rows get them, with the
    declared types.
    """

    features: Features
    number: int
    shards: Sequence[Shard]
    entity: str
    read: pa.Schema
    output: pa.Schema
    types: dict[str, pa.DataType]
    null_values: Sequence[str]
    bad_rows: Literal["error", "drop"]
    timezone: str
    seed: int

    @property
    def times(self) -> dict[str, str]:
        """The source column of each time that a piece holds."""
        known = {} if self.features.known_at is None else {KNOWN: self.features.known_at}
        return {EVENT: self.features.event_time, **known}

    @property
    def key_names(self) -> list[str]:
        """The columns that keys are made from."""
        return [self.entity, *self.times.values()]

    def piece(self, of: Literal["keys", "chosen", "features", "matched"], number: int) -> str:
        """Return the path of a piece, relative to the run; keys and features: of a file, the others: of a partition."""
        return piece_file(f"{self.number}-{of}-{number:05d}")

    @property
    def keys(self) -> pa.Schema:
        """The schema of a gathered feature. Its row is counted from the first row of its batch."""
        return pa.schema([(ENTITY, pa.uint32()), *((name, pa.int64()) for name in self.times), (ROW, pa.uint32())])

    @property
    def matched(self) -> pa.Schema:
        """The schema of a matched row: its number in the stretch, and the values."""
        return pa.schema([(ROW, pa.uint32()), *((str(place), kind) for place, kind in enumerate(self.output.types))])

    @property
    def schema(self) -> pa.Schema:
        """The schema of a feature with its values, whose columns are numbered because users choose their names."""
        keys = [field for field in self.keys if field.name != ROW]
        return pa.schema([*keys, *((str(place), kind) for place, kind in enumerate(self.output.types))])


class PieceWriter:
    """Writes the piece of one shard. write: from `batch_file`; entities: the number of entities."""

    def __init__(self, write: Callable[[pa.Table], None], schema: pa.Schema, entities: int, partitions: int) -> None:
        self._write, self._schema, self._entities, self._partitions = write, schema, entities, partitions
        self._held: list[tuple[pa.RecordBatch, list[int]]] = []
        self.rows = 0

    def add(self, table: pa.Table) -> None:
        """Hold the rows of a table, by partition; give about ten thousand at once, to sort them in the CPU cache."""
        if not len(table):
            return
        entity = table[ENTITY].to_numpy().astype(np.int64)
        partition = entity * self._partitions // max(1, self._entities)
        bounds = [0, *np.cumsum(np.bincount(partition, minlength=self._partitions)).tolist()]
        ordered = table.combine_chunks().take(pa.array(in_order(partition.view(np.uint64))[0]))
        self._held.append((ordered.to_batches()[0], bounds))
        self.rows += len(table)

    def flush(self) -> None:
        """Write the held rows as a batch for each partition, in the order of `add`."""
        for part in range(self._partitions):
            parts = [batch.slice(bounds[part], bounds[part + 1] - bounds[part]) for batch, bounds in self._held]
            self._write(pa.Table.from_batches(parts, self._schema))
        self._held, self.rows = [], 0


def piece_file(name: str) -> str:
    """Return the path of a piece, relative to the run."""
    return f"{STAGE_DIRECTORY}/join-{name}.batches"


@contextmanager
def batch_file(files: TaskFiles, target: str) -> Iterator[Callable[[pa.Table], None]]:
    """Open a file of batches, and yield a function that writes a table as one batch.

    The file holds Arrow messages one after the other, then the offset of each. Partitions open every piece for a batch
    or two, which would take ten times as long with an Arrow file, because pyarrow opens it with threads of its own.
    """
    temporary = files.temporary(target)
    digest, begins, rows = xxhash.xxh3_128(), [0], 0
    with storing(temporary.parent), temporary.open("xb") as sink:

        def put(data: Any) -> None:
            sink.write(data)
            digest.update(data)

        def write(table: pa.Table) -> None:
            nonlocal rows
            size = 0
            for batch in table.combine_chunks().to_batches():  # one, or none
                message = batch.serialize()
                put(message)
                size += message.size
            begins.append(begins[-1] + size)
            rows += table.num_rows

        yield write
        put(np.array([*begins, len(begins)], _PLACE))
    size = begins[-1] + (len(begins) + 1) * _PLACE.itemsize
    files.finished(temporary, target, Written(rows, size, "", (), digest.hexdigest()))


def read_batches(path: Path, schema: pa.Schema, first: int, step: int) -> list[pa.Table]:
    """Read every `step`-th batch of a file from `first` on.

    The file is not mapped, because small reads of many files would load neighbouring pages.
    """
    found = []
    with path.open("rb", buffering=0) as source:
        end = source.seek(-_PLACE.itemsize, os.SEEK_END)
        places = int.from_bytes(source.read(_PLACE.itemsize), "little")
        source.seek(end - places * _PLACE.itemsize)
        begins = np.frombuffer(source.read(places * _PLACE.itemsize), _PLACE)[first:]
        for begin, end in zip(begins[:-1:step].tolist(), begins[1::step].tolist(), strict=True):
            source.seek(begin)
            batches = [pa.ipc.read_record_batch(pa.py_buffer(source.read(end - begin)), schema)] if end > begin else []
            found.append(pa.Table.from_batches(batches, schema))
    return found


def gather_features(
    files: TaskFiles, join: Join, place: int, numbers: EntityNumbers, partitions: int
) -> dict[str, Any]:
    """Write the keys of one shard of features. place: its index. numbers: of the entities of all rows.

    Returns counts and the first row of each batch. Raises `InputError` for an invalid time, if the settings make that
    an error.
    """
    shard, counts = join.shards[place], Counter[str]()
    forms: dict[str, set[str]] = {each: set() for each in join.times}
    first_rows, row = [0], 0
    with batch_file(files, join.piece("keys", place)) as write:
        writer = PieceWriter(write, join.keys, len(numbers.entities), partitions)
        for chunk in _chunks(shard, join.key_names, coded=[join.entity]):
            if row - first_rows[-1] + len(chunk) > BATCH_ROWS and row > first_rows[-1]:
                writer.flush()
                first_rows.append(row)
            with located(shard.path, row):
                writer.add(_keys(join, shard, chunk, (row, row - first_rows[-1]), numbers, counts, forms))
            row += len(chunk)
        writer.flush()
    stored = place_of(shard.path)
    version = checksum_file(shard.path) if stored.reads == "calls" else stored.version(stored.stat())
    told = {each: sorted(found) for each, found in forms.items()}
    return {**counts, "rows_read": row, "forms": told, "version": version, "first_rows": first_rows}


def _chunks(shard: Shard, columns: Sequence[str], coded: Sequence[str]) -> Iterator[pa.Table]:
    """Read those of the columns that the shard has, in row order.

    coded: columns that may be dictionary-encoded, which Parquet decodes three times as fast as texts.
    """
    wanted = [name for name in dict.fromkeys(columns) if name in shard.schema.names] or shard.schema.names[:1]
    texts = [name for name in coded if name in wanted and is_text(shard.schema.field(name).type)]
    for chunk in read_chunks(shard, wanted, coded=texts):
        yield chunk.table(wanted)


def _keys(
    join: Join,
    shard: Shard,
    chunk: pa.Table,
    first: tuple[int, int],
    numbers: EntityNumbers,
    counts: Counter[str],
    forms: dict[str, set[str]],
) -> pa.Table:
    """Return the keys of the features of a chunk that a row can get. first: the chunk's first row, and in its batch."""
    absent = pa.chunked_array([pa.nulls(len(chunk), pa.string())])
    columns = {name: chunk[name] if name in chunk.column_names else absent for name in join.key_names}
    entity, nobody = numbers.of(columns[join.entity])
    times, untimed = [], np.zeros(len(chunk), np.bool_)
    for role, name in join.times.items():
        micros = _times(join, columns[name], name, str(shard.path), first[0], forms[role])
        untimed |= micros == MISSING
        times.append(micros)
    counts[NOBODY] += int(np.count_nonzero(nobody))
    counts[UNTIMED] += int(np.count_nonzero(untimed & ~nobody))
    rows = np.flatnonzero((entity >= 0) & ~untimed)
    if len(rows) < len(chunk):
        entity, times = entity[rows], [each[rows] for each in times]
    return pa.table([entity.astype(np.uint32), *times, (rows + first[1]).astype(np.uint32)], schema=join.keys)


def fetch_features(
    files: TaskFiles, join: Join, place: int, wanted: Iterator[pa.Table], entities: int, partitions: int
) -> dict[str, Any]:
    """Write the wanted features of one shard with their values.

    place: the index of the shard. wanted: tables of keys, whose rows are numbers in the shard and ascend from table to
    table.
    """
    values, fetched = _Values(join, join.shards[place]), 0
    with batch_file(files, join.piece("features", place)) as write:
        writer = PieceWriter(write, join.schema, entities, partitions)
        for keys in wanted:
            begin = size = 0
            for table in values.of(keys[ROW].to_numpy()):
                part = keys.slice(begin, len(table)).drop_columns([ROW])
                writer.add(pa.Table.from_arrays([*part.columns, *table.columns], schema=join.schema))
                begin, size = begin + len(table), size + table.nbytes
                if size >= _BATCH_BYTES:
                    writer.flush()
                    size = 0
            writer.flush()
            fetched += begin
        values.finish()
    return {"rows_read": fetched}


class _Values:
    """Reads values of one shard of features, in the order of its rows.

    If types are declared, every row is converted, so that a bad value raises in any row, not only in fetched ones.
    """

    def __init__(self, join: Join, shard: Shard) -> None:
        self._join, self._where = join, str(shard.path)
        names = join.read.names
        self._chunks = _chunks(shard, names, coded=() if join.types else names)
        self._chunk, self._first = join.read.empty_table(), 0

    def of(self, rows: I64) -> Iterator[pa.Table]:
        """Yield the values of rows, which must ascend, in tables of some rows each."""
        done = 0
        while done < len(rows):
            last = self._first + len(self._chunk)
            if rows[done] >= last:
                self._chunk, self._first = self._typed(next(self._chunks), last), last
                continue
            end = done + int(np.searchsorted(rows[done : done + CHUNK_ROWS], last))  # short codes may be long texts
            found = self._chunk.take(pa.array(rows[done:end] - self._first))
            yield found if self._join.types else fit(found, self._join.read)
            done = end

    def finish(self) -> None:
        """Read on to the end if every value must be checked."""
        for chunk in self._chunks if self._join.types else ():
            self._first += len(self._chunk)
            self._chunk = self._typed(chunk, self._first)

    def _typed(self, chunk: pa.Table, first_row: int) -> pa.Table:
        if not self._join.types:
            return chunk
        return typed(fit(chunk, self._join.read), self._join.types, self._join.null_values, self._where, first_row)


def _times(join: Join, column: pa.ChunkedArray, name: str, where: str, first_row: int, forms: set[str]) -> I64:
    """Read times in UTC, `MISSING` for absent ones."""
    form = join.features.time_format
    column = nulled(column, ("", *join.null_values))
    dates = parse_dates(column, form)
    forms |= dates.forms
    check_forms(forms, form, where, name)
    absent = dates.micros == MISSING
    if absent.any() and join.bad_rows == "error":
        row = int(np.flatnonzero(absent)[0])
        told = fault_of(column[row], form) or "has no time"
        raise InputError(
            f'{where}: row {first_row + row + 1}: {name} {told}; or leave out and count such rows with bad_rows="drop"'
        )
    return in_utc(dates.micros, ~dates.instant & ~absent, join.timezone, twice="latest")
