"""Splits to stream in tests: an index over given block sizes, and readers for it that travel to worker processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.dataset.index import SplitIndex
from headrace.stream.ranks.topology import Topology

NUMBERS = pa.schema([pa.field("row", pa.int64(), nullable=False), pa.field("text", pa.string())])


def index_of(
    rows: Sequence[int], *, schema: pa.Schema = NUMBERS, blocks_per_shard: int = 1
) -> SplitIndex:
    """An index of blocks with these rows; shard names sort as they are made."""
    blocks = len(rows)
    shards = -(-blocks // blocks_per_shard)
    number = np.arange(blocks, dtype=np.int64)
    return SplitIndex(
        split="train",
        schema=schema,
        shards=tuple(f"part-{shard:05d}.parquet" for shard in range(shards)),
        formats=("parquet",) * shards,
        shard_of_block=number // blocks_per_shard,
        block=number % blocks_per_shard,
        rows=np.array(rows, np.int64),
        offset=np.zeros(blocks, np.int64),
        length=np.zeros(blocks, np.int64),
    )


@dataclass(frozen=True)
class Numbers:
    """Blocks made on the spot: column row counts the rows of the split, column text spells it."""

    rows: tuple[int, ...]

    def __call__(self, block: int, columns: Sequence[str] | None) -> pa.Table:
        first = sum(self.rows[:block])
        row = pa.array(np.arange(first, first + self.rows[block]))
        table = pa.table([row, row.cast(pa.string())], schema=NUMBERS)
        return table if columns is None else table.select(columns)


@dataclass(frozen=True)
class ParquetBlocks:
    """Row groups of Parquet files, by the numbers of an index."""

    root: Path
    index: SplitIndex

    def __call__(self, block: int, columns: Sequence[str] | None) -> pa.Table:
        path = self.root / self.index.shards[self.index.shard_of_block[block]]
        with pq.ParquetFile(path) as file:
            return file.read_row_group(int(self.index.block[block]), columns=columns)


def write_split(
    root: Path, table: pa.Table, *, shard_rows: int, group_rows: int
) -> tuple[SplitIndex, ParquetBlocks]:
    """The table as Parquet shards of several row groups, with its index and reader."""
    groups: list[int] = []
    per_shard = -(-shard_rows // group_rows)
    for shard, start in enumerate(range(0, table.num_rows, shard_rows)):
        part = table.slice(start, shard_rows)
        pq.write_table(part, root / f"part-{shard:05d}.parquet", row_group_size=group_rows)
        groups += [
            min(group_rows, part.num_rows - first) for first in range(0, part.num_rows, group_rows)
        ]
    index = index_of(groups, schema=table.schema, blocks_per_shard=per_shard)
    return index, ParquetBlocks(root, index)


def ranks(world_size: int) -> list[Topology]:
    return [Topology(rank=rank, world_size=world_size) for rank in range(world_size)]


def read_ranks(loaders, steps=None):
    """The real rows of every batch of every rank, and the state that all ranks agree on."""
    rows = []
    for loader in loaders:
        given = iter(loader)
        own = list(islice(given, steps))
        rows.append([batch["row"][batch.get("valid", slice(None))].tolist() for batch in own])
    states = [loader.state_dict() for loader in loaders]

    assert all(state == states[0] for state in states)
    return rows, json.loads(json.dumps(states[0]))


def flat(rows):
    """All rows of all ranks, rank after rank."""
    return [row for rank in rows for batch in rank for row in batch]
