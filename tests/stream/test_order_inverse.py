"""The order asked backwards gives what the order forwards gave: positions, sightings, and what a state has seen."""

import random
from collections import Counter

import numpy as np
import pytest
from pure_order import make_plan, positions_of_row
from stream_cases import Numbers, index_of, ranks
from test_order import order_of, random_case

from headrace.errors import InputError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.order import epoch
from headrace.stream.order.state import StreamState
from headrace.stream.order.whereabouts import find_row, find_rows, row_number, seen_per_shard
from raised import raised


@pytest.fixture(autouse=True, scope="module")
def short_first_rounds():
    """First rounds are shorter than others, though these orders are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch, "FIRST_ROWS", 7)
        yield


@pytest.mark.slow
@pytest.mark.smoke(every=3)
@pytest.mark.parametrize("tenth", range(10))
def test_every_row_has_the_position_that_delivers_it(tenth):
    for number in range(300)[tenth::10]:
        rows, settings, window = random_case(number)
        order = order_of(rows, window, settings)
        positions = np.arange(order.rows)[:: 1 + order.rows // 50]
        blocks, rows = order.locate(order.line_of(positions))

        found = [
            positions_of_row(order, *row).tolist()
            for row in zip(blocks.tolist(), rows.tolist(), strict=True)
        ]
        assert positions[:, None].tolist() == found, number


@pytest.mark.parametrize("tenth", range(10))
def test_many_rows_have_the_positions_that_each_has_alone(tenth):
    for number in range(100)[tenth::10]:
        rows, settings, window = random_case(number)
        order = order_of(rows, window, settings)
        blocks, rows = order.locate(order.line_of(np.arange(order.rows)))
        asked = np.random.default_rng(number).permutation(order.rows)

        which, positions = order.positions_of_rows(blocks[asked], rows[asked])
        assert list(enumerate(asked.tolist())) == sorted(
            zip(which.tolist(), positions.tolist(), strict=True)
        ), number


def test_a_row_that_the_line_does_not_hold_has_no_position():
    order = order_of(
        [40, 0, 33, 1], 4, {"seed": 5, "epoch": 2, "lanes": 6, "groups": 3, "shuffle": True}
    )

    assert [] == positions_of_row(order, 1, 0).tolist() == positions_of_row(order, 0, 40).tolist()


@pytest.mark.parametrize("remainder", ["pad", "drop"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_row_is_delivered_where_it_was_said_to_be(remainder, shuffle):
    rows = (13, 0, 40, 1, 22)
    index = index_of(rows, blocks_per_shard=2)
    options = StreamOptions(
        batch_size=4,
        shuffle=shuffle,
        shuffle_rows=16,
        remainder=remainder,
        batch_format="numpy",
        seed=3,
    )
    delivered = {}
    for topology in ranks(3):
        loader = StreamLoader(index, Numbers(rows), options, topology=topology)
        plan = loader.plan()
        for step, batch in enumerate(loader):
            valid = batch.get("valid", np.ones(len(batch["row"]), bool))
            for place, row in enumerate(batch["row"].tolist()):
                if valid[place]:
                    delivered[row] = (topology.rank, step, place)
    said = {}
    for number in range(index.total_rows):
        block = int(np.searchsorted(index.first_row, number, side="right")) - 1
        found = find_row(plan, block=block, row=number - int(index.first_row[block]))
        if found is not None:
            said[number] = (found.rank, found.step, found.batch_row)

    assert delivered == said
    assert len(said) == index.total_rows - plan.dropped_rows


@pytest.mark.parametrize("remainder", ["pad", "drop"])
def test_many_rows_are_found_where_each_is_found_alone(remainder):
    index = index_of((13, 0, 40, 1, 22, 300), blocks_per_shard=2)
    plan = make_plan(
        index,
        batch_size=4,
        world_size=3,
        shuffle=True,
        lanes=6,
        window_rows=7,
        groups=3,
        remainder=remainder,
    )
    rows = np.arange(index.total_rows)[::-1]
    blocks = np.searchsorted(index.first_row + index.rows, rows, side="right")

    found = find_rows(plan, rows)
    alone = [
        find_row(plan, block=b, row=r)
        for b, r in zip(blocks.tolist(), (rows - index.first_row[blocks]).tolist(), strict=True)
    ]
    assert [number for number, each in enumerate(alone) if each is not None] == found.row.tolist()
    for name in ("position", "rank", "step", "batch_row"):
        assert [getattr(each, name) for each in alone if each is not None] == getattr(
            found, name
        ).tolist()


def test_every_row_has_a_place_of_its_own():
    index = index_of((50, 50))
    plan = make_plan(index, batch_size=3, world_size=8, shuffle=True)
    found = [find_row(plan, block=block, row=row) for block in range(2) for row in range(50)]

    assert 100 == len({(each.rank, each.step, each.batch_row) for each in found})
    assert plan.steps_per_rank > max(each.step for each in found)


def test_what_a_state_has_seen_is_what_was_delivered():
    rows = (30, 7, 0, 41, 22, 5)
    index = index_of(rows, blocks_per_shard=2)
    dice = random.Random(1)
    for _ in range(20):
        options = StreamOptions(
            batch_size=dice.randint(1, 9), shuffle=True, shuffle_rows=8, batch_format="numpy"
        )
        loader = StreamLoader(index, Numbers(rows), options, topology=ranks(1)[0])
        delivered, batches = [], iter(loader)
        for _ in range(dice.randint(0, len(loader))):
            delivered += next(batches)["row"].tolist()
        state = StreamState.from_dict(loader.state_dict())
        batches.close()
        blocks = np.searchsorted(index.first_row + index.rows, delivered, side="right")
        expected = Counter(index.shard_of_block[blocks].tolist())

        assert [expected[shard] for shard in range(3)] == seen_per_shard(index, state).tolist()


def test_a_row_that_was_received_is_not_seen_again():
    index = index_of((20,))
    plan = make_plan(index, batch_size=2, world_size=2, shuffle=True, lanes=2, window_rows=4)
    rest = plan.remaining.keep(np.array([8]), np.array([20]))
    later = make_plan(
        index, batch_size=2, world_size=2, shuffle=True, lanes=2, window_rows=4, remaining=rest
    )
    first = [find_row(plan, block=0, row=row) for row in range(20)]

    for row, before in enumerate(first):
        now = find_row(later, block=0, row=row)
        assert (now is None) == (before.position < 8)


def test_shards_are_named_by_path_or_file_name():
    index = index_of((3, 4, 5), blocks_per_shard=2)

    assert (1, 1) == row_number(index, "part-00000.parquet", 4)
    assert (2, 0) == row_number(index, "part-00001.parquet", 0)
    with raised(InputError, setting="shard", value="part-9"):
        row_number(index, "part-9", 0)
    with raised(InputError, path="part-00000.parquet", setting="row", value=7):
        row_number(index, "part-00000.parquet", 7)
