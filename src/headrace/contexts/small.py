"""Small rows: how long they will be in a mode, where to cut what is too long, and which share a context.

The length of a row is known from three facts of it, without its measurements: tokens without timestamps, distances of
256 seconds and more, and the time it spans. With full timestamps and with none that is exact. With some, no more
distances can be long than the span has room for, nor than were long or have lost a timestamp; that is exact for
histories with long pauses and a few percent above for steady ones. It is never below, so what is packed fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.contexts.draws import I64
from headrace.contexts.sample import FULL, NONE, measurement_lengths
from headrace.histories.rows import RowColumns
from headrace.packing.bins import Bins
from headrace.packing.pack import pack

_SHORTEST = 7  # start, source of 5, failed: no row of more measurements than room / 7 is small


@dataclass(frozen=True, slots=True, eq=False)
class SmallFacts:
    """Of each small row, int64 [R]. tokens: without timestamps; longest: of its measurements; long_gaps: distances of
    256 s and more between neighbours; span: seconds from first to last."""

    n: I64
    tokens: I64
    longest: I64
    long_gaps: I64
    span: I64

    def take(self, rows: I64) -> SmallFacts:
        """Of some rows."""
        return SmallFacts(self.n[rows], self.tokens[rows], self.longest[rows], self.long_gaps[rows], self.span[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Pieces of rows in bins: piece p is count[p] measurements of row[p] from start[p]; int64. bins: of pieces."""

    row: I64
    start: I64
    count: I64
    bins: Bins

    def pieces(self, numbers: I64) -> tuple[I64, I64, I64]:
        """(row, start, count) of these pieces."""
        return self.row[numbers], self.start[numbers], self.count[numbers]

    def of_rows(self, numbers: I64) -> Packed:
        """The same with row r called numbers[r]."""
        return Packed(numbers[self.row], self.start, self.count, self.bins)


def may_be_small(n: I64, room: int) -> np.typing.NDArray[np.bool_]:
    """Rows whose facts are needed; all others are certainly large."""
    return (n > 0) & (n <= room // _SHORTEST)


def facts_of(row: RowColumns) -> tuple[int, int, int, int, int]:
    """One row's facts, in the order of `SmallFacts`."""
    lengths = measurement_lengths(row)
    long_gaps = int((np.diff(row.offsets.astype(np.int64)) >= 256).sum())
    return row.n, int(lengths.sum()), int(lengths.max()), long_gaps, int(row.offsets[-1])


def stamp_tokens(mode: int, fraction: np.uint64, count: I64, long_gaps: I64, span: I64) -> I64:
    """Most tokens that the timestamps of `count` measurements take in this mode."""
    if mode == NONE:
        return np.zeros_like(count)
    long = long_gaps
    stamped = count
    if mode != FULL:
        stamped = count - ((count.astype(np.uint64) * fraction + np.uint64((1 << 32) - 1)) >> np.uint64(32)).astype(
            np.int64
        )
        long = np.minimum(span // 256, long_gaps + count - stamped)
    between = np.maximum(stamped - 1, 0)
    return np.where(stamped > 0, 9 + 2 * between + 3 * np.minimum(between, long), 0)


def pack_group(facts: SmallFacts, mode: int, fraction: np.uint64, room: int, max_segments: int | None) -> Packed:
    """All measurements of some rows, in one mode, in hardly more contexts than are needed. Rows are numbered as given;
    of rows of one length those that come first share contexts."""
    lengths = facts.tokens + stamp_tokens(mode, fraction, facts.n, facts.long_gaps, facts.span)
    row, start, count = np.arange(len(lengths)), np.zeros(len(lengths), np.int64), facts.n
    long = np.flatnonzero(lengths > room)
    if len(long):
        cut = facts.take(long)
        most = _most_that_fit(cut, mode, fraction, room)
        times = -(-cut.n // most)
        of = np.repeat(np.arange(len(long)), times)
        begin = (np.arange(len(of)) - np.repeat(np.cumsum(times) - times, times)) * most[of]
        sizes = np.minimum(most[of], cut.n[of] - begin)
        bounds = sizes * cut.longest[of] + stamp_tokens(mode, fraction, sizes, cut.long_gaps[of], cut.span[of])
        keep = np.flatnonzero(lengths <= room)
        row = np.concatenate([row[keep], long[of]])
        start = np.concatenate([start[keep], begin])
        count = np.concatenate([count[keep], sizes])
        lengths = np.concatenate([lengths[keep], bounds])
    return Packed(row, start, count, pack(lengths, room, algorithm="first_fit_decreasing", max_sequences=max_segments))


def _most_that_fit(facts: SmallFacts, mode: int, fraction: np.uint64, room: int) -> I64:
    """Measurements of each row that fit into one context, whichever they are; at least 1."""
    most = np.ones_like(facts.n)
    for count in range(2, int(facts.n.max()) + 1):
        counts = np.full_like(most, count)
        bound = count * facts.longest + stamp_tokens(mode, fraction, counts, facts.long_gaps, facts.span)
        most = np.where(bound <= room, count, most)
    return most
