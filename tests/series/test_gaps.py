import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.series.clean import fill_gaps, find_gaps, trimmed

NAN = math.nan
CELLS = st.sampled_from([NAN, NAN, 1.0, 2.0, 3.0])


@st.composite
def tables(draw) -> np.ndarray:
    steps, columns = draw(st.integers(0, 25)), draw(st.integers(1, 4))
    return np.array(draw(st.lists(CELLS, min_size=steps * columns, max_size=steps * columns)), float).reshape(steps, columns)  # fmt: skip


def runs_by_hand(column: list[float]) -> list[tuple[int, int]]:
    """(start, length) of runs with a value before and one after, one step at a time."""
    found = []
    step = 0
    while step < len(column):
        stop = step
        while stop < len(column) and math.isnan(column[stop]):
            stop += 1
        if step < stop < len(column) and step > 0:
            found.append((step, stop - step))
        step = max(stop, step + 1)
    return found


@given(tables())
def test_gaps_are_runs_between_values(table: np.ndarray) -> None:
    gaps = find_gaps(np.isnan(table))

    expected = [
        (c, start, length)
        for c in range(table.shape[1])
        for start, length in runs_by_hand(table[:, c].tolist())
    ]
    assert expected == list(
        zip(gaps.column.tolist(), gaps.start.tolist(), gaps.length.tolist(), strict=True)
    )
    count = gaps.count(table.shape[1])
    longest = gaps.longest(table.shape[1])
    for column in range(table.shape[1]):
        lengths = [length for c, _, length in expected if c == column]
        assert (len(lengths), max(lengths, default=0)) == (count[column], longest[column])


@given(tables(), st.integers(0, 6))
def test_a_gap_is_filled_whole_from_before_or_left_whole(table: np.ndarray, limit: int) -> None:
    filled_table = table.copy()
    gaps = find_gaps(np.isnan(table))

    filled = fill_gaps(filled_table, gaps.select(gaps.length <= limit))

    expected = table.copy()
    for column in range(table.shape[1]):
        for start, length in runs_by_hand(table[:, column].tolist()):
            if length <= limit:
                expected[start : start + length, column] = table[start - 1, column]
    np.testing.assert_array_equal(expected, filled_table)
    np.testing.assert_array_equal(np.isnan(table) & ~np.isnan(expected), filled)


@given(tables())
def test_trimming_ends_where_every_column_has_begun_and_none_has_ended(table: np.ndarray) -> None:
    start, stop = trimmed(~np.isnan(table))

    steps = table.shape[0]
    begun = [row for row in range(steps) if (~np.isnan(table[: row + 1])).any(axis=0).all()]
    going = [row for row in range(steps) if (~np.isnan(table[row:])).any(axis=0).all()]
    inside = [row for row in begun if row in going]
    assert inside == list(range(start, stop))


def test_trailing_missing_rows_go_and_leading_values_stay() -> None:
    """T2: a trailing trim that counts from the wrong side drops the first rows instead."""
    assert (0, 3) == trimmed(np.array([[True], [True], [True], [False], [False]]))


def test_a_long_gap_keeps_all_its_missing_values() -> None:
    """T3: gaps of 8 and 2 with a limit of 5: eight missing values are left, not three."""
    series = np.array([1.0, *[NAN] * 8, 2.0, NAN, NAN, 3.0])[:, None]
    gaps = find_gaps(np.isnan(series))

    filled = fill_gaps(series, gaps.select(gaps.length <= 5))

    assert (8, 2) == (int(np.isnan(series).sum()), int(filled.sum()))
    assert [2.0, 2.0, 2.0, 3.0] == series[9:, 0].tolist()


@given(tables(), st.integers(0, 6), st.integers(1, 24))
def test_nothing_behind_a_cut_decides_what_is_filled_before_it(
    table: np.ndarray, limit: int, cut: int
) -> None:
    """The rows before the cut are filled as they are when the series ends there."""
    whole, known = table.copy(), table[:cut].copy()
    for made in (whole, known):
        gaps = find_gaps(np.isnan(made))
        fill_gaps(made, gaps.select((gaps.length <= limit) & gaps.on_one_side([cut])))

    np.testing.assert_array_equal(known, whole[:cut])


def test_a_gap_that_a_cut_runs_through_is_not_inside() -> None:
    series = np.array([1.0, NAN, NAN, 2.0, NAN, 3.0])[:, None]
    gaps = find_gaps(np.isnan(series))

    inside = {cut: gaps.on_one_side([cut]).tolist() for cut in range(1, 6)}

    assert {
        1: [True, True],
        2: [False, True],
        3: [False, True],
        4: [True, True],
        5: [True, False],
    } == inside
