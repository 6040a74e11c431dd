"""Prove folds from their output alone: the time of every row fits its cell, and no entity trains and tests in a fold.

A cell's role in each fold follows from the settings. So the lists of the manifest are compared with those, and every
row with the cells that its time allows. Gaps, horizons and windows are borders of cells: a row too close before a cut
is in a cell that no list of that fold holds. Memory is O(entities of a cell, summed over cells).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow.compute as pc

from headrace.arrays import I64
from headrace.dataset.certificate import LABELS_END
from headrace.dataset.contents import first_repeat, place_of_row, split_digests
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.engine.local import run_tasks
from headrace.formats.content import NOTHING
from headrace.formats.dates import MISSING, parse_dates
from headrace.formats.text_columns import as_text, nulled
from headrace.run.folds import Rolling
from headrace.split.allocate import EntitySet, Hashes, hash_entities
from headrace.split.cutoff import DateBins, cutoffs
from headrace.split.folds import FoldCells, fold_cells
from headrace.split.settings import GAP, LABEL_PAST, TemporalSplit
from headrace.split.shards import on_utc
from headrace.split.verify_near import near_checks

_BLOCKS_AT_ONCE = 256


@dataclass
class _Cell:
    """A cell as it was read. dates: rows in each time bin; problem: the first row that does not belong there.

    latest: the last time on the UTC clock and on the wall clock; None for a clock without rows.
    """

    entities: Hashes
    rows: int
    dates: list[int]
    problem: str | None
    latest: tuple[int | None, int | None]


def verify_folds(run: FinishedRun, settings: TemporalSplit, workers: int) -> list[Check]:
    """Read time and entity of every row of the output, and check the laws of every fold."""
    cells = fold_cells(settings)
    said = run.manifest.facts["dates"]
    bins = DateBins(said["first_us"], said["width_us"], max(map(len, said["rows"].values())))
    number = {name: each for each, name in enumerate(cells.names)}
    strange = next((name for name in run.splits if name not in number), None)
    if strange is not None:
        return [Check("cells", "are those of the settings", f"{run.root}: {strange} is not a cell of these folds")]
    found = {name: _read(run, settings, cells, number[name], name, bins, workers) for name in run.splits}

    rows, folds = sum(each.rows for each in found.values()), len(cells.roles.T)
    rolls = isinstance(settings.folds, Rolling)
    detail = f"{rows:,} rows are on their side of each of {folds} cuts" if rolls else f"{rows:,} rows have a time"
    checks = [Check("dates", detail, next((each.problem for each in found.values() if each.problem), None))]
    earlier = "train" if settings.entity is None else "train or val"
    said_of = {
        GAP: ("gap before the cutoff", f"no row of {earlier} of a fold is within {settings.gap} of its cut"),
        LABEL_PAST: (LABELS_END, f"no label of {earlier} of a fold reaches its cut in {settings.label_horizon}"),
    }
    for rule, reach_us in settings.reaches_us().items():
        checks.append(Check(*said_of[rule], _reaching(run, settings, found, reach_us)))
    checks.append(_lists(run, cells, found))
    moved = next((name for name, each in found.items() if each.dates != said["rows"].get(name)), None)
    told = moved and f"{run.root}: the dates of {moved} are not those that the manifest counts; prepare the run again"
    detail = f"counted again in {bins.count} time ranges"
    checks.append(Check("rows by date", detail, told if checks[0].problem is None else None))
    if not rolls:
        told = "train and test of a fold are of the same time; their entities alone are apart"
        checks.append(Check("time apart", told, kind="count"))
    if settings.entity is not None:
        checks += _entities_apart(run, settings, cells, {number[name]: each.entities for name, each in found.items()})
    if (said := run.manifest.facts.get("fold_content")) is not None:
        checks += [_content_apart(run, settings, said["content"], workers), *near_checks(run, settings, said, workers)]
    return checks


def _content_apart(run: FinishedRun, settings: TemporalSplit, compared: Sequence[str], workers: int) -> Check:
    """Compare the content of all rows: with "drop" none is repeated, else none is in two folds. 16 bytes a row."""
    content = {name: split_digests(run, name, workers, compared) for name in run.splits}
    once = settings.duplicates == "drop"
    parts = [own[own != NOTHING] for own in content.values()]
    parts = parts if once else [np.unique(own) for own in parts]
    ordered = np.sort(np.concatenate([np.empty(0, np.uint64), *parts]))
    problem = first_repeat(run, content, once=once) if (ordered[1:] == ordered[:-1]).any() else None
    return Check("content apart", "no content appears twice" if once else "no content is in two folds", problem)


def _reaching(run: FinishedRun, settings: TemporalSplit, found: Mapping[str, _Cell], reach_us: int) -> str | None:
    """Name the first fold whose train or val has a row that reaches its cut, by comparing times with cuts alone."""
    for fold, (lists, cutoff) in enumerate(zip(run.manifest.folds, cutoffs(settings), strict=False)):
        for name in (*lists["train"], *lists.get("val", ())):
            for latest, cut in zip(found[name].latest, (cutoff.instant_us, cutoff.wall_us), strict=True):
                if latest is not None and latest + reach_us >= cut:
                    return f"{run.root}: fold {fold}: the last row of {name} is within {reach_us / 1e6:,g} s of its cut"
    return None


def _lists(run: FinishedRun, cells: FoldCells, found: Mapping[str, _Cell]) -> Check:
    """Compare the cells of every fold with the settings, and check that each row tests in at most one fold."""
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


def _entities_apart(
    run: FinishedRun, settings: TemporalSplit, cells: FoldCells, entities: Mapping[int, Hashes]
) -> list[Check]:
    every = EntitySet()
    for own in entities.values():
        every.add(own)
    known = every.ordered()
    places = {cell: known.places(own) for cell, own in entities.items()}
    pairs = [("train", "test"), ("train", "val"), ("val", "test")]
    has_val = "val" in run.manifest.folds[0]
    pairs = [each for each in pairs if has_val or "val" not in each]
    if settings.val_in_test == "keep":
        pairs = [each for each in pairs if each != ("val", "test")]
    problems: dict[tuple[str, str], str] = {}
    for fold, lists in enumerate(run.manifest.folds):
        held = {}
        for split, names in lists.items():
            held[split] = np.zeros(len(known), np.bool_)
            for name in names:
                held[split][places[cells.names.index(name)]] = True
        for one, other in pairs:
            both = held[one] & held[other]
            if both.any() and (one, other) not in problems:
                shared = Hashes(known.high[both], known.low[both])
                problems[one, other] = f"fold {fold}: {_first_row_of(run, settings, lists[other], shared)}"
    folds = len(run.manifest.folds)
    return [
        Check(
            f"{one} and {other} are apart",
            f"in each of {folds} folds no entity is in both; {len(known):,} entities in all",
            problems.get((one, other)),
        )
        for one, other in pairs
    ]


def _read(
    run: FinishedRun, settings: TemporalSplit, cells: FoldCells, number: int, name: str, bins: DateBins, workers: int
) -> _Cell:
    index = run.split_index(name)
    mixed = run.manifest.facts["date_form"] == "iso_mixed"
    columns = [settings.time, *([settings.entity] if settings.entity else [])]
    clocks = (cells.utc, cells.wall)
    allowed = [(blocks.cell == number).any(axis=1) for blocks in clocks]

    def look(block: int) -> tuple[Hashes, int, I64, str | None, tuple[int | None, ...]]:
        """Return the distinct entities of a block, its rows, rows in each time bin, problems, and its last times."""
        table = run.block_reader(name)(block, columns)
        entities = Hashes(np.empty(0, np.uint64), np.empty(0, np.uint64))
        if settings.entity is not None:
            texts = as_text(table[settings.entity], settings.null_values, "entity")
            entities = hash_entities(pc.unique(texts).drop_null(), settings.seed)
        dates = parse_dates(nulled(table[settings.time], ("", *settings.null_values)), settings.time_format)
        utc, wall = (own[blocks.block_of(dates.micros)] for own, blocks in zip(allowed, clocks, strict=True))
        wrong = (dates.micros == MISSING) | ~np.where(dates.instant, utc, wall)
        problem, expected = None, int(index.rows[block])
        if len(wrong) != expected:
            where = place_of_row(run, name, int(index.first_row[block]))
            problem = f"{where}: the block has {len(wrong):,} rows, the index says {expected:,}"
        elif wrong.any():
            where = place_of_row(run, name, int(index.first_row[block]) + int(np.flatnonzero(wrong)[0]))
            problem = f"{where}: its date is missing or outside the time ranges of {name}"
        micros = on_utc(dates.micros, ~dates.instant, settings.timezone) if mixed else dates.micros
        times = (dates.micros[dates.instant], dates.micros[~dates.instant])
        latest = tuple(int(own.max()) if len(own) else None for own in times)
        return entities, len(wrong), bins.counts(micros), problem, latest

    entities, rows, problem = EntitySet(), 0, None
    counts = np.zeros(bins.count, np.int64)
    last: list[list[int]] = [[], []]
    for start in range(0, len(index.rows), _BLOCKS_AT_ONCE):  # bounds the entities that wait to be added
        numbers = range(start, min(start + _BLOCKS_AT_ONCE, len(index.rows)))
        for own, count, dated, wrong, latest in run_tasks([partial(look, each) for each in numbers], workers):
            entities.add(own)
            rows += count
            counts += dated
            problem = problem or wrong
            for times, each in zip(last, latest, strict=True):
                times += [] if each is None else [each]
    return _Cell(
        entities.ordered(), rows, counts.tolist(), problem, (max(last[0], default=None), max(last[1], default=None))
    )


def _first_row_of(run: FinishedRun, settings: TemporalSplit, names: Sequence[str], leaked: Hashes) -> str:
    """Name the first shard and row of these cells whose entity is one of the leaked ones."""
    assert settings.entity is not None
    for name in names:
        index = run.split_index(name)
        for block in range(len(index.rows)):
            column = run.block_reader(name)(block, [settings.entity])[settings.entity]
            texts = as_text(column, settings.null_values, "entity")
            hit = np.zeros(len(texts), np.bool_)
            hit[pc.is_valid(texts).to_numpy()] = leaked.places(hash_entities(texts.drop_null(), settings.seed)) >= 0
            if hit.any():
                row = int(np.flatnonzero(hit)[0])
                where = place_of_row(run, name, int(index.first_row[block]) + row)
                return f"{where}: its entity {texts[row].as_py()!r} is in another split of the fold too"
    return f"{run.root}: {len(leaked):,} entities are in two splits of it"
