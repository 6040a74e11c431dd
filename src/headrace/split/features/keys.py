"""Drop the rows without a time or an entity."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.arrays import Bools
from headrace.formats.dates import MISSING
from headrace.formats.shard import Shard
from headrace.split.features import Feature
from headrace.split.reasons import Reason
from headrace.split.rules import DropRule, Output, ScannedRows
from headrace.split.scan import NULL_ENTITY


def _lacks_entity(rows: ScannedRows) -> Bools | None:
    """Mask the rows without an entity, unless they form one or time alone decides."""
    settings = rows.plan.settings
    if settings.entity_column is None or settings.null_entity == "own":
        return None
    lacks: Bools = rows.scanned.entity == NULL_ENTITY
    return lacks


class Keys(Feature):
    """The time and the entity, which place a row. Every scan reads both."""

    def __init__(self, output: Output, shards: Sequence[Shard]) -> None:
        super().__init__(output, shards)
        rules = []
        self.filled = []
        if self.settings.time_columns:
            rules.append(DropRule.of_scan(Reason.UNREADABLE_TIME))
            rules.append(DropRule(Reason.NULL_TIME, lambda rows: rows.time_us == MISSING))
            self.filled += self.settings.time_columns
        rules.append(DropRule(Reason.NULL_ENTITY, _lacks_entity))
        self.rules = rules
        if self.settings.entity_column is not None and self.settings.null_entity != "own":
            self.filled.append(self.settings.entity_column)
