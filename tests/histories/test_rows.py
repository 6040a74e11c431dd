"""The row blob: what went in comes out, many rows at once as one by one, and damage is an error and no crash."""

from dataclasses import replace

import numpy as np
import pytest
from history_cases import Sizes, random_rows
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptShard
from headrace.histories.codec.addresses import Addresses
from headrace.histories.codec.rows import (
    HEADER_BYTES,
    LARGEST_SPAN,
    Measurements,
    decode_rows,
    encode_rows,
    lay_out,
)
from raised import raised

SIZES = st.builds(
    Sizes,
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from([1, 2, 300, 1 << 20]),
)


def check(rows: Measurements) -> None:
    encoded = encode_rows(rows)
    for place, (start, stop) in enumerate(
        zip(rows.starts.tolist(), [*rows.starts.tolist()[1:], len(rows.times)], strict=True)
    ):
        got = decode_rows([encoded.blobs(np.array([place]))[0]], ["test"])[0]
        np.testing.assert_array_equal(
            rows.times[start:stop], got.first_time + got.offsets.astype(np.int64)
        )
        np.testing.assert_array_equal(rows.codes[start:stop], got.codes)
        assert int(rows.times[stop - 1]) == got.first_time + int(got.offsets[-1])
        assert int(rows.part[place]) == got.part
        assert rows.entity_kind == got.entity_kind
        assert int(rows.entity.family[place]) == got.entity_family
        assert rows.entity.bytes[place].tobytes() == got.entity_bytes.tobytes()
        if rows.peer is None:
            assert got.peers is None
            assert len(got.peer_family) == 0
            continue
        assert got.peers is not None
        np.testing.assert_array_equal(
            rows.peers.family[rows.peer[start:stop]], got.peer_family[got.peers]
        )
        np.testing.assert_array_equal(
            rows.peers.bytes[rows.peer[start:stop]], got.peer_bytes[got.peers]
        )
        assert len(got.peer_family) == len(np.unique(rows.peer[start:stop]))


@given(SIZES, st.integers(0, 1 << 30), st.sampled_from(["address", "number"]))
def test_what_was_encoded_is_decoded(sizes: Sizes, seed: int, kind: str) -> None:
    check(random_rows(np.random.default_rng(seed), sizes, kind))


@pytest.mark.parametrize("peers", [1, 255, 256, 257, 65_536, 65_537])
def test_peer_indices_are_as_wide_as_the_peers_need(peers: int) -> None:
    rng = np.random.default_rng(peers)
    rows = random_rows(rng, Sizes([peers + 3, 2], peers, 0))
    rows = replace(rows, peer=np.concatenate([np.arange(peers), rng.integers(0, peers, 5)]))

    check(rows)
    assert {1: 1, 255: 1, 256: 1, 257: 2, 65_536: 2, 65_537: 4}[peers] == decode_rows(
        encode_rows(rows).blobs(np.array([0])), [""]
    )[0].peers.itemsize


@given(SIZES, st.integers(0, 1 << 30))
def test_many_rows_at_once_are_the_bytes_of_each_alone(sizes: Sizes, seed: int) -> None:
    rows = random_rows(np.random.default_rng(seed), sizes)
    encoded = encode_rows(rows)

    stops = [*rows.starts.tolist()[1:], len(rows.times)]
    for place, (start, stop) in enumerate(zip(rows.starts.tolist(), stops, strict=True)):
        alone = replace(
            rows,
            times=rows.times[start:stop],
            codes=rows.codes[start:stop],
            peer=None if rows.peer is None else rows.peer[start:stop],
            starts=np.zeros(1, np.int64),
            entity=rows.entity.take(np.array([place])),
            part=rows.part[place : place + 1],
        )
        assert encoded.blobs(np.array([place]))[0] == encode_rows(alone).blobs(np.array([0]))[0]


def test_a_typical_measurement_takes_less_than_nine_bytes() -> None:
    rng = np.random.default_rng(3)
    rows = random_rows(rng, Sizes([5000, 300], 250, 50))

    assert encode_rows(rows).offsets[-1] / 5300 < 9


@given(SIZES, st.integers(0, 1 << 30), st.data())
def test_damage_is_an_error_or_another_row_and_never_a_crash(
    sizes: Sizes, seed: int, data: st.DataObject
) -> None:
    blob = bytearray(
        encode_rows(random_rows(np.random.default_rng(seed), sizes)).blobs(np.array([0]))[0]
    )
    place = data.draw(st.integers(0, len(blob) - 1))
    blob[place] ^= 1 << data.draw(st.integers(0, 7))

    try:
        got = decode_rows([bytes(blob)], ["file: row 1"])[0]
    except CorruptShard as error:
        message = str(error)
        got = None

    if got is None:
        assert message.startswith("file: row 1: ")
    else:  # whatever it reads now hangs together
        assert (np.diff(got.offsets.astype(np.int64)) >= 0).all()
        assert got.peers is None or int(got.peers.max()) < len(got.peer_family)


@given(SIZES, st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_a_cut_row_is_an_error(sizes: Sizes, seed: int, cut: int) -> None:
    blob = encode_rows(random_rows(np.random.default_rng(seed), sizes)).blobs(np.array([0]))[0]

    with raised(CorruptShard, path="file: row 1"):
        decode_rows([blob[: cut % len(blob)]], ["file: row 1"])


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, 500])
def test_zeros_are_no_row(size: int) -> None:
    with raised(CorruptShard, path="file: row 1"):
        decode_rows([bytes(size)], ["file: row 1"])


def test_columns_are_views_of_the_blob() -> None:
    blob = np.frombuffer(
        encode_rows(random_rows(np.random.default_rng(1), Sizes([50], 5, 5))).blobs(np.array([0]))[
            0
        ],
        np.uint8,
    )
    got = decode_rows([blob.data], ["test"])[0]

    assert np.shares_memory(blob, got.offsets)
    assert np.shares_memory(blob, got.codes)
    assert np.shares_memory(blob, got.peers)


def test_lengths_are_known_before_encoding() -> None:
    rows = random_rows(np.random.default_rng(2), Sizes([7], 0, 0))

    assert [len(encode_rows(rows).blobs(np.array([0]))[0])] == lay_out(
        np.array([7]), np.array([0]), np.array([0])
    ).length.tolist()


def test_a_span_that_has_no_room_is_refused() -> None:
    nobody = Addresses(np.zeros(0, np.uint8), np.zeros((0, 16), np.uint8))
    rows = random_rows(np.random.default_rng(2), Sizes([2], 0, 0))

    encode_rows(replace(rows, times=np.array([5, 5 + LARGEST_SPAN]), peers=nobody))
    with pytest.raises(ValueError, match="further apart"):
        encode_rows(replace(rows, times=np.array([5, 6 + LARGEST_SPAN])))
