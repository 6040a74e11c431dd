from datetime import date, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.series.arrays.axis import DAY_US, Frequency, infer, place_rows

EPOCH = datetime(1970, 1, 1)


def micros(*moments: datetime) -> np.ndarray:
    return np.array([(each - EPOCH) // timedelta(microseconds=1) for each in moments], np.int64)


def month_ends(first_year: int, months: int) -> list[datetime]:
    starts = [datetime(first_year + n // 12, n % 12 + 1, 1) for n in range(1, months + 1)]
    return [each - timedelta(days=1) for each in starts]


@pytest.mark.parametrize(
    ("word", "micros_", "months", "told"),
    [("1d", DAY_US, 0, "1d"), ("D", DAY_US, 0, "1d"), ("15m", 900_000_000, 0, "15m"), ("24h", DAY_US, 0, "1d"), ("90 s", 90_000_000, 0, "90s"),
     ("1w", 7 * DAY_US, 0, "7d"), ("1mo", 0, 1, "1mo"), ("1q", 0, 3, "3mo"), ("y", 0, 12, "12mo")],
)  # fmt: skip
def test_a_word_is_a_frequency(word: str, micros_: int, months: int, told: str) -> None:
    found = Frequency.parse(word)

    assert (micros_, months, told) == (found.micros, found.months, found.word)
    assert Frequency.parse(found.word) == found


@pytest.mark.parametrize("word", ["", "0d", "fortnight", "-1d", "1.5h", "d1"])
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match="is not a frequency; give a number"):
        Frequency.parse(word)


def test_a_year_has_365_and_a_quarter_days() -> None:
    assert 365.25 == Frequency.parse("1d").steps_per_year
    assert 365.25 * 24 == Frequency.parse("1h").steps_per_year
    assert 12 == Frequency.parse("1mo").steps_per_year


@given(
    st.integers(-(10**6), 10**6),
    st.sampled_from(["1d", "1h", "15m", "7d", "90s"]),
    st.lists(st.integers(0, 400), min_size=1, max_size=60),
    st.lists(st.integers(1, 10**6), max_size=5),
    st.randoms(use_true_random=False),
)
def test_rows_lie_where_their_time_says(
    first: int, word: str, steps: list[int], strays: list[int], random
) -> None:
    """Against one row at a time: any order, repeated times, fewer strays than rows that share a grid."""
    frequency = Frequency.parse(word)
    origin = first * 1_000_003
    strays = strays[: (len(steps) - 1) // 2]
    times = [(origin + step * frequency.micros, "on") for step in steps]
    times += [(origin + n * frequency.micros + stray, "off") for n, stray in enumerate(strays)]
    random.shuffle(times)

    placed = place_rows(np.array([each for each, _ in times], np.int64), frequency)

    expected = sorted((time, row) for row, (time, word) in enumerate(times) if word == "on")
    assert [row for _, row in expected] == placed.rows.tolist()
    start = expected[0][0]
    assert [(time - start) // frequency.micros for time, _ in expected] == placed.positions.tolist()
    assert (
        sorted(row for row, (_, word) in enumerate(times) if word == "off")
        == placed.off_grid.tolist()
    )
    axis = placed.axis.times()
    assert (start, expected[-1][0]) == (axis[0], axis[-1])
    assert axis[placed.positions].tolist() == [time for time, _ in expected]


def test_missing_days_are_positions_without_a_row() -> None:
    days = micros(datetime(2020, 2, 27), datetime(2020, 3, 2), datetime(2020, 2, 28))

    placed = place_rows(days, Frequency.parse("1d"))

    assert ([0, 2, 1], [0, 1, 4], 5) == (
        placed.rows.tolist(),
        placed.positions.tolist(),
        placed.axis.rows,
    )


@pytest.mark.parametrize("moments", [
    [datetime(2019 + n // 12, n % 12 + 1, 1) for n in range(26)],
    [datetime(2019 + n // 12, n % 12 + 1, 15, 6) for n in range(26)],
    month_ends(2019, 26),
])  # fmt: skip
def test_months_are_equal_steps(moments: list[datetime]) -> None:
    times = micros(*moments)

    placed = place_rows(np.delete(times, [3, 4, 13]), Frequency.parse("1mo"))

    assert Frequency.parse("1mo") == infer(np.delete(times, [3, 4, 13]))
    assert times.tolist() == placed.axis.times().tolist()
    assert not len(placed.off_grid)


def test_the_last_days_of_long_months_alone_are_month_ends() -> None:
    times = micros(datetime(2021, 1, 31), datetime(2021, 3, 31), datetime(2021, 5, 31))

    placed = place_rows(times, Frequency.parse("1mo"))

    assert micros(*month_ends(2021, 5)).tolist() == placed.axis.times().tolist()


def test_a_month_row_on_another_day_is_off_the_grid() -> None:
    times = micros(
        datetime(2021, 1, 1), datetime(2021, 2, 1), datetime(2021, 3, 2), datetime(2021, 4, 1)
    )

    assert [2] == place_rows(times, Frequency.parse("1mo")).off_grid.tolist()


def test_quarters_have_a_phase() -> None:
    times = micros(*(datetime(2021, month, 1) for month in (2, 5, 8, 9, 11)))

    placed = place_rows(times, Frequency.parse("1q"))

    assert ([3], [0, 1, 2, 3]) == (placed.off_grid.tolist(), placed.positions.tolist())
    assert (
        micros(*(datetime(2021, month, 1) for month in (2, 5, 8, 11))).tolist()
        == placed.axis.times().tolist()
    )


@pytest.mark.parametrize("word", ["1d", "1h", "15m", "1mo", "12mo"])
def test_the_usual_step_is_found_despite_holes(word: str) -> None:
    frequency = Frequency.parse(word)
    start = micros(datetime(2001, 3, 1))
    full = place_rows(start, frequency).axis
    times = type(full)(frequency, full.first, 40).times()

    assert frequency == infer(np.delete(times, [5, 6, 20]))


def test_two_times_tell_no_frequency() -> None:
    assert infer(micros(datetime(2020, 1, 1), datetime(2020, 1, 2), datetime(2020, 1, 2))) is None


@given(st.dates(date(1800, 1, 1), date(2200, 1, 1)), st.integers(1, 500), st.data())
def test_a_part_of_an_axis_has_its_times(start: date, rows: int, data) -> None:
    axis = place_rows(micros(datetime(start.year, start.month, start.day)), Frequency.parse(data.draw(st.sampled_from(["1d", "1mo"])))).axis  # fmt: skip
    whole = type(axis)(axis.frequency, axis.first, rows, axis.anchor)
    low = data.draw(st.integers(0, rows))
    high = data.draw(st.integers(low, rows))

    assert whole.times()[low:high].tolist() == (
        whole.tail(low, high).times().tolist() if high > low else []
    )
