"""Ranks 1-24, 64 and 128 x shards 1-200 x remainder x shuffle, on the plan: every row once, equal steps, counted ends.

The files are what breaks loaders that stride over them: empty and one-row shards, fewer shards than ranks, a huge one
among tiny ones.
"""

import random
from functools import cache
from itertools import product

import numpy as np
import pytest
from pure_order import make_plan, rows_in_order
from stream_cases import index_of

from headrace.errors import SettingsError
from raised import raised


def uneven(shards):
    dice = random.Random(shards)
    return [dice.choice([0, 1, 1, 2, 5, 13]) for _ in range(shards)]


SHARDS = {
    **{f"uneven {count}": uneven(count) for count in (1, 2, 3, 8, 9, 17, 100, 199)},
    "one row": [1],
    "empty": [0, 0],
    "ones": [1] * 200,
    "huge and tiny": [997, *[1] * 60, *[0] * 5],
    "a global batch exactly": [240] * 3,
}
INDEXES = {name: index_of(rows) for name, rows in SHARDS.items()}
BATCH_SIZES = {name: number % 5 + 1 for number, name in enumerate(SHARDS)}


@cache
def order_of(name, world_size, shuffle):
    """The rows in the global order that a stream on so many ranks would choose."""
    plan = make_plan(
        INDEXES[name], batch_size=1, world_size=world_size, shuffle=shuffle, seed=5, epoch=2
    )
    return np.array(rows_in_order(plan, INDEXES[name]), np.int64)


def check_plan(name, world_size, shuffle, remainder):
    total, batch_size = sum(SHARDS[name]), BATCH_SIZES[name]
    plan = make_plan(
        INDEXES[name],
        batch_size=batch_size,
        world_size=world_size,
        shuffle=shuffle,
        seed=5,
        epoch=2,
        remainder=remainder,
    )
    shares = [plan.rank_rows(rank) for rank in range(world_size)]
    rows = order_of(name, world_size, shuffle)
    delivered = np.concatenate([rows[share.indices(0, share.rows)] for share in shares])
    times = np.bincount(delivered, minlength=total)
    filled = sum(share.items - share.rows for share in shares)

    assert times.max(initial=0) <= 1  # nothing twice
    assert len(delivered) == total - plan.dropped_rows  # and nothing missing that is not counted
    assert 0 <= plan.dropped_rows < world_size * batch_size
    assert remainder == "drop" or not plan.dropped_rows
    assert filled == plan.padded_rows < world_size * batch_size
    assert {share.steps for share in shares} == {plan.steps_per_rank}
    assert len({share.items for share in shares}) == 1  # equal steps of equal size
    assert remainder == "drop" or all(
        share.rows > share.batch_size * (share.steps - 1) for share in shares[:1]
    )
    assert all(
        0 <= share.index_of(share.items - 1) < total for share in shares if share.items
    )  # it fills with rows


@pytest.mark.parametrize("remainder", ["pad", "drop"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_row_once_in_equal_steps_over_the_whole_grid(shuffle, remainder):
    for name, world_size in product(SHARDS, [*range(1, 25), 64, 128]):
        check_plan(name, world_size, shuffle, remainder)


def test_one_rank_may_have_a_shorter_last_batch_and_several_may_not():
    for name, shuffle in product(SHARDS, (False, True)):
        check_plan(name, 1, shuffle, "exact")
    with raised(SettingsError, setting="remainder", remedy='use "pad"'):
        check_plan("ones", 2, False, "exact")
