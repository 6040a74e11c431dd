"""How an epoch is cut, and what follows: mixing like a permutation, and the same global batches on any ranks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pure_order import LARGE, make_plan, rows_of_steps
from stream_cases import Numbers, index_of, ranks

from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order.lanes import Lanes, choose_lanes
from laws import examples


def chosen(rows, ranks=1, batch_size=256, **settings):
    return choose_lanes(
        index_of(rows), shuffle=True, ranks=ranks, batch_size=batch_size, **settings
    )


def test_small_data_is_one_permutation():
    assert chosen([1000] * 5) == Lanes(1, 5000, 1)
    assert chosen([1000] * 5, ranks=7) == Lanes(1, 5000, 1)


def test_large_data_has_as_many_lanes_as_leave_four_blocks_to_each():
    memory = 192 * 65_536 * 40 * 2  # half of it for 192 open blocks; LARGE takes four times as much
    assert chosen(LARGE, memory_bytes=memory)[::2] == (192, 64)
    assert chosen(LARGE[:600], memory_bytes=memory)[::2] == (96, 32)
    assert chosen(LARGE[:1], memory_bytes=1 << 20).lanes == 1


def test_open_blocks_stay_within_memory():
    wide = chosen(LARGE)
    opened = wide.lanes * 65_536 * (8 + 32)
    most = 3 << 27  # three quarters of 512 MiB
    rest = (1 << 29) - opened

    assert opened <= most < 2 * opened
    assert rest * 0.99 <= wide.lanes * wide.window_rows * (8 + 32 + 24) <= rest


def test_ranks_divide_the_lanes():
    for world_size in range(1, 80):
        lanes, _, groups = chosen(LARGE, ranks=world_size)

        assert lanes % world_size == groups % world_size == 0


def test_unshuffled_each_rank_has_one_contiguous_part():
    assert choose_lanes(index_of(LARGE), shuffle=False, ranks=6, batch_size=3) == Lanes(6, 1, 6)


def test_lanes_and_rows_of_a_round_are_as_asked():
    assert chosen([1000] * 5, lanes=6, shuffle_rows=600, batch_size=4) == Lanes(6, 100, 2)


@pytest.mark.parametrize("rows", [[60] * 200, LARGE])
def test_global_batches_are_the_same_on_every_number_of_ranks(rows):
    global_batch = 48 * 21
    steps = [0, 3, 7]
    alone = rows_of_steps(rows, 1, global_batch, steps)

    for world_size in (2, 3, 4, 6, 8, 12, 16, 24, 48):
        assert (alone == rows_of_steps(rows, world_size, global_batch // world_size, steps)).all()


@pytest.mark.slow
@pytest.mark.smoke(every=3)
@pytest.mark.parametrize("blocks", [1, 4, 20])
@pytest.mark.parametrize("batch_size", [8, 64])
def test_small_sorted_data_mixes_like_a_permutation(blocks, batch_size):
    """Of batches of a permutation of two equal classes 2^(1 - batch size) hold one class; the bounds are six sigma."""
    rows, total = [24_000 // blocks] * blocks, 24_000
    steps = total // batch_size
    batches = rows_of_steps(rows, 1, batch_size, range(steps))
    share = float(((batches < total // 2).all(1) | (batches >= total // 2).all(1)).mean())
    expected = 2.0 ** (1 - batch_size)
    tenths = np.mean([len(set(batch)) for batch in (batches * 10 // total).tolist()])
    full = 10 * (1 - 0.9**batch_size)

    assert abs(share - expected) <= 6 * (expected / steps) ** 0.5 + 1 / steps
    assert abs(tenths - full) <= 6 * (10 / 4 / steps) ** 0.5


@pytest.mark.parametrize("world_size", [2, 5])
def test_every_rank_sees_all_of_sorted_data(world_size):
    for epoch in range(2):
        plan = make_plan(
            index_of([3000]), batch_size=8, world_size=world_size, shuffle=True, epoch=epoch
        )
        share = plan.rank_rows(rank=0)
        _, row = plan.order.locate(plan.order.line_of(share.indices(0, share.rows)))

        assert row.min() < 100
        assert row.max() > 2900
        assert abs(row.mean() - 1500) < 6 * 866 / len(row) ** 0.5


@pytest.mark.slow
def test_large_sorted_data_mixes_like_places_of_its_lanes():
    """Batches of 8 from 48 lanes of a sorted file: hardly any holds one of two classes; a batch of 256 has many."""
    lanes = chosen(LARGE).lanes
    total = int(LARGE.sum())
    eight = rows_of_steps(LARGE, 1, 8, range(0, 60_000, 100))
    many = rows_of_steps(LARGE, 1, 256, range(0, 2000, 100))
    single = float(((eight < total // 2).all(1) | (eight >= total // 2).all(1)).mean())
    sampled = 100 * (1 - (1 - 1 / 100) ** lanes)  # classes that `lanes` random places meet

    assert single < 0.05
    assert np.mean([len(set(batch)) for batch in (many * 100 // total).tolist()]) > 0.8 * sampled


@settings(max_examples=examples(30))
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=9),
    st.integers(1, 4),
    st.integers(1, 9),
    st.booleans(),
)
def test_a_split_in_memory_gives_every_row_once_in_every_pass(rows, world_size, batch_size, pad):
    remainder = "pad" if pad or world_size > 1 else "exact"
    options = StreamOptions(
        batch_size=batch_size, shuffle=True, seed=3, batch_format="numpy", remainder=remainder
    )
    loaders = [
        StreamLoader(index_of(rows), Numbers(tuple(rows)), options, topology=topology)
        for topology in ranks(world_size)
    ]
    orders = []
    for _ in range(2):
        seen = [
            (int(row), str(text))
            for loader in loaders
            for batch in loader
            for row, text, valid in zip(
                batch["row"],
                batch["text"],
                batch.get("valid", np.ones(len(batch["row"]), bool)),
                strict=True,
            )
            if valid
        ]
        assert sorted(seen) == [(row, str(row)) for row in range(sum(rows))]
        orders.append(seen)

    assert orders[0] != orders[1] or sum(rows) < 5


def test_a_split_in_memory_is_decoded_once():
    rows, reads = (10, 0, 7), []

    def counted(block, columns):
        reads.append(block)
        return Numbers(rows)(block, columns)

    options = StreamOptions(batch_size=4, shuffle=True, batch_format="numpy")
    loader = StreamLoader(index_of(rows), counted, options, topology=ranks(1)[0])
    for _ in range(3):
        assert 17 == sum(len(batch["row"]) for batch in loader)

    assert sorted(reads) == [0, 2]
