"""Query the order backwards: which step delivers a row, and which rows a checkpoint has seen. Pure.

Finding rows costs one permutation per round that holds some of them. Listing what a state has seen
costs O(rows received or left, whichever are fewer), one part of the epoch at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from headrace.arrays import I64
from headrace.dataset.index import SplitIndex
from headrace.errors import InputError
from headrace.stream.order.joined import parts_of
from headrace.stream.order.layout import order_of_state
from headrace.stream.order.mixed import MixedOrder
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import Remaining, split_at
from headrace.stream.order.state import StreamState

_PART_ROWS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """The delivery of one row.

    position: in the global order. step, batch_row: batch number of its rank, and row in it.
    """

    position: int
    rank: int
    step: int
    batch_row: int


def row_number(index: SplitIndex, shard: str, row: int) -> tuple[int, int]:
    """Return (block number, row inside the block) of a shard's row, from 0.

    Raises `InputError` if there is none.
    """
    named = []
    for number, name in enumerate(index.shards):
        if name == shard or name.rsplit("/", 1)[-1] == shard:
            named.append(number)
    if len(named) != 1:
        known = ", ".join(index.shards[:3]) + (", …" if len(index.shards) > 3 else "")
        raise InputError(
            f"split {index.split} has {len(named) or 'no'} shards of this name",
            setting="shard",
            value=shard,
            remedy=f"give one of {known or 'none, it is empty'}",
        )
    blocks = np.flatnonzero(index.shard_of_block == named[0])
    ends = np.cumsum(index.rows[blocks])
    if not 0 <= row < int(ends[-1]):
        raise InputError(
            f"it has {int(ends[-1])} rows",
            path=shard,
            setting="row",
            value=row,
            remedy="count from 0",
        )
    at = int(np.searchsorted(ends, row, side="right"))
    return int(blocks[at]), row - int(ends[at] - index.rows[blocks[at]])


def row_in_shard(index: SplitIndex, rows: I64) -> tuple[I64, I64]:
    """Return (shard number, row in the shard), both from 0, of many rows of the split: the inverse
    of `row_number`.
    """
    block, _ = split_at(index.first_row, rows)
    shard = index.shard_of_block[block]
    return shard, rows - index.first_row[np.searchsorted(index.shard_of_block, shard)]


@dataclass(frozen=True, kw_only=True)
class Sightings:
    """The deliveries of several rows, by row and position; int64, parallel.

    row: index among the rows asked for; the rest as in `Sighting`.
    """

    row: I64
    position: I64
    rank: I64
    step: I64
    batch_row: I64


def find_rows(plan: Plan, rows: I64) -> Sightings:
    """Find every delivery of rows of the split in the plan's pass: which rank receives them, and at
    which step.

    rows: row numbers in the split. A row has no delivery if "drop" leaves it out, it was received
    before, or the epoch is too short to reach it.
    """
    which, position = plan.order.positions_of_rows(*split_at(plan.index.first_row, rows))
    left = plan.remaining.indices_of(position)
    rank, item = plan.owners(left)
    delivered = np.flatnonzero((left >= 0) & (item < plan.rows_per_rank[rank]))
    delivered = delivered[np.lexsort((position[delivered], which[delivered]))]
    step, in_batch = np.divmod(item[delivered], plan.batch_size)
    return Sightings(
        row=which[delivered],
        position=position[delivered],
        rank=rank[delivered],
        step=step,
        batch_row=in_batch,
    )


def find_row(plan: Plan, *, block: int, row: int) -> Sighting | None:
    """Find the first delivery of a row of a block; None if nobody receives it."""
    sightings = find_rows(plan, plan.index.first_row[block : block + 1] + row)
    names = [field.name for field in fields(Sighting)]
    if len(sightings.row):
        return Sighting(**{name: int(getattr(sightings, name)[0]) for name in names})
    return None


def seen_per_shard(index: SplitIndex, state: StreamState) -> I64:
    """Count the rows of each shard that a state has received, with repetitions: int64, parallel to
    `index.shards`.
    """
    left = state.remaining
    boundaries = [0, *(border for pair in left.ranges for border in pair), left.rows]
    gaps = (
        (start, stop)
        for start, stop in zip(boundaries[0::2], boundaries[1::2], strict=True)
        if start < stop
    )
    seen = Remaining(rows=left.rows, ranges=tuple(gaps))
    order = order_of_state(index, state)
    # An order of one whole pass holds every row once, so that what is left may be counted instead.
    if isinstance(parts_of(order)[0].order, MixedOrder) or left.total >= seen.total:
        fewer = seen
    else:
        fewer = left
    counts = np.zeros(len(index.rows), np.int64)
    round_rows = order.lanes * order.window_rows
    part_rows = max(1, _PART_ROWS // round_rows) * round_rows
    for start, stop in fewer.ranges:
        while start < stop:  # parts end on a round of windows, so that no window is made twice
            end = min(stop, start // part_rows * part_rows + part_rows)
            blocks, _ = order.locate(order.line_of(np.arange(start, end, dtype=np.int64)))
            counts += np.bincount(blocks, minlength=len(counts))
            start = end
    if fewer is left:
        counts = index.rows - counts
    return np.bincount(index.shard_of_block, weights=counts, minlength=len(index.shards)).astype(
        np.int64
    )
