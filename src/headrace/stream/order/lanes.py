"""Choose the number of lanes and groups of an epoch, and the rows of a round. Pure.

The choice depends on the index alone: rows, and the decoded bytes of all columns. It does not
depend on the machine, the requested columns or free memory, so every job makes the same one. Ranks
matter only if they do not divide the lanes.

There are three sizes of data. M is `memory_bytes`, 512 MiB unless set; a row counts its decoded
bytes y, and 24 bytes for its place in the permutation of a round while the next round is permuted.

- Small: N rows with N (y + 24) <= M / 2. One lane and one round, which is a true permutation.
- Kept: N y <= 3/4 M. 12,288 lanes in one group, which begin anywhere in blocks, so that sorted data
  mixes like a permutation. A round is only its order: W = (M - N y) / 24 rows.
- Larger: as many lanes L as leave four blocks of b bytes to each, with L b <= 3/4 M. A round has
  W = (M - L b) / (y + 24) rows.

Every rank decodes small and kept data once and keeps it. Their order is the same on any ranks.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.dataset.index import SplitIndex

OPEN_BYTES = 1 << 29
ORDER_BYTES = 24  # a row of a round, for its permutation: the last one, the next, and its making
KEPT_LANES = 48 << 8  # measured: with 768, batches of 1,024 meet 584 of 1,000 classes, not 641
# with many divisors, so that most numbers of ranks divide one
LANE_FAMILY = (768, 384, 192, 96, 48, 24, 12, 6, 4, 2, 1)
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


def is_small(rows: int, decoded_bytes: int, memory_bytes: int) -> bool:
    """Return whether the rows of a split are permuted as a whole."""
    return 2 * (decoded_bytes + ORDER_BYTES * rows) <= memory_bytes


def fits_in_memory(decoded_bytes: int, memory_bytes: int) -> bool:
    """Return whether every rank may keep a decoded split of this size."""
    return decoded_bytes <= _most_open(memory_bytes)


def mixes_everything(cut: Lanes, rows: int) -> bool:
    """Return whether lanes are those of small or kept data: every rank needs every block for every
    round.
    """
    one_round = cut.lanes * cut.window_rows >= rows
    return cut.groups == 1 and (one_round or cut.lanes == KEPT_LANES)


def _most_open(memory_bytes: int) -> int:
    """Return the bytes of memory that decoded blocks may take; the rest is for a round."""
    return memory_bytes * 3 // 4


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
    whole_shards: bool = False,
) -> Lanes:
    """Choose the lanes of the first epoch of a stream, for this many ranks.

    lanes, shuffle_rows: as requested; a round then has `shuffle_rows` rows. Unshuffled, each rank
    has one contiguous lane.
    sources: of a blend; they share the memory.
    balanced: whether rows of like cost share steps, which needs rounds of many steps.
    whole_shards: whether each rank reads shards of its own, so that no rank keeps all of them.
    """
    global_batch = ranks * batch_size
    if not shuffle:
        if lanes is None:
            lanes = ranks
        return Lanes(lanes, 1, lanes)
    block_bytes = estimate_block_bytes(index)
    decoded = int(block_bytes.sum())
    rows = max(1, index.total_rows)
    if lanes is None and shuffle_rows is None:
        if is_small(rows, decoded, memory_bytes):
            return Lanes(1, rows, 1)
        if fits_in_memory(decoded, memory_bytes) and not whole_shards:
            order_rows = (memory_bytes - decoded) // ORDER_BYTES // sources
            return Lanes(KEPT_LANES, max(1, order_rows // KEPT_LANES), 1)
    base = lanes or _most_lanes(block_bytes[index.rows > 0], _most_open(memory_bytes) / sources)
    if lanes is None:
        lanes = _for_ranks(base, ranks)
    if shuffle_rows is None:
        opened = min(
            base * _median(block_bytes[index.rows > 0]) * sources, _most_open(memory_bytes)
        )
        shuffle_rows = int((memory_bytes - opened) / (decoded / rows + ORDER_BYTES))
        if balanced:
            shuffle_rows = max(shuffle_rows, _BALANCED_STEPS * global_batch)
    return Lanes(lanes, max(1, shuffle_rows // sources // lanes), gcd(lanes, global_batch))


def _most_lanes(block_bytes: I64, most_open: float) -> int:
    """Return the largest number of lanes that leaves four blocks to each, and whose open blocks
    take at most `most_open` bytes.
    """
    most = min(len(block_bytes) / _BLOCKS_PER_LANE, most_open / _median(block_bytes))
    return next((lanes for lanes in LANE_FAMILY if lanes <= most), 1)


def _median(block_bytes: I64) -> float:
    if len(block_bytes):
        return float(np.median(block_bytes))
    return 1.0


def _for_ranks(lanes: int, ranks: int) -> int:
    """Return the nearest number of lanes that these ranks divide."""
    if lanes % ranks:
        return ranks * max(1, round(lanes / ranks))
    return lanes


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
        for lanes in LANE_FAMILY
        if lanes == 1 or lanes <= min(cut.lanes, blocks / _BLOCKS_PER_LANE)
    )
    lanes = _for_ranks(base, ranks)
    window_rows = max(1, cut.lanes * cut.window_rows // lanes)
    return Lanes(lanes, window_rows, gcd(lanes, ranks * batch_size))


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
