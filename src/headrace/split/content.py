"""Choose what rows of a split are compared by, and drop kept rows because of their content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U64, Bools
from headrace.formats.common_schema import fit
from headrace.formats.content import NOTHING, among, row_digests
from headrace.formats.delimited_rows import DelimitedChunk
from headrace.formats.shard import Chunk, Shard
from headrace.formats.text_columns import typed

_ROW_BITS = 40  # the shard's number is above these bits of a row's number


@dataclass(frozen=True, kw_only=True)
class Content:
    """The columns that rows are compared by. schema: these columns, of the types common to all shards; types: declared.

    by: "values"; or "fields", the bytes of delimited text without parsing, which is enough for counting.
    """

    schema: pa.Schema
    types: Mapping[str, pa.DataType]
    null_values: Sequence[str]
    by: Literal["values", "fields"]

    def columns(self, shard: Shard) -> list[str]:
        """Return the columns of a shard that `of_chunk` reads."""
        return [] if self.by == "fields" else [name for name in self.schema.names if name in shard.schema.names]

    def of_chunk(self, chunk: Chunk, table: pa.Table, where: str) -> U64:
        """Digest the rows of a chunk. table: its columns as they were read; where: for errors."""
        names = list(self.schema.names)
        if self.by == "fields":
            assert isinstance(chunk, DelimitedChunk)
            return chunk.digests(names)
        return self.of_table(self.table(table, where, chunk.first_row))

    def table(self, table: pa.Table, where: str, first_row: int) -> pa.Table:
        """Convert the compared columns of rows to their common and declared types. where: for errors."""
        own = fit(table.select([name for name in self.schema.names if name in table.column_names]), self.schema)
        return typed(own, self.types, self.null_values, where, first_row)

    def of_table(self, table: pa.Table) -> U64:
        """Digest rows whose columns are of their common and declared types."""
        return row_digests(table.select(list(self.schema.names)))


@dataclass(frozen=True)
class Leave:
    """The content whose rows are dropped. digests [N], ascending.

    first: the one row of each content that stays, numbered through the source by `row_numbers`. None: every test row
    with such content is dropped.
    """

    digests: U64
    first: I64 | None = None

    def doomed(self, digests: U64, number: int, kept: Bools) -> Bools:
        """Mask the rows of shard `number` that are dropped, among those otherwise kept."""
        found: Bools = kept & (digests != NOTHING) & among(digests, self.digests)
        if self.first is not None and len(self.first):
            at = np.minimum(np.searchsorted(self.digests, digests), len(self.first) - 1)
            found &= self.first[at] != row_numbers(number, len(digests))
        return found


def row_numbers(number: int, rows: int) -> I64:
    """Number the rows of shard `number` so that numbers ascend in the order of the source."""
    return np.arange(rows, dtype=np.int64) + (number << _ROW_BITS)
