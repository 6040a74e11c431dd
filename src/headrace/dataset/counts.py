"""Count something of every row of a split once, and keep the counts beside the cached index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I32, I64
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock, check_rows
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import InputError, SettingsError
from headrace.gate.cache_entry import identity_of, keep_entry, read_entry

_VERSION = 4  # of the cached files of counts


def count_rows(  # noqa: PLR0913 - arguments of a cached count
    index: SplitIndex,
    read_block: ReadBlock,
    columns: Sequence[str],
    count: Callable[[pa.Table], I64],
    *,
    counts: Sequence[str],
    contents: str | None,
    cache_dir: Path | None,
) -> I64:
    """Compute counts of every row of a split; int64 [len(counts), rows].

    columns: the columns to read. count: from a block's table of them to its counts, int64
    [len(counts), rows of the block], 0 or more. counts: what is counted, in words. contents: a word
    that changes whenever the rows may, for the cache of counts under cache_dir; None: no cache.
    Raises what reading blocks raises, and `InputError` for nulls.
    """
    cache_file = None
    if contents is not None and cache_dir is not None:
        identity = identity_of(
            "counts", _VERSION, contents, index.identity, list(columns), list(counts)
        )
        cache_file = cache_dir / f"counts-{identity.hex()}"
        with suppress(OSError, ValueError):  # a missing, damaged or other file is rebuilt
            content = np.frombuffer(read_entry(cache_file, identity), "<i8")
            return content.reshape(len(counts), index.total_rows).astype(np.int64)

    looks = [
        partial(_count_block, index, read_block, columns, count, block)
        for block in range(len(index.rows))
    ]
    parts = run_tasks(looks, default_workers())
    counted = np.concatenate([np.zeros((len(counts), 0), np.int64), *parts], axis=1)
    if cache_file is not None:
        keep_entry(cache_file, counted.astype("<i8").tobytes(), identity)
    return counted


def _count_block(
    index: SplitIndex,
    read_block: ReadBlock,
    columns: Sequence[str],
    count: Callable[[pa.Table], I64],
    block: int,
) -> I64:
    """Count the rows of a block; see `count_rows`."""
    path = index.shards[index.shard_of_block[block]]
    where = f"block {index.block[block]}"
    table = read_block(block, columns)
    check_rows(table, index, block)
    for name in columns:
        if table[name].null_count:
            raise InputError(
                f"it holds {table[name].null_count} nulls",
                path=path,
                row=where,
                column=name,
                remedy="write an empty list for a sequence without tokens",
            )
    counted = count(table)
    if counted.size and not 0 <= int(counted.min()) <= int(counted.max()) < 1 << 62:
        raise InputError(
            f"it gives counts of {counted.min()}..{counted.max()}",
            path=path,
            row=where,
            column=", ".join(columns),
            remedy="correct the lengths",
        )
    return counted


def lengths_of(column: pa.ChunkedArray) -> I64:
    """Return the length of each list of a column, or the integers of a column of integers; int64
    [rows].
    """
    if pa.types.is_integer(column.type):
        counted = column
    else:
        counted = pc.list_value_length(column)
    return counted.to_numpy().astype(np.int64)  # type: ignore[no-any-return]


def count_lengths(
    index: SplitIndex,
    read_block: ReadBlock,
    column: str,
    *,
    needed_by: str,
    contents: str | None,
    cache_dir: Path | None,
) -> I32:
    """Count the lengths of every row of a split; int32 [rows].

    column: lists, or whole numbers that are lengths. needed_by: what needs them, for the error.
    contents, cache_dir: as in `count_rows`. Raises what it raises, and `SettingsError` for another
    column.
    """
    position = index.schema.get_field_index(column)
    column_type = pa.null() if position < 0 else index.schema.field(position).type
    if not (
        pa.types.is_list(column_type)
        or pa.types.is_large_list(column_type)
        or pa.types.is_integer(column_type)
    ):
        described = "not there" if position < 0 else str(column_type)
        raise SettingsError(
            f"it is {described}, and {needed_by} needs lists, or whole numbers that are their"
            " lengths",
            column=column,
            remedy=f"name one of {index.schema.names}",
        )

    def count(table: pa.Table) -> I64:
        lengths = lengths_of(table[column])
        if len(lengths) and int(lengths.max()) >= 1 << 31:
            raise InputError(
                f"a row is shorter than {1 << 31}",
                column=column,
                value=int(lengths.max()),
                remedy="correct the lengths",
            )
        return lengths[None]

    counted = count_rows(
        index,
        read_block,
        [column],
        count,
        counts=["tokens"],
        contents=contents,
        cache_dir=cache_dir,
    )
    lengths: I32 = counted[0].astype(np.int32)
    return lengths
