"""What becomes of sequences that fit no bin, to the token and to the label."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.packing.sequences import fit, label_counts

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=20)
POLICIES = ("truncate", "drop", "split")


def mask_of(lengths: list[int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, sum(lengths)).astype(np.uint8)


def labels_of(mask: np.ndarray) -> int:
    return int(mask[1:].sum())


@pytest.mark.parametrize("policy", POLICIES)
@given(lengths=LENGTHS, longest=st.integers(2, 12), seed=st.integers(0, 99))
def test_every_token_and_label_is_kept_or_counted_as_lost(
    policy: str, lengths: list[int], longest: int, seed: int
) -> None:
    mask = mask_of(lengths, seed)
    sequences = np.split(mask, np.cumsum(lengths)[:-1])

    pieces = fit(mask, np.array(lengths), longest, policy)

    kept = [
        mask[start : start + length]
        for start, length in zip(pieces.starts, pieces.lengths, strict=True)
    ]
    assert all(len(each) <= longest for each in kept)
    assert len(mask) == sum(map(len, kept)) + pieces.lost_tokens
    assert [labels_of(each) for each in kept] == pieces.labels.tolist()
    assert sum(map(labels_of, sequences)) == sum(map(labels_of, kept)) + pieces.lost_labels
    for place in set(range(len(lengths))) - {
        at for at, length in enumerate(lengths) if length > longest
    }:
        (own,) = np.flatnonzero(pieces.sequence == place)
        assert pieces.lengths[own] == lengths[place]


@given(lengths=LENGTHS, longest=st.integers(2, 12), seed=st.integers(0, 99))
def test_truncation_keeps_the_beginning_unless_nothing_is_left_to_train(
    lengths: list[int], longest: int, seed: int
) -> None:
    mask = mask_of(lengths, seed)
    pieces = fit(mask, np.array(lengths), longest, "truncate")
    sequences = np.split(mask, np.cumsum(lengths)[:-1])

    over = [each for each in sequences if len(each) > longest]
    cut_away = [each for each in over if labels_of(each) and not labels_of(each[:longest])]
    assert (pieces.dropped, pieces.truncated) == (len(cut_away), len(over) - len(cut_away))


@given(lengths=LENGTHS, longest=st.integers(2, 12))
def test_pieces_end_to_end_are_the_sequence_again(lengths: list[int], longest: int) -> None:
    pieces = fit(np.ones(sum(lengths), np.uint8), np.array(lengths), longest, "split")

    for place, length in enumerate(lengths):
        own = pieces.lengths[pieces.sequence == place]
        lost = 1 if length > longest and length % longest == 1 else 0
        assert length == own.sum() + lost
    assert (np.array(lengths) > longest).sum() == pieces.divided


def test_the_first_token_of_a_sequence_is_no_label() -> None:
    mask = np.array([1, 1, 0, 1, 1], np.uint8)

    assert [1, 1] == label_counts(mask, np.array([0, 3]), np.array([3, 2])).tolist()
