"""How many tokens each row of a split has: counted once by reading one column, and kept beside the index.

Lengths are what packing needs to know before it begins: with them the number of batches of every rank is arithmetic.
Four bytes a row, in the memory of each process that packs.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I32
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.digest import canonical_json, sha256_hex
from headrace.engine.local import default_workers, run_tasks
from headrace.errors import CorruptShard, InputError, SettingsError, StoreError
from headrace.packing.preference import preference_field
from headrace.storage.local import make_directory, write_new
from headrace.stream.loader.options import StreamOptions
from headrace.stream.packed.passes import packing_settings

_VERSION = 1


def lengths_for(
    index: SplitIndex,
    read_block: ReadBlock,
    options: StreamOptions,
    *,
    contents: str | None = None,
    cache_dir: Path | None = None,
) -> I32:
    """Tokens of each row of the split, in the order of its blocks, for packing with these options: int32 [N].

    contents: a word that changes whenever the rows may, to keep lengths under; None: they are not kept. Raises
    `SettingsError` for settings that cannot work, before anything is read, and what `read_block` raises.
    """
    assert options.pack_rows is not None
    packing_settings(options)
    judged = preference_field(index.schema, but=(options.pack_rows.tokens,)) if options.columns is None else None
    if judged is not None:
        raise SettingsError(
            f"pack: column {judged} judges answers, so rows that were rejected would be packed; say what to read with "
            f'columns=["{options.pack_rows.tokens}"] if all rows are good, else prepare a dataset of the good ones'
        )
    column = options.pack_rows.lengths or options.pack_rows.tokens
    kind = index.schema.field(column).type if column in index.schema.names else None
    if kind is None or not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_integer(kind)):
        raise SettingsError(
            f"pack: column {column} is {'not there' if kind is None else kind}; packing needs lists of token ids, or"
            f" their lengths, and the dataset has {index.schema.names}"
        )
    kept = None
    if contents is not None and cache_dir is not None:
        key = sha256_hex(canonical_json([_VERSION, contents, index.identity, column]))
        kept = cache_dir / f"lengths-{key}.npy"
        with suppress(OSError, ValueError):  # a file that is missing or damaged is made again
            found: I32 = np.load(io.BytesIO(_checked(kept.read_bytes())), allow_pickle=False)
            if found.dtype == np.int32 and found.shape == (index.total_rows,):
                return found
    parts = run_tasks(
        [_counting(index, read_block, column, block) for block in range(len(index.rows))], default_workers()
    )
    lengths = np.concatenate([np.zeros(0, np.int32), *parts])
    if kept is not None:
        written = io.BytesIO()
        np.save(written, lengths)
        with suppress(StoreError, CorruptShard, OSError):
            make_directory(kept.parent)
            kept.unlink(missing_ok=True)
            write_new(kept, written.getvalue() + sha256_hex(written.getvalue()).encode(), sync="none")
    return lengths


def _checked(data: bytes) -> bytes:
    if sha256_hex(data[:-64]).encode() != data[-64:]:
        raise ValueError("the digest is another one")
    return data[:-64]


def _counting(index: SplitIndex, read_block: ReadBlock, column: str, block: int) -> Callable[[], I32]:
    def count() -> I32:
        where = f"{index.shards[index.shard_of_block[block]]} block {index.block[block]}"
        values = read_block(block, [column])[column]
        if len(values) != index.rows[block]:
            raise CorruptShard(
                f"{where}: has {len(values)} rows, the index says {index.rows[block]}; the shard changed after it was"
                " indexed: restore it or index the dataset again"
            )
        if values.null_count:
            raise InputError(
                f"{where}: column {column} holds {values.null_count} nulls; a sequence without tokens is an empty list"
            )
        counted = values if pa.types.is_integer(values.type) else pc.list_value_length(values)
        lengths: npt.NDArray[np.int64] = counted.to_numpy().astype(np.int64)
        if len(lengths) and not 0 <= int(lengths.min()) <= int(lengths.max()) < 1 << 31:
            raise InputError(f"{where}: column {column} holds {lengths.min()}..{lengths.max()}, which are no lengths")
        return lengths.astype(np.int32)

    return count
