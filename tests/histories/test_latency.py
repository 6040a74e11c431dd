"""Latency codes: whole microseconds rounded to 0.049 %, failed apart from 0 µs, and a fixed point."""

import numpy as np
from history_reference import encode_latencies
from hypothesis import given
from hypothesis import strategies as st

from headrace.histories.codec.kernels import encode_latencies as compiled_latencies
from headrace.histories.codec.values import FAILED, LARGEST_US, decode_latencies, is_canonical

ALL = np.arange(1 << 16).astype(np.uint16)


def codes_of(values: list[int]) -> np.ndarray:
    array = np.array(values, np.int64)
    return encode_latencies(array, np.zeros(len(array), np.bool_)).codes


def test_every_code_that_encode_gives_is_a_fixed_point_and_there_is_no_other_canonical_one() -> (
    None
):
    canonical = ALL[is_canonical(ALL) & (ALL != FAILED)]

    again = codes_of(decode_latencies(canonical).tolist())

    np.testing.assert_array_equal(canonical, again)
    assert len(np.unique(decode_latencies(canonical))) == len(canonical)
    others = ALL[~is_canonical(ALL)]
    assert not np.isin(others, codes_of(decode_latencies(others).clip(1).tolist())).any()


@given(st.lists(st.integers(1, LARGEST_US), min_size=1))
def test_the_error_is_at_most_half_a_step(values: list[int]) -> None:
    got = decode_latencies(codes_of(values))

    for value, decoded in zip(values, got.tolist(), strict=True):
        assert abs(decoded - value) * 2048 <= value
        assert value == decoded or value >= 2048


@given(st.lists(st.integers(1, LARGEST_US), min_size=2))
def test_codes_order_as_values_do(values: list[int]) -> None:
    codes = codes_of(sorted(values)).astype(int)

    assert (np.diff(codes) >= 0).all()


def test_zero_is_one_microsecond_and_failed_is_code_zero_whatever_the_value() -> None:
    got = encode_latencies(np.array([0, 5, -7, LARGEST_US]), np.array([False, True, True, True]))

    assert [1, 0, 0, 0] == got.codes.tolist()
    assert [1, -1, -1, -1] == decode_latencies(got.codes).tolist()
    assert got.clamped == 0


def test_larger_values_are_clamped_and_counted() -> None:
    got = encode_latencies(np.array([LARGEST_US, LARGEST_US + 1, 1 << 60]), np.zeros(3, np.bool_))

    assert [LARGEST_US] * 3 == decode_latencies(got.codes).tolist()
    assert got.clamped == 2


def test_a_value_that_rounds_up_to_a_power_of_two_takes_the_next_exponent() -> None:
    assert [4096] == decode_latencies(codes_of([4095])).tolist()
    assert [2047 << 31] == decode_latencies(codes_of([(2047 << 31) - 1])).tolist()


def test_fractions_of_a_microsecond_are_rounded_first() -> None:
    values = np.linspace(0.5, 9000, 400_001)
    reason = np.zeros(len(values), np.int8)
    codes, _ = compiled_latencies(values, 1.0, 1, -1, 1, 0, reason)
    error = np.abs(decode_latencies(codes) - values)

    assert (error[values < 2048] <= 0.5).all()
    assert (error[values >= 2048] <= 0.00073 * values[values >= 2048]).all()
