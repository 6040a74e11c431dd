"""Interleave several sequences in fixed proportions at every point: position → (source, draw).
Pure.

Position i of n has the point a*i mod n, and the sources divide the points 0..n-1 into intervals as
long as their rows. As a and n have no common divisor, each point comes once, so every source has
exactly its rows after n positions. a/n is close to the golden ratio and its partial quotients are
small, so no source deviates by more than a few rows from its share of any prefix (measured: 6),
whatever the number of sources. Draws among any positions b, b + D, b + 2D, … are sums of floors,
which Euclid's algorithm counts in closed form, so nothing depends on a number of ranks or columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np

from headrace.arrays import I64, U64, offsets_from_lengths

MOST_ROWS = 1 << 31  # then all products are 64-bit numbers
# Candidates for a. The more, the smaller the partial quotients of the best.
_CANDIDATES = 4096
_FINALISTS = 32
_TOLERANCE = 2
# Ranks whose own positions should have the proportions too, as far as one number can do that.
_STRIDES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 768)
_MOST_FILLED = 48  # counting that many positions costs as much as the closed form for one


def quotas(rows: int, weights: Sequence[Fraction]) -> list[int]:
    """Divide `rows` among sources in proportion to weights, by largest remainder; ties go to the
    first.
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


@dataclass(frozen=True)
class Interleave:
    """An interleaving of n <= `MOST_ROWS` rows.

    counts: rows of each source.
    """

    counts: tuple[int, ...]

    @property
    def rows(self) -> int:
        """The number of positions, n."""
        return int(self._boundaries[-1])

    def sources(self, positions: I64) -> I64:
        """Return the source of each position; int64, same length."""
        points = self._step * positions % max(1, self.rows)
        return np.searchsorted(self._boundaries[1:], points, side="right").astype(np.int64)

    def draws(self, source: I64, first: I64, stop: I64, columns: int) -> I64:
        """Count the draws of a source among the positions first, first + columns, … below `stop`.

        source, first, stop: int64, parallel; so is what is returned.
        """
        turns = np.maximum(0, -((first - stop) // columns))
        only = self._only_source
        if only is not None:
            return np.where(source == only, turns, 0)
        stride = self._step * columns % self.rows
        shift = self._step * first % self.rows
        low = self._boundaries[source]
        high = self._boundaries[source + 1]
        return self._hits(turns, shift, high, stride) - self._hits(turns, shift, low, stride)

    def find_draws(self, source: int, draws: I64, first: I64, columns: int) -> I64:
        """Return the position of each draw, from 0, of a source among first, first + columns, ….

        draws, first: int64, parallel. The inverse of `draws`; each draw exists.
        """
        sources = np.full(len(draws), source, np.int64)

        def drawn(turns: I64) -> I64:
            return self.draws(sources, first, first + turns * columns, columns)

        turns = -((first - self.rows) // columns)
        return first + columns * (bisect(drawn, draws + 1, np.zeros_like(turns), turns) - 1)

    def number_draws(self, positions: I64, columns: int, origin: int) -> tuple[I64, I64]:
        """Return (source, draw) of positions, where draws are numbered by source and column.

        Position i is in column (origin + i) mod `columns`. A draw counts those before it, of its
        source and in its column, from position 0 on. int64, same length.
        """
        only = self._only_source
        turns, column = np.divmod(positions + origin, columns)
        if only is not None:
            first = (column - origin) % columns
            return np.full_like(positions, only), (positions - first) // columns
        residues, which = np.unique(column, return_inverse=True)
        lowest = int(turns.min())
        filled = (int(turns.max()) - lowest + 1) * len(residues)
        if filled > _MOST_FILLED * len(positions):
            source = self.sources(positions)
            first = (column - origin) % columns
            return source, self.draws(source, first, positions, columns)
        # Fill the columns from the first turn to the last, and count there.
        grid = np.arange(lowest * columns, (int(turns.max()) + 1) * columns, columns)
        source, draw = self._number_grid(grid - origin, residues, columns, origin)
        cells = (turns - lowest) * len(residues) + which
        return source[cells], draw[cells]

    def _number_grid(self, turns: I64, residues: I64, columns: int, origin: int) -> tuple[I64, I64]:
        """Return (source, draw) of the positions turn + residue, turn by turn; see `number_draws`.

        Those outside of 0..n-1 have no source, and the number of sources stands for it.
        """
        sources = len(self.counts)
        width = len(residues)
        grid = (turns[:, None] + residues).ravel()
        source = self.sources(grid)
        source[(grid < 0) | (grid >= self.rows)] = sources
        key = source * width + np.tile(np.arange(width), len(turns))
        keys, draw = self._number(key, (sources + 1) * width)
        keys = keys[keys < sources * width]
        of_source, of_residue = np.divmod(keys, width)
        before = np.zeros((sources + 1) * width, np.int64)
        begin = np.full(len(keys), max(0, int(turns[0])), np.int64)
        first = (residues[of_residue] - origin) % columns
        before[keys] = self.draws(of_source, first, begin, columns)
        return source, draw + before[key]

    @staticmethod
    def _number(key: I64, most: int) -> tuple[I64, I64]:
        """Return the distinct keys, and how many equal ones come before each; int64."""
        small = most <= 1 << 16  # numpy sorts 16-bit numbers by their digits, in one pass
        order = np.argsort(key.astype(np.uint16) if small else key, kind="stable")
        ordered = key[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        number = np.empty_like(key)
        repeats = np.diff(starts, append=len(key))
        number[order] = np.arange(len(key)) - np.repeat(starts, repeats)
        return ordered[starts], number

    def _hits(self, turns: I64, shift: I64, border: I64, stride: int) -> I64:
        """Count t < turns with (stride*t + shift) mod n < border."""
        count = turns.astype(np.uint64)
        begin = shift.astype(np.uint64)
        above = begin + (self.rows - border).astype(np.uint64)
        floors = floor_sum(count, self.rows, stride, np.stack([begin, above]))
        hits: I64 = (floors[0] - floors[1] + count).astype(np.int64)
        return hits

    @cached_property
    def _boundaries(self) -> I64:
        return offsets_from_lengths(self.counts)

    @cached_property
    def _step(self) -> int:
        return golden_step(self.rows)

    @cached_property
    def _only_source(self) -> int | None:
        """The number of the source that has all rows, if one has."""
        if max(self.counts, default=0) == sum(self.counts):
            return int(np.argmax(self.counts))
        return None


def bisect(counted: Callable[[I64], I64], least: I64, low: I64, high: I64) -> I64:
    """Return the smallest numbers in low..high at which an ascending count is at least `least`."""
    while (low < high).any():
        middle = (low + high) // 2
        enough = counted(middle) >= least
        high = np.where(enough, middle, high)
        low = np.where(enough, low, np.minimum(middle + 1, high))
    return low


def floor_sum(count: U64, modulus: int, step: int, shift: U64) -> U64:
    """Sum (step*i + shift) // modulus over i < count, modulo 2^64, by Euclid's algorithm.

    count, shift: uint64 arrays that broadcast.
    """
    total = np.zeros(np.broadcast_shapes(count.shape, shift.shape), np.uint64)
    while True:
        if step >= modulus:
            pairs = (count // 2) * (count - 1 + count % 2)
            total += pairs * np.uint64(step // modulus)
            step %= modulus
        total += count * (shift // modulus)
        shift = shift % modulus
        if step == 0:
            return total
        top = count * np.uint64(step) + shift
        count, shift = np.divmod(top, np.uint64(modulus))
        modulus, step = step, modulus


@lru_cache(maxsize=256)
def golden_step(rows: int) -> int:
    """Return a number without a common divisor with `rows`, close to rows / 1.618, such that the
    partial quotients of their ratio have a small sum; also those of the ratios that ranks see.
    """
    golden = (math.isqrt(5 * rows * rows) - rows) // 2
    nearby = np.arange(golden - _CANDIDATES // 2, golden + _CANDIDATES // 2, dtype=np.int64)
    nearby = nearby[(nearby > 0) & (nearby < max(2, rows))]
    nearby = nearby[np.gcd(nearby, rows) == 1]
    quotients = _sum_of_quotients(nearby, rows)
    best = np.argsort(quotients, kind="stable")[:_FINALISTS]
    best = best[quotients[best] <= quotients[best[0]] + _TOLERANCE]
    worst = np.zeros(len(best), np.int64)
    for stride in _STRIDES:
        worst = np.maximum(worst, _sum_of_quotients(nearby[best] * stride % rows, rows))
    return int(nearby[best[np.argmin(worst)]])


def _sum_of_quotients(steps: I64, rows: int) -> I64:
    """Sum the partial quotients of steps / rows: int64, parallel."""
    modulus = np.full_like(steps, rows)
    total = np.zeros_like(steps)
    while steps.any():
        divisor = np.maximum(steps, 1)
        quotient = np.where(steps > 0, modulus // divisor, 0)
        total += quotient
        remainder = np.where(steps > 0, modulus - quotient * steps, 0)
        modulus = np.where(steps > 0, steps, modulus)
        steps = remainder
    return total
