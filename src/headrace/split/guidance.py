"""Judge a split by its scans and counts: refuse wrong units, warn of odd values and small splits, propose settings.

The rows that each rule costs are reported, and what other settings would keep if much is dropped or little tests. Each
alternative is counted row by row under its own plan, from the times, entities and digests of pass 1. The source is not
read again, and the counts equal those of a run with these settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headrace.arrays import I64
from headrace.errors import InputError
from headrace.formats.dates import MISSING, moment
from headrace.formats.shard import Shard
from headrace.report.words import many, share
from headrace.run.context import RunContext
from headrace.run.receipts import Receipt
from headrace.split import duplicates
from headrace.split.allocate import EntitySet, Hashes, allocate
from headrace.split.scan import Scanned, read_scan
from headrace.split.settings import TemporalSplit
from headrace.split.shards import REASONS, SPLITS, SplitPlan, classify, cutoff_us, edge_of

# A split of fewer rows measures nothing. One below the share gets a warning unless it is large anyway.
_FEW_ROWS, _MANY_ROWS, _FEW_SHARE = 10, 10_000, 0.01
_SHOWN = 80
_MOST_DROPPED, _LEAST_TESTED = 0.15, 0.05  # of the rows read
_RATIOS = (0.8, 0.5)
_DAY_US = timedelta(days=1) // timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check_units(settings: TemporalSplit, shards: Sequence[Shard], scans: Sequence[Receipt]) -> None:
    """Refuse numbers that are valid times but probably in another unit, because a wrong unit splits silently.

    Numbers of two usual sizes, with none in between, are epochs of two units. Numbers of one size that is not the
    declared unit's, all on one side of the cutoff, are of that other unit.
    """
    name = settings.time
    dated = [(scan.result, shard) for scan, shard in zip(scans, shards, strict=True) if scan.result["forms"]]
    if dated and all(result["hours"] for result, _ in dated):
        raise InputError(
            f"{dated[0][1].path}: {name} is written in ten digits, an hour as YYYYMMDDHH and also seconds since "
            f'1970; give time_format="%Y%m%d%H" or time_format="epoch_s"'
        )
    first: dict[str, Shard] = {}
    for scan, shard in zip(scans, shards, strict=True):
        for unit in scan.result["units"]:
            first.setdefault(unit, shard)
    if any(scan.result["unusual"] for scan in scans):
        return
    if len(first) > 1:
        told = ", ".join(f"those of {unit} in {first[unit].path}" for unit in sorted(first))
        raise InputError(
            f"{next(iter(first.values())).path}: {name} holds numbers in two units: {told}; write one unit throughout, "
            f"or split the files of each separately"
        )
    if first and settings.time_format not in first and dated:
        unit, shard = next(iter(first.items()))
        first_us = min(result["first_us"] for result, _ in dated)
        last_us = max(result["last_us"] for result, _ in dated)
        if not first_us <= settings.cutoff().instant_us <= last_us:
            raise InputError(
                f"{shard.path}: {name} holds numbers of the size of {unit}, which as {settings.time_format} run from "
                f'{moment(first_us)} to {moment(last_us)}; give time_format="{unit}"'
            )


def few_rows(
    settings: TemporalSplit, rows: Mapping[str, int], dropped: Mapping[str, int], scans: Sequence[Receipt]
) -> Iterator[str]:
    """Warn of splits that are too small to measure anything; state how small, why, and what to change."""
    total, date = sum(rows.values()), settings.split_date
    tests = rows["test"]
    if tests < _FEW_ROWS or (tests < _MANY_ROWS and tests < total * _FEW_SHARE):
        ratio = "" if settings.entity is None else " or a smaller train_ratio="
        trained, validated = dropped["train_entity_after_cutoff"], dropped["val_entity_after_cutoff"]
        repeated = dropped["content_before_cutoff"]
        behind = tests + trained + validated + repeated
        few = "test is empty" if not tests else f"test has {many(tests, 'row')} of {total:,}"
        if behind > 2 * tests:
            why = f"of {many(behind, 'row')} from {date} on, {trained:,} belong to entities that train"
            why += f" and {validated:,} to entities that validate" if validated else ""
            why += f", and {repeated:,} have the content of train or val rows" if repeated else ""
            cure = f"give an earlier split_date={ratio}"
        else:
            last = max((scan.result["last_us"] for scan in scans if scan.result["forms"]), default=None)
            why = (
                f"{many(behind, 'row')} in all are from {date} on"
                if behind
                else f"no row that counts is from {date} on"
            )
            why += "" if last is None else f", and the last date is {moment(last)}"
            cure = "give an earlier split_date="
        if dropped["duplicate"]:
            why += (
                f"; of all splits, {many(dropped['duplicate'], 'row')} with the content of an earlier one are left out"
            )
        yield f"{few}: {why}; {cure}"
    if "val" in rows and rows["val"] < min(_FEW_ROWS, total * _FEW_SHARE):
        yield (
            f"val has {many(rows['val'], 'row')} of {total:,}; give a smaller train_ratio= (now "
            f"{settings.train_ratio}) or a later split_date="
        )


def odd_values(settings: TemporalSplit, scans: Sequence[Receipt]) -> Iterator[str]:
    """Warn of texts that other tools read as missing, entities that look alike, and times that are left out."""
    for role, counts in missing_like(scans).items():
        name, what = (settings.label, "a class") if role == "label" else (settings.entity, "one entity")
        for text, count in counts.items():
            yield (
                f"{name}: {many(count, 'row')} hold the text {text!r}, which is {what}; pandas reads it as missing: "
                f'if it is, give null_values=["{text}"]'
            )
    padded = next(((scan.subject, scan.result["padded"]) for scan in scans if scan.result["padded"] is not None), None)
    if padded is not None:
        yield (
            f"{settings.entity}: texts with surrounding blanks, or not in Unicode form NFC, are separate "
            f"entities, first {padded[1][:_SHOWN]!r} in {padded[0]}; clean them if they mean the same entity"
        )
    first = next((scan.result["first_unreadable"] for scan in scans if scan.result["first_unreadable"]), None)
    if first is not None:
        yield f"rows with an unreadable date are dropped, first {first}"


def missing_like(scans: Sequence[Receipt]) -> dict[str, dict[str, int]]:
    """Count rows whose text means "missing" in other tools, by role of the column and text; only nonzero counts."""
    found = {role: Counter[str]() for role in ("entity", "label")}
    for role, counts in found.items():
        for scan in scans:
            counts.update(scan.result["missing_like"][role])
    return {role: dict(sorted(counts.items())) for role, counts in found.items() if counts}


def guidance(
    context: RunContext,
    plan: SplitPlan,
    scans: Sequence[Receipt],
    rows: Mapping[str, int],
    dropped: Mapping[str, int],
) -> dict[str, Any] | None:
    """Count what other settings would keep; None if little is dropped and enough rows test."""
    read = sum(rows.values()) + sum(dropped.values())
    if sum(dropped.values()) <= _MOST_DROPPED * read and rows["test"] >= _LEAST_TESTED * read:
        return None
    changes = list(_changes(plan, scans, dropped))
    others = [replace(plan, settings=plan.settings.model_copy(update=each), leave=None) for each in changes]
    every, own = _known(context, plan, others, len(scans))
    plans = []
    for other, known in zip(others, own, strict=True):
        other = replace(other, allocation=allocate(known, other.settings.train_ratio))
        plans.append(duplicates.decided(context, other, len(scans)))
    places = [np.append(known.places(every), -1) for known in own]
    parts = context.map([partial(_counts, context.run, plans, every, places, number) for number in range(len(scans))])
    found = []
    for changed, other, counts in zip(changes, plans, np.sum(parts, axis=0).tolist(), strict=True):
        kept = {split: counts[SPLITS.index(split)] for split in other.settings.splits}
        if all(kept[split] for split in other.settings.splits[:-1]):  # a run whose other splits are empty is refused
            found.append({"settings": changed, "rows": kept, "dropped": read - sum(kept.values())})
    return {
        "rows_read": read,
        "rows": dict(rows),
        "dropped": {reason: count for reason, count in dropped.items() if count},
        "alternatives": found,
    }


def told(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line on what the rules cost, then a sentence for each alternative."""
    read, lost = found["rows_read"], sum(found["dropped"].values())
    by_size = sorted(found["dropped"].items(), key=lambda each: (-each[1], each[0]))
    why = ", ".join(f"{rows:,} for {reason}" for reason, rows in by_size)
    tested = found["rows"]["test"]
    yield (
        f"{lost:,} of {read:,} rows ({share(lost, read)}) are dropped{f', {why}' if why else ''}; {tested:,} "
        f"({share(tested, read)}) test" + (". Other settings would keep:" if found["alternatives"] else "")
    )
    for each in found["alternatives"]:
        kept = ", ".join(f"{split} {each['rows'][split]:,}" for split in SPLITS if split in each["rows"])
        yield f"with {changed_words(each['settings'])}: {kept}, dropped {each['dropped']:,}"


def changed_words(settings: Mapping[str, Any]) -> str:
    """Name the setting of an alternative and its value."""
    return ", ".join(f"no {name}" if value is None else f"{name}={value}" for name, value in settings.items())


def _changes(plan: SplitPlan, scans: Sequence[Receipt], dropped: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """List the settings, changed one at a time, that would reduce dropped rows or add test rows."""
    settings = plan.settings
    if dropped["val_entity_after_cutoff"]:
        yield {"val_in_test": "keep"}
    if dropped.get("gap_before_cutoff"):
        yield {"gap": None}
    if settings.entity is not None:
        yield from ({"train_ratio": ratio} for ratio in _RATIOS if ratio < settings.train_ratio)
    cutoff, edge = settings.cutoff(), cutoff_us(settings, plan.clock)
    times = [scan.result for scan in scans if scan.result["first_us"] is not None]
    if not times or cutoff.fold_start_us < cutoff.fold_end_us:  # times in a repeated hour have no side
        return
    first, last = min(each["first_us"] for each in times), max(each["last_us"] for each in times)
    tested = last - edge if last > edge else (edge - first) // 4
    for other in (edge - tested, edge + tested // 2):  # twice the test period, and half of it
        unit = _DAY_US if tested > 4 * _DAY_US else 1_000_000
        at = other - other % unit
        if not first < at <= last or at == edge:
            continue
        with suppress(ValueError, OverflowError):  # an hour that clocks skip or repeat, or a year out of range
            moved_to = _EPOCH + timedelta(microseconds=at)  # written on the clock of the run, like the split date
            if plan.clock == "wall" or settings.timezone == "UTC":
                moved_to = moved_to.replace(tzinfo=None)
            plain = moved_to.tzinfo is None and at % _DAY_US == 0
            changed = {"split_date": (moved_to.date() if plain else moved_to).isoformat()}
            moved = settings.model_copy(update=changed).cutoff()
            if moved.fold_start_us == moved.fold_end_us:
                yield changed


def _known(
    context: RunContext, plan: SplitPlan, others: Sequence[SplitPlan], shards: int
) -> tuple[Hashes, list[Hashes]]:
    """Return the entities seen before the cutoff of any plan, and those seen before that of each of `others`.

    Entities seen before a cutoff are also seen before any later one. So all entities are gathered only for the latest.
    """
    cuts = [(_edge(each), each) for each in others]
    latest = max([(_edge(plan), plan), *cuts], key=lambda cut: cut[0])[1]
    every = plan.allocation.known
    if _edge(latest) > _edge(plan):
        seen = EntitySet()
        for number in range(shards):  # one at a time, to stay within O(entities) of memory
            seen.add(_seen(read_scan(context.run, number), latest))
        every = seen.ordered()
    asked = {edge: each for edge, each in cuts if edge not in (_edge(latest), _edge(plan))}
    flags = {edge: np.zeros(len(every), np.bool_) for edge in asked}
    for number in range(shards if asked else 0):
        scanned = read_scan(context.run, number)
        for edge, each in asked.items():
            flags[edge][every.places(_seen(scanned, each))] = True
    found = {edge: every.take(own) for edge, own in flags.items()}
    found |= {_edge(latest): every, _edge(plan): plan.allocation.known}
    return every, [found[edge] for edge, _ in cuts]


def _edge(plan: SplitPlan) -> int:
    """Return the time before which entities count as seen."""
    return cutoff_us(plan.settings, plan.clock) - max(plan.settings.reaches_us().values(), default=0)


def _seen(scanned: Scanned, plan: SplitPlan) -> Hashes:
    settings = plan.settings
    reach = max(settings.reaches_us().values(), default=0)
    before = (scanned.micros != MISSING) & (scanned.micros < edge_of(scanned, plan) - reach)
    seen = np.zeros(len(scanned.hashes) + 1, np.bool_)
    seen[scanned.entity.compress(before)] = True  # NOBODY is -1, which indexes the last element
    hashes = scanned.hashes.take(seen[:-1])
    if settings.null_entity == "own" and seen[-1]:
        hashes = Hashes(np.append(hashes.high, plan.nobody.high), np.append(hashes.low, plan.nobody.low))
    return hashes


def _counts(run: Path, plans: Sequence[SplitPlan], every: Hashes, places: Sequence[I64], number: int) -> I64:
    """Count the rows of a shard by split and reason under each plan.

    places: index of every entity among those of each plan.
    """
    scanned, found = read_scan(run, number), np.zeros((len(plans), len(SPLITS) + len(REASONS)), np.int64)
    place = every.places(scanned.hashes)
    for row, plan, own in zip(found, plans, places, strict=True):
        row += np.bincount(classify(scanned, plan, own[place]), minlength=len(row))
    return found
