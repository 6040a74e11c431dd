"""Compare the rows of all shards: join entities that share content, choose the rows to drop, and report both.

If rows are dropped or entities joined because of content, pass 1 writes a digest of each row's content beside the scan.
All digests are then compared in memory, which takes at most 16 bytes a row, and more only for rows with repeated
content. To count repeats, pass 2 writes the digests in order, and one range of them is compared at a time. If near rows
count, all rows that are joined through them get one number, which then replaces their content digest. They are searched
among all rows of the source, including those dropped for another reason; this takes about 200 bytes a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headrace.arrays import I64, U64, least_of_component
from headrace.dataset.contents import names_told, repeats_told
from headrace.formats.content import NOTHING, among, count_repeats, tagged
from headrace.near.repeats import count_kept
from headrace.run.context import RunContext
from headrace.split.allocate import Hashes, allocate
from headrace.split.content import Leave, row_numbers
from headrace.split.scan import Scanned, read_scan
from headrace.split.shards import SPLITS, Classes, SplitPlan, classify, content_file, key_micros

_TEST = SPLITS.index("test")
_LARGE_UNIT, _LARGE_SHARE = 10, 0.01  # a larger unit is worth a warning

# Computes values from a shard's scan, the class of each row, and the indices of the kept rows with content.
_Work = Callable[[Scanned, Classes, I64], U64]


def decided(context: RunContext, plan: SplitPlan, shards: int) -> SplitPlan:
    """Decide what becomes of rows with the same content, or near ones, unless they are only counted."""
    asked = plan.settings.duplicates
    if asked == "group":
        known = plan.allocation.known
        unit = units(context, plan, known, shards)
        plan = replace(plan, allocation=allocate(known, plan.settings.train_ratio, unit))
        return replace(plan, leave=_seen_before(context, plan, shards))
    if asked == "drop":
        return replace(plan, leave=_later_copies(context, plan, shards))
    return plan


def units(context: RunContext, plan: SplitPlan, known: Hashes, shards: int) -> I64:
    """Join the entities whose rows share content: rows before the cutoff, or all rows with folds.

    Returns the least index of each entity's unit [entities]. known: the entities, ascending by hash.
    """
    never_joins = _TEST if plan.folding is None else len(plan.parts)
    again = _again(
        _gathered(
            context, plan, shards, lambda scanned, classes, rows: _content(scanned, rows[classes[rows] != never_joins])
        )
    )

    def pairs(scanned: Scanned, classes: Classes, rows: I64) -> U64:
        digests = _content(scanned, rows)
        own = (classes[rows] != never_joins) & among(digests, again)
        places = np.append(known.places(scanned.hashes), known.places(plan.nobody))  # NOBODY, -1, is the last index
        found = np.column_stack([places[scanned.entity[rows[own]]], np.searchsorted(again, digests[own])])
        return np.unique(found, axis=0).ravel().view(np.uint64)

    place, number = _gathered(context, plan, shards, pairs).view(np.int64).reshape(-1, 2).T
    return least_of_component(len(known), [(place, number)])


def _seen_before(context: RunContext, plan: SplitPlan, shards: int) -> Leave:
    """Find the content that occurs both in train or val and in rows from the cutoff on."""
    before = np.unique(
        _gathered(context, plan, shards, lambda scanned, classes, rows: _content(scanned, rows[classes[rows] != _TEST]))
    )

    def both(scanned: Scanned, classes: Classes, rows: I64) -> U64:
        digests = _content(scanned, rows[classes[rows] == _TEST])
        return np.unique(digests[among(digests, before)])

    return Leave(np.unique(_gathered(context, plan, shards, both)))


def _later_copies(context: RunContext, plan: SplitPlan, shards: int) -> Leave:
    """Find repeated content, and for each the row that stays: the earliest, then the first in the source."""
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
    """Concatenate the results of `work` for all shards."""
    parts = context.map([partial(_of_shard, context.run, plan, number, work) for number in range(shards)])
    return np.concatenate([np.empty(0, np.uint64), *parts])


def _of_shard(run: Path, plan: SplitPlan, number: int, work: _Work) -> U64:
    scanned = read_scan(run, number, alike=plan.near is not None)
    classes = classify(scanned, plan)
    assert scanned.content is not None
    return work(scanned, classes, np.flatnonzero((classes < len(plan.parts)) & (scanned.content != NOTHING)))


def _content(scanned: Scanned, rows: I64) -> U64:
    assert scanned.compared is not None
    return scanned.compared[rows]


def _again(digests: U64) -> U64:
    """Find the digests that occur more than once, ascending; sorts `digests` in place."""
    digests.sort()
    return np.unique(digests[1:][digests[1:] == digests[:-1]])


def facts(context: RunContext, plan: SplitPlan, shards: int) -> dict[str, Any]:
    """Return the manifest's facts about rows with the same content, and about near rows if they were searched.

    Repeats are not counted in folds.
    """
    assert plan.content is not None
    asked, splits = plan.settings.duplicates, plan.settings.splits
    found: dict[str, Any] = {"are": asked, "content": list(plan.content.schema.names)}
    near: dict[str, Any] = {}
    if plan.folding is None:
        counted = count_kept(context.run, map(content_file, range(shards)), SPLITS)
        found["in_earlier_split"] = {split: rows for split, rows in counted.earlier.items() if split in splits}
        found["repeated"] = {split: rows for split, rows in counted.own.items() if split in splits}
        if plan.near is not None:
            words = _gathered(
                context, plan, shards, lambda scanned, classes, rows: tagged(_content(scanned, rows), classes[rows])
            )
            joined = count_repeats(words, SPLITS)
            near = {"in_earlier_split": dict(joined.earlier), "repeated": dict(joined.own)}
    if asked == "group":
        found |= {"units": plan.allocation.units, "largest_unit": plan.allocation.largest_unit}
    return found if plan.near is None else {**found, "near": {**near, **plan.near}}


def told(found: Mapping[str, Any], rows: Mapping[str, int], entities: int) -> Iterator[str]:
    """Warn of splits that repeat rows of earlier ones, rows not compared, and entities that share too much."""
    near = found.get("near", {})
    for verb, case in (("repeat the content of", found), ("are near, or joined through near ones to, rows of", near)):
        if (told := repeats_told(case.get("in_earlier_split", {}), rows, verb=verb)) is not None:
            yield (
                f"{told}, compared by {names_told(found['content'])}; set content= to the columns that count, or "
                f'choose duplicates="group" or "drop"'
            )
    if skipped := near.get("not_compared"):
        yield f"near: at most {skipped:,} pairs of rows were not compared, because they look like too many others"
    largest = found.get("largest_unit", 1)
    if largest > max(_LARGE_UNIT, _LARGE_SHARE * entities):
        yield (
            f"{largest:,} of {entities:,} entities are joined by rows with the same content, compared by "
            f"{names_told(found['content'])}, and are in one split; set content= to the columns that count, or choose "
            f'duplicates="drop"'
        )
