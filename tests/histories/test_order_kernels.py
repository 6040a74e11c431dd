"""The order inside a partition is the order that numpy finds."""

from __future__ import annotations

import numpy as np
import pytest
from history_reference import measurement_order
from hypothesis import given
from hypothesis import strategies as st

from headrace.histories.codec.kernels import distinct as find_distinct
from headrace.histories.codec.partition_kernels import in_order
from headrace.histories.spill import ALONE, WITH_PEER

ROWS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 3), st.integers(0, 3)),
    max_size=90,
)


def check(
    entity: np.ndarray, micros: np.ndarray, peer: np.ndarray, code: np.ndarray, kind: np.dtype
) -> None:
    records = np.zeros(len(entity), kind)
    records["entity"], records["micros"], records["code"] = entity, micros, code
    words = records.view(np.uint64).reshape(-1, kind.itemsize // 8)
    ranks = np.arange(int(peer.max()) + 1 if len(peer) else 0, dtype=np.uint32)[::-1]
    has_peers = kind == WITH_PEER
    places = (peer.astype(np.uint32), ranks) if has_peers else None
    found = in_order(
        [words], words.shape[1] - 1, places, 5 if not len(entity) else int(entity.max()) + 2
    )

    mine = ranks[peer].astype(np.int64) if has_peers else None
    order = measurement_order(entity.astype(np.uint32), micros, mine, code.astype(np.uint16))
    expected = [entity[order], micros[order], None if mine is None else mine[order], code[order]]
    for one, other in zip(expected, found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or one.tolist() == other.tolist()


@pytest.mark.slow
@given(ROWS, st.sampled_from([1, 10**6, 2**58]), st.sampled_from([ALONE, WITH_PEER]))
def test_measurements_are_in_order_of_entity_time_peer_and_code(
    rows: list[tuple[int, int, int, int]], step: int, kind: np.dtype
) -> None:
    entity, time, peer, code = np.array(rows, np.int64).reshape(-1, 4).T

    check(entity, time * step, peer, code, kind)


@pytest.mark.parametrize("kind", [ALONE, WITH_PEER])
@pytest.mark.parametrize(
    ("rows", "entities", "span"),
    [
        (400, 9, 10**9),
        (3000, 2, 30),
        (20_000, 3, 2**61),
        (9000, 1, 1),
        (9000, 4000, 50),
        (60_000, 1, 10**12),
        (60_000, 1, 9),
    ],
)
def test_many_measurements_and_many_of_one_time_are_in_order(
    rows: int, entities: int, span: int, kind: np.dtype
) -> None:
    rng = np.random.default_rng(rows)
    columns = [rng.integers(0, most, rows) for most in (entities, span, 1000, 1 << 16)]

    check(*columns, kind)


@pytest.mark.parametrize("rows", [10_000, 60_000])
@pytest.mark.parametrize("far", [0, 1, 20])
def test_times_that_crowd_beside_few_that_are_far_are_in_order(rows: int, far: int) -> None:
    rng = np.random.default_rng(far)
    times = rng.integers(5_000, 5_000 + (1 << 14), rows)
    times[:far] = rng.integers(1 << 40, 1 << 60, far)

    check(
        np.zeros(rows, np.int64),
        times,
        rng.integers(0, 1000, rows),
        rng.integers(0, 1 << 16, rows),
        WITH_PEER,
    )


@pytest.mark.parametrize(("rows", "peers"), [(0, 1), (1, 1), (60, 7), (40_000, 30_000)])
def test_distinct_peers_are_found(rows: int, peers: int) -> None:
    rng = np.random.default_rng(peers)
    distinct = np.zeros(peers, WITH_PEER)
    distinct["word0"], distinct["word1"] = rng.integers(0, 3, peers), rng.integers(0, 2**40, peers)
    distinct["family"] = rng.choice([4, 6], peers)
    distinct["word0"] <<= rng.choice([0, 32], peers).astype(
        np.uint64
    )  # in the upper half as IPv4 addresses are
    distinct["word1"][::3] = 0
    distinct[1::2] = distinct[: peers // 2]  # some alike
    distinct["family"][1::2] = 10 - distinct["family"][1::2]  # but for their family
    records = distinct[rng.integers(0, peers, rows)]
    records["micros"], records["code"] = rng.integers(0, 99, (2, rows))
    words = records.view(np.uint64).reshape(rows, 4)
    place, found = find_distinct(words, words, column=1, family_column=3, shift=48)

    keys = list(
        zip(*(records[name].tolist() for name in ("word0", "word1", "family")), strict=True)
    )
    places = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    assert [places[key] for key in keys] == place.tolist()
    assert list(places) == [tuple(row) for row in found.tolist()]
