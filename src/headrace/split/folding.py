"""Decide the cells of a run with folds, and describe them for its manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64
from headrace.errors import InputError
from headrace.folds.settings import GroupKFold, Rolling
from headrace.formats.dates import moment
from headrace.run.context import RunContext, read_arrow
from headrace.run.events import Note
from headrace.split import duplicates
from headrace.split.allocate import Allocation, EntitySet, Hashes, allocate
from headrace.split.cutoff import cutoffs
from headrace.split.folds import deal, deal_stratified, fold_cells
from headrace.split.scan import read_entities, scan_file
from headrace.split.settings import TemporalSplit
from headrace.split.shards import Clock, Folding, SplitPlan


def folded(context: RunContext, plan: SplitPlan, shards: int) -> SplitPlan:
    """Return what decides the cell of a row, and which rows are dropped or dealt together because of their content.

    The plan's allocation has the sides of entities that are seen before the last cut.
    """
    settings = plan.settings
    plan = replace(plan, folding=_folding(context, settings, plan.allocation, shards))
    if settings.duplicates == "group" and plan.folding is not None:
        known = plan.folding.known
        unit = duplicates.units(context, plan, known, shards)
        found = _folding(context, settings, plan.allocation, shards, unit)
        return replace(plan, folding=found, allocation=allocate(known, settings.train_ratio, unit))
    return duplicates.decided(context, plan, shards)


def _folding(
    context: RunContext, settings: TemporalSplit, allocation: Allocation, shards: int, unit: I64 | None = None
) -> Folding:
    """Return what decides the cell of a row. unit: of each entity [E], if several are dealt to folds together."""
    cells = fold_cells(settings)
    if isinstance(settings.folds, GroupKFold):
        known, rows = _rows_of_entities(context.run, shards)
        _, member = np.unique(np.arange(len(known)) if unit is None else unit, return_inverse=True)
        of_unit = np.zeros((int(member.max(initial=-1)) + 1, rows.shape[1]), np.int64)
        np.add.at(of_unit, member, rows)
        if len(of_unit) < settings.folds.k:
            joined = "" if unit is None else f", which content joins to {len(of_unit):,} units"
            raise InputError(
                f"{settings.entity}: has {len(known):,} entities with rows that count{joined}, and folds are "
                f"{settings.folds.k}; choose fewer folds"
            )
        stratified = settings.folds.stratify is not None
        dealt = deal_stratified(of_unit, settings.folds.k) if stratified else deal(of_unit[:, 0], settings.folds.k)
        return Folding(cells, known, dealt[member], None)
    first = None
    if settings.entity is not None:
        known = allocation.known
        first = np.full(len(known), len(cells.roles.T))
        for hashes, own in context.map([partial(_first_seen, context.run, number) for number in range(shards)]):
            place = known.places(hashes)
            np.minimum.at(first, place[place >= 0], own[place >= 0])
        context.on_event(
            Note("info", f"{len(known):,} entities: {allocation.train:,} train in folds, {allocation.val:,} validate")
        )
    return Folding(cells, allocation.known, allocation.sides.astype(np.int64), first)


def _first_seen(run: Path, number: int) -> tuple[Hashes, I64]:
    return read_entities(run, number)[0], read_arrow(run / scan_file(number, "entities"))["first"].to_numpy()


def _rows_of_entities(run: Path, shards: int) -> tuple[Hashes, I64]:
    """Return the entities with kept rows, ascending by hash, and their rows by class [E, C]."""
    seen, classes = EntitySet(), pa.array([""], pa.string())
    for number in range(shards):
        hashes, strata = read_entities(run, number)[0], read_arrow(run / scan_file(number, "strata"))
        seen.add(hashes.take(np.unique(strata["entity"].to_numpy())))
        classes = pc.unique(pa.concat_arrays([classes, *strata["class"].chunks]))
    known, classes = seen.ordered(), classes.take(pc.sort_indices(classes))
    rows = np.zeros((len(known), len(classes)), np.int64)
    for number in range(shards):
        place, strata = known.places(read_entities(run, number)[0]), read_arrow(run / scan_file(number, "strata"))
        code = pc.index_in(strata["class"], value_set=classes).to_numpy()
        np.add.at(rows, (place[strata["entity"].to_numpy()], code), strata["rows"].to_numpy())
    return known, rows[:, rows.any(axis=0)] if len(rows) else rows


def check_rows(settings: TemporalSplit, folding: Folding, rows: Mapping[str, int]) -> Iterator[str]:
    """Refuse folds that train nothing, and warn of folds that test or validate nothing."""
    kept = [cell for cell, count in rows.items() if count]
    for number, lists in enumerate(folding.cells.lists(kept)):
        cut = f" (cut at {moment(cutoffs(settings)[number].wall_us)})" if settings.split_date is not None else ""
        if not lists["train"]:
            raise InputError(
                f"fold {number}{cut} has no rows to train; choose a later split_date, or a longer window, or a smaller "
                "gap or label_horizon"
            )
        for split, own in lists.items():
            if not own:
                yield f"fold {number}{cut} has no rows in {split}"


def facts(settings: TemporalSplit, folding: Folding, clock: Clock, kept: Sequence[str]) -> list[dict[str, Any]]:
    """Return the cells of each split of each fold, with the cut of each rolling fold. kept: cells that have rows."""
    lists = folding.cells.lists(kept)
    if not isinstance(settings.folds, Rolling):
        return [{"splits": own} for own in lists]
    cuts = [cutoff.wall_us if clock == "wall" else cutoff.instant_us for cutoff in cutoffs(settings)]
    return [{"split_date": moment(cut), "cutoff_us": cut, "splits": own} for cut, own in zip(cuts, lists, strict=True)]
