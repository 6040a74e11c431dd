"""What a pass has to deliver, from the plan alone: the global order row by row, and the batches of each rank."""

from __future__ import annotations

import numpy as np
from reference import deliver
from stream_cases import index_of

from headrace.dataset.index import SplitIndex
from headrace.stream.order.lanes import OPEN_BYTES, choose_lanes
from headrace.stream.order.layout import begin_mixture, lay_epoch, sources_of
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import Remaining, resolve_remainder
from headrace.stream.order.state import StreamState

LARGE = np.full(1500, 65_536)  # 98 M rows


def lay(index, *, samples_per_epoch=None, **order):
    """The order of an epoch of a run that began with global batches of one row."""
    mixture = begin_mixture(index, samples_per_epoch=samples_per_epoch, global_batch=1)
    return lay_epoch(index, samples_per_epoch=samples_per_epoch, mixture=mixture, **order)


def make_plan(
    index,
    *,
    batch_size,
    world_size=1,
    seed=0,
    epoch=0,
    shuffle=False,
    lanes=None,
    window_rows=None,
    shuffle_rows=None,
    remainder=None,
    remaining=None,
    groups=None,
    memory_bytes=OPEN_BYTES,
):
    """The plan of one epoch; what is None is chosen as a stream chooses it."""
    chosen = choose_lanes(
        index,
        shuffle=shuffle,
        ranks=world_size,
        batch_size=batch_size,
        lanes=lanes,
        shuffle_rows=shuffle_rows,
        memory_bytes=memory_bytes,
        sources=sources_of(index),
    )
    order = lay(
        index,
        seed=seed,
        epoch=epoch,
        lanes=chosen.lanes,
        window_rows=chosen.window_rows if window_rows is None else window_rows,
        groups=chosen.groups if groups is None else groups,
        shuffle=shuffle,
    )
    return Plan(
        index=index,
        order=order,
        remaining=Remaining.everything(order.rows) if remaining is None else remaining,
        world_size=world_size,
        batch_size=batch_size,
        remainder=resolve_remainder(remainder, world_size),
    )


def rows_in_order(plan: Plan, index: SplitIndex) -> list[int]:
    """The numbers of the rows that are left, in the global order of the epoch."""
    positions = plan.remaining.positions(np.arange(plan.remaining.total))
    blocks, rows = plan.order.locate(plan.order.line_of(positions))
    return (index.first_row[blocks] + rows).tolist()


def batches_of_rank(plan: Plan, index: SplitIndex, rank: int) -> list[list[int]]:
    """The real rows of every batch a rank receives."""
    left = rows_in_order(plan, index)
    return list(
        deliver(
            left,
            rank=rank,
            ranks=plan.world_size,
            batch_size=plan.batch_size,
            remainder=plan.remainder,
        )
    )


def left_after(state: dict[str, object]) -> int:
    """How many rows a saved state has left."""
    return StreamState.from_dict(state).remaining.total


def rows_of_steps(rows, world_size, batch_size, steps, **settings):
    """The rows of some global batches, each sorted: int64 [steps, G]."""
    plan = make_plan(
        index_of(rows), world_size=world_size, batch_size=batch_size, shuffle=True, **settings
    )
    share = [plan.rank_rows(rank=rank) for rank in range(world_size)]
    found = []
    for step in steps:
        places = np.concatenate(
            [each.indices(step * batch_size, (step + 1) * batch_size) for each in share]
        )
        block, row = plan.order.locate(plan.order.line_of(plan.remaining.positions(places)))
        found.append(np.sort(np.concatenate([[0], np.cumsum(rows)])[block] + row))
    return np.stack(found)


def positions_of_row(order, block, row):
    """Every position at which one row is delivered, ascending."""
    _, positions = order.positions_of_rows(np.array([block]), np.array([row]))
    return np.sort(positions)
