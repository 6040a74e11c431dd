"""Many rows opened at once are what each is by itself: the same columns, and the same errors."""

from dataclasses import fields

import numpy as np
import pytest
from history_cases import Sizes, random_rows
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptShard
from headrace.histories.codec.rows import RowColumns, decode_rows, encode_rows

SIZES = st.builds(
    Sizes,
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from([1, 2, 300, 1 << 20]),
)


def blobs_of(sizes: Sizes, seed: int, kind: str = "address") -> list[bytes]:
    encoded = encode_rows(random_rows(np.random.default_rng(seed), sizes, kind))
    return encoded.blobs(np.arange(len(sizes.counts)))


def same(one: RowColumns, other: RowColumns) -> None:
    for each in fields(RowColumns):
        expected, found = getattr(one, each.name), getattr(other, each.name)
        if isinstance(expected, np.ndarray):
            np.testing.assert_array_equal(expected, found)
            assert expected.dtype == found.dtype
        else:
            assert expected == found
            assert type(expected) is type(found)


def outcome(blobs: list[bytes]) -> list[RowColumns] | str:
    """One by one."""
    try:
        return [decode_rows([blob], [f"row {place}"])[0] for place, blob in enumerate(blobs)]
    except CorruptShard as error:
        return str(error)


def outcome_at_once(blobs: list[bytes]) -> list[RowColumns] | str:
    try:
        return decode_rows(blobs, [f"row {place}" for place in range(len(blobs))])
    except CorruptShard as error:
        return str(error)


@given(st.lists(SIZES, max_size=3), st.integers(0, 1 << 30), st.sampled_from(["address", "number"]))
def test_many_rows_are_what_each_is(sizes: list[Sizes], seed: int, kind: str) -> None:
    """Also those of different runs: with peers and without, of addresses and of numbers."""
    blobs = [
        blob for number, each in enumerate(sizes) for blob in blobs_of(each, seed + number, kind)
    ]
    found = outcome_at_once(blobs)

    assert len(blobs) == len(found)
    for blob, row in zip(blobs, found, strict=True):
        same(decode_rows([blob], [""])[0], row)


@given(SIZES, st.integers(0, 1 << 30), st.data())
def test_damage_is_found_in_many_as_in_one(sizes: Sizes, seed: int, data: st.DataObject) -> None:
    blobs = blobs_of(sizes, seed)
    row = data.draw(st.integers(0, len(blobs) - 1))
    if data.draw(st.booleans()):
        changed = bytearray(blobs[row])
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        blobs[row] = bytes(changed)
    else:
        blobs[row] = blobs[row][: data.draw(st.integers(0, len(blobs[row]) - 1))]
    expected, found = outcome(blobs), outcome_at_once(blobs)

    assert (expected == found) if isinstance(expected, str) else not isinstance(found, str)
    if not isinstance(expected, str):
        for one, other in zip(expected, found, strict=True):
            same(one, other)


@pytest.mark.parametrize("peers", [255, 256, 257, 65_537])
def test_large_rows_and_wide_peer_indices_among_small_ones(peers: int) -> None:
    blobs = blobs_of(Sizes([3, peers + 3, 2, 9], peers, 0), peers) + blobs_of(
        Sizes([5, 40_000], 3, 3), 1
    )

    for blob, row in zip(blobs, decode_rows(blobs, [""] * len(blobs)), strict=True):
        same(decode_rows([blob], [""])[0], row)


def test_a_row_that_is_kept_keeps_no_other_in_memory() -> None:
    blobs = blobs_of(Sizes([4, 4, 4], 2, 2), 5)
    first, second, _ = decode_rows(blobs, ["a", "b", "c"])

    for name in ("peer_bytes", "peer_family", "entity_bytes", "offsets", "codes"):
        one, other = getattr(first, name), getattr(second, name)
        assert one.base is None or one.base is not other.base
