"""Decide the split of every row, or the reason to drop it. Pure.

Times and entities place a row in a split, or with folds in a cell. Then an ordered list of rules
drops rows: the first rule that applies to a row is its reason. A rule masks the rows of a shard.
Cost is a few vector operations per rule, about 2 % of a split.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, U8, U64, Bools
from headrace.dataset.distinguishing import Distinguishing
from headrace.formats.dates import INSTANTS
from headrace.formats.registry import FileType
from headrace.split.allocate import Allocation, Hashes, allocate
from headrace.split.content import Content, Repeats
from headrace.split.cutoff import DateBins, in_utc
from headrace.split.reasons import Reason
from headrace.split.scan import NO_REASON, Scanned
from headrace.split.settings import SplitSettings, TemporalSplit

SPLITS = ("train", "val", "test")
TRAIN_CODE, VAL_CODE, TEST_CODE = range(3)

Clock = Literal["utc", "wall", "mixed"]
Codes = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class DropRule:
    """When a reason to drop a row applies.

    applies: masks the rows [N]; None for no row.
    """

    reason: Reason
    applies: Callable[[ScannedRows], Bools | None]

    @classmethod
    def of_scan(cls, reason: Reason) -> Self:
        """Return the rule of a reason that a scanner finds."""
        return cls(reason, lambda rows: rows.has(reason))


class Placement:
    """Where rows go by their times and entities alone.

    allocation: of the entities seen before the cutoff.
    """

    allocation: Allocation

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The splits or cells that rows are written to."""

    @property
    @abstractmethod
    def entities(self) -> Hashes:
        """The entities that are drawn or dealt, ascending by hash."""

    @abstractmethod
    def codes(self, rows: ScannedRows) -> Codes:
        """Return the index of each row's name [N]; `len(names)` for a row that has no place."""

    @abstractmethod
    def with_units(self, units: I64) -> Self:
        """Draw or deal entities in units.

        units: the least index of each entity's unit [entities].
        """

    def summary(self) -> str | None:
        """Say how many entities are in train."""
        return None


@dataclass(frozen=True, kw_only=True)
class Output:
    """How rows are written, as far as that is known before the scan.

    source: the schema common to all shards. drawn: columns that rows are drawn by in an earlier run
    whose assignment is kept. distinguishing: columns in which all rows differ. separator: of a text
    file that holds a complete split;
    separate shards keep the separator of their source shard.
    """

    settings: SplitSettings
    source: pa.Schema
    file_type: FileType
    parquet_compression: str
    separator: str
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    drawn: tuple[str, ...] = ()
    distinguishing: Distinguishing = field(default_factory=Distinguishing)

    def compared(self) -> tuple[str, ...]:
        """Select the columns that form the content of a row."""
        return self.distinguishing.without(self.settings.compared(self.source))


@dataclass(frozen=True, kw_only=True)
class SplitPlan:
    """Everything that pass 2 needs besides a shard; one copy, shared by all workers.

    schema: of the output.
    rules: in order; the first that applies is the reason to drop a row.
    null_entity: the hash of rows without an entity.
    clock: of the times; if it is mixed, key ranges are in UTC.
    bins: time bins in which the rows of each split are counted.
    classes: numbers of the label's texts.
    content: the columns that rows are compared by, if they are compared.
    repeats: rows that are dropped because of their content.
    near: counts of near rows, if they are searched.
    linked: contents of shards that are taken over from an earlier run, if no content may repeat.
    keeps_groups: whether the run keeps the groups of each shard for the next one.
    """

    output: Output
    schema: pa.Schema
    placement: Placement
    rules: Sequence[DropRule]
    null_entity: Hashes
    clock: Clock
    bins: DateBins
    classes: Mapping[str, int] | None = None
    content: Content | None = None
    repeats: Repeats | None = None
    near: Mapping[str, int] | None = None
    linked: U64 | None = None
    keeps_groups: bool = False

    @property
    def settings(self) -> SplitSettings:
        """The settings of the run."""
        return self.output.settings

    @cached_property
    def in_time(self) -> TemporalSplit:
        """The settings of a split in time."""
        assert isinstance(self.settings, TemporalSplit)
        return self.settings

    @property
    def names(self) -> tuple[str, ...]:
        """The splits that rows are written to, or with folds their cells."""
        return self.placement.names

    @cached_property
    def codes(self) -> Mapping[str, int]:
        """The numbers that `classify` returns for splits and reasons to drop."""
        dropped = [rule.reason.value for rule in self.rules]
        return {name: code for code, name in enumerate((*self.names, *dropped))}


class ScannedRows:
    """The rows of a shard [N] with all that decides their split."""

    def __init__(self, scanned: Scanned, plan: SplitPlan) -> None:
        self.scanned = scanned
        self.plan = plan
        self.time_us = scanned.time_us

    @cached_property
    def has_reasons(self) -> bool:
        """Whether the scan found a reason for any row; for most shards it finds none."""
        return bool((self.scanned.reasons != NO_REASON).any())

    def has(self, reason: Reason) -> Bools | None:
        """Mask the rows for which the scan found this reason, and none before it; None for no
        row.
        """
        if not self.has_reasons:
            return None
        has_reason: Bools = self.scanned.reasons == np.uint8(reason.number)
        return has_reason

    @cached_property
    def instant(self) -> Bools:
        """Which times are on the UTC clock, and not on the wall clock of the time zone."""
        if self.plan.clock == "mixed":
            assert self.scanned.instant is not None
            return self.scanned.instant
        return np.full(len(self.time_us), self.plan.clock == "utc")

    @cached_property
    def cutoff_us(self) -> np.int64 | I64:
        """The cutoff on the clock of the rows; for mixed times one value per row."""
        settings = self.plan.in_time
        cutoff = np.int64(cutoff_on(settings, self.plan.clock))
        if self.plan.clock != "mixed":
            return cutoff
        return np.where(self.instant, cutoff, settings.cutoff().wall_us)

    @cached_property
    def before(self) -> Bools:
        """Which rows are before the cutoff."""
        return self.time_us < self.cutoff_us

    @cached_property
    def side(self) -> U8:
        """TRAIN, VAL or UNSEEN for each row's entity."""
        allocation = self.plan.placement.allocation
        null_side = allocation.side_of(self.plan.null_entity)
        sides = np.append(allocation.side_of(self.scanned.hashes), null_side)
        return sides.take(self.scanned.entity, mode="wrap")  # NULL_ENTITY is -1, the last element

    @cached_property
    def placed(self) -> Codes:
        """The code of each row by its time and entity alone."""
        return self.plan.placement.codes(self)


def classify(scanned: Scanned, plan: SplitPlan) -> Codes:
    """Return the split or the drop reason of every row: uint16 [N], one of the plan's `codes`.

    Pure.
    """
    rows = ScannedRows(scanned, plan)
    codes = rows.placed.copy()  # rules read the original
    rules = list(enumerate(plan.rules, start=len(plan.names)))
    for code, rule in reversed(rules):  # so that the first rule that applies has the last word
        dropped = rule.applies(rows)
        if dropped is not None:
            # Arithmetic, as masked writes are slow where a mask changes from row to row.
            change = np.uint16(code) - codes
            change *= dropped
            codes += change
    return codes


@dataclass(frozen=True)
class OneCut(Placement):
    """One cut in time: entities seen before it are in train or val, the others in test."""

    settings: TemporalSplit
    allocation: Allocation

    @property
    def names(self) -> tuple[str, ...]:
        """The splits, also val where no entity is given."""
        return SPLITS

    @property
    def entities(self) -> Hashes:
        """The entities seen before the cutoff."""
        return self.allocation.entities

    def codes(self, rows: ScannedRows) -> Codes:
        """Return the split of each row."""
        early = [TRAIN_CODE, VAL_CODE, TEST_CODE]  # by side
        if self.settings.entity is None:
            early = [TRAIN_CODE] * 3
        table = np.array([*([TEST_CODE] * 3), *early], np.uint16)
        index = rows.before.view(np.uint8) * np.uint8(3)
        index += rows.side
        return table.take(index)

    def with_units(self, units: I64) -> Self:
        """Draw entities in units."""
        return replace(self, allocation=allocate(self.entities, self.settings.train_ratio, units))

    def summary(self) -> str | None:
        """Say how many entities are in train and val."""
        if self.settings.entity is None:
            return None
        train = self.allocation.train
        val = self.allocation.val
        return f"{train + val:,} entities before the cutoff: {train:,} in train, {val:,} in val"


def clock_of(forms: Collection[str]) -> Clock:
    """Return the clock of times of these forms."""
    instants = INSTANTS.intersection(forms)
    if not instants:
        return "wall"
    if len(instants) == len(forms):
        return "utc"
    return "mixed"


def cutoff_on(settings: TemporalSplit, clock: Clock) -> int:
    """Return the cutoff in microseconds on this clock; UTC for mixed times."""
    cutoff = settings.cutoff()
    if clock == "wall":
        return cutoff.wall_us
    return cutoff.instant_us


def key_micros(scanned: Scanned, plan: SplitPlan) -> I64:
    """Return the times of all rows on one clock.

    A wall-clock time that clocks skip uses the offset of the day before.
    """
    if plan.clock != "mixed":
        return scanned.time_us
    assert scanned.instant is not None
    return in_utc(scanned.time_us, ~scanned.instant, plan.in_time.time_zone)
