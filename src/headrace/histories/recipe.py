"""Run histories: gather measurements by partition, sort and write each partition, list the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import InputError
from headrace.formats.common_schema import with_content
from headrace.formats.partitions import partition_types
from headrace.formats.shard import Shard
from headrace.formats.source import look, survey
from headrace.formats.types import few, hint
from headrace.histories.codec.values import stored_type
from headrace.histories.config import Histories
from headrace.histories.dictionary import dictionary_file, merge_texts
from headrace.histories.duplicates import REASON, Decision, counted_file, decide, told
from headrace.histories.duplicates import facts as duplicates_facts
from headrace.histories.failures import Failed, add_failed
from headrace.histories.parse import REASONS, gather_shard
from headrace.histories.shard_file import ROW_SCHEMA
from headrace.histories.write import SPLITS, compare_partition, directory_of, shard_name, write_partition, write_rows
from headrace.report.words import many, many_entities
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.events import Note
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.run.repeats import count_kept
from headrace.run.tally import ShardRecord, tally
from headrace.storage import local

MAX_PARTITIONS = 1 << 12
# Kernels take seconds to compile, once per machine, and half a second to load. They save a microsecond per row.
WORTH_COMPILING = 1 << 22
_ROW_BYTES = 32  # approximate, in a source file
_GATHER_BYTES = 192 << 20  # memory to read one source shard: chunks of a million rows, their parts and records


def is_worth_compiling(rows: float) -> bool:
    """Check if this many rows are worth the compile time, and numba is installed."""
    return rows >= WORTH_COMPILING and find_spec("numba") is not None


def execute(settings: Histories, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Prepare histories in the run directory."""
    shards, partitions, rows = _survey(settings, context, files)
    compiled = is_worth_compiling(rows * settings.sample_rate)
    at_once = _at_once(context, settings.memory_limit, _GATHER_BYTES)
    gather = partial(gather_shard, settings=settings, partitions=partitions, compiled=compiled)
    gathered = at_once.stage(
        "gather",
        [
            Task(shard.name, shard.size, partial(gather, shard=shard, number=number), [shard.path])
            for number, shard in enumerate(shards)
        ],
        durable=False,
    )
    merge = partial(merge_texts, shards=len(shards), seed=settings.seed, memory_limit=settings.memory_limit)
    columns = settings.dictionaries().items()
    tasks = [Task(dictionary_file(role), 0, partial(merge, role=role, column=column)) for role, column in columns]
    named = context.stage("dictionary", tasks) if tasks else []
    pa.default_memory_pool().release_unused()  # the texts of shards are not needed any more
    for split in SPLITS:
        local.make_directory(context.run / directory_of(split))
    at_once = _at_once(context, settings.memory_limit, 2 * settings.slab_rows * settings.working_bytes)
    made: dict[str, Any] = {"settings": settings, "pieces": len(shards), "compiled": compiled}
    decisions: list[Decision | None] = [None] * partitions
    if settings.duplicates in ("group", "drop"):
        compare = partial(compare_partition, **made)
        tasks = [Task(f"partition {number}", 0, partial(compare, number=number)) for number in range(partitions)]
        at_once.stage("compare", tasks, durable=False)
        decisions = [*decide(context.run, partitions, settings.duplicates)]
    order = partial(write_partition, **made)
    ordered = at_once.stage(
        "order",
        [
            Task(f"partition {number}", 0, partial(order, number=number, decision=decision))
            for number, decision in enumerate(decisions)
        ],
    )
    written = [(split, number) for number, receipt in enumerate(ordered) for split in receipt.result["splits"]]

    def list_rows(files: TaskFiles) -> dict[str, Any]:
        return {"rows_read": write_rows(files, written, settings.format)}

    (listed,) = context.stage("rows", [Task("rows.parquet", 0, list_rows)])
    outcome = _outcome(settings, context, files, gathered, ordered, partitions, listed)
    context.warn(_without_entities(settings.train_ratio, outcome.facts["entities"]))
    return replace(outcome, facts={**outcome.facts, **_facts_of_values(settings, named)})


def _without_entities(train_ratio: float, entities: Mapping[str, int]) -> Iterator[str]:
    """Describe the split that was asked for and that no entity's hash chose. entities: number in each split."""
    asked = (("train", train_ratio, "trains", "larger"), ("test", 1 - train_ratio, "tests", "smaller"))
    for split, share, does, cure in asked:
        if share and not entities[split] and (count := sum(entities.values())):
            yield (
                f"{split} has no rows: none of {many_entities(count)} {does} by its keyed hash; give a {cure} "
                f"train_ratio (now {train_ratio:g}) or another seed"
            )


def _facts_of_values(settings: Histories, named: Sequence[Receipt]) -> dict[str, Any]:
    """Return the manifest facts on dictionaries and the stored types of the value columns; empty without them."""
    dictionaries = settings.dictionaries()
    facts: dict[str, Any] = {}
    if dictionaries:
        facts["dictionaries"] = {
            role: {"column": column, "texts": receipt.result["rows_read"], "digest": receipt.result["digest"]}
            for (role, column), receipt in zip(dictionaries.items(), named, strict=True)
        }
    if settings.values:
        count = {each["column"]: each["texts"] for each in facts.get("dictionaries", {}).values()}
        facts["values"] = {name: stored_type(kind, count.get(name, 0)).name for name, kind in settings.values.items()}
    return facts


def _survey(
    settings: Histories, context: RunContext, files: Sequence[tuple[Path, str]]
) -> tuple[list[Shard], int, int]:
    """Survey the source shards. Return them, the number of partitions to make, and the approximate number of rows.

    A partition has about `slab_rows` measurements. Raises `InputError` if a shard lacks a requested column.
    """

    def looked(path: Path, name: str) -> tuple[Shard, int]:
        if settings.partitions is not None:
            shard = survey(path, name, partitions=types)
            return shard, shard.size // _ROW_BYTES
        shard, spans = look(path, name, partitions=types)
        return shard, sum(span.rows for span in spans)

    types = partition_types(name for _, name in files)
    found = context.map([partial(looked, path, name) for path, name in files])
    shards = [shard for shard, _ in found]
    for shard in with_content(shards):
        for column in settings.columns():
            if column not in shard.schema.names:
                raise InputError(
                    f"{shard.path}: has no column {column!r}, it has {few(shard.schema.names)}; name its columns with "
                    f"entity=, time=, peer=, value= and values={hint(shard.schema.names)}"
                )
    rows = sum(rows for _, rows in found)
    if settings.partitions is not None:
        return shards, settings.partitions, rows
    expected = math.ceil(rows * settings.sample_rate)
    return shards, min(MAX_PARTITIONS, max(1, -(-expected // settings.slab_rows))), rows


def _at_once(context: RunContext, memory_limit: int, task_bytes: int) -> RunContext:
    """Return how many tasks the limit allows at a time on each machine, at least one."""
    at_once = context.engine.machines() * (memory_limit // task_bytes)
    return replace(context, workers=max(1, min(context.workers, at_once)))


def _outcome(
    settings: Histories,
    context: RunContext,
    files: Sequence[tuple[Path, str]],
    gathered: Sequence[Receipt],
    ordered: Sequence[Receipt],
    partitions: int,
    listed: Receipt,
) -> Outcome:
    def total(name: str, receipts: Sequence[Receipt] = gathered) -> int:
        return sum(int(receipt.result[name]) for receipt in receipts)

    def of_split(split: str, name: str) -> int:
        return sum(int(each.result["splits"][split][name]) for each in ordered if split in each.result["splits"])

    shards = []
    for number, receipt in enumerate(ordered):
        for split, result in receipt.result["splits"].items():
            name = shard_name(split, number, settings.format)
            (record,) = (each for each in receipt.files if each.path == name)
            keys = {
                f"key_{end}": int(result[f"{at}_time"]) * 1_000_000 for end, at in (("min", "first"), ("max", "last"))
            }
            begins = accumulate((block[0] for block in result["blocks"]), initial=0)
            blocks = [
                {"first_row": begin, "rows": rows, "offset": offset, "length": length, **keys}
                for begin, (rows, offset, length) in zip(begins, result["blocks"], strict=False)
            ]
            shards.append(ShardRecord(split, record, blocks, settings.format))
    index, totals = tally(shards, SPLITS)
    dropped = {
        word: sum(int(receipt.result["dropped"].get(word, 0)) for receipt in gathered)
        for word in (*REASONS, "not_sampled")
    }
    entities = {split: of_split(split, "entities") for split in SPLITS}
    duplicates: dict[str, Any] = {}
    if settings.duplicates != "allow":
        repeated = count_kept(context.run, map(counted_file, range(partitions)), SPLITS)
        duplicates = duplicates_facts(settings, repeated)
        context.warn(told(settings, repeated, entities))
    first: dict[str, str] = {}
    failed: dict[str, Failed] = {}
    for receipt in gathered:
        first = {**receipt.result["first_dropped"], **first}
        for word, found in receipt.result["failed_by"].items():
            add_failed(failed, word, found)
    lost = sum(count for word, count in dropped.items() if word != "not_sampled")
    if lost:
        why = "; ".join(f"{word}: {dropped[word]:,}, first {where}" for word, where in sorted(first.items()))
        context.on_event(Note("warning", f"{many(lost, 'row')} dropped: {why}"))
    return Outcome(
        schema=ROW_SCHEMA,
        index=index,
        splits=totals,
        dropped={**dropped, **({REASON: total("gone", ordered)} if settings.duplicates == "drop" else {})},
        source={
            "files": len(files),
            "bytes": sum(path.stat().st_size for path, _ in files),
            "rows": total("rows_read"),
            "empty_shards": [receipt.subject for receipt in gathered if not receipt.result["rows_read"]],
        },
        directories={split: directory_of(split) for split in SPLITS},
        facts={
            "source_rows": {split: of_split(split, "measurements") for split in SPLITS},
            "entities": entities,
            "failed": total("failed"),
            **({"failed_by": failed} if failed else {}),
            "clamped": total("clamped"),
            "backwards": total("backwards"),
            "first_dropped": first,
            "multiset_sum": (total("sum") - total("gone_sum", ordered)) % (1 << 64),
            "partitions": partitions,
            "format": settings.format,
            "rows_digest": listed.files[0].digest,
            **duplicates,
        },
    )
