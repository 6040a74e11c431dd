"""Series as a run: find the frequency, clean batch by batch, fit what is fitted once, write batch by batch, finish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.dataset.index import IndexRow
from headrace.dataset.manifest import SplitTotals
from headrace.digest import canonical_json, derive_key, permutation, sha256_hex
from headrace.errors import InputError
from headrace.run.context import STAGE_DIRECTORY, RunContext, Task, TaskFiles
from headrace.run.events import Note
from headrace.run.prepare import Outcome
from headrace.run.receipts import FileRecord, Receipt
from headrace.series.arrays.axis import Frequency, infer
from headrace.series.arrays.near_target import suspects, warning
from headrace.series.batches import EntitySource, FileSource, clean_batch, load
from headrace.series.clean import DROPPED
from headrace.series.config import FILE_NAME, SPLITS, Series
from headrace.series.files import STATIC, entity_files, passed_over, series_files, static_files
from headrace.series.finish import SUMMARY, finish, retained
from headrace.series.long_tables import LongSource, spread
from headrace.series.pipelines.fitted import fit
from headrace.series.pipelines.save import save_part
from headrace.series.pipelines.settings import Resolved, chosen_entities
from headrace.series.readable import readable_schema
from headrace.series.spool import Passed, Spool
from headrace.series.statics import Statics, is_empty, read_statics
from headrace.series.store_file import STORE
from headrace.series.write_batch import (
    UNIFIED,
    split_directory,
    train_rows,
    write_batch,
)
from headrace.storage import local

_SHOWN = 3  # names in a message
_FREQUENCY_ENTITIES = 16  # enough to tell the usual step


def execute(settings: Series, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Do the work in the run directory."""
    resolved = settings.resolved()
    over = passed_over(settings)
    if over:
        shown = ", ".join(over[:_SHOWN]) + (", …" if len(over) > _SHOWN else "")
        context.on_event(Note("warning", f"{len(over):,} files or directories of the source are not read: {shown}"))
    source, left_out, empty = entity_source(settings, context, files)
    frequency = _frequency(settings, context, source)
    statics = _statics(settings, source, files)
    lacking = {} if statics is None else statics.lacking()
    batches = -(-source.count // settings.batch_size)

    def clean_task(number: int) -> Task:
        start, stop = number * settings.batch_size, min((number + 1) * settings.batch_size, source.count)
        return Task(
            f"batch {number}",
            source.bytes(start, stop),
            lambda files: clean_batch(files, settings, resolved, frequency, source, number, lacking),
            source.paths(start, stop),
        )

    cleaned = context.stage("clean", [clean_task(number) for number in range(batches)], durable=False)
    spools = [Spool(context.run, number, len(settings.columns())) for number in range(batches)]
    names = retained(spools)
    _refuse_nothing(settings, source, spools, names)
    _refuse_lacking(settings, lacking, names)
    if resolved.unified_entities:
        _fit_unified(settings, resolved, context, spools, names)
    for split in SPLITS:
        local.make_directory(context.run / split_directory(split))

    def write_task(number: int) -> Task:
        return Task(
            f"batch {number}",
            0,
            lambda files: write_batch(files, settings, resolved, frequency, spools[number]),
        )

    written = context.stage("write", [write_task(number) for number in range(batches)])
    disguised = suspects([receipt.result["near_target"] for receipt in written])
    (finished,) = context.stage(
        "finish",
        [Task(SUMMARY, 0, lambda files: finish(files, settings, resolved, frequency, spools, statics, disguised))],
    )
    empty += [name for receipt in cleaned for name in receipt.result["empty_shards"]]
    empty += [f"{STATIC}/{name}" for path, name in static_files(files) if is_empty(path)]
    return _outcome(settings, context, files, frequency, source, cleaned, written, finished, left_out, sorted(empty))


def entity_source(
    settings: Series, context: RunContext, files: Sequence[tuple[Path, str]]
) -> tuple[EntitySource, Counter[str], list[str]]:
    """Where entities come from; rows of long tables that are of none of them; those tables that have no rows."""
    if settings.entity == FILE_NAME:
        source: EntitySource = FileSource(settings, entity_files(settings, files))
        return source, Counter(), []

    def spread_task(number: int, path: Path, name: str) -> Task:
        return Task(name, path.stat().st_size, lambda files: spread(files, settings, path, name, number), [path])

    tables = series_files(files)
    receipts = context.stage(
        "spread", [spread_task(number, *each) for number, each in enumerate(tables)], durable=False
    )
    left_out = Counter[str]()
    for receipt in receipts:
        left_out += Counter(receipt.result["dropped"])
    empty = [receipt.subject for receipt in receipts if not receipt.result["rows_read"]]
    return LongSource.of(settings, context.run, len(tables)), left_out, empty


def _frequency(settings: Series, context: RunContext, source: EntitySource) -> Frequency:
    """The frequency that was given, or that most of a few entities have."""
    if settings.frequency != "infer":
        return Frequency.parse(settings.frequency)

    def look(_: TaskFiles) -> dict[str, Any]:
        return {"words": _frequencies(settings, source)}

    (receipt,) = context.stage("frequency", [Task("frequency", 0, look)])
    words = Counter(receipt.result["words"])
    if not words:
        raise InputError(
            f"none of {source.count:,} entities tells its frequency; correct the source, or give frequency, e.g. '1d'"
        )
    word = min(words, key=lambda each: (-words[each], Frequency.parse(each).steps_per_year, each))
    if len(words) > 1:
        told = ", ".join(f"{each} ({count})" for each, count in sorted(words.items()))
        context.on_event(Note("warning", f"entities differ in frequency: {told}; {word} is taken for all"))
    return Frequency.parse(word)


def _frequencies(settings: Series, source: EntitySource) -> list[str]:
    """What a few entities say, in the order of a keyed permutation."""
    words: list[str] = []
    for place in permutation(derive_key(settings.seed, "series.frequency"), source.count).tolist():
        (loaded,) = source.batch(place, place + 1)
        observed = load(loaded, [])
        found = None if isinstance(observed, str) else infer(observed.known_times())
        if found is not None:
            words.append(found.word)
        if len(words) == _FREQUENCY_ENTITIES:
            break
    return words


def _statics(settings: Series, source: EntitySource, files: Sequence[tuple[Path, str]]) -> Statics | None:
    if not settings.static_features:
        return None
    entities = [each.entity for each in source.batch(0, source.count)]
    return read_statics(settings, static_files(files), entities)


def _refuse_nothing(settings: Series, source: EntitySource, spools: Sequence[Spool], names: Sequence[str]) -> None:
    if names:
        return
    reports = (record["report"] for spool in spools for record in spool.records())
    reasons = [f"{each['entity']}: {each['failure_reason']}" for each, _ in zip(reports, range(3), strict=False)]
    raise InputError(
        f"no entity of {source.count:,} passes; {'; '.join(reasons)}; correct the data or the settings "
        f"(min_train_years is {settings.min_train_years:g})"
    )


def _refuse_lacking(settings: Series, lacking: Mapping[str, str], names: Sequence[str]) -> None:
    if settings.missing_static != "error":
        return
    bad = [each for each in names if each in lacking]
    if bad:
        raise InputError(
            f"{len(bad):,} of {len(names):,} entities lack static features, first {bad[0]}: {lacking[bad[0]]}; "
            f"complete the static files, or give missing_static='drop_entity', 'mean' or 'median'"
        )


def _fit_unified(
    settings: Series, resolved: Resolved, context: RunContext, spools: Sequence[Spool], names: Sequence[str]
) -> None:
    """Fit the unified pipelines on train rows of a seeded choice of retained entities. O(their rows) of memory."""
    chosen = chosen_entities(names, resolved.unified_entities, settings.seed)

    def work(files: TaskFiles) -> dict[str, Any]:
        wanted = set(chosen)
        parts: dict[str, np.ndarray[Any, Any]] = {}
        for spool in spools:
            here: list[Passed] = [each for each in spool.passed() if each.entity in wanted]
            if here:
                values = spool.values()
                parts |= {each.entity: train_rows([each], values)[0] for each in here}
        matrix = np.concatenate([parts[each] for each in chosen])
        offsets = np.cumsum([0, *(len(parts[each]) for each in chosen)], dtype=np.int64)
        del parts
        fitted = fit(resolved.time_series, settings.columns(), matrix, offsets, chosen, strategy="unified")
        save_part(files, UNIFIED, fitted)
        return {"rows_read": len(matrix), "entities": len(chosen)}

    context.stage("fit", [Task("unified pipelines", 0, work)], durable=False)


def _outcome(
    settings: Series,
    context: RunContext,
    files: Sequence[tuple[Path, str]],
    frequency: Frequency,
    source: EntitySource,
    cleaned: Sequence[Receipt],
    written: Sequence[Receipt],
    finished: Receipt,
    left_out: Counter[str],
    empty: Sequence[str],
) -> Outcome:
    counts = Counter(left_out)
    for receipt in cleaned:
        counts += Counter(receipt.result["rows"])
    read = sum(int(receipt.result["rows_read"]) for receipt in cleaned) + sum(left_out.values())
    index = _index(written)
    passed = sum(int(receipt.result["passed"]) for receipt in cleaned)
    if passed < source.count:
        context.on_event(
            Note("warning", f"{source.count - passed:,} of {source.count:,} entities are left out, see {SUMMARY}")
        )
    unusable = Counter[str]()
    for receipt in cleaned:
        unusable += Counter(receipt.result["unusable"])
    for name, count in finished.result["filled_statics"].items():
        context.on_event(
            Note("warning", f"static feature {name}: {count:,} entities lack it and get the {settings.missing_static}")
        )
    if unusable:
        words = ", ".join(f"{count:,} values of {name}" for name, count in sorted(unusable.items()))
        context.on_event(
            Note("warning", f"{words} behind the train rows cannot be scaled and became missing, see quality reports")
        )
    if finished.result["near_target"]:
        context.on_event(Note("warning", str(warning(settings.target, finished.result["near_target"]))))
    stores = {each.path: each.checksum for receipt in written for each in receipt.files if each.path.startswith(STORE)}
    tables = {each.path: each.digest for each in finished.files}
    return Outcome(
        schema=readable_schema(settings, frequency),
        index=index,
        splits=_totals(context, index),
        dropped={word: counts[word] for word in (*DROPPED, "null_entity", "not_listed")},
        source={
            "files": len(files),
            "bytes": sum(path.stat().st_size for path, _ in files),
            "rows": read,
            "empty_shards": list(empty),
        },
        directories={split: split_directory(split) for split in SPLITS},
        facts={
            "source_rows": {split: counts[split] for split in SPLITS},
            "frequency": frequency.word,
            "columns": settings.columns(),
            "masks": settings.mask_columns(),
            "entities": {"original": source.count, "passed": passed, "failed": source.count - passed},
            "near_target": finished.result["near_target"],
            "unusable_values": dict(sorted(unusable.items())),
            "filled_statics": finished.result["filled_statics"],
            "static_columns": finished.result["static_columns"],
            "pipelines": finished.result["pipelines"],
            "series_files": {**stores, **tables},
            "receipts_digest": published_digest([*written, finished]),
        },
    )


def published_files(receipts: Sequence[Receipt]) -> list[FileRecord]:
    """What these tasks made that stays: not the intermediates of the stage directory."""
    stage = f"{STAGE_DIRECTORY}/"
    return [each for receipt in receipts for each in receipt.files if not each.path.startswith(stage)]


def published_digest(receipts: Sequence[Receipt]) -> str:
    """One digest of all files that these tasks published, by path and SHA-256."""
    return sha256_hex(canonical_json(sorted([each.path, each.digest] for each in published_files(receipts))))


def _index(written: Sequence[Receipt]) -> list[IndexRow]:
    rows = []
    for receipt in written:
        records = {record.path: record for record in receipt.files}
        for path, blocks in receipt.result["blocks"].items():
            record = records[path]
            for block, facts in enumerate(blocks):
                rows.append(
                    IndexRow(
                        split=path.split("/")[1],
                        shard=path,
                        format="parquet",
                        block=block,
                        digest=record.digest,
                        checksum=record.checksum,
                        source_shard="",
                        **facts,
                    )
                )
    return sorted(rows, key=lambda row: (row.split, row.shard, row.block))


def _totals(context: RunContext, index: Sequence[IndexRow]) -> dict[str, SplitTotals]:
    totals = {}
    for split in SPLITS:
        own = [row for row in index if row.split == split]
        names = sorted({row.shard for row in own})
        size = sum((context.run / name).stat().st_size for name in names)
        totals[split] = SplitTotals(rows=sum(row.rows for row in own), shards=len(names), bytes=size)
    return totals
