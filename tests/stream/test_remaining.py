"""Ranges of positions behave as the sorted list of the positions in them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.stream.order.remaining import Remaining


@st.composite
def leftovers(draw):
    rows = draw(st.integers(0, 60))
    left = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    positions = [position for position in range(rows) if left[position]]
    ranges: list[tuple[int, int]] = []
    for position in positions:
        if ranges and ranges[-1][1] == position:
            ranges[-1] = (ranges[-1][0], position + 1)
        else:
            ranges.append((position, position + 1))
    return Remaining(rows=rows, ranges=tuple(ranges)), positions


@given(leftovers())
def test_places_run_over_the_positions_in_order(case):
    remaining, positions = case

    assert remaining.total == len(positions)
    assert remaining.positions(np.arange(len(positions))).tolist() == positions
    assert remaining.first == (positions[0] if positions else remaining.rows)


@given(leftovers(), st.integers(0, 70))
def test_count_below_counts_smaller_positions(case, position):
    remaining, positions = case

    assert remaining.count_below(position) == sum(other < position for other in positions)


@given(leftovers(), st.lists(st.integers(0, 70), max_size=8, unique=True))
def test_keeping_places_keeps_their_positions_in_one_form(case, cuts):
    remaining, positions = case
    cuts = sorted(cuts[: len(cuts) // 2 * 2])
    starts, stops = np.array(cuts[::2], np.int64), np.array(cuts[1::2], np.int64)
    expected = [p for start, stop in zip(starts, stops, strict=True) for p in positions[start:stop]]

    kept = remaining.keep(starts, stops)

    assert kept.positions(np.arange(kept.total)).tolist() == expected
    assert all(
        before[1] < after[0] for before, after in zip(kept.ranges, kept.ranges[1:], strict=False)
    )
    assert kept == Remaining.of(kept.rows, position=kept.position, holes=kept.holes)


def test_an_epoch_before_its_first_batch_has_no_holes():
    fresh = Remaining.everything(7)

    assert (fresh.position, fresh.holes, fresh.total) == (0, (), 7)
    assert Remaining.everything(0).total == 0


@given(st.sets(st.integers(0, 30)))
def test_ranges_of_positions_hold_those_and_no_others(positions):
    kept = Remaining.of_positions(31, np.array(sorted(positions), np.int64))

    assert sorted(positions) == kept.positions(np.arange(kept.total)).tolist()
    assert kept == Remaining.of(31, position=kept.position, holes=kept.holes)
