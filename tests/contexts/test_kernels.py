"""Every compiled step gives what its twin in numpy gives, bit by bit."""

from dataclasses import replace

import numpy as np
import pytest
from context_cases import Memory, row_of, segments_of
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.contexts import ContextOptions, Contexts
from headrace.draws import context_keys
from headrace.errors import CorruptShard
from headrace.histories.contexts.contexts import build, chosen_kernels
from headrace.histories.contexts.index import index_rows
from headrace.histories.contexts.sample import FULL, NONE, PARTIAL, candidates
from headrace.histories.contexts.tokens import batch_of
from laws import examples

NUMPY, NUMBA = chosen_kernels("numpy"), chosen_kernels("numba")
WIDTHS = {1: np.uint8, 2: np.uint16, 4: np.uint32}

KINDS = st.tuples(
    st.integers(1, 3000),
    st.sampled_from([4, 6]),
    st.sampled_from([(0, 1), (1, 1), (9, 1), (200, 1), (300, 2), (300, 4)]),  # peers, and the bytes of their indices
    st.sampled_from([(4,), (6,), (4, 6)]),
    st.sampled_from([0, 30, 240, 3000]),
    st.sampled_from([0.0, 0.1, 1.0]),
)


def row_with(kind, seed):
    n, family, (peers, width), families, gap, failed = kind
    row = row_of(n, seed=seed, family=family, peers=peers, peer_families=families, gap=gap, failed=failed)
    return row if row.peers is None else replace(row, peers=row.peers.astype(WIDTHS[width]))


def same(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())


@settings(max_examples=examples(25))
@given(st.integers(0, 2**31), st.integers(-1, 99), st.lists(st.integers(0, 2**50), max_size=30))
def test_what_is_dealt_by_keys(seed, epoch, ids):
    keys = context_keys(seed, epoch, np.array(ids, np.int64))

    assert all(same(*pair) for pair in zip(NUMPY.sampling.dealt(keys), NUMBA.sampling.dealt(keys), strict=True))


@settings(max_examples=examples(25))
@given(st.integers(0, 2**63), st.integers(1, 2**40), st.lists(st.integers(0, 2**40), max_size=30))
def test_places_of_one_permutation(key, size, places):
    asked = np.array([key], np.uint64), np.array([size]), np.array(places, np.int64) % size

    assert same(NUMPY.sampling.permuted(*asked), NUMBA.sampling.permuted(*asked))


@settings(max_examples=examples(20))
@given(st.lists(st.tuples(KINDS, st.booleans()), min_size=1, max_size=5), st.sampled_from([64, 1025, 6000]), st.data())
def test_candidates_and_tokens_of_any_rows(kinds, room, data):
    rows = [row_with(kind, seed) for seed, (kind, _) in enumerate(kinds)]
    order = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, max_size=9))
    modes = data.draw(st.lists(st.sampled_from([FULL, PARTIAL, NONE]), min_size=len(order), max_size=len(order)))
    segments = segments_of([rows[number] for number in order], modes, context=np.sort(np.array(order)), seed=room)
    segments = replace(segments, row=np.array(order), sampled=np.array([kinds[number][1] for number in order]))
    opened = {number: rows[number] for number in sorted(set(order))}
    found = candidates(segments, opened, room, NUMPY.sampling)
    compiled = candidates(segments, opened, room, NUMBA.sampling)
    tokens = NUMPY.tokens(segments, found, len(rows), room)
    compiled_tokens = NUMBA.tokens(segments, compiled, len(rows), room)

    for name in ("offsets", "index", "time", "code", "family", "address", "source_family", "source"):
        assert same(getattr(found, name), getattr(compiled, name)), name
    for name in ("tokens_BT", "lengths", "taken"):
        assert same(getattr(tokens, name), getattr(compiled_tokens, name)), name


@pytest.mark.parametrize("keys", ["maxtext", "four"])
@pytest.mark.parametrize("vocab", ["standard", "compat"])
@pytest.mark.parametrize("context_tokens", [128, 1024])
def test_arrays_of_any_segments(keys, vocab, context_tokens):
    store = Memory([row_of(1 + 3 * number % 100, seed=number, gap=400) for number in range(150)])
    index = index_rows(store, ContextOptions(context_tokens=context_tokens))
    built = build(index, store, np.arange(len(index)))
    made = NUMBA.batch(built.tokens, built.segments, vocab, keys)
    expected = batch_of(built.tokens, built.segments, vocab, keys)

    assert np.bincount(built.segments.context).max() > 1
    assert list(expected) == list(made)
    for name, array in made.items():
        assert same(expected[name], array), name
        assert array.flags.c_contiguous
        assert array.flags.writeable


@pytest.mark.parametrize("kernel", ["numba", "numpy"])
def test_a_batch_of_nothing_has_the_arrays_of_any_other(kernel):
    contexts = Contexts(Memory([row_of(900)]), ContextOptions(kernel=kernel))

    assert dict.fromkeys(contexts.batch([0]), (0, 1024)) == {
        name: array.shape for name, array in contexts.batch([]).items()
    }


@pytest.mark.parametrize("kernel", ["numba", "numpy"])
@pytest.mark.parametrize("n", [10, 5000])
def test_a_row_that_became_shorter_is_refused_before_it_is_read(kernel, n):
    rows = Memory([row_of(n)])
    index = index_rows(rows, ContextOptions(kernel=kernel))
    rows.rows[0] = row_of(n - 1)

    with pytest.raises(CorruptShard, match="row 0 of the split is shorter than it was"):
        build(index, rows, np.arange(len(index)))
