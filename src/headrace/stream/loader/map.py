"""Read the rows of a split by number, for data that fits in memory or is read block by block.

    dataset = MapDataset(index, read_block, columns=["amount", "bought"])
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=256, sampler=sampler, collate_fn=columns_of)

Row i is row i of the files in order. Blocks are decoded on first use and cached up to
`cache_bytes`; the least recently used is evicted first. Each process has its own cache. One batch
is one gather per block and column. If the cache is smaller than the split, a shuffling sampler
decodes blocks again and again; use `StreamingDataset` then.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

import numpy as np

from headrace.arrays import I64
from headrace.checks import check_integer
from headrace.dataset.index import SplitIndex
from headrace.errors import MissingExtra
from headrace.formats.column_paths import with_paths
from headrace.item_batch import ItemBatch
from headrace.item_batch import arrays_of as columns_of
from headrace.stream.loader.options import VALID, StreamOptions
from headrace.stream.order.epoch import distinct_numbers
from headrace.stream.read.batch import make_batch
from headrace.stream.read.columns import Columns, from_table, gather, join, size_of
from headrace.stream.read.reader import ReadBlock, decode_block

try:
    from torch.utils.data import Dataset as TorchDataset
except ImportError as error:
    raise MissingExtra("torch", "torch") from error

__all__ = ["MapDataset", "columns_of"]


class MapDataset(TorchDataset[dict[str, Any]]):
    """The rows of a split by number: `dataset[i]` is a dict of tensors without axes, texts or
    lists.

    Types are those of the columns, as in batches of a stream. Rows are numbered in the order of
    shards and of the rows in them.
    columns: the columns to read, in this order; None: all. cache_bytes: bound of the decoded blocks
    in each process. read_block must be picklable for spawn and forkserver; the cache is not
    pickled.
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
        self.columns = StreamOptions(batch_size=1, columns=columns).check_columns(index.schema)
        self.cache_bytes = cache_bytes
        self._read_block = read_block
        self._stops = np.cumsum(index.rows)
        self._forget()

    def __len__(self) -> int:
        """Return the number of rows of the split, the same on every rank."""
        return self.index.total_rows

    def __getitem__(self, row: SupportsIndex) -> dict[str, Any]:
        """Return one row. Raises `IndexError` outside -len..len-1."""
        return cast(dict[str, Any], self.__getitems__([row])[0])

    def __getitems__(self, rows: Sequence[SupportsIndex]) -> ItemBatch:
        """Return rows in the requested order, repeats included; a DataLoader calls it once per
        batch.

        Raises `IndexError` outside -len..len-1.
        """
        return ItemBatch(self.batch(rows), len(rows), what="row")

    def batch(self, rows: Sequence[SupportsIndex] | I64) -> dict[str, Any]:
        """Return rows as columns: a dict of tensors [rows], lists of text or of tensors.

        Blocks that are not in memory are read, each once. Raises `IndexError` outside -len..len-1,
        `CorruptShard`.
        """
        numbers = np.array([int(row) for row in rows], np.int64)
        bad = (numbers < -len(self)) | (numbers >= len(self))
        if bad.any():
            raise IndexError(
                f"row {numbers[bad][0]} of split {self.index.split}, which has {len(self)} rows"
            )
        numbers[numbers < 0] += len(self)
        nothing = with_paths(self.index.schema, self.columns).empty_table()
        if len(numbers):
            parts = []
        else:
            parts = [from_table(nothing, arrow=False, where="", gaps=self.index.gaps)]
        back = np.empty_like(numbers)
        done = 0
        for block, members in distinct_numbers(np.searchsorted(self._stops, numbers, side="right")):
            mine = numbers[members]
            parts.append(gather([self._block(block)], mine - int(self.index.first_row[block])))
            back[members] = np.arange(done, done + len(mine))
            done += len(mine)
        together = join(parts)
        if len(parts) > 1:
            together = gather([together], back)
        batch = make_batch({**together, VALID: np.ones(len(numbers), np.bool_)}, "torch")
        return cast(dict[str, Any], batch)

    def __getstate__(self) -> dict[str, Any]:
        values = dict(self.__dict__)
        for name in ("_lock", "_blocks", "_cached_bytes"):
            del values[name]
        return values

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._blocks: OrderedDict[int, tuple[Columns, int]] = OrderedDict()
        self._cached_bytes = 0

    def _block(self, block: int) -> Columns:
        with self._lock:
            if block in self._blocks:
                self._blocks.move_to_end(block)
                return self._blocks[block][0]
        reader = f"split {self.index.split}"
        columns = decode_block(
            self.index, self._read_block, block, self.columns, reader, arrow=False
        )
        size = size_of(columns)
        with self._lock:
            if block not in self._blocks and size <= self.cache_bytes:
                self._blocks[block] = (columns, size)
                self._cached_bytes += size
                while self._cached_bytes > self.cache_bytes:
                    self._cached_bytes -= self._blocks.popitem(last=False)[1][1]
        return columns
