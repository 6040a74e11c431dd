"""Chunks of entities: each pass has each entity once, in an order of its own."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SettingsError
from headrace.series.windows.loader import ChunkPlan
from raised import raised


@given(st.integers(1, 30), st.integers(0, 5), st.integers(1, 8))
def test_every_pass_has_every_entity_once_and_epochs_walk_through_the_passes(count, seed, size):
    plan = ChunkPlan(count, seed, chunk_size=size)
    again = ChunkPlan(count, seed, chunk_size=size)

    epoch = 0
    for number in range(3):
        seen = []
        for chunk in range(-(-count // size)):
            entities = plan.entities(epoch)

            assert (number, chunk) == plan.locate(epoch)
            assert (np.diff(entities) > 0).all()
            assert len(entities) == min(size, count - chunk * size)
            seen += entities.tolist()
            epoch += 1
        assert list(range(count)) == sorted(seen)
    assert (
        again.entities(epoch).tolist() == plan.entities(epoch).tolist()
    )  # asked at once, not one after another


def test_a_pass_has_chunks_unlike_those_of_the_pass_before():
    """T7: the same permutation in every pass makes chunks that never mix."""
    plan = ChunkPlan(100, 0, chunk_size=10)

    chunks = [
        {tuple(plan.entities(10 * number + chunk)) for chunk in range(10)} for number in range(3)
    ]

    assert not chunks[0] & chunks[1]
    assert not chunks[1] & chunks[2]


def test_another_seed_has_other_chunks():
    chunks = [ChunkPlan(100, seed, chunk_size=10).entities(0).tolist() for seed in (0, 1)]

    assert chunks[0] != chunks[1]


def test_what_cannot_be_is_said():
    with raised(SettingsError, remedy="prepare more, or ask for less"):
        ChunkPlan(0, 0, chunk_size=1)
