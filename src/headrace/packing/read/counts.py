"""Count what the rows of a split hold, once: the counts are kept where decoded blocks are cached."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.digest import canonical_json, sha256_hex
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard, InputError, StoreError
from headrace.storage.local import make_directory, write_new

_VERSION = 2  # of the files that keep counts


def count_rows(
    index: SplitIndex,
    read_block: ReadBlock,
    columns: Sequence[str],
    count: Callable[[pa.Table], I64],
    *,
    counts: Sequence[str],
    contents: str | None,
    cache_dir: Path | None,
) -> I64:
    """Count every row of a split; int64 [len(counts), rows].

    columns: what is read; count: from a block's table of them to its counts, int64 [len(counts), rows of the block],
    0 or more. counts: what is counted, in words. contents: a word that changes whenever the rows may, to keep the
    counts under cache_dir; None: they are not kept. Raises what reading blocks raises, and `InputError` for nulls.
    """
    kept = None
    if contents is not None and cache_dir is not None:
        key = sha256_hex(canonical_json([_VERSION, contents, index.identity, list(columns), list(counts)]))
        kept = cache_dir / f"counts-{key}.npy"
        with suppress(OSError, ValueError):  # a file that is missing or damaged is made again
            data, digest = (whole := kept.read_bytes())[:-64], whole[-64:]
            if sha256_hex(data).encode() == digest:
                found: I64 = np.load(io.BytesIO(data), allow_pickle=False)
                if found.dtype == np.int64 and found.shape == (len(counts), index.total_rows):
                    return found
    counting = [partial(_count, index, read_block, columns, count, block) for block in range(len(index.rows))]
    parts = run_tasks(counting, default_workers())
    found = np.concatenate([np.zeros((len(counts), 0), np.int64), *parts], axis=1)
    if kept is not None:
        written = io.BytesIO()
        np.save(written, found)
        with suppress(StoreError, CorruptShard, OSError):
            make_directory(kept.parent)
            kept.unlink(missing_ok=True)
            write_new(kept, written.getvalue() + sha256_hex(written.getvalue()).encode(), sync="none")
    return found


def lengths_of(column: pa.ChunkedArray) -> I64:
    """The length of each list of a column, or its whole numbers as they are; int64 [rows]."""
    counted = column if pa.types.is_integer(column.type) else pc.list_value_length(column)
    return counted.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def _count(
    index: SplitIndex, read_block: ReadBlock, columns: Sequence[str], count: Callable[[pa.Table], I64], block: int
) -> I64:
    where = f"{index.shards[index.shard_of_block[block]]} block {index.block[block]}"
    table = read_block(block, columns)
    if len(table) != index.rows[block]:
        raise CorruptShard(
            f"{where}: has {len(table)} rows, the index says {index.rows[block]}; the shard changed after it was"
            " indexed: restore it or index the dataset again"
        )
    for name in columns:
        if table[name].null_count:
            raise InputError(
                f"{where}: column {name} holds {table[name].null_count} nulls; a sequence without tokens is an empty"
                " list"
            )
    found = count(table)
    if found.size and not 0 <= int(found.min()) <= int(found.max()) < 1 << 62:
        raise InputError(f"{where}: columns {list(columns)} give counts of {found.min()}..{found.max()}")
    return found
