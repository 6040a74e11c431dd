"""Drop the rows that hold an item of a benchmark."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.arrays import U8
from headrace.formats.dates import Dates
from headrace.formats.shard import Chunk, Shard
from headrace.split.features import Counts, Feature, Scans
from headrace.split.rules import DropRule, SplitPlan
from headrace.split.scan import HOLDS_ITEM, Scanner
from headrace.split.settings import TemporalSplit
from headrace.stream.audit.exclude import IN_BENCHMARK, read_excluded

if TYPE_CHECKING:
    from headrace.stream.audit.overlap import Benchmarks

RULE = DropRule(IN_BENCHMARK, lambda rows: rows.has(HOLDS_ITEM))


class BenchmarkScanner(Scanner):
    """Flag the rows of a shard that overlap a benchmark."""

    def __init__(self, benchmarks: Benchmarks, shard: Shard) -> None:
        self.benchmarks = benchmarks
        self.columns = shard.schema.names  # an item may be in any column
        self.counts: Counter[str] = Counter()  # rows by benchmark

    def scan(self, chunk: Chunk, table: pa.Table, times: Dates) -> U8:
        """Flag rows, and count them by benchmark."""
        from headrace.stream.audit.overlap import texts_of  # loads more libraries

        hits = self.benchmarks.mask(texts_of(table), len(table), self.counts)
        return np.where(hits, HOLDS_ITEM, 0).astype(np.uint8)

    def result(self) -> dict[str, Any]:
        """Return the rows by benchmark."""
        return {"excluded": {name: self.counts[name] for name in self.benchmarks.digests}}


class Exclusion(Feature):
    """Benchmarks whose items no row may hold."""

    rules = (RULE,)

    def __init__(self, settings: TemporalSplit) -> None:
        self.benchmarks = read_excluded(settings.exclude, settings.exclude_ngram)

    def scanner(self, shard: Shard) -> Scanner | None:
        """Look for items, if there are benchmarks."""
        if self.benchmarks is None:
            return None
        return BenchmarkScanner(self.benchmarks, shard)

    def metadata(self, plan: SplitPlan, scans: Scans, counts: Counts) -> dict[str, Any]:
        """Record the benchmarks and the rows that hold their items."""
        if self.benchmarks is None:
            return {}
        return {"benchmarks": self.benchmarks.metadata(scans.results("excluded"))}
