"""Bins hold every value, and time laid over bins is neither lost nor made."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.report.bins import (
    counted,
    covering,
    edges_for,
    even_edges,
    span_edges,
    spread,
    thinned,
    time_edges,
)

NUMBERS = st.lists(st.floats(0, 1e15, allow_subnormal=False), min_size=1, max_size=30)


@given(values=NUMBERS)
def test_edges_ascend_and_hold_every_value(values: list[float]) -> None:
    found = np.array(values)
    edges, _ = edges_for(found)

    assert (np.diff(edges) > 0).all()
    assert len(edges) <= 60
    assert edges[0] <= found.min()
    assert found.max() <= edges[-1]
    assert len(values) == counted(found, edges).sum()


@given(values=st.lists(st.integers(1, 2**50), min_size=1, max_size=30))
def test_edges_of_spans_ascend(values: list[int]) -> None:
    found = np.array(values, np.float64)
    edges, _ = span_edges(np.minimum(found, 1e13))

    assert (np.diff(edges) > 0).all()


@given(low=st.floats(-1e6, 1e6), width=st.floats(0, 1e9), most=st.integers(1, 40))
def test_even_edges_are_not_more_than_asked_for(low: float, width: float, most: int) -> None:
    edges = even_edges(low, low + width, most=most)

    assert len(edges) <= most + 2
    assert edges[0] <= low
    assert low + width <= edges[-1] * (1 + 1e-12) + 1e-9


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 1000)), min_size=1
    )
)
def test_rows_spread_over_time_keep_their_number(spans: list[tuple[int, int, int]]) -> None:
    begins, lengths, weights = (np.array(each, np.float64) for each in zip(*spans, strict=True))
    edges = time_edges(float(begins.min()), float((begins + lengths).max()))
    found = spread(begins, begins + lengths, weights, edges)

    assert np.isclose(weights.sum(), found.sum())
    assert (found >= -1e-6).all()


def test_a_span_gives_each_bin_the_share_of_its_time() -> None:
    found = spread(
        np.array([2.0, 5.0]), np.array([6.0, 5.0]), np.array([8.0, 3.0]), np.array([0.0, 4.0, 8.0])
    )

    assert [4.0, 7.0] == found.tolist()


@given(low=st.floats(0, 1e6), width=st.floats(1, 1e9))
def test_edges_of_time_cover_it(low: float, width: float) -> None:
    edges = time_edges(low, low + width)

    assert edges[0] <= low * (1 + 1e-9) + 1e-6
    assert low + width <= edges[-1] * (1 + 1e-9) + 1e-6


def test_thinned_values_keep_both_ends() -> None:
    found = thinned(np.arange(1000), 7)

    assert 7 == len(found)
    assert [0, 999] == [found[0], found[-1]]
    assert np.arange(5).tolist() == thinned(np.arange(5), 7).tolist()


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 200)), min_size=1, max_size=30))
def test_spans_count_in_every_bin_that_they_touch(found: list[tuple[int, int]]) -> None:
    begins = np.array([begin for begin, _ in found], np.float64)
    ends = begins + np.array([length for _, length in found])
    edges = np.linspace(0, 701, 24)

    expected = [
        int(((begins < high) & (ends >= low)).sum()) for low, high in itertools.pairwise(edges)
    ]
    assert expected == covering(begins, ends, edges).tolist()
