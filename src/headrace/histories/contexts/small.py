"""Pack small rows: how long they will be in a mode, where to cut what is too long, and which share a context.

The length of a row is known from three facts of it, without its measurements: tokens without timestamps, distances of
256 seconds and more, and the time it spans. With full timestamps and with none that is exact. With some, no more
distances can be long than the span has room for, nor than were long or have lost a timestamp; that is exact for
histories with long pauses and a few percent above for steady ones. It is never below, so what is packed fits.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import partial

import numpy as np

from headrace.arrays import I64
from headrace.bins.bins import Bins
from headrace.bins.pack import pack
from headrace.histories.contexts.sample import FULL, NONE

_SHORTEST = 7  # start, source of 5, failed: no row of more measurements than room / 7 is small
_WELL_FILLED = 0.97  # share of a context's tokens
_FEWEST = 4  # measurements worth a piece of their own


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
        """Take those of some rows."""
        return SmallFacts(self.n[rows], self.tokens[rows], self.longest[rows], self.long_gaps[rows], self.span[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Pieces of rows in bins: piece p is count[p] measurements of row[p] from start[p]; int64. bins: of pieces."""

    row: I64
    start: I64
    count: I64
    bins: Bins

    def pieces(self, numbers: I64) -> tuple[I64, I64, I64]:
        """Give (row, start, count) of these pieces."""
        return self.row[numbers], self.start[numbers], self.count[numbers]

    def of_rows(self, numbers: I64) -> Packed:
        """Call row r numbers[r]."""
        return Packed(numbers[self.row], self.start, self.count, self.bins)


def may_be_small(n: I64, room: int) -> np.typing.NDArray[np.bool_]:
    """Tell the rows whose facts are needed; all others are certainly large."""
    return (n > 0) & (n <= room // _SHORTEST)


def stamp_tokens(mode: int, fraction: np.uint64, count: I64, long_gaps: I64, span: I64) -> I64:
    """Bound the tokens that the timestamps of `count` measurements take in this mode."""
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
    """Pack all measurements of some rows, in one mode, into hardly more contexts than are needed.

    Rows are numbered as given. Whole rows first, by first fit decreasing: of rows of one length those that come first
    share contexts. Contexts that this fills badly are given up, and their rows follow one another from context to
    context, cut where one is full.
    """
    lengths = facts.tokens + stamp_tokens(mode, fraction, facts.n, facts.long_gaps, facts.span)
    fits = np.flatnonzero(lengths <= room)
    whole = pack(lengths[fits], room, algorithm="first_fit_decreasing", max_sequences=max_segments)
    full = whole.loads(lengths[fits]) >= _WELL_FILLED * room
    if max_segments is not None:
        full |= whole.counts == max_segments
    kept = whole.take(np.flatnonzero(full))
    row = fits[kept.sequences]
    others = np.ones(len(lengths), bool)
    others[row] = False
    laid = _laid_end_to_end(np.flatnonzero(others), facts, lengths, mode, fraction, room, max_segments)
    cut_row, start, count, sizes = (np.array(each, np.int64) for each in laid)
    pieces = np.arange(len(row) + len(cut_row))
    offsets = np.concatenate([kept.offsets, len(row) + np.cumsum(sizes)])
    return Packed(
        np.concatenate([row, cut_row]),
        np.concatenate([np.zeros(len(row), np.int64), start]),
        np.concatenate([facts.n[row], count]),
        Bins(offsets, pieces),
    )


def _laid_end_to_end(
    rows: I64, facts: SmallFacts, lengths: I64, mode: int, fraction: np.uint64, room: int, max_segments: int | None
) -> tuple[list[int], list[int], list[int], list[int]]:
    """(row, start, count) of pieces in order, and how many each context has. O(rows) Python."""
    pieces: tuple[list[int], list[int], list[int]] = ([], [], [])
    sizes: list[int] = []
    free = segments = 0
    per_fraction, most = int(fraction), max_segments or room
    columns = (facts.n, lengths, facts.longest, facts.long_gaps, facts.span)
    for row, n, length, longest, gaps, span in zip(
        rows.tolist(), *(column[rows].tolist() for column in columns), strict=True
    ):
        start = 0
        while start < n:
            left = n - start
            needed = length if not start else _bound(left, longest, gaps, span, mode, per_fraction)
            taken = left
            if needed > free:
                bound = partial(_bound, longest=longest, gaps=gaps, span=span, mode=mode, fraction=per_fraction)
                taken = bisect_right(range(1, min(left, free // longest) + 1), free, key=bound)
                needed = bound(taken)
            # A context that is still empty takes what it can; a later one would take no more.
            if not sizes or (segments and (segments == most or taken < min(left, _FEWEST))):
                free, segments = room, 0
                sizes.append(0)
                continue
            for column, value in zip(pieces, (row, start, taken), strict=True):
                column.append(value)
            sizes[-1] += 1
            segments += 1
            free -= needed
            start += taken
    return *pieces, sizes


def _bound(count: int, longest: int, gaps: int, span: int, mode: int, fraction: int) -> int:
    """Most tokens that any `count` neighbouring measurements take; as `stamp_tokens`, of one row."""
    length = count * longest
    if mode == NONE or not count:
        return length
    stamped, long = count, gaps
    if mode != FULL:
        stamped = count - ((count * fraction + (1 << 32) - 1) >> 32)
        long = min(span // 256, gaps + count - stamped)
    return length + (9 + 2 * (stamped - 1) + 3 * min(stamped - 1, long) if stamped else 0)
