"""A rank's items as pools: what to decode and gather together. Pure.

Lanes advance in lockstep, so a rank's rows of one window round (the next window of every lane it touches) lie
together in the global order: a pool. Small rounds are taken several at a time, as a pool has a fixed cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from headrace.arrays import I64
from headrace.stream.order.chain import parts_of
from headrace.stream.order.epoch import Order, Pool
from headrace.stream.order.remaining import Remaining
from headrace.stream.order.share import Share

MOST_POOLS_AHEAD = 16  # whose blocks a reader may hold while it reads one
_LEAST_POOL_ROWS = 1 << 15
_LEAST_POOL_BYTES = 1 << 24


def least_pool_rows(row_bytes: int) -> int:
    """How many rows are worth a pool: 32,768, or as many as 16 MiB hold."""
    return max(1, min(_LEAST_POOL_ROWS, _LEAST_POOL_BYTES // max(1, row_bytes)))


def pool_limits(order: Order, share: Share, first: int, *, least_rows: int = _LEAST_POOL_ROWS) -> Iterator[int]:
    """Ascending positions at which pools of a pass from position `first` end: borders of whole rounds, and of parts.

    The loop has to wait for the first pool, so it is a quarter as long as the others.
    """
    quarter = True
    for begin, end, part in parts_of(order):
        if end <= first:
            continue
        round_rows, pool_rows = rows_of_pools(part, share.stride, least_rows=least_rows)
        origin = max(begin, share.origin)
        at = max(first, begin)
        last = origin + (at - origin) // pool_rows * pool_rows
        if quarter:
            begun = origin + (at - origin) // round_rows * round_rows
            limit = begun + max(1, pool_rows // round_rows // 4) * round_rows
            if limit < min(last + pool_rows, end):
                yield limit
            quarter = False
        yield from range(last + pool_rows, end, pool_rows)
        yield end


def rows_of_pools(order: Order, ranks: int, *, least_rows: int = _LEAST_POOL_ROWS) -> tuple[int, int]:
    """(positions of a round, positions that a pool of each rank covers together: whole rounds)."""
    round_rows = order.lanes * (order.window_rows if order.shuffle else 1)
    return round_rows, max(1, -(-least_rows * ranks // round_rows)) * round_rows


def plan_pools(
    order: Order, remaining: Remaining, share: Share, *, least_rows: int = _LEAST_POOL_ROWS
) -> Iterator[Pool]:
    """The rank's pools in order, all its items once; made one at a time.

    least_rows: of a pool, if there are as many; of the first, which the loop has to wait for, a quarter will do.
    """
    if not share.items:
        return
    item = 0
    for limit in pool_limits(order, share, remaining.first, least_rows=least_rows) if share.rows else ():
        stop = share.items_below(remaining.count_below(limit))
        if stop > item:
            filling = share.items - share.rows if stop == share.rows else 0  # the last pool also fills the last step
            yield _pool(order, remaining.positions(share.places(item, stop)), filling)
            item = stop
        if item == share.rows:
            return
    if not share.rows:
        yield _pool(order, remaining.positions(np.array([share.place_of(0)])), share.items - 1)


def _pool(order: Order, positions: I64, filling: int) -> Pool:
    """The pool of ascending positions, the last of them repeated `filling` times more."""
    pool = order.pieces_of(positions)
    if not filling:
        return pool
    index = np.arange(pool.items, dtype=np.int64) if pool.index is None else pool.index
    return replace(pool, index=np.append(index, np.full(filling, index[-1])), items=pool.items + filling)
