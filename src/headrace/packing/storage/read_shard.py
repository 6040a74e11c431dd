"""Read a packed shard of any storage back as flat rows, a row group at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.arrays import I64
from headrace.bins.rows import PackedRows
from headrace.errors import CorruptShard, InputError
from headrace.packing.storage.legacy import read_legacy

_COLUMNS = ["input_ids", "loss_mask", "seq_start_id"]
_TYPES = {"input_ids": pa.int32(), "loss_mask": pa.uint8(), "seq_start_id": pa.int32()}


class UnequalLengths(CorruptShard):
    """A bin whose mask is not as long as its tokens cannot be held as flat rows."""


def read_parquet(path: Path) -> Iterator[PackedRows]:
    """The bins of a Parquet shard, a row group at a time; page checksums are verified. Raises `CorruptShard`."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.metadata.num_row_groups):
                yield _rows(path, group, file.read_row_group(group, columns=_COLUMNS, use_threads=False))
    except (OSError, pa.ArrowException, KeyError) as error:
        raise CorruptShard(f"{path}: cannot be read ({error}); restore it or prepare the run again") from error


def _rows(path: Path, group: int, table: pa.Table) -> PackedRows:
    columns = {}
    for name, kind in _TYPES.items():
        column = table[name].combine_chunks()
        column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        right = pa.types.is_list(column.type) and column.type.value_type == kind
        if not right or column.null_count or column.values.null_count:
            raise CorruptShard(
                f"{path}: row group {group}: column {name} is {column.type} or holds nulls, not lists of {kind}; "
                f"prepare the run again"
            )
        columns[name] = column
    ids, mask, starts = (columns[name] for name in _COLUMNS)
    tokens, masks = _offsets(ids), _offsets(mask)
    if not np.array_equal(tokens, masks):
        place = int(np.flatnonzero(np.diff(tokens) != np.diff(masks))[0])
        raise UnequalLengths(
            f"{path}: row group {group}, bin {place}: {np.diff(tokens)[place]} tokens have a mask of "
            f"{np.diff(masks)[place]}; prepare the run again"
        )
    return PackedRows(
        ids.flatten().to_numpy(), mask.flatten().to_numpy(), starts.flatten().to_numpy(), tokens, _offsets(starts)
    )


def _offsets(column: pa.ListArray) -> I64:
    offsets: I64 = column.offsets.to_numpy().astype(np.int64)
    first: I64 = offsets - offsets[0]
    return first


def read_bins_of(path: Path, storage: str) -> Iterator[PackedRows]:
    """The bins of a shard in the storage it was written in. Raises `CorruptShard`."""
    return _READ[storage](path)


def _read_legacy(path: Path) -> Iterator[PackedRows]:
    try:
        yield from read_legacy(path)
    except InputError as error:
        raise CorruptShard(str(error)) from error


_READ = {"parquet": read_parquet, "legacy_npy_pickle": _read_legacy}
