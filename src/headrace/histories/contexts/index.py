"""Number the contexts of an epoch, in closed form from a few facts about each row.

A row is *small* if all its measurements without their timestamps fit into one context, else *large*. The contexts of an
epoch are the S contexts of the small rows, followed by K contexts for each large row (see `ContextOptions`). Prefix
sums map a context id to (row, k) with one binary search. The number of contexts is the same in every epoch, so position
p of an endless run is context p mod N of epoch p div N, and a state is one number.

Small rows show every measurement once per epoch, several rows packed into a context. All rows of a context have the
same mode, so modes are assigned before packing. The rows are divided at random into ten groups of equal size. A group
goes through a cycle of ten epochs: four with full, three with partial and three without timestamps. Groups start the
cycle at different points, so every epoch has 40, 30 and 30 %. A group is packed once per mode and the ten epochs reuse
the result; the draws inside contexts differ in each epoch. If an epoch needs fewer contexts than the fullest one, some
of its contexts are cut in two.

Three facts about a small row determine its length without its measurements: tokens without timestamps, the number of
distances of 256 seconds and more, and its time span. The length is exact with full timestamps and with none. With
partial timestamps it is an upper bound: long distances cannot outnumber what the span has room for, nor the distances
that were long or have lost a timestamp. The bound is exact for histories with long pauses and a few percent too high
for steady ones. It is never too low, so packed rows fit.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from headrace import draws
from headrace.arrays import I64, U8, U64, Bools, borders_of, ranges
from headrace.bins.bins import Bins
from headrace.bins.pack import pack
from headrace.digest import derive_key
from headrace.histories.contexts.options import ContextOptions
from headrace.histories.contexts.reading import HistoryRows
from headrace.histories.contexts.sample import FULL, IN_NUMPY, NONE, PARTIAL, Sampling, Segments
from headrace.keyed_hash import permutation

_ROWS_AT_A_TIME = 1024
_SHORTEST = 6  # start, source of 5: a row with more than room / 6 measurements is never small
_WELL_FILLED = 0.97  # share of a context's tokens
_FEWEST = 4  # measurements worth a piece of their own


class SmallFacts(NamedTuple):
    """The facts that determine the length of each small row, int64 [R].

    tokens: without timestamps.
    longest: tokens of the longest measurement.
    long_gaps: number of distances of 256 s and more between neighbours.
    span: seconds from first to last.
    """

    n: I64
    tokens: I64
    longest: I64
    long_gaps: I64
    span: I64

    def take(self, rows: I64) -> SmallFacts:
        """Return the facts of some rows."""
        return SmallFacts(*(column[rows] for column in self))


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """Pieces of rows in bins; int64.

    Piece p is count[p] measurements of row[p] from start[p].
    bins: the pieces of each bin.
    """

    row: I64
    start: I64
    count: I64
    bins: Bins


def stamp_tokens(mode: int, fraction: np.uint64, count: I64, long_gaps: I64, span: I64) -> I64:
    """Return an upper bound on the tokens of the timestamps of `count` measurements in this mode."""
    if mode == NONE:
        return np.zeros_like(count)
    long, stamped = long_gaps, count
    if mode != FULL:
        lost = (count.astype(np.uint64) * fraction + np.uint64((1 << 32) - 1)) >> np.uint64(32)
        stamped = count - lost.astype(np.int64)
        long = np.minimum(span // 256, long_gaps + count - stamped)
    between = np.maximum(stamped - 1, 0)
    return np.where(stamped > 0, 9 + 2 * between + 3 * np.minimum(between, long), 0)


def pack_group(facts: SmallFacts, mode: int, fraction: np.uint64, room: int, max_segments: int | None) -> Packed:
    """Pack all measurements of some rows, in one mode, into close to the fewest contexts possible.

    Rows are numbered as given. Whole rows are packed first, by first fit decreasing; of rows with the same length, the
    earlier ones share contexts. Contexts that this fills badly are dissolved. Their rows are then laid end to end from
    context to context, and cut where a context is full.
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
    """Return (row, start, count) of pieces in order, and the number of pieces in each context. O(rows) Python."""
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
    """Return an upper bound on the tokens of any `count` neighbouring measurements, as `stamp_tokens` for one row."""
    length = count * longest
    if mode == NONE or not count:
        return length
    stamped, long = count, gaps
    if mode != FULL:
        stamped = count - ((count * fraction + (1 << 32) - 1) >> 32)
        long = min(span // 256, gaps + count - stamped)
    return length + (9 + 2 * (stamped - 1) + 3 * min(stamped - 1, long) if stamped else 0)


CYCLE = 10
# The mode of each epoch of a cycle, and its number among the partial ones.
_PHASES = ((FULL, 0), (NONE, 0), (PARTIAL, 0), (FULL, 0), (NONE, 0), (PARTIAL, 1), (FULL, 0), (PARTIAL, 2), (NONE, 0), (FULL, 0))  # fmt: skip  # noqa: E501


@dataclass(frozen=True, slots=True, eq=False)
class SmallContexts:
    """The contexts of small rows. Context c has the pieces offsets[c] : offsets[c + 1]; int64.

    row, start, count: int64 [P].
    mode: uint8 [S].
    fraction: uint64 [S].
    """

    offsets: I64
    row: I64
    start: I64
    count: I64
    mode: U8
    fraction: U64


class ContextIndex:
    """The contexts of every epoch.

    n: int64 [R], measurements of each row.
    small: bool [R], which rows are small.
    facts: facts of the small rows, in order.
    """

    def __init__(self, n: I64, small: Bools, facts: SmallFacts, options: ContextOptions) -> None:
        self.n = n
        self.options = options
        self.small_rows: I64 = np.flatnonzero(small)
        self.large_rows: I64 = np.flatnonzero(~small & (n > 0))
        per_row = -(-n[self.large_rows] // options.measurements_per_context)
        if options.rows == "uniform":
            per_row = np.minimum(per_row, options.contexts_per_row)
        self.ends: I64 = np.cumsum(per_row)
        self._groups = self._pack(facts)
        self.small_contexts = max(sum(len(each.bins) for each in self._of_epoch(epoch)) for epoch in range(CYCLE))
        self._remember()

    def _remember(self) -> None:
        self._small = lru_cache(maxsize=2)(self._cut)
        self._units = lru_cache(maxsize=2)(self._shuffled_units)

    def __len__(self) -> int:
        """Return the number of contexts per epoch."""
        return self.small_contexts + self.large_contexts

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_small", "_units")}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._remember()

    @property
    def large_contexts(self) -> int:
        """The number of contexts per epoch that are drawn from large rows."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @cached_property
    def _mode_fractions(self) -> U64:
        """Return the share of measurements without timestamp, for each group and each partial epoch of a cycle."""
        keys = draws.context_keys(self.options.seed, -1, np.arange(CYCLE))
        fractions = np.zeros((CYCLE, 3), np.uint64)
        for epoch, x in enumerate(draws.unit(draws.draw(keys, draws.FRACTION)).tolist()):
            for group in range(CYCLE):
                mode, turn = _PHASES[(group + epoch) % CYCLE]
                if mode == PARTIAL:  # one from each third of 10..90 %, so that epochs have similar lengths
                    fractions[group, turn] = int((0.1 + 0.8 * (turn + (x + turn / 3) % 1) / 3) * (1 << 32))
        return fractions

    def _pack(self, facts: SmallFacts) -> list[dict[tuple[int, int], Packed]]:
        # Rows are dealt to groups at random, so that each group gets the same number of rows of similar length.
        by_length = np.argsort(facts.tokens, kind="stable")
        rank = permutation(derive_key(self.options.seed, "contexts.groups"), len(by_length))
        dealt = np.lexsort((rank, np.arange(len(rank)) // CYCLE))  # indices in by_length, shuffled within each ten
        group_of_row = np.empty(len(rank), np.int64)
        group_of_row[by_length[dealt]] = np.arange(len(rank)) % CYCLE
        order = permutation(derive_key(self.options.seed, "contexts.neighbours"), len(self.small_rows))
        groups = []
        for group in range(CYCLE):
            mine = order[group_of_row[order] == group]
            packed = {}
            for mode, turn in sorted(set(_PHASES)):
                fraction = self._mode_fractions[group, turn]
                found = pack_group(facts.take(mine), mode, fraction, self.options.room, self.options.max_segments)
                packed[mode, turn] = replace(found, row=self.small_rows[mine][found.row])
            groups.append(packed)
        return groups

    def _of_epoch(self, epoch: int) -> list[Packed]:
        return [self._groups[group][_PHASES[(group + epoch) % CYCLE]] for group in range(CYCLE)]

    def _cut(self, epoch: int) -> SmallContexts:
        """Cut the contexts of the small rows in one epoch of a cycle, so that every epoch has the same number."""
        packed = self._of_epoch(epoch)
        sizes = np.concatenate([each.bins.counts for each in packed])
        phases = [_PHASES[(group + epoch) % CYCLE] for group in range(CYCLE)]
        per_group = [len(each.bins) for each in packed]
        mode = np.repeat(np.array([phase[0] for phase in phases], np.uint8), per_group)
        fraction = np.repeat([self._mode_fractions[group, phase[1]] for group, phase in enumerate(phases)], per_group)
        while (missing := self.small_contexts - len(sizes)) > 0 and (sizes > 1).any():
            longest = np.argsort(-sizes, kind="stable")[:missing]
            longest = np.sort(longest[sizes[longest] > 1])
            halves = sizes[longest] // 2
            sizes[longest] -= halves
            sizes = np.insert(sizes, longest, halves)
            mode, fraction = np.insert(mode, longest, mode[longest]), np.insert(fraction, longest, fraction[longest])
        empty = self.small_contexts - len(sizes)  # too few rows: nothing left to cut
        offsets = borders_of(np.pad(sizes, (0, empty)))
        row, start, count = (
            np.concatenate([getattr(each, name)[each.bins.sequences] for each in packed])
            for name in ("row", "start", "count")
        )
        return SmallContexts(offsets, row, start, count, np.pad(mode, (0, empty)), np.pad(fraction, (0, empty)))

    def at(self, positions: I64, sampling: Sampling = IN_NUMPY) -> tuple[I64, I64]:
        """Return (epoch, context id) of these positions of an endless run, in the order that `shuffle` sets; int64."""
        epochs, inside = np.divmod(positions, len(self))
        if self.options.shuffle == "none":
            return epochs, inside
        ids = np.empty_like(inside)
        for epoch in sorted(set(epochs.tolist())):
            mine = epochs == epoch
            if self.options.shuffle == "contexts":
                key = np.array([draws.epoch_key(self.options.seed, "contexts.order", epoch)[0]], np.uint64)
                ids[mine] = sampling.permuted(key, np.array([len(self)]), inside[mine])
            else:
                ends, firsts = self._units(epoch)
                ids[mine] = firsts[np.searchsorted(ends, inside[mine], side="right")] + inside[mine]
        return epochs, ids

    def _shuffled_units(self, epoch: int) -> tuple[I64, I64]:
        """Shuffle units (a large row, or a context of small rows).

        Returns where each unit ends, and its first context id minus the position where it begins.
        """
        sizes = np.concatenate([np.ones(self.small_contexts, np.int64), np.diff(self.ends, prepend=0)])
        begins = np.cumsum(sizes) - sizes
        order = permutation(derive_key(self.options.seed, "contexts.rows", epoch), len(sizes))
        ends = np.cumsum(sizes[order])
        return ends, begins[order] - ends + sizes[order]

    def segments(self, epochs: I64, ids: I64, sampling: Sampling = IN_NUMPY) -> Segments:
        """Return the segments of these contexts, in order; context c of the result is the c-th requested."""
        keys = np.empty(len(ids), np.uint64)
        parts: list[tuple[Any, ...]] = []
        for epoch in sorted(set(epochs.tolist())) or [0]:
            mine = np.flatnonzero(epochs == epoch)
            keys[mine] = draws.context_keys(self.options.seed, epoch, ids[mine])
            is_small = ids[mine] < self.small_contexts
            if is_small.any():
                small, which = self._small(epoch % CYCLE), ids[mine[is_small]]
                sizes = small.offsets[which + 1] - small.offsets[which]
                number, piece = ranges(0, sizes), ranges(small.offsets[which], sizes)
                context = np.repeat(mine[is_small], sizes)
                own = (small.row[piece], small.start[piece], small.count[piece], np.zeros(len(piece), bool))
                drawn = (small.mode[ids[context]], small.fraction[ids[context]])
                parts.append((context, *own, *drawn, draws.segment_keys(keys[context], number)))
            if not is_small.all() or not len(mine):
                large = mine[~is_small]
                row = self.large_rows[np.searchsorted(self.ends, ids[large] - self.small_contexts, side="right")]
                whole = (np.zeros_like(large), self.n[row], np.ones(len(large), bool))
                parts.append((large, row, *whole, *sampling.dealt(keys[large])))
        if len(parts) == 1:  # already in order
            return Segments(*parts[0])
        columns = [np.concatenate(part) for part in zip(*parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return Segments(*(column[order] for column in columns))


def index_rows(rows: HistoryRows, options: ContextOptions) -> ContextIndex:
    """Index the contexts that an epoch of these rows has. Rows that may be small are read once, a portion at a time."""
    maybe = np.flatnonzero((rows.n > 0) & (rows.n <= options.room // _SHORTEST))
    facts = np.zeros((len(maybe), 5), np.int64)
    for begin in range(0, len(maybe), _ROWS_AT_A_TIME):
        numbers = maybe[begin : begin + _ROWS_AT_A_TIME].tolist()
        facts[begin : begin + len(numbers)] = rows.facts(numbers)
    is_small = facts[:, 1] <= options.room
    small = np.zeros(len(rows.n), bool)
    small[maybe[is_small]] = True
    return ContextIndex(rows.n, small, SmallFacts(*facts[is_small].T), options)
