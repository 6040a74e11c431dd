"""Plan the output shards of a rewrite, and keep what packed bins say about themselves.

A rewrite makes one output shard per source shard, or shards of about equal size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import pyarrow as pa

from headrace.bins.alignment import ALIGNMENT_KEY
from headrace.dataset.index import SplitIndex
from headrace.errors import InputError
from headrace.formats.blocks import kind_of_word
from headrace.formats.detect import stem_of_name
from headrace.formats.opened import opened

_BINS = ("input_ids", "loss_mask", "seq_start_id")
# Of rewritten bins, part of a run's identity: raised when what is written of them changes, so that older runs are not
# taken for what would be written now. Before 1 the word where the masks stand was lost.
BINS_LAYOUT = 1
_OURS = "headrace."
_ALIGNMENTS = (ALIGNMENT_KEY, ALIGNMENT_KEY.removeprefix(_OURS))  # ours, and what others write


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
    """Plan the output shards of a split; every block is in one of them, in order.

    shard_bytes=None keeps shards and their names. Otherwise shards are numbered, and one ends with the block that
    brings it to shard_bytes or beyond, so small source shards are put together and large ones are divided.
    """
    if not len(index.rows):
        return []
    if shard_bytes is None:
        begins = np.flatnonzero(np.diff(index.shard_of_block, prepend=-1)).tolist()
        names = _kept_names(index, directory)
        targets = [names[int(index.shard_of_block[begin])] for begin in begins]
    else:
        begins, held = [0], 0
        for block, size in enumerate(index.length.tolist()):
            if held >= shard_bytes:
                begins.append(block)
                held = 0
            held += size
        targets = [f"{directory}/part-{number:05d}.parquet" for number in range(len(begins))]
    pieces = []
    for target, start, stop in zip(targets, begins, [*begins[1:], len(index.rows)], strict=True):
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


def _kept_names(index: SplitIndex, directory: str) -> list[str]:
    """Path below the split's directory for each shard: its name as a Parquet file; both, where two would be one."""
    paths = [PurePosixPath(name) for name in index.shards]
    inside = [path.relative_to(directory) if path.is_relative_to(directory) else path for path in paths]
    stems = [path.with_name(stem_of_name(path.name)) for path in inside]
    names = [stem if stems.count(stem) == 1 else path for stem, path in zip(stems, inside, strict=True)]
    return [f"{directory}/{name}.parquet" for name in names]


def are_bins(names: Iterable[str]) -> bool:
    """Whether columns of these names are packed bins."""
    return set(_BINS) <= set(names)


def metadata_of_bins(root: Path, index: SplitIndex, piece: Piece, schema: pa.Schema) -> dict[str, str]:
    """Return the Parquet metadata that all source shards of a piece agree on; none where the columns are not bins.

    Without the word where the masks stand nobody could tell bins from rows of lists, or what they train. Raises
    `InputError` if shards are put together whose masks stand in different places.
    """
    if not are_bins(schema.names):
        return {}
    shards = np.unique(index.shard_of_block[piece.start : piece.stop]).tolist()
    said = [_metadata(root / index.shards[shard], index.formats[shard]) for shard in shards]
    for shard, own in zip(shards, said, strict=True):
        for key in _ALIGNMENTS:
            if own.get(key) != said[0].get(key):
                raise InputError(
                    f"{root / index.shards[shard]}: its {key} is {own.get(key)!r}, of {index.shards[shards[0]]} it is"
                    f" {said[0].get(key)!r}; such bins cannot be one shard: leave shard_bytes out"
                )
    return {key: value for key, value in said[0].items() if all(own.get(key) == value for own in said)}


def _metadata(path: Path, word: str) -> dict[str, str]:
    kind = kind_of_word(word)
    if kind.format != "parquet":
        return {}
    with opened(path, kind) as reader:
        found = reader.file.metadata.metadata or {}
    texts = {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in found.items()}
    return {key: value for key, value in texts.items() if key.startswith(_OURS) or key in _ALIGNMENTS}
