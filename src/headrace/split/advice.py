"""Judge a split by its scans and counts: refuse wrong units, warn of odd values and small
splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headrace.dataset.distinguishing import Distinguishing
from headrace.errors import InputError, setting
from headrace.formats.dates import moment, time_setting
from headrace.formats.dialect import null_setting
from headrace.formats.shard import Shard
from headrace.report.words import percentage, pluralise
from headrace.split.features import Counts, Scans
from headrace.split.reasons import Reason
from headrace.split.settings import SplitSettings, TemporalSplit

# A split of fewer rows measures nothing. One below the fraction gets a warning unless it is large
# anyway.
_FEW_ROWS = 10
_MANY_ROWS = 10_000
_FEW_FRACTION = 0.01
_ESCAPED = 80
# of the rows read
_MOST_DROPPED = 0.15
_LEAST_TESTED = 0.05


def check_units(settings: TemporalSplit, scans: Scans) -> None:
    """Refuse numbers that are valid times but probably in another unit, because a wrong unit splits
    silently.

    Numbers of two usual sizes, with none in between, are epochs of two units. Numbers of one size
    that is not the declared unit's, all on one side of the cutoff, are of that other unit.
    """
    dated = []
    for receipt, shard in zip(scans.receipts, scans.shards, strict=True):
        if receipt.extra["forms"]:
            dated.append((receipt.extra, shard))
    if dated and all(result["hours"] for result, _ in dated):
        raise InputError(
            "is written in ten digits, an hour as YYYYMMDDHH and also seconds since 1970",
            path=dated[0][1].path,
            column=settings.time_name,
            remedy=(f"give {time_setting('%Y%m%d%H', 'epoch_s')}"),
        )
    first: dict[str, Shard] = {}
    for units, shard in zip(scans.results("units"), scans.shards, strict=True):
        for unit in units:
            first.setdefault(unit, shard)
    if any(scans.results("unusual")):
        return
    if len(first) > 1:
        listed = ", ".join(f"those of {unit} in {first[unit].path}" for unit in sorted(first))
        raise InputError(
            f"holds numbers in two units: {listed}",
            path=next(iter(first.values())).path,
            column=settings.time_name,
            remedy="write one unit throughout, or split the files of each separately",
        )
    if first and settings.time_format not in first and dated:
        unit, shard = next(iter(first.items()))
        first_us = min(result["first_us"] for result, _ in dated)
        last_us = max(result["last_us"] for result, _ in dated)
        if not first_us <= settings.cutoff().instant_us <= last_us:
            raise InputError(
                f"holds numbers of the size of {unit}, which as {settings.time_format} run from"
                f" {moment(first_us)} to {moment(last_us)}",
                path=shard.path,
                column=settings.time_name,
                remedy=f"give {time_setting(unit)}",
            )


def small_splits(settings: TemporalSplit, counts: Counts, scans: Scans) -> Iterator[str]:
    """Warn of splits that are too small to measure anything; state how small, why, and what to
    change.
    """
    rows = counts.rows
    total = sum(rows.values())
    tested = rows["test"]
    if tested < _FEW_ROWS or (tested < _MANY_ROWS and tested < total * _FEW_FRACTION):
        problem = "test is empty"
        if tested:
            problem = f"test has {pluralise(tested, 'row')} of {total:,}"
        yield f"{problem}: {_few_test_reasons(settings, counts, scans)}"
    if "val" in rows and rows["val"] < min(_FEW_ROWS, total * _FEW_FRACTION):
        yield (
            f"val has {pluralise(rows['val'], 'row')} of {total:,}; give a smaller"
            f" {setting('train_ratio')} (now {settings.train_ratio}) or a later"
            f" {setting('split_date')}"
        )


def _few_test_reasons(settings: TemporalSplit, counts: Counts, scans: Scans) -> str:
    dropped = counts.dropped
    date = settings.split_date
    trained = dropped[Reason.TRAIN_ENTITY_LATE]
    validated = dropped[Reason.VAL_ENTITY_LATE]
    repeated = dropped[Reason.CONTENT_BEFORE_CUTOFF]
    late = counts.rows["test"] + trained + validated + repeated
    remedy = f"give an earlier {setting('split_date')}"
    if late > 2 * counts.rows["test"]:
        why = f"of {pluralise(late, 'row')} from {date} on, {trained:,} belong to entities in train"
        if validated:
            why += f" and {validated:,} to entities in val"
        if repeated:
            why += f", and {repeated:,} have the content of train or val rows"
        if settings.entity is not None:
            remedy += f" or a smaller {setting('train_ratio')}"
    else:
        why = f"{pluralise(late, 'row')} in all are from {date} on"
        if not late:
            why = f"no row that counts is from {date} on"
        last_us = scans.known("last_us")
        if last_us:
            why += f", and the last date is {moment(max(last_us))}"
    copies = dropped[Reason.DUPLICATE]
    if copies:
        why += (
            f"; of all splits, {pluralise(copies, 'row')} with the content of an earlier one are"
            " left out"
        )
    return f"{why}; {remedy}"


def cost_of_rules(counts: Counts) -> str | None:
    """Return a line on what each rule costs; None if little is dropped and enough rows test."""
    tested = counts.rows["test"]
    lost = sum(counts.dropped.values())
    read = sum(counts.rows.values()) + lost
    if lost <= _MOST_DROPPED * read and tested >= _LEAST_TESTED * read:
        return None
    by_size = sorted(counts.dropped.items(), key=lambda item: (-item[1], item[0]))
    why = "".join(f", {count:,} for {reason}" for reason, count in by_size if count)
    return (
        f"{lost:,} of {read:,} rows ({percentage(lost, read)}) are dropped{why};"
        f" {tested:,} ({percentage(tested, read)}) are in test"
    )


def of_distinguishing(distinguishing: Distinguishing, settings: SplitSettings) -> Iterator[str]:
    """Name the columns that distinguish every row, and what that means for rows drawn by them."""
    yield from distinguishing.sentences()
    names = ", ".join(distinguishing.left_out)
    if distinguishing.left_out and settings.drawn_by == "rows":
        yield (
            f"rows are drawn by all their values, also {names}: rows that are"
            f" the same but for it may be in two splits; draw with {setting('by', 'content')} to"
            " keep them together"
        )


def odd_values(settings: SplitSettings, scans: Scans) -> Iterator[str]:
    """Warn of texts that other tools read as missing, entities that look alike, and times that are
    left out.
    """
    for role, counts in missing_like(scans).items():
        name = settings.entity_column
        meaning = "one entity"
        if role == "label":
            name = settings.label
            meaning = "a class"
        for text, count in counts.items():
            yield (
                f"{name}: {pluralise(count, 'row')} hold the text {text!r}, which is {meaning};"
                " pandas"
                " reads it as missing: "
                f"if it is, give {null_setting(text)}"
            )
    for receipt in scans.receipts:
        padded = receipt.extra["padded"]
        if padded is not None:
            yield (
                f"{settings.entity_column}: texts with surrounding blanks, or not in Unicode form"
                f" NFC, are separate entities, first {padded[:_ESCAPED]!r} in {receipt.subject};"
                " clean them if they mean the same entity"
            )
            break
    first = next(filter(None, scans.results("first_unreadable")), None)
    if first is not None:
        yield f"rows with an unreadable date are dropped, first {first}"


def missing_like(scans: Scans) -> dict[str, dict[str, int]]:
    """Count rows whose text means "missing" in other tools, by role of the column and text; only
    nonzero counts.
    """
    by_role: dict[str, dict[str, int]] = {}
    for role in ("entity", "label"):
        counts: Counter[str] = Counter()
        for receipt in scans.receipts:
            counts.update(receipt.extra.get(f"missing_like_{role}", {}))
        if counts:
            by_role[role] = dict(sorted(counts.items()))
    return by_role
