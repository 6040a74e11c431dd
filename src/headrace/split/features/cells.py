"""Define folds as views of cells: rows with the same role in every fold form a cell, which is
written once. Pure.

A fold is a list of cells for each split. A row's cell follows from its time and its entity. A
cell's role in each fold follows from the settings alone. So switching folds reads nothing, and
counts of cells add up to exact counts of folds.

Folds of entities are of equal size, or of equal size and mixture. Both rules are greedy: the
heaviest entities come first, and each goes to the fold that needs it most. Entities of equal weight
keep the order in which they are given, which is that of a keyed hash. The numpy work is per
distinct weight, not per entity, and most data have few.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace.arrays import F64, I64, Bools
from headrace.folds.settings import Rolling
from headrace.folds.times import FoldTimes
from headrace.split.allocate import TRAIN, UNSEEN, VAL
from headrace.split.cutoff import cutoffs
from headrace.split.settings import SplitSettings, TemporalSplit

# 0: no role
TRAINS = 1
VALIDATES = 2
TESTS = 3
ROLES = {"train": TRAINS, "val": VALIDATES, "test": TESTS}
NO_CELL = -1
_SIDES = (
    3  # TRAIN, VAL, UNSEEN; three more codes for entities new to the fold whose test they are in
)

Roles = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class TimeBlocks:
    """Blocks of time in which all rows have the same roles, and their cells, on one clock.

    boundaries: between blocks [B - 1], ascending. cell: by block and entity code [B, codes], or
    NO_CELL. tested_by: the fold whose test has a block, or the number of folds if none does [B].
    """

    boundaries: I64
    cell: I64
    tested_by: I64

    def block_of(self, micros: I64) -> I64:
        """Return the block of each time."""
        return np.searchsorted(self.boundaries, micros, side="right")


@dataclass(frozen=True)
class FoldCells:
    """All cells of a run.

    roles: of each cell in each fold [C, F]; utc, wall: blocks for times of either clock.
    """

    roles: Roles
    utc: TimeBlocks
    wall: TimeBlocks

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the cells, which are splits of the run."""
        width = max(2, len(str(len(self.roles) - 1)))
        return tuple(f"cell-{number:0{width}d}" for number in range(len(self.roles)))

    @property
    def folds(self) -> int:
        """The number of folds."""
        return len(self.roles.T)

    def cells_of(self, micros: I64, instant: Bools, side: I64 | None, first: I64 | None) -> I64:
        """Return the cell of each row [N], or NO_CELL. instant: which times are on the UTC clock.

        side: of the row's entity, or its fold in k-fold splits by entity. first: the fold from
        which the entity is seen. Each is None if these folds do not need it.
        """
        if instant.all():
            return cell_of(self.utc, micros, side, first)
        wall = cell_of(self.wall, micros, side, first)
        if not instant.any():
            return wall
        return np.where(instant, cell_of(self.utc, micros, side, first), wall)

    def lists(self, filled: Collection[str]) -> list[dict[str, list[str]]]:
        """Return the cells of each split of each fold. filled: the cells that have rows."""
        names = self.names
        used = {role: code for role, code in ROLES.items() if (self.roles == code).any()}
        folds = []
        for roles in self.roles.T:
            lists = {}
            for role, code in used.items():
                cells = [names[cell] for cell in np.flatnonzero(roles == code)]
                lists[role] = [name for name in cells if name in filled]
            folds.append(lists)
        return folds


def fold_times(settings: TemporalSplit, clock: Literal["utc", "wall"]) -> FoldTimes:
    """Return the times of rolling folds on a clock."""
    assert isinstance(settings.folds, Rolling)
    if clock == "utc":
        cuts = [cutoff.instant_us for cutoff in cutoffs(settings)]
    else:
        cuts = [cutoff.wall_us for cutoff in cutoffs(settings)]
    return FoldTimes.of(cuts, settings.folds, max(settings.reaches_us().values(), default=0))


def fold_cells(settings: SplitSettings) -> FoldCells:
    """Return the cells that these settings make."""
    folds = settings.folds
    if folds is None:
        raise ValueError("folds is not given")
    if not isinstance(folds, Rolling):
        roles = np.full((folds.k, folds.k), TRAINS, np.uint8)
        np.fill_diagonal(roles, TESTS)
        blocks = TimeBlocks(np.empty(0, np.int64), np.arange(folds.k)[None], np.array([folds.k]))
        return FoldCells(roles, blocks, blocks)
    assert isinstance(settings, TemporalSplit)
    utc = _rolling_blocks(fold_times(settings, "utc"), settings)
    wall = _rolling_blocks(fold_times(settings, "wall"), settings)
    all_roles = np.concatenate([blocks.roles.reshape(-1, folds.n) for blocks in (utc, wall)])
    distinct, first, which = np.unique(all_roles, axis=0, return_index=True, return_inverse=True)
    order = []
    for cell in np.argsort(first).tolist():
        if distinct[cell].any():
            order.append(cell)
    number = np.full(len(distinct), NO_CELL, np.int64)
    number[order] = np.arange(len(order))
    cells = number[which.reshape(-1)]
    utc_codes = utc.roles.shape[0] * utc.roles.shape[1]
    return FoldCells(
        distinct[order], utc.with_cells(cells[:utc_codes]), wall.with_cells(cells[utc_codes:])
    )


@dataclass(frozen=True)
class _RollingBlocks:
    """Blocks of time of rolling folds.

    roles: by block, entity code and fold [B, codes, F]; else as `TimeBlocks`.
    """

    boundaries: I64
    roles: Roles
    tested_by: I64

    def with_cells(self, cells: I64) -> TimeBlocks:
        return TimeBlocks(self.boundaries, cells.reshape(self.roles.shape[:2]), self.tested_by)


def _rolling_blocks(times: FoldTimes, settings: TemporalSplit) -> _RollingBlocks:
    """Cut time where a role changes in any fold."""
    least = np.iinfo(np.int64).min
    boundaries = np.unique(np.concatenate([times.start, times.end, times.cut, times.stop]))
    boundaries = boundaries[boundaries > least]
    starts = np.append(least, boundaries)[:, None]
    learned = (times.start <= starts) & (starts < times.end)  # [B, F]
    tested = (times.cut <= starts) & (starts < times.stop)
    tested_by = np.where(tested.any(axis=1), tested.argmax(axis=1), len(times.cut))
    if settings.entity is None:
        codes = 1
    else:
        codes = 2 * _SIDES
    roles = np.zeros((len(starts), codes, len(times.cut)), np.uint8)
    if settings.entity is None:
        roles[:, 0][learned] = TRAINS
        roles[:, 0][tested] = TESTS
        return _RollingBlocks(boundaries, roles, tested_by)
    for new in (0, 1):
        roles[:, entity_code(TRAIN, new)][learned] = TRAINS
        roles[:, entity_code(VAL, new)][learned] = VALIDATES
    for side in (TRAIN, VAL, UNSEEN):
        roles[:, entity_code(side, 1)][tested] = TESTS
    if settings.val_in_test == "keep":
        roles[:, entity_code(VAL, 0)][tested] = TESTS
    return _RollingBlocks(boundaries, roles, tested_by)


def deal(rows: I64, folds: int) -> I64:
    """Return the fold of each entity [E], by its rows, which are positive.

    Entities go in descending order of rows to the fold with the fewest rows so far; ties go to the
    first fold. Cost is O(E log E + distinct sizes × folds).
    """
    order = np.argsort(-rows, kind="stable")
    sizes, starts = np.unique(-rows[order], return_index=True)
    stops = np.append(starts[1:], len(rows))
    dealt = np.empty(len(rows), np.int64)
    load = np.zeros(folds, np.int64)
    for size, first, stop in zip((-sizes).tolist(), starts.tolist(), stops.tolist(), strict=True):
        count = stop - first
        # Fold j takes its next entities at loads load[j], load[j] + size, …, so a merge deals all
        # at once.
        spread = int(load.max() - load.min())
        depth = min(count, -(-count // folds) + -(-spread // size) + 1)
        offers = load[:, None] + size * np.arange(depth)
        # Offers are listed fold by fold, so a stable sort keeps the first fold first among equal
        # loads.
        chosen = np.argsort(offers.ravel(), kind="stable")[:count] // depth
        dealt[order[first:stop]] = chosen
        load += size * np.bincount(chosen, minlength=folds)
    return dealt


def deal_stratified(rows: I64, folds: int, weights: Sequence[int] | None = None) -> I64:
    """Return the fold of each entity [E], by its rows of each class [E, C].

    weights: of the folds, for other shares than equal ones. Entities with the same rows are then
    cut into stretches, so that a few more of them move few.

    Entities are dealt in descending order of how unevenly their rows are spread over classes. Each
    goes to the fold that leaves the fractions of classes most alike across folds; ties go to the
    fold with the fewest rows. Among entities with the same rows of every class, each fold first
    gets an equal number, and only the remainder is dealt this way. Cost is O(E log E + distinct
    rows of C × folds²).
    """
    profiles, profile, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    profile = profile.reshape(-1)
    # C² times the variance, exactly.
    spread = rows.shape[1] * (profiles**2).sum(axis=1) - profiles.sum(axis=1) ** 2
    members = np.argsort(profile, kind="stable")
    ends = np.cumsum(counts)
    total = np.maximum(rows.sum(axis=0), 1).astype(np.float64)
    fraction = np.array(weights or [1] * folds, np.float64)
    fraction *= folds / fraction.sum()
    dealt = np.empty(len(rows), np.int64)
    load = np.zeros((folds, rows.shape[1]))
    for number in np.argsort(-spread, kind="stable").tolist():
        entities = members[ends[number] - counts[number] : ends[number]]
        if weights is None:
            equal = np.full(folds, len(entities) // folds)
            even = len(entities) // folds * folds
            dealt[entities[:even]] = np.arange(even) % folds
        else:
            equal = np.array([len(entities) * weight // sum(weights) for weight in weights])
            even = int(equal.sum())
            dealt[entities[:even]] = np.repeat(np.arange(folds), equal)
        load += profiles[number] * equal[:, None]
        for entity in entities[even:]:
            fold = _neediest(load, profiles[number], total, fraction)
            dealt[entity] = fold
            load[fold] += profiles[number]
    return dealt


def _neediest(load: F64, more: I64, total: F64, fraction: F64) -> int:
    """Find the fold that leaves fractions of classes most alike.

    load: rows by fold and class [F, C]. fraction: of each fold, 1 on average [F]; one without a
    share gets nothing.
    """
    folds = len(load)
    after = np.repeat(load[None], folds, axis=0)  # [receiving fold, F, C]
    after[np.arange(folds), np.arange(folds)] += more
    shared = np.flatnonzero(fraction)
    after = after[:, shared] / fraction[shared, None]
    uneven = (after / total).std(axis=1).mean(axis=1)
    rows = load.sum(axis=1) / np.maximum(fraction, np.finfo(np.float64).tiny)
    best = int(shared[0])
    # rounding makes equal folds differ, so nearly equal ones count as equal
    for fold in shared[1:].tolist():
        close = np.isclose(uneven[fold], uneven[best])
        if uneven[fold] < uneven[best] or (close and rows[fold] < rows[best]):
            best = fold
    return best


def entity_code(side: int, new: int) -> int:
    """Return the code of entities of a side; new: 1 if the entity is new to the fold whose test has
    the row.
    """
    return side + _SIDES * new


def cell_of(blocks: TimeBlocks, micros: I64, side: I64 | None, first: I64 | None) -> I64:
    """Return the cell of each row [N] on one clock.

    side: of the row's entity, or its fold in k-fold splits by entity. first: the fold from which
    the entity is seen. None: not needed by these folds.
    """
    block = blocks.block_of(micros)
    if side is None:
        code = np.zeros(len(micros), np.int64)
    else:
        code = side
    if first is not None:
        code = code + _SIDES * (first > blocks.tested_by[block])
    return blocks.cell[block, code]
