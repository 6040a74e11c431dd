"""What a loader that strides over shard files gets wrong, each a test here: hangs, equal seeds, stale epochs, half a verdict."""

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pure_order import make_plan, rows_in_order
from rank_processes import run_ranks
from specification_cases import BROKEN_RANK, FAULTS, HUNDRED, on_rank
from stream_cases import Numbers, index_of, ranks

from headrace.digest import derive_key
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.read.reader import plan_pools

INDEX = index_of(HUNDRED)
TOTAL = sum(HUNDRED)


def order(seed, epoch, *, world_size=1):
    """All rows in the order of an epoch, in lanes that do not depend on who reads."""
    settings = {
        "lanes": 16,
        "window_rows": 8,
        "groups": 16,
        "batch_size": 4,
        "world_size": world_size,
    }
    return rows_in_order(make_plan(INDEX, seed=seed, epoch=epoch, shuffle=True, **settings), INDEX)


def shards_of_rank(rank, epoch):
    """The shards that rank `rank` of 8 reads in an epoch."""
    plan = make_plan(
        INDEX, batch_size=4, world_size=8, epoch=epoch, shuffle=True, lanes=16, window_rows=8
    )
    pools = plan_pools(plan.order, plan.remaining, plan.rank_rows(rank))
    return {block for pool in pools for block in pool.blocks}


def test_a_hundred_shards_are_no_whole_number_for_eight_ranks_and_steps_are_equal():
    by_striding = [sum(HUNDRED[rank::8]) for rank in range(8)]
    for batch_size, remainder in product((1, 4, 16), ("pad", "drop")):
        plan = make_plan(
            INDEX, batch_size=batch_size, world_size=8, shuffle=True, remainder=remainder
        )
        steps = {plan.rank_rows(rank).steps for rank in range(8)}
        rows = plan.rows_per_rank

        assert {plan.steps_per_rank} == steps
        assert TOTAL - plan.dropped_rows == rows.sum()
        assert rows.max() - rows.min() <= (1 if remainder == "pad" else 0)
    assert (
        max(by_striding) - min(by_striding) >= 7
    )  # a whole shard: there some ranks wait for steps that never come


def test_neighbouring_seeds_epochs_lanes_and_windows_have_keys_of_their_own():
    near = range(6)
    keys = {
        derive_key(seed, "window", *place) for seed in near for place in product(near, near, near)
    }
    keys |= {derive_key(seed, "blocks", epoch) for seed, epoch in product(near, near)}

    assert 6**4 + 6**2 == len(keys)


def test_seeds_and_epochs_of_equal_sums_have_different_orders():
    orders = {
        (seed, epoch): tuple(order(seed, epoch)) for seed, epoch in product(range(8), range(8))
    }
    far = {
        (42, 100): tuple(order(42, 100)),
        (142, 0): tuple(order(142, 0)),
        (10042, 0): tuple(order(10042, 0)),
    }

    assert len(orders | far) == len(set((orders | far).values()))
    assert all(sorted(rows) == list(range(TOTAL)) for rows in orders.values())


def test_the_order_is_the_same_whoever_reads():
    alone = order(3, 1)

    for world_size in (1, 2, 3, 8):
        assert alone == order(3, 1, world_size=world_size)


def test_a_rank_reads_other_shards_in_another_epoch():
    epochs = [shards_of_rank(0, epoch) for epoch in range(60)]

    assert all(
        first != second for number, first in enumerate(epochs) for second in epochs[number + 1 :]
    )
    assert set(range(100)) == set().union(*epochs)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from(["pad", "drop"]),
    st.booleans(),
)
def test_the_length_is_the_number_of_batches(rows, world_size, batch_size, remainder, shuffle):
    options = StreamOptions(
        batch_size=batch_size, shuffle=shuffle, remainder=remainder, batch_format="numpy"
    )
    for rank in ranks(world_size):
        loader = StreamLoader(index_of(rows), Numbers(tuple(rows)), options, topology=rank)

        assert len(loader) == len(list(loader))


def run_worlds(folder, world_sizes):
    """What each rank recorded, by world size."""
    run_ranks(on_rank, max(world_sizes), str(folder), world_sizes)
    records = [
        json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(max(world_sizes))
    ]
    return {size: [record[str(size)] for record in records[:size]] for size in world_sizes}


def check_hundred(parts):
    """One training on a hundred shards, as each rank saw it."""
    for epoch in range(2):
        batches = [part["epochs"][epoch] for part in parts]
        assert {part["len"] for part in parts} == {len(each) for each in batches}
        assert list(range(TOTAL)) == sorted(
            row for each in batches for batch in each for row in batch
        )
    assert all(part["epochs"][0] != part["epochs"][1] for part in parts)


def check_verdict(fault, verdicts):
    """Every rank says the same; a fault of one is the exit code of all."""
    said = json.loads(verdicts[0]["out"])
    assert (fault == "none") == said["ok"]
    assert all(verdict["out"] == "" for verdict in verdicts[1:])
    for rank, verdict in enumerate(verdicts):
        assert verdict["code"] == (0 if fault == "none" else 1), (fault, rank)
        lines = verdict["err"].splitlines()
        assert bool(lines) == (fault != "none"), (fault, rank)
        assert all(
            line.startswith(f"rank {rank} of {len(verdicts)}: validation failed: ")
            for line in lines
        )
    words = {
        "twice": "rows came more than once",
        "lost": "rows did not come",
        "steps": "different numbers of steps",
        "raises": f"rank {BROKEN_RANK}: part-00003.parquet block 0",
    }
    if fault in words:
        assert all(words[fault] in verdict["err"] for verdict in verdicts), fault


@pytest.mark.slow
def test_real_ranks_train_on_a_hundred_shards_and_each_reports_a_broken_loader(tmp_path):
    for world in run_worlds(tmp_path, (2, 4, 3)).values():
        for number in range(2):
            check_hundred([rank["hundred"][number] for rank in world])
        for fault in FAULTS:
            check_verdict(fault, [rank["verdicts"][fault] for rank in world])


@pytest.mark.slow
def test_every_row_is_as_likely_to_be_first_as_last():
    firsts = np.array([order(seed, 0)[: TOTAL // 2] for seed in range(200)])
    times = np.bincount(firsts.ravel(), minlength=TOTAL)

    assert 100 == times.mean().round()
    assert abs(times - 100).max() < 50  # seven standard deviations of a fair coin
