"""The keyed hash is the published SipHash-2-4-128; permutations are permutations and stay what they are."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import keyed_hash
from headrace.digest import derive_key
from headrace.keyed_hash import (
    hash_texts,
    hash_words,
    inverse_permutation,
    permutation,
    permutations,
)

REFERENCE_KEY = (0x0706050403020100, 0x0F0E0D0C0B0A0908)
# vectors_sip128 of the authors' reference code: key 00..0f, message 00, 01, ..., of length 0, 1, 2, ...
REFERENCE = ["a3817f04ba25a8e66df67214c7550293", "da87c1d86b99af44347659119b22fc45"]


def as_hex(high: np.ndarray, low: np.ndarray) -> list[str]:
    return [
        int(h).to_bytes(8, "little").hex() + int(lo).to_bytes(8, "little").hex()
        for h, lo in zip(high, low, strict=True)
    ]


def scalar_siphash(key: tuple[int, int], message: bytes) -> str:
    mask = (1 << 64) - 1

    def rotl(x: int, b: int) -> int:
        return ((x << b) | (x >> (64 - b))) & mask

    v = [
        0x736F6D6570736575 ^ key[0],
        0x646F72616E646F6D ^ key[1] ^ 0xEE,
        0x6C7967656E657261 ^ key[0],
        0x7465646279746573 ^ key[1],
    ]

    def rounds(n: int) -> None:
        for _ in range(n):
            v[0] = (v[0] + v[1]) & mask
            v[1] = rotl(v[1], 13) ^ v[0]
            v[0] = rotl(v[0], 32)
            v[2] = (v[2] + v[3]) & mask
            v[3] = rotl(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & mask
            v[3] = rotl(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & mask
            v[1] = rotl(v[1], 17) ^ v[2]
            v[2] = rotl(v[2], 32)

    tail = len(message) % 8
    padded = message + b"\0" * (7 - tail) + bytes([len(message) & 0xFF])
    for i in range(0, len(padded), 8):
        m = int.from_bytes(padded[i : i + 8], "little")
        v[3] ^= m
        rounds(2)
        v[0] ^= m
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    second = v[0] ^ v[1] ^ v[2] ^ v[3]
    return first.to_bytes(8, "little").hex() + second.to_bytes(8, "little").hex()


def test_the_keyed_hash_is_the_published_one() -> None:
    messages = [bytes(range(n)) for n in range(len(REFERENCE))]

    assert as_hex(*hash_texts(REFERENCE_KEY, pa.array(messages, pa.binary()))) == REFERENCE


@given(
    st.lists(st.binary(max_size=40), max_size=30),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
def test_hashing_a_column_equals_hashing_each_value(values: list[bytes], k0: int, k1: int) -> None:
    expected = [scalar_siphash((k0, k1), value) for value in values]

    assert as_hex(*hash_texts((k0, k1), pa.array(values, pa.binary()))) == expected


@given(st.lists(st.text(max_size=20), min_size=1, max_size=30), st.integers(0, 10))
def test_layout_of_the_column_does_not_matter(values: list[str], cut: int) -> None:
    whole = hash_texts(REFERENCE_KEY, pa.array(values, pa.string()))
    chunks = pa.chunked_array(
        [pa.array(values[:cut], pa.large_string()), pa.array(values[cut:], pa.large_string())]
    )
    sliced = pa.array(["padding", *values], pa.string()).slice(1)

    for other in (chunks, sliced, pa.array(values, pa.string_view())):
        np.testing.assert_array_equal(whole, hash_texts(REFERENCE_KEY, other))


def test_words_hash_like_their_bytes() -> None:
    words = np.array([[1, 2], [3, 2**63]], np.uint64)

    assert as_hex(*hash_words(REFERENCE_KEY, words)) == [
        scalar_siphash(REFERENCE_KEY, row.tobytes()) for row in words
    ]


@given(st.integers(0, 3000), st.integers(0, 2**32))
def test_permutation_is_a_permutation(n: int, seed: int) -> None:
    np.testing.assert_array_equal(np.sort(permutation(derive_key(seed, "test"), n)), np.arange(n))


@given(st.integers(1, 2_000), st.sampled_from([0, 1, 16, 17, 500]))
def test_items_are_placed_where_the_permutation_has_them(n: int, count: int) -> None:
    key, items = derive_key(n, "test"), np.arange(count) * 7 % n

    np.testing.assert_array_equal(items, permutation(key, n)[inverse_permutation(key, n, items)])


def test_items_whose_random_bits_are_equal_keep_the_order_of_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = np.array([7 << 8, 3 << 8 | 255, 7 << 8 | 9, 3 << 8, 7 << 8 | 1, 1 << 8], np.uint64)
    monkeypatch.setattr(keyed_hash, "_random_words", lambda key, n: (words.copy(), np.uint64(7)))
    words &= ~np.uint64(0xF8)

    assert inverse_permutation((0, 0), 6, np.arange(6)).tolist() == [3, 1, 4, 2, 5, 0]
    assert permutation((0, 0), 6).tolist() == [5, 1, 3, 0, 2, 4]


def test_permutation_is_pinned() -> None:
    assert permutation(derive_key(42, "pin"), 10).tolist() == [6, 7, 0, 8, 3, 2, 4, 1, 9, 5]


@given(st.integers(1, 40), st.integers(0, 9), st.integers(1, 9))
def test_many_orders_are_the_same_whichever_are_asked_for_together(n, first, count):
    key = derive_key(3, "orders")
    orders = permutations(key, n, first=first, count=count)

    assert (np.sort(orders, axis=1) == np.arange(n)).all()
    assert permutations(key, n, first=0, count=1)[0].tolist() == permutation(key, n).tolist()
    alone = [permutations(key, n, first=first + number, count=1)[0] for number in range(count)]
    assert orders.tolist() == np.stack(alone).tolist()
