"""Share rows of shards between ranks and workers, prove that all are read once, and say what a stop
leaves.

The stream divides rows, not files, so a shard may serve several ranks; what must not overlap is
rows. All of it follows from the plan, which every rank makes by itself. Cost is O(rows) of a pass
at most.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.arrays import I64
from headrace.dataset.index import SplitIndex
from headrace.errors import HeadraceError, StreamError
from headrace.stream.order.epoch import natural_rows
from headrace.stream.order.joined import parts_of
from headrace.stream.order.mixed import MixedOrder
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import Remaining, check_batches
from headrace.stream.ranks.topology import gather

_PART_ROWS = 1 << 18

_log = logging.getLogger("headrace")


def distribution_info(  # noqa: PLR0913 - all are settings
    index: SplitIndex,
    plan: Plan,
    *,
    rank: int,
    worker: int | None,
    workers: int,
    step_rows: int,
    total_shards: int,
) -> dict[str, Any]:
    """Return what one rank (worker None) or one of its workers delivers in a pass.

    workers: W; worker w has the steps w, w + W, … of its rank, of `step_rows` rows each.
    total_shards: all there are, those without rows included; shards_per_rank: how many this rank
    takes rows from; shards_per_worker: how many this worker does, or in the parent the rank; rank,
    world_size; worker_id (0 in the parent), num_workers (1 in the parent); assigned_shards: the
    names, relative to the directory, of this worker's shards, or of the rank's.
    """
    shards_of_workers = np.zeros((workers, len(index.shards)), np.bool_)
    ends = index.first_row + index.rows
    item = 0
    for positions in _positions(plan, rank=rank):
        rows = natural_rows(index, plan.order, positions)
        shards = index.shard_of_block[np.searchsorted(ends, rows, side="right")]
        shards_of_workers[np.arange(item, item + len(rows)) // step_rows % workers, shards] = True
        item += len(rows)
    if worker is None:
        mine = shards_of_workers.any(axis=0)
    else:
        mine = shards_of_workers[worker]
    return {
        "total_shards": total_shards,
        "shards_per_rank": int(shards_of_workers.any(axis=0).sum()),
        "shards_per_worker": int(mine.sum()),
        "rank": rank,
        "world_size": plan.world_size,
        "worker_id": worker or 0,
        "num_workers": workers,
        "assigned_shards": [index.shards[shard] for shard in np.flatnonzero(mine).tolist()],
    }


def verify_no_shard_overlap(dataloader: Any, num_ranks: int, num_workers: int) -> bool:
    """Return whether in the present pass each row of each shard has exactly one reader; the same on
    every rank.

    dataloader: over a `PipelineIterableDataset`, or a `StreamingDataset`. num_ranks, num_workers:
    how many are expected (0 and 1 workers are the same). Under torch.distributed a collective call:
    every rank must make it, and all must be about to read by the same plan. Rows are counted by
    that plan. What is wrong is logged as an error by the logger "headrace".
    """
    workers = max(1, num_workers)
    mine = None
    problem = None
    try:
        mine = _about_to_read(dataloader, num_ranks, workers)
    except HeadraceError as error:
        problem = str(error)
    reports = gather((mine, problem))
    problems = [
        f"rank {rank}: {text}" for rank, (_, text) in enumerate(reports) if text is not None
    ]
    parts = [part for part, _ in reports if part is not None]
    ranks = sorted(rank for rank, _ in parts)
    if not problems and len(reports) > 1 and ranks != list(range(num_ranks)):
        problems.append(f"the readers are ranks {ranks}, expected 0 to {num_ranks - 1}, each once")
    for number, (_, reads) in enumerate(parts if not problems else []):
        differ = []
        for name in sorted(reads | parts[0][1]):
            if reads.get(name) != parts[0][1].get(name):
                differ.append(name)
        if differ:
            problems.append(
                f"rank {number} reads another order or other files than rank 0: they differ in"
                f" {', '.join(differ)}; give all ranks the same files, seed, epoch, state, batch"
                " size and workers"
            )
    problems = problems or _misread(dataloader.dataset, num_ranks)
    for line in problems:
        _log.error("shard overlap: %s", line)
    return not problems


def _about_to_read(dataloader: Any, num_ranks: int, num_workers: int) -> tuple[int, dict[str, Any]]:
    """Return this rank and, by name, everything that decides who reads what."""
    dataset = dataloader.dataset
    if not hasattr(dataset, "plan") or not hasattr(dataset, "topology"):
        raise StreamError(
            f"its dataset is a {type(dataset).__name__}, which has no plan",
            setting="dataloader",
            remedy=(
                "pass a DataLoader over a headrace dataset, or count what is delivered with"
                " headrace.audit"
            ),
        )
    if dataset.topology.world_size != num_ranks:
        raise StreamError(
            f"the dataset was built for {dataset.topology.world_size} ranks",
            setting="num_ranks",
            value=num_ranks,
            remedy="give the same number to both",
        )
    if max(1, dataloader.num_workers) != num_workers:
        raise StreamError(
            f"the DataLoader has {dataloader.num_workers} workers",
            setting="num_workers",
            value=num_workers,
            remedy="give the same number to both",
        )
    plan = dataset.plan()
    settings = {
        "total": plan.remaining.total,
        "batch_size": plan.batch_size,
        "remainder": plan.remainder,
    }
    return dataset.topology.rank, {
        **dataset.current.state_after(0),
        **settings,
        "workers": num_workers,
    }


def _misread(dataset: Any, num_ranks: int) -> list[str]:
    """Say what is wrong with the plan's readers; nothing if each row has exactly one."""
    plan = dataset.plan()
    index = dataset.index
    # it may have a row several times
    by_position = isinstance(parts_of(plan.order)[0].order, MixedOrder)
    readers = np.zeros(plan.order.rows if by_position else index.total_rows, np.uint32)
    for rank in range(num_ranks):
        for positions in _positions(plan, rank=rank):
            np.add.at(
                readers,
                positions if by_position else natural_rows(index, plan.order, positions),
                np.uint32(1),
            )
    twice = int(np.count_nonzero(readers > 1))
    missing = plan.remaining.total - plan.dropped_rows - int(np.count_nonzero(readers))
    wrong = []
    if twice:
        wrong = [f"{twice} rows have more than one reader"]
    if missing:
        return [*wrong, f"{missing} rows have no reader"]
    return wrong


def left_after(
    plan: Plan, batches: int, *, batch_size: int, workers: int, piece_rows: int
) -> Remaining:
    """Return what remains of a pass after `batches` batches of `batch_size` rows on every rank.

    The stream hands rows to workers in pieces: worker w of W gets the pieces w, w + W, … of its
    rank. A DataLoader takes its workers in turn, skips those that have ended, and cuts the rows of
    each worker into batches of its own. Every rank does the same, so the number of batches says
    which rows of every rank were received.

    plan: of single rows, so that a step is one row of each rank. Raises `StreamError` if the pass
    has fewer batches. Cost: O(pieces of a rank).
    """
    rank_rows = plan.steps_per_rank
    workers = max(1, workers)
    block_starts = np.arange(0, rank_rows, piece_rows, dtype=np.int64)
    ends = np.minimum(block_starts + piece_rows, rank_rows)
    turn, worker = np.divmod(np.arange(len(block_starts)), workers)
    worker_rows = np.bincount(worker, ends - block_starts, minlength=workers).astype(np.int64)
    rows_delivered = np.minimum(
        _in_turn(-(-worker_rows // batch_size), batches) * batch_size, worker_rows
    )
    block_starts += np.clip(rows_delivered[worker] - turn * piece_rows, 0, ends - block_starts)
    # and what "drop" leaves out
    block_starts = np.append(block_starts, rank_rows)
    ends = np.append(ends, plan.remaining.total)
    bounds = np.array([0, plan.remaining.total], np.int64)
    stride = plan.world_size
    if plan.shard_partition is not None:
        bounds = plan.shard_partition.bounds(plan.remaining, plan.world_size)
        stride = 1
    starts, stops = (
        np.minimum(bounds[:-1, None] + stride * offset, bounds[1:, None])
        for offset in (block_starts, ends)
    )
    return plan.remaining.keep(starts.ravel(), stops.ravel())


def _in_turn(batches_of_worker: I64, batches: int) -> I64:
    """Count the batches each worker has given when all together gave this many: int64 [W]."""
    check_batches(batches, int(batches_of_worker.sum()))
    turns = range(int(batches_of_worker.max(initial=0)) + 1)
    turn = (
        bisect_right(
            turns, batches, key=lambda turn: int(np.minimum(batches_of_worker, turn).sum())
        )
        - 1
    )
    in_turn = np.minimum(batches_of_worker, turn)
    in_turn[np.flatnonzero(batches_of_worker > turn)[: batches - int(in_turn.sum())]] += 1
    return in_turn


def _positions(plan: Plan, *, rank: int) -> Iterator[I64]:
    """Yield the positions that one rank takes, a part at a time."""
    rank_rows = plan.rank_rows(rank)
    for start in range(0, rank_rows.rows, _PART_ROWS):
        yield plan.remaining.positions(rank_rows.indices(start, start + _PART_ROWS))
