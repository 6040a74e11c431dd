"""Define folds as views of cells: rows with the same role in every fold form a cell, which is written once. Pure.

A fold is a list of cells for each split. A row's cell follows from its time and its entity. A cell's role in each fold
follows from the settings alone. So switching folds reads nothing, and counts of cells add up to exact counts of folds.

Folds of entities are of equal size, or of equal size and mixture. Both rules are greedy: the heaviest entities come
first, and each goes to the fold that needs it most. Entities of equal weight keep the order in which they are given,
which is that of a keyed hash. The numpy work is per distinct weight, not per entity, and most data have few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from headrace.arrays import F64, I64, Bools
from headrace.folds.settings import Rolling
from headrace.folds.times import FoldTimes
from headrace.split.allocate import TRAIN, UNSEEN, VAL
from headrace.split.cutoff import cutoffs

if TYPE_CHECKING:
    from headrace.split.settings import TemporalSplit

NO_ROLE, TRAINS, VALIDATES, TESTS = 0, 1, 2, 3
ROLES = {"train": TRAINS, "val": VALIDATES, "test": TESTS}
NO_CELL = -1
_SIDES = 3  # TRAIN, VAL, UNSEEN; three more codes for entities new to the fold that tests them

Roles = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class TimeBlocks:
    """Blocks of time in which all rows have the same roles, and their cells, on one clock.

    borders: between blocks [B - 1], ascending. cell: by block and entity code [B, codes], or NO_CELL.
    tested_by: the fold that tests a block, or the number of folds if none does [B].
    """

    borders: I64
    cell: I64
    tested_by: I64

    def block_of(self, micros: I64) -> I64:
        """Return the block of each time."""
        return np.searchsorted(self.borders, micros, side="right")


@dataclass(frozen=True)
class FoldCells:
    """All cells of a run. roles: of each cell in each fold [C, F]; utc, wall: blocks for times of either clock."""

    roles: Roles
    utc: TimeBlocks
    wall: TimeBlocks

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the cells, which are splits of the run."""
        width = max(2, len(str(len(self.roles) - 1)))
        return tuple(f"cell-{number:0{width}d}" for number in range(len(self.roles)))

    def cells_of(self, micros: I64, instant: Bools, side: I64 | None, first: I64 | None) -> I64:
        """Return the cell of each row [N], or NO_CELL. instant: which times are on the UTC clock.

        side: of the row's entity, or its fold in k-fold splits by entity. first: the fold from which the entity is
        seen. Each is None if these folds do not need it.
        """
        if not len(micros) or instant.all():
            return cell_of(self.utc, micros, side, first)
        wall = cell_of(self.wall, micros, side, first)
        return np.where(instant, cell_of(self.utc, micros, side, first), wall) if instant.any() else wall

    def lists(self, kept: Sequence[str]) -> list[dict[str, list[str]]]:
        """Return the cells of each split of each fold. kept: the cells that have rows."""
        names, held = self.names, set(kept)
        used = [role for role, code in ROLES.items() if (self.roles == code).any()]
        return [
            {role: [names[each] for each in np.flatnonzero(own == ROLES[role]) if names[each] in held] for role in used}
            for own in self.roles.T
        ]


def fold_times(settings: TemporalSplit, clock: Literal["utc", "wall"]) -> FoldTimes:
    """Return the times of rolling folds on a clock."""
    assert isinstance(settings.folds, Rolling)
    cuts = [each.instant_us if clock == "utc" else each.wall_us for each in cutoffs(settings)]
    return FoldTimes.of(cuts, settings.folds, max(settings.reaches_us().values(), default=0))


def fold_cells(settings: TemporalSplit) -> FoldCells:
    """Return the cells that these settings make."""
    folds = settings.folds
    if folds is None:
        raise ValueError("folds is not given")
    if not isinstance(folds, Rolling):
        roles = np.full((folds.k, folds.k), TRAINS, np.uint8)
        np.fill_diagonal(roles, TESTS)
        blocks = TimeBlocks(np.empty(0, np.int64), np.arange(folds.k)[None], np.array([folds.k]))
        return FoldCells(roles, blocks, blocks)
    clocks: Mapping[Literal["utc", "wall"], tuple[I64, Roles, I64]] = {
        clock: _rolling_roles(fold_times(settings, clock), settings) for clock in ("utc", "wall")
    }
    every = np.concatenate([roles.reshape(-1, folds.n) for _, roles, _ in clocks.values()])
    kinds, first, kind = np.unique(every, axis=0, return_index=True, return_inverse=True)
    order = [each for each in np.argsort(first).tolist() if kinds[each].any()]
    number = np.full(len(kinds), NO_CELL, np.int64)
    number[order] = np.arange(len(order))
    cells = number[kind.reshape(-1)]
    made, at = {}, 0
    for clock, (borders, roles, tested_by) in clocks.items():
        own = roles.shape[0] * roles.shape[1]
        made[clock] = TimeBlocks(borders, cells[at : at + own].reshape(roles.shape[:2]), tested_by)
        at += own
    return FoldCells(kinds[order], made["utc"], made["wall"])


def _rolling_roles(times: FoldTimes, settings: TemporalSplit) -> tuple[I64, Roles, I64]:
    """Return the time borders, the roles in each block, and the fold that tests each block.

    borders [B - 1]; roles by block, entity code and fold [B, codes, F].
    """
    least = np.iinfo(np.int64).min
    borders = np.unique(np.concatenate([times.start, times.end, times.cut, times.stop]))
    borders = borders[borders > least]
    begins = np.append(least, borders)[:, None]
    learned = (times.start <= begins) & (begins < times.end)  # [B, F]
    tested = (times.cut <= begins) & (begins < times.stop)
    tested_by = np.where(tested.any(axis=1), tested.argmax(axis=1), len(times.cut))
    codes = 1 if settings.entity is None else 2 * _SIDES
    roles = np.zeros((len(begins), codes, len(times.cut)), np.uint8)
    if settings.entity is None:
        roles[:, 0][learned] = TRAINS
        roles[:, 0][tested] = TESTS
        return borders, roles, tested_by
    for new in (0, 1):
        roles[:, entity_code(TRAIN, new)][learned] = TRAINS
        roles[:, entity_code(VAL, new)][learned] = VALIDATES
    for side in (TRAIN, VAL, UNSEEN):
        roles[:, entity_code(side, 1)][tested] = TESTS
    if settings.val_in_test == "keep":
        roles[:, entity_code(VAL, 0)][tested] = TESTS
    return borders, roles, tested_by


def deal(rows: I64, folds: int) -> I64:
    """Return the fold of each entity [E], by its rows, which are positive.

    Entities go in descending order of rows to the fold with the fewest rows so far; ties go to the first fold. Cost is
    O(E log E + distinct sizes × folds).
    """
    order = np.argsort(-rows, kind="stable")
    sizes, begin = np.unique(-rows[order], return_index=True)
    dealt = np.empty(len(rows), np.int64)
    load = np.zeros(folds, np.int64)
    for size, first, stop in zip((-sizes).tolist(), begin.tolist(), [*begin[1:].tolist(), len(rows)], strict=True):
        count = stop - first
        # Fold j takes its next entities at loads load[j], load[j] + size, …, so a merge deals all at once.
        spread = int(load.max() - load.min())
        depth = min(count, -(-count // folds) + -(-spread // size) + 1)
        offers = load[:, None] + size * np.arange(depth)
        # Offers are listed fold by fold, so a stable sort keeps the first fold first among equal loads.
        chosen = np.argsort(offers.ravel(), kind="stable")[:count] // depth
        dealt[order[first:stop]] = chosen
        load += size * np.bincount(chosen, minlength=folds)
    return dealt


def deal_stratified(rows: I64, folds: int) -> I64:
    """Return the fold of each entity [E], by its rows of each class [E, C].

    Entities are dealt in descending order of how unevenly their rows are spread over classes. Each goes to the fold
    that leaves the shares of classes most alike across folds; ties go to the fold with the fewest rows. Among entities
    with the same rows of every class, each fold first gets an equal number, and only the remainder is dealt this way.
    Cost is O(E log E + distinct rows of C × folds²).
    """
    kinds, kind, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    kind = kind.reshape(-1)
    spread = rows.shape[1] * (kinds**2).sum(axis=1) - kinds.sum(axis=1) ** 2  # C² times the variance, exactly
    members = np.argsort(kind, kind="stable")
    ends = np.cumsum(counts)
    total = np.maximum(rows.sum(axis=0), 1).astype(np.float64)
    dealt = np.empty(len(rows), np.int64)
    load = np.zeros((folds, rows.shape[1]))
    for each in np.argsort(-spread, kind="stable").tolist():
        own = members[ends[each] - counts[each] : ends[each]]
        even = len(own) // folds * folds
        dealt[own[:even]] = np.arange(even) % folds
        load += kinds[each] * (even // folds)
        for entity in own[even:]:
            fold = _neediest(load, kinds[each], total)
            dealt[entity] = fold
            load[fold] += kinds[each]
    return dealt


def _neediest(load: F64, more: I64, total: F64) -> int:
    """Find the fold that leaves shares of classes most alike across folds. load: rows by fold and class [F, C]."""
    folds = len(load)
    after = np.repeat(load[None], folds, axis=0)  # [receiving fold, F, C]
    after[np.arange(folds), np.arange(folds)] += more
    uneven = (after / total).std(axis=1).mean(axis=1)
    held = load.sum(axis=1)
    best = 0
    for fold in range(1, folds):  # rounding makes equal folds differ, so nearly equal ones count as equal
        close = np.isclose(uneven[fold], uneven[best])
        if uneven[fold] < uneven[best] or (close and held[fold] < held[best]):
            best = fold
    return best


def entity_code(side: int, new: int) -> int:
    """Return the code of entities of a side; new: 1 if the entity is new to the fold that tests the row."""
    return side + _SIDES * new


def cell_of(blocks: TimeBlocks, micros: I64, side: I64 | None, first: I64 | None) -> I64:
    """Return the cell of each row [N] on one clock.

    side: of the row's entity, or its fold in k-fold splits by entity. first: the fold from which the entity is seen.
    None: not needed by these folds.
    """
    block = blocks.block_of(micros)
    code = np.zeros(len(micros), np.int64) if side is None else side
    if first is not None:
        code = code + _SIDES * (first > blocks.tested_by[block])
    return blocks.cell[block, code]
