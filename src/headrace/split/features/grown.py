"""Keep the assignment of an earlier run: count what it costs, and say what was taken over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.arrays import Bools
from headrace.formats.shard import Shard
from headrace.report.words import pluralise
from headrace.run.events import Note
from headrace.split.allocate import UNSEEN
from headrace.split.features import Counts, Feature, Scans
from headrace.split.reasons import Reason
from headrace.split.rules import DropRule, Output, ScannedRows, SplitPlan
from headrace.split.settings import SplitSettings


def _earlier_test(rows: ScannedRows) -> Bools:
    """Mask the rows before the cutoff whose entity is in test; others of its kind are in train."""
    in_test: Bools = rows.side == UNSEEN
    in_test &= rows.before
    return in_test


class Grown(Feature):
    """An earlier run whose groups stay where they are."""

    @classmethod
    def is_part(cls, settings: SplitSettings) -> bool:
        """Return whether there is an earlier run."""
        return settings.assignment_from is not None

    def __init__(self, output: Output, shards: Sequence[Shard]) -> None:
        super().__init__(output, shards)
        if self.settings.cut_in_time and self.settings.entity_column is not None:
            self.rules = (DropRule(Reason.EARLIER_TEST, _earlier_test),)

    def metadata(self, plan: SplitPlan, scans: Scans, counts: Counts) -> dict[str, Any]:
        """Record the earlier run, and say what was taken over and left out."""
        earlier = scans.earlier
        assert earlier is not None
        shards = len(scans.shards)
        linked = shards - len(scans.scanned)
        message = f"{linked:,} of {pluralise(shards, 'shard')} are those of the earlier run"
        conflicts = counts.dropped.get(Reason.EARLIER_TEST, 0)
        if conflicts:
            message += f"; {pluralise(conflicts, 'row')} of entities in its test are left out"
        scans.context.on_event(Note("info", message))
        return {
            "assigned": {
                "run": earlier.run.manifest.run_id,
                "index_digest": earlier.run.manifest.index_digest,
                "by_hash": earlier.by_hash,
                "shards": linked,
            }
        }
