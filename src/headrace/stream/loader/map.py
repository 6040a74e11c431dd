"""Random access to the rows of a split, for data that fits in memory or is read block by block.

    dataset = MapDataset(index, read_block, columns=["amount", "bought"])
    loader = DataLoader(dataset, batch_size=256, sampler=DistributedSampler(dataset), collate_fn=columns_of)

Row i is row i of the files in order. Blocks are decoded when first touched and kept, least recently used last out,
below `cache_bytes`; each process keeps its own. One batch is one gather per block and column. With a cache that holds
less than the split, a shuffling sampler decodes blocks again and again: use `StreamingDataset` there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex, overload

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.checks import check_integer
from headrace.dataset.index import SplitIndex
from headrace.errors import CorruptShard, MissingExtra
from headrace.stream.loader.options import VALID, StreamOptions
from headrace.stream.read.batch import make_batch
from headrace.stream.read.columns import Columns, from_table, gather, join, size_of
from headrace.stream.read.reader import ReadBlock

try:
    from torch.utils.data import Dataset as TorchDataset
except ImportError as error:
    raise MissingExtra("torch", "torch") from error


class Rows(Sequence[dict[str, Any]]):
    """Rows of one batch, gathered as columns; a list of dicts to whoever asks row by row, as default_collate does."""

    def __init__(self, columns: dict[str, Any], count: int) -> None:
        self.columns = columns
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, row: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, row: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(self._count))]
        if not -self._count <= row < self._count:
            raise IndexError(f"row {row} of a batch of {self._count}")
        return {name: column[row] for name, column in self.columns.items()}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(self._count))


def columns_of(rows: Rows) -> dict[str, Any]:
    """A batch as columns, for DataLoader(collate_fn=columns_of): nothing is taken apart and put together again."""
    return rows.columns


class MapDataset(TorchDataset[dict[str, Any]]):
    """The rows of a split by number: `dataset[i]` is a dict of tensors without axes, texts or lists.

    Types are the columns', as in batches of a stream; rows are numbered in the order of shards, and of rows in them.
    columns: which to read, in this order; None: all. cache_bytes: decoded blocks kept by each process.
    read_block must be picklable for spawn and forkserver; the cache does not travel.
    """

    def __init__(
        self,
        index: SplitIndex,
        read_block: ReadBlock,
        *,
        columns: Sequence[str] | None = None,
        cache_bytes: int = 1 << 30,
    ) -> None:
        check_integer("cache_bytes", cache_bytes, least=0)
        self.index = index
        self.columns = StreamOptions(batch_size=1, columns=columns).check_columns(index.schema.names)
        self.cache_bytes = cache_bytes
        self._read_block = read_block
        self._stops = np.cumsum(index.rows)
        self._forget()

    def __len__(self) -> int:
        """Rows of the split, the same on every rank."""
        return self.index.total_rows

    def __getitem__(self, row: SupportsIndex) -> dict[str, Any]:
        """One row. Raises `IndexError` outside -len..len-1."""
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[SupportsIndex]) -> Rows:
        """Rows in the order asked for, repeats included; a DataLoader calls it once per batch. Raises `IndexError`."""
        return Rows(self.batch(rows), len(rows))

    def batch(self, rows: Sequence[SupportsIndex] | I64) -> dict[str, Any]:
        """The same as columns: a dict of tensors [rows], lists of text or of tensors.

        Blocks that are not in memory are read, each once. Raises `IndexError` outside -len..len-1, `CorruptShard`.
        """
        wanted = self._checked(rows)
        if not len(wanted):
            nothing = pa.schema([self.index.schema.field(name) for name in self.columns]).empty_table()
            return self._finished(gather([from_table(nothing, arrow=False, where="")], wanted))
        block_of_row = np.searchsorted(self._stops, wanted, side="right")
        order = np.argsort(block_of_row, kind="stable")
        blocks, begins = np.unique(block_of_row[order], return_index=True)
        parts = [
            gather([self._block(int(block))], mine - int(self.index.first_row[block]))
            for block, mine in zip(blocks, np.split(wanted[order], begins[1:]), strict=True)
        ]
        together = join(parts)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return self._finished(gather([together], back) if len(parts) > 1 or len(order) > 1 else together)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_blocks", "_held")}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, tuple[Columns, int]] = OrderedDict()
        self._held = 0

    def _checked(self, rows: Sequence[SupportsIndex] | I64) -> I64:
        wanted = np.array([int(row) for row in rows], np.int64)
        bad = (wanted < -len(self)) | (wanted >= len(self))
        if bad.any():
            raise IndexError(f"row {wanted[bad][0]} of split {self.index.split}, which has {len(self)} rows")
        return np.where(wanted < 0, wanted + len(self), wanted)

    def _block(self, block: int) -> Columns:
        with self._lock:
            if block in self._blocks:
                self._blocks.move_to_end(block)
                return self._blocks[block][0]
        table = self._read_block(block, self.columns)
        if table.num_rows != self.index.rows[block]:
            raise CorruptShard(
                f"{self._where(block)}: has {table.num_rows} rows, the index says {self.index.rows[block]};"
                " the shard changed after it was indexed: restore it or index the dataset again"
            )
        table = table.select(list(self.columns))
        columns = from_table(table, arrow=False, where=self._where(block))
        size = size_of(columns)
        with self._lock:
            if block not in self._blocks and size <= self.cache_bytes:
                self._blocks[block] = (columns, size)
                self._held += size
                while self._held > self.cache_bytes:
                    self._held -= self._blocks.popitem(last=False)[1][1]
        return columns

    def _finished(self, columns: Columns) -> dict[str, Any]:
        rows = len(next(iter(columns.values())))
        batch = make_batch({**columns, VALID: np.ones(rows, np.bool_)}, "torch")
        assert isinstance(batch, dict)
        return batch

    def _where(self, block: int) -> str:
        return f"{self.index.shards[self.index.shard_of_block[block]]} block {self.index.block[block]}"
