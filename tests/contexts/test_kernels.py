"""Every compiled step gives what it gives in numpy, bit by bit."""

from dataclasses import replace

import context_reference as reference
import numpy as np
import pytest
from context_cases import Memory, row_of, segments_of
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.contexts import ContextOptions, Contexts
from headrace.draws import context_keys, permuted
from headrace.errors import CorruptShard
from headrace.histories.contexts.contexts import build
from headrace.histories.contexts.index import index_rows
from headrace.histories.contexts.sample import draw_indices, draw_modes, find_candidates, permute
from headrace.histories.contexts.tokens import to_arrays
from laws import examples
from raised import raised


def same(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())


@settings(max_examples=examples(25))
@given(st.integers(0, 2**31), st.integers(-1, 99), st.lists(st.integers(0, 2**50), max_size=30))
def test_modes_drawn_by_keys(seed, epoch, ids):
    keys = context_keys(seed, epoch, np.array(ids, np.int64))

    assert all(
        same(*pair)
        for pair in zip(reference.draw_modes(keys), draw_modes(keys, 0.4, 0.7), strict=True)
    )


@settings(max_examples=examples(25))
@given(st.integers(0, 2**63), st.integers(1, 2**40), st.lists(st.integers(0, 2**40), max_size=30))
def test_positions_of_one_permutation(key, size, positions):
    positions = np.array(positions, np.int64) % size

    assert same(
        permuted(np.uint64(key), np.int64(size), positions),
        permute(np.uint64(key), size, positions),
    )


@settings(max_examples=examples(25))
@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.integers(1, 200), st.booleans()), min_size=1, max_size=9
    ),
    st.integers(0, 2**31),
)
def test_indices_of_windows(segments, seed):
    counts, fills, sampled = map(np.array, zip(*segments, strict=True))
    fills = np.minimum(fills, counts)
    drawn = segments_of([row_of(int(n)) for n in counts], [0] * len(counts), seed=seed)
    drawn = replace(drawn, sampled=sampled)
    offsets = np.concatenate([[0], np.cumsum(np.where(sampled, fills, counts))])

    assert same(reference.draw_indices(drawn, fills, offsets), draw_indices(drawn, fills, offsets))


@pytest.mark.parametrize("width", [np.uint8, np.uint16, np.uint32])
def test_candidates_are_measurements_of_their_rows(width):
    rows = [
        row_of(900, seed=1, peers=200, peer_families=(4, 6)),
        row_of(500, seed=2, peers=9, family=6),
    ]
    rows = [replace(row, peers=row.peers.astype(width)) for row in [*rows, rows[0]]]
    segments = segments_of(rows, [0, 1, 2])
    found = find_candidates(
        replace(segments, row=np.array([0, 1, 0])), dict(enumerate(rows[:2])), 6000
    )

    for s, row in enumerate(rows):
        part = slice(found.offsets[s], found.offsets[s + 1])
        index = found.index[part]
        assert same(row.first_time + row.offsets[index].astype(np.int64), found.time[part])
        assert same(row.codes[index], found.code[part])
        assert same(row.peer_family[row.peers[index]], found.family[part])
        assert same(row.peer_bytes[row.peers[index]], found.address[part])
        assert row.entity_family == found.source_family[s]
        assert same(row.entity_bytes, found.source[s])


@pytest.mark.parametrize("keys", ["maxtext", "four"])
@pytest.mark.parametrize("context_tokens", [128, 1024])
def test_arrays_of_any_segments(keys, context_tokens):
    store = Memory([row_of(1 + 3 * number % 100, seed=number, gap=400) for number in range(150)])
    index = index_rows(store, ContextOptions(context_tokens=context_tokens))
    built = build(index, store, np.arange(len(index)))
    arrays = to_arrays(built.tokens, built.segments, keys)
    expected = reference.to_arrays(built.tokens, built.segments, keys)

    assert np.bincount(built.segments.context).max() > 1
    assert list(expected) == list(arrays)
    for name, array in arrays.items():
        assert same(expected[name], array), name
        assert array.flags.c_contiguous
        assert array.flags.writeable


def test_a_batch_of_nothing_has_the_arrays_of_any_other():
    contexts = Contexts(Memory([row_of(900)]), ContextOptions())

    assert dict.fromkeys(contexts.batch([0]), (0, 1024)) == {
        name: array.shape for name, array in contexts.batch([]).items()
    }


@pytest.mark.parametrize("n", [10, 5000])
def test_a_row_that_became_shorter_is_refused_before_it_is_read(n):
    rows = Memory([row_of(n)])
    index = index_rows(rows, ContextOptions())
    rows.rows[0] = row_of(n - 1)

    with raised(CorruptShard, row=1, remedy="open the run again"):
        build(index, rows, np.arange(len(index)))
