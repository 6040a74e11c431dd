"""Number the contexts of an epoch, in closed form from a few facts about each row.

A row is *small* if all its measurements without their timestamps fit into one context, else
*large*. The contexts of an epoch are the S contexts of the small rows, followed by K contexts for
each large row (see `ContextOptions`). Prefix sums map a context id to (row, k) with one binary
search. The number of contexts is the same in every epoch, so position p of an endless run is
context p mod N of epoch p div N, and a state is one number.

Small rows show every measurement once per epoch, several rows packed into a context. All rows of a
context have the same mode, so modes are assigned before packing. The rows are divided at random
into ten groups of equal size. A group goes through a cycle of ten epochs: by default four with
full, three with partial and three without timestamps. Groups start the cycle at different points,
so every epoch has 40, 30 and 30 %. A group is packed once per mode and the ten epochs reuse the
result; the draws inside contexts differ in each epoch. If an epoch needs fewer contexts than the
fullest one, some of its contexts are cut in two.

Three facts about a small row determine its length without its measurements: tokens without
timestamps, the number of distances of 256 seconds and more, and its time span. The length is exact
with full timestamps and with none. With partial timestamps it is an upper bound: long distances
cannot outnumber what the span has room for, nor the distances that were long or have lost a
timestamp. The bound is exact for histories with long pauses and a few percent too high for steady
ones. It is never too low, so packed rows fit.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from headrace import draws
from headrace.arrays import I64, U8, U64, Bools, offsets_from_lengths, ranges
from headrace.bins.bins import Bins
from headrace.bins.pack import pack
from headrace.digest import derive_key
from headrace.histories.contexts.options import ContextOptions
from headrace.histories.contexts.reading import HistoryRows
from headrace.histories.contexts.sample import (
    FULL,
    NONE,
    PARTIAL,
    ContextSegments,
    draw_modes,
    permute,
)
from headrace.histories.contexts.tokeniser import PLAIN, Layout
from headrace.keyed_hash import permutation

_ROWS_AT_A_TIME = 1024
_WELL_FILLED = 0.97  # fraction of a context's tokens
_FEWEST = 4  # measurements worth a segment


class SmallRowSizes(NamedTuple):
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

    def take(self, rows: I64) -> SmallRowSizes:
        """Return the facts of some rows."""
        return SmallRowSizes(*(column[rows] for column in self))


@dataclass(frozen=True, slots=True, eq=False)
class PackedContexts:
    """Parts of rows in bins; int64.

    Part p is count[p] measurements of row[p] from start[p].
    bins: the parts of each bin.
    """

    row: I64
    start: I64
    count: I64
    bins: Bins


def stamp_tokens(mode: int, fraction: np.uint64, count: I64, long_gaps: I64, span: I64) -> I64:
    """Return an upper bound on the tokens of the timestamps of `count` measurements in this
    mode.
    """
    if mode == NONE:
        return np.zeros_like(count)
    long = long_gaps
    stamped = count
    if mode != FULL:
        lost = (count.astype(np.uint64) * fraction + np.uint64((1 << 32) - 1)) >> np.uint64(32)
        stamped = count - lost.astype(np.int64)
        long = np.minimum(span // 256, long_gaps + count - stamped)
    between = np.maximum(stamped - 1, 0)
    return np.where(stamped > 0, 9 + 2 * between + 3 * np.minimum(between, long), 0)


def pack_group(
    sizes: SmallRowSizes, mode: int, fraction: np.uint64, room: int, max_segments: int | None
) -> PackedContexts:
    """Pack all measurements of some rows, in one mode, into close to the fewest contexts possible.

    Rows are numbered in the order of `sizes`. Complete rows are packed first, by first fit
    decreasing; of rows with the same length, the earlier ones share contexts. Contexts that this
    fills badly are dissolved. Their rows are then laid end to end from context to context, and cut
    where a context is full.
    """
    lengths = sizes.tokens + stamp_tokens(mode, fraction, sizes.n, sizes.long_gaps, sizes.span)
    fits = np.flatnonzero(lengths <= room)
    packed = pack(lengths[fits], room, algorithm="first_fit_decreasing", max_sequences=max_segments)
    is_full = packed.loads(lengths[fits]) >= _WELL_FILLED * room
    if max_segments is not None:
        is_full |= packed.counts == max_segments
    full = packed.take(np.flatnonzero(is_full))
    row = fits[full.sequences]
    others = np.ones(len(lengths), bool)
    others[row] = False
    laid = _EndToEnd(mode, int(fraction), room, max_segments or room)
    laid.add_rows(np.flatnonzero(others), sizes, lengths)
    cut = np.array(laid.parts, np.int64).reshape(-1, 3)
    offsets = np.concatenate([full.offsets, len(row) + np.cumsum(laid.sizes, dtype=np.int64)])
    return PackedContexts(
        np.concatenate([row, cut[:, 0]]),
        np.concatenate([np.zeros(len(row), np.int64), cut[:, 1]]),
        np.concatenate([sizes.n[row], cut[:, 2]]),
        Bins(offsets, np.arange(len(row) + len(cut))),
    )


class _EndToEnd:
    """Rows that are laid end to end from context to context.

    parts: (row, start, count) in order. sizes: the number of parts in each context.
    """

    def __init__(self, mode: int, fraction: int, room: int, max_segments: int) -> None:
        self._mode = mode
        self._fraction = fraction
        self._room = room
        self._max_segments = max_segments
        self.parts: list[tuple[int, int, int]] = []
        self.sizes: list[int] = []

    def add_rows(self, rows: I64, sizes: SmallRowSizes, lengths: I64) -> None:
        """Lay out rows. lengths: tokens of each. O(rows) Python."""
        free = 0
        columns = (sizes.n, lengths, sizes.longest, sizes.long_gaps, sizes.span)
        lists = [column[rows].tolist() for column in columns]
        for row, n, length, longest, gaps, span in zip(rows.tolist(), *lists, strict=True):
            bound = partial(self._bound, longest=longest, gaps=gaps, span=span)
            start = 0
            while start < n:
                count = n - start
                needed = bound(count) if start else length
                if needed > free:
                    most = min(count, free // longest)
                    count = bisect_right(range(1, most + 1), free, key=bound)
                    needed = bound(count)
                if self._is_full(count < min(n - start, _FEWEST)):
                    free = self._room
                    self.sizes.append(0)
                    continue
                self.parts.append((row, start, count))
                self.sizes[-1] += 1
                free -= needed
                start += count

    def _is_full(self, is_small: bool) -> bool:
        """Check if a part belongs into a new context.

        is_small: hardly anything of the row would fit.
        """
        if not self.sizes:
            return True
        # A context that is still empty takes what it can; a later one would take no more.
        return self.sizes[-1] > 0 and (is_small or self.sizes[-1] == self._max_segments)

    def _bound(self, count: int, longest: int, gaps: int, span: int) -> int:
        """Return an upper bound on the tokens of any `count` neighbouring measurements, as
        `stamp_tokens` for one row.
        """
        length = count * longest
        if self._mode == NONE or not count:
            return length
        stamped = count
        long = gaps
        if self._mode != FULL:
            stamped -= (count * self._fraction + (1 << 32) - 1) >> 32
            long = min(span // 256, gaps + count - stamped)
        if stamped:
            length += 9 + 2 * (stamped - 1) + 3 * min(stamped - 1, long)
        return length


CYCLE = 10
_PULL = 1e-3  # epochs without times lie a little further out than those with some


def phases_of(times: tuple[int, int, int]) -> tuple[tuple[int, int], ...]:
    """Return the mode of each epoch of a cycle, and the part of 10..90 % that its fraction is from.

    times: how many epochs have full, partial and no times. Those of a mode are spread evenly.
    """
    placed: list[tuple[float, int, tuple[int, int]]] = []
    full, partial, none = times
    for mode, count, pull in ((FULL, full, 0), (NONE, none, _PULL), (PARTIAL, partial, 0)):
        for number in range(count):
            from_middle = (number + 0.5) / count - 0.5
            part = number if mode == PARTIAL else 0
            placed.append((from_middle * (1 + pull), len(placed), (mode, part)))
    return tuple(phase for _, _, phase in sorted(placed))


@dataclass(frozen=True, slots=True, eq=False)
class SmallContexts:
    """The contexts of small rows. Context c has the parts offsets[c] : offsets[c + 1]; int64.

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


@dataclass(frozen=True, slots=True, eq=False)
class Requested:
    """Contexts by epoch and id, int64 [N] each."""

    epochs: I64
    ids: I64


class ContextIndex:
    """The contexts of every epoch.

    n: int64 [R], measurements of each row.
    small: bool [R], which rows are small.
    sizes: sizes of the small rows, in order.
    """

    def __init__(
        self,
        n: I64,
        small: Bools,
        sizes: SmallRowSizes,
        options: ContextOptions,
        layout: Layout = PLAIN,
    ) -> None:
        self.n = n
        self.options = options
        self.layout = layout
        self.small_rows: I64 = np.flatnonzero(small)
        self.large_rows: I64 = np.flatnonzero(~small & (n > 0))
        per_row = -(-n[self.large_rows] // options.measurements_per_context)
        if options.rows == "uniform":
            per_row = np.minimum(per_row, options.contexts_per_row)
        self.ends: I64 = np.cumsum(per_row)
        self.large_contexts = int(per_row.sum())
        self.small_contexts = 0
        full, partial, _ = options.tokeniser.times
        self._shares = (full / CYCLE, (full + partial) / CYCLE)
        self._phases = phases_of(options.tokeniser.times)
        self._fractions = self._draw_fractions()
        self._groups: list[dict[tuple[int, int], PackedContexts]] = []
        if len(self.small_rows):
            self._groups = self._pack(sizes)
            totals = []
            for epoch in range(CYCLE):
                totals.append(sum(len(packed.bins) for packed in self._packed_in(epoch)))
            self.small_contexts = max(totals)
        self._clear_cache()

    def _clear_cache(self) -> None:
        self._small = lru_cache(maxsize=2)(self._cut)
        self._units = lru_cache(maxsize=2)(self._shuffle_units)

    def __len__(self) -> int:
        """Return the number of contexts per epoch."""
        return self.small_contexts + self.large_contexts

    def __getstate__(self) -> dict[str, Any]:
        cached = ("_small", "_units")
        return {name: value for name, value in self.__dict__.items() if name not in cached}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._clear_cache()

    def _draw_fractions(self) -> U64:
        """Draw the fraction of measurements without timestamp, for each group and each partial
        epoch of a cycle.
        """
        keys = draws.context_keys(self.options.seed, -1, np.arange(CYCLE))
        parts = max(1, self.options.tokeniser.times[1])
        fractions = np.zeros((CYCLE, parts), np.uint64)
        for epoch, x in enumerate(draws.unit(draws.draw(keys, draws.FRACTION)).tolist()):
            for group in range(CYCLE):
                mode, part = self._phases[(group + epoch) % CYCLE]
                # one from each part of 10..90 %, so that epochs have similar lengths
                if mode == PARTIAL:
                    within = (x + part / parts) % 1
                    fraction = 0.1 + 0.8 * (part + within) / parts
                    fractions[group, part] = int(fraction * (1 << 32))
        return fractions

    def _pack(self, sizes: SmallRowSizes) -> list[dict[tuple[int, int], PackedContexts]]:
        # Rows are dealt to groups at random, so that each group gets the same number of rows of
        # similar length.
        by_length = np.argsort(sizes.tokens, kind="stable")
        rank = permutation(derive_key(self.options.seed, "contexts.groups"), len(by_length))
        # indices in by_length, shuffled within each ten
        dealt = np.lexsort((rank, np.arange(len(rank)) // CYCLE))
        group_of_row = np.empty(len(rank), np.int64)
        group_of_row[by_length[dealt]] = np.arange(len(rank)) % CYCLE
        key = derive_key(self.options.seed, "contexts.neighbours")
        order = permutation(key, len(self.small_rows))
        groups = []
        for group in range(CYCLE):
            members = order[group_of_row[order] == group]
            member_sizes = sizes.take(members)
            phases = {}
            for mode, part in sorted(set(self._phases)):
                packed = pack_group(
                    member_sizes,
                    mode,
                    self._fractions[group, part],
                    self.options.room,
                    self.options.max_segments,
                )
                phases[mode, part] = replace(packed, row=self.small_rows[members][packed.row])
            groups.append(phases)
        return groups

    def _packed_in(self, epoch: int) -> list[PackedContexts]:
        """Return the contexts of each group in an epoch."""
        packed = []
        for group, phases in enumerate(self._groups):
            packed.append(phases[self._phases[(group + epoch) % CYCLE]])
        return packed

    def _cut(self, epoch: int) -> SmallContexts:
        """Cut the contexts of the small rows in one epoch of a cycle, so that every epoch has the
        same number.
        """
        groups = self._packed_in(epoch)
        phases = [self._phases[(group + epoch) % CYCLE] for group in range(CYCLE)]
        modes = np.array([mode for mode, _ in phases], np.uint8)
        fractions = self._fractions[np.arange(CYCLE), [part for _, part in phases]]
        per_group = [len(packed.bins) for packed in groups]
        sizes = np.concatenate([packed.bins.counts for packed in groups])
        mode = np.repeat(modes, per_group)
        fraction = np.repeat(fractions, per_group)
        while len(sizes) < self.small_contexts and (sizes > 1).any():
            longest = np.argsort(-sizes, kind="stable")[: self.small_contexts - len(sizes)]
            longest = np.sort(longest[sizes[longest] > 1])
            halves = sizes[longest] // 2
            sizes[longest] -= halves
            sizes = np.insert(sizes, longest, halves)
            mode = np.insert(mode, longest, mode[longest])
            fraction = np.insert(fraction, longest, fraction[longest])
        empty = (0, self.small_contexts - len(sizes))  # too few rows: nothing left to cut
        return SmallContexts(
            offsets=offsets_from_lengths(np.pad(sizes, empty)),
            row=np.concatenate([packed.row[packed.bins.sequences] for packed in groups]),
            start=np.concatenate([packed.start[packed.bins.sequences] for packed in groups]),
            count=np.concatenate([packed.count[packed.bins.sequences] for packed in groups]),
            mode=np.pad(mode, empty),
            fraction=np.pad(fraction, empty),
        )

    def at(self, positions: I64) -> Requested:
        """Return the contexts at these positions of an endless run, in the order that `shuffle`
        sets.
        """
        epochs, inside = np.divmod(positions, len(self))
        if self.options.shuffle == "none":
            return Requested(epochs, inside)
        ids = np.empty_like(inside)
        for epoch in sorted(set(epochs.tolist())):
            chosen = epochs == epoch
            if self.options.shuffle == "contexts":
                key, _ = draws.epoch_key(self.options.seed, "contexts.order", epoch)
                ids[chosen] = permute(np.uint64(key), len(self), inside[chosen])
            else:
                ends, first_ids = self._units(epoch)
                unit = np.searchsorted(ends, inside[chosen], side="right")
                ids[chosen] = first_ids[unit] + inside[chosen]
        return Requested(epochs, ids)

    def _shuffle_units(self, epoch: int) -> tuple[I64, I64]:
        """Shuffle units (a large row, or a context of small rows).

        Returns where each unit ends, and its first context id minus the position where it starts.
        """
        small = np.ones(self.small_contexts, np.int64)
        sizes = np.concatenate([small, np.diff(self.ends, prepend=0)])
        starts = np.cumsum(sizes) - sizes
        key = derive_key(self.options.seed, "contexts.rows", epoch)
        order = permutation(key, len(sizes))
        ends = np.cumsum(sizes[order])
        return ends, starts[order] - ends + sizes[order]

    def segments(self, requested: Requested) -> ContextSegments:
        """Return the segments of these contexts, in order; context c of the result is the c-th
        requested.
        """
        parts: list[ContextSegments] = []
        for epoch in sorted(set(requested.epochs.tolist())) or [0]:
            contexts = np.flatnonzero(requested.epochs == epoch)
            ids = requested.ids[contexts]
            keys = draws.context_keys(self.options.seed, epoch, ids)
            is_small = ids < self.small_contexts
            if is_small.any():
                small = self._small(epoch % CYCLE)
                parts.append(
                    _small_segments(small, contexts[is_small], ids[is_small], keys[is_small])
                )
            if not is_small.all() or not len(contexts):
                number = ids[~is_small] - self.small_contexts
                row = self.large_rows[np.searchsorted(self.ends, number, side="right")]
                mode, fraction, key = draw_modes(keys[~is_small], *self._shares)
                parts.append(
                    ContextSegments(
                        context=contexts[~is_small],
                        row=row,
                        start=np.zeros_like(row),
                        count=self.n[row],
                        sampled=np.ones(len(row), bool),
                        mode=mode,
                        fraction=fraction,
                        key=key,
                    )
                )
        if len(parts) == 1:  # already in order
            return parts[0]
        order = np.argsort(np.concatenate([part.context for part in parts]), kind="stable")
        columns = {}
        for name in ContextSegments.__slots__:
            columns[name] = np.concatenate([getattr(part, name) for part in parts])[order]
        return ContextSegments(**columns)


def _small_segments(small: SmallContexts, contexts: I64, ids: I64, keys: U64) -> ContextSegments:
    """Return the segments of contexts of small rows. contexts: their numbers in the batch."""
    sizes = small.offsets[ids + 1] - small.offsets[ids]
    part = ranges(small.offsets[ids], sizes)
    return ContextSegments(
        context=np.repeat(contexts, sizes),
        row=small.row[part],
        start=small.start[part],
        count=small.count[part],
        sampled=np.zeros(len(part), bool),
        mode=np.repeat(small.mode[ids], sizes),
        fraction=np.repeat(small.fraction[ids], sizes),
        key=draws.segment_keys(np.repeat(keys, sizes), ranges(0, sizes)),
    )


def index_rows(rows: HistoryRows, options: ContextOptions, layout: Layout = PLAIN) -> ContextIndex:
    """Index the contexts that an epoch of these rows has.

    Rows that may be small are read once, a portion at a time.
    """
    maybe_small = np.flatnonzero((rows.n > 0) & (rows.n <= options.room // layout.shortest))
    sizes = np.zeros((len(maybe_small), 5), np.int64)
    for first in range(0, len(maybe_small), _ROWS_AT_A_TIME):
        numbers = maybe_small[first : first + _ROWS_AT_A_TIME].tolist()
        sizes[first : first + len(numbers)] = rows.row_sizes(numbers, layout)
    is_small = sizes[:, 1] <= options.room
    small = np.zeros(len(rows.n), bool)
    small[maybe_small[is_small]] = True
    return ContextIndex(rows.n, small, SmallRowSizes(*sizes[is_small].T), options, layout)
