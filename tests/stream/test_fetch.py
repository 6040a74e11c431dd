"""Blocks are decoded ahead of a reader, within a bound that the blocks it has do not use up."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from headrace.stream.read.ahead import Fetcher

BLOCK_BYTES = 100
WAIT_S = 120


def whole(*blocks):
    """All rows of these blocks."""
    return [(block, 0, BLOCK_BYTES) for block in blocks]


class Decoding:
    """Blocks of `BLOCK_BYTES`; knows which were begun."""

    def __init__(self):
        self.begun = []
        self.changed = threading.Condition()

    def __call__(self, block):
        with self.changed:
            self.begun.append(block)
            self.changed.notify_all()
        return {"x": np.full(BLOCK_BYTES, block, np.uint8)}

    def wait_for(self, count):
        with self.changed:
            return self.changed.wait_for(lambda: len(self.begun) >= count, WAIT_S)


def each_of(decode):
    """Decode runs block by block."""
    return lambda blocks: [decode(block) for block in blocks]


NONE = np.zeros(0, bool)  # no block continues another


def fetcher(decoding, ahead_blocks, ahead_bytes=1000 * BLOCK_BYTES):
    return Fetcher(
        each_of(decoding),
        lambda _: BLOCK_BYTES,
        NONE,
        threads=1,
        ahead_bytes=ahead_bytes,
        ahead_blocks=ahead_blocks,
        keep="copies",
    )


@pytest.mark.parametrize(
    "bound", [{"ahead_bytes": BLOCK_BYTES, "ahead_blocks": 9}, {"ahead_blocks": 1}]
)
def test_the_next_block_is_decoded_while_a_pool_larger_than_the_bound_is_used(bound):
    decoding = Decoding()
    with fetcher(decoding, **bound) as blocks:
        blocks.announce(whole(0, 1, 2))
        found = blocks.get(whole(0, 1, 2))
        blocks.announce(whole(3, 4))

        assert decoding.wait_for(4)
        assert decoding.begun == [0, 1, 2, 3]
        assert [int(each["x"][0]) for each in found] == [0, 1, 2]

        blocks.release(whole(0, 1, 2))
        assert [int(each["x"][0]) for each in blocks.get(whole(3, 4))] == [3, 4]


def test_a_block_that_two_pools_want_is_decoded_once():
    decoding = Decoding()
    with fetcher(decoding, ahead_blocks=1) as blocks:
        blocks.announce(whole(0, 1))
        blocks.announce(whole(1, 2))
        blocks.get(whole(0, 1))
        blocks.release(whole(0, 1))
        blocks.get(whole(1, 2))
        blocks.release(whole(1, 2))

    assert sorted(decoding.begun) == [0, 1, 2]


def test_what_decoding_raises_is_raised_by_get():
    def fail(block):
        raise OSError(f"block {block}")

    with fetcher(fail, ahead_blocks=2) as blocks:
        blocks.announce(whole(5))
        with pytest.raises(OSError, match="block 5"):
            blocks.get(whole(5))


ROWS, ROW_BYTES = 1 << 16, 168  # as decoded: 11 MiB, in several parts


def numbers(block):
    """A block of four columns of several types, 168 bytes a row."""
    rows = block * ROWS + np.arange(ROWS)
    return {
        "row": rows,
        "half": rows.astype(np.float32) / 2,
        "pair": np.stack([rows, -rows], axis=1).astype(np.float32),
        "vector": np.broadcast_to(rows.astype(np.float64)[:, None], (ROWS, 18)).copy()
        + np.arange(18),
    }


def lanes_of(count, window):
    """The pieces of each round of lanes that begin evenly spread in a block of their own and go on in the next one."""
    places = [lane * 4 * ROWS + lane * ROWS // count for lane in range(count)]
    for round_ in range(2 * ROWS // window):
        pieces = []
        for place in places:
            at, end = place + round_ * window, place + (round_ + 1) * window
            while at < end:
                block, row = divmod(at, ROWS)
                stop = min(ROWS, row + end - at)
                pieces.append((block, row, stop))
                at += stop - row
        yield pieces


def rows_got(found):
    return np.concatenate([part["row"] for part in found])


def test_half_the_rows_of_open_blocks_are_held():
    lanes, window = 12, ROWS // 12
    rounds = list(lanes_of(lanes, window))
    held = []
    ahead = 2 * ROWS * ROW_BYTES
    with Fetcher(
        each_of(numbers),
        lambda _: ROWS * ROW_BYTES,
        NONE,
        threads=2,
        ahead_bytes=ahead,
        ahead_blocks=99,
        keep="copies",
    ) as blocks:
        blocks.announce(rounds[0])
        for pieces, coming in zip(rounds, [*rounds[1:], None], strict=True):
            found = blocks.get(pieces)
            held.append(blocks.held_bytes)
            expected = np.concatenate(
                [np.arange(start, stop) + block * ROWS for block, start, stop in pieces]
            )
            assert np.array_equal(expected, rows_got(found))
            assert all(
                np.array_equal(part["pair"][:, 1], -part["row"].astype(np.float32))
                for part in found
            )
            assert all(
                np.array_equal(part["vector"], part["row"][:, None] + np.arange(18.0))
                for part in found
            )
            if coming is not None:
                blocks.announce(coming)
            del found
            blocks.release(pieces)

        assert blocks.held_bytes == 0

    open_bytes = lanes * ROWS * ROW_BYTES
    windows = lanes * window * ROW_BYTES
    assert held[0] <= open_bytes  # until the first pool is done with them, the blocks are whole
    assert (
        max(held[1:]) <= open_bytes // 2 + 2 * windows + ahead
    )  # whole blocks would be all of it, and more


def test_views_are_not_copied():
    kept = numbers(0)
    with Fetcher(
        each_of(lambda _: kept),
        lambda _: 1,
        NONE,
        threads=1,
        ahead_bytes=1,
        ahead_blocks=1,
        keep="views",
    ) as blocks:
        blocks.announce([(0, 100, 200)])

        assert all(
            np.shares_memory(part["row"], kept["row"]) for part in blocks.get([(0, 100, 200)])
        )


def test_rows_before_those_held_are_decoded_again():
    decoding = Decoding()
    decoded = []

    def decode(block):
        decoding(block)
        decoded.append(numbers(block))
        return decoded[-1]

    with Fetcher(
        each_of(decode), lambda _: 1, NONE, threads=1, ahead_bytes=9, ahead_blocks=9, keep="copies"
    ) as blocks:
        late, early = [(0, ROWS - 100, ROWS)], [(0, 5, 10), (0, 700, 900)]
        blocks.announce(late)
        blocks.announce([(0, ROWS - 50, ROWS)])
        assert decoding.wait_for(1)
        for pieces in (late, [(0, ROWS - 50, ROWS)], early):
            expected = np.concatenate([np.arange(start, stop) for _, start, stop in pieces])
            found = blocks.get(pieces)

            assert np.array_equal(expected, rows_got(found))

            del found
            blocks.release(pieces)
            if pieces is late:
                blocks.announce(early)

    assert decoding.begun == [0, 0]


def test_rows_in_front_of_what_is_wanted_are_not_held_for_long_lanes():
    late, early = [(0, ROWS // 2, ROWS)], [(0, 5, 10)]
    with Fetcher(
        each_of(numbers),
        lambda _: 1,
        NONE,
        threads=1,
        ahead_bytes=9,
        ahead_blocks=9,
        keep="copies of the rest",
    ) as blocks:
        blocks.announce(late)
        assert np.array_equal(rows_got(blocks.get(late)), np.arange(ROWS // 2, ROWS))
        assert blocks.held_bytes <= ROWS // 2 * ROW_BYTES
        blocks.announce(early)
        blocks.release(late)

        assert np.array_equal(rows_got(blocks.get(early)), np.arange(5, 10))
