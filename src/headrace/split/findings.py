"""What a user should know of a split that is done all the same: small splits, odd texts, dates left out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from headrace.formats.dates import moment
from headrace.run.receipts import Receipt
from headrace.split.config import TemporalSplit

# A split of fewer rows measures nothing; one below the share is worth a word unless it is large all the same.
_FEW_ROWS, _MANY_ROWS, _FEW_SHARE = 10, 10_000, 0.01
_SHOWN = 80


def few_rows(
    settings: TemporalSplit, rows: Mapping[str, int], dropped: Mapping[str, int], scans: Sequence[Receipt]
) -> Iterator[str]:
    """Sentences about splits that are too small to measure anything: how small, why, and what to change."""
    total, date = sum(rows.values()), settings.split_date
    tests = rows["test"]
    if tests < _FEW_ROWS or (tests < _MANY_ROWS and tests < total * _FEW_SHARE):
        trained, validated = dropped["train_entity_after_cutoff"], dropped["val_entity_after_cutoff"]
        behind = tests + trained + validated
        few = "test is empty" if not tests else f"test has {_rows(tests)} of {total:,}"
        if behind > 2 * tests:
            why = f"of {_rows(behind)} from {date} on, {trained:,} belong to entities that train"
            why += f" and {validated:,} to entities that validate" if validated else ""
            cure = "choose an earlier split_date or a smaller train_ratio"
        else:
            last = max((scan.result["last_us"] for scan in scans if scan.result["forms"]), default=None)
            why = (
                f"no row that counts is from {date} on" if not behind else f"{_rows(behind)} in all are from {date} on"
            )
            why += "" if last is None else f", and the last date is {moment(last)}"
            cure = "choose an earlier split_date"
        yield f"{few}: {why}; {cure}"
    if rows["val"] < min(_FEW_ROWS, total * _FEW_SHARE):
        yield (
            f"val has {_rows(rows['val'])} of {total:,}; choose a smaller train_ratio (now {settings.train_ratio}) or "
            f"a later split_date"
        )


def odd_values(settings: TemporalSplit, scans: Sequence[Receipt]) -> Iterator[str]:
    """Sentences about texts that others read as missing, entities that look alike, and dates that are left out."""
    named = {"entity": settings.entity, "label": settings.label}
    for role, counts in missing_like(scans).items():
        what = "a class" if role == "label" else "one entity"
        for text, count in counts.items():
            yield (
                f"{named[role]}: {_rows(count)} hold the text {text!r}, which is {what}; pandas reads it as missing: "
                f'if it is, give null_values=["{text}"]'
            )
    padded = next(((scan.subject, scan.result["padded"]) for scan in scans if scan.result["padded"] is not None), None)
    if padded is not None:
        shard, text = padded
        yield (
            f"{settings.entity}: texts with blanks around them, or in another Unicode form than NFC, are "
            f"entities of their own, first {text[:_SHOWN]!r} in {shard}; clean them if they mean the entity without"
        )
    first = next((scan.result["first_unreadable"] for scan in scans if scan.result["first_unreadable"]), None)
    if first is not None:
        yield f"rows with an unreadable date are dropped, first {first}"


def missing_like(scans: Sequence[Receipt]) -> dict[str, dict[str, int]]:
    """Role of a column → text that means "missing" elsewhere → rows; only roles that have some."""
    found: dict[str, dict[str, int]] = {}
    for role in ("entity", "label"):
        counts: Counter[str] = Counter()
        for scan in scans:
            counts.update(scan.result["missing_like"][role])
        if counts:
            found[role] = dict(sorted(counts.items()))
    return found


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"
