"""Value columns in rows come back as they went in, whatever the rows; and changed types are found."""

from dataclasses import replace

import numpy as np
import pytest
from history_cases import Sizes, random_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptShard
from headrace.histories.codec.rows import decode_rows, decode_together, encode_rows
from headrace.histories.codec.values import STORED, from_words, is_missing, stored_type, to_words
from laws import examples
from raised import raised


def random_values(rng, stored, n):
    bits = rng.integers(0, 256, (n, stored.itemsize), np.uint8).view(stored).ravel()
    return np.where(rng.random(n) < 0.2, stored.type(0), bits)


@pytest.mark.slow
@settings(max_examples=examples(20))
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.lists(st.sampled_from(STORED), max_size=5),
    st.sampled_from([0, 3, 300]),
    st.booleans(),
    st.integers(0, 9),
)
def test_rows_give_their_values_back(counts, types, peers, has_latency, seed):
    rng = np.random.default_rng(seed)
    plain = random_rows(rng, Sizes(counts, peers, 0), "number")
    values = tuple(random_values(rng, stored, sum(counts)) for stored in types)
    rows = replace(plain, values=values, has_latency=has_latency)
    encoded = encode_rows(rows)
    found = decode_together(encoded.data, np.diff(encoded.offsets))
    alone = decode_rows(encoded.blobs(np.arange(len(counts))), [""] * len(counts))

    assert found.damage is None
    assert {2 if types or not has_latency else 1} == set(found.headers["version"].tolist())
    assert types == [each.dtype for each in found.values]
    for number, column in enumerate(values):
        assert found.values[number].tobytes() == column.tobytes()
        assert b"".join(row.values[number].tobytes() for row in alone) == column.tobytes()
    assert {has_latency} == {row.has_latency for row in alone}


def test_rows_without_values_have_the_bytes_that_they_had():
    rows = random_rows(np.random.default_rng(1), Sizes([3, 9, 1], 2, 2))

    assert 64 + 4 + 4 + 4 + 4 == len(
        encode_rows(random_rows(np.random.default_rng(1), Sizes([1], 1, 0))).data
    )
    assert {1} == set(decode_together(*_blobs(rows)).headers["version"].tolist())


def _blobs(rows):
    encoded = encode_rows(rows)
    return encoded.data, np.diff(encoded.offsets)


@pytest.mark.parametrize(
    ("at", "byte"), [("types", 9), ("types", 200), ("types", 0), ("values", 1), ("values", 3)]
)
def test_changed_types_and_counts_of_columns_are_damage(at, byte):
    rng = np.random.default_rng(2)
    values = (np.arange(5, dtype="<i4"), np.arange(5, dtype="<f8"))
    encoded = encode_rows(replace(random_rows(rng, Sizes([5], 0, 0), "number"), values=values))
    plain = len(encode_rows(random_rows(rng, Sizes([5], 0, 0), "number")).data)
    data = encoded.data.copy()
    data[plain if at == "types" else 38] = byte

    with raised(CorruptShard, path="row 1"):
        decode_rows([data.tobytes()], ["row 1"])


@given(st.sampled_from(STORED[3:]), st.integers(0, 99))
def test_words_are_values_again_and_keep_what_is_missing(stored, seed):
    values = random_values(np.random.default_rng(seed), stored, 50)
    back = from_words(to_words(values), stored)

    assert (is_missing(values) == is_missing(back)).all()
    assert (back[~is_missing(values)] == values[~is_missing(values)]).all()


def test_a_category_takes_the_bytes_that_its_dictionary_needs():
    sizes = [stored_type("category", count).itemsize for count in (0, 255, 256, 65_535, 65_536)]

    assert [1, 1, 2, 2, 4] == sizes
