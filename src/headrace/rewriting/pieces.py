"""Plan the shards that a rewrite writes, and read the rows of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa

from headrace.arrays import Bools
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import IndexedDataset
from headrace.errors import InputError
from headrace.formats.grouped import first_of_groups
from headrace.formats.registry import stem_of_name

_BINS = ("input_ids", "loss_mask", "seq_start_id")


@dataclass(frozen=True)
class Piece:
    """One output shard: the blocks start..stop-1 of a split, in order.

    source_shard: the shard of these rows; "" if they come from several.
    bytes: of the blocks, as the index records them.
    """

    split: str
    target: str
    start: int
    stop: int
    rows: int
    bytes: int
    source_shard: str


def read_blocks(
    source: IndexedDataset, chunk: Piece, columns: Sequence[str]
) -> Iterator[tuple[Path, pa.Table]]:
    """Read columns of the blocks of a piece, each with the path of its shard.

    Raises `InputError` for a block that has not the rows that the index says.
    """
    read = source.block_reader(chunk.split)
    index = source.split_index(chunk.split)
    for block in range(chunk.start, chunk.stop):
        table = read(block, columns)
        shard = source.root / index.shards[index.shard_of_block[block]]
        if len(table) != index.rows[block]:
            raise InputError(
                f"has {len(table)} rows in a block for which the index says"
                f" {index.rows[block]}: it changed while it was read",
                path=shard,
                remedy="run again once it is complete",
            )
        yield shard, table


def plan_outputs(index: SplitIndex, directory: str, shard_bytes: int | None) -> list[Piece]:
    """Plan the output shards of a split; every block is in one of them, in order.

    shard_bytes=None keeps shards and their names; of many small ones, groups are written under the
    name of their first. Otherwise shards are numbered, and one ends with
    the block that brings it to shard_bytes or beyond, so small source shards are merged and large
    ones are divided.
    """
    if not len(index.rows):
        return []
    if shard_bytes is None:
        starts_shard = np.diff(index.shard_of_block, prepend=-1) != 0
        if not are_bins(index.schema.names):
            starts_shard &= _starts_group(index)[index.shard_of_block]
        first_blocks = np.flatnonzero(starts_shard).tolist()
        names = _output_names(index, directory)
        targets = [names[int(index.shard_of_block[begin])] for begin in first_blocks]
    else:
        first_blocks = [0]
        shard_size = 0
        for block, size in enumerate(index.length.tolist()):
            if shard_size >= shard_bytes:
                first_blocks.append(block)
                shard_size = 0
            shard_size += size
        targets = [f"{directory}/part-{number:05d}.parquet" for number in range(len(first_blocks))]
    chunks = []
    for target, start, stop in zip(
        targets, first_blocks, [*first_blocks[1:], len(index.rows)], strict=True
    ):
        shards = np.unique(index.shard_of_block[start:stop])
        chunks.append(
            Piece(
                split=index.split,
                target=target,
                start=start,
                stop=stop,
                rows=int(index.rows[start:stop].sum()),
                bytes=int(index.length[start:stop].sum()),
                source_shard=index.shards[int(shards[0])] if len(shards) == 1 else "",
            )
        )
    return chunks


def _starts_group(index: SplitIndex) -> Bools:
    """Mask the shards that begin an output shard."""
    sizes = np.bincount(index.shard_of_block, index.length, len(index.shards))
    firsts = first_of_groups(index.shards, sizes.astype(np.int64).tolist())
    starts_shard = np.zeros(len(index.shards), np.bool_)
    starts_shard[firsts] = True
    return starts_shard


def _output_names(index: SplitIndex, directory: str) -> list[str]:
    """Return the path of each shard below the split's directory: its name as a Parquet file.

    If two shards would get the same name, both keep their extension in it.
    """
    paths = [PurePosixPath(name) for name in index.shards]
    inside = [
        path.relative_to(directory) if path.is_relative_to(directory) else path for path in paths
    ]
    stems = [path.with_name(stem_of_name(path.name)) for path in inside]
    counts = Counter(stems)
    names = [stem if counts[stem] == 1 else path for stem, path in zip(stems, inside, strict=True)]
    return [f"{directory}/{name}.parquet" for name in names]


def are_bins(names: Iterable[str]) -> bool:
    """Check if columns of these names are packed bins."""
    return set(_BINS) <= set(names)
