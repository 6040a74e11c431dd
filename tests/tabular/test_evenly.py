"""What remains after a DataLoader over rows follows from how many batches it gave."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_cases import index_of

from headrace.errors import StreamError
from headrace.stream.order.epoch import epoch_order
from headrace.stream.order.plan import Plan
from headrace.stream.order.remaining import Remaining
from headrace.stream.order.shard_partition import ShardPartition
from headrace.tabular.distribution import left_after


def plan_of(rows, ranks, remainder, regions=None, ranges=None):
    order = epoch_order(
        np.array([rows]), np.array([7], np.uint64),
        seed=0, epoch=0, lanes=1, window_rows=max(1, rows), groups=1, shuffle=False,
    )  # fmt: skip
    remaining = (
        Remaining.everything(rows) if ranges is None else Remaining(rows=rows, ranges=ranges)
    )
    return Plan(
        index=index_of([rows]), order=order, remaining=remaining, world_size=ranks, batch_size=1, remainder=remainder,
        shard_partition=regions,
    )  # fmt: skip


def batches_of_rank(plan, rank, *, workers, batch_size, piece_rows):
    """The positions of each batch, as a DataLoader takes workers in turn that each batch the rows of their pieces."""
    share = plan.rank_rows(rank)
    own = plan.remaining.positions(share.indices(0, share.rows)).tolist()
    items = [own[item] if item < share.rows else None for item in range(plan.steps_per_rank)]
    pieces = [items[begin : begin + piece_rows] for begin in range(0, len(items), piece_rows)]
    queues = []
    for worker in range(max(1, workers)):
        rows = sum(pieces[worker :: max(1, workers)], [])
        queues.append(
            [rows[begin : begin + batch_size] for begin in range(0, len(rows), batch_size)]
        )
    turns = max(map(len, queues))
    return [queue[turn] for turn in range(turns) for queue in queues if turn < len(queue)]


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.booleans(),
    st.integers(0, 4),
    st.integers(1, 9),
    st.integers(1, 7),
    st.sampled_from(["pad", "drop"]),
    st.integers(0, 20),
    st.data(),
)
def test_what_is_left_is_what_no_rank_received(
    of_ranks, in_regions, workers, batch_size, piece_rows, remainder, before, data
):
    ranks, rows = len(of_ranks), sum(of_ranks)
    regions = ShardPartition(distribution="by_size", rows=tuple(of_ranks)) if in_regions else None
    begin = min(before, rows)
    plan = plan_of(rows, ranks, remainder, regions, ((begin, rows),) if begin < rows else ())
    settings = {"workers": workers, "batch_size": batch_size, "piece_rows": piece_rows}
    of_rank = [batches_of_rank(plan, rank, **settings) for rank in range(ranks)]
    assert 1 == len({len(batches) for batches in of_rank})
    stop = data.draw(st.integers(0, len(of_rank[0])))

    left = left_after(plan, stop, **settings)

    received = {
        row for batches in of_rank for batch in batches[:stop] for row in batch if row is not None
    }
    assert (
        sorted(set(range(begin, rows)) - received) == left.positions(np.arange(left.total)).tolist()
    )
    with pytest.raises(StreamError, match=f"has {len(of_rank[0])} batches"):
        left_after(plan, len(of_rank[0]) + 1, **settings)
