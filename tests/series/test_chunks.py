"""Chunks of entities: each pass has each entity once, in an order of its own, within the bound."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SettingsError
from headrace.series.windows.loader import ChunkPlan


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(0, 5), st.integers(1, 8), st.booleans())
def test_every_pass_has_every_entity_once_and_epochs_walk_through_the_passes(sizes, seed, size, by_bytes):
    sizes = np.array(sizes)
    bound = max(int(sizes.max()), 10 * size)
    plan = ChunkPlan(sizes, seed, max_bytes=bound) if by_bytes else ChunkPlan(sizes, seed, chunk_size=size)
    again = ChunkPlan(sizes, seed, max_bytes=bound) if by_bytes else ChunkPlan(sizes, seed, chunk_size=size)

    epoch = 0
    for number in range(3):
        seen = []
        for chunk in range(len(plan.of_pass(number)[1]) - 1):
            entities = plan.entities(epoch)

            assert (number, chunk) == plan.place(epoch)
            assert (np.diff(entities) > 0).all()
            assert (
                (sizes[entities].sum() <= bound)
                if by_bytes
                else (len(entities) == min(size, len(sizes) - chunk * size))
            )
            seen += entities.tolist()
            epoch += 1
        assert list(range(len(sizes))) == sorted(seen)
    assert again.entities(epoch).tolist() == plan.entities(epoch).tolist()  # asked at once, not one after another


def test_a_pass_has_chunks_unlike_those_of_the_pass_before():
    """T7: the same permutation in every pass makes chunks that never mix."""
    plan = ChunkPlan(np.ones(100, np.int64), 0, chunk_size=10)

    chunks = [{tuple(plan.entities(10 * number + chunk)) for chunk in range(10)} for number in range(3)]

    assert not chunks[0] & chunks[1]
    assert not chunks[1] & chunks[2]


def test_another_seed_has_other_chunks():
    chunks = [ChunkPlan(np.ones(100, np.int64), seed, chunk_size=10).entities(0).tolist() for seed in (0, 1)]

    assert chunks[0] != chunks[1]


def test_what_cannot_be_is_said():
    with pytest.raises(SettingsError, match="may take 8 bytes, .* the largest entity takes 9; allow more memory"):
        ChunkPlan(np.array([9, 3]), 0, max_bytes=8)
    with pytest.raises(SettingsError, match="no entity with a window"):
        ChunkPlan(np.array([], np.int64), 0, chunk_size=1)
