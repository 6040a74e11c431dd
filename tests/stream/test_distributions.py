"""Whole shards for each rank: each shard has one reader, equal steps, nothing lost, resumable here and elsewhere."""

import json
from collections import Counter

import numpy as np
import pytest
from damaged_states import resealed
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_cases import Numbers, flat, index_of, ranks, read_ranks

from headrace.errors import SettingsError, StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import RowPasses
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.layout import order_of_state
from headrace.stream.order.plan import estimate_block_bytes
from headrace.stream.order.shard_partition import ShardPartition, deal_shards, pack_shards
from headrace.stream.order.state import StreamState
from headrace.stream.order.whereabouts import find_row, seen_per_shard
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.reader import plan_pools
from laws import examples
from raised import raised

ROWS = (9, 14, 3, 3, 0, 21, 7, 7, 1, 12, 5)
INDEX = index_of(ROWS, blocks_per_shard=2)
SHARDS = len(INDEX.shards)
NODES = {name: number % 3 for number, name in enumerate(INDEX.shards[:4])}
LOCAL = {"distribution": "local", "locality": NODES, "ranks_per_node": 1}

distributions = st.sampled_from(["round_robin", "by_size", "local"])


def options_of(distribution, **changes):
    values = {
        "batch_size": 4,
        "shuffle": True,
        "seed": 3,
        "batch_format": "numpy",
        "distribution": distribution,
    }
    return StreamOptions(**{**values, **(LOCAL if distribution == "local" else {}), **changes})


def loaders_of(world_size, distribution, **changes):
    options = options_of(distribution, **changes)
    return [
        StreamLoader(INDEX, Numbers(ROWS), options, topology=topology)
        for topology in ranks(world_size)
    ]


def shard_of(row):
    return int(INDEX.shard_of_block[np.searchsorted(np.cumsum(INDEX.rows), row, side="right")])


@given(st.integers(1, 9), st.booleans(), st.integers(0, 3))
def test_round_robin_strides_over_shards(world_size, shuffle, epoch):
    dealt = deal_shards(INDEX, ranks=world_size, seed=1, epoch=epoch, shuffle=shuffle)
    sizes = np.bincount(dealt, minlength=world_size)

    assert shuffle or dealt.tolist() == [shard % world_size for shard in range(SHARDS)]
    assert sizes.max() - sizes.min() <= 1
    assert SHARDS == sizes.sum()


def test_round_robin_deals_anew_every_epoch_when_shuffled():
    dealt = {
        tuple(deal_shards(INDEX, ranks=2, seed=1, epoch=epoch, shuffle=True)) for epoch in range(6)
    }

    assert len(dealt) > 1


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 7))
def test_packing_is_as_even_as_greedy_packing_promises(sizes, world_size):
    found = pack_shards(np.array(sizes, np.int64), ranks=world_size)
    load = np.bincount(found, weights=sizes, minlength=world_size)

    assert load.max() <= sum(sizes) / world_size + max(sizes, default=0)


def test_packing_counts_what_local_shards_already_give():
    found = pack_shards(np.array([10, 9, 8, 1]), ranks=2, allowed=[[0], None, [0, 1], None])

    assert found.tolist() == [0, 1, 1, 0]


@settings(max_examples=examples(40))
@given(distributions, st.integers(1, 5), st.booleans(), st.integers(1, 9))
def test_each_shard_has_one_reader_and_steps_are_equal(
    distribution, world_size, shuffle, batch_size
):
    rows, _ = read_ranks(
        loaders_of(world_size, distribution, shuffle=shuffle, batch_size=batch_size)
    )
    readers = {}
    for rank, own in enumerate(rows):
        for row in flat([own]):
            readers.setdefault(shard_of(row), set()).add(rank)

    assert sorted(flat(rows)) == list(range(sum(ROWS)))
    assert len({len(own) for own in rows}) == 1
    assert all(len(ranks_of) == 1 for ranks_of in readers.values())


@pytest.mark.slow
@given(distributions, st.integers(1, 5), st.integers(1, 6))
def test_drop_ends_with_the_shortest_region_and_says_how_many_rows_it_leaves(
    distribution, world_size, batch_size
):
    loaders = loaders_of(world_size, distribution, remainder="drop", batch_size=batch_size)
    rows, _ = read_ranks(loaders)
    plan = loaders[0].plan()

    assert len({len(own) for own in rows}) == 1
    assert all(len(batch) == batch_size for own in rows for batch in own)
    assert loaders[0].dropped_rows == plan.dropped_rows == sum(ROWS) - len(flat(rows))
    assert plan.coverage().missing_rows == 0


def test_local_shards_are_read_where_they_are():
    rows, _ = read_ranks(loaders_of(3, "local"))
    readers = {shard_of(row): rank for rank, own in enumerate(rows) for row in flat([own])}

    assert [readers[shard] for shard in range(4)] == [0, 1, 2, 0]


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(distributions, st.integers(1, 4), st.integers(0, 6), st.integers(0, 3))
def test_a_resume_on_the_same_ranks_is_as_if_there_had_been_no_stop(
    distribution, world_size, stop, epoch
):
    loaders = loaders_of(world_size, distribution)
    for loader in loaders:
        loader.set_epoch(epoch)
    whole, _ = read_ranks(loaders)
    for loader in loaders:
        loader.set_epoch(epoch + 1)
        loader.set_epoch(epoch)
    head, state = read_ranks(loaders, stop)
    again = loaders_of(world_size, distribution)
    for loader in again:
        loader.load_state_dict(state)
    tail, _ = read_ranks(again)
    after, _ = read_ranks(again)
    for loader in loaders:
        loader.set_epoch(epoch + 1)

    assert whole == [a + b for a, b in zip(head, tail, strict=True)]
    assert after == read_ranks(loaders)[0]


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    distributions,
    st.sampled_from(["balanced", "round_robin", "by_size"]),
    st.integers(1, 4),
    st.integers(0, 6),
    st.integers(1, 4),
)
def test_a_resume_elsewhere_delivers_the_rest_once(distribution, then, world_size, stop, other):
    head, state = read_ranks(loaders_of(world_size, distribution), stop)
    loaders = loaders_of(other, then, batch_size=3)
    for loader in loaders:
        loader.load_state_dict(state)
    tail, _ = read_ranks(loaders)
    after, state = read_ranks(loaders)

    assert sorted(flat(head) + flat(tail)) == list(range(sum(ROWS)))
    assert sorted(flat(after)) == list(range(sum(ROWS)))
    assert state.get("shard_partition", {}).get("distribution", "balanced") == then


def first_pass(index, options, world_size):
    return RowPasses(index, Numbers(()), options, Topology(rank=0, world_size=world_size)).begin(0)


@given(distributions, st.integers(1, 4), st.integers(0, 9))
def test_states_leave_what_the_batches_before_did_not_deliver(distribution, world_size, batches):
    begun = first_pass(INDEX, options_of(distribution, remainder="pad"), world_size)
    plan, batches = begun.plan(), min(batches, begun.steps)
    remaining = begun.after(batches).start.remaining
    received = set()
    for rank in range(world_size):
        received |= set(
            plan.remaining.positions(plan.rank_rows(rank).indices(0, batches * 4)).tolist()
        )
    left = set(remaining.positions(np.arange(remaining.total)).tolist())

    assert received | left == set(range(sum(ROWS)))
    assert not received & left


def test_bytes_are_those_of_the_own_shards():
    plan = first_pass(INDEX, options_of("by_size"), 3).plan()
    for rank in range(3):
        blocks = {
            each
            for pool in plan_pools(plan.order, plan.remaining, plan.rank_rows(rank))
            for each in pool.blocks
        }
        expected = sum(int(estimate_block_bytes(INDEX)[block]) for block in blocks)

        assert (
            expected <= plan.bytes_per_rank[rank] <= 3 * expected
        )  # a lane border may cut any of these few blocks
    assert plan.rows_per_rank.sum() == sum(ROWS)


def test_a_million_rows_in_whole_shards_are_decoded_once():
    index = index_of([1000] * 1000, blocks_per_shard=10)
    plan = first_pass(index, options_of("by_size", batch_size=100), 8).plan()

    assert plan.read_amplification < 1.2
    assert max(plan.bytes_per_rank) < 1.2 * min(plan.bytes_per_rank)


@pytest.mark.parametrize("distribution", ["round_robin", "by_size", "local"])
def test_where_and_seen_hold(distribution):
    loaders = loaders_of(2, distribution)
    plan = loaders[0].plan()
    rows, state = read_ranks(loaders, 3)
    saved = StreamState.from_dict(state)
    counts = Counter(shard_of(row) for row in flat(rows))

    assert seen_per_shard(INDEX, saved).tolist() == [counts[shard] for shard in range(SHARDS)]
    assert order_of_state(INDEX, saved).rows == sum(ROWS)
    for rank, own in enumerate(rows):
        for step, batch in enumerate(own):
            for place, row in enumerate(batch):
                block = int(np.searchsorted(np.cumsum(INDEX.rows), row, side="right"))
                found = find_row(plan, block=block, row=row - int(INDEX.first_row[block]))
                assert found is not None
                assert (rank, step, place) == (found.rank, found.step, found.batch_row)


def test_fewer_shards_than_ranks_give_everyone_the_same_steps():
    index = index_of([10, 4])
    batches = [
        list(StreamLoader(index, Numbers((10, 4)), options_of("by_size"), topology=topology))
        for topology in ranks(4)
    ]

    assert [3, 3, 3, 3] == [len(own) for own in batches]
    assert 14 == sum(int(batch["valid"].sum()) for own in batches for batch in own)


@pytest.mark.slow
def test_workers_give_whole_shards_and_follow_the_epoch():
    from torch.utils.data import DataLoader

    from headrace.stream.loader.torch_dataset import StreamingDataset

    options = options_of("round_robin")
    rows = []
    for topology in ranks(2):
        dataset = StreamingDataset(INDEX, Numbers(ROWS), options, num_workers=2, topology=topology)
        loader = DataLoader(
            dataset,
            batch_size=None,
            num_workers=2,
            persistent_workers=True,
            multiprocessing_context="fork",
        )
        for epoch in (0, 1):
            dataset.set_epoch(epoch)
            given = [
                np.asarray(batch["row"])[np.asarray(batch["valid"])].tolist() for batch in loader
            ]
            dealt = deal_shards(INDEX, ranks=2, seed=3, epoch=epoch, shuffle=True)
            assert all(
                int(dealt[shard_of(row)]) == topology.rank for batch in given for row in batch
            )
            rows.append([row for batch in given for row in batch])

    assert sorted(rows[0] + rows[2]) == sorted(rows[1] + rows[3]) == list(range(sum(ROWS)))


def test_regions_survive_json_and_damaged_ones_are_refused():
    regions = ShardPartition(distribution="by_size", rows=(3, 4), assignment=(0, 1, 1))

    assert ShardPartition.from_dict(json.loads(json.dumps(regions.to_dict()))) == regions
    for change in (
        {"rows": []},
        {"rows": "34"},
        {"rows": [3, -1]},
        {"assignment": [2]},
        {"extra": 1},
    ):
        with raised(StreamError, remedy="pass it on unchanged"):
            ShardPartition.from_dict({**regions.to_dict(), **change})
    (loader,) = loaders_of(1, "by_size")
    state = loader.state_dict()
    with raised(StreamError, value="of 5 rows", remedy="pass what state_dict() gave"):
        StreamState.from_dict(
            resealed(state, shard_partition={**state["shard_partition"], "rows": [5]})
        )


def test_settings_that_do_not_go_together_are_refused():
    for changes in ({"locality": NODES}, {"ranks_per_node": 2}):
        with raised(SettingsError, setting=next(iter(changes)), remedy="neither without it"):
            options_of("by_size", **changes)
    with raised(SettingsError, setting="ranks_per_node", remedy="neither without it"):
        options_of("local", ranks_per_node=None)
    with raised(SettingsError, setting="locality", remedy="the number of a node"):
        options_of("local", locality={"a": -1})
    with raised(SettingsError, setting="locality", remedy="give paths as the index has them"):
        loaders_of(1, "local", locality={"a": 1})
    with raised(SettingsError, setting="distribution", remedy="with samples_per_epoch="):
        loaders_of(1, "by_size", samples_per_epoch=7)
