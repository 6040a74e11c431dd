"""Drop the rows that hold an item of a benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.arrays import Bools
from headrace.formats.dates import Dates
from headrace.formats.shard import Chunk, Shard
from headrace.split.features import Counts, Feature, Scans
from headrace.split.reasons import Reason
from headrace.split.rules import DropRule, Output, SplitPlan
from headrace.split.scan import Scanner
from headrace.stream.audit.exclude import read_excluded

if TYPE_CHECKING:
    from headrace.stream.audit.overlap import Benchmarks


class BenchmarkScanner(Scanner):
    """Find the rows of a shard that overlap a benchmark."""

    reason = Reason.IN_BENCHMARK

    def __init__(self, benchmarks: Benchmarks, shard: Shard) -> None:
        self.benchmarks = benchmarks
        self.columns = shard.schema.names  # an item may be in any column
        self.counts: Counter[str] = Counter()  # rows by benchmark

    def scan(self, chunk: Chunk, table: pa.Table, times: Dates) -> Bools:
        """Mask such rows, and count them by benchmark."""
        from headrace.stream.audit.overlap import texts_of  # loads more libraries

        return self.benchmarks.mask(texts_of(table), len(table), self.counts)

    def result(self) -> dict[str, Any]:
        """Return the rows by benchmark."""
        return {"excluded": {name: self.counts[name] for name in self.benchmarks.digests}}


class Exclusion(Feature):
    """Benchmarks whose items no row may hold."""

    rules = (DropRule.of_scan(Reason.IN_BENCHMARK),)

    def __init__(self, output: Output, shards: Sequence[Shard]) -> None:
        super().__init__(output, shards)
        self.benchmarks = read_excluded(self.settings.exclude, self.settings.exclude_ngram)

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
