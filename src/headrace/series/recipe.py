"""Prepare a run of series: find the frequency, clean batches, fit unified pipelines, write batches,
finish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from headrace.digest import derive_key
from headrace.errors import InputError, SettingsError, setting, setting_name
from headrace.formats.dates import MISSING, moment
from headrace.keyed_hash import permutation
from headrace.report.words import many_entities, pluralise, verb
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.run.tally import ShardRecord, tally
from headrace.series.arrays.axis import agreed, infer
from headrace.series.arrays.statistics import suspects, warning
from headrace.series.batches import UNIFIED, BatchSpool, clean_batch, finish, write_batch
from headrace.series.clean import find_copies
from headrace.series.division import Division
from headrace.series.pipelines.fitted import fit
from headrace.series.pipelines.save import save_part
from headrace.series.pipelines.settings import chosen_entities
from headrace.series.reasons import DUPLICATE, reasons_of
from headrace.series.settings import Series
from headrace.series.sources import STATIC, EntitySource, files_of, unread_entries
from headrace.series.spread import OpenedSource, open_source
from headrace.series.statics import read_statics
from headrace.series.store import (
    STORE,
    SUMMARY,
    Entity,
    readable_schema,
    shared_times,
    split_directory,
    stacked,
    train_rows,
)
from headrace.storage import local

_NAMES = 3  # in a message
_FREQUENCY_ENTITIES = 16  # enough to find the most common step


def execute(  # noqa: PLR0914 - each stage needs earlier results
    settings: Series,
    context: RunContext,
    files: Sequence[tuple[Path, str]],
) -> Outcome:
    """Do the work of a run in its directory."""
    _warn_of_unread_entries(settings, context)
    opened = open_source(settings, context, files)
    source = opened.source
    _check_names(settings, context, source.names)
    settings = _with_frequency(settings, context, source)
    static_files = files_of(STATIC, files)
    statics = None
    lacking: dict[str, str] = {}
    if settings.static_features:
        statics = read_statics(settings, static_files, source.names)
        lacking = statics.lacking()
    cleaned = _clean(settings, context, source, lacking)
    retained = _retain(settings, context, source, len(cleaned))
    if settings.resolved.unified_entities and settings.fits:
        _fit_unified(settings, context, retained)
    splits = settings.division.layout.splits
    for split in splits:
        local.make_directory(context.run / split_directory(split))
    tasks = []
    for spool in retained.spools:
        work = partial(write_batch, settings, spool)
        tasks.append(Task(f"batch {spool.number}", 0, work))
    written = context.stage("write", tasks)
    near_target = suspects([receipt.extra["near_target"] for receipt in written])
    work = partial(finish, settings, retained.spools, statics, near_target, retained.copies)
    (finished,) = context.stage("finish", [Task(SUMMARY, 0, work)])

    result = dict(finished.extra)
    rows = _count_rows(opened.lost_rows, cleaned, retained.left_out)
    unusable = _count_unusable(cleaned, retained.left_out)
    _warn(settings, context, retained, len(source.names))
    _warn_of_values(settings, context, unusable, near_target)
    index, totals = tally(_shards(written), splits)
    split_rows = {split: total.rows for split, total in totals.items()}
    empty_splits = [*_describe_empty_splits(settings, retained, split_rows)]
    if empty_splits:
        context.warn(empty_splits)
        result["no_rows"] = empty_splits
    if retained.copies or settings.duplicates == "drop":
        result["duplicates"] = {"are": settings.duplicates, "entities": len(retained.copies)}
    result |= _warn_of_doubts(settings, context, cleaned, written)
    changes = +_sum(receipt.extra["times"] for receipt in cleaned)  # without zeros
    if changes:
        result["times"] = dict(sorted(changes.items()))
    passed = len(retained.names)
    original = len(source.names)
    return Outcome(
        schema=readable_schema(settings),
        index=index,
        splits=totals,
        dropped={word: rows[word] for word in reasons_of(settings)},
        source=_describe_source(opened, cleaned, files),
        directories={split: split_directory(split) for split in splits},
        metadata={
            "source_rows": {split: rows[split] for split in splits},
            "frequency": settings.step.word,
            "clock": settings.step.zone or "UTC",
            "columns": settings.columns,
            "entities": {"original": original, "passed": passed, "failed": original - passed},
            **settings.division.manifest_entries(),
            "unusable_values": unusable,
            "calendar_time": "shared" if shared_times(context.run, settings) else "apart",
            **result,
            "series_files": _digests(written, finished),
        },
    )


def _digests(written: Sequence[Receipt], finished: Receipt) -> dict[str, str]:
    """Return the checksums of the store's files, and the digests of the other files, by path."""
    digests = {}
    for receipt in written:
        for record in receipt.files:
            if record.path.startswith(STORE):
                digests[record.path] = record.checksum
    for record in finished.files:
        digests[record.path] = record.digest
    return digests


def _shards(written: Sequence[Receipt]) -> list[ShardRecord]:
    """Return the readable files of all batches."""
    shards = []
    for receipt in written:
        for record in receipt.files:
            blocks = receipt.extra["blocks"].get(record.path)
            if blocks is not None:
                split = record.path.split("/")[1]
                shards.append(ShardRecord(split, record, blocks, "parquet"))
    return shards


def _describe_source(
    opened: OpenedSource, cleaned: Sequence[Receipt], files: Sequence[tuple[Path, str]]
) -> dict[str, Any]:
    """Return what the manifest has about the source."""
    rows_read = sum(receipt.rows_in for receipt in cleaned)
    empty = [*opened.empty]
    for receipt in cleaned:
        empty += receipt.extra["empty_shards"]
    for path, name in files_of(STATIC, files):
        if not path.stat().st_size:
            empty.append(f"{STATIC}/{name}")
    return {
        "files": len(files),
        "bytes": sum(path.stat().st_size for path, _ in files),
        "rows": rows_read + sum(opened.lost_rows.values()),
        "empty_shards": sorted(empty),
    }


def _sum(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total = Counter[str]()
    for count in counts:
        total.update(count)
    return total


def _warn_of_unread_entries(settings: Series, context: RunContext) -> None:
    entries = unread_entries(settings)
    if entries:
        count = pluralise(len(entries), "file or directory", "files or directories")
        names = ", ".join(entries[:_NAMES])
        if len(entries) > _NAMES:
            names += ", …"
        are = verb(len(entries), "is", "are")
        context.warn([f"{count} of the source {are} not read: {names}"])


def _check_names(settings: Series, context: RunContext, names: Sequence[str]) -> None:
    """Warn about held-out entities that are not in the source.

    Raises `InputError` if none of a held-out split is in the source, and `SettingsError` for a
    category that means a missing value.
    """
    missing = {"", *settings.dialect.null_values}
    for name, texts in settings.categories.items():
        for text in sorted(missing.intersection(texts)):
            remedy = "take it out"
            if text:
                remedy += f" of one of categories and null_values of {setting_name('dialect')}"
            raise SettingsError(
                f"those of {name} list {text!r}, which means a missing value",
                setting="categories",
                remedy=remedy,
            )
    known = set(names)
    division = settings.division
    unknown = sorted(division.held_out.keys() - known)
    if not unknown:
        return
    first_sides = {side for name, side in division.held_out.items() if name in known}
    for side in sorted(set(division.held_out.values()) - first_sides):
        raise InputError(
            f"none of these is in the source, such as {unknown[0]!r}",
            setting=f"{side}_entities",
            remedy="correct the names",
        )
    context.warn(
        [
            f"{len(unknown):,} held-out entities are not in the source, e.g."
            f" {', '.join(unknown[:_NAMES])}"
        ]
    )


def _clean(
    settings: Series, context: RunContext, source: EntitySource, lacking: Mapping[str, str]
) -> list[Receipt]:
    """Read, clean and cut the entities, one batch per task.

    lacking: entities without their static features.
    """
    tasks = []
    for number in range(-(-len(source.names) // settings.batch_size)):
        paths = source.paths(source.batch(number, settings.batch_size))
        size = sum(path.stat().st_size for path in paths if path.is_file())
        work = partial(clean_batch, settings, source, number, lacking)
        tasks.append(Task(f"batch {number}", size, work, paths))
    return context.stage("clean", tasks, durable=False)


@dataclass(frozen=True)
class _Retained:
    """Entities that passed the checks and stay, in order, and the batches that hold them.

    copies: entities that repeat an earlier one.
    left_out: the reports of those dropped as copies, as if they stayed.
    """

    names: list[str]
    spools: list[BatchSpool]
    copies: Mapping[str, str]
    left_out: list[dict[str, Any]]

    def entities(self) -> Iterator[Entity]:
        """Yield the retained entities, in order."""
        for spool in self.spools:
            yield from spool.entities()


def _retain(
    settings: Series,
    context: RunContext,
    source: EntitySource,
    batches: int,
) -> _Retained:
    """Find the passed entities, and leave out those that repeat others if requested.

    Raises `InputError` if no entity passes or trains.
    """
    spools = [BatchSpool(context.run, number, len(settings.columns)) for number in range(batches)]
    passed: list[list[str]] = []  # by batch
    digests: list[tuple[str, str]] = []
    for spool in spools:
        names = []
        for record in spool.records():
            if "entity" in record:
                name = record["entity"]["entity"]
                names.append(name)
                if "series" in record:
                    digests.append((name, record["series"]))
        passed.append(names)
    copies = find_copies(digests)
    dropped = copies if settings.duplicates == "drop" else {}
    left_out: list[dict[str, Any]] = []
    for number, names in enumerate(passed):
        here = {name: dropped[name] for name in names if name in dropped}
        if here:
            left_out += [report for report in spools[number].reports() if report["entity"] in here]
            spools[number] = replace(spools[number], left_out=here)
    retained = [name for names in passed for name in names if name not in dropped]
    if not any(map(settings.division.trains, retained)):
        outcome = "is in train" if retained else "passes"
        why = "all are held out" if retained else "the source has no rows"
        reasons = "; ".join(islice(_failures(spools), _NAMES))
        raise InputError(
            f"no entity of {len(source.names):,} {outcome}: {reasons or why}",
            remedy="correct the data or the settings",
        )
    return _Retained(retained, spools, copies, left_out)


def _failures(spools: Iterable[BatchSpool]) -> Iterator[str]:
    """Yield each entity that does not pass, with the reason, its settings marked."""
    for spool in spools:
        for record in spool.records():
            report = record["report"]
            if report["failure_reason"] is not None:
                reason = record.get("marked_reason", report["failure_reason"])
                yield f"{report['entity']}: {reason}"


def _count_rows(
    lost_rows: Counter[str], cleaned: Sequence[Receipt], copies: Sequence[Mapping[str, Any]]
) -> Counter[str]:
    """Count the rows of all batches by split or reason; those of copies that are left out count
    under that reason.
    """
    rows = _sum([lost_rows, *(receipt.extra["rows"] for receipt in cleaned)])
    for report in copies:
        rows.subtract(report["source_rows"])
        rows[DUPLICATE.word] += sum(report["source_rows"].values())
    return rows


def _count_unusable(
    cleaned: Sequence[Receipt], copies: Sequence[Mapping[str, Any]]
) -> dict[str, int]:
    """Return the number of values of each column that could not be scaled."""
    unusable = _sum(receipt.extra["unusable"] for receipt in cleaned)
    for report in copies:
        for column, info in report["imputation_info"].items():
            unusable[column] -= info["unusable_values_count"]
    return dict(sorted((+unusable).items()))  # without zeros


def _warn(settings: Series, context: RunContext, retained: _Retained, original: int) -> None:
    """Warn about entities that repeat others or are left out."""
    passed = len(retained.names)
    copies = retained.copies
    if copies and settings.duplicates != "drop":
        pairs = ", ".join(f"{name!r} those of {copies[name]!r}" for name in islice(copies, _NAMES))
        if len(copies) > _NAMES:
            pairs += f" and {len(copies) - _NAMES:,} more"
        context.warn(
            [
                f"{len(copies):,} of {passed:,} entities {verb(len(copies), 'has', 'have')} the"
                f" values and times of an earlier one under another name: {pairs}; choose"
                f" {setting('duplicates', 'drop')} to leave them out"
            ]
        )
    failed = original - passed
    if failed:
        are = verb(failed, "is", "are")
        context.warn([f"{failed:,} of {many_entities(original)} {are} left out, see {SUMMARY}"])


def _warn_of_values(
    settings: Series,
    context: RunContext,
    unusable: Mapping[str, int],
    near_target: Mapping[str, Sequence[int]],
) -> None:
    """Warn about values that are unusable, or look like the target."""
    if unusable:
        words = ", ".join(
            f"{pluralise(count, 'value')} of {name}" for name, count in unusable.items()
        )
        context.warn(
            [
                f"{words} after the train rows cannot be scaled and became missing, see quality"
                " reports"
            ]
        )
    message = warning(settings.target[0], near_target)
    if message is not None:
        context.warn([message])


def _warn_of_doubts(
    settings: Series, context: RunContext, cleaned: Sequence[Receipt], written: Sequence[Receipt]
) -> dict[str, list[str]]:
    """Warn about axes with more empty steps than rows, and about targets whose values float32
    cannot tell apart; return the warnings by their name in the manifest.
    """
    doubts = {}
    axes = [axis for receipt in cleaned for axis in receipt.extra["long_axes"]]
    if axes:
        parts = []
        for axis in axes[:_NAMES]:
            before, after = map(_day, axis["hole"])
            parts.append(
                f"{axis['entity']!r} {axis['added_rows']:,} for {pluralise(axis['rows'], 'row')},"
                f" most of them between {before} and {after}"
            )
        has = verb(len(axes), "has", "have")
        doubts["long_axes"] = [
            f"{many_entities(len(axes))} {has} more steps of {settings.step.word} without a row"
            f" than rows: {_shortened(parts, len(axes))}; correct the date if it is mistyped, or"
            " give a longer frequency"
        ]
    targets = [target for receipt in written for target in receipt.extra["rounded_targets"]]
    if targets:
        parts = []
        for target in targets[:_NAMES]:
            parts.append(
                f"{target['kept']:,} of {target['values']:,} values of {target['column']} of"
                f" {target['entity']!r}"
            )
        doubts["rounded_targets"] = [
            f"float32 keeps {_shortened(parts, len(targets))} apart, as they are large beside their"
            " differences; give target a pipeline that subtracts a centre, such as StandardScaler"
        ]
    for sentences in doubts.values():
        context.warn(sentences)
    return doubts


def _shortened(parts: Sequence[str], count: int) -> str:
    """Join the first of `count` parts."""
    more = f" and {count - len(parts):,} more" if count > len(parts) else ""
    return f"{'; '.join(parts)}{more}"


def _describe_empty_splits(
    settings: Series, retained: _Retained, rows: Mapping[str, int]
) -> Iterator[str]:
    """Describe the requested splits that have no rows, in every entity or in some with dates of
    their own.
    """
    if not settings.fits:
        return
    division = settings.division
    held_out = division.held_out.values()
    for fold, ranges in enumerate(division.layout.ranges):
        for split, (first, last) in ranges.items():
            cells = division.layout.names[first:last]
            empty = not any(rows[name] for name in cells if name is not None)
            if division.rolling is not None:
                if empty:
                    yield _describe_empty_fold(settings, retained, fold, split)
            elif split in held_out and all(
                division.side_of(name) != split for name in retained.names
            ):
                yield (
                    f"{split} has no rows: none of {split}_entities passes; see {SUMMARY}, and name"
                    " others"
                )
            elif division.cuts is not None:
                if empty:
                    yield from _describe_dates(settings, retained, split)
            elif empty and settings.ratios[split]:
                yield (
                    f"{split} has no rows: a share of {settings.ratios[split]:g} is less than one"
                    " observed target of every entity; give other ratios"
                )


def _describe_empty_fold(settings: Series, retained: _Retained, fold: int, split: str) -> str:
    division = settings.division
    assert division.rolling is not None
    cut = division.rolling.cuts[fold]
    if split == "test":
        assert division.cuts is not None
        cut += division.cuts[1] - division.cuts[0]
    last = max(_last_time(settings, entity) for entity in retained.entities())
    return (
        f"fold {fold} (cut at {_day(cut)}) has no rows in {split}: the last row is at"
        f" {_day(last)}; give fewer folds or an earlier train_end"
    )


def _describe_dates(settings: Series, retained: _Retained, split: str) -> Iterator[str]:
    """Describe a split that the dates leave empty everywhere."""
    division = settings.division
    assert division.cuts is not None
    val, test = division.cuts
    if split == "train" or (split == "val" and val == test):
        return
    lasts = []
    for entity in retained.entities():
        if _is_empty(division, entity, split):
            lasts.append(_last_time(settings, entity))
    if not lasts:
        return
    last = max(lasts)
    name = "val_end"
    cut = test
    if split == "val" or val == test:
        name = "train_end"
        cut = val
    if cut > last:
        why = f"{name} {_day(cut)} is after the last row, at {_day(last)}; give an earlier {name}"
    else:
        margin = ", less gap" if division.margin_us else ""
        why = (
            f"no row is from {name} {_day(cut)} to before val_end {_day(test)}{margin}; give other"
            " dates"
        )
    yield f"{split} has no rows: {why}"


def _is_empty(division: Division, entity: Entity, split: str) -> bool:
    """Return whether an entity could have rows in a split and has none."""
    side = division.side_of(entity.entity)
    can = side == split or (side == "train" and split not in division.held_out.values())
    start, stop = division.layout.rows(entity.boundaries, split)
    return can and start == stop


def _last_time(settings: Series, entity: Entity) -> int:
    return int(entity.axis(settings.step).times()[-1])


def _day(micros: int) -> str:
    return moment(micros).removesuffix(" 00:00:00")


def _with_frequency(settings: Series, context: RunContext, source: EntitySource) -> Series:
    """Return the settings with their frequency, the most common one of a few entities, or the
    coarsest of all.
    """
    if not settings.needs_frequency:
        return settings
    work = partial(_find_frequencies, settings, source)
    (receipt,) = context.stage("frequency", [Task("frequency", 0, work)])
    words = Counter[str](receipt.extra["words"])
    if not words:
        reasons = "; ".join(receipt.extra["why"]) or "there is none"
        names = ", ".join(map(setting_name, ("time", "dialect", "entity")))
        raise InputError(
            f"no time axis in any of {many_entities(len(source.names))}: {reasons}",
            setting="frequency",
            remedy=f"correct the source or {names}, or give a frequency, e.g. 1d",
        )
    word = agreed(words, settings.frequency)
    if len(words) > 1:
        counts = ", ".join(f"{step} ({count})" for step, count in sorted(words.items()))
        context.warn([f"entities differ in frequency: {counts}; {word} is taken for all"])
    return settings.with_frequency(word)


def _find_frequencies(settings: Series, source: EntitySource, _: TaskFiles) -> dict[str, list[str]]:
    """Return the frequencies of some entities, or if they show none, why."""
    words: list[str] = []
    why: dict[int, str] = {}
    order = permutation(derive_key(settings.seed, "series.frequency"), len(source.names))
    for number in order.tolist():
        try:
            observed = source.read(number, [])
        except InputError as error:
            why[number] = error.marked  # reported again, as a failure, when the entity is cleaned
            continue
        times = observed.times[observed.times != MISSING]
        frequency = infer(times)
        if frequency is None:
            count = pluralise(len(np.unique(times)), "time does", "times do")
            no_step = InputError(
                f"{count} not show a step; three would", path=source.file_name(number) or "its rows"
            )
            why[number] = (observed.bad_time or no_step).marked
            continue
        words.append(frequency.word)
        if len(words) == _FREQUENCY_ENTITIES and settings.frequency == "infer":
            break
    reasons = [f"{source.names[number]}: {why[number]}" for number in sorted(why)[:_NAMES]]
    return {"words": words, "why": reasons}


def _fit_unified(settings: Series, context: RunContext, retained: _Retained) -> None:
    """Fit the unified pipelines on train rows of a seeded choice of retained entities. O(these
    rows) of memory.
    """
    trained = list(filter(settings.division.trains, retained.names))
    chosen = chosen_entities(trained, settings.resolved.unified_entities, settings.seed)

    def work(files: TaskFiles) -> dict[str, Any]:
        names = set(chosen)
        rows: dict[str, np.ndarray[Any, Any]] = {}
        for spool in retained.spools:
            entities = [entity for entity in spool.entities() if entity.entity in names]
            if entities:
                values = spool.values()
                rows |= {entity.entity: train_rows([entity], values)[0] for entity in entities}
        matrix, offsets = stacked([rows.pop(name) for name in chosen])
        pipelines = settings.resolved.time_series
        fitted = fit(pipelines, settings.columns, matrix, offsets, chosen, strategy="unified")
        save_part(files, UNIFIED, fitted)
        return {"rows_in": len(matrix), "entities": len(chosen)}

    context.stage("fit", [Task("unified pipelines", 0, work)], durable=False)
