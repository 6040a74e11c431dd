"""Choose which entities train: exactly floor(entities × ratio), by a keyed hash of the entity's text. Pure.

An entity is identified by 128 bits of SipHash-2-4, keyed by the seed. So each entity takes 16 bytes of memory whatever
its text, and the chance that any two of 10^9 entities share a hash is below 10^-20. Entities seen before the cutoff are
ordered by hash, and the first floor(n × ratio) train. The result does not depend on shards, file order, workers or hash
seeds. Entities that share content can be drawn as one unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import floor

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, U64, Bools, borders_of
from headrace.digest import derive_key
from headrace.keyed_hash import hash_texts
from headrace.split.sorting import in_order

TRAIN, VAL, UNSEEN = 0, 1, 2
BYTES_PER_ENTITY = 16
_MERGED_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Hashes:
    """128-bit hashes as two halves, uint64 [N] each."""

    high: U64
    low: U64

    def __len__(self) -> int:
        return len(self.high)

    def take(self, which: Bools | I64) -> Hashes:
        """Return some of the hashes, by mask or index."""
        return Hashes(self.high[which], self.low[which])

    @cached_property
    def _buckets(self) -> tuple[I64, np.uint64]:
        """Return the first index of each bucket, and the shift from a hash to its bucket; about one bucket per hash."""
        bits = max(1, len(self).bit_length() - 1)
        shift = np.uint64(64 - bits)
        counts = np.bincount((self.high >> shift).view(np.int64), minlength=1 << bits)
        return np.cumsum(counts) - counts, shift

    def places(self, hashes: Hashes) -> I64:
        """Return the index of each of `hashes` among these, which must be ascending; -1 for absent ones."""
        found = np.full(len(hashes), -1, np.int64)
        if not len(self):
            return found
        begins, shift = self._buckets
        high, low, last = hashes.high, hashes.low, len(self) - 1
        left, at = np.arange(len(hashes)), begins.take((high >> shift).view(np.int64))
        while len(left):  # once per hash of the fullest bucket, with the unresolved rest
            here = self.high.take(at, mode="clip")
            same = np.flatnonzero((here == high) & (at <= last))
            same = same[self.low[at[same]] == low[same]]
            found[left[same]] = at[same]
            on = (here <= high) & (at < last)
            on[same] = False
            rest = np.flatnonzero(on)
            left, at, high, low = left[rest], at[rest] + 1, high[rest], low[rest]
        return found


def hash_entities(texts: pa.Array, seed: int) -> Hashes:
    """Hash entity texts [N], no nulls."""
    return Hashes(*hash_texts(derive_key(seed, "temporal_split.entity"), texts))


def hash_nobody(seed: int) -> Hashes:
    """Return the hash that all rows without entity share; its own key keeps it apart from the hash of any text."""
    return Hashes(*hash_texts(derive_key(seed, "temporal_split.nobody"), pa.array([""])))


@dataclass
class EntitySet:
    """Distinct entities, gathered shard by shard in O(entities) memory."""

    _pending: list[Hashes] = field(default_factory=list)
    _waiting: int = 0
    _distinct: Hashes = field(default_factory=lambda: Hashes(np.empty(0, np.uint64), np.empty(0, np.uint64)))

    def add(self, hashes: Hashes) -> None:
        """Add entities; repeats are fine."""
        self._pending.append(hashes)
        self._waiting += len(hashes)
        if self._waiting > max(_MERGED_AT_ONCE, len(self._distinct)):
            self._merge()

    def ordered(self) -> Hashes:
        """Return the distinct entities, ascending by hash."""
        self._merge()
        return self._distinct

    def _merge(self) -> None:
        high = np.concatenate([self._distinct.high, *(each.high for each in self._pending)])
        low = np.concatenate([self._distinct.low, *(each.low for each in self._pending)])
        order, high = in_order(high)
        low = low[order]
        same_high = high[1:] == high[:-1]
        if (same_high & (low[1:] != low[:-1])).any():  # two entities share 64 bits: order by all 128
            order = np.lexsort((low, high))
            high, low = high[order], low[order]
        new = np.ones(len(high), np.bool_)
        new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        self._distinct = Hashes(high[new], low[new])
        self._pending, self._waiting = [], 0


@dataclass(frozen=True)
class Allocation:
    """The sides of entities. known: ascending by hash; sides: TRAIN or VAL of each, uint8 [N].

    units: number of units that are drawn, one per entity unless entities are drawn together. largest_unit: entities in
    the largest.
    """

    known: Hashes
    sides: npt.NDArray[np.uint8]
    units: int
    largest_unit: int = 1

    @property
    def train(self) -> int:
        """The number of entities that train."""
        return int(np.count_nonzero(self.sides == TRAIN))

    @property
    def val(self) -> int:
        """The number of entities that validate."""
        return len(self.known) - self.train

    def side_of(self, hashes: Hashes) -> npt.NDArray[np.uint8]:
        """Return TRAIN, VAL or UNSEEN for each entity: uint8 [N]."""
        return np.append(self.sides, np.uint8(UNSEEN))[self.known.places(hashes)]  # -1 indexes the last element


def allocate(known: Hashes, train_ratio: float, unit: I64 | None = None) -> Allocation:
    """Assign the first floor(n × ratio) of the ordered entities to train; the ratio is the decimal that it prints as.

    unit: the least index of each entity's unit [N], if entities that share content are drawn together. Units are
    ordered by the least hash in each. Whole units then train in this order, up to the unit border nearest to floor(n ×
    ratio), so the count is off by at most half of the unit at that point. Each side gets a unit if there are at least
    two.
    """
    wanted = floor(Fraction(repr(train_ratio)) * len(known))
    if unit is None:
        return Allocation(known, (np.arange(len(known)) >= wanted).astype(np.uint8), len(known))
    _, number, sizes = np.unique(unit, return_inverse=True, return_counts=True)
    borders = borders_of(sizes)
    nearest = int(np.argmin(np.abs(borders - wanted)))
    if wanted > 0 and len(sizes) > 1:
        nearest = min(max(nearest, 1), len(sizes) - 1)
    return Allocation(known, (number >= nearest).astype(np.uint8), len(sizes), int(sizes.max(initial=1)))
