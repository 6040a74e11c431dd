"""The facts of many small rows at once, from their blobs: a few vector operations, no Python work for each row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.arrays import I64
from headrace.errors import CorruptShard
from headrace.histories.many import joined
from headrace.histories.rows import HEADER_BYTES, decode_row


def facts_of_blobs(blobs: Sequence[bytes | memoryview], names: Sequence[str]) -> I64:
    """int64 [R, 5]: of each row what `facts_of` says of it opened. names: file and row, for errors.

    Raises `CorruptShard` for blobs that are no rows.
    """
    if not blobs:
        return np.zeros((0, 5), np.int64)
    found = joined(blobs)
    if found is None:
        for blob, name in zip(blobs, names, strict=True):
            decode_row(blob, name)  # says which of them is none, and why
        raise CorruptShard(f"{names[0]}: or a row read with it is damaged; restore the file or prepare the run again")
    data, begin, head = found.data, found.begin, found.head
    n, peers4, width = found.n, found.peers4, found.width

    starts = np.cumsum(n) - n
    row = np.repeat(np.arange(len(n)), n)
    place = np.arange(int(n.sum())) - starts[row]
    at_codes = begin + HEADER_BYTES + 4 * n
    at_peers = begin + found.at_index
    seconds = data.view("<u4")[((begin + HEADER_BYTES) >> 2)[row] + place].astype(np.int64)
    failed = data.view("<u2")[(at_codes >> 1)[row] + place] == 0
    lengths = np.where(failed, 3, 5) + np.where(head["entity_family"] == 6, 16, 4)[row]
    for size in (1, 2, 4):
        mine = np.flatnonzero(width[row] == size)
        peer = data.view(f"<u{size}")[(at_peers // size)[row[mine]] + place[mine]]
        lengths[mine] += np.where(peer < peers4[row[mine]], 5, 17)
    long_gaps = (np.diff(seconds) >= 256) & (row[1:] == row[:-1])
    return np.column_stack(
        [
            n,
            np.add.reduceat(lengths, starts),
            np.maximum.reduceat(lengths, starts),
            np.bincount(row[1:][long_gaps], minlength=len(n)),
            seconds[starts + n - 1],
        ]
    )
