"""Hold the rows of one entity as its source has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.arrays import F64, I64, Bools


@dataclass(frozen=True)
class Observed:
    """The rows of one entity in source order.

    times: microseconds, `MISSING` if there is none or it cannot be read: int64 [N].
    values: NaN if missing: float64 [N, C], columns as `Series.columns()`.
    bad_time: a message about the first row without a time.
    counts: number of source rows that each row was made from, int64 [N]; None for one each.
    dropped: number of source rows that were left out, by reason.
    notes: number of changes to times, by kind.
    """

    times: I64
    values: F64
    bad_time: str | None = None
    counts: I64 | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)

    @property
    def source_rows(self) -> int:
        """Number of rows in the source."""
        return (len(self.times) if self.counts is None else int(self.counts.sum())) + sum(self.dropped.values())

    def with_times(self, times: I64) -> Observed:
        """Return the same rows with other times."""
        return replace(self, times=times)

    def only(self, keep: Bools, dropped: Mapping[str, int], notes: Mapping[str, int]) -> Observed:
        """Return the selected rows, and count the reasons for leaving out others and the changes to times."""
        rows = self if keep.all() else replace(self, times=self.times[keep], values=self.values[keep])
        return replace(rows, dropped=dict(Counter(self.dropped) + Counter(dropped)), notes={**self.notes, **notes})
