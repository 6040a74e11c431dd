"""Prove from a run of series that every row is on its side of the cuts, and that held-out splits are exclusive."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np

from headrace.arrays import I64
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.report.words import many_entities
from headrace.run.folds import Rolling
from headrace.series.arrays.axis import DAY_US, times_at
from headrace.series.config import Series
from headrace.series.parts import SPLITS
from headrace.series.store import ENTITIES, read_entities, split_rows

_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def cut_checks(run: FinishedRun, settings: Series) -> list[Check]:
    """Check dates, distances from cuts and held-out entities, each if requested. O(entities) of memory."""
    checks = []
    if settings.pipelines_from is None and settings.division.by_dates:
        checks.append(_dates(run, settings))
    elif settings.division.reach_us:
        checks.append(_distances(run, settings))
    return [*checks, _held_out(run, settings)] if settings.division.held_out else checks


def _dates(run: FinishedRun, settings: Series) -> Check:
    """Check, in every fold, that each split's rows lie between its cuts, at the requested distance from the next."""
    table = read_entities(run.root)
    names, first, from_end = table["entity"].to_list(), table["first_time"].to_numpy(), table["anchor"] == "end"
    division = settings.division
    dates = np.array([division.dates.get(name, division.cuts or (0, 0)) for name in names], np.int64).reshape(-1, 2)
    folds, step = (settings.folds.n, settings.folds.step_us) if isinstance(settings.folds, Rolling) else (1, 0)
    problem = None
    for fold in range(folds):
        one, two = (dates + fold * step).T
        low = {"train": np.full_like(one, _LEAST), "val": one, "test": two}
        high = {"train": one - division.reach_us, "val": two - division.reach_us}
        high["test"] = two + step if step else np.full_like(two, _MOST)
        for split, (start, stop) in split_rows(table, division.parts, fold).items():
            begins, last = (times_at(settings.step, first, from_end.to_numpy(), rows) for rows in (start, stop - 1))
            wrong = (stop > start) & ((begins < low[split]) | (last >= high[split]))
            if wrong.any() and problem is None:
                problem = f"{run.root / ENTITIES}: {split} of {names[int(np.argmax(wrong))]!r} reaches over a cut"
    far = f", {division.reach_us / DAY_US:g} days or more before the next one" if division.reach_us else ""
    told = f" in {folds:,} folds" if step else ""
    return Check("cuts", f"every row of {many_entities(len(names))} is on its side of the cuts{far}{told}", problem)


def _distances(run: FinishedRun, settings: Series) -> Check:
    """Check that an entity's splits, cut by shares, are further apart than the requested distance."""
    table = read_entities(run.root)
    first, from_end = table["first_time"].to_numpy(), (table["anchor"] == "end").to_numpy()

    def times(rows: I64) -> I64:
        return times_at(settings.step, first, from_end, rows)

    problem, rows = None, split_rows(table, settings.division.parts)
    for one, other in pairwise(SPLITS):
        both = (rows[one][1] > rows[one][0]) & (rows[other][1] > rows[other][0])
        close = both & (times(rows[other][0]) - times(rows[one][1] - 1) <= settings.division.reach_us)
        if close.any() and problem is None:
            name = table["entity"][int(np.argmax(close))]
            problem = f"{run.root / ENTITIES}: {one} of {name!r} is too close before its {other}"
    far = f"{settings.division.reach_us / DAY_US:g} days"
    return Check("cuts", f"splits of each of {many_entities(len(table))} are more than {far} apart", problem)


def _held_out(run: FinishedRun, settings: Series) -> Check:
    """Check that held-out entities have rows only in their split, and that no others have rows there."""
    table = read_entities(run.root)
    sides = [settings.division.side_of(name) for name in table["entity"]]
    held, problem = set(settings.division.held_out.values()), None
    folds, parts = len(settings.division.parts.ranges), settings.division.parts
    for split, (start, stop) in (each for fold in range(folds) for each in split_rows(table, parts, fold).items()):
        for at in np.flatnonzero(stop > start).tolist():
            allowed = sides[at] == split or (sides[at] == "train" and split not in held)
            if not allowed and problem is None:
                problem = f"{run.root / ENTITIES}: {table['entity'][at]!r} has rows in {split} and is of {sides[at]}"
    counts = Counter[str](sides)
    told = ", ".join(f"{counts[side]:,} of {side}" for side in SPLITS if side == "train" or side in held)
    return Check("held-out entities", f"no entity has rows in the split of others: {told}", problem)
