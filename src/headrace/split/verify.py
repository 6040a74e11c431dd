"""Prove a split or its folds from the output alone: times on their side, entities and content
disjoint.

A cell's role in each fold follows from the settings. So the lists of the manifest are compared with
those, and every row with the cells that its time allows. Gaps, horizons and windows are boundaries
of cells: a row too close before a cut is in a cell that no list of that fold holds. Memory is
O(entities of a split or cell, summed) and O(blocks). If rows of a split are compared, a temporary
file takes 8 bytes a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, U64, Bools, distinct
from headrace.dataset.certificate import LABELS_END
from headrace.dataset.contents import (
    StoredDigests,
    content_check,
    first_repeat,
    map_blocks,
    place_of_row,
    split_digests,
)
from headrace.dataset.open import FinishedRun, find_run
from headrace.dataset.verify import Check
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import HeadraceError
from headrace.folds.settings import Rolling
from headrace.formats.content import NOTHING, Repeated, among, row_digests
from headrace.formats.dates import MISSING, Dates, parse_dates
from headrace.formats.text_columns import as_text, joined_time, nulled
from headrace.split.allocate import (
    EntitySet,
    Hashes,
    hash_entities,
    hash_null_entity,
    hash_rows,
)
from headrace.split.cutoff import DateBins, cutoffs, in_utc
from headrace.split.earlier import groups_in_splits, settings_of
from headrace.split.features.cells import FoldCells, fold_cells
from headrace.split.features.known_at import LateValue, known_late, times_in_utc
from headrace.split.features.linked import link_values
from headrace.split.reasons import Reason
from headrace.split.scan import untimed
from headrace.split.settings import SplitSettings, TemporalSplit
from headrace.stream.audit.near import SplitBlocks, near_duplicates

# rules besides those that keep rows away from the cutoff
_SIDE = "side"
_KNOWN = "known_at"
_BLOCKS_AT_ONCE = 256
# a split now, and one of an earlier run whose groups may not be in it
_MOVES = tuple(permutations(("train", "val", "test"), 2))


@dataclass(frozen=True)
class _Broken:
    """The rows of a block that break a rule [N], and how."""

    rule: str
    rows: Bools
    why: str


_Rules = Callable[[Dates], Iterator[_Broken]]


@dataclass
class _Seen:
    """A split, a cell or a block as it was read.

    dates: rows in each time bin, as the manifest counts them.

    problems: by rule, the first row that breaks it. latest: the last time on the UTC clock and on
    the wall clock.
    """

    entities: Hashes
    rows: int
    dates: I64
    problems: dict[str, str]
    latest: list[int]

    def shared_with(self, others: Hashes) -> Hashes:
        """Return the entities of this split that are among others, which must be ascending."""
        return self.entities.take(others.index_of(self.entities) >= 0)


@dataclass(frozen=True)
class _SplitOutput:
    """The output of a run, which is read block by block.

    drawn: columns that rows are drawn by, if no entities are. seen: the splits or cells that were
    read.
    """

    run: FinishedRun
    settings: SplitSettings
    bins: DateBins
    workers: int
    drawn: Sequence[str] = ()
    seen: dict[str, _Seen] = field(default_factory=dict)

    def read(
        self,
        split: str,
        rules: _Rules,
        compared: Sequence[str] = (),
        digests: StoredDigests | None = None,
    ) -> None:
        """Read a split or cell once. compared: columns whose digests are kept, if any."""
        blocks = len(self.run.split_index(split).rows)
        entities = EntitySet()
        total = _Seen(
            entities.ordered(), 0, np.zeros(self.bins.count, np.int64), {}, [MISSING, MISSING]
        )
        for start in range(0, blocks, _BLOCKS_AT_ONCE):  # bounds the entities that wait to be added
            numbers = range(start, min(start + _BLOCKS_AT_ONCE, blocks))
            read = partial(self._read_block, split, rules, compared, digests)
            tasks = [partial(read, block) for block in numbers]
            for seen in run_tasks(tasks, self.workers):
                entities.add(seen.entities)
                total.rows += seen.rows
                total.dates += seen.dates
                total.problems = seen.problems | total.problems
                total.latest = list(map(max, total.latest, seen.latest))
        total.entities = entities.ordered()
        self.seen[split] = total

    def _read_block(
        self,
        split: str,
        rules: _Rules,
        compared: Sequence[str],
        digests: StoredDigests | None,
        block: int,
    ) -> _Seen:
        run = self.run
        settings = self.settings
        index = run.split_index(split)
        first = int(index.first_row[block])
        columns = [*compared, *self.drawn]
        for names in settings.roles().values():
            columns += names
        table = run.block_reader(split)(block, list(dict.fromkeys(columns)))
        if digests is not None and compared:
            digests.keep(split, row_digests(table.select(list(compared))))
        dates, micros = times_of(run, settings, table)
        problems = {}
        for broken in rules(dates):
            if broken.rows.any():
                row = first + int(np.flatnonzero(broken.rows)[0])
                problems[broken.rule] = f"{place_of_row(run, split, row)}: {broken.why}"
        late = self._first_late(table, dates)
        if late is not None:
            where = place_of_row(run, split, first + late.row)
            problems[_KNOWN] = f"{where}: column {late.column!r} is {late.value!r}: {late.problem}"
        if len(micros) != (expected := int(index.rows[block])):
            where = place_of_row(run, split, first)
            problems[_SIDE] = (
                f"{where}: the block has {len(micros):,} rows, the index says {expected:,}"
            )
        utc = dates.micros[dates.instant]
        wall = dates.micros[~dates.instant]
        latest = [int(utc.max(initial=MISSING)), int(wall.max(initial=MISSING))]
        return _Seen(self._entities(table), len(micros), self.bins.counts(micros), problems, latest)

    def _first_late(self, table: pa.Table, dates: Dates) -> LateValue | None:
        settings = self.settings
        if not isinstance(settings, TemporalSplit) or not settings.known_at:
            return None
        time_us = times_in_utc(dates, settings.time_zone)
        return known_late(table, time_us, settings, self.run.root)[1]

    def _entities(self, table: pa.Table) -> Hashes:
        """Hash the distinct entities of rows; rows without one are one entity together."""
        name = self.settings.entity_column
        if name is None:
            digests = np.empty(0, np.uint64)
            if self.settings.folds is not None:  # else their digests are counted
                digests = row_digests(table.select(self.drawn))
            return hash_rows(digests, self.settings.seed)
        texts = as_text(table[name], self.settings.dialect.null_values, name)
        hashes = hash_entities(pc.unique(texts).drop_null(), self.settings.seed)
        if not texts.null_count:
            return hashes
        null_entity = hash_null_entity(self.settings.seed)
        return Hashes(
            np.append(hashes.high, null_entity.high), np.append(hashes.low, null_entity.low)
        )

    def entities(self) -> Hashes:
        """Return all entities of the output, ascending."""
        entities = EntitySet()
        for seen in self.seen.values():
            entities.add(seen.entities)
        return entities.ordered()

    def rows(self) -> int:
        """Return the number of rows that were read."""
        return sum(seen.rows for seen in self.seen.values())

    def problem(self, rule: str) -> str | None:
        """Return the first row that breaks a rule."""
        for seen in self.seen.values():
            if rule in seen.problems:
                return seen.problems[rule]
        return None

    def first_leak(self, splits: Sequence[str], leaked: Hashes, group: str = "") -> str | None:
        """Name the first row of these splits or cells whose entity is one of the leaked ones; None
        if none leaked.
        """
        run = self.run
        settings = self.settings
        name = settings.entity_column
        if not len(leaked):
            return None
        null_leaked = leaked.index_of(hash_null_entity(settings.seed))[0] >= 0
        for split in splits:
            index = run.split_index(split)
            for block in range(len(index.rows)):
                if name is None:
                    table = run.block_reader(split)(block, list(self.drawn))
                    hashes = hash_rows(row_digests(table.select(self.drawn)), settings.seed)
                    is_leaked = leaked.index_of(hashes) >= 0
                    what = "its content"
                else:
                    column = run.block_reader(split)(block, [name])[name]
                    texts = as_text(column, settings.dialect.null_values, name)
                    is_leaked = np.full(len(texts), null_leaked)
                    hashes = hash_entities(texts.drop_null(), settings.seed)
                    is_leaked[pc.is_valid(texts).to_numpy()] = leaked.index_of(hashes) >= 0
                    what = "its entity"
                if is_leaked.any():
                    row = int(np.flatnonzero(is_leaked)[0])
                    where = place_of_row(run, split, int(index.first_row[block]) + row)
                    if name is not None:
                        what = f"its entity {texts[row].as_py()!r}"
                    return f"{where}: {what} is in another split{group} too"
        return (
            f"{run.root}: {', '.join(splits)} shares {len(leaked):,} entities with another"
            f" split{group}"
        )

    def dates_check(self, side: Check) -> list[Check]:
        """Compare the dates with those that the manifest counts, unless one is already reported by
        `side`.
        """
        if side.problem is not None or not self.settings.time_columns:
            return []
        recorded = self.run.manifest.metadata["dates"]["rows"]
        problem = None
        for split, seen in self.seen.items():
            if seen.dates.tolist() != recorded.get(split):
                problem = (
                    f"{self.run.root}: the dates of {split} are not those that the manifest counts;"
                    " prepare the run again"
                )
                break
        return [Check("rows by date", f"counted again in {self.bins.count} time ranges", problem)]

    def known_check(self) -> list[Check]:
        """Return whether all values were known before the time of their row, if columns say so."""
        settings = self.settings
        if not isinstance(settings, TemporalSplit) or not settings.known_at:
            return []
        when = "before"
        if settings.known_equal == "keep":
            when = "at or before"
        names = ", ".join(settings.known_at)
        detail = f"in {self.rows():,} rows {names} lies {when} {settings.time_name}"
        return [Check("known before the row", detail, self.problem(_KNOWN))]


def times_of(run: FinishedRun, settings: SplitSettings, table: pa.Table) -> tuple[Dates, I64]:
    """Read the dates of output rows, if they have any; return them, and their microseconds on the
    clock of the index.
    """
    if not isinstance(settings, TemporalSplit):
        dates = untimed(table.num_rows)
        return dates, dates.micros
    nulls = ("", *settings.dialect.null_values)
    column = joined_time([nulled(table[name], nulls) for name in settings.time_columns])
    dates = parse_dates(column, settings.time_format)
    if run.manifest.metadata["date_form"] != "iso_mixed":
        return dates, dates.micros
    return dates, in_utc(dates.micros, ~dates.instant, settings.time_zone)


def verify_split(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Read time, entity and compared columns of every row of the output, and check the laws."""
    return checks_of(run, settings_of(run), workers or default_workers())


def checks_of(run: FinishedRun, settings: SplitSettings, workers: int) -> list[Check]:
    """Check the laws that these settings ask for."""
    metadata = run.manifest.metadata
    bins = DateBins(0, 1, 1)
    if settings.time_columns:
        bins = DateBins.recorded(metadata["dates"])
    drawn = tuple(metadata.get("drawn", {}).get("columns", ()))
    output = _SplitOutput(run, settings, bins, workers, drawn)
    if settings.folds is not None:
        return _fold_checks(output)
    if isinstance(settings, TemporalSplit):
        checks = _split_checks(output, settings)
    else:
        checks = _random_checks(output)
    return [*checks, *_linked_checks(output), *_assignment_checks(output)]


def _assignment_checks(output: _SplitOutput) -> list[Check]:
    """Check that what an earlier run has in a split is in no other one, by the rows of both."""
    recorded = output.run.manifest.metadata.get("assigned")
    if recorded is None:
        return []
    name = "assignment of the earlier run"
    earlier = _earlier_run(output, recorded)
    if earlier is None:
        return [Check(name, "the earlier run is gone", category="unchecked")]
    settings = output.settings
    if not (settings.entity_column or output.drawn):
        return [Check(name, "time alone decides, at the same cutoff")]
    then = groups_in_splits(earlier, settings_of(earlier), output.workers)
    now = groups_in_splits(output.run, settings, output.workers)
    problem = None
    for split, other in _MOVES:
        may_do_both = settings.cut_in_time and "train" not in (split, other)
        if other in then and not may_do_both:
            hashes = now.get(split, then[other].take(np.empty(0, np.int64)))
            moved = hashes.take(then[other].index_of(hashes) >= 0)
            if problem is None and len(moved):
                problem = output.first_leak([split], moved, " of the earlier run")
    known = sum(map(len, then.values()))
    return [Check(name, f"{known:,} groups of {recorded['run']} are in no other split", problem)]


def _earlier_run(output: _SplitOutput, recorded: Mapping[str, Any]) -> FinishedRun | None:
    """Find the earlier run beside this one, or where it was; None if it is not there."""
    beside = output.run.root.parent / recorded["run"]
    for path in (beside, output.settings.assignment_from):
        with suppress(HeadraceError):
            earlier = FinishedRun(*find_run(path or beside))
            if earlier.manifest.index_digest == recorded["index_digest"]:
                return earlier
    return None


def _split_checks(output: _SplitOutput, settings: TemporalSplit) -> list[Check]:
    run = output.run
    compared = _compared(output)
    cutoff = settings.cutoff()
    date = settings.split_date
    rules = {
        _SIDE: f"its date is missing or on the wrong side of {date}",
        Reason.GAP: f"it lies within {settings.gap} before {date}, which is the gap",
        Reason.LABEL_PAST: f"its label ends {settings.label_horizon} later, not before {date}",
    }
    reaches: dict[str, int] = {_SIDE: 0}
    for reason, reach_us in settings.reaches_us().items():
        reaches[reason] = reach_us

    def broken(split: str, dates: Dates) -> Iterator[_Broken]:
        cutoff_us = np.where(dates.instant, cutoff.instant_us, cutoff.wall_us)
        for rule, reach in reaches.items():
            if split == "test":
                wrong = dates.micros < cutoff_us
            else:
                wrong = dates.micros >= cutoff_us - reach
            yield _Broken(rule, (dates.micros == MISSING) | wrong, rules[rule])

    with StoredDigests(settings.splits) as digests:
        for split in run.splits:
            output.read(split, partial(broken, split), compared, digests)
        counted = digests.count()

    earlier = " or ".join(settings.splits[:-1])
    details = {
        _SIDE: ("dates", f"{output.rows():,} rows are on their side of {date}"),
        Reason.GAP: (
            "gap before the cutoff",
            f"no row of {earlier} is within {settings.gap} of {date}",
        ),
        Reason.LABEL_PAST: (
            LABELS_END,
            f"no label of {earlier} reaches {date} in {settings.label_horizon}",
        ),
    }
    checks = [Check(*details[rule], output.problem(rule)) for rule in reaches]
    checks += output.dates_check(checks[0])
    checks += output.known_check()
    checks += _entities_disjoint(output)
    if settings.val_in_test == "drop":
        seen = output.seen
        problem = output.first_leak(["test"], seen["test"].shared_with(seen["val"].entities))
        checks.append(Check("val and test are apart", "no entity is in val and test", problem))
    return checks + _content_checks(output, counted)


def _compared(output: _SplitOutput) -> tuple[str, ...]:
    """Return the columns that rows were compared by; empty if repeats were not searched."""
    repeats = output.run.manifest.metadata.get("duplicates")
    if repeats is None:
        return ()
    return tuple(repeats["content"])


def _content_checks(output: _SplitOutput, counted: Repeated) -> list[Check]:
    """Judge the repeats that were counted again, if any were searched."""
    run = output.run
    repeats = run.manifest.metadata.get("duplicates")
    if repeats is None:
        return []
    content = partial(_digests, output, repeats["content"])
    check = content_check(run, output.settings.duplicates, repeats, counted, content)
    return [check, *_near_checks(output, repeats)]


def _digests(output: _SplitOutput, compared: Sequence[str]) -> dict[str, Any]:
    """Digest the rows of each split."""
    splits = output.settings.splits
    return {split: split_digests(output.run, split, output.workers, compared) for split in splits}


def _random_checks(output: _SplitOutput) -> list[Check]:
    """Check that no group, or no row, is in two splits, and what is known of content."""
    compared = _compared(output)
    splits = output.settings.splits
    with StoredDigests(splits) as digests:
        for split in output.run.splits:
            output.read(split, _no_rules, compared, digests)
        counted = digests.count()
    checks = _content_checks(output, counted)
    problem = output.problem(_SIDE)
    checks.append(Check("rows", f"{output.rows():,} rows are those of the index", problem))
    if output.settings.entity_column is not None:
        checks += _entities_disjoint(output)
        for other in splits[2:]:
            seen = output.seen
            problem = output.first_leak([other], seen[other].shared_with(seen["val"].entities))
            checks.append(Check("val and test are apart", "no entity is in both", problem))
        return checks
    if compared != output.drawn:
        with StoredDigests(splits) as digests:
            for split in splits:
                none = np.empty(0, np.int64)
                digests.keep_split(output.run, split, output.workers, output.drawn, none)
            counted = digests.count()
    problem = None
    if sum(counted.earlier.values()):
        problem = first_repeat(output.run, _digests(output, output.drawn), once=False)
    names = ", ".join(output.drawn)
    detail = f"no two rows with the same {names} are in two splits"
    name = "content apart" if output.settings.drawn_by == "content" else "rows apart"
    checks.append(Check(name, detail, problem))
    return checks


def _no_rules(dates: Dates) -> Iterator[_Broken]:  # noqa: ARG001 - as `_Rules`
    """Return no rule: any row may be in any split."""
    yield from ()


def _entities_disjoint(output: _SplitOutput) -> Iterator[Check]:
    """Check that no entity is in train and another split, nor in val and test if that is
    asked for.
    """
    seen = output.seen
    train = seen["train"].entities
    others = output.settings.splits[1:]
    for other in () if output.settings.entity_column is None else others:
        detail = (
            f"{len(train):,} train and {len(seen[other].entities):,} {other} entities, none in both"
        )
        problem = output.first_leak([other], seen[other].shared_with(train))
        yield Check(f"train and {other} are apart", detail, problem)


def _linked_checks(output: _SplitOutput) -> list[Check]:
    """Check that no value that links entities is in train and in another split."""
    run = output.run
    recorded = run.manifest.metadata.get("linked")
    if recorded is None:
        return []
    settings = output.settings
    entity = str(settings.entity_column)
    nulls = settings.dialect.null_values
    hubs = np.array(recorded["hubs"], np.uint64)

    def values(table: pa.Table) -> U64:
        has_entity = pc.is_valid(as_text(table[entity], nulls, entity)).to_numpy()
        of_column = []
        for number, name in enumerate(settings.linked_by):
            of_column.append(link_values(table, name, nulls, number)[has_entity])
        return distinct(np.concatenate(of_column))

    seen: dict[str, U64] = {}
    for split in run.splits:
        blocks = map_blocks(run, split, output.workers, [entity, *settings.linked_by], values)
        seen[split] = distinct(np.concatenate([np.empty(0, np.uint64), *blocks]))
    train = seen["train"][~among(seen["train"], hubs)]
    train = train[train != NOTHING]
    names = " or ".join(settings.linked_by)
    problem = None
    for split in settings.splits[1:]:
        shared = int(among(train, seen[split]).sum())
        if shared and problem is None:
            problem = f"{run.root}: {shared:,} values of {names} are in train and in {split}"
    detail = (
        f"no {names} of train is in another split, but {len(hubs):,} values of more than"
        f" {recorded['hub_above']} entities"
    )
    return [Check("linked entities are apart", detail, problem)]


def _fold_checks(output: _SplitOutput) -> list[Check]:
    """Check the laws of every fold."""
    run = output.run
    settings = output.settings
    cells = fold_cells(settings)
    numbers = {name: number for number, name in enumerate(cells.names)}
    unknown = [name for name in run.splits if name not in numbers]
    if unknown:
        problem = f"{run.root}: {unknown[0]} is not a cell of these folds"
        return [Check("cells", "are those of the settings", problem)]

    def outside(name: str, dates: Dates) -> Iterator[_Broken]:
        in_cell = []
        for blocks in (cells.utc, cells.wall):
            block_has_cell = (blocks.cell == numbers[name]).any(axis=1)
            in_cell.append(block_has_cell[blocks.block_of(dates.micros)])
        wrong = (dates.micros == MISSING) | ~np.where(dates.instant, *in_cell)
        yield _Broken(_SIDE, wrong, f"its date is missing or outside the time ranges of {name}")

    for name in run.splits:
        output.read(name, partial(outside, name))
    if not isinstance(settings, TemporalSplit):
        checks = [Check("rows", f"{output.rows():,} rows are in cells", output.problem(_SIDE))]
        checks += [_lists(output, cells), *_fold_entities_disjoint(output)]
        return checks + _fold_content_checks(output)
    rolls = isinstance(settings.folds, Rolling)
    detail = f"{output.rows():,} rows have a time"
    if rolls:
        detail = f"{output.rows():,} rows are on their side of each of {cells.folds} cuts"
    checks = [Check("dates", detail, output.problem(_SIDE))]
    earlier = " or ".join(settings.splits[:-1])
    details = {
        Reason.GAP: (
            "gap before the cutoff",
            f"no row of {earlier} of a fold is within {settings.gap} of its cut",
        ),
        Reason.LABEL_PAST: (
            LABELS_END,
            f"no label of {earlier} of a fold reaches its cut in {settings.label_horizon}",
        ),
    }
    for rule, reach_us in settings.reaches_us().items():
        checks.append(Check(*details[rule], _reaching(output, settings, reach_us)))
    checks += [_lists(output, cells), *output.dates_check(checks[0]), *output.known_check()]
    if not rolls:
        detail = "train and test of a fold are of the same time; their entities alone are apart"
        checks.append(Check("time apart", detail, category="count"))
    if settings.entity is not None:
        checks += _fold_entities_disjoint(output)
    return checks + _fold_content_checks(output)


def _fold_content_checks(output: _SplitOutput) -> list[Check]:
    """Check the content of folds, if rows were compared."""
    recorded = output.run.manifest.metadata.get("fold_content")
    if recorded is None:
        return []
    return [_fold_content(output, recorded), *_near_checks(output, recorded)]


def _fold_content(output: _SplitOutput, recorded: Mapping[str, Any]) -> Check:
    """Check that no content is in two folds, or with "drop" that none is repeated."""
    run = output.run
    once = output.settings.duplicates == "drop"
    content = {
        name: split_digests(run, name, output.workers, recorded["content"]) for name in run.splits
    }
    parts = [np.empty(0, np.uint64)]
    for digests in content.values():
        with_content = digests[digests != NOTHING]
        parts.append(with_content if once else distinct(with_content))
    ordered = np.sort(np.concatenate(parts))
    problem = None
    if (ordered[1:] == ordered[:-1]).any():
        problem = first_repeat(run, content, once=once)
    return Check(
        "content apart",
        "no content appears twice" if once else "no content is in two folds",
        problem,
    )


def _reaching(output: _SplitOutput, settings: TemporalSplit, reach_us: int) -> str | None:
    """Name the first fold whose train or val has a row that reaches its cut, by comparing times
    with cuts alone.
    """
    run = output.run
    for fold, (lists, cutoff) in enumerate(
        zip(run.manifest.folds, cutoffs(settings), strict=False)
    ):
        cuts = np.array([cutoff.instant_us, cutoff.wall_us])
        for name in (*lists["train"], *lists.get("val", ())):
            if (np.array(output.seen[name].latest) + reach_us >= cuts).any():
                return (
                    f"{run.root}: fold {fold}: the last row of {name} is within"
                    f" {reach_us / 1e6:,g} s of its cut"
                )
    return None


def _lists(output: _SplitOutput, cells: FoldCells) -> Check:
    """Compare the cells of every fold with the settings, and check that each row is in test of at
    most one fold.
    """
    run = output.run
    seen = output.seen
    filled = {name for name, cell in seen.items() if cell.rows}
    expected = cells.lists(filled)
    recorded = []
    for lists in run.manifest.folds:
        filled_lists = {}
        for split, names in lists.items():
            filled_lists[split] = [name for name in names if name in filled]
        recorded.append(filled_lists)
    problem = None
    if recorded != expected:
        first = "their number"
        for fold, (lists, right) in enumerate(zip(recorded, expected, strict=False)):
            if lists != right:
                first = f"fold {fold}"
                break
        problem = (
            f"{run.root}: the folds of the manifest are not those of its settings, first {first}"
        )
    tests = set().union(*(lists["test"] for lists in expected))
    tested = sum(seen[name].rows for name in tests)
    return Check(
        "folds",
        f"{len(expected)} folds are lists of cells, and {tested:,} rows are in test, each of one",
        problem,
    )


def _fold_entities_disjoint(output: _SplitOutput) -> list[Check]:
    """Check that no entity is in two splits of a fold."""
    entities = output.entities()
    indices = {name: entities.index_of(seen.entities) for name, seen in output.seen.items()}
    folds = output.run.manifest.folds
    pairs = [("train", "test")]
    if "val" in folds[0]:
        pairs.append(("train", "val"))
        if getattr(output.settings, "val_in_test", "keep") == "drop":
            pairs.append(("val", "test"))
    problems: dict[tuple[str, str], str] = {}
    for fold, lists in enumerate(folds):
        members = {split: np.zeros(len(entities), np.bool_) for split in lists}
        for split, names in lists.items():
            for name in names:
                members[split][indices[name]] = True
        for pair in pairs:
            both = members[pair[0]] & members[pair[1]]
            if both.any() and pair not in problems:
                leak = output.first_leak(lists[pair[1]], entities.take(both), " of the fold")
                problems[pair] = f"fold {fold}: {leak}"
    detail = (
        f"in each of {len(folds)} folds no entity is in both; {len(entities):,} entities in all"
    )
    return [
        Check(f"{pair[0]} and {pair[1]} are apart", detail, problems.get(pair)) for pair in pairs
    ]


def _near_checks(output: _SplitOutput, recorded: Mapping[str, Any]) -> list[Check]:
    """Search near rows again, as the settings do: across splits or cells of folds, and with "drop"
    anywhere.
    """
    run = output.run
    settings = output.settings
    if settings.near is None:
        return []
    splits = [SplitBlocks(run, split, output.workers) for split in run.splits]
    near = near_duplicates(splits, recorded["content"], settings.near, packed=False)
    across = sum(pairs.rows for pairs in near.shared)
    within = sum(near.repeated.values())
    parts = [
        f"{pairs.rows:,} {pairs.split} rows with one of {pairs.earlier}" for pairs in near.shared
    ]
    listed = f"{', '.join(parts)} have a Jaccard index of {settings.near:g} or more"
    if settings.duplicates == "count":
        return [Check("near content apart", f"not asked for: {listed}", category="count")]
    refused = across
    detail = f"no row has a Jaccard index of {settings.near:g} or more with one of another split"
    if settings.duplicates == "drop":
        refused += within
        detail = f"no two rows have a Jaccard index of {settings.near:g} or more"
    problem = None
    if refused > recorded["near"]["not_compared"]:  # the pairs that the run did not compare
        problem = f"{run.root}: {within:,} rows are near one of their split"
        if across:
            problem = f"{run.root}: {listed}{_example(near.shared)}"
    return [Check("near content apart", listed if across else detail, problem)]


def _example(shared: Sequence[Any]) -> str:
    for pairs in shared:
        for earlier, later, _ in pairs.examples:
            return f", such as {later} and {earlier}"
    return ""
