"""Split by one cut in time: refuse empty splits and warn of small ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from headrace.arrays import Bools
from headrace.errors import InputError, setting
from headrace.formats.shard import Shard
from headrace.report.words import pluralise
from headrace.run.events import Note
from headrace.split import advice
from headrace.split.allocate import TRAIN, VAL
from headrace.split.features import Counts, Feature, Scans
from headrace.split.reasons import Reason
from headrace.split.rules import DropRule, Output, ScannedRows, SplitPlan
from headrace.split.settings import SplitSettings, TemporalSplit


def _close(rows: ScannedRows, reach_us: int) -> Bools:
    """Mask the rows that are too close before the cutoff."""
    return rows.before & (rows.time_us >= rows.cutoff_us - reach_us)


def _late(rows: ScannedRows, side: int) -> Bools:
    """Mask the rows from the cutoff on whose entity is on this side."""
    late: Bools = rows.side == side
    late &= ~rows.before
    return late


def _train_entity_late(rows: ScannedRows) -> Bools | None:
    if rows.plan.settings.entity_column is None:
        return None
    return _late(rows, TRAIN)


def _val_entity_late(rows: ScannedRows) -> Bools | None:
    if rows.plan.in_time.val_in_test == "keep":
        return None
    return _late(rows, VAL)


class OneCutInTime(Feature):
    """Rows from the split date on are in test, the others in train or val."""

    @classmethod
    def is_part(cls, settings: SplitSettings) -> bool:
        """Return whether there is one cut in time."""
        return settings.cut_in_time

    def __init__(self, output: Output, shards: Sequence[Shard]) -> None:
        super().__init__(output, shards)
        assert isinstance(self.settings, TemporalSplit)
        self.in_time = self.settings
        rules = []
        for reason, reach_us in self.in_time.reaches_us().items():
            rules.append(DropRule(reason, partial(_close, reach_us=reach_us)))
        rules.append(DropRule(Reason.TRAIN_ENTITY_LATE, _train_entity_late))
        rules.append(DropRule(Reason.VAL_ENTITY_LATE, _val_entity_late))
        self.rules = rules

    def metadata(self, plan: SplitPlan, scans: Scans, counts: Counts) -> dict[str, Any]:
        """Check the splits, and record the number of entities."""
        self._refuse_empty(plan, counts)
        scans.context.warn(advice.small_splits(self.in_time, counts, scans))
        cost = advice.cost_of_rules(counts)
        if cost is not None:
            scans.context.on_event(Note("info", cost))
        if self.in_time.entity is None:
            return {}
        allocation = plan.placement.allocation
        return {
            "entities_before_cutoff": allocation.train + allocation.val,
            "train_entities": allocation.train,
            "val_entities": allocation.val,
        }

    def _refuse_empty(self, plan: SplitPlan, counts: Counts) -> None:
        settings = self.in_time
        allocation = plan.placement.allocation
        if settings.entity is None:
            if not counts.rows["train"]:
                reaches = {"gap": settings.gap, "label_horizon": settings.label_horizon}
                listed = ""
                for name, value in reaches.items():
                    if value:
                        listed += f", {setting(name, value)}"
                raise InputError(
                    "train has no rows: no row that counts is before"
                    f" {settings.split_date}{listed}",
                    remedy=f"choose a later {setting('split_date')}",
                )
            return
        entities = allocation.train + allocation.val
        joined = ""
        if allocation.units != entities:
            joined = (
                f", and content joins them to {allocation.units:,} units ({setting('content')}, "
                f"{setting('duplicates', 'drop')} help)"
            )
        for split, on_side, verb in (
            ("train", allocation.train, "train"),
            ("val", allocation.val, "validate"),
        ):
            if counts.rows[split] == 0:
                raise InputError(
                    f"{split} has no rows:"
                    f" {pluralise(entities, 'entity has', 'entities have')} rows before"
                    f" {settings.split_date}, {on_side:,} of them {verb}{joined}",
                    remedy=(
                        f"choose a later {setting('split_date')} or another"
                        f" {setting('train_ratio')} (now {settings.train_ratio})"
                    ),
                )
