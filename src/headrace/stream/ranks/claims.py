"""What ranks claim of an epoch, and the rows of a claim. Pure.

The line of an epoch is its blocks end to end, in their keyed order (see `order`); inside a block the rows are permuted
by a key of the block alone. What is left of the line is cut at block borders, so that a claim is one block, or a run of
small ones of about a batch. The last blocks are cut finer: whoever claims one of them late keeps the others waiting.
What is left after a stop is ranges of the line again, whoever had claimed them. Cost is O(blocks).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from headrace.arrays import I64, U64
from headrace.digest import derive_key, permutation
from headrace.stream.order.epoch import EpochOrder, span_rows
from headrace.stream.order.pools import Pool
from headrace.stream.order.remaining import Remaining

_LAST_PARTS = 4  # small claims at the end keep the last ranks from waiting for one


def claim_borders(order: EpochOrder, remaining: Remaining, *, batch_size: int, ranks: int) -> I64:
    """Claim i is the places [borders[i], borders[i+1]) of what remains: int64 [claims+1], strictly rising from 0."""
    if not remaining.total:
        return np.zeros(1, np.int64)
    starts, stops = np.array(remaining.ranges, np.int64).T
    before = np.concatenate([[0], np.cumsum(stops - starts)])
    part = np.searchsorted(starts, order.line, side="right") - 1
    inside = np.minimum(order.line, stops[part]) - starts[part]
    borders = np.unique(np.where(part < 0, 0, before[part] + inside))
    last = max(0, len(borders) - 1 - ranks)
    finer = [_cut(start, stop, batch_size) for start, stop in zip(borders[last:-1], borders[last + 1 :], strict=True)]
    borders = np.concatenate([borders[: last + 1], *finer])
    # Of the borders between two multiples of a batch the first is enough: small blocks are claimed in runs.
    wanted = np.diff(borders // batch_size) > 0
    wanted[-1] = True
    return np.concatenate([[0], borders[1:][wanted]]).astype(np.int64)


def _cut(start: int, stop: int, batch_size: int) -> I64:
    """The borders of up to `_LAST_PARTS` parts, each of a batch or more; without `start`."""
    parts = max(1, min(_LAST_PARTS, (stop - start) // batch_size))
    return start + (stop - start) * np.arange(1, parts + 1, dtype=np.int64) // parts


def claim_rows(order: EpochOrder, identities: U64, places: I64) -> Pool:
    """Where the rows at these places of the line are, in the order in which they are delivered."""
    along = np.searchsorted(order.line, places, side="right") - 1
    rows = places - order.line[along]
    needed, which = np.unique(along, return_inverse=True)
    if order.shuffle:
        for number, at in enumerate(needed.tolist()):
            block, of_block = order.blocks[at], which == number
            key = derive_key(order.seed, "claimed block", order.epoch, *map(int, identities[block]))
            rows[of_block] = permutation(key, int(order.line[at + 1] - order.line[at]))[rows[of_block]]
    found = span_rows(order.blocks[needed], which, rows)
    return Pool(pieces=found.pieces, index=found.index, items=len(places))


def left_of(remaining: Remaining, borders: I64, *, claimed: int, not_received: Iterable[tuple[int, int]]) -> Remaining:
    """What nobody has received: the claims from number `claimed` on, and these [start, stop) places of earlier ones."""
    parts = sorted((start, stop) for start, stop in not_received if start < stop)
    parts.append((int(borders[claimed]), int(borders[-1])))
    starts, stops = np.array(parts, np.int64).T
    return remaining.keep(starts, stops)
