"""Compare the rows of all shards: join entities that share content, choose the rows to drop, and
report both.

If rows are dropped or entities joined because of content, pass 1 writes a digest of each row's
content beside the scan. All digests are then compared in memory, which takes at most 16 bytes a
row, and more only for rows with repeated content. To count repeats, pass 2 writes the digests in
order, and one range of them is compared at a time. If near rows count, all rows that are joined
through them get one number, which then replaces their content digest. They are searched among all
rows of the source, including those dropped for another reason; this takes about 200 bytes a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U64, Bools, distinct, least_of_component
from headrace.dataset.contents import columns_in_words, repeats_warning
from headrace.dataset.distinguishing import LOOKED_AT, Distinguishing, distinguishing
from headrace.errors import SettingsError, setting
from headrace.formats.column_paths import with_paths
from headrace.formats.common_schema import with_content
from headrace.formats.content import NOTHING, among, count_repeats, tagged
from headrace.formats.dates import Dates
from headrace.formats.shard import Chunk, Shard
from headrace.near.repeats import count_stored
from headrace.run.context import RunContext
from headrace.split.content import Content, Repeats, row_numbers
from headrace.split.earlier import EarlierRun
from headrace.split.features import Counts, Feature, Scans
from headrace.split.features.drawn import draws_compare
from headrace.split.reasons import Reason
from headrace.split.rules import (
    SPLITS,
    TEST_CODE,
    Codes,
    DropRule,
    Output,
    ScannedRows,
    SplitPlan,
    classify,
    key_micros,
)
from headrace.split.scan import Scanned, Scanner, read_scan
from headrace.split.settings import SplitSettings
from headrace.split.write import content_file, copies_bytes

# a larger unit deserves a warning
_LARGE_UNIT = 10
_LARGE_FRACTION = 0.01


def _content_before_cutoff(rows: ScannedRows) -> Bools | None:
    repeated = _repeated(rows, "group")
    if repeated is not None:
        repeated &= rows.placed == TEST_CODE
    return repeated


def _repeated(rows: ScannedRows, duplicates: str) -> Bools | None:
    repeats = rows.plan.repeats
    compared = rows.scanned.compared
    if repeats is None or compared is None or rows.plan.settings.duplicates != duplicates:
        return None
    return repeats.repeated(compared, rows.scanned.shard)


def _duplicate(rows: ScannedRows) -> Bools | None:
    """Mask the later copies, and the copies of rows that are taken over from an earlier run."""
    repeated = _repeated(rows, "drop")
    compared = rows.scanned.compared
    if repeated is not None and compared is not None and rows.plan.linked is not None:
        copies = among(compared & ~np.uint64(3), rows.plan.linked)
        repeated |= copies & (compared != NOTHING)
    return repeated


CONTENT_BEFORE_CUTOFF = DropRule(Reason.CONTENT_BEFORE_CUTOFF, _content_before_cutoff)
DUPLICATE = DropRule(Reason.DUPLICATE, _duplicate)

# Computes values from a shard's scan, the code of each row, and the indices of the kept rows with
# content.
_Work = Callable[[Scanned, Codes, I64], U64]


class ContentScanner(Scanner):
    """Digest the content of the rows of a shard."""

    def __init__(self, content: Content, shard: Shard) -> None:
        self.content = content
        self.shard = shard
        self.columns = content.columns(shard)
        self.digests: list[U64] = [np.empty(0, np.uint64)]

    def scan(self, chunk: Chunk, table: pa.Table, times: Dates) -> None:
        """Digest a chunk."""
        self.digests.append(self.content.digest_chunk(chunk, table, str(self.shard.path)))

    def row_values(self) -> dict[str, pa.Array]:
        """Return the digests."""
        return {"content": pa.array(np.concatenate(self.digests))}


class Duplicates(Feature):
    """Rows with the same content, or near ones: counted, dropped, or in one split together."""

    def __init__(self, output: Output, shards: Sequence[Shard]) -> None:
        super().__init__(output, shards)
        self.output = output
        self.content = choose_content(output, shards)
        if self.settings.cut_in_time:
            self.rules = (CONTENT_BEFORE_CUTOFF, DUPLICATE)
        elif self.settings.duplicates == "drop":
            self.rules = (DUPLICATE,)

    def scanner(self, shard: Shard) -> Scanner | None:
        """Digest rows to decide by them, or because pass 2 does not parse them."""
        content = self.content
        if content is None or draws_compare(self.output):
            return None
        if self.settings.duplicates == "count" and self.settings.near is None:
            pass_2_parses = content.by != "fields" and shard.dialect is not None
            if pass_2_parses or not copies_bytes(self.output, shard):
                return None
        return ContentScanner(content, shard)

    def decide(self, plan: SplitPlan, scans: Scans) -> SplitPlan:
        """Decide what becomes of rows with the same content, or near ones, unless they are only
        counted.
        """
        plan = replace(plan, content=self.content)
        if self.settings.near is not None:
            from headrace.split.features.near import number_alike  # loads more libraries

            plan = number_alike(scans.context, plan, scans.shards)
        context = scans.context
        shards = scans.scanned
        if self.settings.duplicates == "drop":
            if scans.earlier is not None:
                plan = replace(plan, linked=scans.earlier.linked_content)
            return replace(plan, repeats=_later_copies(context, plan, shards))
        if self.settings.duplicates != "group":
            return plan
        units = _units(context, plan, shards)
        plan = replace(plan, placement=plan.placement.with_units(units))
        if not self.settings.cut_in_time:
            return plan
        return replace(plan, repeats=_seen_before(context, plan, shards))

    def metadata(self, plan: SplitPlan, scans: Scans, counts: Counts) -> dict[str, Any]:
        """Count rows with the same content and near rows, and warn of them.

        Repeats are not counted in folds.
        """
        folds = self.settings.folds is not None
        if self.content is None:
            return {"duplicates": None}
        counted = _count(scans.context, plan, self.content, range(len(scans.shards)))
        scans.context.warn(_warnings(counted, counts.rows, len(plan.placement.allocation.entities)))
        if folds:
            return {"fold_content": counted, "duplicates": None}
        return {"duplicates": counted}


def compares(settings: SplitSettings) -> bool:
    """Return whether rows are compared; in folds their repeats are not counted."""
    if settings.duplicates == "allow":
        return False
    return settings.folds is None or settings.duplicates != "count"


def find_distinguishing(
    output: Output, shards: Sequence[Shard], earlier: EarlierRun | None
) -> Distinguishing:
    """Find the columns that distinguish every row, where none are named to compare rows by.

    A run that is added to keeps its choice.
    """
    settings = output.settings
    if settings.content or not compares(settings):
        return Distinguishing()
    if earlier is not None:
        return Distinguishing.recorded(earlier.run.manifest.metadata.get("duplicates") or {})
    shards = with_content(shards)
    numbers = sorted({0, len(shards) - 1})
    some = [shards[number] for number in numbers]

    def read(names: Sequence[str]) -> list[pa.Table]:
        content = Content(
            schema=with_paths(output.source, names),
            types={name: type_ for name, type_ in output.types.items() if name in names},
            dialect=settings.dialect,
            by="values",
        )
        return content.first_rows(some, LOOKED_AT)

    return distinguishing(output.source, settings.compared(output.source), read)


def choose_content(output: Output, shards: Sequence[Shard]) -> Content | None:
    """Choose the columns that rows are compared by; None if no comparison is requested or no column
    is left to compare.

    Delimited text whose rows are only counted, and copied as bytes, is not parsed for this. Raises
    `SettingsError` if a requested comparison has no column.
    """
    settings = output.settings
    only_counts = settings.duplicates == "count" and settings.near is None
    if not compares(settings):
        return None
    names = output.compared()
    if not names and only_counts:
        return None
    if not names:
        asking = "duplicates"
        if settings.duplicates == "count":
            asking = "near"
        raise SettingsError(
            "all columns are time, entity, label or targets, so there is nothing to compare",
            setting=asking,
            value=getattr(settings, asking),
            remedy=f"name the columns to compare with {setting('content')}, or leave it out",
        )
    types = {name: data_type for name, data_type in output.types.items() if name in names}
    # A run that is added to keeps the digests of values.
    counts_fields = only_counts and not types and settings.assignment_from is None
    content = Content(
        schema=with_paths(output.source, names),
        types=types,
        dialect=settings.dialect,
        by="fields" if counts_fields and _compares_fields(output, shards) else "values",
    )
    if settings.near is not None:
        from headrace.split.features.near import check_near  # loads more libraries

        check_near(content)
    return content


def _compares_fields(output: Output, shards: Sequence[Shard]) -> bool:
    """Return True if equal rows have equal bytes: delimited text with one separator that is
    copied.
    """
    if output.file_type.format.separator is None or output.settings.dialect.escape is not None:
        return False
    shards = with_content(shards)
    dialects = {shard.dialect.separator for shard in shards if shard.dialect is not None}
    return len(dialects) == 1 and all(copies_bytes(output, shard) for shard in shards)


def _units(context: RunContext, plan: SplitPlan, shards: Sequence[int]) -> I64:
    """Join the entities whose rows share content: rows before the cutoff, or all rows without one.

    Returns the least index of each entity's unit [entities].
    """
    entities = plan.placement.entities
    if plan.settings.cut_in_time:
        never_joins = TEST_CODE
    else:
        never_joins = len(plan.names)

    def joining(scanned: Scanned, codes: Codes, rows: I64) -> U64:
        return _content(scanned, rows[codes[rows] != never_joins])

    repeated = _repeated_digests(_gather(context, plan, shards, joining))

    def pairs(scanned: Scanned, codes: Codes, rows: I64) -> U64:
        rows = rows[codes[rows] != never_joins]
        digests = _content(scanned, rows)
        joins = among(digests, repeated)
        # NULL_ENTITY is -1, the last element.
        indices = np.append(entities.index_of(scanned.hashes), entities.index_of(plan.null_entity))
        entity = indices[scanned.entity[rows[joins]]]
        number = np.searchsorted(repeated, digests[joins])
        return np.unique(np.column_stack([entity, number]), axis=0).ravel().view(np.uint64)

    entity, number = _gather(context, plan, shards, pairs).view(np.int64).reshape(-1, 2).T
    return least_of_component(len(entities), [(entity, number)])


def _seen_before(context: RunContext, plan: SplitPlan, shards: Sequence[int]) -> Repeats:
    """Find the content that occurs both in train or val and in rows from the cutoff on."""

    def earlier(scanned: Scanned, codes: Codes, rows: I64) -> U64:
        return _content(scanned, rows[codes[rows] != TEST_CODE])

    before = distinct(_gather(context, plan, shards, earlier))

    def in_both(scanned: Scanned, codes: Codes, rows: I64) -> U64:
        digests = _content(scanned, rows[codes[rows] == TEST_CODE])
        return distinct(digests[among(digests, before)])

    return Repeats(distinct(_gather(context, plan, shards, in_both)))


def _later_copies(context: RunContext, plan: SplitPlan, shards: Sequence[int]) -> Repeats:
    """Find repeated content, and for each the row that stays: the earliest, then the first in the
    source.
    """

    def contents(scanned: Scanned, codes: Codes, rows: I64) -> U64:  # noqa: ARG001 - as `_Work`
        return _content(scanned, rows)

    repeated = _repeated_digests(_gather(context, plan, shards, contents))

    def copies(scanned: Scanned, codes: Codes, rows: I64) -> U64:
        rows = rows[among(_content(scanned, rows), repeated)]
        digests = _content(scanned, rows).view(np.int64)
        time_us = key_micros(scanned, plan)[rows]
        number = row_numbers(scanned.shard, len(codes))[rows]
        return np.column_stack([digests, time_us, number]).ravel().view(np.uint64)

    columns = _gather(context, plan, shards, copies).view(np.int64).reshape(-1, 3)
    digests = columns[:, 0].view(np.uint64)
    order = np.lexsort((columns[:, 2], columns[:, 1], digests))
    first = np.unique(digests[order], return_index=True)[1]
    return Repeats(repeated, columns[order[first], 2])


def _gather(context: RunContext, plan: SplitPlan, shards: Sequence[int], work: _Work) -> U64:
    """Concatenate the results of `work` for all shards."""
    tasks = [partial(_of_shard, context.run, plan, number, work) for number in shards]
    return np.concatenate([np.empty(0, np.uint64), *context.map(tasks)])


def _of_shard(run: Path, plan: SplitPlan, number: int, work: _Work) -> U64:
    scanned = read_scan(run, number, alike=plan.near is not None)
    codes = classify(scanned, plan)
    assert scanned.content is not None
    with_content = (codes < len(plan.names)) & (scanned.content != NOTHING)
    return work(scanned, codes, np.flatnonzero(with_content))


def _content(scanned: Scanned, rows: I64) -> U64:
    assert scanned.compared is not None
    return scanned.compared[rows]


def _repeated_digests(digests: U64) -> U64:
    """Find the digests that occur more than once, ascending; sorts `digests` in place."""
    digests.sort()
    return distinct(digests[1:][digests[1:] == digests[:-1]])


def _count(
    context: RunContext, plan: SplitPlan, content: Content, shards: Sequence[int]
) -> dict[str, Any]:
    """Count rows with the same content, and near rows if they were searched."""
    settings = plan.settings
    counts: dict[str, Any] = {
        "are": settings.duplicates,
        "content": list(content.schema.names),
        "distinguishing": plan.output.distinguishing.to_dict(),
    }
    near: dict[str, Any] = {}
    if settings.folds is None:
        repeats = count_stored(
            context.run, [content_file(settings, number) for number in shards], SPLITS
        )
        counts["in_earlier_split"] = _of_splits(repeats.earlier, settings)
        counts["repeated"] = _of_splits(repeats.same_split, settings)
        if plan.near is not None:

            def words(scanned: Scanned, codes: Codes, rows: I64) -> U64:
                return tagged(_content(scanned, rows), codes[rows])

            joined = count_repeats(_gather(context, plan, shards, words), SPLITS)
            near = {"in_earlier_split": dict(joined.earlier), "repeated": dict(joined.same_split)}
    if settings.duplicates == "group":
        allocation = plan.placement.allocation
        counts |= {"units": allocation.units, "largest_unit": allocation.largest_unit}
    if plan.near is not None:
        counts["near"] = {**near, **plan.near}
    return counts


def _of_splits(rows: Mapping[str, int], settings: SplitSettings) -> dict[str, int]:
    return {split: count for split, count in rows.items() if split in settings.splits}


def _warnings(counts: Mapping[str, Any], rows: Mapping[str, int], entities: int) -> Iterator[str]:
    """Warn of splits that repeat rows of earlier ones, rows not compared, and entities that share
    too much.
    """
    near = counts.get("near", {})
    names = columns_in_words(counts["content"])
    drop = setting("duplicates", "drop")
    group = setting("duplicates", "group", "drop")
    verbs = {
        "repeat the content of": counts,
        "are near, or joined through near ones to, rows of": near,
    }
    for verb, repeats in verbs.items():
        message = repeats_warning(repeats.get("in_earlier_split", {}), rows, verb=verb)
        if message is not None:
            yield (
                f"{message}, compared by {names}; headrace leaks says how many chance gives. If"
                f" they are copies, choose {group}, else set {setting('content')} to the columns"
                " that count"
            )
    skipped = near.get("not_compared")
    if skipped:
        yield (
            f"near: at most {skipped:,} pairs of rows were not compared, because they look like too"
            " many others"
        )
    largest = counts.get("largest_unit", 1)
    if largest > max(_LARGE_UNIT, _LARGE_FRACTION * entities):
        yield (
            f"{largest:,} of {entities:,} entities are joined by rows with the same content,"
            f" compared by {names}, and are in one split; set {setting('content')} to the columns"
            f" that count, or choose {drop}"
        )
