"""Order inside a partition: what a plain sort gives, also where hashes meet and where words are too short."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.histories.codec.addresses import Addresses
from headrace.histories.codec.rows import LARGEST_SPAN, lay_out
from headrace.histories.sort import distinct_addresses, find_entities, number_peers
from headrace.histories.spill import ENTITY, EntityHashes, multiset_sum, partition_of
from headrace.histories.write import cut_rows

WORDS = st.integers(0, 2**64 - 1)


@given(
    rows=st.lists(
        st.tuples(st.sampled_from([4, 6]), st.integers(0, 3), st.integers(0, 3)), max_size=40
    )
)
def test_peers_are_each_once_and_ascending(rows: list[tuple[int, int, int]]) -> None:
    records = np.zeros(len(rows), ENTITY)
    records["family"], records["word0"], records["word1"] = (
        np.array(rows, np.uint64).reshape(-1, 3).T
    )
    peers = number_peers(*distinct_addresses(records))

    words = peers.addresses.words().tolist()
    got = [
        (int(kind), *pair)
        for kind, pair in zip(peers.addresses.family.tolist(), words, strict=True)
    ]
    assert sorted(set(rows)) == got
    assert rows == [got[each] for each in peers.rank[peers.index].tolist()]


@given(
    entities=st.lists(
        st.tuples(st.sampled_from([4, 6]), st.integers(0, 5)), min_size=1, max_size=40
    )
)
def test_entities_are_each_once_in_hash_order_also_where_hashes_meet(
    entities: list[tuple[int, int]],
) -> None:

    def hashed(addresses: Addresses) -> EntityHashes:
        order = (
            addresses.family * np.uint64(5) + addresses.words()[:, 0] * np.uint64(3)
        ) % np.uint64(4)
        return EntityHashes(order, order + np.uint64(7))

    rows = [((family * 5 + word0 * 3) % 4, family, word0) for family, word0 in entities]
    records = np.zeros(len(rows), ENTITY)
    records["family"], records["word0"] = zip(*entities, strict=True)
    found, place = find_entities(records, hashed)

    words = found.addresses.words()[:, 0].tolist()
    got = list(
        zip(found.hashes.order.tolist(), found.addresses.family.tolist(), words, strict=True)
    )
    assert sorted(set(rows)) == got
    assert rows == [got[each] for each in place.tolist()]
    assert found.hashes.side.tolist() == [order + 7 for order, _, _ in got]


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 2**31), st.integers(0, 7)),
        min_size=1,
        max_size=80,
    ),
    st.sampled_from([1, 64, 100, 130, 200, 500, 10_000]),
    st.booleans(),
)
def test_rows_are_cut_where_a_plain_loop_cuts_them(
    rows: list[tuple[int, int, int]], max_bytes: int, peers: bool
) -> None:
    rows = sorted(rows)
    entity, time, peer = np.array(rows, np.int64).T
    time = time * 5  # so that some spans are too long for a row
    order = np.lexsort((time, entity))
    is_6 = np.arange(8) >= 4
    starts = cut_rows(entity[order], time[order], peer[order] if peers else None, is_6, max_bytes)

    expected, begin = [0], 0
    for at in range(1, len(rows) + 1):
        held = {int(each) for each in peer[order][begin : at + 1]} if peers else set()
        four, six = sum(each < 4 for each in held), sum(each >= 4 for each in held)
        if at == len(rows):
            break
        size = int(lay_out(*(np.array([each]) for each in (at + 1 - begin, four, six))).length[0])
        if (
            entity[at] != entity[begin]
            or size > max_bytes
            or time[order][at] - time[order][begin] > LARGEST_SPAN
        ):
            expected.append(at)
            begin = at
    assert expected == starts.tolist()


@given(st.lists(WORDS, min_size=1), st.integers(1, 4096))
def test_partitions_follow_hash_order(hashes: list[int], partitions: int) -> None:
    order = np.sort(np.array(hashes, np.uint64))
    partition = partition_of(order, partitions).astype(int)

    assert (np.diff(partition) >= 0).all()
    assert partition.max() < partitions


@given(
    st.lists(st.tuples(WORDS, st.integers(0, 2**40), WORDS, st.integers(0, 2**16 - 1)), min_size=2),
    st.randoms(),
)
def test_the_sum_does_not_depend_on_order_but_on_every_measurement(
    rows: list[tuple[int, ...]], draw: object
) -> None:
    def total(some: list[tuple[int, ...]]) -> int:
        kinds = (np.uint64, np.int64, np.uint64, np.uint16)
        return multiset_sum(
            *(
                np.array(column, kind)
                for column, kind in zip(zip(*some, strict=True), kinds, strict=True)
            )
        )

    mixed = list(rows)
    draw.shuffle(mixed)  # type: ignore[attr-defined]
    entity, time, peer, code = rows[0]

    assert total(rows) == total(mixed)
    for other in (
        (entity ^ 1, time, peer, code),
        (entity, time + 1, peer, code),
        (entity, time, peer ^ 1, code),
        (entity, time, peer, code ^ 1),
    ):
        assert total(rows) != total([other, *rows[1:]])
    assert total(rows) != total([*rows, rows[0]])
