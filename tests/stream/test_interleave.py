"""Interleaving is a bijection in closed form that keeps every source at its share."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SettingsError
from headrace.stream.order.interleave import Interleave, most_drift_rounds, quotas
from raised import raised

counts_of = st.lists(st.integers(0, 120), min_size=1, max_size=9).filter(any)


@given(counts_of, st.integers(1, 12))
def test_every_index_of_every_source_has_one_position(counts, round_rows):
    interleave = Interleave(counts=tuple(counts), round_rows=round_rows)
    source, index = interleave.split(np.arange(sum(counts)))

    for number, count in enumerate(counts):
        assert index[source == number].tolist() == list(range(count))
        positions = interleave.join(number, np.arange(count))
        assert positions.tolist() == np.flatnonzero(source == number).tolist()


@given(counts_of, st.integers(1, 12))
def test_no_source_strays_from_its_share_at_any_position(counts, round_rows):
    rows = sum(counts)
    source, _ = Interleave(counts=tuple(counts), round_rows=round_rows).split(np.arange(rows))
    for number, count in enumerate(counts):
        before = np.concatenate([[0], np.cumsum(source == number)])
        drift = np.abs(before * rows - np.arange(rows + 1) * count)

        assert drift.max() <= most_drift_rounds(len(counts)) * round_rows * rows


@given(counts_of, st.integers(1, 12))
def test_rounds_go_to_one_source_and_are_counted(counts, round_rows):
    interleave = Interleave(counts=tuple(counts), round_rows=round_rows)
    source, index = interleave.split(np.arange(interleave.rounds * round_rows))
    of_round = source.reshape(-1, round_rows)

    assert (of_round == of_round[:, :1]).all()
    assert (index % round_rows == np.arange(len(index)) % round_rows).all()
    for number, turns in enumerate(interleave.turns_before(np.arange(interleave.rounds + 1))):
        assert turns.tolist() == [0, *np.cumsum(of_round[:, 0] == number).tolist()]


@given(st.integers(0, 10_000), st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_quotas_are_within_a_row_of_the_weights(rows, weights):
    found = quotas(rows, [Fraction(weight) for weight in weights])

    assert sum(found) == rows
    for count, weight in zip(found, weights, strict=True):
        assert abs(count * sum(weights) - rows * weight) < sum(weights)


def test_positions_of_a_very_long_epoch_are_exact():
    interleave = Interleave(counts=(10**10, 3 * 10**10 + 5, 7), round_rows=64)
    positions = np.array([0, 10**9 + 1, 39 * 10**9, 4 * 10**10 + 11])
    source, index = interleave.split(positions)

    for position, number, inside in zip(
        positions.tolist(), source.tolist(), index.tolist(), strict=True
    ):
        assert interleave.join(number, np.array([inside])).tolist() == [position]


def test_more_rounds_than_exact_arithmetic_holds_are_refused():
    with raised(SettingsError, setting="lanes", remedy="set lanes= higher"):
        Interleave(counts=(1 << 31, 5), round_rows=1)
