"""Replace blocks that cannot be read with filling rows that are false in batch["valid"], counted
and bounded.

    on_bad_block="quarantine"    a damaged or missing block costs its own rows and nothing else: no
                                 rank loses a step
    quarantine_limit=0.01        more than this part of the split's rows, met by one reader in one
                                 pass, raises

A filling row is zero, false, an empty text, an empty list, or 1970-01-01, by the column's type. A
block is given up only for errors of its data (`CorruptShard`, `InputError`, `StoreError`, an error
of the operating system or of Arrow), never for a bug. Positions do not change, so order, steps and
states are those of the whole split. A state counts filling rows as received; a resume after the
shard was repaired delivers the rest of it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import Bools
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.errors import CorruptShard, InputError, StoreError, setting
from headrace.formats.column_paths import with_paths
from headrace.stream.loader.options import VALID
from headrace.stream.read.columns import Columns

log = logging.getLogger("headrace")

# the value of filling rows, and the types that have it; null for others
_NOTHING: tuple[tuple[Any, ...], ...] = (
    ([], pa.types.is_nested),
    (b"", pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    ("", pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    (False, pa.types.is_boolean),
    (None, pa.types.is_interval),
    (0, pa.types.is_temporal, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
)
_ABOUT_THE_BLOCK = (CorruptShard, InputError, StoreError, OSError, pa.ArrowException)


@dataclass(frozen=True, kw_only=True)
class BadBlock:
    """A block that was given up.

    block: its number in the shard (Parquet: the row group). rows: its rows. reason: the error.
    """

    shard: str
    block: int
    rows: int
    reason: str

    def __str__(self) -> str:
        return f"{self.shard} block {self.block}: {self.reason}"


@dataclass(eq=False)
class Quarantine:
    """The rows and blocks that one reader gave up in one pass.

    rows: filling rows in place of rows of bad blocks, in the batches made so far. blocks: the bad
    blocks, by number. batch_size: rows of a batch, for `go_back`.
    """

    index: SplitIndex
    limit: float
    reader: str
    batch_size: int = 1
    rows: int = 0
    blocks: dict[int, BadBlock] = field(default_factory=dict)
    _positions: int = 0  # places of the pass in batches made so far
    _by_batch: dict[int, int] = field(default_factory=dict)  # filling rows by batch, without zeros

    def around(self, read_block: ReadBlock) -> ReadBlock:
        """Wrap `read_block` to append a column `VALID`, which is false in the rows of blocks that
        were given up.
        """

        def read(block: int, columns: Sequence[str] | None) -> pa.Table:
            names = [name for name in (columns or self.index.schema.names) if name != VALID]
            rows = int(self.index.rows[block])
            try:
                table = read_block(block, names).select(names)
                if table.num_rows != rows:
                    raise CorruptShard(f"has {table.num_rows} rows, the index says {rows}")
            except _ABOUT_THE_BLOCK as error:
                shard = self.index.shards[self.index.shard_of_block[block]]
                reason = f"{type(error).__name__}: {error}"
                bad = BadBlock(
                    shard=shard, block=int(self.index.block[block]), rows=rows, reason=reason
                )
                if self.blocks.pop(block, None) is None:
                    log.warning("%s: %d rows are in quarantine: %s", self.reader, rows, bad)
                self.blocks[block] = bad  # reinserted, so that it comes last
                return filling_rows(self.index.schema, names, rows).append_column(
                    VALID, pa.array(np.zeros(rows, bool))
                )
            return table.append_column(VALID, pa.array(np.ones(rows, bool)))

        return read

    def sift(self, columns: Columns, is_row: Bools) -> Bools:
        """Return the mask of real rows of a batch: its own rows that are not of bad blocks; removes
        the column `VALID`.

        is_row: false for rows that only fill the last step. Raises `CorruptShard` beyond the limit.
        """
        good = np.asarray(columns.pop(VALID), np.bool_)
        bad = np.flatnonzero(is_row & ~good)
        batches, counts = np.unique((self._positions + bad) // self.batch_size, return_counts=True)
        for batch, count in zip(batches.tolist(), counts.tolist(), strict=True):
            self._by_batch[batch] = self._by_batch.get(batch, 0) + count
        self._positions += len(good)
        self.rows += len(bad)
        if len(bad) and self.rows > self.limit * self.index.total_rows:
            last = list(self.blocks.values())[-1]
            raise CorruptShard(
                f"{self.reader}: {self.rows} rows of {len(self.blocks)} blocks cannot be read,"
                f" more than {setting('quarantine_limit', self.limit)} of the split's"
                f" {self.index.total_rows}; the last was {last}",
                remedy="restore the shards, or set a higher limit",
            )
        return is_row & good

    def go_back(self, batches: int) -> None:
        """Forget the filling rows of batches after the first `batches`, because those batches are
        made again.
        """
        self._positions = batches * self.batch_size
        self._by_batch = {
            batch: count for batch, count in self._by_batch.items() if batch < batches
        }
        self.rows = sum(self._by_batch.values())


def filling_rows(schema: pa.Schema, names: Sequence[str], rows: int) -> pa.Table:
    """Return `rows` empty rows of these columns: zeros, empty texts and lists, in the columns'
    types.
    """
    fields = list(with_paths(schema, names))
    arrays = [pa.repeat(pa.scalar(_nothing(field.type), field.type), rows) for field in fields]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _nothing(dtype: pa.DataType) -> Any:
    if pa.types.is_dictionary(dtype):
        return _nothing(dtype.value_type)
    if pa.types.is_fixed_size_list(dtype):
        return [_nothing(dtype.value_type)] * dtype.list_size
    if pa.types.is_struct(dtype):
        return {field.name: _nothing(field.type) for field in dtype}
    if pa.types.is_fixed_size_binary(dtype):
        return bytes(dtype.byte_width)
    return next((value for value, *tests in _NOTHING if any(test(dtype) for test in tests)), None)
