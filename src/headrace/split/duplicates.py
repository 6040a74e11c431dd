"""Compare the rows of all shards: join entities that share content, find what goes, and say what was found.

Pass 1 leaves a digest of each row's content beside the scan, where rows go or entities are joined because of it. All
digests are compared in memory, 16 bytes a row at most, and more only for rows whose content stands more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headrace.arrays import I64, U64, least_of_component
from headrace.formats.content import NOTHING, Repeated, among, count_repeats
from headrace.run.context import RunContext, read_arrow
from headrace.split.allocate import allocate
from headrace.split.content import Leave, row_numbers
from headrace.split.scan import Scanned, read_scan
from headrace.split.shards import SPLITS, Classes, SplitPlan, classify, content_file, key_micros

_TEST = SPLITS.index("test")
_SHARE = 0.001  # of a split's rows: repeats that are worth a warning
_LARGE_UNIT, _LARGE_SHARE = 10, 0.01  # entities of a unit that is worth one

# Values of the kept rows of a shard that have content, from the scan, the class of each row and which rows these are.
_Work = Callable[[Scanned, Classes, I64], U64]


def resolved(context: RunContext, plan: SplitPlan, shards: int) -> SplitPlan:
    """Decide what becomes of rows with the same content, where more is asked than to count them."""
    asked = plan.settings.duplicates
    if asked == "group":
        plan = replace(
            plan, allocation=allocate(plan.allocation.known, plan.settings.train_ratio, _units(context, plan, shards))
        )
        return replace(plan, leave=_seen_before(context, plan, shards))
    if asked == "drop":
        return replace(plan, leave=_later_copies(context, plan, shards))
    return plan


def _units(context: RunContext, plan: SplitPlan, shards: int) -> I64:
    """Join the entities whose rows before the cutoff share content: the least place of each one's unit [entities]."""
    known = plan.allocation.known
    again = _again(_gathered(context, plan, shards, _content_before))

    def pairs(scanned: Scanned, classes: Classes, rows: I64) -> U64:
        digests = _content(scanned, rows)
        own = (classes[rows] != _TEST) & among(digests, again)
        places = np.append(known.places(scanned.hashes), known.places(plan.nobody))  # NOBODY is -1, the last place
        found = np.column_stack([places[scanned.entity[rows[own]]], np.searchsorted(again, digests[own])])
        return np.unique(found, axis=0).ravel().view(np.uint64)

    place, number = _gathered(context, plan, shards, pairs).view(np.int64).reshape(-1, 2).T
    return least_of_component(len(known), [(place, number)])


def _seen_before(context: RunContext, plan: SplitPlan, shards: int) -> Leave:
    """Find the content that train or val has, and rows from the cutoff on, too."""
    before = np.unique(_gathered(context, plan, shards, _content_before))

    def both(scanned: Scanned, classes: Classes, rows: I64) -> U64:
        digests = _content(scanned, rows[classes[rows] == _TEST])
        return np.unique(digests[among(digests, before)])

    return Leave(np.unique(_gathered(context, plan, shards, both)))


def _later_copies(context: RunContext, plan: SplitPlan, shards: int) -> Leave:
    """Find the content that stands more than once, and of each the row that stays: the earliest, then the first."""
    again = _again(_gathered(context, plan, shards, lambda scanned, classes, rows: _content(scanned, rows)))

    def copies(scanned: Scanned, classes: Classes, rows: I64) -> U64:
        rows = rows[among(_content(scanned, rows), again)]
        number = row_numbers(scanned.number, len(classes))
        columns = _content(scanned, rows).view(np.int64), key_micros(scanned, plan)[rows], number[rows]
        return np.column_stack(columns).ravel().view(np.uint64)

    digests, micros, number = _gathered(context, plan, shards, copies).view(np.int64).reshape(-1, 3).T
    order = np.lexsort((number, micros, digests.view(np.uint64)))
    first = np.unique(digests.view(np.uint64)[order], return_index=True)[1]
    return Leave(again, number[order][first])


def _gathered(context: RunContext, plan: SplitPlan, shards: int, work: _Work) -> U64:
    """Lay end to end what `work` makes of every shard."""
    parts = context.map([partial(_of_shard, context.run, plan, number, work) for number in range(shards)])
    return np.concatenate([np.empty(0, np.uint64), *parts])


def _of_shard(run: Path, plan: SplitPlan, number: int, work: _Work) -> U64:
    scanned = read_scan(run, number)
    classes = classify(scanned, plan)
    assert scanned.content is not None
    return work(scanned, classes, np.flatnonzero((classes <= _TEST) & (scanned.content != NOTHING)))


def _content(scanned: Scanned, rows: I64) -> U64:
    assert scanned.content is not None
    return scanned.content[rows]


def _content_before(scanned: Scanned, classes: Classes, rows: I64) -> U64:
    return _content(scanned, rows[classes[rows] != _TEST])


def _again(digests: U64) -> U64:
    """Find the digests that stand more than once, ascending; sorts in place."""
    digests.sort()
    return np.unique(digests[1:][digests[1:] == digests[:-1]])


def counted(run: Path, shards: int) -> Repeated:
    """Count the repeats among the kept rows, as pass 2 left them."""
    parts = [read_arrow(run / content_file(number))["content"].to_numpy() for number in range(shards)]
    return count_repeats(np.concatenate([np.empty(0, np.uint64), *parts]), SPLITS)


def facts(plan: SplitPlan, found: Repeated) -> dict[str, Any]:
    """Say what the manifest says of rows with the same content."""
    assert plan.content is not None
    asked, splits = plan.settings.duplicates, plan.settings.splits
    units = {"units": plan.allocation.units, "largest_unit": plan.allocation.largest_unit} if asked == "group" else {}
    return {
        "are": asked,
        "content": list(plan.content.schema.names),
        "in_earlier_split": {split: rows for split, rows in found.earlier.items() if split in splits},
        "repeated": {split: rows for split, rows in found.own.items() if split in splits},
        **units,
    }


def told(found: Mapping[str, Any], rows: Mapping[str, int], entities: int) -> Iterator[str]:
    """Warn of splits that repeat what earlier ones have, and of entities that share too much to be split."""
    names = found["content"]
    compared = ", ".join(names[:8]) + (f" and {len(names) - 8:,} more columns" if len(names) > 8 else "")
    parts = [
        f"{100 * count / rows[split]:.1f} % of the {split} rows ({count:,} of {rows[split]:,})"
        for split, count in found["in_earlier_split"].items()
        if count > _SHARE * rows[split]
    ]
    if parts:
        yield (
            f"{' and '.join(parts)} repeat the content of an earlier split, compared by {compared}; set content= "
            f'to the columns that count, or choose duplicates="group" or "drop"'
        )
    largest = found.get("largest_unit", 1)
    if largest > max(_LARGE_UNIT, _LARGE_SHARE * entities):
        yield (
            f"{largest:,} of {entities:,} entities are joined by rows with the same content, compared by {compared}, "
            f'and are in one split; set content= to the columns that count, or choose duplicates="drop"'
        )
