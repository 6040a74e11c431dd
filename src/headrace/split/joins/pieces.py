"""Gather features, and the rows that ask for them, by partition of their entities: the first of two passes.

Entities are numbered by the order of their hashes, and a partition is a range of numbers. Features of entities that no
row has are left out.

A piece is the Arrow file of one source shard: for each half a million of its rows, a record batch for each partition. A
partition reads of every piece only what is its own. O(batch) of memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, Bools
from headrace.digest import checksum_file
from headrace.errors import InputError
from headrace.formats.date_words import advice
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.parquet import CHUNK_ROWS
from headrace.formats.schema import is_text
from headrace.formats.shard import Shard
from headrace.formats.source import fit, read_chunks
from headrace.formats.text_columns import nulled, typed
from headrace.printable import shown
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.split.cutoff import to_utc
from headrace.split.joins.features import Features
from headrace.split.joins.numbers import EntityNumbers
from headrace.split.scan import MIXED, one_form_advice
from headrace.storage.places import place_of

BATCH_ROWS, _BATCH_BYTES = 1 << 19, 64 << 20
ENTITY, EVENT, KNOWN = "entity", "event", "known"
NOBODY, UNTIMED = "without_entity", "without_time"  # features that no row can get


@dataclass(frozen=True)
class Join:
    """A table of features, surveyed. number: its place among the tables that are joined.

    read: the schema of the columns to join as they are read; output: as rows get them, with the types asked for.
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
        """The column of each time of a piece."""
        known = {} if self.features.known_at is None else {KNOWN: self.features.known_at}
        return {EVENT: self.features.event_time, **known}

    @property
    def columns(self) -> list[str]:
        """The columns that are read, each once."""
        return list(dict.fromkeys([self.entity, *self.times.values(), *self.read.names]))

    @property
    def schema(self) -> pa.Schema:
        """The schema of a piece: values are numbered, as their names are free."""
        keys = [(ENTITY, pa.uint32()), *((name, pa.int64()) for name in self.times)]
        return pa.schema([*keys, *((str(place), kind) for place, kind in enumerate(self.output.types))])


class PieceWriter:
    """Writes the piece of one shard. write: of `TaskFiles.arrow_batches`; entities: how many there are."""

    def __init__(self, write: Callable[[pa.Table], None], entities: int, partitions: int) -> None:
        self._write, self._entities, self._partitions = write, entities, partitions

    def append(self, table: pa.Table, asked: Bools | None = None) -> None:
        """Write the rows of a table, or those that are asked for, as a batch for each partition."""
        entity = table[ENTITY].to_numpy().astype(np.int64)
        places = None if asked is None or asked.all() else np.flatnonzero(asked)
        entity = entity if places is None else entity[places]
        partition = (entity * self._partitions // max(1, self._entities)).astype(np.uint16)  # 16 bits sort by radix
        order = np.argsort(partition, kind="stable")
        ordered = table.combine_chunks().take(pa.array(order if places is None else places[order])).combine_chunks()
        begin = 0
        for rows in np.bincount(partition, minlength=self._partitions).tolist():
            self._write(ordered.slice(begin, rows))
            begin += rows


def piece_file(name: str) -> str:
    """Path of a piece, relative to the run."""
    return f"{STAGE_DIRECTORY}/join-{name}.arrow"


def read_batches(path: Path, first: int, step: int) -> list[pa.Table]:
    """Read every so many-th batch of a piece. Not mapped: many small parts of files would bring their neighbours in."""
    with pa.OSFile(str(path)) as source:
        reader = pa.ipc.open_file(source)
        return [pa.table(reader.get_batch(number)) for number in range(first, reader.num_record_batches, step)]


def gather_features(
    files: TaskFiles, join: Join, shard: Shard, name: str, numbers: EntityNumbers, partitions: int
) -> dict[str, Any]:
    """Write the piece of one shard of features. numbers: of the entities of all rows.

    Raises `InputError` for a time that is none, where that is an error.
    """
    counts: Counter[str] = Counter()
    forms: dict[str, set[str]] = {each: set() for each in join.times}
    with files.arrow_batches(piece_file(name), join.schema) as write:
        writer = PieceWriter(write, len(numbers.entities), partitions)
        for first_row, table in _batches(shard, join.columns):
            counts["rows_read"] += table.num_rows
            try:
                writer.append(*_piece(join, shard, table, first_row, numbers, counts, forms))
            except InputError as error:
                if str(shard.path) in str(error):
                    raise
                raise InputError(f"{shard.path}: from row {first_row + 1}: {error}") from error
    place = place_of(shard.path)
    version = checksum_file(shard.path) if place.reads == "calls" else place.version(place.stat())
    return {**counts, "forms": {each: sorted(found) for each, found in forms.items()}, "version": version}


def _batches(shard: Shard, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the columns, null where the shard has none, about `BATCH_ROWS` at a time with the number of the first.

    Parquet decodes texts three times as slowly as codes and a dictionary together.
    """
    held: list[pa.Table] = []
    first_row = rows = size = 0
    wanted = [name for name in columns if name in shard.schema.names]
    absent = [name for name in columns if name not in wanted]
    kinds = {name: shard.schema.field(name).type for name in wanted}
    for chunk in read_chunks(shard, wanted, coded=[name for name in wanted if is_text(kinds[name])]):
        whole = chunk.table(wanted)
        decoded = [
            each.with_type(kinds[each.name]) if pa.types.is_dictionary(each.type) else each for each in whole.schema
        ]
        for begin in range(0, len(whole), CHUNK_ROWS):  # few at once, as long texts may have short codes
            table = whole.slice(begin, CHUNK_ROWS).cast(pa.schema(decoded))
            for name in absent:
                table = table.append_column(name, pa.nulls(len(table), pa.string()))
            held.append(table)
            rows, size = rows + len(table), size + table.nbytes
            if rows >= BATCH_ROWS or size >= _BATCH_BYTES:
                yield first_row, pa.concat_tables(held)
                first_row, rows, size, held = first_row + rows, 0, 0, []
    if rows:
        yield first_row, pa.concat_tables(held)


def _piece(
    join: Join,
    shard: Shard,
    table: pa.Table,
    first_row: int,
    numbers: EntityNumbers,
    counts: Counter[str],
    forms: dict[str, set[str]],
) -> tuple[pa.Table, Bools]:
    """Make the columns of a piece of those of a source, and say which of its rows a row can get."""
    where = str(shard.path)
    entity, nobody = numbers.of(table[join.entity])
    times, untimed = {}, np.zeros(len(table), np.bool_)
    for role, name in join.times.items():
        micros = _times(join, table[name], name, where, first_row, forms[role])
        untimed |= micros == MISSING
        times[role] = micros
    values = fit(table.select([name for name in join.read.names if name in shard.schema.names]), join.read)
    values = typed(values, join.types, join.null_values, where, first_row)
    counts[NOBODY] += int(np.count_nonzero(nobody))
    counts[UNTIMED] += int(np.count_nonzero(untimed & ~nobody))
    columns = [entity.astype(np.uint32), *times.values(), *values.columns]
    return pa.table(columns, schema=join.schema), (entity >= 0) & ~untimed


def _times(join: Join, column: pa.ChunkedArray, name: str, where: str, first_row: int, forms: set[str]) -> I64:
    """Read times in UTC, `MISSING` where there is none."""
    form = join.features.time_format
    column = nulled(column, ("", *join.null_values))
    dates = parse_dates(column, form)
    forms |= dates.forms
    if len(forms) > 1 and not (form == "iso" and forms <= MIXED):
        first, second = sorted(forms)[:2]
        raise InputError(f"{where}: {name} is written as {first} and as {second}; {one_form_advice(sorted(forms))}")
    absent = dates.micros == MISSING
    if absent.any() and join.bad_rows == "error":
        row = int(np.flatnonzero(absent)[0])
        value = column[row].as_py()
        told = "has no time" if value is None else f"is {shown(value, 80)}, {advice(value, form)}"
        raise InputError(
            f'{where}: row {first_row + row + 1}: {name} {told}; or leave out and count such rows with bad_rows="drop"'
        )
    return in_utc(dates.micros, ~dates.instant & ~absent, join.timezone, twice="latest")


def in_utc(micros: I64, wall: Bools, zone: str, twice: Literal["earliest", "latest"]) -> I64:
    """Convert times that are wall-clock times of the zone to UTC.

    twice: which of two instants a time is that clocks show twice. A feature takes the later and a row the earlier, so
    that none counts as known before it was.
    """
    if zone == "UTC" or not wall.any():
        return micros
    found = micros.copy()
    found[wall] = to_utc(micros[wall], zone, twice=twice)
    return found
