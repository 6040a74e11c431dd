"""The index: one row per block, what a stream plans from.

A block is what can be read on its own inside a shard: a Parquet row group, or a byte range of a text file that
begins and ends on a record. `SplitIndex` holds one split's blocks as parallel arrays in natural order
(shards by name, blocks by place); planning and reading need nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.digest import canonical_json, sha256_hex

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SplitIndex:
    """The blocks of one split. Arrays are indexed by block: [B].

    shards: paths relative to the dataset root, with forward slashes.
    formats: the format of each shard, parallel to `shards`: "parquet", "csv", "tsv" or "jsonl".
    shard_of_block: place in `shards`; block: ordinal of the block inside its shard.
    rows: rows in the block; offset, length: its byte range in the file (text; for Parquet informational).
    schema: the logical columns a reader delivers, the same for all shards.
    """

    split: str
    schema: pa.Schema
    shards: tuple[str, ...]
    formats: tuple[str, ...]
    shard_of_block: I64
    block: I64
    rows: I64
    offset: I64
    length: I64

    @cached_property
    def total_rows(self) -> int:
        """N, the rows of the split."""
        return int(self.rows.sum())

    @cached_property
    def first_row(self) -> I64:
        """Row number in the split at which each block begins: [B]."""
        return np.concatenate([[0], np.cumsum(self.rows)])[:-1].astype(np.int64)

    @cached_property
    def identity(self) -> str:
        """A digest of what decides the order of rows: shard names, blocks and their row counts."""
        parts = [self.split, list(self.shards), self.shard_of_block.tolist(), self.block.tolist(), self.rows.tolist()]
        return sha256_hex(canonical_json(parts))
