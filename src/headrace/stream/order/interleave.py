"""Interleave several sequences in fixed proportions at every point: position → (source, index
inside it). Pure.

Rounds of U positions go to one source each, so that a consumer keeps its residues modulo U. A
binary tree of two-way splits decides which round goes where: of n rounds, a for the left side,
round i goes left where floor(i*a/n + 1/2) steps. That is exact integer arithmetic with closed forms
in both directions, and no source deviates by more than half a round per level. Of n_d rows, n_d //
U rounds are interleaved; the n_d mod U rows left of each source come at the end, source by source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from headrace.arrays import I64, offsets_from_lengths
from headrace.errors import SettingsError, setting
from headrace.stream.order.remaining import split_at

_MOST_ROUNDS = 1 << 30  # 2 * rounds * rounds is a 64-bit number


def quotas(rows: int, weights: Sequence[Fraction]) -> list[int]:
    """Divide `rows` among sources in proportion to positive weights, by largest remainder; ties go
    to the first.
    """
    total = sum(weights, Fraction(0))
    shares = [rows * weight / total for weight in weights]
    counts = [int(quota) for quota in shares]
    by_remainder = sorted(
        range(len(shares)), key=lambda source: (counts[source] - shares[source], source)
    )
    for source in by_remainder[: rows - sum(counts)]:
        counts[source] += 1
    return counts


def most_drift_rounds(sources: int) -> int:
    """Return a bound, in rounds, on how far a source may deviate from its share of the positions so
    far.

    Half a round per level of the tree, plus the tails: together at most a round of each source.
    """
    return sources + -(-(sources - 1).bit_length() // 2)


@dataclass(frozen=True, kw_only=True)
class Interleave:
    """An interleaving.

    counts: rows of each source. round_rows: U. Raises `SettingsError` at 2^30 rounds.
    """

    counts: tuple[int, ...]
    round_rows: int

    def __post_init__(self) -> None:
        if self.rounds >= _MOST_ROUNDS:
            raise SettingsError(
                f"an epoch of {sum(self.counts)} rows has {self.rounds} rounds of"
                f" {self.round_rows} lanes, and at most {_MOST_ROUNDS} can be interleaved",
                setting="lanes",
                remedy=f"set {setting('lanes')} higher or {setting('samples_per_epoch')} lower",
            )

    def split(self, positions: I64) -> tuple[I64, I64]:
        """Return (source, index inside the source) of each position; int64, same length."""
        rounds, inside = np.divmod(positions, self.round_rows)
        in_tail = rounds >= self.rounds
        source = np.zeros_like(positions)
        turn = rounds.copy()
        self._descend(np.flatnonzero(~in_tail), 0, len(self.counts), source, turn)
        index = turn * self.round_rows + inside
        if in_tail.any():
            tail, offset = split_at(self._tails_before, positions[in_tail])
            source[in_tail] = tail
            index[in_tail] = self._turns[tail] * self.round_rows + offset
        return source, index

    def join(self, source: int, indexes: I64) -> I64:
        """Return the position of each index inside one source, the inverse of `split`; int64, same
        length.
        """
        turns, inside = np.divmod(indexes, self.round_rows)
        in_tail = turns >= self._turns[source]
        tail = self._tails_before[source] + indexes - self._turns[source] * self.round_rows
        path = []  # from the root of the tree to the source
        first = 0
        stop = len(self.counts)
        while stop - first > 1:
            middle, left, both = self._node(first, stop)
            goes_left = source < middle
            path.append((goes_left, left, both))
            if goes_left:
                first, stop = (first, middle)
            else:
                first, stop = (middle, stop)
        rounds = np.where(in_tail, 0, turns)
        for goes_left, left, both in reversed(path):
            if goes_left:
                rounds = -(-(2 * both * (rounds + 1) - both) // max(1, 2 * left)) - 1
            else:
                rounds = (2 * both * rounds + both) // max(1, 2 * (both - left))
        return np.where(in_tail, tail, rounds * self.round_rows + inside)

    @property
    def rounds(self) -> int:
        """The number of whole rounds; the tails follow them."""
        return self._rounds_before[-1]

    def turns_before(self, rounds: I64) -> list[I64]:
        """Count the turns of each source in the first `rounds` whole rounds: per source int64, same
        length.
        """
        counts: list[I64] = []
        self._count(rounds, 0, len(self.counts), counts)
        return counts

    @cached_property
    def _turns(self) -> I64:
        return np.array(self.counts, np.int64) // self.round_rows

    @cached_property
    def _rounds_before(self) -> list[int]:
        """Rounds of the sources before each one; a node of the tree is a range of sources."""
        return [int(border) for border in offsets_from_lengths(self._turns)]

    @cached_property
    def _tails_before(self) -> I64:
        """The position at which each source's tail begins, then the end."""
        return self.rounds * self.round_rows + offsets_from_lengths(
            np.array(self.counts, np.int64) % self.round_rows
        )

    def _node(self, first: int, stop: int) -> tuple[int, int, int]:
        """Return (first source of the right side, rounds of the left side, rounds of both)."""
        middle = (first + stop) // 2
        before = self._rounds_before
        return middle, before[middle] - before[first], before[stop] - before[first]

    def _descend(self, members: I64, first: int, stop: int, source: I64, turn: I64) -> None:
        if not len(members):
            return
        if stop - first == 1:
            source[members] = first
            return
        middle, left, both = self._node(first, stop)
        rounds = turn[members]
        from_left = _left_before(rounds, left, both)
        goes_left = _left_before(rounds + 1, left, both) > from_left
        turn[members] = np.where(goes_left, from_left, rounds - from_left)
        self._descend(members[goes_left], first, middle, source, turn)
        self._descend(members[~goes_left], middle, stop, source, turn)

    def _count(self, rounds: I64, first: int, stop: int, counts: list[I64]) -> None:
        if stop - first == 1:
            counts.append(rounds)
            return
        middle, left, both = self._node(first, stop)
        from_left = _left_before(rounds, left, both)
        self._count(from_left, first, middle, counts)
        self._count(rounds - from_left, middle, stop, counts)


def _left_before(rounds: I64, left: int, both: int) -> I64:
    """Count how many of the first `rounds` rounds go left."""
    return (2 * rounds * left + both) // max(1, 2 * both)
