"""Exact fit: of sequences that are short beside a bin, the least number of bins there can be; even bins."""

import time

import numpy as np
import pytest
from packing_cases import lognormal

from headrace.bins.bins import packing_metrics
from headrace.bins.pack import pack


def chats(count: int, seed: int) -> np.ndarray:
    """Lengths as those of short questions and answers: 100 to 550 tokens."""
    return np.clip(np.random.default_rng(seed).normal(195, 65, count), 80, 560).astype(np.int64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [500, 7473])
def test_short_sequences_come_to_one_bin_more_than_the_bound_at_most(count: int, seed: int) -> None:
    lengths = chats(count, seed)
    exact = packing_metrics(
        lengths, pack(lengths, 4096, algorithm="exact_fit_shuffle", seed=seed), 4096
    )
    best = packing_metrics(
        lengths, pack(lengths, 4096, algorithm="best_fit_shuffle", seed=seed), 4096
    )

    assert exact.bins <= exact.bound + (1 if count < 1000 else 0)
    assert exact.bins <= best.bins
    assert exact.sequences_p99 <= best.sequences_p99 + 2


def test_sequences_of_any_length_are_packed_nearly_as_well_as_by_best_fit() -> None:
    lengths = lognormal(20_000)
    exact, best = (
        packing_metrics(lengths, pack(lengths, 4096, algorithm=name), 4096)  # type: ignore[arg-type]
        for name in ("exact_fit_shuffle", "best_fit_shuffle")
    )

    assert exact.fill > best.fill - 0.003
    assert exact.sequences_max < 2 * best.sequences_max


@pytest.mark.slow
def test_time_grows_with_the_number_of_sequences_and_no_faster() -> None:
    took = []
    for count in (60_000, 240_000):
        lengths = lognormal(count)
        began = time.process_time()
        pack(lengths, 4096, algorithm="exact_fit_shuffle")
        took.append(time.process_time() - began)

    assert took[1] < 4 * took[0] * 3
