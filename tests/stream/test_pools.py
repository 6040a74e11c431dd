"""Pools hold exactly the rank's places of the line, in order, whatever order, remainder and topology."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stream.order import epoch
from headrace.stream.order.epoch import epoch_order
from headrace.stream.order.plan import plan_pools
from headrace.stream.order.remaining import Remaining, advance, rank_rows_of


@pytest.fixture(autouse=True, scope="module")
def short_first_rounds():
    """First rounds are shorter than others, though these orders are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch, "FIRST_ROWS", 7)
        yield


@st.composite
def orders(draw):
    """Orders of few rows: empty blocks, more lanes than rows, windows of one row."""
    rows = np.array(draw(st.lists(st.integers(0, 40), min_size=1, max_size=12)), np.int64)
    identities = np.arange(3 * len(rows), dtype=np.uint64).reshape(-1, 3)
    lanes = draw(st.sampled_from([1, 2, 3, 7, 16, 300]))
    return epoch_order(
        rows,
        identities,
        seed=draw(st.integers(0, 3)),
        epoch=draw(st.integers(0, 2)),
        lanes=lanes,
        groups=draw(st.sampled_from([each for each in range(1, lanes + 1) if lanes % each == 0])),
        window_rows=draw(st.sampled_from([1, 2, 5, 64])),
        shuffle=draw(st.booleans()),
    )


@st.composite
def leftovers(draw, rows):
    """What is left after up to three stops, each on ranks of its own; or any ranges, as whole shards leave them."""
    remaining = Remaining.everything(rows)
    for _ in range(draw(st.integers(0, 3))):
        ranks, batch_size = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
        batches = draw(st.integers(0, -(-remaining.total // (ranks * batch_size))))
        remaining = advance(remaining, batches, ranks=ranks, batch_size=batch_size, remainder="pad")
    cuts = sorted(draw(st.sets(st.integers(0, remaining.total), max_size=6)))
    if len(cuts) > 1 and draw(st.booleans()):
        starts, stops = cuts[0::2], cuts[1::2]
        remaining = remaining.keep(
            np.array(starts[: len(stops)], np.int64), np.array(stops, np.int64)
        )
    return remaining


def laid(starts, stops):
    return np.concatenate(
        [np.zeros(0, np.int64), *(np.arange(a, b) for a, b in zip(starts, stops, strict=True))]
    )


def first_places(order, pool):
    """Where the block of each piece begins on the line."""
    return [int(order.line[np.flatnonzero(order.blocks == block)[0]]) for block, _, _ in pool.spans]


@given(orders(), st.data())
def test_pieces_hold_the_places_of_the_line(order, data):
    if not order.rows:
        return
    positions = np.array(
        sorted(data.draw(st.sets(st.integers(0, order.rows - 1), min_size=1))), np.int64
    )

    found = order.pool_of(positions)
    firsts = first_places(order, found)
    places = laid(
        [first + start for first, (_, start, _) in zip(firsts, found.spans, strict=True)],
        [first + stop for first, (_, _, stop) in zip(firsts, found.spans, strict=True)],
    )
    got = places if found.index is None else places[found.index]
    assert got.tolist() == order.line_of(positions).tolist()
    assert all(start < stop for _, start, stop in found.spans)
    assert len(places) == found.rows == len(np.unique(places))


@given(orders(), st.data())
def test_positions_evenly_apart_are_those_asked_one_by_one(order, data):
    first = data.draw(st.integers(0, max(0, order.rows - 1)))
    step = data.draw(
        st.sampled_from([each for each in range(1, order.groups + 1) if order.groups % each == 0])
    )
    positions = np.arange(first, order.rows, step)
    alone = [int(order.line_of(positions[place : place + 1])[0]) for place in range(len(positions))]

    assert order.line_of(positions).tolist() == alone


@given(orders(), st.data(), st.sampled_from([1, 50, 1 << 13]))
def test_pools_rebuilt_from_pieces_and_index_are_the_share(order, data, least_rows):
    remaining = data.draw(leftovers(order.rows))
    ranks = data.draw(st.integers(1, 9))
    batch_size = data.draw(st.integers(1, 11))
    remainder = data.draw(st.sampled_from(["pad", "drop"]))
    received = []
    for rank in range(ranks):
        share = rank_rows_of(
            remaining.total, rank=rank, ranks=ranks, batch_size=batch_size, remainder=remainder
        )
        got = []
        for pool in plan_pools(order, remaining, share, least_rows=least_rows):
            firsts = first_places(order, pool)
            places = laid(
                [first + start for first, (_, start, _) in zip(firsts, pool.spans, strict=True)],
                [first + stop for first, (_, _, stop) in zip(firsts, pool.spans, strict=True)],
            )
            taken = places if pool.index is None else places[pool.index]
            assert len(taken) == pool.items > 0
            assert all(0 <= start < stop for _, start, stop in pool.spans)
            got += taken.tolist()
        own = order.line_of(remaining.positions(share.indices(0, share.rows))).tolist()
        received += own

        assert got[: share.rows] == own
        assert (
            len(got) == share.items == share.steps * batch_size
            if remainder == "pad"
            else len(got) == share.rows
        )
        assert len(set(got[share.rows :])) <= 1  # one row fills the last step

    assert len(set(received)) == len(received)
    dropped = remaining.total % (ranks * batch_size) if remainder == "drop" else 0
    assert len(received) == remaining.total - dropped
