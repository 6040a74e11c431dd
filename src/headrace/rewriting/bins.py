"""What shards of packed bins say about themselves in their Parquet metadata, kept over a rewrite.

Without the word where the masks stand nobody could tell bins from rows of lists, or what they train.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.bins.alignment import ALIGNMENT_KEY
from headrace.dataset.index import SplitIndex
from headrace.errors import InputError
from headrace.formats.blocks import kind_of_word
from headrace.formats.open_parquet import key_values
from headrace.rewriting.pieces import Piece

_BINS = ("input_ids", "loss_mask", "seq_start_id")
# Of rewritten bins, part of a run's identity: raised when what is written of them changes, so that older runs are not
# taken for what would be written now. Before 1 the word where the masks stand was lost.
BINS_LAYOUT = 1
_OURS = "headrace."
_ALIGNMENTS = (ALIGNMENT_KEY, ALIGNMENT_KEY.removeprefix(_OURS))  # ours, and what others write


def are_bins(names: Iterable[str]) -> bool:
    """Whether columns of these names are packed bins."""
    return set(_BINS) <= set(names)


def metadata_of_bins(root: Path, index: SplitIndex, piece: Piece, schema: pa.Schema) -> dict[str, str]:
    """The texts that all source shards of a piece agree on; none where the columns are not those of bins.

    Raises `InputError` if shards are put together whose masks stand in different places.
    """
    if not are_bins(schema.names):
        return {}
    shards = np.unique(index.shard_of_block[piece.start : piece.stop]).tolist()
    first: Mapping[str, str] = {}
    kept: dict[str, str] = {}
    for place, shard in enumerate(shards):
        said = _said(root / index.shards[shard], index.formats[shard])
        if not place:
            first, kept = said, dict(said)
            continue
        for key in _ALIGNMENTS:
            if said.get(key) != first.get(key):
                raise InputError(
                    f"{root / index.shards[shard]}: its {key} is {said.get(key)!r}, of {index.shards[shards[0]]} it is"
                    f" {first.get(key)!r}; such bins cannot be one shard: leave shard_bytes out"
                )
        kept = {key: value for key, value in kept.items() if said.get(key) == value}
    return kept


def _said(path: Path, word: str) -> Mapping[str, str]:
    kind = kind_of_word(word)
    if kind.format != "parquet":
        return {}
    found = key_values(path, kind)
    texts = {key.decode("utf-8", "replace"): value.decode("utf-8", "replace") for key, value in found.items()}
    return {key: value for key, value in texts.items() if key.startswith(_OURS) or key in _ALIGNMENTS}
