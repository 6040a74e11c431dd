"""Mixing is a number: what `plan` computes is what counting all batches gives, and what a permutation gives is exact."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from pure_order import LARGE, make_plan
from stream_cases import index_of

from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import RowPasses
from headrace.stream.order.advice import (
    SAMPLED_ROWS,
    measure,
    mixing_of_plan,
    natural_rows,
    permutation_mixing,
    sample_batches,
)
from headrace.stream.ranks.topology import Topology

KINDS = ["8_rows", "256_rows", "global_batch", "rank_batch"]


def planned(rows, world_size=1, **settings):
    index = index_of(rows)
    options = StreamOptions(
        **{"shuffle": True, "batch_size": 8, "batch_format": "numpy", **settings}
    )
    return index, RowPasses(index, None, options, Topology(rank=0, world_size=world_size)).begin(
        0
    ).plan()


def by_counting(batches, total):
    """(share of single-class batches, mean classes of 100), batch by batch."""
    halves = [{row * 2 // total for row in batch} for batch in batches]
    classes = [{row * 100 // total for row in batch} for batch in batches]
    return sum(len(each) == 1 for each in halves) / len(halves), sum(map(len, classes)) / len(
        classes
    )


@pytest.mark.parametrize("total", [2, 3, 7, 10])
@pytest.mark.parametrize("batch_rows", [1, 2, 3, 7])
def test_what_a_permutation_gives_is_the_mean_over_all_batches_there_are(total, batch_rows):
    batches = list(combinations(range(total), min(batch_rows, total)))

    assert pytest.approx(by_counting(batches, total)) == permutation_mixing(total, batch_rows)


def test_what_a_permutation_gives_is_the_closed_form():
    single, classes = permutation_mixing(100_000, 8)

    assert pytest.approx(2 * comb(50_000, 8) / comb(100_000, 8)) == single
    assert pytest.approx(100 * (1 - comb(99_000, 8) / comb(100_000, 8))) == classes
    assert permutation_mixing(10**9, 256) == pytest.approx(
        (2.0**-255, 100 * (1 - 0.99**256)), rel=1e-4
    )


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("lanes", [None, 6])
@pytest.mark.parametrize("world_size", [1, 3])
def test_what_fits_the_sample_is_counted_as_a_whole(world_size, lanes, shuffle):
    """Whole steps of small data: the same numbers as every batch looked at one by one."""
    rows, total = [100, 0, 500, 360], 960
    index, plan = planned(rows, world_size, lanes=lanes, shuffle=shuffle)
    whole = plan.order.rows // (8 * world_size) * 8 * world_size
    rows_in_order = natural_rows(index, plan.order, np.arange(whole))
    batches = {
        "8_rows": rows_in_order.reshape(-1, 8),
        "global_batch": rows_in_order.reshape(-1, 8 * world_size),
        "rank_batch": np.concatenate(
            [rows_in_order[rank::world_size].reshape(-1, 8) for rank in range(world_size)]
        ),
    }
    found = mixing_of_plan(index, plan)

    assert KINDS == list(found)
    for kind, counted in batches.items():
        assert counted.shape[1] == found[kind].rows
        assert pytest.approx(by_counting(counted.tolist(), total)) == (
            found[kind].single_class,
            found[kind].classes,
        )


@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("blocks", [1, 20])
def test_small_sorted_data_is_mixed_as_a_permutation_mixes_it(blocks, world_size):
    """The bounds are six sigma of the batches that are sampled."""
    index, plan = planned([240_000 // blocks] * blocks, world_size)
    for found in mixing_of_plan(index, plan).values():
        batches = SAMPLED_ROWS / 4 / found.rows
        chance = found.permutation_single_class
        assert abs(found.single_class - chance) <= 6 * (chance / batches) ** 0.5 + 1 / batches
        assert abs(found.classes - found.permutation_classes) <= 6 * (25 / batches) ** 0.5


def test_large_sorted_data_is_mixed_as_its_lanes_allow():
    index, plan = planned(LARGE, 4, batch_size=64)
    found = mixing_of_plan(index, plan)
    met = 100 * (1 - (1 - 1 / 100) ** plan.order.lanes)  # classes that `lanes` random places meet

    assert found["8_rows"].single_class < 0.05
    assert 0.8 * met < found["256_rows"].classes < found["256_rows"].permutation_classes
    assert found["rank_batch"].classes < found["global_batch"].classes


def test_a_rank_that_reads_in_order_meets_one_class():
    index, plan = planned(LARGE, 4, shuffle=False)
    found = mixing_of_plan(index, plan)

    assert found["rank_batch"].single_class == 1
    assert 1 <= found["rank_batch"].classes < 1.01
    assert pytest.approx(4, abs=0.1) == found["global_batch"].classes


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (np.full(16_000, 65_536), {}),  # 10^9 rows
        (np.full(16_000, 65_536), {"world_size": 64}),
        (np.full(16_000, 65_536), {"world_size": 4096, "batch_size": 256}),
        (np.full(2000, 1000), {"lanes": 96, "shuffle_rows": 96}),
        (np.full(2000, 1000), {"shuffle": False, "world_size": 3}),
        (np.full(9, 1000), {"batch_size": 100_000}),
    ],
)
def test_a_sample_is_bounded_and_spread_over_the_epoch(rows, settings):
    index, plan = planned(rows, **settings)
    order, asked = plan.order, []

    class Counted:
        """The order, with the positions that it was asked for."""

        def __getattr__(self, name):
            return getattr(order, name)

        def line_of(self, positions):
            asked.append(positions)
            return order.line_of(positions)

    object.__setattr__(plan, "order", Counted())
    mixing_of_plan(index, plan)
    positions = np.concatenate(asked)

    assert len(positions) <= SAMPLED_ROWS
    assert 0 <= positions.min() <= positions.max() < order.rows
    if order.rows > 10**6:
        assert positions.min() < order.rows / 10 < order.rows * 0.9 < positions.max()


def test_batches_of_one_rank_are_those_of_the_plan():
    plan = make_plan(index_of([1000]), batch_size=7, world_size=3, shuffle=True)
    sampled = sample_batches(plan.order, batch_rows=7, ranks=3)
    given = {
        tuple(plan.rank_rows(rank=rank).indices(step * 7, step * 7 + 7).tolist())
        for rank in range(3)
        for step in range(47)
    }

    assert given == set(map(tuple, sampled.tolist()))


@pytest.mark.parametrize("distribution", ["round_robin", "by_size"])
def test_whole_shards_are_measured_by_what_ranks_receive(distribution):
    rows = [300, 300, 300, 300]
    index, plan = planned(rows, 2, distribution=distribution, batch_size=10)
    found = mixing_of_plan(index, plan)
    order, bases = plan.order, plan.shard_partition.bases
    batches = [
        natural_rows(index, order, np.arange(base, base + 600)).reshape(-1, 10)
        for base in bases[:2].tolist()
    ]

    assert ["rank_batch", "global_batch"] == list(found)
    assert measure(np.concatenate(batches), total_rows=1200, batch_rows=10) == found["rank_batch"]
    assert (
        measure(np.concatenate(batches, axis=1), total_rows=1200, batch_rows=20)
        == found["global_batch"]
    )


def test_a_rank_without_a_shard_leaves_the_others_measured():
    index, plan = planned([30, 40], 3, distribution="by_size")

    assert ["rank_batch"] == list(mixing_of_plan(index, plan))


@pytest.mark.parametrize("rows", [[], [0], [1], [2], [0, 3]])
def test_epochs_of_next_to_nothing_have_numbers_too(rows):
    index, plan = planned(rows, 2)
    found = mixing_of_plan(index, plan)

    assert (KINDS if sum(rows) else []) == list(found)
    for each in found.values():
        assert 0 <= each.single_class <= 1 <= each.classes
