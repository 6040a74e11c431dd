"""Parts of a split, each with its say in the scan, the plan, the rules and the facts of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.formats.evidence import Evidence
from headrace.formats.shard import Shard
from headrace.recipe import load
from headrace.run.context import RunContext
from headrace.run.receipts import Receipt
from headrace.split.earlier import EarlierRun
from headrace.split.reasons import Reason
from headrace.split.rules import DropRule, Output, SplitPlan
from headrace.split.scan import TYPES_THAT_FIT, Scanner
from headrace.split.settings import SplitSettings

# they drop no row, and come before units are made
_DRAWING = ("linked:LinkedEntities", "drawn:Drawn", "drawn:Strata")


@dataclass(frozen=True)
class Scans:
    """What pass 1 found.

    receipts: one of each shard. earlier: the run whose assignment is kept; its shards that are
    taken over are not scanned.
    """

    context: RunContext
    shards: Sequence[Shard]
    receipts: Sequence[Receipt]
    earlier: EarlierRun | None = None

    @property
    def scanned(self) -> list[int]:
        """The numbers of the shards that were scanned."""
        linked = frozenset() if self.earlier is None else self.earlier.linked
        return [number for number, shard in enumerate(self.shards) if shard.name not in linked]

    @property
    def evidence(self) -> Evidence:
        """What the values of columns of text show of their types."""
        evidence = Evidence()
        for shard, receipt in zip(self.shards, self.receipts, strict=True):
            words_of = receipt.extra.get(TYPES_THAT_FIT)
            if words_of is not None:
                evidence.join(words_of)
            else:  # its columns have types of their own
                evidence.leave_out(shard.schema.names)
        return evidence

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

    rules: when its reasons to drop a row apply. filled: columns that no row lacks afterwards.
    """

    rules: Sequence[DropRule] = ()
    filled: Sequence[str] = ()

    @classmethod
    def is_part(cls, settings: SplitSettings) -> bool:
        """Return whether a split with these settings has this part."""
        return True

    def __init__(self, output: Output, shards: Sequence[Shard]) -> None:
        self.settings = output.settings

    def check_earlier(self, earlier: EarlierRun) -> None:
        """Raise `InputError` if the assignment of the earlier run cannot be kept."""

    def scanner(self, shard: Shard) -> Scanner | None:
        """Return what looks at a shard in pass 1."""
        return None

    def join(self, scans: Scans) -> None:
        """Join entities before any is drawn."""

    def decide(self, plan: SplitPlan, scans: Scans) -> SplitPlan:
        """Return the plan with what this feature decides by the scans of all shards."""
        return plan

    def metadata(self, plan: SplitPlan, scans: Scans, counts: Counts) -> dict[str, Any]:
        """Check the rows that were written, and return facts for the manifest. Emits warnings."""
        return {}


def features_of(output: Output, shards: Sequence[Shard]) -> list[Feature]:
    """Return the parts of a split, in the order of their first reasons."""
    references = dict.fromkeys([*_DRAWING, *(reason.feature for reason in Reason)])
    features: list[Feature] = []
    for reference in filter(None, references):
        feature_class: type[Feature] = load(f"{__name__}.{reference}")
        if feature_class.is_part(output.settings):
            features.append(feature_class(output, shards))
    return features
