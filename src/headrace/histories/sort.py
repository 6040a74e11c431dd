"""Order inside a partition, by content alone: entity, microsecond, peer, code. Pure.

Entities are ordered by keyed hash, peers by family and bytes, and measurements that agree in all four are the same
bytes; so the order does not depend on how the source was sharded. One argsort of packed words does most of it, ties
in time are put right afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.arrays import I64, U8, U16, U32, U64, Ints
from headrace.histories.codec.addresses import Addresses, of_words
from headrace.histories.keyed import EntityHashes, mix_words
from headrace.histories.piece import Records


@dataclass(frozen=True)
class Entities:
    """The distinct entities of a partition, in hash order: [E]."""

    addresses: Addresses
    hashes: EntityHashes


def distinct_entities(
    records: Records, hashed: Callable[[Addresses], EntityHashes], *, compiled: bool = False
) -> tuple[Entities, U32]:
    """The entities of entity records, each once, in hash order; and of each record its place among them: uint32 [N].

    hashed: gives the hashes of entities; two with one hash are ordered by what they are. compiled: told apart by numba,
    the same entities and places.
    """
    place: Ints
    if compiled:
        from headrace.histories.codec.order_kernels import entities_of_records

        place, words = entities_of_records(records.view(np.uint64).reshape(-1, records.dtype.itemsize // 8))
        found = of_words(words[:, 2].astype(np.uint8), words[:, :2])
    else:
        columns = (np.ascontiguousarray(records[name]) for name in ("family", "word0", "word1"))
        found, place = distinct_peers(*columns)
    hashes = hashed(found)
    order = np.argsort(hashes.order)
    if not _differs(hashes.order[order]).all():
        words = found.words()
        order = np.lexsort((words[:, 1], words[:, 0], found.family, hashes.order))
    rank = np.empty(len(order), np.uint32)
    rank[order] = np.arange(len(order), dtype=np.uint32)
    return Entities(found.take(order), EntityHashes(hashes.order[order], hashes.side[order])), rank[place]


def distinct_peers(family: U8, word0: U64, word1: U64) -> tuple[Addresses, I64]:
    """Peers each once, ascending by family and bytes; and of each given one its place among them: int64 [N]."""
    n = len(family)
    if not n:
        return of_words(family, np.zeros((0, 2), np.uint64)), np.zeros(0, np.int64)
    coded = pa.array(mix_words(family, word0, word1)).dictionary_encode()
    place = coded.indices.to_numpy()
    first = np.empty(len(coded.dictionary), np.int64)
    first[place[::-1]] = np.arange(n - 1, -1, -1)
    leader = first[place]
    if (word0 != word0[leader]).any() or (word1 != word1[leader]).any() or (family != family[leader]).any():
        # Two peers with one mix: tell them apart by what they are.
        order = np.lexsort((word1, word0, family))
        new = _differs(family[order]) | _differs(word0[order]) | _differs(word1[order])
        first = order[new]
        place = np.empty(n, np.int64)
        place[order] = np.cumsum(new) - 1
    order = by_bytes(family[first], word0[first], word1[first])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    first = first[order]
    return of_words(family[first], np.column_stack([word0[first], word1[first]])), rank[place]


def by_bytes(family: U8, word0: U64, word1: U64) -> I64:
    """The order of addresses by family, word0 and word1; most differ in the first two."""
    order = np.argsort(word0)
    order = order[np.argsort(family[order], kind="stable")]
    same = ~_differs(word0[order]) & ~_differs(family[order])
    if same.any():
        tied = same.copy()
        tied[:-1] |= same[1:]
        at = np.flatnonzero(tied)
        rows = order[at]
        order[at] = rows[np.lexsort((word1[rows], word0[rows], family[rows]))]
    return order


def measurement_order(entity: U32, micros: I64, peer: U32 | I64 | None, codes: U16) -> I64:
    """The places of measurements in order of entity, time, peer and code: int64 [N]."""
    if len(micros) == 0:
        return np.zeros(0, np.int64)
    begin = int(micros.min())
    time_bits = (int(micros.max()) - begin).bit_length()
    ties: tuple[npt.NDArray[np.integer], ...] = (codes,) if peer is None else (codes, peer)
    if int(entity.max()).bit_length() + time_bits > 63:
        return np.lexsort([*ties, micros, entity])
    key = entity.astype(np.int64) << time_bits
    key |= micros - begin
    order = np.argsort(key)
    key = key[order]
    same = key[1:] == key[:-1]
    if not same.any():
        return order
    tied = np.zeros(len(key), np.bool_)
    tied[1:] |= same
    tied[:-1] |= same
    at = np.flatnonzero(tied)
    rows = order[at]
    order[at] = rows[np.lexsort((*(each[rows] for each in ties), key[at]))]
    return order


def _differs(values: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Where a value is not the one before: bool [N], true at the first."""
    new = np.ones(len(values), np.bool_)
    new[1:] = values[1:] != values[:-1]
    return new
