"""Rows have the bytes that are written field by field."""

from __future__ import annotations

from dataclasses import replace

import history_reference
import numpy as np
import pytest
from history_cases import Sizes, random_rows
from hypothesis import given
from hypothesis import strategies as st

from headrace.histories.codec.rows import Measurements, encode_rows

SIZES = st.builds(
    Sizes,
    st.lists(st.integers(1, 400), min_size=1, max_size=12),
    st.integers(0, 300),
    st.integers(0, 300),
    st.sampled_from([1, 300, 1 << 20]),
)


def check(rows: Measurements) -> None:
    narrow = replace(rows, peer=None if rows.peer is None else rows.peer.astype(np.int32))
    found = encode_rows(narrow)

    assert history_reference.encode_rows(rows) == found.blobs(np.arange(len(rows.starts)))


@pytest.mark.slow
@given(SIZES, st.integers(0, 1 << 30), st.sampled_from(["address", "number"]))
def test_rows_have_the_same_bytes(sizes: Sizes, seed: int, kind: str) -> None:
    check(random_rows(np.random.default_rng(seed), sizes, kind))


@pytest.mark.parametrize("peers", [1, 64, 65, 256, 257, 4096, 65_536, 65_537])
def test_rows_of_many_peers_have_the_same_bytes(peers: int) -> None:
    rng = np.random.default_rng(peers)
    rows = random_rows(rng, Sizes([peers + 3, 2, 9], peers // 2, peers - peers // 2))

    check(replace(rows, peer=np.concatenate([rng.permutation(peers), rng.integers(0, peers, 14)])))
