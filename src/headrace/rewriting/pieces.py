"""What a rewrite makes of which blocks: one output shard per source shard, or shards of about equal size. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np

from headrace.dataset.index import SplitIndex
from headrace.formats.detect import stem_of_name


@dataclass(frozen=True)
class Piece:
    """One output shard: the blocks start..stop-1 of a split, in order.

    source_shard: whose rows these are; "" where they are of several. bytes: of the blocks, as the index has them.
    """

    split: str
    target: str
    start: int
    stop: int
    rows: int
    bytes: int
    source_shard: str


def plan_pieces(index: SplitIndex, directory: str, shard_bytes: int | None) -> list[Piece]:
    """The output shards of a split; every block is in one of them, in order.

    shard_bytes=None keeps shards and their names. Otherwise shards are numbered, and one ends with the block that
    brings it to shard_bytes or beyond, so small source shards are put together and large ones are divided.
    """
    if not len(index.rows):
        return []
    if shard_bytes is None:
        begins = np.flatnonzero(np.diff(index.shard_of_block, prepend=-1))
        names = _kept_names(index, directory)
        targets = [names[int(shard)] for shard in index.shard_of_block[begins]]
    else:
        begins = np.array(_cuts(index.length.tolist(), shard_bytes))
        targets = [f"{directory}/part-{number:05d}.parquet" for number in range(len(begins))]
    stops = np.append(begins[1:], len(index.rows))
    pieces = []
    for target, start, stop in zip(targets, begins.tolist(), stops.tolist(), strict=True):
        shards = np.unique(index.shard_of_block[start:stop])
        pieces.append(
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
    return pieces


def _cuts(sizes: list[int], shard_bytes: int) -> list[int]:
    begins, held = [0], 0
    for block, size in enumerate(sizes):
        if held >= shard_bytes:
            begins.append(block)
            held = 0
        held += size
    return begins


def _kept_names(index: SplitIndex, directory: str) -> Mapping[int, str]:
    """Shard place → path below the split's directory: its name as a Parquet file; both, where two would be one."""
    paths = [PurePosixPath(name) for name in index.shards]
    inside = [path.relative_to(directory) if path.is_relative_to(directory) else path for path in paths]
    stems = [path.with_name(stem_of_name(path.name)) for path in inside]
    whole = [stem if stems.count(stem) == 1 else path for stem, path in zip(stems, inside, strict=True)]
    return {place: f"{directory}/{path}.parquet" for place, path in enumerate(whole)}
