"""Number the classes of the label, and drop rows without one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import Bools
from headrace.errors import InputError, setting
from headrace.formats.dates import Dates
from headrace.formats.shard import Chunk, Shard
from headrace.split import columns
from headrace.split.features import Counts, Feature, Scans
from headrace.split.reasons import Reason
from headrace.split.rules import DropRule, Output, SplitPlan
from headrace.split.scan import (
    NULL_ENTITY,
    Scanner,
    column_of,
    count_missing_like,
    encode,
)
from headrace.split.settings import SplitSettings

MAX_CLASSES = 100_000


class LabelScanner(Scanner):
    """Collect the distinct labels of a shard, and find rows without one."""

    reason = Reason.MISSING_LABEL

    def __init__(self, settings: SplitSettings, label: str) -> None:
        self.settings = settings
        self.label = label
        self.columns = (label,)
        if label == settings.main_target:
            self.columns = settings.targets or ()
        self.classes: set[str] = set()
        self.missing_like: Counter[str] = Counter()

    def scan(self, chunk: Chunk, table: pa.Table, times: Dates) -> Bools:
        """Mask the rows whose label is missing."""
        settings = self.settings
        if settings.label == settings.main_target:
            values = columns.main_target(
                table, settings.targets or (), self.label, settings.dialect
            )
        else:
            values = column_of(table, self.label)
        texts = columns.label_texts(values, settings.dialect.null_values)
        distinct = encode(texts)
        indices = pc.fill_null(distinct.indices, NULL_ENTITY).to_numpy()
        self.missing_like += count_missing_like(distinct.dictionary, indices)
        self.classes.update(distinct.dictionary.to_pylist())
        if len(self.classes) > MAX_CLASSES:
            raise InputError(
                f"has more than {MAX_CLASSES:,} classes",
                column=self.label,
                remedy=f"leave {setting('label')} out, as this is not a label column",
            )
        missing: Bools = pc.is_null(texts).to_numpy()
        return missing

    def result(self) -> dict[str, Any]:
        """Return the classes, and the rows whose label other tools read as missing."""
        return {
            "classes": sorted(self.classes),
            "missing_like_label": dict(sorted(self.missing_like.items())),
        }


def _with_earlier(classes: dict[str, int], earlier: Mapping[str, int]) -> dict[str, int]:
    """Return the classes with the numbers that an earlier run gave them; new ones follow."""
    if all(classes.get(text, number) == number for text, number in earlier.items()):
        return {**earlier, **classes}
    result = dict(earlier)
    for text in sorted(classes.keys() - earlier.keys()):
        result[text] = max(result.values()) + 1
    return result


class Labels(Feature):
    """Classes 0..k-1 of a label column, by one map for all shards."""

    rules = (DropRule.of_scan(Reason.MISSING_LABEL),)

    def __init__(self, output: Output, shards: Sequence[Shard]) -> None:
        super().__init__(output, shards)
        if self.settings.label is not None:
            self.filled = (self.settings.label,)

    def scanner(self, shard: Shard) -> Scanner | None:
        """Collect labels, if there is a label column."""
        label = self.settings.label
        if label is None:
            return None
        return LabelScanner(self.settings, label)

    def decide(self, plan: SplitPlan, scans: Scans) -> SplitPlan:
        """Number the labels of all shards."""
        if self.settings.label is None:
            return plan
        distinct = sorted(set().union(*scans.results("classes")))
        classes = columns.label_map(distinct, self.settings.label)
        if scans.earlier is not None:
            earlier = scans.earlier.run.manifest.metadata["label_map"] or {}
            classes = _with_earlier(classes, earlier)
        return replace(plan, classes=classes)

    def metadata(self, plan: SplitPlan, scans: Scans, counts: Counts) -> dict[str, Any]:
        """Record the map of classes."""
        return {"label_map": None if plan.classes is None else dict(plan.classes)}
