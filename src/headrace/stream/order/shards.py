"""Which rank gets which whole shards. Pure.

"round_robin" deals the epoch's shards out in turns, shards[rank::world_size]; "by_size" packs them, the largest first,
each to whoever has the fewest bytes; "local" does so among the ranks of the nodes that have a shard, then with all
others. Ties go to the smaller number, so that every rank finds the same. Cost is O(blocks + shards log ranks).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.dataset.index import SplitIndex
from headrace.digest import derive_key, hash_texts
from headrace.errors import SettingsError


def deal_shards(index: SplitIndex, *, ranks: int, seed: int, epoch: int, shuffle: bool) -> I64:
    """The rank of each shard, int64 [shards]: in turns, over shuffled shards, or over shards by name."""
    order = np.arange(len(index.shards), dtype=np.int64)
    if shuffle:
        order = np.lexsort(hash_texts(derive_key(seed, "shards", epoch), pa.array(index.shards, pa.large_string())))
    turn = np.arange(len(order), dtype=np.int64)
    rank = np.empty(len(order), np.int64)
    rank[order] = turn % ranks
    return rank


def pack_shards(shard_bytes: I64, *, ranks: int, allowed: Sequence[Sequence[int] | None] | None = None) -> I64:
    """The rank of each shard, int64 [shards]: the largest first, each to the one with the fewest bytes.

    allowed: ranks that may have a shard; None: all, which are served when every other shard has its place.
    """
    by_size = np.lexsort((np.arange(len(shard_bytes)), -shard_bytes)).tolist()
    load = [0] * ranks
    found = np.zeros(len(shard_bytes), np.int64)
    free = []
    for shard in by_size:
        here = None if allowed is None else allowed[shard]
        if here is None:
            free.append(shard)
            continue
        chosen = min(here, key=lambda rank: (load[rank], rank))
        load[chosen] += int(shard_bytes[shard])
        found[shard] = chosen
    heap = [(bytes_, rank) for rank, bytes_ in enumerate(load)]
    heapq.heapify(heap)
    for shard in free:
        bytes_, chosen = heap[0]
        found[shard] = chosen
        heapq.heapreplace(heap, (bytes_ + int(shard_bytes[shard]), chosen))
    return found


def local_ranks(
    index: SplitIndex,
    locality: Mapping[str, int | Sequence[int]],
    *,
    ranks: int,
    ranks_per_node: int,
) -> list[Sequence[int] | None]:
    """The ranks on the nodes that have each shard; None for a shard that no node of this job has.

    Raises `SettingsError` for shards that the split does not have.
    """
    unknown = sorted(set(locality) - set(index.shards))
    if unknown:
        raise SettingsError(
            f"locality names {unknown[0]!r}, which split {index.split} does not have; give paths as the index has them,"
            f" e.g. {index.shards[0] if index.shards else 'none, it is empty'!r}"
        )
    on_node: dict[int, list[int]] = {}
    for rank in range(ranks):
        on_node.setdefault(rank // ranks_per_node, []).append(rank)
    found: list[Sequence[int] | None] = []
    for shard in index.shards:
        nodes = locality.get(shard, ())
        here = {each for node in ([nodes] if isinstance(nodes, int) else nodes) for each in on_node.get(node, ())}
        found.append(sorted(here) or None)
    return found
