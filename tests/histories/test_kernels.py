"""Compiled kernels give what the system and plain functions give."""

from __future__ import annotations

import socket
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from history_reference import parse_addresses
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.histories.codec.addresses import Addresses
from headrace.histories.codec.kernels import hash_addresses
from headrace.histories.codec.text_kernels import parse_texts
from headrace.histories.parse import AddressCache, IdColumn, encode_ids
from headrace.keyed_hash import hash_words
from laws import examples

GROUPS = st.sampled_from(
    ["0", "1", "ab", "FFFF", "00ab", "12345", "", "g", "f00d", "1.2.3.4", "01.2.3.4", "1.2.3.400"]
)
NEARLY_6 = st.tuples(
    st.sampled_from(["", ":", "::"]), st.lists(GROUPS, max_size=9), st.sampled_from(["", ":", "::"])
)
NEARLY_4 = st.lists(
    st.sampled_from(["0", "00", "1", "09", "25", "255", "256", "", "1000", "a"]), max_size=5
)
TEXT = (
    NEARLY_6.map(lambda parts: parts[0] + ":".join(parts[1]) + parts[2])
    | NEARLY_4.map(".".join)
    | st.binary(min_size=16, max_size=16).map(lambda raw: socket.inet_ntop(socket.AF_INET6, raw))
    | st.ip_addresses().map(str)
    | st.text("0123456789abcdefF:.: %x\x00é", max_size=50)
    | st.tuples(
        st.ip_addresses().map(str),
        st.integers(0, 39),
        st.sampled_from(["", *"0.:/@Gg`aFf", "::", "00"]),
        st.integers(0, 2),
    ).map(lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] + parts[3] :])
)


def same(expected: Addresses, found: Addresses) -> bool:
    return np.array_equal(expected.family, found.family) and np.array_equal(
        expected.bytes, found.bytes
    )


@pytest.mark.slow
@settings(max_examples=examples(300))
@given(st.lists(TEXT, max_size=40), st.integers(0, 5))
def test_texts_are_read_as_the_system_reads_them(texts: list[str], skip: int) -> None:
    array = pa.array(texts, pa.large_string()).slice(skip)

    assert same(parse_addresses(array), Addresses(*parse_texts(array)))
    more = pa.array([*texts, "-" * 64])  # behind each of them is what is looked at with it
    assert same(parse_addresses(more), Addresses(*parse_texts(more)))
    assert same(parse_addresses(array), Addresses(*parse_texts(array.cast(pa.string()))))


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from([4, 6]), st.binary(min_size=16, max_size=16)), max_size=20), st.integers(0, 2**64 - 1), st.integers(0, 3))  # fmt: skip
def test_addresses_have_the_hash_of_the_digest(
    rows: list[tuple[int, bytes]], key: int, above: int
) -> None:
    family = np.array([each for each, _ in rows], np.uint8)
    data = np.frombuffer(b"".join(each for _, each in rows), np.uint8).reshape(-1, 16)
    words = np.column_stack(
        [family.astype(np.uint64) | np.uint64(above << 8), Addresses(family, data).words()]
    )

    expected = hash_words((key, 7), words.astype(np.uint64))
    for each, found in zip(expected, hash_addresses((key, 7), family, data, above), strict=True):
        assert np.array_equal(each, found)
    assert np.array_equal(
        expected[0], hash_addresses((key, 7), family, data, above, half="high")[0]
    )


def same_rows(column: pa.ChunkedArray, found: IdColumn) -> bool:
    """Whether each row has the address that the system reads."""
    texts = column.cast(pa.large_string()).combine_chunks()
    expected = parse_addresses(texts)
    missing = np.array([not text for text in texts.to_pylist()], np.bool_)
    index = np.where(missing, -1, np.where(expected.family == 0, -2, 0))
    rows = np.flatnonzero(index == 0)
    return np.array_equal(index, np.minimum(found.index, 0)) and same(
        expected.take(rows), found.distinct.take(found.index[rows])
    )


@given(st.lists(st.lists(st.none() | TEXT, max_size=12), min_size=1, max_size=3), st.booleans())
def test_rows_of_a_column_have_their_addresses_each_once(
    chunks: list[list[str | None]], is_dictionary: bool
) -> None:
    column = pa.chunked_array([pa.array(chunk, pa.string()) for chunk in chunks], pa.string())
    found = encode_ids(column.dictionary_encode() if is_dictionary else column, "address", "src")
    keys = [*zip(found.distinct.family.tolist(), map(bytes, found.distinct.bytes), strict=True)]

    assert same_rows(column, found)
    assert is_dictionary or len(set(keys)) == len(keys)


@given(st.lists(st.lists(st.none() | TEXT, max_size=12), min_size=1, max_size=3), st.booleans())
def test_addresses_that_may_repeat_are_those_of_their_rows(
    chunks: list[list[str | None]], large: bool
) -> None:
    kind = pa.large_string() if large else pa.string()
    column = pa.chunked_array([pa.array(chunk, kind) for chunk in chunks], kind)

    assert same_rows(column, encode_ids(column, "address", "dst", repeats="keep"))


@given(
    st.lists(
        st.lists(st.none() | TEXT | st.sampled_from(["1", "22", "10.0.0.1"]), max_size=8),
        min_size=1,
        max_size=3,
    ),
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(["address", "number", "text"]),
            st.lists(st.integers(0, 7), max_size=12),
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_chunks_that_share_a_dictionary_are_coded_as_each_alone(
    dictionaries: list[list[str | None]],
    chunks: list[tuple[int, Literal["address", "number", "text"], list[int]]],
) -> None:
    cache = AddressCache()
    for of_chunk, kind, places in chunks:
        texts = pa.array(dictionaries[of_chunk % len(dictionaries)], pa.string())
        codes = pa.array([each if each < len(texts) else None for each in places], pa.int32())
        column = pa.chunked_array([pa.DictionaryArray.from_arrays(codes, texts)])

        expected = encode_ids(column, kind, "src", seed=7)
        found = encode_ids(column, kind, "src", seed=7, cache=cache)

        assert same(expected.distinct, found.distinct)
        assert np.array_equal(expected.index, found.index)
        assert expected.texts == found.texts


@pytest.mark.parametrize("entities", [500, 60_000])
def test_addresses_that_hardly_repeat_are_kept_as_they_come(entities: int) -> None:
    generator = np.random.default_rng(entities)
    rows = 20_000
    names = np.array([f"10.{k >> 16}.{k >> 8 & 255}.{k & 255}" for k in range(entities)], object)
    texts = names[generator.integers(0, entities, rows)]
    texts[generator.choice(rows, 300, replace=False)] = None
    texts[generator.choice(rows, 300, replace=False)] = "no address"
    column = pa.chunked_array([pa.array(texts, pa.string())])

    found = encode_ids(column, "address", "src")

    assert same_rows(column, found)
    assert (len(found.distinct) > len(np.unique(texts.astype(str)))) == (entities > rows)
