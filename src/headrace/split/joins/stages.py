"""Join features to the rows of a split, out of core, as stages of a run.

    join_features   each file of features     → the keys of its features, by partition of entities
    join_rows       each shard of the source  → entity and time of the rows that are kept, by partition
    join_choose     each partition            → the keys of the features that its rows get, by file of features
    join_fetch      each file of features     → these features with their values, by partition
    join_match      each partition            → the features of its rows, for each stretch of rows of the source

So the values of most features are only decoded; values move only if a row gets them. A stretch is a run of consecutive
rows of a shard. The results of all partitions for a stretch are put in row order when the shard is written. Disk: 16
bytes per feature, 24 with `known_at`, 16 per row, and twice the joined values. Memory of `join_choose`: about 100 bytes
for each feature or row of a partition, which has about a million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.arrays import I64, U32
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import InputError
from headrace.formats.schema import few, hint, type_named
from headrace.formats.shard import Shard
from headrace.formats.source import common_schema, survey, with_content
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.events import Note
from headrace.run.receipts import Receipt
from headrace.split.allocate import Hashes
from headrace.split.joins.features import Features, folder
from headrace.split.joins.known import Timed, latest_known, ranks, reachable, without_order
from headrace.split.joins.numbers import EntityNumbers
from headrace.split.joins.pieces import (
    ENTITY,
    EVENT,
    KNOWN,
    NOBODY,
    ROW,
    UNTIMED,
    Join,
    PieceWriter,
    batch_file,
    fetch_features,
    gather_features,
    piece_file,
    read_batches,
)
from headrace.split.scan import one_form
from headrace.split.settings import TemporalSplit

STRETCH_ROWS = 1 << 19
_PARTITION_ROWS, MAX_PARTITIONS = 1 << 20, 1 << 12
_TASK_BYTES = 256 << 20  # memory of one task; all of a machine stay below the limit
_MEMORY_BYTES = 768 << 20
_TEXT_ROW_BYTES = 32  # estimate for a features file other than Parquet
TIME, JOINED = "time", "joined"
ROW_SCHEMA = pa.schema([(ENTITY, pa.uint32()), (TIME, pa.int64()), (ROW, pa.uint32())])


@dataclass(frozen=True)
class Joins:
    """All tables of features of a run.

    entities: of all rows, ascending by hash. partitions: the number of partitions of entities. stretches: the number of
    stretches of each source shard.
    """

    joins: Sequence[Join]
    entities: Hashes
    partitions: int
    stretches: Sequence[int]

    @property
    def fields(self) -> list[pa.Field]:
        """The joined columns of a row."""
        return [field for join in self.joins for field in join.output]

    def reader(self, run: Path, shard: int) -> Callable[[int, int], list[pa.ChunkedArray]]:
        """Return a function (first row, number of rows) that reads joined columns of consecutive rows of a shard."""
        begin = sum(self.stretches[:shard])
        held: dict[int, pa.Table] = {}

        def read(first_row: int, rows: int) -> list[pa.ChunkedArray]:
            parts = []
            while rows:
                stretch, first = divmod(first_row, STRETCH_ROWS)
                if stretch not in held:
                    held.clear()
                    held[stretch] = self._stretch(run, begin + stretch)
                part = held[stretch].slice(first, min(rows, STRETCH_ROWS - first))
                parts.append(part)
                first_row, rows = first_row + len(part), rows - len(part)
            found: list[pa.ChunkedArray] = pa.concat_tables(parts or [pa.schema(self.fields).empty_table()]).columns
            return found

        return read

    def _stretch(self, run: Path, number: int) -> pa.Table:
        """Read a stretch from all partitions, in row order; rows that needed no features get nulls."""
        columns: list[pa.ChunkedArray] = []
        for join in self.joins:
            paths = [run / join.piece("matched", part) for part in range(self.partitions)]
            parts = [table for path in paths for table in read_batches(path, join.matched, number, sum(self.stretches))]
            table = pa.concat_tables(parts).combine_chunks()
            place = np.full(STRETCH_ROWS, -1, np.int64)
            place[table[ROW].to_numpy()] = np.arange(len(table))
            columns += table.drop_columns([ROW]).take(pa.array(place, mask=place < 0)).columns
        return pa.table(columns, schema=pa.schema(self.fields))


def rows_file(shard: int) -> str:
    """Return the path of the piece of the rows of a shard, relative to the run."""
    return piece_file(f"rows-{shard:05d}")


def survey_joins(
    settings: TemporalSplit, context: RunContext, files: Sequence[tuple[Path, str]], source: pa.Schema
) -> list[Join]:
    """Find the columns that rows get. files: of the whole run; source: the schema of the rows.

    Raises `InputError` for columns that do not exist, that have no order, or that rows have already.
    """
    names = dict.fromkeys(source.names, "a column of the source")
    if settings.lineage == "columns":
        names |= dict.fromkeys(("source_shard", "source_row"), "a column of lineage")
    joins = []
    for number, features in enumerate(settings.join):
        own = [pair for pair in files if pair[1].startswith(folder(number))]
        shards = context.map([partial(survey, path, name) for path, name in own])
        join = _surveyed(settings, number, features, shards)
        first = with_content(shards)[0].path
        for name in join.output.names:
            if name in names:
                raise InputError(
                    f"{first}: rows would get the column {name!r}, which is {names[name]} already; give "
                    f"join[{number}] a prefix=, or list other columns to join"
                )
            names[name] = f"a column of join[{number}]"
        joins.append(join)
    return joins


def _surveyed(settings: TemporalSplit, number: int, features: Features, shards: Sequence[Shard]) -> Join:
    where = with_content(shards)[0].path
    assert settings.entity is not None
    schema = common_schema(shards, settings.schema_drift, widen_by='schema_drift="widen"')
    entity = features.entity or settings.entity
    roles = {"entity": entity, "event_time": features.event_time}
    roles |= {} if features.known_at is None else {"known_at": features.known_at}
    wanted = roles | {f"columns[{place}]": name for place, name in enumerate(features.columns)}
    wanted |= {f"types[{name!r}]": name for name in features.types}
    for role, name in wanted.items():
        if name not in schema.names:
            raise InputError(
                f"{where}: has no column {name!r} (join[{number}].{role}); its columns are "
                f"{few(schema.names)}{hint(schema.names)}"
            )
    columns = features.columns or tuple(name for name in schema.names if name not in roles.values())
    if not columns:
        raise InputError(f"{where}: has no columns besides entity and times; list those to join in columns")
    types = {name: type_named(word) for name, word in features.types.items() if name in columns}
    read = pa.schema([schema.field(name).with_nullable(True) for name in columns])
    output = pa.schema([(f"{features.prefix}{each.name}", types.get(each.name, each.type)) for each in read])
    if (odd := without_order(list(output))) is not None:
        raise InputError(
            f"{where}: column {odd.name} is {odd.type}, whose values have no order to break ties; list only flat "
            f"columns to join"
        )
    return Join(
        features=features,
        number=number,
        shards=shards,
        entity=entity,
        read=read,
        output=output,
        types=types,
        null_values=settings.null_values,
        bad_rows=settings.bad_rows,
        timezone=settings.timezone,
        seed=settings.seed,
    )


def partitions_of(joins: Sequence[Join], rows: int) -> int:
    """Choose the number of partitions, by the number of rows and the features of the largest table."""
    most = max([rows, *(sum(map(_rows_about, join.shards)) for join in joins)])
    return min(MAX_PARTITIONS, max(1, -(-most // _PARTITION_ROWS)))


def _rows_about(shard: Shard) -> int:
    if shard.kind.format == "parquet" and shard.content != "nothing":
        with shard.path.open("rb") as file:
            return int(pq.read_metadata(file).num_rows)
    return shard.size // _TEXT_ROW_BYTES


def gather_stage(context: RunContext, joins: Joins) -> list[list[Receipt]]:
    """Gather the keys of all features; return the receipts by table. Raises `InputError` for times of two forms."""
    first = joins.joins[0]  # settings that are the same for all joins
    numbers = EntityNumbers(joins.entities, first.null_values, first.seed)
    tasks, owners = [], []
    for join in joins.joins:
        for place, shard in enumerate(join.shards):
            work = partial(gather_features, join=join, place=place, numbers=numbers, partitions=joins.partitions)
            tasks.append(Task(shard.name, shard.size, work, [shard.path]))
            owners.append(join.number)
    receipts = _few_at_once(context).stage("join_features", tasks, durable=False)
    found = [
        [receipt for owner, receipt in zip(owners, receipts, strict=True) if owner == join.number]
        for join in joins.joins
    ]
    for join, own in zip(joins.joins, found, strict=True):
        for role, name in join.times.items():
            forms = [(shard.path, each.result["forms"][role]) for each, shard in zip(own, join.shards, strict=True)]
            one_form(forms, join.features.time_format, name)
    return found


def digest_of(gathered: Sequence[Receipt]) -> str:
    """Digest the files of a table of features, from the bytes of local files or the versions of stored objects."""
    return sha256_hex(canonical_json([each.result["version"] for each in gathered]))


def fetch_stages(context: RunContext, joins: Joins, gathered: Sequence[Sequence[Receipt]]) -> list[list[Receipt]]:
    """Choose the features that rows get, and fetch their values; return the receipts of the choice for each table."""
    few = _few_at_once(context)
    found = few.stage("join_choose", _of_partitions(joins, choose), durable=False)
    tasks = []
    for join, own in zip(joins.joins, gathered, strict=True):
        starts = [each.result["first_rows"] for each in own]
        total = sum(map(len, starts))
        begin = 0
        for place, (shard, first_rows) in enumerate(zip(join.shards, starts, strict=True)):
            batches = dict(zip(range(begin, begin + len(first_rows)), first_rows, strict=True))
            begin += len(first_rows)
            work = partial(fetch, joins=joins, join=join, place=place, batches=batches, total=total)
            tasks.append(Task(shard.name, 0, work, [shard.path]))
    few.stage("join_fetch", tasks, durable=False)
    return [found[number * joins.partitions :][: joins.partitions] for number in range(len(joins.joins))]


def _of_partitions(joins: Joins, work: Callable[..., dict[str, Any]]) -> list[Task]:
    return [
        Task(f"join[{join.number}], partition {part}", 0, partial(work, joins=joins, join=join, partition=part))
        for join in joins.joins
        for part in range(joins.partitions)
    ]


def join_stages(
    context: RunContext, joins: Joins, sources: Sequence[Shard], write_rows: Callable[[int, TaskFiles], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Run all stages, and return the manifest's facts about each table of features.

    write_rows: writes the piece of the rows of a shard, given its index, and returns the task's result.
    """
    gathered = gather_stage(context, joins)
    rows = [Task(shard.name, 0, partial(write_rows, place)) for place, shard in enumerate(sources)]
    context.stage("join_rows", rows, durable=False)
    chosen = fetch_stages(context, joins, gathered)
    _few_at_once(context).stage("join_match", _of_partitions(joins, match), durable=False)
    facts: list[dict[str, Any]] = []
    for join, own, done in zip(joins.joins, gathered, chosen, strict=True):
        counted = [("features", "rows_read", own), (NOBODY, NOBODY, own), (UNTIMED, UNTIMED, own)]
        counted += [(word, word, done) for word in ("rows", "matched", "too_old")]
        facts.append(
            {
                "columns": list(join.output.names),
                **{name: sum(int(each.result.get(word, 0)) for each in of) for name, word, of in counted},
                "partitions": joins.partitions,
                "digest": digest_of(own),
            }
        )
        matched, rows, too_old = (facts[-1][word] for word in ("matched", "rows", "too_old"))
        told = f"join[{join.number}]: {matched:,} of {rows:,} rows with an entity got features"
        if too_old:
            told += f", {too_old:,} have only one older than {join.features.max_age}"
        if rows and not matched:  # entity names then rarely agree
            where = join.shards[0].path
            told += f"; check that {join.entity!r} of {where} names entities as the rows do, and its times"
        context.on_event(Note("warning" if rows and not matched else "info", told))
    return facts


def _few_at_once(context: RunContext) -> RunContext:
    """Limit the tasks that run at a time on each machine by the memory budget."""
    return replace(context, workers=min(context.workers, context.engine.machines() * (_MEMORY_BYTES // _TASK_BYTES)))


def choose(files: TaskFiles, joins: Joins, join: Join, partition: int) -> dict[str, Any]:
    """Write the keys of the features that a partition's rows get, one batch for each gathered batch."""
    asked = rows_of(files.run, joins, partition)
    pieces = _pieces(files.run, joins, join, partition, "keys")
    features, entity, time = _timed(joins, join, partition, pieces, asked)
    places, matched, too_old = reachable(features, entity, time, join.features.max_age_us)
    chosen = pa.concat_tables([join.keys.empty_table(), *pieces]).take(pa.array(places)).combine_chunks()
    ends = np.searchsorted(places, np.cumsum([0, *map(len, pieces)])).tolist()
    with batch_file(files, join.piece("chosen", partition)) as write:
        for begin, end in pairwise(ends):
            write(chosen.slice(begin, end - begin))
    return {"rows_read": len(time), "rows": len(time), "matched": matched, "too_old": too_old}


def fetch(
    files: TaskFiles, joins: Joins, join: Join, place: int, batches: Mapping[int, int], total: int
) -> dict[str, Any]:
    """Write the features of a file that rows get.

    batches: the first row of each batch of its keys, by the number of the batch among all `total` of the table.
    """

    def wanted() -> Iterator[pa.Table]:
        for number, first_row in batches.items():
            paths = [files.run / join.piece("chosen", part) for part in range(joins.partitions)]
            keys = pa.concat_tables([table for path in paths for table in read_batches(path, join.keys, number, total)])
            rows = keys[ROW].to_numpy().astype(np.int64) + first_row
            order = np.argsort(rows)
            keys = keys.drop_columns([ROW]).take(pa.array(order))
            yield keys.append_column(ROW, pa.array(rows[order]))

    return fetch_features(files, join, place, wanted(), len(joins.entities), joins.partitions)


def match(files: TaskFiles, joins: Joins, join: Join, partition: int) -> dict[str, Any]:
    """Write the features of a partition's rows, a batch for each stretch."""
    asked = rows_of(files.run, joins, partition)
    values = features_of_rows(files.run, joins, join, partition, asked)
    numbers = np.concatenate([np.empty(0, np.uint32), *(each[ROW].to_numpy() for each in asked)])
    table = values.add_column(0, ROW, pa.array(numbers)).combine_chunks()
    with batch_file(files, join.piece("matched", partition)) as write:
        begin = 0
        for each in asked:
            write(table.slice(begin, len(each)))
            begin += len(each)
    return {"rows_read": len(table)}


def rows_of(run: Path, joins: Joins, partition: int) -> list[pa.Table]:
    """Read the rows of a partition that need features, one table for each stretch."""
    paths = [run / rows_file(place) for place in range(len(joins.stretches))]
    return [table for path in paths for table in read_batches(path, ROW_SCHEMA, partition, joins.partitions)]


def features_of_rows(run: Path, joins: Joins, join: Join, partition: int, asked: Sequence[pa.Table]) -> pa.Table:
    """Find the features of rows, in row order: the columns of the output by number, null if a row has none."""
    pieces = _pieces(run, joins, join, partition, "features")
    features, entity, time = _timed(joins, join, partition, pieces, asked)
    values = pa.concat_tables([join.schema.empty_table(), *pieces]).drop_columns([ENTITY, *join.times])
    values = values.combine_chunks()

    def ranked(places: I64) -> I64:
        return ranks(values.take(pa.array(places)))

    found, _ = latest_known(features, entity, time, join.features.max_age_us, ranked)
    return values.take(pa.array(found, mask=found < 0))


def _pieces(run: Path, joins: Joins, join: Join, partition: int, of: Literal["keys", "features"]) -> list[pa.Table]:
    """Read a partition's batches from the pieces of all files of features."""
    schema = join.keys if of == "keys" else join.schema
    paths = [run / join.piece(of, place) for place in range(len(join.shards))]
    return [table for path in paths for table in read_batches(path, schema, partition, joins.partitions)]


def _timed(
    joins: Joins, join: Join, partition: int, pieces: Sequence[pa.Table], asked: Sequence[pa.Table]
) -> tuple[Timed, I64, I64]:
    """Return features, and the entities and times of rows. Entities count from the first of the partition."""
    first = -(-partition * len(joins.entities) // joins.partitions)
    entity, row_entity = (_column(tables, ENTITY) for tables in (pieces, asked))
    entity -= first
    row_entity -= first
    known = None if join.features.known_at is None else _column(pieces, KNOWN)
    return Timed(entity, _column(pieces, EVENT), known), row_entity, _column(asked, TIME)


def _column(tables: Sequence[pa.Table], name: str) -> I64:
    return np.concatenate([np.empty(0, np.int64), *(each[name].to_numpy() for each in tables)], dtype=np.int64)


def row_piece(files: TaskFiles, joins: Joins, shard: int, entity: I64, time: I64, number: I64) -> dict[str, Any]:
    """Write the piece of a shard's rows: numbers of their entities, times in UTC, and their own numbers, ascending."""
    with batch_file(files, rows_file(shard)) as write:
        writer = PieceWriter(write, ROW_SCHEMA, len(joins.entities), joins.partitions)
        for stretch in range(joins.stretches[shard]):
            first = stretch * STRETCH_ROWS
            part = slice(*np.searchsorted(number, (first, first + STRETCH_ROWS)).tolist())
            own: U32 = (number[part] - first).astype(np.uint32)
            columns: list[I64 | U32] = [entity[part].astype(np.uint32), time[part], own]
            writer.add(pa.table(columns, schema=ROW_SCHEMA))
            writer.flush()
    return {"rows_read": len(number)}
