"""Judge a split by its scans and counts: refuse wrong units, warn of odd values and small splits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from headrace.errors import InputError
from headrace.formats.dates import moment
from headrace.formats.shard import Shard
from headrace.report.words import many, share
from headrace.run.receipts import Receipt
from headrace.split.settings import TemporalSplit

# A split of fewer rows measures nothing. One below the share gets a warning unless it is large anyway.
_FEW_ROWS, _MANY_ROWS, _FEW_SHARE = 10, 10_000, 0.01
_SHOWN = 80
_MOST_DROPPED, _LEAST_TESTED = 0.15, 0.05  # of the rows read


def check_units(settings: TemporalSplit, shards: Sequence[Shard], scans: Sequence[Receipt]) -> None:
    """Refuse numbers that are valid times but probably in another unit, because a wrong unit splits silently.

    Numbers of two usual sizes, with none in between, are epochs of two units. Numbers of one size that is not the
    declared unit's, all on one side of the cutoff, are of that other unit.
    """
    name = settings.time
    dated = [(scan.extra, shard) for scan, shard in zip(scans, shards, strict=True) if scan.extra["forms"]]
    if dated and all(result["hours"] for result, _ in dated):
        raise InputError(
            f"{dated[0][1].path}: {name} is written in ten digits, an hour as YYYYMMDDHH and also seconds since "
            f'1970; give time_format="%Y%m%d%H" or time_format="epoch_s"'
        )
    first: dict[str, Shard] = {}
    for scan, shard in zip(scans, shards, strict=True):
        for unit in scan.extra["units"]:
            first.setdefault(unit, shard)
    if any(scan.extra["unusual"] for scan in scans):
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
            last = max((scan.extra["last_us"] for scan in scans if scan.extra["forms"]), default=None)
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
    padded = next(((scan.subject, scan.extra["padded"]) for scan in scans if scan.extra["padded"] is not None), None)
    if padded is not None:
        yield (
            f"{settings.entity}: texts with surrounding blanks, or not in Unicode form NFC, are separate "
            f"entities, first {padded[1][:_SHOWN]!r} in {padded[0]}; clean them if they mean the same entity"
        )
    first = next((scan.extra["first_unreadable"] for scan in scans if scan.extra["first_unreadable"]), None)
    if first is not None:
        yield f"rows with an unreadable date are dropped, first {first}"


def missing_like(scans: Sequence[Receipt]) -> dict[str, dict[str, int]]:
    """Count rows whose text means "missing" in other tools, by role of the column and text; only nonzero counts."""
    found = {role: Counter[str]() for role in ("entity", "label")}
    for role, counts in found.items():
        for scan in scans:
            counts.update(scan.extra["missing_like"][role])
    return {role: dict(sorted(counts.items())) for role, counts in found.items() if counts}


def cost_of_rules(rows: Mapping[str, int], dropped: Mapping[str, int]) -> str | None:
    """Return a line on what each rule costs; None if little is dropped and enough rows test."""
    lost = sum(dropped.values())
    read = sum(rows.values()) + lost
    if lost <= _MOST_DROPPED * read and rows["test"] >= _LEAST_TESTED * read:
        return None
    by_size = sorted(dropped.items(), key=lambda each: (-each[1], each[0]))
    why = "".join(f", {count:,} for {reason}" for reason, count in by_size if count)
    tested = rows["test"]
    return f"{lost:,} of {read:,} rows ({share(lost, read)}) are dropped{why}; {tested:,} ({share(tested, read)}) test"
