"""The global order is the one the design describes, for any shape, and stays what it is."""

import random
import subprocess
import sys

import numpy as np
import pytest
from reference import SlowOrder
from stream_cases import index_of

from headrace.stream.order.epoch import block_identities, epoch_order

CASES = range(300)


def random_case(number: int):
    dice = random.Random(number)
    rows = [dice.choice([0, 1, 2, 7, 64, 100]) for _ in range(dice.randint(1, 30))]
    lanes = dice.choice([1, 2, 3, 6, 16, 48])
    settings = {
        "seed": number,
        "epoch": number % 3,
        "lanes": lanes,
        "groups": dice.choice([each for each in range(1, lanes + 1) if lanes % each == 0]),
        "shuffle": dice.random() < 0.8,
    }
    return rows, settings, dice.choice([1, 5, 64])


def order_of(rows, window, settings):
    return epoch_order(
        np.array(rows), block_identities(index_of(rows)), window_rows=window, **settings
    )


def rows_in_order(order, rows):
    first = np.concatenate([[0], np.cumsum(rows)])
    block, row = order.locate(order.line_of(np.arange(order.rows)))
    return (first[block] + row).tolist()


@pytest.mark.smoke(every=3)
@pytest.mark.parametrize("tenth", range(10))
def test_the_order_equals_the_slow_one(tenth):
    for number in CASES[tenth::10]:
        rows, settings, window = random_case(number)
        order = order_of(rows, window, settings)
        slow = SlowOrder(rows, order.blocks.tolist(), window=window, **settings)

        assert rows_in_order(order, rows) == slow.epoch(), number
        assert sorted(slow.epoch()) == list(range(sum(rows)))


def test_any_positions_can_be_asked_alone():
    rows, settings, window = (
        [40, 0, 33, 1],
        {"seed": 5, "epoch": 2, "lanes": 3, "groups": 3, "shuffle": True},
        4,
    )
    order = order_of(rows, window, settings)
    whole = order.line_of(np.arange(74))
    for some in ([73, 0, 5, 5, 40], [5, 5, 6], [7], [9, 8, 7], [3, 6, 10], [3, 6, 9, 12]):
        assert order.line_of(np.array(some)).tolist() == whole[some].tolist()
    assert order.line_of(np.array([], np.int64)).tolist() == []


def test_without_shuffle_one_lane_is_the_natural_order():
    order = order_of(
        [3, 0, 4], 2, {"seed": 1, "epoch": 1, "lanes": 1, "groups": 1, "shuffle": False}
    )

    assert rows_in_order(order, [3, 0, 4]) == list(range(7))


@pytest.mark.parametrize("change", [{"seed": 4}, {"epoch": 1}, {"lanes": 2}, {"groups": 1}])
def test_seed_epoch_lanes_and_groups_each_change_the_order(change):
    settings = {"seed": 3, "epoch": 0, "lanes": 4, "groups": 2, "shuffle": True}
    rows = [20] * 10

    assert rows_in_order(order_of(rows, 8, settings), rows) != rows_in_order(
        order_of(rows, 8, settings | change), rows
    )


def test_a_block_keeps_its_identity_when_shards_are_added():
    few, more = block_identities(index_of([1] * 3)), block_identities(index_of([1] * 9))

    assert few.tolist() == more[:3].tolist()


GOLDEN = [6, 10, 1, 14, 3, 11, 8, 16, 0, 13, 5, 12, 2, 17, 7, 15, 9, 18, 4]
ROWS = [5, 4, 0, 1, 9]
SETTINGS = {"seed": 2024, "epoch": 1, "lanes": 4, "groups": 2, "shuffle": True}


def test_the_order_is_pinned():
    assert rows_in_order(order_of(ROWS, 4, SETTINGS), ROWS) == GOLDEN


@pytest.mark.slow
@pytest.mark.smoke("77")
@pytest.mark.parametrize("hash_seed", ["0", "77"])
def test_the_order_does_not_depend_on_the_hash_seed(hash_seed):
    code = "from test_order import *; print(rows_in_order(order_of(ROWS, 4, SETTINGS), ROWS) == GOLDEN)"
    paths = "import sys; sys.path[:0] = " + repr([path for path in sys.path if path])
    child = subprocess.run(
        [sys.executable, "-c", f"{paths}; {code}"],
        env={"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )

    assert child.stdout.strip() == "True"
