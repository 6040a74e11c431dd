"""Windows against brute force: every start of every entity looked at one by one."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.series.arrays.windows import Missing, Runs, find_valid_sequences


def brute_force(bad, begins, ends, *, before, after, horizons, targets, stride, future):
    """bad: bool [rows, 2], column 0 the target, column 1 the inputs."""
    found = []
    for entity, (low, high) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        for start in range(low, high - before - after + 1, stride):
            needed = [bad[start : start + before, 1].any()]
            if future:
                needed.append(bad[start + before : start + before + after, 1].any())
            labels = [bad[start + before + step - 1, 0] for step in horizons]
            if targets == "all":
                needed.append(any(labels))
            elif targets == "any" and labels:
                needed.append(all(labels))
            if not any(needed):
                found.append((start, entity))
    return found


@st.composite
def cases(draw):
    lengths = draw(st.lists(st.integers(0, 25), min_size=1, max_size=5))
    spaces = draw(st.lists(st.integers(0, 4), min_size=len(lengths), max_size=len(lengths)))
    ends = np.cumsum(np.array(lengths) + np.array(spaces))
    begins = ends - np.array(lengths)
    rows = int(ends[-1]) + draw(st.integers(0, 3))
    share = draw(st.sampled_from([0.0, 0.05, 0.3, 0.9]))
    bad = np.random.default_rng(draw(st.integers(0, 1 << 20))).random((rows, 2)) < share
    after = draw(st.integers(0, 5))
    horizons = (
        draw(st.lists(st.integers(1, after), min_size=1, max_size=after, unique=True))
        if after
        else []
    )
    return bad, begins, ends, {
        "before": draw(st.integers(1, 6)),
        "after": after,
        "horizons": sorted(horizons),
        "targets": draw(st.sampled_from(["all", "any", "none"])),
        "stride": draw(st.integers(1, 4)),
        "future": draw(st.booleans()),
    }  # fmt: skip


@given(cases())
def test_windows_are_those_that_looking_at_each_start_finds(case):
    bad, begins, ends, rule = case
    values = np.where(bad, np.nan, 1).astype(np.float32)
    missing = Missing.find([values], values.shape[1])
    expected = brute_force(bad, begins, ends, **rule)

    found = find_valid_sequences(
        begins, ends, input_length=rule["before"], output_length=rule["after"], horizons=rule["horizons"] or None,
        inputs=missing.runs(1), target=missing.runs(0), targets=rule["targets"], stride=rule["stride"],
        **({"future": missing.runs(1)} if rule["future"] else {}),
    )  # fmt: skip
    starts, entity = found.locate(np.arange(len(found)))

    assert expected == list(zip(starts.tolist(), entity.tolist(), strict=True))
    assert (
        np.bincount([each for _, each in expected], minlength=len(begins)).tolist()
        == found.per_entity(len(begins)).tolist()
    )
    assert (found.count > 0).all()


@given(st.lists(st.booleans(), max_size=40))
def test_runs_are_the_rows_they_were_made_of(missing):
    rows = np.flatnonzero(np.array(missing, bool))
    runs = Runs.of_rows(rows)

    assert rows.tolist() == [
        row for begin, end in zip(runs.starts, runs.ends, strict=True) for row in range(begin, end)
    ]
    assert (runs.starts[1:] > runs.ends[:-1]).all()


def test_missing_values_of_matrices_that_follow_one_another_are_those_of_one():
    random = np.random.default_rng(0)
    values = np.where(random.random((200_000, 3)) < 0.01, np.nan, 0).astype(
        np.float32
    )  # several pieces of a scan

    joined = Missing.find([values[:70_001], values[70_001:]], 3)

    assert np.flatnonzero(np.isnan(values).reshape(-1)).tolist() == joined.positions.tolist()
    assert np.flatnonzero(np.isnan(values[:, 1:]).any(1)).tolist() == [
        row
        for begin, end in zip(
            joined.runs(slice(1, 3)).starts, joined.runs(slice(1, 3)).ends, strict=True
        )
        for row in range(begin, end)
    ]


def test_entities_of_a_subset_keep_their_own_windows():
    ends = np.array([10, 20, 30])
    found = find_valid_sequences(ends - 10, ends, input_length=3, output_length=2)

    some = found.of_entities(np.array([True, False, True]))

    assert [(row, entity) for entity in (0, 2) for row in range(10 * entity, 10 * entity + 6)] == [
        (row, entity)
        for row, entity in zip(*(each.tolist() for each in some.locate(np.arange(12))), strict=True)
    ]


def test_an_index_of_millions_of_windows_holds_two_segments_an_entity():
    ends = np.arange(1, 301) * 10_000
    outages = Runs(ends - 5_000, ends - 4_990)

    found = find_valid_sequences(
        ends - 10_000, ends, input_length=365, output_length=7, inputs=outages
    )

    assert 300 * (4_636 + 4_619) == len(found)
    assert 600 == len(found.first)


def test_one_label_of_several_targets_is_any() -> None:
    nan = np.nan
    matrix = np.array([[1, nan], [nan, nan], [nan, nan], [nan, 2]], np.float32)
    missing = Missing.find([matrix], 2)

    for rule, expected in (("some", [0, 4]), ("all", [1, 3])):
        runs = missing.runs(slice(0, 2), rule)
        assert expected == [*runs.starts, *runs.ends]
