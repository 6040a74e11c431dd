"""Choose which entities go to train: exactly floor(entities × ratio), by a keyed hash of the
entity's text. Pure.

An entity is identified by 128 bits of SipHash-2-4, keyed by the seed. So each entity takes 16 bytes
of memory whatever its text, and the chance that any two of 10^9 entities share a hash is below
10^-20. Entities seen before the cutoff are ordered by hash, and the first floor(n × ratio) train.
The result does not depend on shards, file order, workers or hash seeds. Entities that share content
can be drawn as one unit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import floor
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, U64, Bools, offsets_from_lengths
from headrace.digest import derive_key
from headrace.keyed_hash import hash_texts, hash_words

TRAIN = 0
VAL = 1
UNSEEN = 2
BYTES_PER_ENTITY = 16
_MERGED_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Hashes:
    """128-bit hashes as two halves, uint64 [N] each."""

    high: U64
    low: U64

    def __len__(self) -> int:
        return len(self.high)

    def take(self, selected: Bools | I64) -> Hashes:
        """Return some of the hashes, by mask or index."""
        return Hashes(self.high[selected], self.low[selected])

    @cached_property
    def _buckets(self) -> tuple[I64, np.uint64]:
        """Return the first index of each bucket, and the shift from a hash to its bucket; about one
        bucket per hash.
        """
        bits = max(1, len(self).bit_length() - 1)
        shift = np.uint64(64 - bits)
        counts = np.bincount((self.high >> shift).view(np.int64), minlength=1 << bits)
        return np.cumsum(counts) - counts, shift

    def index_of(self, hashes: Hashes) -> I64:
        """Return the index of each of `hashes` among these, which must be ascending; -1 for absent
        ones.
        """
        indices = np.full(len(hashes), -1, np.int64)
        if not len(self):
            return indices
        starts, shift = self._buckets
        high = hashes.high
        low = hashes.low
        last = len(self) - 1
        unresolved = np.arange(len(hashes))
        candidate = starts.take((high >> shift).view(np.int64))
        while len(unresolved):  # once per hash of the fullest bucket, with the hashes that are left
            candidate_high = self.high.take(candidate, mode="clip")
            equal = np.flatnonzero((candidate_high == high) & (candidate <= last))
            equal = equal[self.low[candidate[equal]] == low[equal]]
            indices[unresolved[equal]] = candidate[equal]
            may_follow = (candidate_high <= high) & (candidate < last)
            may_follow[equal] = False
            following = np.flatnonzero(may_follow)
            unresolved = unresolved[following]
            high = high[following]
            low = low[following]
            candidate = candidate[following] + 1
        return indices


def hash_entities(texts: pa.Array, seed: int) -> Hashes:
    """Hash entity texts [N], no nulls."""
    return Hashes(*hash_texts(derive_key(seed, "temporal_split.entity"), texts))


def hash_rows(digests: U64, seed: int) -> Hashes:
    """Hash the digests of rows [N] that are drawn by their own values."""
    return Hashes(*hash_words(derive_key(seed, "random_split.row"), digests[:, None]))


def hash_null_entity(seed: int) -> Hashes:
    """Return the hash that all rows without entity share; a separate key keeps it from equalling
    that of a text.
    """
    return Hashes(*hash_texts(derive_key(seed, "temporal_split.nobody"), pa.array([""])))


@dataclass
class EntitySet:
    """Distinct entities, gathered shard by shard in O(entities) memory."""

    _pending: list[Hashes] = field(default_factory=list)
    _waiting: int = 0
    _distinct: Hashes = field(
        default_factory=lambda: Hashes(np.empty(0, np.uint64), np.empty(0, np.uint64))
    )

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
        high = np.concatenate([self._distinct.high, *(hashes.high for hashes in self._pending)])
        low = np.concatenate([self._distinct.low, *(hashes.low for hashes in self._pending)])
        order, high = in_order(high)
        low = low[order]
        same_high = high[1:] == high[:-1]
        # two entities share 64 bits: order by all 128
        if (same_high & (low[1:] != low[:-1])).any():
            order = np.lexsort((low, high))
            high = high[order]
            low = low[order]
        new = np.ones(len(high), np.bool_)
        new[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
        self._distinct = Hashes(high[new], low[new])
        self._pending = []
        self._waiting = 0


@dataclass(frozen=True)
class Allocation:
    """The sides of entities. entities: ascending by hash; sides: TRAIN or VAL of each, uint8 [N].

    units: number of units that are drawn, one per entity unless entities are drawn together.
    largest_unit: entities in the largest.
    """

    entities: Hashes
    sides: npt.NDArray[np.uint8]
    units: int
    largest_unit: int = 1

    @property
    def train(self) -> int:
        """The number of entities in train."""
        return int(np.count_nonzero(self.sides == TRAIN))

    @property
    def val(self) -> int:
        """The number of entities in val."""
        return int(np.count_nonzero(self.sides == VAL))

    def side_of(self, hashes: Hashes) -> npt.NDArray[np.uint8]:
        """Return TRAIN, VAL or UNSEEN for each entity: uint8 [N]."""
        sides = np.append(self.sides, np.uint8(UNSEEN))  # -1 indexes the last element
        return sides[self.entities.index_of(hashes)]


def allocate(entities: Hashes, train_ratio: float, units: I64 | None = None) -> Allocation:
    """Assign the first floor(n × ratio) of the ordered entities to train; the ratio is the decimal
    that it prints as.

    units: the least index of each entity's unit [N], if entities that share content are drawn
    together. Units are ordered by the least hash in each. Complete units then train in this order,
    up to the unit border nearest to floor(n × ratio), so the count is off by at most half of the
    unit at that point. Each side gets a unit if there are at least two.
    """
    train = floor(Fraction(repr(train_ratio)) * len(entities))
    if units is None:
        sides = (np.arange(len(entities)) >= train).astype(np.uint8)
        return Allocation(entities, sides, len(entities))
    _, unit, sizes = np.unique(units, return_inverse=True, return_counts=True)
    train_units = int(np.argmin(np.abs(offsets_from_lengths(sizes) - train)))
    if train > 0 and len(sizes) > 1:
        train_units = min(max(train_units, 1), len(sizes) - 1)
    sides = (unit >= train_units).astype(np.uint8)
    return Allocation(entities, sides, len(sizes), int(sizes.max(initial=1)))


def in_order(keys: U64) -> tuple[I64, U64]:
    """Return the order of 64-bit keys and the keys in it; the order of equal keys is arbitrary.

    Sorting the upper bits of each key with its index below them takes a third of the time of an
    argsort. The few keys that differ only in the lower bits are put in order afterwards.
    """
    if not len(keys):
        return np.empty(0, np.int64), keys
    index_bits = len(keys).bit_length()
    key_bits = int(keys.max()).bit_length()
    cut_bits = np.uint64(max(0, key_bits + index_bits - 64))
    packed: Any
    if key_bits + index_bits <= 32:
        packed = keys.astype(np.uint32)
    else:
        packed = keys >> cut_bits
    packed <<= packed.dtype.type(index_bits)
    packed |= np.arange(len(keys), dtype=packed.dtype)
    packed.sort()
    mask = packed.dtype.type((1 << index_bits) - 1)
    order: I64 = (packed & mask).astype(np.uint64, copy=False).view(np.int64)
    packed >>= packed.dtype.type(index_bits)
    if not cut_bits:
        return order, packed.astype(np.uint64, copy=False)
    ordered = keys[order]
    wrong = np.flatnonzero(ordered[1:] < ordered[:-1])
    if len(wrong):
        # The first index of each run of equal upper bits, except the first run.
        starts = np.flatnonzero(packed[1:] != packed[:-1]) + 1
        runs = np.unique(np.searchsorted(starts, wrong, side="right"))
        first = np.append(0, starts)[runs]
        sizes = np.append(starts, len(keys))[runs] - first
        indices = np.arange(int(sizes.sum())) + np.repeat(first - np.cumsum(sizes) + sizes, sizes)
        rows = order[indices]
        rows = rows[np.argsort(keys[rows])]
        order[indices] = rows
        ordered[indices] = keys[rows]
    return order, ordered
