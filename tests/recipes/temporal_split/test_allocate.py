"""Allocation is exact, and depends on the entities and the seed alone."""

import random
import tracemalloc
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.split.allocate import (
    BYTES_PER_ENTITY,
    TRAIN,
    UNSEEN,
    VAL,
    Allocation,
    EntitySet,
    Hashes,
    allocate,
    hash_entities,
    hash_null_entity,
)
from laws import examples

ids = st.lists(st.text(max_size=4), min_size=1, max_size=40)


def hashes(*pairs: tuple[int, int]) -> Hashes:
    return Hashes(
        np.array([high for high, _ in pairs], np.uint64),
        np.array([low for _, low in pairs], np.uint64),
    )


def known(texts: list[str], seed: int = 42, pieces: int = 1) -> Hashes:
    entities = EntitySet()
    for start in range(pieces):
        part = texts[start::pieces]
        if part:
            entities.add(hash_entities(pa.array(part, pa.large_string()), seed))
    return entities.ordered()


def trained(texts: list[str], allocation: Allocation, seed: int = 42) -> set[str]:
    sides = allocation.side_of(hash_entities(pa.array(texts, pa.large_string()), seed))
    return {text for text, side in zip(texts, sides, strict=True) if side == TRAIN}


@given(st.integers(0, 2000), st.integers(1, 99))
def test_the_train_count_is_the_floor_of_the_decimal_product(n: int, hundredths: int) -> None:
    entities = Hashes(np.arange(n, dtype=np.uint64), np.zeros(n, np.uint64))

    assert n * hundredths // 100 == allocate(entities, hundredths / 100).train


@pytest.mark.parametrize(
    ("n", "ratio", "expected"),
    [
        (100, 0.29, 29),
        (100, 0.57, 57),
        (100, 0.58, 58),
        (10, 0.7, 7),
        (1000, 0.001, 1),
        (3, 0.9, 2),
        (1, 0.9, 0),
        (7, 0.1 + 0.2, 2),
    ],
)
def test_the_ratio_is_the_decimal_it_is_written_as(n: int, ratio: float, expected: int) -> None:
    entities = Hashes(np.arange(n, dtype=np.uint64), np.zeros(n, np.uint64))

    assert expected == allocate(entities, ratio).train == int(Fraction(repr(ratio)) * n)


@given(ids, st.integers(1, 6), st.randoms(use_true_random=False))
def test_order_repeats_and_sharding_play_no_part(
    texts: list[str], pieces: int, shuffler: random.Random
) -> None:
    other = [*texts, *shuffler.sample(texts, len(texts) // 2)]
    shuffler.shuffle(other)
    one, two = allocate(known(texts), 0.5), allocate(known(other, pieces=pieces), 0.5)

    assert trained(texts, one) == trained(texts, two)
    assert len(set(texts)) == len(one.entities) == len(two.entities)


@given(ids)
def test_every_known_entity_has_a_side_and_others_are_unseen(texts: list[str]) -> None:
    allocation = allocate(known(texts), 0.5)
    sides = allocation.side_of(hash_entities(pa.array(sorted(set(texts)), pa.large_string()), 42))

    assert [len(set(texts)) // 2, len(set(texts)) - len(set(texts)) // 2] == [
        int((sides == side).sum()) for side in (TRAIN, VAL)
    ]
    assert [UNSEEN] == allocation.side_of(
        hash_entities(pa.array(["never seen"], pa.large_string()), 42)
    ).tolist()


def test_another_seed_trains_other_entities() -> None:
    texts = [str(n) for n in range(1000)]
    one, two = (trained(texts, allocate(known(texts, seed), 0.5), seed) for seed in (1, 2))

    assert 150 < len(one - two) < 350


def test_close_texts_are_different_entities() -> None:
    texts = ["7", "07", "007", "7.0", " 7", "7 ", "", "a\x00", "a", "\u00e9", "e\u0301"]

    assert len(texts) == len(known(texts))


def test_the_null_entity_is_no_text() -> None:
    null_entity = hash_null_entity(42)
    texts = hash_entities(pa.array(["", "nobody", "None", "null"], pa.large_string()), 42)

    assert int(null_entity.high[0]) not in texts.high.tolist()


words = st.integers(0, 3)


@given(
    st.lists(st.tuples(words, words), min_size=1, max_size=16),
    st.lists(st.tuples(words, words), max_size=16),
    st.integers(1, 4),
)
@settings(max_examples=examples(300))
def test_entities_that_share_half_a_hash_stay_apart(
    before: list[tuple[int, int]], asked: list[tuple[int, int]], pieces: int
) -> None:
    entities = EntitySet()
    for start in range(pieces):
        entities.add(hashes(*before[start::pieces]))
    allocation = allocate(entities.ordered(), 0.5)
    distinct = sorted(set(before))
    expected = [
        UNSEEN
        if pair not in distinct
        else TRAIN
        if distinct.index(pair) < len(distinct) // 2
        else VAL
        for pair in asked
    ]

    assert distinct == list(
        zip(allocation.entities.high.tolist(), allocation.entities.low.tolist(), strict=True)
    )
    assert expected == allocation.side_of(hashes(*asked)).tolist()


def test_no_entities_means_that_all_are_unseen() -> None:
    allocation = allocate(EntitySet().ordered(), 0.9)

    assert (0, 0) == (allocation.train, allocation.val)
    assert [UNSEEN, UNSEEN] == allocation.side_of(hashes((1, 2), (3, 4))).tolist()


def test_an_entity_takes_the_memory_that_is_stated() -> None:
    count, entities = 400_000, EntitySet()
    tracemalloc.start()
    for start in range(0, count, 20_000):
        part = np.arange(start, start + 20_000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        entities.add(Hashes(part, part ^ np.uint64(1)))
        entities.add(Hashes(part, part ^ np.uint64(1)))
    entities.ordered()
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert BYTES_PER_ENTITY * count <= held < 1.1 * BYTES_PER_ENTITY * count
    assert peak < 10 * BYTES_PER_ENTITY * count
