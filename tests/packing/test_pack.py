"""Packers: every sequence once, no bin too full, and the bins that the algorithm's definition gives."""

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packing_cases import as_lists, lognormal, plain_best_fit, plain_first_fit, problems

from headrace.bins.pack import ALGORITHMS, pack
from headrace.digest import derive_key
from headrace.keyed_hash import permutation


def order_of(seed, count):
    return permutation(derive_key(seed, "packing.sequences"), count).tolist()


@given(problems(), st.sampled_from(ALGORITHMS), st.integers(0, 3))
def test_every_sequence_is_in_one_bin_and_no_bin_is_too_full(problem, algorithm, seed):
    lengths, capacity, most = problem
    bins = pack(lengths, capacity, algorithm=algorithm, seed=seed, max_sequences=most)

    assert sorted(bins.sequences.tolist()) == list(range(len(lengths)))
    assert (bins.loads(lengths) <= capacity).all()
    assert (bins.counts >= 1).all()
    assert most is None or (bins.counts <= most).all()


@given(problems())
def test_decreasing_gives_the_bins_of_plain_first_fit_decreasing(problem):
    lengths, capacity, most = problem
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])  # stable: ties by index

    assert plain_first_fit(order, lengths, capacity, most) == as_lists(
        pack(lengths, capacity, algorithm="first_fit_decreasing", max_sequences=most)
    )


@given(problems(), st.integers(0, 3))
def test_best_fit_gives_the_bins_of_plain_best_fit_in_the_seeds_order(problem, seed):
    lengths, capacity, most = problem

    assert plain_best_fit(order_of(seed, len(lengths)), lengths, capacity, most) == as_lists(
        pack(lengths, capacity, algorithm="best_fit_shuffle", seed=seed, max_sequences=most)
    )


@given(problems(), st.integers(0, 3))
def test_fullest_is_the_better_of_best_fit_and_exact_fit(problem, seed):
    lengths, capacity, most = problem
    best, exact, fullest = (
        pack(lengths, capacity, algorithm=algorithm, seed=seed, max_sequences=most)
        for algorithm in ("best_fit_shuffle", "exact_fit_shuffle", "fullest_shuffle")
    )

    assert len(fullest) == min(len(best), len(exact))
    assert as_lists(fullest) in (as_lists(best), as_lists(exact))


@given(problems())
def test_concatenative_keeps_the_order_and_fills_each_bin_as_far_as_it_goes(problem):
    lengths, capacity, most = problem
    bins = pack(lengths, capacity, algorithm="concatenative", max_sequences=most)
    loads = bins.loads(lengths)

    assert bins.sequences.tolist() == list(range(len(lengths)))
    for number in range(len(bins) - 1):
        next_one = lengths[bins.bin(number + 1)[0]]
        assert loads[number] + next_one > capacity or bins.counts[number] == most


@pytest.mark.parametrize("capacity", [65_535, 65_536, 131_072])
def test_large_capacities_pack_the_same_way(capacity):
    lengths = np.random.default_rng(1).integers(1, capacity + 1, 300)
    order = sorted(range(300), key=lambda index: -lengths[index])

    assert plain_first_fit(order, lengths, capacity) == as_lists(
        pack(lengths, capacity, algorithm="first_fit_decreasing")
    )


@pytest.mark.parametrize(
    ("algorithm", "least"), [("best_fit_shuffle", 0.9975), ("first_fit_decreasing", 0.9999)]
)
def test_bins_are_as_full_as_promised(algorithm, least):
    lengths = lognormal(100_000)
    bins = pack(lengths, 4096, algorithm=algorithm)

    assert lengths.sum() / (4096 * len(bins)) >= least


def test_a_seed_gives_another_packing_and_the_same_seed_the_same_one():
    lengths = lognormal(2000)
    first, again, other = (pack(lengths, 4096, seed=seed) for seed in (1, 1, 2))

    assert as_lists(first) == as_lists(again)
    assert as_lists(first) != as_lists(other)


@pytest.mark.slow
def test_bins_are_the_same_in_another_process_with_another_hash_seed():
    code = (
        "import numpy as np; from headrace.bins.pack import ALGORITHMS, pack\n"
        "for name in ALGORITHMS: print(pack(np.arange(1, 700) * 37 % 97 + 1, 128, algorithm=name, seed=3).sequences.tolist())"
    )
    environment = {"PYTHONHASHSEED": "1", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    lengths = np.arange(1, 700) * 37 % 97 + 1
    here = [
        str(pack(lengths, 128, algorithm=name, seed=3).sequences.tolist()) for name in ALGORITHMS
    ]

    assert here == done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["best_fit_shuffle", "first_fit_decreasing"])
def test_ten_times_the_sequences_cost_about_ten_times_the_work(algorithm):
    def seconds(count):
        lengths = lognormal(count)
        tries = []
        for _ in range(3):
            began = time.process_time()
            pack(lengths, 4096, algorithm=algorithm)
            tries.append(time.process_time() - began)
        return min(tries)

    assert seconds(200_000) < 25 * max(
        seconds(20_000), 0.005
    )  # N log N would be 12; a scan of all bins 100


@pytest.mark.parametrize(
    ("lengths", "capacity", "options", "says"),
    [
        ([3, 9, 4], 8, {}, "sequence 1 costs 9, a bin holds 1 to 8"),
        ([3, 0, 4], 8, {}, "sequence 1 costs 0"),
        ([1.5], 8, {}, "give integers"),
        ([[1]], 8, {}, "one axis"),
        ([1], 0, {}, "capacity is 0"),
        ([1], 8, {"max_sequences": 0}, "max_sequences is 0"),
        ([1], 8, {"algorithm": "magic"}, "algorithm is 'magic'; choose one of best_fit_shuffle"),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(lengths, capacity, options, says):
    with pytest.raises(ValueError, match=says):
        pack(lengths, capacity, **options)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nothing_packs_into_no_bins(algorithm):
    assert len(pack([], 10, algorithm=algorithm)) == 0


def test_too_many_of_the_longest_do_not_overflow_small_integers():
    assert len(pack(np.full(70_000, 255, np.uint8), 255, algorithm="concatenative")) == 70_000
