"""Prove that each row of a split has the features its source gives it: the latest known at its time, none later.

The features are read again from the paths that the run read. The rows are read from the output alone, into pieces in a
separate directory. Each partition is then matched again and compared with the output. This costs as much as the join,
and proves nothing if the source is gone or has changed since.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.dataset.contents import place_of_row
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.errors import HeadraceError
from headrace.formats.content import NOTHING, row_digests
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.text_columns import as_text, nulled
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.events import silent
from headrace.split.allocate import EntitySet, Hashes, hash_entities
from headrace.split.joins.features import files_of
from headrace.split.joins.numbers import EntityNumbers
from headrace.split.joins.pieces import (
    ENTITY,
    ROW,
    Join,
    PieceWriter,
    batch_file,
    in_utc,
    piece_file,
    read_batches,
)
from headrace.split.joins.stages import (
    STRETCH_ROWS,
    TIME,
    Joins,
    digest_of,
    features_of_rows,
    fetch_stages,
    gather_stage,
    rows_name,
    survey_joins,
)
from headrace.split.settings import TemporalSplit

_KEYS = [(ENTITY, pa.uint32()), (TIME, pa.int64()), (ROW, pa.int64())]


def join_checks(run: FinishedRun, settings: TemporalSplit, workers: int) -> Iterator[Check]:
    """Match the rows of the output with the features again; return a check for each table of features."""
    said = run.manifest.facts["join"]
    with tempfile.TemporaryDirectory(prefix="headrace-verify-") as directory:
        context = RunContext(Path(directory), workers, silent)
        try:
            surveyed = survey_joins(settings, context, files_of(settings.join), pa.schema([]))
            joins = Joins(
                surveyed, _entities(run, settings, context), int(said[0]["partitions"]), [1] * len(run.splits)
            )
            gathered = gather_stage(context, joins)
        except (HeadraceError, OSError) as error:
            yield from _unread(len(said), error)
            return
        work = [partial(_gather_rows, run, settings, joins, place) for place in range(len(run.splits))]
        tasks = [Task(split, 0, own) for split, own in zip(run.splits, work, strict=True)]
        alone = [receipt.result["problem"] for receipt in context.stage("join_rows", tasks, durable=False)]
        try:
            chosen = fetch_stages(context, joins, gathered)
        except (HeadraceError, OSError) as error:
            yield from _unread(len(said), error)
            return
        for join, receipts, choices, own in zip(joins.joins, gathered, chosen, said, strict=True):
            if digest_of(receipts) != own["digest"]:
                where = settings.join[join.number].source[0]
                told = f"not proved: {where} is not what it was when the run read it"
                yield Check(_name(join.number), told, kind="unchecked")
                continue
            parts = range(joins.partitions)
            found = context.map([partial(_compare, run, context.run, joins, join, part) for part in parts])
            problem = next((each for each in found if each is not None), None)
            problem = problem or next((each[join.number] for each in alone if each[join.number] is not None), None)
            rows, matched = (sum(each.result[word] for each in choices) for word in ("rows", "matched"))
            detail = (
                f"{matched:,} of {rows:,} rows have the latest feature of the source that was known at their time, the "
                f"others none; no row has a later one"
            )
            yield Check(_name(join.number), detail, problem)


def _unread(joins: int, error: Exception) -> Iterator[Check]:
    for number in range(joins):
        yield Check(_name(number), f"not proved, because they cannot be read: {error}", kind="unchecked")


def _entities(run: FinishedRun, settings: TemporalSplit, context: RunContext) -> Hashes:
    """Hash the entities of the output, ascending."""
    assert settings.entity is not None
    name, found = settings.entity, EntitySet()

    def look(split: str, block: int) -> Hashes:
        texts = as_text(run.block_reader(split)(block, [name])[name], settings.null_values, "entity")
        return hash_entities(pc.unique(texts).drop_null(), settings.seed)

    for split in run.splits:
        for hashes in context.map([partial(look, split, block) for block in range(len(run.split_index(split).rows))]):
            found.add(hashes)
    return found.ordered()


def _name(number: int) -> str:
    return f"features of join[{number}]"


def _row_schema(joins: Joins) -> pa.Schema:
    """Return the schema of a row of the output: its keys, and a digest of the columns of each join."""
    return pa.schema([*_KEYS, *((str(join.number), pa.uint64()) for join in joins.joins)])


def _gather_rows(
    run: FinishedRun, settings: TemporalSplit, joins: Joins, place: int, files: TaskFiles
) -> dict[str, Any]:
    """Write the piece of a split: entity, time and number of its rows, and a digest of the columns of each join.

    A row without entity can have no feature; the first one that has a feature is reported as a problem of that join.
    """
    assert settings.entity is not None
    split, problem = run.splits[place], dict[int, str]()
    index, read = run.split_index(split), run.block_reader(split)
    schema = _row_schema(joins)
    columns = list(dict.fromkeys([settings.time, settings.entity, *(field.name for field in joins.fields)]))
    numbers = EntityNumbers(joins.entities, settings.null_values, settings.seed)
    with batch_file(files, piece_file(rows_name(place))) as write:
        writer = PieceWriter(write, schema, len(joins.entities), joins.partitions)
        for block, first in enumerate(index.first_row.tolist()):
            table = read(block, columns)
            entity, nobody = numbers.of(table[settings.entity])
            dates = parse_dates(nulled(table[settings.time], ("", *settings.null_values)), settings.time_format)
            there = dates.micros != MISSING
            time = in_utc(dates.micros, ~dates.instant & there, settings.timezone, twice="earliest")
            words = [row_digests(table.select(join.output.names)) for join in joins.joins]
            for number, own in enumerate(words):
                odd = np.flatnonzero(nobody & (own != NOTHING))
                if len(odd) and number not in problem:
                    where = place_of_row(run, split, first + int(odd[0]))
                    problem[number] = f"{where}: it has features but no entity"
            places = first + np.arange(len(table))
            made = pa.table([entity.astype(np.uint32), time, places, *words], schema=schema)
            writer.add(made.filter(pa.array(there & ~nobody)))
            if writer.rows >= STRETCH_ROWS:
                writer.flush()
        writer.flush()
    return {"problem": [problem.get(number) for number in range(len(joins.joins))]}


def _compare(run: FinishedRun, pieces: Path, joins: Joins, join: Join, partition: int) -> str | None:
    """Match the rows of a partition again, and report the first difference."""
    asked = [
        (split, table)
        for place, split in enumerate(run.splits)
        for table in read_batches(
            pieces / piece_file(rows_name(place)), _row_schema(joins), partition, joins.partitions
        )
    ]
    values = features_of_rows(pieces, joins, join, partition, [table for _, table in asked])
    digests, begin = row_digests(values), 0
    for split, table in asked:
        wrong = np.flatnonzero(digests[begin : begin + len(table)] != table[str(join.number)].to_numpy())
        if len(wrong):
            where = place_of_row(run, split, table[ROW][int(wrong[0])].as_py())
            return f"{where}: its features are not the latest of join[{join.number}] that were known at its time"
        begin += len(table)
    return None
