"""Give each rank whole shards: the global order is one order per rank, end to end. Pure.

Rank r has the positions [base_r, base_r + n_r), its region, and takes them in sequence. Steps are
equal nevertheless: "pad" takes as many as the longest region needs, "drop" as many as the shortest
one fills. After a stop, a range of each region remains. Another number of ranks takes the rest,
laid end to end, in equal parts; every later stop leaves equal parts of these, so the state needs no
extra field.

"round_robin" deals the epoch's shards in turns, shards[rank::world_size]. "by_size" assigns them
largest first, each to the rank with the fewest bytes. "local" does so among the ranks of the nodes
that have a shard, then with all others. Ties go to the smaller number, so every rank computes the
same assignment. Cost is O(blocks + shards log ranks).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, offsets_from_lengths
from headrace.dataset.index import SplitIndex
from headrace.digest import derive_key
from headrace.errors import SettingsError, StreamError
from headrace.keyed_hash import hash_texts
from headrace.stream.order.remaining import (
    RankRows,
    Remainder,
    Remaining,
    check_batches,
    even_parts,
    split_at,
)


@dataclass(frozen=True, kw_only=True)
class ShardPartition:
    """The positions of each rank, for one number of ranks; part of the state.

    distribution: how shards were assigned. rows: n_r of each rank.
    assignment: the rank of each shard, if names, seed and epoch do not determine it.
    """

    distribution: str
    rows: tuple[int, ...]
    assignment: tuple[int, ...] | None = None

    @cached_property
    def bases(self) -> I64:
        """The position at which each region begins, then N: int64 [C+1]."""
        return offsets_from_lengths(self.rows)

    def bounds(self, remaining: Remaining, ranks: int) -> I64:
        """The places in the remaining sequence at which each rank's part begins, then the end:
        int64 [R + 1].
        """
        if ranks != len(self.rows):
            return offsets_from_lengths(even_parts(remaining.total, ranks))
        return remaining.counts_below(self.bases)

    def steps(
        self, remaining: Remaining, *, ranks: int, batch_size: int, remainder: Remainder
    ) -> int:
        """Count the batches that every rank gets."""
        left = np.diff(self.bounds(remaining, ranks))
        return int(
            (left // batch_size).min() if remainder == "drop" else (-(-left // batch_size)).max()
        )

    def shares(
        self, remaining: Remaining, *, ranks: int, batch_size: int, remainder: Remainder
    ) -> list[RankRows]:
        """Return the share of each rank; its rounds count from the start of the region of its first
        row.
        """
        bounds = self.bounds(remaining, ranks)
        steps = self.steps(remaining, ranks=ranks, batch_size=batch_size, remainder=remainder)
        if remaining.total:
            starts = remaining.positions(np.minimum(bounds[:-1], remaining.total - 1))
        else:
            starts = bounds[:-1]
        origins = self.bases[split_at(self.bases, starts)[0]].tolist()
        rows = np.minimum(np.diff(bounds), steps * batch_size).tolist()
        bounded = zip(bounds[:-1].tolist(), rows, origins, strict=True)
        shares = []
        for rank, (begin, count, origin) in enumerate(bounded):
            rank_rows = RankRows(
                begin=begin,
                stride=1,
                batch_size=batch_size,
                steps=steps,
                rows=count,
                items=steps * batch_size if remainder == "pad" else count,
                filler=rank % max(1, remaining.total),
                origin=origin,
            )
            shares.append(rank_rows)
        return shares

    def advance(
        self,
        remaining: Remaining,
        batches: int,
        *,
        ranks: int,
        batch_size: int,
        remainder: Remainder,
    ) -> Remaining:
        """Return what remains after `batches` batches on every rank.

        Raises `StreamError` if there are fewer.
        """
        steps = self.steps(remaining, ranks=ranks, batch_size=batch_size, remainder=remainder)
        check_batches(batches, steps)
        bounds = self.bounds(remaining, ranks)
        return remaining.keep(
            np.minimum(bounds[:-1] + batches * batch_size, bounds[1:]), bounds[1:]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON object that `from_dict` restores."""
        values: dict[str, Any] = {"distribution": self.distribution, "rows": list(self.rows)}
        if self.assignment is None:
            return values
        return {**values, "assignment": list(self.assignment)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ShardPartition:
        """Restore a partition. Raises `StreamError` if the value is not one."""
        names = {"distribution", "rows"}
        valid = names <= set(values) <= names | {"assignment"} and isinstance(
            values["distribution"], str
        )
        if valid and _numbers(values["rows"]) and _numbers(values.get("assignment", [])):
            assignment = values.get("assignment")
            if values["rows"] and all(rank < len(values["rows"]) for rank in assignment or ()):
                return cls(
                    distribution=values["distribution"],
                    rows=tuple(values["rows"]),
                    assignment=None if assignment is None else tuple(assignment),
                )
        raise StreamError(
            "stream state: shard_partition is not what state_dict() gave",
            remedy="pass it on unchanged",
        )


def deal_shards(index: SplitIndex, *, ranks: int, seed: int, epoch: int, shuffle: bool) -> I64:
    """Return the rank of each shard, int64 [shards]: in turns, over shuffled shards, or over shards
    by name.
    """
    order = np.arange(len(index.shards), dtype=np.int64)
    if shuffle:
        order = np.lexsort(
            hash_texts(derive_key(seed, "shards", epoch), pa.array(index.shards, pa.large_string()))
        )
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order), dtype=np.int64) % ranks
    return rank


def pack_shards(
    shard_bytes: I64, *, ranks: int, allowed: Sequence[Sequence[int] | None] | None = None
) -> I64:
    """Return the rank of each shard, int64 [shards]: largest first, each to the rank with the
    fewest bytes.

    allowed: ranks that may have a shard; None for all. Shards with None are assigned last.
    """
    by_size = np.lexsort((np.arange(len(shard_bytes)), -shard_bytes)).tolist()
    load = [0] * ranks
    rank_of_shard = np.zeros(len(shard_bytes), np.int64)
    free = []
    for shard in by_size:
        if allowed is None:
            here = None
        else:
            here = allowed[shard]
        if here is None:
            free.append(shard)
            continue
        chosen = min(here, key=lambda rank: (load[rank], rank))
        load[chosen] += int(shard_bytes[shard])
        rank_of_shard[shard] = chosen
    heap = [(bytes_, rank) for rank, bytes_ in enumerate(load)]
    heapq.heapify(heap)
    for shard in free:
        bytes_, chosen = heap[0]
        rank_of_shard[shard] = chosen
        heapq.heapreplace(heap, (bytes_ + int(shard_bytes[shard]), chosen))
    return rank_of_shard


def local_ranks(
    index: SplitIndex,
    locality: Mapping[str, int | Sequence[int]],
    *,
    ranks: int,
    ranks_per_node: int,
) -> list[Sequence[int] | None]:
    """Return the ranks on the nodes that have each shard; None for a shard on no node of this job.

    Raises `SettingsError` for shards that the split does not have.
    """
    unknown = sorted(set(locality) - set(index.shards))
    if unknown:
        raise SettingsError(
            f"it names {unknown[0]!r}, which split {index.split} does not have",
            setting="locality",
            remedy=(
                "give paths as the index has them, e.g."
                f" {(index.shards[0] if index.shards else 'none, it is empty')!r}"
            ),
        )
    on_node: dict[int, list[int]] = {}
    for rank in range(ranks):
        on_node.setdefault(rank // ranks_per_node, []).append(rank)
    allowed: list[Sequence[int] | None] = []
    for shard in index.shards:
        nodes = locality.get(shard, ())
        here = {
            rank
            for node in ([nodes] if isinstance(nodes, int) else nodes)
            for rank in on_node.get(node, ())
        }
        allowed.append(sorted(here) or None)
    return allowed


def _numbers(values: Any) -> bool:
    return isinstance(values, Sequence) and all(
        type(value) is int and value >= 0 for value in values
    )
