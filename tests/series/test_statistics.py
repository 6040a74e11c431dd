"""Statistics of groups are those of each group alone."""

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.series.arrays import statistics
from headrace.series.arrays.statistics import (
    counts,
    extremes,
    means,
    quantiles,
    row_groups,
    variances,
)
from laws import examples


def matrix_of(seed: int, sizes: list[int], columns: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int64)
    matrix = rng.normal(3, 2, (offsets[-1], columns))
    matrix[rng.random(matrix.shape) < 0.2] = np.nan
    matrix[offsets[:-1], :] = 1.5  # a value in every column of every group
    return matrix, offsets


cases = st.tuples(
    st.integers(0, 1000),
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(1, 4),
    st.integers(1, 9),
)


@settings(max_examples=examples(60), deadline=None)
@given(cases)
def test_every_group_has_the_statistics_of_its_own_rows(case) -> None:
    seed, sizes, columns, run = case
    matrix, offsets = matrix_of(seed, sizes, columns)
    kept = statistics._RUN, statistics._BLOCK
    statistics._RUN, statistics._BLOCK = run, 3 * run  # many runs and blocks in few rows
    try:
        n, mean = means(matrix, offsets)
        var = variances(matrix, offsets, n, mean)
        seen = counts(matrix, offsets)
    finally:
        statistics._RUN, statistics._BLOCK = kept
    least, greatest = extremes(matrix, offsets)
    low, middle, high = quantiles(matrix, offsets, (0.1, 0.5, 0.9))

    for group, (start, stop) in enumerate(pairwise(offsets)):
        own = matrix[start:stop]
        np.testing.assert_array_equal(np.sum(~np.isnan(own), axis=0), n[group])
        np.testing.assert_array_equal(n[group], seen[group])
        np.testing.assert_allclose(mean[group], np.nanmean(own, axis=0), rtol=1e-13)
        np.testing.assert_allclose(var[group], np.nanvar(own, axis=0), rtol=1e-12, atol=1e-28)
        np.testing.assert_array_equal(least[group], np.nanmin(own, axis=0))
        np.testing.assert_array_equal(greatest[group], np.nanmax(own, axis=0))
        for found, share in ((low, 10), (middle, 50), (high, 90)):
            np.testing.assert_allclose(
                found[group], np.nanpercentile(own, share, axis=0), rtol=1e-15
            )


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.data())
def test_any_range_of_rows_knows_its_groups(sizes, data) -> None:
    offsets = np.append(0, np.cumsum(sizes)).astype(np.int64)
    every = np.repeat(np.arange(len(sizes)), sizes)
    start = data.draw(st.integers(0, len(every) - 1))
    stop = data.draw(st.integers(start + 1, len(every)))

    np.testing.assert_array_equal(every[start:stop], row_groups(offsets, start, stop))


def test_sums_of_many_rows_keep_their_digits() -> None:
    rng = np.random.default_rng(1)
    values = 1e6 + rng.normal(0, 1, (2_000_000, 1))
    offsets = np.array([0, len(values)])
    exact = np.float64(np.sum(values.astype(np.longdouble)) / len(values))

    n, mean = means(values, offsets)
    var = variances(values, offsets, n, mean)[0, 0]

    assert abs(mean[0, 0] - exact) / exact < 2e-16
    np.testing.assert_allclose(
        var, np.var(values.astype(np.longdouble)).astype(np.float64), rtol=1e-14
    )
