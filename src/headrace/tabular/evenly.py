"""The rows that remain after a DataLoader has batched rows of its own accord. Pure.

A stream hands rows to workers in pieces: worker w of W gets the pieces w, w + W, … of its rank. A DataLoader takes its
workers in turn, skips those that have ended, and cuts the rows of each worker into batches of its own. Every rank does
the same, so the number of batches says which rows of every rank were received.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from headrace.arrays import I64
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import Remaining, check_batches


def left_after(plan: Plan, batches: int, *, batch_size: int, workers: int, piece_rows: int) -> Remaining:
    """Return what remains of a pass after `batches` batches of `batch_size` rows on every rank.

    plan: of single rows, so that a step is one row of each rank. Raises `StreamError` if the pass has fewer batches.
    Cost: O(pieces of a rank).
    """
    rank_rows, workers = plan.steps_per_rank, max(1, workers)
    begins = np.arange(0, rank_rows, piece_rows, dtype=np.int64)
    ends = np.minimum(begins + piece_rows, rank_rows)
    turn, worker = np.divmod(np.arange(len(begins)), workers)
    worker_rows = np.bincount(worker, ends - begins, minlength=workers).astype(np.int64)
    received = np.minimum(_in_turn(-(-worker_rows // batch_size), batches) * batch_size, worker_rows)
    begins += np.clip(received[worker] - turn * piece_rows, 0, ends - begins)
    begins, ends = np.append(begins, rank_rows), np.append(ends, plan.remaining.total)  # and what "drop" leaves out
    bounds, stride = np.array([0, plan.remaining.total], np.int64), plan.world_size
    if plan.regions is not None:
        bounds, stride = plan.regions.bounds(plan.remaining, plan.world_size), 1
    starts, stops = (np.minimum(bounds[:-1, None] + stride * each, bounds[1:, None]) for each in (begins, ends))
    return plan.remaining.keep(starts.ravel(), stops.ravel())


def _in_turn(batches_of_worker: I64, batches: int) -> I64:
    """How many of its batches each worker has given when all together gave this many: int64 [W]."""
    check_batches(batches, int(batches_of_worker.sum()))
    turns = range(int(batches_of_worker.max(initial=0)) + 1)
    turn = bisect_right(turns, batches, key=lambda turn: int(np.minimum(batches_of_worker, turn).sum())) - 1
    given = np.minimum(batches_of_worker, turn)
    given[np.flatnonzero(batches_of_worker > turn)[: batches - int(given.sum())]] += 1
    return given
