"""Interleaving gives every source exactly its rows, keeps it at its share, and counts in closed form."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.stream.order.interleave import MOST_ROWS, Interleave, floor_sum, quotas
from laws import examples

counts_of = st.lists(st.integers(0, 120), min_size=1, max_size=9).filter(any)


@given(counts_of, st.integers(1, 12), st.integers(0, 20), st.data())
def test_draws_are_numbered_by_source_and_column(counts, columns, origin, data):
    interleave = Interleave(tuple(counts))
    positions = np.arange(interleave.rows)
    source = interleave.sources(positions)
    column = (positions + origin) % columns
    expected = np.zeros_like(positions)
    for number in range(len(counts)):
        for each in range(columns):
            of_column = (source == number) & (column == each)
            expected[of_column] = np.arange(of_column.sum())
    asked = data.draw(st.permutations(positions.tolist()))[: data.draw(st.integers(1, 40))]

    assert np.bincount(source, minlength=len(counts)).tolist() == counts
    for some in (positions, np.array(asked)):
        numbers, draws = interleave.number_draws(some, columns, origin)
        assert source[some].tolist() == numbers.tolist()
        assert expected[some].tolist() == draws.tolist()
    for number in range(len(counts)):
        mine = np.flatnonzero(source == number)
        first = (column[mine] - origin) % columns
        assert (
            mine.tolist() == interleave.find_draws(number, expected[mine], first, columns).tolist()
        )


@settings(max_examples=examples(200), deadline=None)
@given(
    st.integers(2, 100),
    st.integers(1, 300_000),
    st.sampled_from([0.1, 1, 100]),
    st.integers(0, 1 << 30),
)
def test_no_source_is_five_rows_off_its_share_at_any_prefix(sources, rows, spread, seed):
    weights = np.random.default_rng(seed).dirichlet(np.full(sources, spread))
    weights = weights + 1e-9
    shares = weights / weights.sum()
    counts = quotas(rows, [Fraction(weight) for weight in weights])
    source = Interleave(tuple(counts)).sources(np.arange(rows))
    most = 0.0
    for number in np.unique(np.linspace(0, sources - 1, 12).astype(int)).tolist():
        drawn = np.cumsum(source == number)
        most = max(most, float(np.abs(drawn - shares[number] * np.arange(1, rows + 1)).max()))

    assert most < 5


@given(st.integers(0, 10_000), st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_quotas_are_within_a_row_of_the_weights(rows, weights):
    counts = quotas(rows, [Fraction(weight) for weight in weights])

    assert sum(counts) == rows
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count * sum(weights) - rows * weight) < sum(weights)


@given(st.integers(0, 60), st.integers(1, 90), st.integers(0, 300), st.integers(0, 300))
def test_floors_are_summed(count, modulus, step, shift):
    total = floor_sum(np.array([count], np.uint64), modulus, step, np.array([shift], np.uint64))

    assert [sum((step * i + shift) // modulus for i in range(count))] == total.tolist()


@pytest.mark.parametrize("columns", [1, 64])
def test_positions_of_the_longest_interleaving_are_exact(columns):
    interleave = Interleave((MOST_ROWS // 4, 3 * (MOST_ROWS // 4) - 12, 12))
    positions = np.array([0, 10**9 + 1, interleave.rows - 1])
    source, draws = interleave.number_draws(positions, columns, 0)
    for position, number, draw in zip(positions, source.tolist(), draws, strict=True):
        first = np.array([position % columns])
        assert [position] == interleave.find_draws(
            number, np.array([draw]), first, columns
        ).tolist()
