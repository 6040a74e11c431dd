"""Write the rows of each split in a drawn order, in bounded memory.

Each row has a key: the keyed hash of its split and its number there. The first stage writes the
rows of every source shard to an intermediate file, block by block, each block ascending by key. An
output shard is a range of keys: the second stage takes its part of every block, and sorts these by
key. So the order depends on the seed and the rows' numbers, and not on workers.

Needs the decoded size of the source on disk while it runs, and the decoded size of one output shard
in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import U64
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import IndexedDataset
from headrace.digest import derive_key
from headrace.draws import mix
from headrace.gate.arrow import open_arrow
from headrace.rewriting.pieces import Piece, read_blocks
from headrace.run.context import STAGE_DIRECTORY, TaskFiles

_SHARD_BYTES = 64 << 20  # of an output shard, as the source has them
_KEY = "headrace.key"
_KEYED = f"{STAGE_DIRECTORY}/keyed-{{:05d}}.arrow"


@dataclass(frozen=True)
class KeyRange:
    """An output shard: the rows of a split with first <= key <= last.

    sources: the numbers of the intermediate files of the split.
    """

    target: Piece
    first: int
    last: int
    sources: range


def row_keys(seed: int, split: str, first: int, count: int) -> U64:
    """Return the keys of rows first..first+count-1 of a split; uint64 [count]."""
    low, high = derive_key(seed, f"rewrite.order.{split}")
    numbers = np.arange(first, first + count, dtype=np.uint64)
    return mix(mix(numbers + np.uint64(low)) ^ np.uint64(high))


def plan_ranges(
    chunks: Sequence[Piece], index: SplitIndex, directory: str, shard_bytes: int | None, begin: int
) -> list[KeyRange]:
    """Plan the output shards of a split, as many as there are pieces, or more of large ones.

    begin: the number of the first piece of the split among those of all splits.
    """
    size = int(index.length.sum())
    parts = max(1, -(-size // (shard_bytes or _SHARD_BYTES)))
    if shard_bytes is None:
        parts = max(parts, len(chunks))
    bounds = [(number << 64) // parts for number in range(parts + 1)]
    every_row = replace(
        chunks[0],
        stop=chunks[-1].stop,
        rows=int(index.rows.sum()),
        bytes=size // parts,
        source_shard="",
    )
    ranges = []
    for number in range(parts):
        target = replace(every_row, target=f"{directory}/part-{number:05d}.parquet")
        sources = range(begin, begin + len(chunks))
        ranges.append(KeyRange(target, bounds[number], bounds[number + 1] - 1, sources))
    return ranges


@dataclass(frozen=True, eq=False)
class KeyedWriter:
    """Writes the intermediate file of a piece. Picklable. schema: of the rows."""

    source: IndexedDataset
    schema: pa.Schema
    seed: int

    def __call__(self, number: int, chunk: Piece, files: TaskFiles) -> dict[str, Any]:
        """Write the rows of each block with their keys, ascending by key."""
        keyed = self.schema.append(pa.field(_KEY, pa.uint64(), nullable=False))
        row = int(self.source.split_index(chunk.split).rows[: chunk.start].sum())
        with files.arrow_batches(_KEYED.format(number), keyed) as write:
            for _, table in read_blocks(self.source, chunk, self.schema.names):
                keys = row_keys(self.seed, chunk.split, row, len(table))
                order = np.argsort(keys)
                columns = [*table.take(order).columns, pa.array(keys[order])]
                write(pa.Table.from_arrays(columns, schema=keyed).combine_chunks())
                row += len(table)
        return {"rows_in": chunk.rows}


def read_range(run: Path, key_range: KeyRange, schema: pa.Schema) -> pa.Table:
    """Read the rows of an output shard, ascending by key."""
    parts = []
    for number in key_range.sources:
        for batch in open_arrow(run / _KEYED.format(number)).batches():
            keys = batch[_KEY].to_numpy()
            begin = int(np.searchsorted(keys, np.uint64(key_range.first)))
            end = int(np.searchsorted(keys, np.uint64(key_range.last), "right"))
            parts.append(batch.slice(begin, end - begin))
    table = pa.Table.from_batches(parts)
    order = np.argsort(table[_KEY].to_numpy())
    return table.select(schema.names).take(order)
