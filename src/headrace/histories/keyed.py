"""Keyed hashes of histories: of entities, of sampled rows, and of the multiset of all measurements. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U64, Bools
from headrace.digest import derive_key, hash_words
from headrace.histories.codec.addresses import KINDS, Addresses, Kind

_ODD = np.uint64(0x9E3779B97F4A7C15)
_AT_ONCE = 1 << 15  # measurements that are hashed at a time, so that they stay in the processor's memory


@dataclass(frozen=True)
class EntityHashes:
    """order uint64 [N]: entities are partitioned and sorted by it; side uint64 [N]: decides train or test."""

    order: U64
    side: U64

    def train(self, ratio: float) -> Bools:
        """Tell which of them train: those whose `side` is below this share of 2**64."""
        limit = int(ratio * 2.0**64)
        if limit >= 1 << 64:
            return np.ones(len(self.side), np.bool_)
        return np.less(self.side, np.uint64(limit))


def hash_entities(
    entities: Addresses, kind: Kind, seed: int, *, compiled: bool = False, half: Literal["both", "high"] = "both"
) -> EntityHashes:
    """Hash every entity twice: [N]. compiled: by numba, the same hashes in a tenth of the time; with half="high"
    the order alone is, in three quarters of that."""
    key = derive_key(seed, "histories.entity")
    if compiled:
        from headrace.histories.codec.kernels import hash_addresses

        return EntityHashes(*hash_addresses(key, entities.family, entities.bytes, KINDS.index(kind), half=half))
    words = np.empty((len(entities), 3), np.uint64)
    words[:, 0] = entities.family.astype(np.uint64) | np.uint64(KINDS.index(kind) << 8)
    words[:, 1:] = entities.words()
    return EntityHashes(*hash_words(key, words))


def sampled(shard: str, first_row: int, rows: int, rate: float, seed: int) -> Bools:
    """Tell which rows first_row..first_row + rows - 1 of a shard are in the sample: bool [rows]."""
    name = int.from_bytes(blake2b(shard.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")
    words = np.empty((rows, 2), np.uint64)
    words[:, 0], words[:, 1] = name, np.arange(first_row, first_row + rows, dtype=np.uint64)
    high, _ = hash_words(derive_key(seed, "histories.sample"), words)
    limit = int(rate * 2.0**64)
    return np.ones(rows, np.bool_) if limit >= 1 << 64 else np.less(high, np.uint64(limit))


def mixed_peers(peers: Addresses) -> U64:
    """Mix every peer to 64 bits, for `multiset_sum`."""
    word0, word1 = peers.words().T
    return _mix(_mix(word0 + peers.family) ^ word1)


def multiset_sum(entity: U64, seconds: I64, peer: U64 | None, codes: npt.NDArray[np.uint16]) -> int:
    """Sum one hash a measurement modulo 2**64: the same for the same measurements in any order.

    entity: order hash of each measurement's entity; peer: from `mixed_peers`. It finds lost, doubled and changed
    measurements; the hash is keyed by the entity's, and no proof against somebody who means harm. About 15 ns each.
    """
    total = 0
    for first in range(0, len(codes), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        value = entity[part] + _mix(seconds[part].astype(np.uint64) << np.uint64(16) | codes[part])
        if peer is not None:
            value ^= peer[part]
        total += int(_mix(value + _ODD).sum(dtype=np.uint64))  # all zeros must not count for nothing
    return total % (1 << 64)


def _mix(x: U64) -> U64:
    """Mix a word: the finaliser of splitmix64 (Steele, Lea and Flood, 2014), each input bit moves each output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x
