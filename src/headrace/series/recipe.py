"""Prepare a run of series: find the frequency, clean batches, fit unified pipelines, write batches, finish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from headrace.digest import derive_key
from headrace.errors import InputError, SettingsError
from headrace.formats.dates import MISSING, moment
from headrace.keyed_hash import permutation
from headrace.report.words import many, many_entities, verb
from headrace.run.context import RunContext, Task, TaskFiles
from headrace.run.prepare import Outcome
from headrace.run.receipts import Receipt
from headrace.run.tally import ShardRecord, tally
from headrace.series.arrays.axis import agreed, infer
from headrace.series.arrays.statistics import suspects, warning
from headrace.series.batches import UNIFIED, Spool, clean_batch, finish, write_batch
from headrace.series.clean import DROPPED
from headrace.series.config import Series
from headrace.series.duplicates import REASON, find_copies
from headrace.series.parts import NO_SPLIT, PLAIN
from headrace.series.pipelines.fitted import fit
from headrace.series.pipelines.save import save_part
from headrace.series.pipelines.settings import chosen_entities
from headrace.series.sources import (
    STATIC,
    EntitySource,
    files_of,
    passed_over,
)
from headrace.series.spread import open_source
from headrace.series.statics import read_statics
from headrace.series.store import (
    STORE,
    SUMMARY,
    Entity,
    published_digest,
    readable_schema,
    split_directory,
    stacked,
    train_rows,
)
from headrace.series.times import NONEXISTENT
from headrace.storage import local

_SHOWN = 3  # names in a message
_FREQUENCY_ENTITIES = 16  # enough to find the most common step


def execute(settings: Series, context: RunContext, files: Sequence[tuple[Path, str]]) -> Outcome:
    """Do the work of a run in its directory."""
    over = passed_over(settings)
    if over:
        shown = ", ".join(over[:_SHOWN]) + (", …" if len(over) > _SHOWN else "")
        count = many(len(over), "file or directory", "files or directories")
        context.warn([f"{count} of the source {verb(len(over), 'is', 'are')} not read: {shown}"])
    source, counts, empty = open_source(settings, context, files)
    rows_left = sum(counts.values())
    _check_named(settings, context, source.names)
    settings = _with_frequency(settings, context, source)
    static = files_of(STATIC, files)
    statics = read_statics(settings, static, source.names) if settings.static_features else None
    lacking = {} if statics is None else statics.lacking()
    cleaned = _clean(settings, context, source, lacking)
    kept = _retained(settings, context, source, len(cleaned), lacking)
    if settings.resolved.unified_entities and settings.pipelines_from is None:
        _fit_unified(settings, context, kept)
    splits = settings.division.parts.splits
    for split in splits:
        local.make_directory(context.run / split_directory(split))
    written = context.stage(
        "write",
        [Task(f"batch {each.number}", 0, partial(write_batch, settings, each)) for each in kept.spools],
    )
    disguised = suspects([receipt.result["near_target"] for receipt in written])
    finishing = partial(finish, settings, kept.spools, statics, disguised, kept.copies)
    (finished,) = context.stage("finish", [Task(SUMMARY, 0, finishing)])

    unusable = _count(counts, cleaned, kept.left_out)
    empty += [name for receipt in cleaned for name in receipt.result["empty_shards"]]
    empty += [f"{STATIC}/{name}" for path, name in static if not path.stat().st_size]
    facts = finished.result
    if kept.copies or settings.duplicates == "drop":
        facts = {**facts, "duplicates": {"are": settings.duplicates, "entities": len(kept.copies)}}
    _tell(settings, context, kept, len(source.names), facts["filled_statics"], unusable, disguised)
    records = [record for receipt in written for record in receipt.files]
    blocks = {path: each for receipt in written for path, each in receipt.result["blocks"].items()}
    shards = [
        ShardRecord(each.path.split("/")[1], each, blocks[each.path], "parquet")
        for each in records
        if each.path in blocks
    ]
    index, totals = tally(shards, splits)
    if none := [*_without_rows(settings, kept, {split: own.rows for split, own in totals.items()})]:
        context.warn(none)
        facts = {**facts, "no_rows": none}
    stores = {each.path: each.checksum for each in records if each.path.startswith(STORE)}
    passed, failed = len(kept.names), len(source.names) - len(kept.names)
    noted = sum((Counter(receipt.result["times"]) for receipt in cleaned), Counter[str]())
    if noted:
        facts = {**facts, "times": dict(sorted(noted.items()))}
    return Outcome(
        schema=readable_schema(settings),
        index=index,
        splits=totals,
        dropped={word: counts[word] for word in _reasons(settings)},
        source={
            "files": len(files),
            "bytes": sum(path.stat().st_size for path, _ in files),
            "rows": sum(int(receipt.result["rows_read"]) for receipt in cleaned) + rows_left,
            "empty_shards": sorted(empty),
        },
        directories={split: split_directory(split) for split in splits},
        facts={
            "source_rows": {split: counts[split] for split in splits},
            "frequency": settings.frequency,
            "columns": settings.columns(),
            "masks": settings.mask_columns(),
            "entities": {"original": passed + failed, "passed": passed, "failed": failed},
            **settings.division.facts(),
            "unusable_values": unusable,
            **facts,
            "series_files": {**stores, **{each.path: each.digest for each in finished.files}},
            "receipts_digest": published_digest((each.path, each.digest) for each in (*records, *finished.files)),
        },
    )


def _reasons(settings: Series) -> list[str]:
    """Return the reasons for which these settings can drop a row."""
    return [
        *DROPPED,
        *([] if settings.division.parts is PLAIN else [NO_SPLIT]),
        "null_entity",
        "not_listed",
        *([REASON] if settings.duplicates == "drop" else []),
        *([NONEXISTENT] if settings.time_zone else []),
    ]


def _check_named(settings: Series, context: RunContext, names: Sequence[str]) -> None:
    """Warn about held-out entities and entities of cut_dates that are not in the source.

    Raises `InputError` if none of a held-out split, or none of cut_dates, is in the source, and `SettingsError` for a
    category that means a missing value. Earlier runs may have one, so the settings themselves allow it.
    """
    for name, own in settings.categories.items():
        for text in sorted({"", *settings.null_values} & set(own)):
            remedy = "take it out of one of categories and null_values" if text else "take it out"
            raise SettingsError(f"categories of {name} list {text!r}, which means a missing value; {remedy}")
    unknown = sorted(settings.division.dates.keys() - set(names))
    if unknown and len(unknown) == len(settings.division.dates):
        raise InputError(
            f"none of the entities in cut_dates is in the source, such as {unknown[0]!r}; correct the names"
        )
    if unknown:
        told = f"{len(unknown):,} of the entities in cut_dates {verb(len(unknown), 'is', 'are')} not in the source"
        context.warn([f"{told}: {', '.join(unknown[:_SHOWN])}"])
    strange = sorted(settings.division.held_out.keys() - set(names))
    if not strange:
        return
    for side in sorted(set(settings.division.held_out.values())):
        if all(name in strange for name, own in settings.division.held_out.items() if own == side):
            raise InputError(f"none of {side}_entities is in the source, such as {strange[0]!r}; correct the names")
    context.warn([f"{len(strange):,} held-out entities are not in the source, e.g. {', '.join(strange[:_SHOWN])}"])


def _clean(settings: Series, context: RunContext, source: EntitySource, lacking: Mapping[str, str]) -> list[Receipt]:
    """Read, clean and cut the entities, one batch per task. lacking: entities without their static features."""
    tasks = []
    for number in range(-(-len(source.names) // settings.batch_size)):
        paths = source.paths(source.batch(number, settings.batch_size))
        size = sum(path.stat().st_size for path in paths if path.is_file())
        tasks.append(Task(f"batch {number}", size, partial(clean_batch, settings, source, number, lacking), paths))
    return context.stage("clean", tasks, durable=False)


@dataclass(frozen=True)
class _Kept:
    """Entities that passed the checks and stay, in order, and the batches that hold them.

    copies: entities that repeat an earlier one.
    left_out: the reports of those dropped as copies, as if they stayed.
    """

    names: list[str]
    spools: list[Spool]
    copies: Mapping[str, str]
    left_out: list[dict[str, Any]]


def _retained(
    settings: Series, context: RunContext, source: EntitySource, batches: int, lacking: Mapping[str, str]
) -> _Kept:
    """Find the passed entities, and leave out those that repeat others if requested.

    Raises `InputError` if no entity passes or trains, or if a static feature is missing and that is an error.
    """
    spools = [Spool(context.run, number, len(settings.columns())) for number in range(batches)]
    passing = [
        [(record["entity"]["entity"], record.get("series")) for record in spool.records() if "entity" in record]
        for spool in spools
    ]
    copies = find_copies(each for own in passing for each in own if each[1] is not None)
    dropped = copies if settings.duplicates == "drop" else {}
    left_out: list[dict[str, Any]] = []
    for number, own in enumerate(passing):
        if here := {name: dropped[name] for name, _ in own if name in dropped}:
            left_out += [each for each in spools[number].reports() if each["entity"] in here]
            spools[number] = replace(spools[number], left_out=here)
    names = [name for own in passing for name, _ in own if name not in dropped]
    if not any(map(settings.division.trains, names)):
        failed = (each for spool in spools for each in spool.reports() if each["failure_reason"] is not None)
        reasons = [f"{each['entity']}: {each['failure_reason']}" for each in islice(failed, _SHOWN)]
        otherwise = "all are held out" if names else "the source has no rows"
        raise InputError(
            f"no entity of {len(source.names):,} {'trains' if names else 'passes'}; "
            f"{'; '.join(reasons) or otherwise}; correct the data or the settings"
        )
    bad = [each for each in names if each in lacking]
    if bad and settings.missing_static == "error":
        raise InputError(
            f"{len(bad):,} of {many_entities(len(names))} lack static features, first {bad[0]}: {lacking[bad[0]]}; "
            f"complete the static files, or give missing_static='drop_entity'"
            + ("" if settings.reused else ", 'mean' or 'median'")
        )
    return _Kept(names, spools, copies, left_out)


def _count(counts: Counter[str], cleaned: Sequence[Receipt], left_out: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Add the rows of all batches to `counts`; those of copies that are left out count under that reason.

    Returns the number of values of each column that could not be scaled.
    """
    unusable = Counter[str]()
    for receipt in cleaned:
        counts += Counter(receipt.result["rows"])
        unusable += Counter(receipt.result["unusable"])
    for report in left_out:
        counts.subtract(report["source_rows"])
        counts[REASON] += sum(report["source_rows"].values())
        unusable.subtract({name: own["unusable_values_count"] for name, own in report["imputation_info"].items()})
    return dict(sorted((+unusable).items()))  # without zeros


def _tell(
    settings: Series,
    context: RunContext,
    kept: _Kept,
    original: int,
    filled: Mapping[str, int],
    unusable: Mapping[str, int],
    disguised: Mapping[str, Sequence[int]],
) -> None:
    """Warn about entities that are left out, and values that were filled, are unusable, or look like the target."""
    passed = len(kept.names)
    if kept.copies and settings.duplicates != "drop":
        shown = ", ".join(f"{each!r} those of {kept.copies[each]!r}" for each in islice(kept.copies, _SHOWN))
        more = f" and {len(kept.copies) - _SHOWN:,} more" if len(kept.copies) > _SHOWN else ""
        context.warn(
            [
                f"{len(kept.copies):,} of {passed:,} entities {verb(len(kept.copies), 'has', 'have')} the values and "
                f'times of an earlier one under another name: {shown}{more}; choose duplicates="drop" to leave them out'
            ]
        )
    if failed := original - passed:
        context.warn([f"{failed:,} of {many_entities(original)} {verb(failed, 'is', 'are')} left out, see {SUMMARY}"])
    context.warn(
        f"static feature {name}: {many(count, 'entity lacks it and gets', 'entities lack it and get')} the "
        f"{settings.missing_static}"
        for name, count in filled.items()
    )
    if unusable:
        words = ", ".join(f"{many(count, 'value')} of {name}" for name, count in unusable.items())
        context.warn([f"{words} after the train rows cannot be scaled and became missing, see quality reports"])
    if disguised:
        context.warn([str(warning(settings.target, disguised))])


def _without_rows(settings: Series, kept: _Kept, rows: Mapping[str, int]) -> Iterator[str]:
    """Describe the splits that were asked for and have no rows, in every entity or in some with dates of their own."""
    division, parts = settings.division, settings.division.parts
    if settings.pipelines_from is not None:
        return
    for fold, ranges in enumerate(parts.ranges):
        for split, cells in ranges.items():
            empty = not any(rows[name] for name in parts.names[slice(*cells)] if name is not None)
            if division.rolling is not None:
                if empty:
                    val, test = division.cuts or next(iter(division.dates.values()))
                    cut = division.rolling.cuts[fold] + (test - val if split == "test" else 0)
                    last = max(_last(settings, each) for spool in kept.spools for each in spool.entities())
                    yield (
                        f"fold {fold} (cut at {_day(cut)}) has no rows in {split}: the last row is at {_day(last)}; "
                        "give fewer folds or an earlier train_end"
                    )
            elif split in division.held_out.values() and all(division.side_of(name) != split for name in kept.names):
                yield f"{split} has no rows: none of {split}_entities passes; see {SUMMARY}, and name others"
            elif division.by_dates:
                yield from _beyond(settings, kept, split, empty)
            elif empty and (share := getattr(settings, f"{split}_ratio")):
                yield (
                    f"{split} has no rows: {split}_ratio {share:g} is less than one observed target of every entity; "
                    "give a larger one"
                )


def _beyond(settings: Series, kept: _Kept, split: str, everywhere: bool) -> Iterator[str]:
    """Describe a split that the dates leave empty, everywhere or in entities that have dates of their own."""
    division, own = settings.division, settings.division.dates
    if split == "train" or not (everywhere or own):
        return
    found = []
    for each in (each for spool in kept.spools for each in spool.entities()):
        (val, test), side = own.get(each.entity, division.cuts or (0, 0)), division.side_of(each.entity)
        may = side == split or (side == "train" and split not in division.held_out.values())
        start, stop = division.parts.rows(each.borders, split)
        if may and start == stop and (everywhere or each.entity in own) and (split == "test" or val < test):
            found.append((each.entity, val, test, _last(settings, each)))
    if not found:
        return
    entity, val, test, last = found[0] if not everywhere else max(found, key=lambda each: each[3])
    name, cut = ("train_end", val) if split == "val" or val == test else ("val_end", test)
    named = f"{name} in cut_dates" if entity in own else name
    whose = "" if everywhere else f" of {many_entities(len(found))}, first {entity!r}"
    why = f"{named} {_day(cut)} is after the last row, at {_day(last)}; give an earlier {name}"
    if cut <= last:
        reach = ", less gap and label_horizon" if division.reach_us else ""
        why = f"no row is from {named} {_day(cut)} to before val_end {_day(test)}{reach}; give other dates"
    yield f"{split} has no rows{whose}: {why}"


def _last(settings: Series, entity: Entity) -> int:
    return int(entity.axis(settings.step).times()[-1])


def _day(micros: int) -> str:
    return moment(micros).removesuffix(" 00:00:00")


def _with_frequency(settings: Series, context: RunContext, source: EntitySource) -> Series:
    """Return the settings with the given frequency, the most common one of a few entities, or the coarsest of all."""
    if settings.frequency not in ("infer", "coarsest"):
        return settings

    def look(_: TaskFiles) -> dict[str, Any]:
        words: list[str] = []
        why: dict[int, str] = {}
        for number in permutation(derive_key(settings.seed, "series.frequency"), len(source.names)).tolist():
            try:
                observed = source.read(number, [])
            except InputError as error:
                why[number] = str(error)  # reported again, as a failure, when the entity is cleaned
                continue
            times = observed.times[observed.times != MISSING]
            found = infer(times)
            if found is None:
                told = f"{many(len(np.unique(times)), 'time does', 'times do')} not show a step; three would"
                distinct = f"{source.name(number) or 'its rows'}: {told}"
                why[number] = observed.bad_time or distinct
                continue
            words.append(found.word)
            if len(words) == _FREQUENCY_ENTITIES and settings.frequency == "infer":
                break
        if not words:
            return {"why": [f"{source.names[number]}: {why[number]}" for number in sorted(why)[:_SHOWN]]}
        return {"words": words}

    (receipt,) = context.stage("frequency", [Task("frequency", 0, look)])
    words = Counter[str](receipt.result.get("words", []))
    if not words:
        told = "; ".join(receipt.result["why"]) or "there is none"
        raise InputError(
            f"no time axis in any of {many_entities(len(source.names))}: {told}. Correct the source or the settings "
            f"time, time_format and entity, or give frequency, e.g. '1d'"
        )
    word = agreed(words, settings.frequency)
    if len(words) > 1:
        told = ", ".join(f"{each} ({count})" for each, count in sorted(words.items()))
        context.warn([f"entities differ in frequency: {told}; {word} is taken for all"])
    return settings.model_copy(update={"frequency": word})


def _fit_unified(settings: Series, context: RunContext, kept: _Kept) -> None:
    """Fit the unified pipelines on train rows of a seeded choice of retained entities. O(these rows) of memory."""
    names = list(filter(settings.division.trains, kept.names))
    chosen = chosen_entities(names, settings.resolved.unified_entities, settings.seed)

    def work(files: TaskFiles) -> dict[str, Any]:
        wanted = set(chosen)
        parts: dict[str, np.ndarray[Any, Any]] = {}
        for spool in kept.spools:
            if here := [each for each in spool.entities() if each.entity in wanted]:
                values = spool.rows("values")
                parts |= {each.entity: train_rows([each], values)[0] for each in here}
        matrix, offsets = stacked([parts.pop(each) for each in chosen])
        fitted = fit(settings.resolved.time_series, settings.columns(), matrix, offsets, chosen, strategy="unified")
        save_part(files, UNIFIED, fitted)
        return {"rows_read": len(matrix), "entities": len(chosen)}

    context.stage("fit", [Task("unified pipelines", 0, work)], durable=False)
