"""Blocks are decoded ahead of a reader, within a bound that the blocks it has do not use up."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from headrace.stream.read.fetch import Fetcher

BLOCK_BYTES = 100
WAIT_S = 30


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


def fetcher(decoding, ahead_blocks, ahead_bytes=1000 * BLOCK_BYTES):
    return Fetcher(decoding, lambda _: BLOCK_BYTES, threads=1, ahead_bytes=ahead_bytes, ahead_blocks=ahead_blocks)


@pytest.mark.parametrize("bound", [{"ahead_bytes": BLOCK_BYTES, "ahead_blocks": 9}, {"ahead_blocks": 1}])
def test_the_next_block_is_decoded_while_a_pool_larger_than_the_bound_is_used(bound):
    decoding = Decoding()
    with fetcher(decoding, **bound) as blocks:
        blocks.announce([0, 1, 2])
        found = blocks.get([0, 1, 2])
        blocks.announce([3, 4])

        assert decoding.wait_for(4)
        assert decoding.begun == [0, 1, 2, 3]
        assert [int(each["x"][0]) for each in found] == [0, 1, 2]

        blocks.release([0, 1, 2])
        assert [int(each["x"][0]) for each in blocks.get([3, 4])] == [3, 4]


def test_a_block_that_two_pools_want_is_decoded_once():
    decoding = Decoding()
    with fetcher(decoding, ahead_blocks=1) as blocks:
        blocks.announce([0, 1])
        blocks.announce([1, 2])
        blocks.get([0, 1])
        blocks.release([0, 1])
        blocks.get([1, 2])
        blocks.release([1, 2])

    assert sorted(decoding.begun) == [0, 1, 2]


def test_what_decoding_raises_is_raised_by_get():
    def fail(block):
        raise OSError(f"block {block}")

    with fetcher(fail, ahead_blocks=2) as blocks:
        blocks.announce([5])
        with pytest.raises(OSError, match="block 5"):
            blocks.get([5])
