"""Choose what rows of a split are compared by, and which kept rows are dropped because of their
content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U64, Bools
from headrace.formats.column_paths import select_paths
from headrace.formats.content import NOTHING, among, row_digests
from headrace.formats.delimited_rows import DelimitedChunk
from headrace.formats.dialect import TextDialect
from headrace.formats.grouped import GroupChunk
from headrace.formats.shard import Chunk, Shard
from headrace.formats.source import read_chunks
from headrace.formats.text_columns import typed

_ROW_BITS = 40  # the shard's number is above these bits of a row's number


@dataclass(frozen=True, kw_only=True)
class Content:
    """The columns that rows are compared by.

    schema: these columns, of the types common to all shards; types: declared.

    by: "values"; or "fields", the bytes of delimited text without parsing, which is enough for
    counting.
    """

    schema: pa.Schema
    types: Mapping[str, pa.DataType]
    dialect: TextDialect
    by: Literal["values", "fields"]

    def columns(self, shard: Shard) -> list[str]:
        """Return the columns of a shard that `digest_chunk` reads."""
        if self.by == "fields" or shard.content == "nothing":
            return []
        return list(self.schema.names)

    def digest_chunk(self, chunk: Chunk, table: pa.Table, path: str) -> U64:
        """Digest the rows of a chunk. table: its columns as they were read; path: for errors."""
        if self.by == "fields":
            assert isinstance(chunk, DelimitedChunk | GroupChunk)
            return chunk.digests(list(self.schema.names))
        return self.digest(self.select(table, path, chunk.first_row))

    def select(self, table: pa.Table, path: str, first_row: int) -> pa.Table:
        """Convert the compared columns of rows to their common and declared types.

        path: for errors.
        """
        compared = select_paths(table, self.schema.names)
        return typed(compared, self.types, self.dialect, path, first_row)

    def digest(self, table: pa.Table) -> U64:
        """Digest rows whose columns are of their common and declared types."""
        return row_digests(select_paths(table, self.schema.names))

    def first_rows(self, shards: Sequence[Shard], rows: int) -> list[pa.Table]:
        """Return the compared columns of the first rows of some shards, at most `rows` together."""
        of_each = rows // max(1, len(shards))
        parts = []
        for shard in shards:
            columns = self.columns(shard)
            chunk = next(read_chunks(shard, columns), None)
            if isinstance(chunk, DelimitedChunk):
                chunk = chunk.head(of_each)  # parses no more
            if chunk is not None:
                table = chunk.table(columns).slice(0, of_each)
                parts.append(self.select(table, str(shard.path), chunk.first_row))
        return parts


@dataclass(frozen=True)
class Repeats:
    """The content whose rows are dropped. digests [N], ascending.

    first: the one row of each content that stays, numbered through the source by `row_numbers`.
    None: every test row with such content is dropped.
    """

    digests: U64
    first: I64 | None = None

    def repeated(self, digests: U64, shard: int) -> Bools:
        """Mask the rows of a shard that have such content, without those that stay."""
        repeated: Bools = (digests != NOTHING) & among(digests, self.digests)
        if self.first is not None and len(self.first):
            index = np.minimum(np.searchsorted(self.digests, digests), len(self.first) - 1)
            repeated &= self.first[index] != row_numbers(shard, len(digests))
        return repeated


def row_numbers(shard: int, rows: int) -> I64:
    """Number the rows of a shard so that numbers ascend in the order of the source."""
    return np.arange(rows, dtype=np.int64) + (shard << _ROW_BITS)
