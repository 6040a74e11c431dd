"""A packed stream: every sequence once, the same bins however it is cut into calls and wherever it is stopped."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packing_cases import as_lists, lognormal, problems

from headrace.bins.pack import OnlinePacker


def packer_of(problem, buffer):
    return OnlinePacker(problem[1], buffer=buffer, max_sequences=problem[2])


def all_bins(packer, *parts):
    return [each for part in parts for each in as_lists(packer.add(part))] + as_lists(
        packer.finish()
    )


@given(problems(), st.integers(1, 40))
def test_every_sequence_is_in_one_bin_and_no_bin_is_too_full(problem, buffer):
    lengths, capacity, most = problem
    bins = all_bins(packer_of(problem, buffer), lengths)

    assert sorted(index for each in bins for index in each) == list(range(len(lengths)))
    assert all(
        lengths[each].sum() <= capacity and 1 <= len(each) <= (most or len(each)) for each in bins
    )


@given(problems(), st.integers(1, 40), st.lists(st.integers(0, 120), max_size=4))
def test_bins_do_not_depend_on_how_arrivals_are_cut_into_calls(problem, buffer, cuts):
    parts = np.split(problem[0], sorted(min(cut, len(problem[0])) for cut in cuts))

    assert all_bins(packer_of(problem, buffer), problem[0]) == all_bins(
        packer_of(problem, buffer), *parts
    )


@given(problems(), st.integers(1, 40), st.integers(0, 120))
def test_a_packer_goes_on_from_its_state(problem, buffer, stop):
    whole, first = packer_of(problem, buffer), packer_of(problem, buffer)
    made = as_lists(first.add(problem[0][:stop]))
    second = OnlinePacker.from_state(json.loads(json.dumps(first.state_dict())))

    assert first.waiting.tolist() == second.waiting.tolist()
    assert all_bins(whole, problem[0]) == made + all_bins(second, problem[0][stop:])


@given(problems(), st.integers(1, 40))
def test_no_more_than_the_buffer_wait_and_bins_begin_with_who_waited_longest(problem, buffer):
    packer = packer_of(problem, buffer)
    for length in problem[0]:
        before = packer.waiting.tolist()
        bins = as_lists(packer.add([length]))

        assert len(packer.waiting) <= buffer
        assert all(each[0] == [*before, packer.arrived - 1][0] for each in bins)


def test_a_stream_is_packed_nearly_as_full_as_a_set():
    lengths = lognormal(20_000)
    bins = OnlinePacker(4096).add(lengths)

    assert bins.loads(lengths).sum() / (4096 * len(bins)) > 0.998


@pytest.mark.parametrize(
    ("length", "says"),
    [(9, "sequence 2 costs 9, a bin holds 1 to 8"), (0, "costs 0"), (0.5, "give integers")],
)
def test_what_does_not_fit_is_refused_and_has_not_arrived(length, says):
    packer = OnlinePacker(8)
    packer.add([1, 2])
    with pytest.raises(ValueError, match=says):
        packer.add([length])

    assert [0, 1] == packer.waiting.tolist()
    assert [[0, 2, 1]] == all_bins(packer, [5])  # the oldest, then the longest that fits


@pytest.mark.parametrize(
    "settings", [{"capacity": 0}, {"capacity": 1, "buffer": 0}, {"capacity": 1, "max_sequences": 0}]
)
def test_settings_below_one_are_refused(settings):
    with pytest.raises(ValueError, match="is 0; give at least 1"):
        OnlinePacker(**settings)
