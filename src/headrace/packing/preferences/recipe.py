"""Run preferences and prompts: tokenise task by task, choose splits over the whole set, write shard by shard.

    runs/<run_id>/data/<split>/part-00000.parquet
    runs/<run_id>/rejected.jsonl

A row of the output is a row of the source, in the same order: `prompt_ids`, the tokens of each answer, and the columns
that are passed through. Rows that weights or epochs repeat come after all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.digest import sha256_hex
from headrace.errors import HeadraceError, InputError
from headrace.formats.detect import Kind
from headrace.formats.write import ShardWriter
from headrace.packing.blend import SPLITS
from headrace.packing.chats.tokenise import ChatEncoder
from headrace.packing.choose import Choice
from headrace.packing.preferences.encode import COLUMNS, encode
from headrace.packing.preferences.registration import REGISTRATION
from headrace.packing.preferences.settings import ANSWERS, Preferences, id_columns
from headrace.packing.sequences import Origins, set_print
from headrace.packing.shards import REJECTED, even_cuts, shard_counts
from headrace.packing.storage.spool import JoinedSpool, Spool
from headrace.packing.tokenised import tell_splits, tokenise
from headrace.run.context import RunContext, Task, TaskFiles, read_arrow
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.run.tally import ShardRecord, tally
from headrace.storage import local

IDS = pa.list_(pa.field("element", pa.int32(), nullable=False))

_BATCH_TOKENS = 1 << 22


@dataclass(frozen=True)
class _Shard:
    """A shard with the rows start..stop-1 of a split."""

    split: str
    start: int
    stop: int
    target: str


def execute(settings: Preferences, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Do the work of the run in its directory."""
    run, encoder = context.run, ChatEncoder(settings)
    work = partial(encode, settings=settings, encoder=encoder)
    tokenised = tokenise(settings, context, encoder, work, [REJECTED])
    choice = tokenised.choice()
    rows_of, records = _splits(settings, tokenised.whole_origins, choice)
    names = [task.file() for task in tokenised.tasks]
    schema = _schema(settings, [read_arrow(run / f"{name}{COLUMNS}").schema for name in names])
    shards = _shards(settings, records)

    def write(shard: _Shard, made: TaskFiles) -> dict[str, Any]:
        source = _Source.open(made.run, settings, names, schema)
        return _write(made, settings, source, shard, rows_of[shard.split][shard.start : shard.stop])

    written = context.stage(
        "materialise", [Task(each.target, 5 * (each.stop - each.start), partial(write, each)) for each in shards]
    )
    dropped = tokenised.dropped(choice)
    _check_conserved(tokenised.rows_read, records, written, dropped)
    tell_splits(settings, context, choice)
    tallied = [
        ShardRecord(shard.split, receipt.files[0], receipt.result["blocks"], "parquet")
        for shard, receipt in zip(shards, written, strict=True)
    ]
    index, totals = tally(tallied, [record["split"] for record in records])
    rejected = tokenised.rejected()
    local.write_new(run / REJECTED, rejected)
    local.sync_directory(run)
    return Outcome(
        schema=schema,
        index=index,
        splits=totals,
        dropped={reason: dropped[reason] for reason in sorted(REGISTRATION.reasons)},
        source=tokenised.source_facts(files),
        directories={record["split"]: _directory(record["split"]) for record in records},
        facts={
            "source_rows": {record["split"]: record["source_rows"] for record in records},
            **tokenised.facts(choice, None),
            "groups": records,
            **tokenised.summed("special_text_rows"),
            "published": {REJECTED: REJECTED},
            "files": {REJECTED: sha256_hex(rejected)},
        },
    )


def split_name(split: str) -> str:
    """Return the public name of a split: "val" for "valid", which only readers of bins use."""
    return "val" if split == "valid" else split


def _directory(split: str) -> str:
    return f"data/{split}"


def _splits(settings: Preferences, origins: Origins, choice: Choice) -> tuple[dict[str, I64], list[dict[str, Any]]]:
    """Return the rows of each split in order, as indices among all rows, and the record of each split."""
    first = origins.first_of_row
    side, copies = np.concatenate(choice.splits)[first], np.concatenate(choice.copies)[first]
    answers = max(1, len(ANSWERS[settings.kind]))
    rows_of, records = {}, []
    for split in settings.asked_splits:
        here = np.flatnonzero(side == SPLITS.index(split))
        times = copies[here]
        rows = np.concatenate([here[times > turn] for turn in range(int(times.max(initial=1)))])
        sequences = (first[rows][:, None] + np.arange(answers)).ravel()
        rows_of[split_name(split)] = rows
        records.append(
            {
                "split": split_name(split),
                "source_rows": len(here),
                "rows": len(rows),
                "tokens": int(origins.lengths[sequences].sum()),
                "labels": int(origins.labels[sequences].sum()),
                "prints": [set_print(origins.prints[first[rows] + answer]) for answer in range(answers)],
            }
        )
    return rows_of, records


def _shards(settings: Preferences, records: Sequence[Mapping[str, Any]]) -> list[_Shard]:
    """Cut each split into shards of equal numbers of rows."""
    rows, tokens = ({each["split"]: each[name] for each in records} for name in ("rows", "tokens"))
    counts: Any = shard_counts(rows, tokens, settings.num_shards)
    return [
        _Shard(split, start, stop, f"{_directory(split)}/part-{number:05d}.parquet")
        for split, count in rows.items()
        for number, (start, stop) in enumerate(even_cuts(count, counts[split]))
    ]


def _schema(settings: Preferences, handed_on: Sequence[pa.Schema]) -> pa.Schema:
    """Return the output's schema. Raises `InputError` if datasets pass through columns of incompatible types."""
    try:
        beside = pa.unify_schemas(handed_on, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(
            f"copied columns differ between files ({error}); write them as text, or leave them out with columns="
        ) from None
    ids = id_columns(settings.kind)
    taken = sorted({*ids} & {*beside.names})
    if taken:
        raise InputError(f"column {taken[0]} is one that this recipe makes; name those to copy with columns=")
    return pa.schema([*(pa.field(name, IDS, nullable=False) for name in ids), *beside])


@dataclass(frozen=True)
class _Source:
    """The mapped sequences and columns of all tasks. beside: the passed-through columns, cast to the output's types."""

    spool: JoinedSpool
    beside: pa.Table
    schema: pa.Schema

    @classmethod
    def open(cls, run: Path, settings: Preferences, names: Sequence[str], schema: pa.Schema) -> _Source:
        own = pa.schema([schema.field(name) for name in schema.names if name not in id_columns(settings.kind)])
        tables = [_of_schema(read_arrow(run / f"{name}{COLUMNS}"), own) for name in names]
        return cls(JoinedSpool([Spool.open(run / name) for name in names]), pa.concat_tables(tables), schema)


def _of_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    rows = len(table)
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _write(files: TaskFiles, settings: Preferences, source: _Source, shard: _Shard, rows: I64) -> dict[str, Any]:
    """Write the rows of a shard. O(batch of tokens) of memory, and O(columns passed through)."""
    counted = Counter(rows=0, tokens=0, labels=0)
    answers = max(1, len(ANSWERS[settings.kind]))
    writer = ShardWriter(
        files.temporary(shard.target),
        kind=Kind("parquet", "none"),
        schema=source.schema,
        dialect=None,
        parquet_compression="zstd",
        encoding="fast",
    )
    with writer:
        at = 0
        while at < len(rows):
            sequences = (rows[at : at + 4096, None] * answers + np.arange(answers)).ravel()
            ids, mask, lengths = source.spool.take(sequences)
            labels = np.add.reduceat(mask, np.cumsum(lengths) - lengths, dtype=np.int64)
            columns = token_columns(ids, mask, lengths, labels, answers)[: len(id_columns(settings.kind))]
            beside = source.beside.take(pa.array(rows[at : at + 4096]))
            writer.append(pa.Table.from_arrays([*columns, *beside.columns], schema=source.schema))
            counted.update(rows=len(sequences) // answers, tokens=len(ids), labels=int(labels.sum()))
            at += 4096
        written = writer.finish()
        files.finished(writer.path, shard.target, written)
    return {"rows_read": len(rows), **counted, "blocks": [asdict(block) for block in written.blocks]}


def token_columns(ids: Any, mask: Any, lengths: I64, labels: I64, answers: int) -> list[pa.Array]:
    """Build token columns from `answers` sequences per row: the prompts, then each answer. mask: 1 on answers."""
    turn = np.repeat(np.arange(len(lengths)) % answers, lengths)
    parts = [(ids[(mask == 0) & (turn == 0)], (lengths - labels)[::answers])]
    parts += [(ids[(mask == 1) & (turn == answer)], labels[answer::answers]) for answer in range(answers)]
    return [
        pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(sizes)), pa.int32()), pa.array(own), type=IDS)
        for own, sizes in parts
    ]


def _check_conserved(
    read: int, records: Sequence[Mapping[str, Any]], written: Sequence[Receipt], dropped: Counter[str]
) -> None:
    """Raise `HeadraceError` unless every row read is in a split or left out, and every row of a split was written."""
    kept, out = sum(each["source_rows"] for each in records), dropped.total()
    problems = [f"{read:,} rows were read, {kept:,} kept and {out:,} left out"] if read != kept + out else []
    for name in ("rows", "tokens", "labels"):
        before, there = sum(each[name] for each in records), sum(receipt.result[name] for receipt in written)
        problems += [f"{before:,} {name} were chosen, {there:,} written"] if before != there else []
    if problems:
        raise HeadraceError(
            f"{problems[0]}; this is a bug in headrace, and nothing was published; please report it with config.json "
            "of the run"
        )
