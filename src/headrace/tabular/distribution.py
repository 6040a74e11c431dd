"""Who takes rows from which shards, and whether anybody takes a row twice: from the plan, row by row.

The stream divides rows, not files, so a shard may serve several ranks; what must not overlap is rows. Cost is O(rows)
of a pass at most; the bitmap that ranks exchange is a bit a row.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64
from headrace.dataset.index import SplitIndex
from headrace.errors import HeadraceError, StreamError
from headrace.stream.order.epoch import natural_rows
from headrace.stream.order.joined import MixedOrder, parts_of
from headrace.stream.order.plan import Plan

_PART_ROWS = 1 << 18

_log = logging.getLogger("headrace")


def distribution_info(
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

    workers: W; worker w has the steps w, w + W, … of its rank, of `step_rows` rows each. total_shards: all there are,
    those without rows included; shards_per_rank: how many this rank takes rows from; shards_per_worker: how many this
    worker does, or in the parent the rank; rank, world_size; worker_id (0 in the parent), num_workers (1 in the
    parent); assigned_shards: the names, relative to the directory, of this worker's shards, or of the rank's.
    """
    own = np.zeros((workers, len(index.shards)), np.bool_)
    ends, item = index.first_row + index.rows, 0
    for positions in _positions(plan, rank=rank):
        rows = natural_rows(index, plan.order, positions)
        shards = index.shard_of_block[np.searchsorted(ends, rows, side="right")]
        own[np.arange(item, item + len(rows)) // step_rows % workers, shards] = True
        item += len(rows)
    mine = own.any(axis=0) if worker is None else own[worker]
    return {
        "total_shards": total_shards,
        "shards_per_rank": int(own.any(axis=0).sum()),
        "shards_per_worker": int(mine.sum()),
        "rank": rank,
        "world_size": plan.world_size,
        "worker_id": worker or 0,
        "num_workers": workers,
        "assigned_shards": [index.shards[shard] for shard in np.flatnonzero(mine).tolist()],
    }


def verify_no_shard_overlap(dataloader: Any, num_ranks: int, num_workers: int) -> bool:
    """Whether in the present pass each row of each shard has exactly one reader; the same verdict on every rank.

    dataloader: over a `PipelineIterableDataset`, or a `StreamingDataset`. num_ranks, num_workers: how many are expected
    (0 and 1 workers are the same). Under torch.distributed a collective call: every rank must make it, and what all
    ranks are about to read is compared. Without a process group, all ranks are judged from this one's plan.
    What is wrong is logged as an error by the logger "headrace".
    """
    mine, problem = None, None
    try:
        mine = _evidence(dataloader, num_ranks, max(1, num_workers))
    except HeadraceError as error:
        problem = str(error)
    found = _of_all_ranks((mine, problem))
    problems = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(found) if text is not None]
    if not problems:
        problems = _compared([part for part, _ in found if part is not None], num_ranks)
    for line in problems:
        _log.error("shard overlap: %s", line)
    return not problems


@dataclass(frozen=True, kw_only=True, eq=False)
class _Evidence:
    """What one process is about to read. order: what decides the order of rows, by name; rows: a bit for each row
    read, or for each position where an epoch may have a row more than once."""

    ranks: tuple[int, ...]
    order: dict[str, Any]
    total: int
    dropped: int
    twice: int
    rows: npt.NDArray[np.uint8]


def _evidence(dataloader: Any, num_ranks: int, num_workers: int) -> _Evidence:
    dataset = dataloader.dataset
    if not hasattr(dataset, "plan") or not hasattr(dataset, "topology"):
        raise StreamError(
            f"dataset is a {type(dataset).__name__}, which has no plan; pass a DataLoader over a headrace dataset,"
            " or count what is delivered with headrace.audit"
        )
    stream = getattr(dataset, "_stream", dataset)
    topology, index = dataset.topology, stream.index
    if topology.world_size != num_ranks:
        raise StreamError(f"the dataset was built for {topology.world_size} ranks, {num_ranks} are expected")
    if max(1, dataloader.num_workers) != num_workers:
        raise StreamError(f"the DataLoader has {dataloader.num_workers} workers, {num_workers} are expected")
    plan = dataset.plan()
    ranks = (topology.rank,) if _group() else tuple(range(num_ranks))
    by_position = isinstance(parts_of(plan.order)[0].order, MixedOrder)  # it may have a row several times
    seen = np.zeros(plan.order.rows if by_position else index.total_rows, np.uint8)
    twice = 0
    for rank in ranks:
        for positions in _positions(plan, rank=rank):
            read = positions if by_position else natural_rows(index, plan.order, positions)
            twice += int(np.count_nonzero(seen[read]))
            seen[read] = 1
    return _Evidence(
        ranks=ranks,
        order={**stream.present.state_after(0), "workers": num_workers},
        total=plan.remaining.total,
        dropped=plan.dropped_rows,
        twice=twice,
        rows=np.packbits(seen),
    )


def _compared(parts: Sequence[_Evidence], num_ranks: int) -> list[str]:
    """What is wrong with what all ranks are about to read; nothing if each row has one reader."""
    first = parts[0]
    ranks = sorted(rank for part in parts for rank in part.ranks)
    problems = []
    if ranks != list(range(num_ranks)):
        problems.append(f"the readers are ranks {ranks}, expected 0 to {num_ranks - 1}, each once")
    for place, part in enumerate(parts):
        if part.order != first.order or part.total != first.total:
            names = sorted(part.order.keys() | first.order.keys())
            differ = [name for name in names if part.order.get(name) != first.order.get(name)]
            problems.append(
                f"rank {place} reads another order or other files than rank 0: they differ in {', '.join(differ)};"
                " give all ranks the same files, seed, epoch, state and workers"
            )
    if problems:
        return problems
    seen = np.zeros_like(first.rows)
    twice = 0
    for part in parts:
        twice += part.twice + _count(seen & part.rows)
        seen |= part.rows
    missing = first.total - first.dropped - _count(seen)
    if twice:
        problems.append(f"{twice} rows have more than one reader")
    if missing:
        problems.append(f"{missing} rows have no reader")
    return problems


def _positions(plan: Plan, *, rank: int) -> Iterator[I64]:
    """The positions that one rank takes, a part at a time."""
    share = plan.share(rank)
    for start in range(0, share.rows, _PART_ROWS):
        yield plan.remaining.positions(share.places(start, start + _PART_ROWS))


def _count(bits: npt.NDArray[np.uint8]) -> int:
    return sum(int(np.unpackbits(bits[at : at + _PART_ROWS]).sum()) for at in range(0, len(bits), _PART_ROWS))


def _group() -> Any:
    """torch.distributed where a process group is initialised, else None; torch is never imported here."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _of_all_ranks(part: Any) -> list[Any]:
    distributed = _group()
    if distributed is None:
        return [part]
    parts: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(parts, part)
    return parts
