"""What a plan says about bytes and lanes is what reading would do, and it is quick."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pure_order import make_plan
from stream_cases import Numbers, index_of

from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.passes import Reading, RowPasses
from headrace.stream.order.lanes import estimate_block_bytes
from headrace.stream.order.plan import better_lanes, plan_pools
from headrace.stream.order.remaining import advance
from headrace.stream.ranks.topology import Topology
from headrace.stream.read import ahead

rows_of_blocks = st.lists(st.integers(0, 40), min_size=1, max_size=30)


@given(rows_of_blocks, st.integers(1, 16), st.integers(1, 24), st.integers(1, 9), st.booleans())
def test_a_plan_covers_everything_once(rows, world_size, lanes, batch_size, shuffle):
    for remainder in ("pad", "drop"):
        plan = make_plan(
            index_of(rows),
            batch_size=batch_size,
            world_size=world_size,
            lanes=lanes,
            shuffle=shuffle,
            remainder=remainder,
        )
        coverage = plan.coverage()

        assert (coverage.overlap_rows, coverage.missing_rows) == (0, 0)
        assert coverage.delivered_rows == sum(rows) - plan.dropped_rows
        assert coverage.padded_rows == plan.padded_rows


@given(rows_of_blocks, st.integers(1, 5), st.sampled_from([1, 2, 3, 4, 6, 8]), st.integers(0, 9))
def test_bytes_are_an_upper_bound_of_what_is_read(rows, world_size, lanes, steps):
    plan = make_plan(
        index_of(rows),
        batch_size=3,
        world_size=world_size,
        lanes=lanes,
        window_rows=4,
        shuffle=True,
    )
    done = advance(
        plan.remaining,
        min(steps, plan.steps_per_rank),
        ranks=world_size,
        batch_size=3,
        remainder=plan.remainder,
    )
    rest = make_plan(
        index_of(rows),
        batch_size=3,
        world_size=world_size,
        lanes=lanes,
        window_rows=4,
        shuffle=True,
        remaining=done,
    )
    for rank in range(world_size):
        share = rest.rank_rows(rank)
        if not share.rows:
            continue  # it only repeats a row of another rank
        blocks = {
            block for pool in plan_pools(rest.order, rest.remaining, share) for block in pool.blocks
        }

        assert sum(int(rest.block_bytes[block]) for block in blocks) <= int(
            rest.bytes_per_rank[rank]
        )


@given(rows_of_blocks, st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_a_small_split_is_decoded_once_by_each_rank(rows, world_size, spread, shuffle):
    lanes = world_size * spread
    plan = make_plan(
        index_of(rows),
        batch_size=3,
        world_size=world_size,
        lanes=lanes,
        window_rows=64,
        shuffle=shuffle,
    )
    for rank in range(world_size):
        share = plan.rank_rows(rank)
        if share.rows:
            pools = [pool.blocks for pool in plan_pools(plan.order, plan.remaining, share)]
            blocks = {block for pool in pools for block in pool}

            assert len(pools) <= 2  # the next one's blocks stay decoded
            assert sum(int(plan.block_bytes[block]) for block in blocks) == int(
                plan.bytes_per_rank[rank]
            )
    assert plan.decoded_again_bytes <= (world_size - 1) * int(plan.block_bytes.sum())
    assert plan.read_amplification <= world_size


def test_lanes_that_ranks_divide_are_read_by_one_rank_each():
    index = index_of([1000] * 64)
    even = make_plan(index, batch_size=10, world_size=4, lanes=16, shuffle=True)
    odd = make_plan(index, batch_size=10, world_size=3, lanes=16, shuffle=True)

    assert even.read_amplification == 1.0
    assert odd.read_amplification == pytest.approx(3.0)
    lanes, amplification = better_lanes(odd, lambda lanes: make_plan(index, batch_size=10, world_size=3, lanes=lanes, shuffle=True))  # fmt: skip
    again = make_plan(index, batch_size=10, world_size=3, lanes=lanes, shuffle=True)
    assert (lanes, again.read_amplification) == (15, amplification)
    assert amplification < 1.3  # only blocks that a lane border cuts are read twice


def test_no_lanes_are_recommended_where_others_decode_as_much():
    few = index_of([2000] * 11)
    plan = make_plan(few, batch_size=256, world_size=3, shuffle=True)

    def plan_of(lanes):
        return make_plan(few, batch_size=256, world_size=3, lanes=lanes, shuffle=True)

    better = better_lanes(plan, plan_of)
    assert plan.read_amplification > 2.5
    assert (
        better is None
        or plan_of(better[0]).read_amplification == better[1] < plan.read_amplification / 1.05
    )
    assert better_lanes(make_plan(few, batch_size=256, shuffle=True), plan_of) is None


GRID = [
    (rows, ranks, lanes, batch_size, settings)
    for rows in (
        (20_000,),
        (150_000,) * 2,
        (500,) * 60,
        (7,) * 30,
        (0, 900, 0, 30_000, 5),
        (3000,) * 24,
    )
    for ranks, lanes, batch_size, settings in (
        (1, None, 100, {}),
        (3, None, 8, {}),
        (3, 16, 100, {}),
        (4, None, 64, {"shuffle_rows": 2000}),
        (2, 3, 100, {"shuffle": False}),
        (3, None, 50, {"shuffle": False}),
        (3, 6, 512, {"remainder": "drop"}),
        (2, None, 100, {"distribution": "round_robin"}),
        (2, None, 100, {"samples_per_epoch": 20}),
    )
] + [
    ((1_000_000,), 1, None, 4096, {}),
    ((400_000,) * 2, 2, None, 4096, {}),
    # Lanes of many blocks: what lies in front of a lane in its first block is not held for the lane that ends there.
    ((50_000,) * 60, 2, 8, 1000, {"shuffle_rows": 8000}),
    ((7000, 20_000, 10) * 60, 1, 24, 640, {"shuffle_rows": 12_000}),
    ((700, 3000, 10) * 40, 3, 12, 30, {"shuffle_rows": 600}),
]


def decoded_by_each_rank(rows, ranks, **options):
    """The plan of an epoch, and the blocks that each rank decodes, in the order in which it does."""
    options = StreamOptions(shuffle=options.pop("shuffle", True), batch_format="numpy", **options)
    index, reads, found = index_of(rows), [], []

    def read_block(block, columns):
        reads.append(block)  # from several threads, each of which appends whole
        return Numbers(rows)(block, columns)

    for rank in range(ranks):
        reads.clear()
        begun = RowPasses(index, read_block, options, Topology(rank=rank, world_size=ranks)).begin(
            0
        )
        plan = begun.plan()
        for _ in begun.batches(Reading(read_block)):
            pass
        found.append(list(reads))
    return plan, found


@pytest.mark.slow
@pytest.mark.smoke(every=4)
@pytest.mark.parametrize(("rows", "ranks", "lanes", "batch_size", "settings"), GRID)
def test_a_plan_says_how_many_blocks_a_real_stream_decodes(
    rows, ranks, lanes, batch_size, settings, monkeypatch
):
    monkeypatch.setattr(
        ahead, "_SHARED_BYTES", 0
    )  # as if all blocks were too large to wait for their second lane
    plan, reads = decoded_by_each_rank(rows, ranks, lanes=lanes, batch_size=batch_size, **settings)

    assert [
        sum(int(plan.block_bytes[block]) for block in blocks) for blocks in reads
    ] == plan.bytes_per_rank.tolist()


def test_a_small_block_in_which_two_lanes_meet_is_decoded_once():
    rows = (7000, 20_000, 10) * 60
    plan, [reads] = decoded_by_each_rank(rows, 1, lanes=24, batch_size=640, shuffle_rows=12_000)

    assert sorted(reads) == list(range(len(rows)))
    assert plan.read_amplification > 1.1  # which is what it would be at most


def test_blocks_that_wait_for_their_second_lane_stay_within_their_room(monkeypatch):
    rows = (7000, 20_000, 10) * 60
    monkeypatch.setattr(ahead, "_SHARED_BYTES", 1 << 20)
    plan, [reads] = decoded_by_each_rank(rows, 1, lanes=24, batch_size=640, shuffle_rows=12_000)

    assert len(rows) < len(reads)
    assert sum(int(plan.block_bytes[block]) for block in reads) < int(plan.bytes_per_rank[0])


def test_block_bytes_come_from_the_schema_where_the_file_says_less():
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.float32(), 4)), ("c", pa.bool_())])

    assert estimate_block_bytes(index_of([10, 0], schema=schema)).tolist() == [250, 0]


@pytest.mark.parametrize(
    ("format_", "expected"), [("parquet", 300), ("jsonl.gz", 300), ("jsonl", 100), ("arrow", 100)]
)
def test_compressed_lists_take_three_times_their_bytes(format_, expected):
    index = index_of([2], schema=pa.schema([("tokens", pa.list_(pa.int32()))]))

    found = estimate_block_bytes(replace(index, formats=(format_,), length=np.array([100])))

    assert [expected] == found.tolist()


@pytest.mark.slow
def test_a_million_blocks_are_planned_by_arithmetic():
    index = index_of(np.full(1_000_000, 65_536), blocks_per_shard=10)
    plan = make_plan(index, batch_size=512, world_size=512, shuffle=True)

    assert plan.steps_per_rank * 512 * 512 >= index.total_rows
    assert plan.rows_per_rank.sum() == index.total_rows
    assert plan.read_amplification < 1.001
