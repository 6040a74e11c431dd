"""Draw rows or groups into train, val and test. Pure.

Without classes, the split of a group follows from its hash alone: test below the test ratio, val
below the sum of both, else train. Shares are then those of a fair draw, within a few
times sqrt(ratio × groups), and nothing that is added moves anything. With classes, groups of the
same rows are dealt in exact shares in the order of their hashes, and what remains goes where the
shares of classes need it most.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor, lcm
from typing import Self

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U8
from headrace.draws import mix
from headrace.split.allocate import Allocation, Hashes, allocate
from headrace.split.features.cells import deal_stratified
from headrace.split.random_split import RandomSplit
from headrace.split.rules import (
    SPLITS,
    TEST_CODE,
    TRAIN_CODE,
    VAL_CODE,
    Codes,
    Placement,
    ScannedRows,
)

_NO_HASHES = Hashes(np.empty(0, np.uint64), np.empty(0, np.uint64))


def draw(settings: RandomSplit, hashes: Hashes) -> U8:
    """Return the code of the split that each group is drawn into [N]."""
    test = Fraction(repr(settings.test_ratio))
    val = Fraction(repr(settings.val_ratio))
    # A unit of several groups is drawn by the least of their hashes, which is not uniform.
    point = mix(hashes.high ^ hashes.low)
    codes = np.full(len(hashes), TRAIN_CODE, np.uint8)
    codes[point < np.uint64(floor((test + val) * 2**64))] = VAL_CODE
    codes[point < np.uint64(floor(test * 2**64))] = TEST_CODE
    return codes


def weights(settings: RandomSplit) -> list[int]:
    """Return the shares of train, val and test as whole numbers in proportion."""
    val = Fraction(repr(settings.val_ratio))
    test = Fraction(repr(settings.test_ratio))
    fractions = (1 - val - test, val, test)
    multiple = lcm(*(fraction.denominator for fraction in fractions))
    return [int(fraction * multiple) for fraction in fractions]


@dataclass(frozen=True)
class ByHash(Placement):
    """Rows go where the hash of their group is drawn; no group needs to be known."""

    settings: RandomSplit
    allocation: Allocation

    @classmethod
    def of(cls, settings: RandomSplit) -> Self:
        """Return the placement of these settings."""
        return cls(settings, Allocation(_NO_HASHES, np.empty(0, np.uint8), 0))

    @property
    def names(self) -> tuple[str, ...]:
        """The splits, also those without a share."""
        return SPLITS

    @property
    def entities(self) -> Hashes:
        """No groups."""
        return self.allocation.entities

    def codes(self, rows: ScannedRows) -> Codes:
        """Return the split of each row."""
        return _codes_of_rows(rows, draw(self.settings, rows.scanned.hashes), self._null(rows))

    def _null(self, rows: ScannedRows) -> U8:
        return draw(self.settings, rows.plan.null_entity)

    def with_units(self, units: I64) -> Self:
        """Refuse: units are made of known groups."""
        raise NotImplementedError("groups that are not known are not drawn in units")


@dataclass(frozen=True)
class Assigned(Placement):
    """All groups are known, and each has its split.

    code: of each group's split [G]. rows: of each group by class [G, C]; None: without classes.
    """

    settings: RandomSplit
    allocation: Allocation
    code: U8
    rows: I64 | None

    @classmethod
    def of(cls, settings: RandomSplit, entities: Hashes, rows: I64 | None) -> Self:
        """Draw groups. rows: by class [G, C], for equal shares of classes."""
        allocation = allocate(entities, settings.train_share)
        units = np.arange(len(entities))
        empty = np.empty(0, np.uint8)
        return cls(settings, allocation, empty, rows)._drawn(units)

    def _drawn(self, units: I64) -> Self:
        if self.rows is None:
            return replace(self, code=draw(self.settings, self.entities.take(units)))
        _, unit = np.unique(units, return_inverse=True)
        unit_rows = np.zeros((int(unit.max(initial=-1)) + 1, self.rows.shape[1]), np.int64)
        np.add.at(unit_rows, unit, self.rows)
        dealt = deal_stratified(unit_rows, len(SPLITS), weights(self.settings))
        return replace(self, code=dealt[unit].astype(np.uint8))

    @property
    def names(self) -> tuple[str, ...]:
        """The splits, also those without a share."""
        return SPLITS

    @property
    def entities(self) -> Hashes:
        """The groups, ascending by hash."""
        return self.allocation.entities

    def codes(self, rows: ScannedRows) -> Codes:
        """Return the split of each row; rows of groups that do not count are dropped anyway."""
        codes = np.append(self.code, np.uint8(TRAIN_CODE))  # -1 indexes the last element
        null = codes[self.entities.index_of(rows.plan.null_entity)]
        return _codes_of_rows(rows, codes[self.entities.index_of(rows.scanned.hashes)], null)

    def with_units(self, units: I64) -> Self:
        """Draw groups in units."""
        allocation = allocate(self.entities, self.settings.train_share, units)
        return replace(self, allocation=allocation)._drawn(units)


def _codes_of_rows(rows: ScannedRows, codes: npt.NDArray[np.uint8], null: U8) -> Codes:
    """Return the code of each row, by those of its shard's groups [G] and of rows without one."""
    # NULL_ENTITY is -1, the last element
    return np.append(codes, null).astype(np.uint16).take(rows.scanned.entity, mode="wrap")
