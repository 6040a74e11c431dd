"""Choose which entities train: exactly floor(entities × ratio), by a keyed hash of the entity's text. Pure.

An entity is known by 128 bits of SipHash-2-4 under a key of the seed, so memory is 16 bytes an entity whatever its
text, and the chance that any two of 10^9 entities share a hash is below 10^-20. Entities seen before the cutoff are
ordered by hash; the first floor(n × ratio) train. Shards, file order, workers and hash seeds have no part in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import U64
from headrace.digest import derive_key, hash_texts

TRAIN, VAL, UNSEEN = 0, 1, 2
BYTES_PER_ENTITY = 16


@dataclass(frozen=True)
class Hashes:
    """128-bit hashes as two halves, uint64 [N] each."""

    high: U64
    low: U64

    def __len__(self) -> int:
        return len(self.high)


def hash_entities(texts: pa.Array, seed: int) -> Hashes:
    """Hash entity texts [N], no nulls."""
    return Hashes(*hash_texts(derive_key(seed, "temporal_split.entity"), texts))


def hash_nobody(seed: int) -> Hashes:
    """Return the hash of the one entity that rows without entity share; no text has it, as its key is another."""
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
        if self._waiting > max(1 << 16, len(self._distinct)):
            self._merge()

    def ordered(self) -> Hashes:
        """The distinct entities, ascending by hash."""
        self._merge()
        return self._distinct

    def _merge(self) -> None:
        high = np.concatenate([self._distinct.high, *(each.high for each in self._pending)])
        low = np.concatenate([self._distinct.low, *(each.low for each in self._pending)])
        order = np.argsort(high, kind="stable")
        high, low = high[order], low[order]
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
    """The sides of entities. `known` is ascending; its first `train` entities train, the others validate."""

    known: Hashes
    train: int

    @property
    def val(self) -> int:
        """Entities that validate."""
        return len(self.known) - self.train

    def side_of(self, hashes: Hashes) -> npt.NDArray[np.uint8]:
        """Return TRAIN, VAL or UNSEEN for each entity: uint8 [N]."""
        at = np.searchsorted(self.known.high, hashes.high)
        side = np.full(len(hashes), UNSEEN, np.uint8)
        left = np.arange(len(hashes))
        while len(left):  # once, and again only where entities share their first 64 bits
            place = np.minimum(at[left], max(len(self.known) - 1, 0))
            inside = at[left] < len(self.known)
            if not inside.any():
                break
            same_high = inside & (self.known.high[place] == hashes.high[left])
            hit = same_high & (self.known.low[place] == hashes.low[left])
            side[left[hit]] = np.where(place[hit] < self.train, TRAIN, VAL)
            left = left[same_high & ~hit]
            at[left] += 1
        return side


def allocate(known: Hashes, train_ratio: float) -> Allocation:
    """Let the first floor(n × ratio) of the ordered entities train; the ratio is the decimal it is written as."""
    return Allocation(known, floor(Fraction(repr(train_ratio)) * len(known)))
