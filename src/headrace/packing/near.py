"""Read the sequences of spools and of shards as documents for the search of near duplicates.

Both give the same shingles for a sequence, so that `verify` finds in the bins what was found before
packing. Sequences that are too short to be compared have no shingles.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from headrace.arrays import I64, Bools, Ints
from headrace.bins.bins import padded_lengths
from headrace.bins.rows import PackedRows
from headrace.errors import CorruptShard, InputError
from headrace.near.shingles import Shingles, shingles_of_tokens, take_sequences
from headrace.near.stages import DocumentPart
from headrace.packing.config import PackedSequences
from headrace.packing.encode import EncodeTask
from headrace.packing.storage.legacy import read_legacy
from headrace.packing.storage.packed_parquet import read_parquet
from headrace.packing.storage.spool import SequenceSpool
from headrace.storage.places import place_of

_BATCH_TOKENS = 1 << 20


def of_task(
    settings: PackedSequences, run: Path, task: EncodeTask, blank: int | None
) -> DocumentPart:
    """Read the sequences of a task in the order of its spool.

    blank: the padding token if sequences are padded.
    """
    return DocumentPart(
        task.file(),
        sum(task.dataset.sizes[part.file] for part in task.parts),
        partial(_of_spool, settings, run / task.file(), blank),
    )


def of_shard(settings: PackedSequences, path: Path, blank: int | None) -> DocumentPart:
    """Read the sequences in the bins of a shard, in their order."""
    return DocumentPart(path.name, 0, partial(_of_shard, settings, path, blank))


def read_bins_of(path: Path, storage: str) -> Iterator[PackedRows]:
    """Read the bins of a shard in the storage it was written in. Raises `CorruptShard`."""
    try:
        yield from read_parquet(path) if storage == "parquet" else read_legacy(path)
    except InputError as error:
        raise CorruptShard(
            *error.args,
            path=error.path,
            row=error.row,
            column=error.column,
            remedy=error.marked_remedy,
        ) from error


def _of_spool(
    settings: PackedSequences, directory: Path, blank: int | None, requested: I64 | None
) -> Iterator[Shingles]:
    spool = SequenceSpool.open(directory)
    if requested is None:
        numbers = np.arange(len(spool))
    else:
        numbers = requested
    batch = np.cumsum(spool.lengths[numbers], dtype=np.int64) // _BATCH_TOKENS
    for batch_numbers in np.split(numbers, np.flatnonzero(np.diff(batch)) + 1):
        tokens, _, lengths = spool.take(batch_numbers)
        stored = padded_lengths(lengths, settings.pad_multiple, settings.capacity)
        yield _shingles(tokens, lengths, stored >= settings.least_compared, blank)


def _of_shard(
    settings: PackedSequences, path: Path, blank: int | None, requested: I64 | None
) -> Iterator[Shingles]:
    begin = 0
    with place_of(path).local_copy() as file:
        for rows in read_bins_of(file, settings.packed_storage):
            sizes = rows.sequence_lengths
            mine = None
            if requested is not None:
                mine = (
                    requested[slice(*np.searchsorted(requested, (begin, begin + len(sizes))))]
                    - begin
                )
            begin += len(sizes)
            tokens, lengths = take_sequences(rows.ids, sizes, mine)
            yield _shingles(tokens, lengths, lengths >= settings.least_compared, blank)


def _shingles(tokens: Ints, lengths: I64, compared: Bools, blank: int | None) -> Shingles:
    retained = np.repeat(compared, lengths)
    if blank is not None:
        retained &= tokens != blank
    counts = np.bincount(
        np.repeat(np.arange(len(lengths)), lengths)[retained], minlength=len(lengths)
    )
    return shingles_of_tokens(tokens[retained], counts.astype(np.int64))
