"""Read a packed shard of any storage back as flat rows, a row group at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.bins.rows import PackedRows
from headrace.errors import CorruptShard, InputError
from headrace.packing.storage.legacy import read_legacy
from headrace.packing.storage.packed_parquet import packed_rows

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
    for name, kind in _TYPES.items():
        column = table[name]
        right = pa.types.is_list(column.type) and column.type.value_type == kind
        if not right or column.null_count or pc.list_flatten(column).null_count:
            raise CorruptShard(
                f"{path}: row group {group}: column {name} is {column.type} or holds nulls, not lists of {kind}; "
                f"prepare the run again"
            )
    tokens, masks = (pc.list_value_length(table[name]).to_numpy() for name in ("input_ids", "loss_mask"))
    unlike = np.flatnonzero(tokens != masks)
    if len(unlike):
        place = int(unlike[0])
        raise UnequalLengths(
            f"{path}: row group {group}, bin {place}: {tokens[place]} tokens have a mask of {masks[place]}; prepare "
            f"the run again"
        )
    return packed_rows(table)


def read_bins_of(path: Path, storage: str) -> Iterator[PackedRows]:
    """The bins of a shard in the storage it was written in. Raises `CorruptShard`."""
    return _READ[storage](path)


def _read_legacy(path: Path) -> Iterator[PackedRows]:
    try:
        yield from read_legacy(path)
    except InputError as error:
        raise CorruptShard(str(error)) from error


_READ = {"parquet": read_parquet, "legacy_npy_pickle": _read_legacy}
