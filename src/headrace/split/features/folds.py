"""Prepare folds: place rows in cells, and describe the folds for the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64
from headrace.errors import InputError, setting_name
from headrace.folds.settings import GroupKFold, Rolling
from headrace.formats.dates import MISSING, Dates, moment
from headrace.formats.shard import Chunk, Shard
from headrace.run.context import TaskFiles, read_arrow
from headrace.split import columns
from headrace.split.allocate import UNSEEN, Allocation, EntitySet, Hashes, allocate
from headrace.split.cutoff import cutoffs
from headrace.split.features import Counts, Feature, Scans
from headrace.split.features.cells import FoldCells, deal, deal_stratified, fold_cells
from headrace.split.reasons import Reason
from headrace.split.rules import Codes, DropRule, Placement, ScannedRows, SplitPlan
from headrace.split.scan import (
    NO_REASON,
    NULL_ENTITY,
    Scanner,
    column_of,
    encode,
    read_entities,
    scan_file,
)
from headrace.split.settings import SplitSettings, TemporalSplit

MAX_STRATA = 100


@dataclass(frozen=True)
class RollingPlacement(Placement):
    """Cells of folds that roll in time.

    first: the fold from which each entity is seen [entities]; None: no entity.
    """

    settings: TemporalSplit
    cells: FoldCells
    allocation: Allocation
    first: I64 | None

    @property
    def names(self) -> tuple[str, ...]:
        """The cells."""
        return self.cells.names

    @property
    def entities(self) -> Hashes:
        """The entities seen before the last cut."""
        return self.allocation.entities

    def codes(self, rows: ScannedRows) -> Codes:
        """Return the cell of each row by its time, the side of its entity and when that is first
        seen.
        """
        if self.first is None:
            return _codes(self.cells.cells_of(rows.time_us, rows.instant, None, None), self.cells)
        index = _entity_index(rows, self.entities)
        side = np.append(self.allocation.sides, np.uint8(UNSEEN)).astype(np.int64)[index]
        first = np.append(self.first, self.cells.folds)[index]
        return _codes(self.cells.cells_of(rows.time_us, rows.instant, side, first), self.cells)

    def with_units(self, units: I64) -> Self:
        """Refuse: a row is in test of one fold and in train of another."""
        raise NotImplementedError("folds that roll do not draw entities in units")

    def summary(self) -> str | None:
        """Say how many entities are in train and val."""
        if self.first is None:
            return None
        train = self.allocation.train
        val = self.allocation.val
        return f"{len(self.entities):,} entities: {train:,} in train of folds, {val:,} in val"


@dataclass(frozen=True)
class GroupPlacement(Placement):
    """Cells of folds of entities.

    rows: of each entity by class [E, C]; fold: whose test has each entity [E].
    """

    settings: SplitSettings
    cells: FoldCells
    allocation: Allocation
    known: Hashes
    rows: I64
    fold: I64

    @classmethod
    def dealt(
        cls,
        settings: SplitSettings,
        allocation: Allocation,
        entities: Hashes,
        rows: I64,
        units: I64 | None = None,
    ) -> Self:
        """Deal entities to folds.

        units: the least index of each entity's unit [E], if units are dealt as one.
        """
        assert isinstance(settings.folds, GroupKFold)
        folds = settings.folds.k
        _, unit = np.unique(
            np.arange(len(entities)) if units is None else units, return_inverse=True
        )
        unit_rows = np.zeros((int(unit.max(initial=-1)) + 1, rows.shape[1]), np.int64)
        np.add.at(unit_rows, unit, rows)
        if len(unit_rows) < folds:
            if units is None:
                joined = ""
            else:
                joined = f", which content joins to {len(unit_rows):,} units"
            raise InputError(
                f"has {len(entities):,} entities with rows that count{joined}, and"
                f" {setting_name('folds')} are {folds}",
                column=settings.entity_column,
                remedy="choose fewer folds",
            )
        if settings.folds.stratify is None:
            fold = deal(unit_rows[:, 0], folds)
        else:
            fold = deal_stratified(unit_rows, folds)
        return cls(settings, fold_cells(settings), allocation, entities, rows, fold[unit])

    @property
    def names(self) -> tuple[str, ...]:
        """The cells."""
        return self.cells.names

    @property
    def entities(self) -> Hashes:
        """The entities with rows that count."""
        return self.known

    def codes(self, rows: ScannedRows) -> Codes:
        """Return the cell of each row by the fold of its entity."""
        fold = np.append(self.fold, 0)[_entity_index(rows, self.known)]
        return _codes(self.cells.cells_of(rows.time_us, rows.instant, fold, None), self.cells)

    def with_units(self, units: I64) -> Self:
        """Deal entities again, in units."""
        allocation = allocate(self.known, self.settings.train_share, units)
        return self.dealt(self.settings, allocation, self.known, self.rows, units)


def _entity_index(rows: ScannedRows, entities: Hashes) -> I64:
    """Return the index of each row's entity, -1 for unknown and missing ones."""
    indices = np.append(entities.index_of(rows.scanned.hashes), -1)
    return indices[rows.scanned.entity]  # NULL_ENTITY is -1, the last element


def _codes(cells: I64, fold_cells: FoldCells) -> Codes:
    return np.where(cells < 0, len(fold_cells.names), cells).astype(np.uint16)


class StrataScanner(Scanner):
    """Count the rows of each entity of a shard by class.

    stratify: the column of classes, if any.
    """

    def __init__(self, settings: SplitSettings, shard: Shard, stratify: str | None) -> None:
        self.settings = settings
        self.shard = shard
        self.stratify = stratify
        if stratify is not None:
            self.columns = (stratify,)
        self.texts: list[pa.Array] = []
        self.codes: list[I64] = []

    def scan(self, chunk: Chunk, table: pa.Table, times: Dates) -> None:
        """Gather classes."""
        if self.stratify is None:
            return
        column = column_of(table, self.stratify)
        texts = columns.label_texts(column, self.settings.dialect.null_values)
        distinct = encode(pc.fill_null(texts, ""))
        self.codes.append(distinct.indices.to_numpy() + sum(map(len, self.texts)))
        self.texts.append(distinct.dictionary)

    def finish(self, files: TaskFiles, number: int, rows: pa.Table) -> None:
        """Write the rows that count, by entity and class; columns: entity, class, rows."""
        entity = rows["entity"].to_numpy()
        counted = (rows["time_us"].to_numpy() != MISSING) & (entity != NULL_ENTITY)
        counted &= rows["reasons"].to_numpy() == NO_REASON
        texts = pa.array([""], pa.string())
        codes = np.zeros(len(entity), np.int64)
        if self.stratify is not None:
            distinct = pa.concat_arrays(self.texts or [texts]).dictionary_encode()
            texts = distinct.dictionary
            codes = distinct.indices.to_numpy()[
                np.concatenate([np.empty(0, np.int64), *self.codes])
            ]
        if len(texts) > MAX_STRATA:
            raise InputError(
                f"has {len(texts):,} values, and at most {MAX_STRATA} classes are stratified by",
                path=self.shard.path,
                column=self.stratify,
                remedy="name a column of classes",
            )
        pairs = entity[counted].astype(np.int64) * len(texts) + codes[counted]
        pair, count = np.unique(pairs, return_counts=True)
        classes = texts.take(pa.array(pair % len(texts)))
        strata = pa.table({"entity": pair // len(texts), "class": classes, "rows": count})
        files.write_arrow(scan_file(number, "strata"), strata)


class Folds(Feature):
    """Folds that roll in time, or folds of entities."""

    rules = (DropRule(Reason.IN_NO_FOLD, lambda rows: rows.placed == len(rows.plan.names)),)

    @classmethod
    def is_part(cls, settings: SplitSettings) -> bool:
        """Return whether there are folds."""
        return settings.folds is not None

    def scanner(self, shard: Shard) -> Scanner | None:
        """Count rows by entity and class for folds of entities."""
        folds = self.settings.folds
        if not isinstance(folds, GroupKFold):
            return None
        return StrataScanner(self.settings, shard, folds.stratify)

    def decide(self, plan: SplitPlan, scans: Scans) -> SplitPlan:
        """Place rows in cells.

        The allocation has the sides of entities that are seen before the last cut.
        """
        settings = self.settings
        allocation = plan.placement.allocation
        run = scans.context.run
        shards = len(scans.shards)
        if isinstance(settings.folds, GroupKFold):
            entities, rows = rows_of_entities(run, range(shards))
            return replace(
                plan, placement=GroupPlacement.dealt(settings, allocation, entities, rows)
            )
        assert isinstance(settings, TemporalSplit)
        cells = fold_cells(settings)
        first = None
        if settings.entity is not None:
            first = np.full(len(allocation.entities), cells.folds)
            for hashes, cuts in scans.context.map(
                [partial(read_entities, run, number) for number in range(shards)]
            ):
                index = allocation.entities.index_of(hashes)
                np.minimum.at(first, index[index >= 0], cuts[index >= 0].astype(np.int64))
        return replace(plan, placement=RollingPlacement(settings, cells, allocation, first))

    def metadata(self, plan: SplitPlan, scans: Scans, counts: Counts) -> dict[str, Any]:
        """Refuse folds without train rows, warn of folds without test or val rows, and list
        the folds' cells.
        """
        settings = self.settings
        placement = plan.placement
        assert isinstance(placement, RollingPlacement | GroupPlacement)
        lists = placement.cells.lists([cell for cell, rows in counts.rows.items() if rows])
        cuts = []
        if isinstance(settings, TemporalSplit):
            cuts = cutoffs(settings)
        for number, cells in enumerate(lists):
            words = f"fold {number}"
            if cuts:
                words += f" (cut at {moment(cuts[number].wall_us)})"
            if not cells["train"]:
                raise InputError(
                    f"{words} has no rows to train",
                    remedy=(
                        f"choose a later {setting_name('split_date')}, or a longer window, or a"
                        f" smaller {setting_name('gap')} or {setting_name('label_horizon')}"
                    ),
                )
            empty = [split for split, names in cells.items() if not names]
            scans.context.warn(f"{words} has no rows in {split}" for split in empty)
        if not isinstance(settings.folds, Rolling):
            return {"folds": [{"splits": cells} for cells in lists]}
        folds = []
        for cut, cells in zip(cuts, lists, strict=True):
            if plan.clock == "wall":
                cut_us = cut.wall_us
            else:
                cut_us = cut.instant_us
            folds.append({"split_date": moment(cut_us), "cutoff_us": cut_us, "splits": cells})
        return {"folds": folds}


def rows_of_entities(run: Path, numbers: Sequence[int]) -> tuple[Hashes, I64]:
    """Return the entities with rows that count, ascending by hash, and their rows by class
    [E, C].
    """
    entity_set = EntitySet()
    classes = pa.array([""], pa.string())
    for number in numbers:
        strata = read_arrow(run / scan_file(number, "strata"))
        hashes, _ = read_entities(run, number)
        entity_set.add(hashes.take(np.unique(strata["entity"].to_numpy())))
        classes = pc.unique(pa.concat_arrays([classes, *strata["class"].chunks]))
    entities = entity_set.ordered()
    classes = classes.take(pc.sort_indices(classes))
    rows = np.zeros((len(entities), len(classes)), np.int64)
    for number in numbers:
        strata = read_arrow(run / scan_file(number, "strata"))
        hashes, _ = read_entities(run, number)
        entity = entities.index_of(hashes)[strata["entity"].to_numpy()]
        code = pc.index_in(strata["class"], value_set=classes).to_numpy()
        np.add.at(rows, (entity, code), strata["rows"].to_numpy())
    if not len(rows):
        return entities, rows
    return entities, rows[:, rows.any(axis=0)]
