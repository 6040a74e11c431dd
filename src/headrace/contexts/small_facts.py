"""The facts of many small rows at once, from their blobs: a few vector operations, no Python work for each row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.arrays import I64
from headrace.errors import CorruptShard
from headrace.histories.many import columns_of, joined
from headrace.histories.rows import decode_row


def facts_of_blobs(blobs: Sequence[bytes | memoryview], names: Sequence[str]) -> I64:
    """int64 [R, 5]: of each row what `facts_of` says of it opened. names: file and row, for errors.

    Raises `CorruptShard` for blobs that are no rows.
    """
    if not blobs:
        return np.zeros((0, 5), np.int64)
    found = joined(blobs)
    columns = None if found is None else columns_of(found)
    if found is None or columns is None:
        for blob, name in zip(blobs, names, strict=True):
            decode_row(blob, name)  # says which of them is none, and why
        raise CorruptShard(f"{names[0]}: or a row read with it is damaged; restore the file or prepare the run again")
    n, starts, index = found.n, found.starts, columns.index
    lengths = np.where(columns.codes == 0, 3, 5) + np.repeat(np.where(found.head["entity_family"] == 6, 16, 4), n)
    if index is not None:
        lengths += np.where(index < np.repeat(found.peers4, n), 5, 17) * np.repeat(found.width > 0, n)
    long_gaps = np.diff(columns.seconds.astype(np.int64)) >= 256
    long_gaps[starts[1:] - 1] = False
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(long_gaps)])  # at each measurement, in all rows
    return np.column_stack(
        [
            n,
            np.add.reduceat(lengths, starts),
            np.maximum.reduceat(lengths, starts),
            before[starts + n - 1] - before[starts],
            columns.seconds[starts + n - 1],
        ]
    )
