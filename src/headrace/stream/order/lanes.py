"""Choose the number of lanes and groups of an epoch, and the rows of a round. Pure.

The choice depends on the index alone: rows, and the decoded bytes of all columns. It does not
depend on the machine, the requested columns or free memory, so every job makes the same one. Ranks
matter only if they do not divide the lanes.

Small data has one lane and one round, which is a true permutation; every rank keeps the decoded
split in memory. Larger data has as many lanes as leave four blocks to each, limited by how many
blocks one process may hold open. 262,144 rows are shuffled together, or as many as an eighth of
that memory holds.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.dataset.index import SplitIndex
from headrace.stream.order.interleave import most_drift_rounds

SMALL_ROWS = 1 << 22
SMALL_BYTES = 1 << 28
OPEN_BYTES = 1 << 29
_ROUND_ROWS = 1 << 18
# with many divisors, so that most numbers of ranks divide one
_FAMILY = (768, 384, 192, 96, 48, 24, 12, 6, 4, 2, 1)
_BLOCKS_PER_LANE = 4
# measured: on 64 ranks, bins of 32,768 tokens, 1.004 of the mean; 1.011 with 128 steps
_BALANCED_STEPS = 512
_VARIABLE_BYTES = 32  # guess for a text or list value when the file says less
_GROWTH = 3  # of compressed texts and lists when they are decoded


class Lanes(NamedTuple):
    """L lanes in D groups, D a divisor of L; a round is `window_rows` rows of every lane."""

    lanes: int
    window_rows: int
    groups: int


def estimate_block_bytes(index: SplitIndex) -> I64:
    """Estimate the decoded bytes of each block, int64 [B]: the larger of the estimates by schema
    and by file length.

    The schema gives no width for texts and lists. If they are stored compressed, they are assumed
    three times as long in memory; the measured factor is 2.1 for token numbers and 2 to 5 for
    prose.
    """
    widths = [_value_bytes(column.type) for column in index.schema]
    length = np.where(index.rows > 0, index.length, 0)
    # of a split, shards have one format as a rule
    first = ""
    if len(index.formats):
        first = index.formats[0]
    if None in widths and (first.startswith("parquet") or "." in first):
        length = length * _GROWTH
    row_bytes = sum(_VARIABLE_BYTES if width is None else width for width in widths)
    return np.maximum(index.rows * max(1, row_bytes), length).astype(np.int64)


def is_small(rows: int, decoded_bytes: int) -> bool:
    """Return whether a split is shuffled as a whole and kept in memory."""
    return rows <= SMALL_ROWS and decoded_bytes <= SMALL_BYTES


def choose_lanes(  # noqa: PLR0913 - all are settings
    index: SplitIndex,
    *,
    shuffle: bool,
    ranks: int,
    batch_size: int,
    lanes: int | None = None,
    shuffle_rows: int | None = None,
    memory_bytes: int = OPEN_BYTES,
    sources: int = 1,
    balanced: bool = False,
) -> Lanes:
    """Choose the lanes of the first epoch of a stream, for this many ranks.

    lanes, shuffle_rows: as requested; a round then has `shuffle_rows` rows. Unshuffled, each rank
    has one contiguous lane.
    sources: of a blend; they share the memory, and take turns of D rows, which must be small
    compared with a global batch.
    balanced: whether rows of like cost share steps, which needs rounds of many steps.
    """
    global_batch = ranks * batch_size
    if not shuffle:
        if lanes is None:
            lanes = ranks
        return Lanes(lanes, 1, lanes)
    block_bytes = estimate_block_bytes(index)
    decoded = int(block_bytes.sum())
    if lanes is None and shuffle_rows is None and is_small(index.total_rows, decoded):
        return Lanes(1, max(1, index.total_rows), 1)
    not_empty = index.rows > 0
    block = 1.0
    if not_empty.any():
        block = float(np.median(block_bytes[not_empty]))
    if lanes is None:
        most = min(int(not_empty.sum()) / _BLOCKS_PER_LANE, memory_bytes / sources / block)
        lanes = next((lanes for lanes in _FAMILY if lanes <= most), 1)
        if lanes % ranks:
            lanes = ranks * max(1, round(lanes / ranks))
    if shuffle_rows is None:
        row_bytes = max(1, decoded // max(1, index.total_rows))
        shuffle_rows = min(_ROUND_ROWS, max(1, memory_bytes // 8 // row_bytes))
        if balanced:
            shuffle_rows = max(shuffle_rows, _BALANCED_STEPS * global_batch)
    if sources == 1:
        most_groups = global_batch
    else:
        most_groups = max(1, global_batch // most_drift_rounds(sources))
    return Lanes(
        lanes,
        max(1, shuffle_rows // sources // lanes),
        _groups(lanes, global_batch, ranks, most_groups),
    )


def choose_lanes_again(
    cut: Lanes, *, shuffle: bool, blocks: int, ranks: int, batch_size: int
) -> Lanes:
    """Choose lanes for the rest of an epoch on other ranks: as many as before, or as the remaining
    blocks allow.
    """
    if not shuffle:
        return Lanes(ranks, 1, ranks)
    base = next(
        lanes
        for lanes in _FAMILY
        if lanes == 1 or lanes <= min(cut.lanes, blocks / _BLOCKS_PER_LANE)
    )
    lanes = ranks * max(1, round(base / ranks))
    window_rows = max(1, cut.lanes * cut.window_rows // base)
    return Lanes(lanes, window_rows, _groups(lanes, ranks * batch_size, ranks, ranks * batch_size))


def _groups(lanes: int, global_batch: int, ranks: int, most: int) -> int:
    """Return the largest common divisor of lanes and global batch, up to `most`; a multiple of
    ranks if possible.
    """
    common = gcd(lanes, global_batch)
    divisors = [divisor for divisor in range(1, min(common, most) + 1) if common % divisor == 0]
    fitting = [divisor for divisor in divisors if divisor % ranks == 0]
    return max(fitting or divisors)


def _value_bytes(dtype: pa.DataType) -> int | None:
    """Return the bytes of one value; None if they vary."""
    if pa.types.is_fixed_size_list(dtype):
        width = _value_bytes(dtype.value_type)
        if width is None:
            return None
        return int(dtype.list_size) * width
    try:
        return -(-int(dtype.bit_width) // 8)
    except ValueError:  # Arrow has no width for variable types
        return None
