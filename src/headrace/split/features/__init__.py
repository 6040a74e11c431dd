"""Parts of a split, each with its say in the scan, the plan, the rules and the facts of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.formats.shard import Shard
from headrace.run.context import RunContext
from headrace.run.receipts import Receipt
from headrace.split.rules import DropRule, SplitPlan
from headrace.split.scan import Scanner


@dataclass(frozen=True)
class Scans:
    """What pass 1 found. receipts: one of each shard."""

    context: RunContext
    shards: Sequence[Shard]
    receipts: Sequence[Receipt]

    def results(self, name: str) -> list[Any]:
        """Return what the scan of each shard records under this name."""
        return [receipt.extra[name] for receipt in self.receipts]

    def known(self, name: str) -> list[Any]:
        """Return what the scans record under this name, without those that record None."""
        return [result for result in self.results(name) if result is not None]


@dataclass(frozen=True)
class Counts:
    """What pass 2 wrote: rows by split or cell, and dropped rows by reason."""

    rows: Mapping[str, int]
    dropped: Mapping[str, int]


class Feature:
    """A part of the split.

    The methods are called in this order; each does nothing unless a feature overrides it.

    rules: reasons to drop rows. A rule of a later feature yields to those before it.
    """

    rules: Sequence[DropRule] = ()

    def scanner(self, shard: Shard) -> Scanner | None:
        """Return what looks at a shard in pass 1."""
        return None

    def decide(self, plan: SplitPlan, scans: Scans) -> SplitPlan:
        """Return the plan with what this feature decides by the scans of all shards."""
        return plan

    def metadata(self, plan: SplitPlan, scans: Scans, counts: Counts) -> dict[str, Any]:
        """Check the rows that were written, and return facts for the manifest. Emits warnings."""
        return {}
