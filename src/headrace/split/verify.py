"""Prove a temporal split or its folds from the output alone: times on their side, entities and content disjoint.

A cell's role in each fold follows from the settings. So the lists of the manifest are compared with those, and every
row with the cells that its time allows. Gaps, horizons and windows are borders of cells: a row too close before a cut
is in a cell that no list of that fold holds. Memory is O(entities of a split or cell, summed) and O(blocks). If rows of
a split are compared, a temporary file takes 8 bytes a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, Bools
from headrace.dataset.certificate import LABELS_END
from headrace.dataset.contents import KeptDigests, content_check, first_repeat, place_of_row, split_digests
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.engine.local import default_workers, run_tasks
from headrace.folds.settings import Rolling
from headrace.formats.content import NOTHING, row_digests
from headrace.formats.dates import MISSING, Dates
from headrace.formats.text_columns import as_text
from headrace.split.allocate import EntitySet, Hashes, hash_entities, hash_nobody
from headrace.split.cutoff import DateBins, cutoffs
from headrace.split.folds import FoldCells, fold_cells
from headrace.split.settings import GAP, LABEL_PAST, TemporalSplit
from headrace.split.shards import settings_of, times_of
from headrace.stream.audit.near import SplitBlocks, near_duplicates

_SIDE = "side"  # the rule of every run, besides those that keep rows away from the cutoff
_BLOCKS_AT_ONCE = 256

_Rules = Callable[[Dates], Iterator[tuple[str, Bools, str]]]  # by rule the rows that break it, and how


@dataclass
class _Seen:
    """A split or cell as it was read. dates: rows in each time bin, as the manifest counts them.

    problems: by rule, the first row that breaks it. latest: the last time on the UTC clock and on the wall clock.
    """

    entities: Hashes
    rows: int
    dates: list[int] | None
    problems: dict[str, str]
    latest: list[int]

    def shared_with(self, other: Hashes) -> Hashes:
        """Return the entities of this split that are among others, which must be ascending."""
        return self.entities.take(other.places(self.entities) >= 0)


@dataclass(frozen=True)
class _Output:
    """The output of a run, which is read block by block. bins: None for a run of an older version.

    seen: the splits or cells that were read.
    """

    run: FinishedRun
    settings: TemporalSplit
    bins: DateBins | None
    workers: int
    seen: dict[str, _Seen] = field(default_factory=dict)

    def read(self, name: str, rules: _Rules, compared: Sequence[str] = (), kept: KeptDigests | None = None) -> None:
        """Read a split or cell once. compared: columns whose digests are kept, if any."""
        run, settings, bins = self.run, self.settings, self.bins
        index = run.split_index(name)
        columns = list(dict.fromkeys([settings.time, *([settings.entity] if settings.entity else []), *compared]))

        def look(block: int) -> tuple[Hashes, int, I64 | None, dict[str, str], list[int]]:
            table, first = run.block_reader(name)(block, columns), int(index.first_row[block])
            if kept is not None and compared:
                kept.keep(name, row_digests(table.select(list(compared))))
            dates, micros = times_of(run, settings, table)
            problems = {
                rule: f"{place_of_row(run, name, first + int(np.flatnonzero(wrong)[0]))}: {why}"
                for rule, wrong, why in rules(dates)
                if wrong.any()
            }
            if len(micros) != (expected := int(index.rows[block])):
                where = place_of_row(run, name, first)
                problems[_SIDE] = f"{where}: the block has {len(micros):,} rows, the index says {expected:,}"
            clocks = (dates.micros[dates.instant], dates.micros[~dates.instant])
            latest = [int(own.max(initial=MISSING)) for own in clocks]
            return self._entities(table), len(micros), None if bins is None else bins.counts(micros), problems, latest

        entities, rows = EntitySet(), 0
        problems: dict[str, str] = {}
        dates = None if bins is None else np.zeros(bins.count, np.int64)
        latest = [MISSING, MISSING]
        for start in range(0, len(index.rows), _BLOCKS_AT_ONCE):  # bounds the entities that wait to be added
            numbers = range(start, min(start + _BLOCKS_AT_ONCE, len(index.rows)))
            for own, count, dated, wrong, last in run_tasks([partial(look, each) for each in numbers], self.workers):
                entities.add(own)
                rows += count
                if dates is not None and dated is not None:
                    dates += dated
                problems = wrong | problems
                latest = list(map(max, latest, last))
        dated_rows = None if dates is None else dates.tolist()
        self.seen[name] = _Seen(entities.ordered(), rows, dated_rows, problems, latest)

    def _entities(self, table: pa.Table) -> Hashes:
        """Hash the distinct entities of rows; rows without one are one entity together."""
        if self.settings.entity is None:
            return Hashes(np.empty(0, np.uint64), np.empty(0, np.uint64))
        texts = as_text(table[self.settings.entity], self.settings.null_values, "entity")
        hashes = hash_entities(pc.unique(texts).drop_null(), self.settings.seed)
        if not texts.null_count:
            return hashes
        nobody = hash_nobody(self.settings.seed)
        return Hashes(np.append(hashes.high, nobody.high), np.append(hashes.low, nobody.low))

    def entities(self) -> Hashes:
        """Return all entities of the output, ascending."""
        every = EntitySet()
        for each in self.seen.values():
            every.add(each.entities)
        return every.ordered()

    def first_of(self, names: Sequence[str], leaked: Hashes, of: str = "") -> str | None:
        """Name the first row of these splits or cells whose entity is one of the leaked ones; None if none leaked."""
        run, settings = self.run, self.settings
        if not len(leaked) or settings.entity is None:
            return None
        for name in names:
            index = run.split_index(name)
            for block in range(len(index.rows)):
                column = run.block_reader(name)(block, [settings.entity])[settings.entity]
                texts = as_text(column, settings.null_values, "entity")
                hit = np.zeros(len(texts), np.bool_)
                hit[pc.is_valid(texts).to_numpy()] = leaked.places(hash_entities(texts.drop_null(), settings.seed)) >= 0
                if texts.null_count and leaked.places(hash_nobody(settings.seed))[0] >= 0:
                    hit |= pc.is_null(texts).to_numpy()
                if hit.any():
                    row = int(np.flatnonzero(hit)[0])
                    where = place_of_row(run, name, int(index.first_row[block]) + row)
                    return f"{where}: its entity {texts[row].as_py()!r} is in another split{of} too"
        return f"{run.root}: {', '.join(names)} shares {len(leaked):,} entities with another split{of}"

    def dates_check(self, side: Check) -> list[Check]:
        """Compare the dates with those that the manifest counts, unless one is already reported by `side`."""
        if self.bins is None or side.problem is not None:
            return []
        said = self.run.manifest.facts["dates"]["rows"]
        moved = next((name for name, each in self.seen.items() if each.dates != said.get(name)), None)
        where = f"{self.run.root}: the dates of {moved}"
        told = moved and f"{where} are not those that the manifest counts; prepare the run again"
        return [Check("rows by date", f"counted again in {self.bins.count} time ranges", told)]


def verify_split(run: FinishedRun, workers: int | None = None) -> list[Check]:
    """Read time, entity and compared columns of every row of the output, and check the laws."""
    return checks_of(run, settings_of(run), workers or default_workers())


def checks_of(run: FinishedRun, settings: TemporalSplit, workers: int) -> list[Check]:
    """Check the laws that these settings ask for."""
    output = _Output(run, settings, DateBins.recorded(run.manifest.facts.get("dates")), workers)
    return _split_checks(output) if settings.folds is None else _fold_checks(output)


def _split_checks(output: _Output) -> list[Check]:
    run, settings, workers = output.run, output.settings, output.workers
    repeats = run.manifest.facts.get("duplicates")  # None if repeats were not searched, as in a run of an older version
    compared = () if repeats is None else tuple(repeats["content"])
    cutoff, date = settings.cutoff(), settings.split_date
    rules = {
        _SIDE: f"its date is missing or on the wrong side of {date}",
        GAP: f"it lies within {settings.gap} before {date}, which is the gap",
        LABEL_PAST: f"its label ends {settings.label_horizon} later, not before {date}",
    }
    reaches = {_SIDE: 0, **settings.reaches_us()}

    def broken(split: str, dates: Dates) -> Iterator[tuple[str, Bools, str]]:
        at = np.where(dates.instant, cutoff.instant_us, cutoff.wall_us)
        for rule, reach in reaches.items():
            wrong = dates.micros < at if split == "test" else dates.micros >= at - reach
            yield rule, (dates.micros == MISSING) | wrong, rules[rule]

    with KeptDigests(settings.splits) as kept:
        for split in run.splits:
            output.read(split, partial(broken, split), compared, kept)
        found = kept.count()

    seen = output.seen
    rows = sum(each.rows for each in seen.values())
    earlier = " or ".join(settings.splits[:-1])
    said_of = {
        _SIDE: ("dates", f"{rows:,} rows are on their side of {date}"),
        GAP: ("gap before the cutoff", f"no row of {earlier} is within {settings.gap} of {date}"),
        LABEL_PAST: (LABELS_END, f"no label of {earlier} reaches {date} in {settings.label_horizon}"),
    }
    checks = [
        Check(*said_of[rule], next((each.problems[rule] for each in seen.values() if rule in each.problems), None))
        for rule in reaches
    ]
    checks += output.dates_check(checks[0])
    train = seen["train"].entities
    for other in () if settings.entity is None else ("val", "test"):
        detail = f"{len(train):,} train and {len(seen[other].entities):,} {other} entities, none in both"
        problem = output.first_of([other], seen[other].shared_with(train))
        checks.append(Check(f"train and {other} are apart", detail, problem))
    if settings.val_in_test == "drop":
        problem = output.first_of(["test"], seen["test"].shared_with(seen["val"].entities))
        checks.append(Check("val and test are apart", "no entity validates and tests", problem))
    if repeats is not None:

        def content() -> dict[str, Any]:
            return {split: split_digests(run, split, workers, compared) for split in settings.splits}

        checks.append(content_check(run, settings.duplicates, repeats, found, content))
        checks += _near_checks(output, repeats)
    return checks


def _fold_checks(output: _Output) -> list[Check]:
    """Check the laws of every fold."""
    run, settings = output.run, output.settings
    cells = fold_cells(settings)
    number = {name: each for each, name in enumerate(cells.names)}
    strange = next((name for name in run.splits if name not in number), None)
    if strange is not None:
        return [Check("cells", "are those of the settings", f"{run.root}: {strange} is not a cell of these folds")]
    clocks = (cells.utc, cells.wall)

    def outside(name: str, dates: Dates) -> Iterator[tuple[str, Bools, str]]:
        utc, wall = ((each.cell == number[name]).any(axis=1)[each.block_of(dates.micros)] for each in clocks)
        wrong = (dates.micros == MISSING) | ~np.where(dates.instant, utc, wall)
        yield _SIDE, wrong, f"its date is missing or outside the time ranges of {name}"

    for name in run.splits:
        output.read(name, partial(outside, name))
    found = output.seen
    rows, folds = sum(each.rows for each in found.values()), len(cells.roles.T)
    rolls = isinstance(settings.folds, Rolling)
    detail = f"{rows:,} rows are on their side of each of {folds} cuts" if rolls else f"{rows:,} rows have a time"
    problem = next((each.problems[_SIDE] for each in found.values() if each.problems), None)
    checks = [Check("dates", detail, problem)]
    earlier = " or ".join(settings.splits[:-1])
    said_of = {
        GAP: ("gap before the cutoff", f"no row of {earlier} of a fold is within {settings.gap} of its cut"),
        LABEL_PAST: (LABELS_END, f"no label of {earlier} of a fold reaches its cut in {settings.label_horizon}"),
    }
    for rule, reach_us in settings.reaches_us().items():
        checks.append(Check(*said_of[rule], _reaching(output, reach_us)))
    checks += [_lists(output, cells), *output.dates_check(checks[0])]
    if not rolls:
        told = "train and test of a fold are of the same time; their entities alone are apart"
        checks.append(Check("time apart", told, kind="count"))
    if settings.entity is not None:
        checks += _entities_apart(output)
    if (said := run.manifest.facts.get("fold_content")) is not None:
        content = {name: split_digests(run, name, output.workers, said["content"]) for name in run.splits}
        once = settings.duplicates == "drop"  # then no content is repeated, else none is in two folds
        parts = [own[own != NOTHING] for own in content.values()]
        parts = parts if once else [np.unique(own) for own in parts]
        ordered = np.sort(np.concatenate([np.empty(0, np.uint64), *parts]))
        problem = first_repeat(run, content, once=once) if (ordered[1:] == ordered[:-1]).any() else None
        detail = "no content appears twice" if once else "no content is in two folds"
        checks += [Check("content apart", detail, problem), *_near_checks(output, said)]
    return checks


def _reaching(output: _Output, reach_us: int) -> str | None:
    """Name the first fold whose train or val has a row that reaches its cut, by comparing times with cuts alone."""
    run = output.run
    for fold, (lists, cutoff) in enumerate(zip(run.manifest.folds, cutoffs(output.settings), strict=False)):
        for name in (*lists["train"], *lists.get("val", ())):
            for latest, cut in zip(output.seen[name].latest, (cutoff.instant_us, cutoff.wall_us), strict=True):
                if latest + reach_us >= cut:
                    return f"{run.root}: fold {fold}: the last row of {name} is within {reach_us / 1e6:,g} s of its cut"
    return None


def _lists(output: _Output, cells: FoldCells) -> Check:
    """Compare the cells of every fold with the settings, and check that each row tests in at most one fold."""
    run, found = output.run, output.seen
    expected = cells.lists([name for name, each in found.items() if each.rows])
    said = [
        {split: [each for each in own if found[each].rows] for split, own in lists.items()}
        for lists in run.manifest.folds
    ]
    wrong = next((fold for fold, (own, right) in enumerate(zip(said, expected, strict=False)) if own != right), None)
    problem = None
    if len(said) != len(expected) or wrong is not None:
        which = "their number" if wrong is None else f"fold {wrong}"
        problem = f"{run.root}: the folds of the manifest are not those of its settings, first {which}"
    tested = sum(each.rows for name, each in found.items() if any(name in own["test"] for own in expected))
    return Check("folds", f"{len(expected)} folds are lists of cells, and {tested:,} rows test, each in one", problem)


def _entities_apart(output: _Output) -> list[Check]:
    known = output.entities()
    places = {name: known.places(each.entities) for name, each in output.seen.items()}
    folds = output.run.manifest.folds
    pairs = [("train", "test"), *([("train", "val"), ("val", "test")] if "val" in folds[0] else [])]
    if output.settings.val_in_test == "keep":
        pairs = [each for each in pairs if each != ("val", "test")]
    problems: dict[tuple[str, str], str] = {}
    for fold, lists in enumerate(folds):
        held = {split: np.zeros(len(known), np.bool_) for split in lists}
        for split, names in lists.items():
            for name in names:
                held[split][places[name]] = True
        for one, other in pairs:
            both = held[one] & held[other]
            if both.any() and (one, other) not in problems:
                told = output.first_of(lists[other], known.take(both), " of the fold")
                problems[one, other] = f"fold {fold}: {told}"
    detail = f"in each of {len(folds)} folds no entity is in both; {len(known):,} entities in all"
    return [Check(f"{one} and {other} are apart", detail, problems.get((one, other))) for one, other in pairs]


def _near_checks(output: _Output, said: Mapping[str, Any]) -> list[Check]:
    """Search near rows again, as the settings do: across splits or cells of folds, and with "drop" anywhere."""
    run, settings = output.run, output.settings
    if settings.near is None:
        return []
    splits = [SplitBlocks(run, split, output.workers) for split in run.splits]
    found = near_duplicates(splits, said["content"], settings.near, packed=False)
    across, own = sum(each.rows for each in found.shared), sum(found.repeated.values())
    parts = [f"{each.rows:,} {each.split} rows with one of {each.earlier}" for each in found.shared]
    listed = f"{', '.join(parts)} have a Jaccard index of {settings.near:g} or more"
    if settings.duplicates == "count":
        return [Check("near content apart", f"not asked for: {listed}", kind="count")]
    once = settings.duplicates == "drop"
    detail = f"no row has a Jaccard index of {settings.near:g} or more with one of another split"
    detail = f"no two rows have a Jaccard index of {settings.near:g} or more" if once else detail
    problem = None
    if across + (own if once else 0) > said["near"]["not_compared"]:  # the pairs that the run did not compare
        examples = [pair for each in found.shared for pair in each.examples][:1]
        such = "".join(f", such as {late} and {early}" for early, late, _ in examples)
        problem = f"{run.root}: {listed}{such}" if across else f"{run.root}: {own:,} rows are near one of their split"
    return [Check("near content apart", listed if across else detail, problem)]
