"""Memory is used again when nobody can see it any more, and never before."""

import gc

import numpy as np
import pytest
import torch

from headrace.stream.read.buffers import Buffers

SHAPE = (1 << 17,)


def address(array):
    return array.__array_interface__["data"][0]


def test_memory_comes_back_when_the_last_view_is_gone():
    buffers = Buffers()
    first = buffers.empty(SHAPE, np.float32)
    place = address(first)
    batch = torch.from_numpy(first).split(1000)[3]
    del first
    second = buffers.empty(SHAPE, np.float32)
    assert address(second) != place  # a tensor still looks at it
    batch.fill_(7)
    second.fill(0)
    assert batch.tolist() == [7] * 1000

    del batch
    gc.collect()
    third = buffers.empty((SHAPE[0] // 2, 2), np.int32)
    assert address(third) == place
    assert third.shape == (SHAPE[0] // 2, 2)


@pytest.mark.parametrize(
    "view", [lambda a: a[5:9], lambda a: a.view(np.int8), lambda a: memoryview(a), lambda a: a.T]
)
def test_any_view_keeps_it(view):
    buffers = Buffers()
    array = buffers.empty(SHAPE, np.float32)
    place, kept = address(array), view(array)
    del array

    assert address(buffers.empty(SHAPE, np.float32)) != place
    del kept
    assert place in {address(buffers.empty(SHAPE, np.float32))}


def test_only_so_many_free_ones_are_kept_and_none_that_is_much_too_large():
    buffers = Buffers()
    held = [buffers.empty(SHAPE, np.float32) for _ in range(5)]
    buffers.trim(2)
    assert len(buffers._spare) == 5
    del held
    buffers.trim(2)
    assert len(buffers._spare) == 2
    small = buffers.empty((SHAPE[0] // 4,), np.float32)
    assert len(buffers._spare) == 3
    assert small.nbytes == SHAPE[0]
