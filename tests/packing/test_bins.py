"""Bins: views of two arrays, checked when they are made."""

import numpy as np
import pytest
from hypothesis import given
from packing_cases import as_lists, problems

from headrace.bins.bins import Bins, packing_metrics
from headrace.bins.pack import pack

BINS = Bins.of_lists([[3, 1], [0], [2, 4, 5]])


def test_lists_come_back_as_they_were_given():
    assert [[3, 1], [0], [2, 4, 5]] == as_lists(BINS)


@given(problems())
def test_slices_are_the_same_bins(problem):
    lengths, capacity, _ = problem
    bins = pack(lengths, capacity)
    middle = len(bins) // 2

    assert as_lists(bins) == as_lists(bins[:middle]) + as_lists(bins[middle:])


def test_shuffled_bins_are_the_same_bins_in_an_order_of_the_seed():
    bins = pack(np.arange(1, 200) % 50 + 1, 100)

    assert sorted(as_lists(bins)) == sorted(as_lists(bins.shuffled(1)))
    assert as_lists(bins.shuffled(1)) == as_lists(bins.shuffled(1))
    assert len({str(as_lists(each)) for each in (bins, bins.shuffled(1), bins.shuffled(2))}) == 3


def test_a_bin_is_a_view():
    assert np.shares_memory(BINS.bin(2), BINS.sequences)


@pytest.mark.parametrize("number", [-1, 3])
def test_a_bin_that_is_not_there_is_an_index_error(number):
    with pytest.raises(IndexError, match=f"no bin {number}; there are 3"):
        BINS.bin(number)


@pytest.mark.parametrize("offsets", [[], [1, 6], [0, 5], [0, 4, 3, 6]])
def test_offsets_that_do_not_fit_are_refused(offsets):
    with pytest.raises(ValueError, match="offsets"):
        Bins(np.array(offsets, np.int64), np.arange(6))


def test_metrics_say_what_was_packed():
    metrics = packing_metrics([5, 1, 2, 4, 1, 1], BINS, 10)

    assert (6, 14, 3, 2) == (metrics.sequences, metrics.tokens, metrics.bins, metrics.bound)
    assert (5, 4, 5, 3) == (
        metrics.longest_sequence,
        metrics.least_load,
        metrics.greatest_load,
        metrics.sequences_max,
    )
    assert metrics.packing_efficiency == pytest.approx(100 * 14 / 30)
    assert metrics.packing_factor == 2


def test_metrics_of_nothing_are_zero():
    metrics = packing_metrics([], Bins.of_lists([]), 10)

    assert (0, 0, 0.0, 0) == (metrics.bins, metrics.bound, metrics.fill, metrics.sequences_max)
