"""Run histories: gather measurements by partition, sort and write each partition, list the rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import InputError, setting
from headrace.formats.column_paths import has_column, known_columns
from headrace.formats.common_schema import join_shards, with_content
from headrace.formats.header import hint
from headrace.formats.partitions import partition_types
from headrace.formats.shard import Shard
from headrace.formats.source import look, survey
from headrace.formats.types import shorten_list
from headrace.histories import US_PER
from headrace.histories.codec.values import stored_type
from headrace.histories.config import Histories
from headrace.histories.dictionary import dictionary_file, merge_texts
from headrace.histories.duplicates import (
    DUPLICATE,
    OUTSIDE,
    Decision,
    counted_file,
    decide,
    duplicate_metadata,
    duplicate_warnings,
)
from headrace.histories.parse import REASONS, Failed, add_failed, gather_shard
from headrace.histories.reuse import REUSED
from headrace.histories.shard_file import ROW_SCHEMA
from headrace.histories.write import (
    SPLITS,
    compare_partition,
    directory_of,
    shard_name,
    write_partition,
    write_rows,
)
from headrace.near.repeats import count_stored
from headrace.report.words import many_entities, pluralise
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.events import Note
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.run.tally import ShardRecord, tally
from headrace.storage import local

MAX_PARTITIONS = 1 << 12
# memory to read one source shard: chunks of a million rows, their parts and records
_GATHER_BYTES = 192 << 20


def execute(settings: Histories, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Prepare histories in the run directory."""
    shards, partitions = _survey(settings, context, files)
    gathered = _gather(settings, context, shards, partitions)
    dictionaries = _merge_dictionaries(settings, context, len(shards))
    for split in SPLITS:
        local.make_directory(context.run / directory_of(split))
    written = _order(settings, context, len(shards), partitions)
    listed = _list_rows(settings, context, written)
    receipts = _Receipts(gathered, written)
    entities = receipts.by_split("entities")
    metadata: dict[str, Any] = {
        "source_rows": receipts.by_split("measurements"),
        "entities": entities,
        "failed": receipts.total("failed"),
        "clamped": receipts.total("clamped"),
        "backwards": receipts.total("backwards"),
        "first_dropped": receipts.first_dropped(),
        "multiset_sum": receipts.multiset_sum(),
        "partitions": partitions,
        "format": settings.format,
        "rows_digest": listed.files[0].digest,
        **_value_metadata(settings, dictionaries),
    }
    failed = receipts.failed()
    if failed:
        metadata["failed_by"] = failed
    if settings.duplicates != "allow":
        repeats = count_stored(context.run, map(counted_file, range(partitions)), SPLITS)
        metadata |= duplicate_metadata(settings, repeats)
        context.warn(duplicate_warnings(settings, repeats, entities))
    dropped = receipts.dropped()
    _report_dropped(context, dropped, metadata["first_dropped"])
    context.warn(_empty_splits(settings, entities))
    if settings.duplicates == "drop":
        dropped[DUPLICATE] = receipts.dropped_last(DUPLICATE)
    if settings.train_end is not None and settings.train_ratio < 1:
        dropped[OUTSIDE] = receipts.dropped_last(OUTSIDE)
    index, totals = tally(_shard_records(settings, written), SPLITS)
    empty = [receipt.subject for receipt in gathered if not receipt.rows_in]
    return Outcome(
        schema=ROW_SCHEMA,
        index=index,
        splits=totals,
        dropped=dropped,
        source={
            "files": len(files),
            "bytes": sum(path.stat().st_size for path, _ in files),
            "rows": sum(receipt.rows_in for receipt in gathered),
            "empty_shards": empty,
        },
        directories={split: directory_of(split) for split in SPLITS},
        metadata=metadata,
    )


def _survey(
    settings: Histories, context: RunContext, files: Sequence[tuple[Path, str]]
) -> tuple[list[Shard], int]:
    """Survey the source shards. Return them, and the number of partitions to make.

    A partition has about `slice_rows` measurements. Raises `InputError` if a shard lacks a
    requested column.
    """

    def survey_file(path: Path, name: str) -> tuple[Shard, int]:
        if settings.partitions is not None:
            return survey(path, name, partitions=types, dialect=settings.dialect), 0
        shard, spans = look(path, name, partitions=types, dialect=settings.dialect)
        return shard, sum(span.rows for span in spans)

    types = partition_types(name for _, name in files)
    surveyed = context.map([partial(survey_file, path, name) for path, name in files])
    shards = [shard for shard, _ in surveyed]
    _check_columns(settings, with_content(shards))
    if settings.schema_drift == "widen":
        joined = join_shards(shards, "widen", settings.columns())
        context.inform(joined.changes)
        shards = list(joined.shards)
    if settings.partitions is not None:
        return shards, settings.partitions
    expected = math.ceil(sum(rows for _, rows in surveyed) * settings.sample_rate)
    return shards, min(MAX_PARTITIONS, max(1, -(-expected // settings.slice_rows)))


def _check_columns(settings: Histories, shards: Sequence[Shard]) -> None:
    """Raise `InputError` for a column that a shard lacks; or that all lack, if they may differ."""
    known: set[str] = set()
    for shard in shards:
        known.update(known_columns(shard.schema, settings.columns()))
    for shard in shards:
        names = shard.schema.names
        for column in settings.columns():
            lacking_is_null = settings.schema_drift == "widen" and column in known
            if lacking_is_null or has_column(shard.schema, column):
                continue
            flags = ", ".join(map(setting, ("entity", "time", "peer", "value")))
            remedy = f"name its columns with {flags} and {setting('values')}{hint(names)}"
            if column in known:
                widen = setting("schema_drift", "widen")
                remedy += f"; other shards have it: {widen} takes it as null here"
            raise InputError(
                f"has no column {column!r}, it has {shorten_list(names)}",
                path=shard.path,
                value=column,
                remedy=remedy,
            )


def _limit_workers(context: RunContext, memory_limit: int, task_bytes: int) -> RunContext:
    """Return the context with as many tasks at a time as the limit allows on each machine, at least
    one.
    """
    tasks = context.engine.machines() * (memory_limit // task_bytes)
    return replace(context, workers=max(1, min(context.workers, tasks)))


def _gather(
    settings: Histories, context: RunContext, shards: Sequence[Shard], partitions: int
) -> Sequence[Receipt]:
    """Write the spill file of each shard."""
    gather = partial(gather_shard, settings=settings, partitions=partitions)
    tasks = []
    for number, shard in enumerate(shards):
        work = partial(gather, shard=shard, number=number)
        tasks.append(Task(shard.name, shard.size, work, [shard.path]))
    limited = _limit_workers(context, settings.memory_limit, _GATHER_BYTES)
    return limited.stage("gather", tasks, durable=False)


def _merge_dictionaries(settings: Histories, context: RunContext, shards: int) -> Sequence[Receipt]:
    """Write the dictionary of each column of texts."""
    merge = partial(merge_texts, shards=shards, settings=settings)
    tasks = []
    for role, column in settings.dictionaries().items():
        tasks.append(Task(dictionary_file(role), 0, partial(merge, role=role, column=column)))
    if not tasks:
        return []
    receipts = context.stage("dictionary", tasks)
    pa.default_memory_pool().release_unused()  # the texts of shards are not needed any more
    return receipts


def _order(
    settings: Histories, context: RunContext, shards: int, partitions: int
) -> Sequence[Receipt]:
    """Sort and write each partition."""
    task_bytes = 2 * settings.slice_rows * settings.working_bytes
    limited = _limit_workers(context, settings.memory_limit, task_bytes)

    def stage(name: str, works: Sequence[Any], *, durable: bool = True) -> Sequence[Receipt]:
        tasks = [Task(f"partition {number}", 0, work) for number, work in enumerate(works)]
        return limited.stage(name, tasks, durable=durable)

    decisions: list[Decision | None] = [None] * partitions
    if settings.duplicates in ("group", "drop"):
        compare = partial(compare_partition, settings=settings, shards=shards)
        works = [partial(compare, number=number) for number in range(partitions)]
        stage("compare", works, durable=False)
        decisions = [*decide(context.run, partitions, settings.duplicates)]
    write = partial(write_partition, settings=settings, shards=shards)
    works = []
    for number, decision in enumerate(decisions):
        works.append(partial(write, number=number, decision=decision))
    return stage("order", works)


def _list_rows(settings: Histories, context: RunContext, written: Sequence[Receipt]) -> Receipt:
    """Write `rows.parquet`."""
    shards = []
    for number, receipt in enumerate(written):
        shards += [(split, number) for split in receipt.extra["splits"]]

    def list_rows(files: TaskFiles) -> dict[str, Any]:
        return {"rows_in": write_rows(files, shards, settings.format)}

    (listed,) = context.stage("rows", [Task("rows.parquet", 0, list_rows)])
    return listed


@dataclass(frozen=True)
class _Receipts:
    """The receipts of both passes, and what they add up to."""

    gathered: Sequence[Receipt]
    written: Sequence[Receipt]

    def total(self, name: str) -> int:
        """Return a count of all shards."""
        return sum(receipt.extra[name] for receipt in self.gathered)

    def by_split(self, name: str) -> dict[str, int]:
        """Return a count of each split."""
        counts = dict.fromkeys(SPLITS, 0)
        for receipt in self.written:
            for split, result in receipt.extra["splits"].items():
                counts[split] += result[name]
        return counts

    def dropped(self) -> dict[str, int]:
        """Return how many rows of the source were dropped, by reason."""
        counts = dict.fromkeys((*REASONS, "not_sampled"), 0)
        for receipt in self.gathered:
            for word, count in receipt.extra["dropped"].items():
                counts[word] += count
        return counts

    def dropped_last(self, reason: str) -> int:
        """Return how many measurements of complete histories were dropped for a reason."""
        return sum(receipt.extra["dropped"][reason] for receipt in self.written)

    def first_dropped(self) -> dict[str, str]:
        """Return the first dropped row of each reason."""
        first: dict[str, str] = {}
        for receipt in self.gathered:
            first = {**receipt.extra["first_dropped"], **first}
        return first

    def failed(self) -> dict[str, Failed]:
        """Return the failed measurements by reason."""
        failed: dict[str, Failed] = {}
        for receipt in self.gathered:
            for word, counted in receipt.extra["failed_by"].items():
                add_failed(failed, word, counted)
        return failed

    def multiset_sum(self) -> int:
        """Return the sum of all measurements that were written, see `spill.multiset_sum`."""
        dropped: int = sum(receipt.extra["dropped_sum"] for receipt in self.written)
        return (self.total("sum") - dropped) % (1 << 64)


def _value_metadata(settings: Histories, receipts: Sequence[Receipt]) -> dict[str, Any]:
    """Return the manifest facts on dictionaries and the stored types of the value columns; empty
    without them.
    """
    metadata: dict[str, Any] = {}
    texts: dict[str, int] = {}
    if receipts:
        metadata["dictionaries"] = {}
    for (role, column), receipt in zip(settings.dictionaries().items(), receipts, strict=True):
        texts[column] = receipt.rows_in
        entry = {"column": column, "texts": texts[column], "digest": receipt.extra["digest"]}
        if settings.reused is not None:
            entry |= _reused_dictionaries(role, receipt, settings.reused.entries[role])
        metadata["dictionaries"][role] = entry
    if settings.reused is not None:
        metadata[REUSED] = settings.reused.record
    if settings.values:
        metadata["values"] = {}
        for name, word in settings.values.items():
            metadata["values"][name] = stored_type(word, texts.get(name, 0)).name
    return metadata


def _reused_dictionaries(role: str, receipt: Receipt, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many texts of a dictionary are of the named run, and the type of categories in
    tokens, which stays that of the first run.
    """
    metadata = {"earlier": receipt.extra["earlier"]}
    if role not in ("entity", "peer"):
        first = stored_type("category", named["texts"]).name
        metadata["token_type"] = named.get("token_type", first)
    return metadata


def _shard_records(settings: Histories, written: Sequence[Receipt]) -> list[ShardRecord]:
    """Return the shards of all partitions, with their blocks."""
    records = []
    for number, receipt in enumerate(written):
        files = {file.path: file for file in receipt.files}
        for split, result in receipt.extra["splits"].items():
            blocks = []
            first_row = 0
            for rows, offset, length in result["blocks"]:
                block = {
                    "first_row": first_row,
                    "rows": rows,
                    "offset": offset,
                    "length": length,
                    "key_min": result["first_time"] * US_PER[settings.time_unit],
                    "key_max": result["last_time"] * US_PER[settings.time_unit],
                }
                blocks.append(block)
                first_row += rows
            file = files[shard_name(split, number, settings.format)]
            records.append(ShardRecord(split, file, blocks, settings.format))
    return records


def _report_dropped(
    context: RunContext, dropped: Mapping[str, int], first: Mapping[str, str]
) -> None:
    """Warn of dropped rows, with the first of each reason."""
    count = sum(dropped.values()) - dropped.get("not_sampled", 0)
    if count:
        reasons = [
            f"{word}: {dropped[word]:,}, first {where}" for word, where in sorted(first.items())
        ]
        message = f"{pluralise(count, 'row')} dropped: {'; '.join(reasons)}"
        context.on_event(Note("warning", message))


def _empty_splits(settings: Histories, entities: Mapping[str, int]) -> Iterator[str]:
    """Describe a split that should have rows and that no entity's hash chose, or no time.

    entities: number in each split.
    """
    train_ratio = settings.train_ratio
    count = sum(entities.values())
    if settings.train_end is not None:
        for split in SPLITS:
            if count and not entities[split]:
                yield f"{split} has no rows; give another train_end (now {settings.train_end})"
        return
    for split, ratio, change in (
        ("train", train_ratio, "larger"),
        ("test", 1 - train_ratio, "smaller"),
    ):
        if count and ratio and not entities[split]:
            yield (
                f"{split} has no rows: the keyed hash puts none of {many_entities(count)} in"
                f" {split}; give a {change} train_ratio (now {train_ratio:g}) or another seed"
            )
