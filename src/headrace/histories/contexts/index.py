"""Number the contexts of an epoch, in closed form from a few facts of every row.

A row is *small* if all its measurements without their timestamps fit into one context, else *large*. The contexts of
an epoch are those of the small rows, S of them, then those of the large rows, K each (see `ContextOptions`), by prefix
sums: context id → (row, k) is one binary search. The number of contexts is the same in every epoch, so position p of
an endless run is context p mod N of epoch p div N, and a state is one number.

Small rows give every measurement once an epoch, several rows packed into a context. All rows of a context are in one
mode, so modes are dealt out before packing: the rows are in ten groups at random, of equal size, and a group goes
through a cycle of ten epochs, four of them with full, three with partial and three without timestamps, each group
beginning elsewhere, so that every epoch has its 40, 30 and 30 %. Packing a group for a mode is done once, and ten
epochs repeat it; what is drawn inside contexts differs in each. An epoch that needs fewer contexts than the fullest
one has some of them cut in two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace import draws
from headrace.arrays import I64, U64
from headrace.digest import derive_key, permutation
from headrace.histories.contexts.options import ContextOptions
from headrace.histories.contexts.sample import FULL, IN_NUMPY, NONE, PARTIAL, Sampling, Segments
from headrace.histories.contexts.small import Packed, SmallFacts, pack_group

CYCLE = 10
# The mode of each epoch of a cycle, and which of the partial ones it is.
_PHASES = ((FULL, 0), (NONE, 0), (PARTIAL, 0), (FULL, 0), (NONE, 0), (PARTIAL, 1), (FULL, 0), (PARTIAL, 2), (NONE, 0), (FULL, 0))  # fmt: skip  # noqa: E501


@dataclass(frozen=True, slots=True, eq=False)
class SmallContexts:
    """Context c of the small rows has the pieces offsets[c] : offsets[c + 1]; int64. row, start, count: int64 [P].

    mode: uint8 [S]; fraction: uint64 [S].
    """

    offsets: I64
    row: I64
    start: I64
    count: I64
    mode: npt.NDArray[np.uint8]
    fraction: npt.NDArray[np.uint64]


class ContextIndex:
    """The contexts of every epoch.

    n: int64 [R], measurements of each row; small: bool [R], which rows are small; facts: of the small ones, in order.
    """

    def __init__(self, n: I64, small: npt.NDArray[np.bool_], facts: SmallFacts, options: ContextOptions) -> None:
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
        """Count the contexts of an epoch."""
        return self.small_contexts + self.large_contexts

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_small", "_units")}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._remember()

    @property
    def large_contexts(self) -> int:
        """Count the contexts of an epoch that are drawn from large rows."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @cached_property
    def _mode_fractions(self) -> npt.NDArray[np.uint64]:
        """Part of the measurements that loses its timestamp, for each group and each partial epoch of a cycle."""
        keys = draws.context_keys(self.options.seed, -1, np.arange(CYCLE))
        fractions = np.zeros((CYCLE, 3), np.uint64)
        for epoch, x in enumerate(draws.unit(draws.draw(keys, draws.FRACTION)).tolist()):
            for group in range(CYCLE):
                mode, turn = _PHASES[(group + epoch) % CYCLE]
                if mode == PARTIAL:  # one of each third of 10..90 %, so that epochs are of like length
                    fractions[group, turn] = int((0.1 + 0.8 * (turn + (x + turn / 3) % 1) / 3) * (1 << 32))
        return fractions

    def _pack(self, facts: SmallFacts) -> list[dict[tuple[int, int], Packed]]:
        group_of_row = _even_groups(facts.tokens, self.options.seed)
        order = permutation(derive_key(self.options.seed, "contexts.neighbours"), len(self.small_rows))
        groups = []
        for group in range(CYCLE):
            mine = order[group_of_row[order] == group]
            packed = {}
            for mode, turn in sorted(set(_PHASES)):
                fraction = self._mode_fractions[group, turn]
                packed[mode, turn] = pack_group(
                    facts.take(mine), mode, fraction, self.options.room, self.options.max_segments
                ).of_rows(self.small_rows[mine])
            groups.append(packed)
        return groups

    def _of_epoch(self, epoch: int) -> list[Packed]:
        return [self._groups[group][_PHASES[(group + epoch) % CYCLE]] for group in range(CYCLE)]

    def _cut(self, epoch: int) -> SmallContexts:
        """Cut the contexts of the small rows in one epoch of a cycle; exactly as many as in every other."""
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
        empty = self.small_contexts - len(sizes)  # rows so few that there is nothing left to cut
        offsets = np.concatenate([[0], np.cumsum(np.pad(sizes, (0, empty)))])
        pieces = [each.pieces(each.bins.sequences) for each in packed]
        row, start, count = (np.concatenate(part) for part in zip(*pieces, strict=True))
        return SmallContexts(offsets, row, start, count, np.pad(mode, (0, empty)), np.pad(fraction, (0, empty)))

    def small_contexts_of(self, epoch: int) -> SmallContexts:
        """Give the contexts of the small rows in this epoch: ids 0..S-1."""
        return self._small(epoch % CYCLE)

    def at(self, positions: I64, sampling: Sampling = IN_NUMPY) -> tuple[I64, I64]:
        """Give (epoch, context id) of positions 0, 1, 2, … of an endless run, in the order of `shuffle`; int64."""
        epochs, inside = np.divmod(positions, len(self))
        if self.options.shuffle == "none":
            return epochs, inside
        ids = np.empty_like(inside)
        for epoch in _distinct(epochs):
            mine = epochs == epoch
            ids[mine] = self._shuffled(epoch, inside[mine], sampling)
        return epochs, ids

    def _shuffled(self, epoch: int, places: I64, sampling: Sampling) -> I64:
        if self.options.shuffle == "contexts":
            key = np.array([draws.epoch_key(self.options.seed, "contexts.order", epoch)[0]], np.uint64)
            return sampling.permuted(key, np.array([len(self)]), places)
        ends, firsts = self._units(epoch)
        unit = np.searchsorted(ends, places, side="right")
        shuffled: I64 = firsts[unit] + places
        return shuffled

    def _shuffled_units(self, epoch: int) -> tuple[I64, I64]:
        """Shuffle units (a large row, a context of small rows): where each ends, its first id less where it begins."""
        sizes = np.concatenate([np.ones(self.small_contexts, np.int64), np.diff(self.ends, prepend=0)])
        begins = np.cumsum(sizes) - sizes
        order = permutation(derive_key(self.options.seed, "contexts.rows", epoch), len(sizes))
        ends = np.cumsum(sizes[order])
        return ends, begins[order] - ends + sizes[order]

    def row_and_turn(self, ids: I64) -> tuple[I64, I64]:
        """Give (row, k) of contexts of large rows: the k-th of the row's K; ids int64, S <= id < N."""
        place = ids - self.small_contexts
        which = np.searchsorted(self.ends, place, side="right")
        begins = np.where(which > 0, self.ends[which - 1], 0)
        return self.large_rows[which], place - begins

    def segments(self, epochs: I64, ids: I64, sampling: Sampling = IN_NUMPY) -> Segments:
        """Give the segments of these contexts, in order; context c of the answer is the c-th asked for."""
        keys = np.empty(len(ids), np.uint64)
        parts = []
        for epoch in _distinct(epochs) or [0]:
            mine = np.flatnonzero(epochs == epoch)
            keys[mine] = draws.context_keys(self.options.seed, epoch, ids[mine])
            is_small = ids[mine] < self.small_contexts
            if is_small.any():
                parts.append(self._small_segments(epoch, mine[is_small], ids, keys))
            if not is_small.all() or not len(mine):
                parts.append(self._large_segments(mine[~is_small], ids, keys, sampling))
        if len(parts) == 1:  # in order already
            return Segments(*parts[0])
        columns = [np.concatenate(part) for part in zip(*parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return Segments(*(column[order] for column in columns))

    def _small_segments(self, epoch: int, mine: I64, ids: I64, keys: U64) -> tuple[Any, ...]:
        small = self.small_contexts_of(epoch)
        sizes = small.offsets[ids[mine] + 1] - small.offsets[ids[mine]]
        number = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        context, piece = np.repeat(mine, sizes), np.repeat(small.offsets[ids[mine]], sizes) + number
        of_context = ids[context]
        return (
            context, small.row[piece], small.start[piece], small.count[piece], np.zeros(len(piece), bool),
            small.mode[of_context], small.fraction[of_context], draws.segment_keys(keys[context], number),
        )  # fmt: skip

    def _large_segments(self, mine: I64, ids: I64, keys: U64, sampling: Sampling) -> tuple[Any, ...]:
        row, _ = self.row_and_turn(ids[mine])
        mode, fraction, own = sampling.dealt(keys[mine])
        return mine, row, np.zeros_like(mine), self.n[row], np.ones(len(mine), bool), mode, fraction, own


def _even_groups(tokens: I64, seed: int) -> I64:
    """Deal rows to groups at random, so that each group gets as many rows of like length."""
    if not len(tokens):
        return np.empty(0, np.int64)
    by_length = np.argsort(tokens, kind="stable")
    rank = permutation(derive_key(seed, "contexts.groups"), len(tokens))
    dealt = np.lexsort((rank, np.arange(len(tokens)) // CYCLE))  # places in by_length, ten by ten at random
    groups = np.empty(len(tokens), np.int64)
    groups[by_length[dealt]] = np.arange(len(tokens)) % CYCLE
    return groups


def _distinct(values: I64) -> list[int]:
    """Return each value once, rising; mostly there is one."""
    if len(values) and (values == values[0]).all():
        return [int(values[0])]
    distinct: list[int] = np.unique(values).tolist()
    return distinct
