"""Prepare a run of series: find the frequency, clean batches, fit what is fitted once, write batches, finish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.dataset.index import IndexRow
from headrace.dataset.manifest import SplitTotals
from headrace.digest import derive_key, permutation
from headrace.errors import InputError
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.series.arrays.axis import Frequency, infer
from headrace.series.arrays.near_target import suspects, warning
from headrace.series.clean import DROPPED
from headrace.series.clean_batch import Spool, clean_batch
from headrace.series.config import FILE_NAME, SPLITS, Series
from headrace.series.files import STATIC, EntitySource, entity_source, passed_over, series_files, static_files
from headrace.series.long_tables import spread, spread_source
from headrace.series.pipelines.fitted import fit
from headrace.series.pipelines.save import save_part
from headrace.series.pipelines.settings import Resolved, chosen_entities
from headrace.series.statics import is_empty, read_statics
from headrace.series.store import (
    STORE,
    SUMMARY,
    published_digest,
    readable_schema,
    split_directory,
    stacked,
    train_rows,
)
from headrace.series.write_batch import UNIFIED, finish, write_batch
from headrace.storage import local

_SHOWN = 3  # names in a message
_FREQUENCY_ENTITIES = 16  # enough to tell the usual step


def execute(settings: Series, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Do the work in the run directory."""
    resolved = settings.resolved()
    over = passed_over(settings)
    if over:
        shown = ", ".join(over[:_SHOWN]) + (", …" if len(over) > _SHOWN else "")
        context.warn([f"{len(over):,} files or directories of the source are not read: {shown}"])
    source, left_out, empty = open_source(settings, context, files)
    frequency = _frequency(settings, context, source)
    statics = read_statics(settings, static_files(files), source.names) if settings.static_features else None
    lacking = {} if statics is None else statics.lacking()
    batches = range(-(-len(source.names) // settings.batch_size))

    def clean_task(number: int) -> Task:
        paths = source.paths(source.batch(number, settings.batch_size))
        return Task(
            f"batch {number}",
            sum(path.stat().st_size for path in paths if path.is_file()),
            lambda files: clean_batch(files, settings, resolved, frequency, source, number, lacking),
            paths,
        )

    cleaned = context.stage("clean", [clean_task(number) for number in batches], durable=False)
    spools = [Spool(context.run, number, len(settings.columns())) for number in batches]
    names = [each.entity for spool in spools for each in spool.entities()]
    _refuse(settings, source, spools, names, lacking)
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

    written = context.stage("write", [write_task(number) for number in batches])
    disguised = suspects([receipt.result["near_target"] for receipt in written])
    (finished,) = context.stage(
        "finish",
        [Task(SUMMARY, 0, lambda files: finish(files, settings, resolved, frequency, spools, statics, disguised))],
    )
    return _outcome(settings, context, files, frequency, source, cleaned, written, finished, left_out, empty)


def open_source(
    settings: Series, context: RunContext, files: Sequence[tuple[Path, str]]
) -> tuple[EntitySource, Counter[str], list[str]]:
    """Open the source; also count rows of long tables that belong to no entity, and list tables without rows."""
    if settings.entity == FILE_NAME:
        return entity_source(settings, files), Counter(), []

    def spread_task(number: int, path: Path, name: str) -> Task:
        return Task(name, path.stat().st_size, lambda files: spread(files, settings, path, name, number), [path])

    tables = series_files(files)
    receipts = context.stage(
        "spread", [spread_task(number, *each) for number, each in enumerate(tables)], durable=False
    )
    left_out = sum((Counter(receipt.result["dropped"]) for receipt in receipts), Counter[str]())
    empty = [receipt.subject for receipt in receipts if not receipt.result["rows_read"]]
    return spread_source(settings, context.run, len(tables)), left_out, empty


def _frequency(settings: Series, context: RunContext, source: EntitySource) -> Frequency:
    """The frequency that was given, or that most of a few entities have."""
    if settings.frequency != "infer":
        return Frequency.parse(settings.frequency)

    def look(_: TaskFiles) -> dict[str, Any]:
        words: list[str] = []
        for number in permutation(derive_key(settings.seed, "series.frequency"), len(source.names)).tolist():
            try:
                found = infer(source.read(number, []).known_times())
            except InputError:
                continue  # the entity fails when it is cleaned
            words += [] if found is None else [found.word]
            if len(words) == _FREQUENCY_ENTITIES:
                break
        return {"words": words}

    (receipt,) = context.stage("frequency", [Task("frequency", 0, look)])
    words = Counter(receipt.result["words"])
    if not words:
        raise InputError(
            f"none of {len(source.names):,} entities tells its frequency; correct the source, or give frequency, e.g. "
            f"'1d'"
        )
    word = min(words, key=lambda each: (-words[each], Frequency.parse(each).steps_per_year, each))
    if len(words) > 1:
        told = ", ".join(f"{each} ({count})" for each, count in sorted(words.items()))
        context.warn([f"entities differ in frequency: {told}; {word} is taken for all"])
    return Frequency.parse(word)


def _refuse(
    settings: Series,
    source: EntitySource,
    spools: Sequence[Spool],
    names: Sequence[str],
    lacking: Mapping[str, str],
) -> None:
    """Raise `InputError` if no entity passes, or a static feature is lacking where that is an error."""
    if not names:
        reports = (report for spool in spools for report in spool.reports())
        reasons = [f"{each['entity']}: {each['failure_reason']}" for each, _ in zip(reports, range(3), strict=False)]
        raise InputError(
            f"no entity of {len(source.names):,} passes; {'; '.join(reasons)}; correct the data or the settings "
            f"(min_train_years is {settings.min_train_years:g})"
        )
    bad = [each for each in names if each in lacking]
    if bad and settings.missing_static == "error":
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
            here = [each for each in spool.entities() if each.entity in wanted]
            if here:
                values = spool.values()
                parts |= {each.entity: train_rows([each], values)[0] for each in here}
        matrix, offsets = stacked([parts.pop(each) for each in chosen])
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
    empty: list[str],
) -> Outcome:
    counts, unusable = Counter(left_out), Counter[str]()
    for receipt in cleaned:
        counts += Counter(receipt.result["rows"])
        unusable += Counter(receipt.result["unusable"])
        empty += receipt.result["empty_shards"]
    empty += [f"{STATIC}/{name}" for path, name in static_files(files) if is_empty(path)]
    original, passed = len(source.names), sum(int(receipt.result["passed"]) for receipt in cleaned)
    if passed < original:
        context.warn([f"{original - passed:,} of {original:,} entities are left out, see {SUMMARY}"])
    facts = finished.result
    context.warn(
        f"static feature {name}: {count:,} entities lack it and get the {settings.missing_static}"
        for name, count in facts["filled_statics"].items()
    )
    if unusable:
        words = ", ".join(f"{count:,} values of {name}" for name, count in sorted(unusable.items()))
        context.warn([f"{words} behind the train rows cannot be scaled and became missing, see quality reports"])
    if facts["near_target"]:
        context.warn([str(warning(settings.target, facts["near_target"]))])
    records = [record for receipt in written for record in receipt.files]
    stores = {each.path: each.checksum for each in records if each.path.startswith(STORE)}
    tables = {each.path: each.digest for each in finished.files}
    index = _index(written)
    splits = {}
    for split in SPLITS:
        own = [each for each in records if each.path.startswith(f"{split_directory(split)}/")]
        rows = sum(row.rows for row in index if row.split == split)
        splits[split] = SplitTotals(rows=rows, shards=len(own), bytes=sum(each.bytes for each in own))
    return Outcome(
        schema=readable_schema(settings, frequency),
        index=index,
        splits=splits,
        dropped={word: counts[word] for word in (*DROPPED, "null_entity", "not_listed")},
        source={
            "files": len(files),
            "bytes": sum(path.stat().st_size for path, _ in files),
            "rows": sum(int(receipt.result["rows_read"]) for receipt in cleaned) + sum(left_out.values()),
            "empty_shards": sorted(empty),
        },
        directories={split: split_directory(split) for split in SPLITS},
        facts={
            "source_rows": {split: counts[split] for split in SPLITS},
            "frequency": frequency.word,
            "columns": settings.columns(),
            "masks": settings.mask_columns(),
            "entities": {"original": original, "passed": passed, "failed": original - passed},
            "near_target": facts["near_target"],
            "unusable_values": dict(sorted(unusable.items())),
            "filled_statics": facts["filled_statics"],
            "static_columns": facts["static_columns"],
            "pipelines": facts["pipelines"],
            "series_files": {**stores, **tables},
            "receipts_digest": published_digest((each.path, each.digest) for each in (*records, *finished.files)),
        },
    )


def _index(written: Sequence[Receipt]) -> list[IndexRow]:
    rows = []
    for receipt in written:
        records = {record.path: record for record in receipt.files}
        rows += [
            IndexRow(
                split=path.split("/")[1],
                shard=path,
                format="parquet",
                block=block,
                digest=records[path].digest,
                checksum=records[path].checksum,
                source_shard="",
                **facts,
            )
            for path, blocks in receipt.result["blocks"].items()
            for block, facts in enumerate(blocks)
        ]
    return sorted(rows, key=lambda row: (row.split, row.shard, row.block))
