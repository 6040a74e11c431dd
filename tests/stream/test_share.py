"""Exactly once and equal steps, over ranks, shards and remainders; and resuming loses and repeats nothing."""

import random

import numpy as np
import pytest
from pure_order import make_plan
from reference import deliver
from stream_cases import index_of

from headrace.errors import SettingsError, StreamError
from headrace.stream.order.remaining import (
    Remaining,
    advance,
    count_steps,
    rank_rows_of,
    resolve_remainder,
)
from raised import raised


def shard_rows(shards: int) -> list[int]:
    """Uneven shards, empty and one-row ones among them."""
    dice = random.Random(shards)
    return [dice.choice([0, 1, 1, 2, 5, 13]) for _ in range(shards)]


@pytest.mark.parametrize("quarter", range(4))
def test_every_row_once_and_equal_steps_for_all_numbers_of_ranks(quarter):
    for ranks in [*range(1, 33), 48, 63, 64, 100, 128][quarter::4]:
        for shards in range(1 + ranks % 3, 201, 3):
            for remainder in ("pad", "drop", "exact")[: 3 if ranks == 1 else 2]:
                check_shares(sum(shard_rows(shards)), ranks, shards % 7 + 1, remainder)


def check_shares(total, ranks, batch_size, remainder):
    remaining = Remaining.everything(total)
    shares = [
        rank_rows_of(total, rank=rank, ranks=ranks, batch_size=batch_size, remainder=remainder)
        for rank in range(ranks)
    ]
    positions = remaining.positions(
        np.concatenate([share.indices(0, share.rows) for share in shares])
    )
    times = np.bincount(positions, minlength=total)
    left_out = total % (ranks * batch_size) if remainder == "drop" else 0

    items = total if remainder == "exact" else shares[0].steps * batch_size

    assert {(share.steps, share.items) for share in shares} == {(shares[0].steps, items)}
    assert (times == (np.arange(total) < total - left_out)).all()


def test_a_hundred_shards_on_eight_ranks_take_equal_steps():
    index = index_of([1000] * 100)
    for remainder in ("pad", "drop"):
        plan = make_plan(index, batch_size=64, world_size=8, shuffle=True, remainder=remainder)
        coverage = plan.coverage()

        assert (coverage.overlap_rows, coverage.missing_rows) == (0, 0)
        assert (
            coverage.delivered_rows == int(plan.rows_per_rank.sum()) == 100_000 - plan.dropped_rows
        )
        assert coverage.padded_rows == plan.padded_rows


def test_one_shard_feeds_all_ranks():
    plan = make_plan(index_of([10]), batch_size=1, world_size=4)

    assert plan.steps_per_rank == 3
    assert plan.rows_per_rank.tolist() == [3, 3, 2, 2]


def test_fewer_rows_than_ranks_still_give_each_a_batch():
    plan = make_plan(index_of([1]), batch_size=4, world_size=16)

    assert plan.steps_per_rank == 1
    assert plan.rows_per_rank.sum() == 1


def test_no_rows_are_no_steps():
    for remainder in ("pad", "drop"):
        assert (
            make_plan(
                index_of([0, 0]), batch_size=4, world_size=2, remainder=remainder
            ).steps_per_rank
            == 0
        )


def test_exact_is_for_one_rank():
    assert resolve_remainder(None, 1) == "exact"
    assert resolve_remainder("exact", 1) == "exact"
    assert resolve_remainder(None, 2) == "pad"
    with raised(SettingsError, setting="remainder", remedy='use "pad"'):
        resolve_remainder("exact", 2)


@pytest.mark.parametrize("tenth", range(10))
def test_resuming_anywhere_on_any_topology_is_the_rest_of_the_epoch(tenth):
    for number in range(300)[tenth::10]:
        dice = random.Random(number)
        rows = dice.choice([1, 7, 100, 333])
        remaining, left = Remaining.everything(rows), list(range(rows))
        for _ in range(dice.randint(1, 5)):  # stop, and stop again in the resumed pass
            ranks, batch_size = dice.randint(1, 12), dice.randint(1, 9)
            remainder = dice.choice(["pad", "drop"])
            streams = [
                list(
                    deliver(
                        left, rank=rank, ranks=ranks, batch_size=batch_size, remainder=remainder
                    )
                )
                for rank in range(ranks)
            ]
            batches = dice.randint(0, len(streams[0]))
            seen = {row for stream in streams for batch in stream[:batches] for row in batch}
            left = [row for row in left if row not in seen]

            remaining = advance(
                remaining, batches, ranks=ranks, batch_size=batch_size, remainder=remainder
            )

            assert remaining.positions(np.arange(remaining.total)).tolist() == left, number
            assert remaining.holes == ()  # steps end together, so what is left is the tail


def test_more_batches_than_a_pass_has_is_an_error():
    with raised(StreamError, setting="batches", value=5):
        advance(Remaining.everything(10), 5, ranks=1, batch_size=3, remainder="pad")
    with raised(StreamError, setting="batches", value=-1):
        advance(Remaining.everything(10), -1, ranks=1, batch_size=3, remainder="pad")


def test_steps_count_whole_and_broken_steps():
    assert count_steps(10, ranks=2, batch_size=2, remainder="pad") == 3
    assert count_steps(10, ranks=2, batch_size=2, remainder="drop") == 2
    assert count_steps(8, ranks=2, batch_size=2, remainder="pad") == 2
