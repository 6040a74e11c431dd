"""Times of rows by arithmetic are those of the axis that the recipe made."""

import numpy as np
import pytest

from headrace.series.arrays.axis import Axis, Frequency, times_at


@pytest.mark.parametrize("anchor", ["start", "end"])
@pytest.mark.parametrize(
    ("word", "first"),
    [("1d", "2020-02-28"), ("1h", "2020-02-28T05"), ("1mo", "2023-02-28"), ("3mo", "2024-02-29")],
)
def test_a_row_has_the_time_of_its_place_on_the_axis(word, first, anchor):
    frequency, begin = Frequency.parse(word), int(np.datetime64(first, "us").astype(np.int64))
    expected = Axis(frequency, begin, 40, anchor).times()
    positions = np.arange(40)

    found = times_at(frequency, np.full(40, begin), np.full(40, anchor == "end"), positions)

    assert expected.tolist() == found.tolist()
    assert (
        not frequency.months
        or anchor == "start"
        or str(expected[1].astype("datetime64[us]"))[8:10] in ("31", "30")
    )
