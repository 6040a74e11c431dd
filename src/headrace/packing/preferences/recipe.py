"""Run preferences and prompts: tokenise task by task, choose splits over the whole set, write shard
by shard.

    runs/<run_id>/data/<split>/part-00000.parquet
    runs/<run_id>/rejected.jsonl

A row of the output is a row of the source, in the same order: `prompt_ids`, the tokens of each
answer, and the columns that are passed through. Rows that weights or epochs repeat come after all
others.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, offsets_from_lengths
from headrace.digest import sha256_hex
from headrace.errors import InputError, SettingsError, setting
from headrace.formats.registry import FileType
from headrace.formats.types import merged_names, supertype
from headrace.formats.widen import RowsOf, fit
from headrace.formats.write import ShardWriter
from headrace.packing.blend import SPLITS
from headrace.packing.chats.tokenise import ChatEncoder
from headrace.packing.choose import Choice
from headrace.packing.preferences.encode import COLUMNS, SEEN, encode
from headrace.packing.preferences.settings import ANSWERS, Preferences, id_columns
from headrace.packing.sequences import Origins, set_print
from headrace.packing.shards import REJECTED, even_cuts, shard_counts
from headrace.packing.storage.spool import JoinedSpool, SequenceSpool
from headrace.packing.tokenised import check_conserved, report_splits, summed, tokenise
from headrace.recipe import recipe_of_run
from headrace.run.context import RunContext, Task, TaskFiles, read_arrow
from headrace.run.prepare import Outcome
from headrace.run.tally import ShardRecord, tally
from headrace.storage import local

IDS = pa.list_(pa.field("element", pa.int32(), nullable=False))


@dataclass(frozen=True)
class _PreferenceShard:
    """A shard with the rows start..stop-1 of a split."""

    split: str
    start: int
    stop: int
    target: str


def execute(  # noqa: PLR0914 - the run from top to bottom
    settings: Preferences, context: RunContext, files: Sequence[tuple[Path, str]]
) -> Outcome:
    """Do the work of the run in its directory."""
    run = context.run
    encoder = ChatEncoder(settings)
    work = partial(encode, settings=settings, encoder=encoder)
    tokenised = tokenise(settings, context, encoder, work, [REJECTED])
    choice = tokenised.choice()
    rows_of, records = _splits(settings, tokenised.joined_origins, choice)
    names = [task.file() for task in tokenised.tasks]
    handed_on = [read_arrow(run / f"{name}{COLUMNS}").schema for name in names]
    _check_named(settings, handed_on)
    schema = _schema(settings, handed_on)
    shards = _shards(settings, records)

    tasks = []
    for shard in shards:
        rows = rows_of[shard.split][shard.start : shard.stop]
        work = partial(_write, settings, names, schema, shard, rows)
        tasks.append(Task(shard.target, 5 * len(rows), work))
    written = context.stage("materialise", tasks)
    dropped = tokenised.dropped(choice)
    source_rows = {record["split"]: record["source_rows"] for record in records}
    conserved = [("rows", tokenised.rows_read, sum(source_rows.values()), dropped.total())]
    for name, count in summed(written, "rows", "tokens", "labels").items():
        conserved.append((f"written {name}", sum(record[name] for record in records), count, 0))
    check_conserved(conserved)
    report_splits(settings, context, choice)
    tallied = [
        ShardRecord(shard.split, receipt.files[0], receipt.extra["blocks"], "parquet")
        for shard, receipt in zip(shards, written, strict=True)
    ]
    index, totals = tally(tallied, list(source_rows))
    rejected = tokenised.rejected()
    local.write_new(run / REJECTED, rejected)
    local.sync_directory(run)
    reasons = recipe_of_run(settings.recipe_name).reasons
    return Outcome(
        schema=schema,
        index=index,
        splits=totals,
        dropped={reason: dropped[reason] for reason in sorted(reasons)},
        source=tokenised.source_facts(files),
        directories={split: f"data/{split}" for split in source_rows},
        metadata={
            "source_rows": source_rows,
            **tokenised.metadata(choice, None),
            "groups": records,
            **tokenised.summed("special_text_rows"),
            "published": {REJECTED: REJECTED},
            "files": {REJECTED: sha256_hex(rejected)},
        },
    )


def _shards(settings: Preferences, records: Sequence[Mapping[str, Any]]) -> list[_PreferenceShard]:
    """Cut the rows of each split into shards."""
    rows, tokens = (
        {record["split"]: record[name] for record in records} for name in ("rows", "tokens")
    )
    counts = shard_counts(rows, tokens, settings.num_shards)
    shards = []
    for split, count in rows.items():
        for number, (start, stop) in enumerate(even_cuts(count, counts[split])):
            target = f"data/{split}/part-{number:05d}.parquet"
            shards.append(_PreferenceShard(split, start, stop, target))
    return shards


def _splits(
    settings: Preferences, origins: Origins, choice: Choice
) -> tuple[dict[str, I64], list[dict[str, Any]]]:
    """Return the rows of each split in order, as indices among all rows, and the record of each
    split.
    """
    first = origins.first_of_row
    side = np.concatenate(choice.splits)[first]
    copies = np.concatenate(choice.copies)[first]
    answers = max(1, len(ANSWERS[settings.kind]))
    rows_of = {}
    records = []
    for split in settings.requested_splits:
        here = np.flatnonzero(side == SPLITS.index(split))
        times = copies[here]
        rows = np.concatenate([here[times > turn] for turn in range(int(times.max(initial=1)))])
        sequences = (first[rows][:, None] + np.arange(answers)).ravel()
        # "valid" is for readers of bins alone
        if split == "valid":
            name: str = "val"
        else:
            name = split
        rows_of[name] = rows
        records.append(
            {
                "split": name,
                "source_rows": len(here),
                "rows": len(rows),
                "tokens": int(origins.lengths[sequences].sum()),
                "labels": int(origins.labels[sequences].sum()),
                "prints": [
                    set_print(origins.prints[first[rows] + answer]) for answer in range(answers)
                ],
            }
        )
    return rows_of, records


def _check_named(settings: Preferences, handed_on: Sequence[pa.Schema]) -> None:
    """Raise `SettingsError` for a column to copy or to leave out that no row has."""
    with_rows = [json.loads(schema.metadata[SEEN]) for schema in handed_on if schema.metadata]
    named = settings.columns or settings.drop_columns or ()
    unknown = set(named).difference(*with_rows)
    if with_rows and unknown:
        raise SettingsError(
            "no row has such a column",
            setting="columns" if settings.columns else "drop_columns",
            value=sorted(unknown),
            remedy="correct the name",
        )


def _schema(settings: Preferences, handed_on: Sequence[pa.Schema]) -> pa.Schema:
    """Return the output's schema.

    Raises `InputError` if datasets pass through columns of incompatible types.
    """
    types: dict[str, dict[pa.DataType, None]] = {}
    for columns in handed_on:
        for name, type_ in zip(columns.names, columns.types, strict=True):
            types.setdefault(name, {})[type_] = None
    fields = []
    for name in merged_names([columns.names for columns in handed_on]):
        of_column = types[name]
        type_ = supertype(*of_column)
        if type_ is None:
            raise InputError(
                "copied columns differ between files",
                column=name,
                value=" and ".join(sorted(map(str, of_column))),
                remedy=f"write them as text, or leave them out with {setting('columns')}",
            )
        fields.append(pa.field(name, type_))
    beside = pa.schema(fields)
    ids = id_columns(settings.kind)
    clashing = sorted({*ids} & {*beside.names})
    if clashing:
        raise InputError(
            "this recipe makes a column of that name",
            column=clashing[0],
            remedy=f"name those to copy with {setting('columns')}",
        )
    return pa.schema([*(pa.field(name, IDS, nullable=False) for name in ids), *beside])


def _write(  # noqa: PLR0914 - lists of tokens beside columns
    settings: Preferences,
    names: Sequence[str],
    schema: pa.Schema,
    shard: _PreferenceShard,
    rows: I64,
    files: TaskFiles,
) -> dict[str, Any]:
    """Write the rows of a shard. O(batch of tokens) of memory, and O(columns passed through).

    names: of the tasks' files, whose sequences and columns are mapped.
    """
    ids_of = id_columns(settings.kind)
    answers = max(1, len(ANSWERS[settings.kind]))
    spool = JoinedSpool([SequenceSpool.open(files.run / name) for name in names])
    beside = _handed_on(files.run, names, pa.schema(list(schema)[len(ids_of) :]))
    counted = Counter(rows=0, tokens=0, labels=0)
    writer = ShardWriter(
        files.temporary(shard.target),
        file_type=FileType.named("parquet"),
        schema=schema,
        dialect=None,
        parquet_compression="zstd",
        encoding="fast",
    )
    with writer:
        for at in range(0, len(rows), 4096):
            sequences = (rows[at : at + 4096, None] * answers + np.arange(answers)).ravel()
            ids, mask, lengths = spool.take(sequences)
            labels = np.add.reduceat(mask, np.cumsum(lengths) - lengths, dtype=np.int64)
            turn = np.repeat(np.arange(len(lengths)) % answers, lengths)
            parts = [(ids[(mask == 0) & (turn == 0)], (lengths - labels)[::answers])]
            for answer in range(len(ids_of) - 1):
                parts.append((ids[(mask == 1) & (turn == answer)], labels[answer::answers]))
            columns = []
            for values, sizes in parts:
                columns.append(
                    pa.ListArray.from_arrays(
                        pa.array(offsets_from_lengths(sizes), pa.int32()),
                        pa.array(values),
                        type=IDS,
                    )
                )
            others = beside.take(pa.array(rows[at : at + 4096])).columns
            writer.append(pa.Table.from_arrays([*columns, *others], schema=schema))
            counted.update(
                rows=len(sequences) // answers, tokens=len(ids), labels=int(labels.sum())
            )
        written = writer.finish()
        files.finished(writer.path, shard.target, written)
    return {"rows_in": len(rows), **counted, "blocks": [asdict(block) for block in written.blocks]}


def _handed_on(run: Path, names: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Read the columns that are passed through of all tasks, null where a task has none."""
    tables = []
    for name in names:
        table = read_arrow(run / f"{name}{COLUMNS}")
        tables.append(fit(table, schema, len(table), RowsOf(name, 0)))
    return pa.concat_tables(tables)
