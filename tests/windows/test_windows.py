"""Windows of small runs on disk against looking at every start, and every value against where it is from."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from series_cases import RUN_ID, expected_windows, filled_by_hand, write_run

import headrace
from headrace.errors import CorruptShard, InputError, SettingsError
from headrace.windows import open_windows
from laws import examples
from raised import raised


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("series")
    return out, write_run(out)


KEPT = ["keep", "zero", "forward", "linear", "seasonal"]


def check_values(windows, values, expected, options):
    """Every array of all windows is the slice of its entity's rows that it should be."""
    batch = windows.batch(range(len(windows)))
    L, H = options["input_length"], options["output_length"]
    first = 0 if options.get("is_autoregressive") else 1
    fill = {name: options[name] for name in ("incomplete", "season") if name in options}
    assert [number for number, _ in expected] == batch["entity"].tolist()
    for place, (number, start) in enumerate(expected):
        table = values[number]
        past, coming = table[start : start + L, first:3], table[start : start + L + H, 1:3]
        np.testing.assert_allclose(filled_by_hand(past, **fill), batch["X"][place], rtol=1e-6)
        if "future" in batch:
            np.testing.assert_allclose(
                filled_by_hand(coming, **fill)[L:], batch["future"][place], rtol=1e-6
            )
        if "X_observed" in batch:
            np.testing.assert_array_equal(~np.isnan(past), batch["X_observed"][place])
        if "future_observed" in batch:
            np.testing.assert_array_equal(~np.isnan(coming[L:]), batch["future_observed"][place])
        if "y" in batch:
            labels = table[start + L : start + L + H, 0][
                [h - 1 for h in options.get("horizons") or range(1, H + 1)]
            ]
            np.testing.assert_array_equal(np.nan_to_num(labels), batch["y"][place])
            if "y_observed" in batch:
                np.testing.assert_array_equal(~np.isnan(labels), batch["y_observed"][place])
        assert [number, 10 + number] == batch["static"][place].tolist()
        date = np.datetime64("2001-02-03", "us") + np.timedelta64(number + start + L - 1, "D")
        assert date == batch["input_end_date"][place]
    return batch


@settings(max_examples=examples(60))
@given(
    st.sampled_from(["train", "val", "test", "all"]),
    st.integers(1, 6),
    st.integers(1, 4),
    st.fixed_dictionaries(
        {},
        optional={
            "stride": st.integers(1, 5),
            "is_autoregressive": st.booleans(),
            "history": st.sampled_from(["within", "preceding"]),
            "targets": st.sampled_from(["all", "any", "none"]),
            "future": st.sampled_from(["known", "none"]),
            "incomplete": st.sampled_from(["skip", *KEPT]),
            "layout": st.sampled_from(["views", "contiguous"]),
            "horizons": st.just((1,)),
        },
    ),
)
def test_windows_are_those_of_every_start_and_hold_their_entitys_rows(
    run, split, before, after, options
):
    out, values = run
    options = {"input_length": before, "output_length": after, **options}
    if options.get("incomplete") == "seasonal":
        options["season"] = 3
    windows = open_windows(out, split, **options)
    expected = expected_windows(values, split, **options)

    assert len(expected) == len(windows)
    batch = check_values(windows, values, expected, options)
    if options.get("incomplete") != "keep":
        assert all(np.isfinite(batch[name]).all() for name in ("X", "y", "future") if name in batch)
    if options.get("incomplete", "skip") != "skip":
        masks = [batch[f"{name}_observed"] for name in ("X", "future") if name in batch]
        complete = np.concatenate([mask.reshape(len(windows), -1) for mask in masks], 1).all(1)
        np.testing.assert_array_equal(complete, batch["complete"])
    if options.get("layout") == "contiguous":
        assert all(values.flags.c_contiguous for values in batch.values())


def test_a_window_never_takes_rows_of_another_entity_whatever_order_entities_are_loaded_in(run):
    """Offsets in one order and rows in another gave windows of other basins."""
    out, values = run
    options = {"input_length": 5, "output_length": 2}
    windows = open_windows(out, "train", **options)
    expected = expected_windows(values, "train", **options)
    entities = np.array([1, 2, 5])

    chunk = windows.in_memory(entities)

    mine = [each for each in expected if each[0] in entities]
    assert len(mine) == len(chunk)
    check_values(chunk, values, mine, options)
    assert sum(len(values[each]) * 3 // 5 for each in entities) == chunk.matrices.rows
    assert not np.shares_memory(chunk.matrices.matrices[0], windows.matrices.matrices[0])


def test_dates_inside_a_window_are_one_step_apart(run):
    """T1: rows without a target are rows, so no window jumps over an outage: rain counts the days."""
    out, _ = run
    batch = open_windows(out, "train", input_length=6, output_length=3, targets="any").batch(
        range(40)
    )

    steps = np.diff(np.concatenate([batch["X"][:, :, 0], batch["future"][:, :, 0]], axis=1), axis=1)

    np.testing.assert_allclose(steps, 1 / 1024, atol=1e-6)


@pytest.mark.parametrize(
    ("frequency", "first", "expected"),
    [
        ("1h", "2001-02-03", "2001-02-03T04"),
        ("15m", "2001-02-03", "2001-02-03T01"),
        ("1mo", "2001-02-03", "2001-06-03"),
        ("1mo", "2001-01-31", "2001-05-31"),
        ("1q", "2001-03-31", "2002-03-31"),
        ("1w", "2001-02-03", "2001-03-03"),
    ],
)
def test_input_end_dates_follow_the_frequency(tmp_path, frequency, first, expected):
    write_run(tmp_path, missing=0, frequency=frequency, first_time=first)
    windows = open_windows(tmp_path, "train", input_length=5, output_length=1)

    assert np.datetime64(expected, "us") == windows[0]["input_end_date"]


@pytest.mark.parametrize("rule", ["mean", "standard"])
def test_windows_are_scaled_by_what_was_observed_of_their_past(run, rule):
    out, _ = run
    options = {"input_length": 5, "output_length": 2, "is_autoregressive": True, "targets": "any"}
    options["incomplete"] = "zero"
    batch = open_windows(out, "train", **options, scale=rule).batch(range(90))
    plain = open_windows(out, "train", **options).batch(range(90))
    past = np.where(plain["X_observed"], plain["X"], np.nan)[:, :, 0]
    some = ~np.isnan(past).all(axis=1)
    scale, centre = np.nanmean(np.abs(past[some]), axis=1), 0
    if rule == "standard":
        scale, centre = np.nanstd(past[some], axis=1), np.nanmean(past[some], axis=1)
        scale = np.where(scale == 0, 1, scale)
    labels = (batch["y"] * batch["scale"] + batch["centre"])[plain["y_observed"]]

    np.testing.assert_allclose(scale, batch["scale"][some, 0], rtol=1e-4)
    np.testing.assert_allclose(centre, batch["centre"][some, 0] + 0 * scale, rtol=1e-5)
    np.testing.assert_allclose(plain["y"][plain["y_observed"]], labels, rtol=1e-5)
    np.testing.assert_array_equal(plain["X"][:, :, 1:], batch["X"][:, :, 1:])
    np.testing.assert_array_equal(0, batch["X"][~batch["X_observed"]])


def test_options_that_contradict_each_other_are_refused(run):
    out, _ = run
    shape = {"input_length": 5, "output_length": 2}
    with raised(SettingsError, setting="season"):
        open_windows(out, **shape, incomplete="seasonal")
    with raised(SettingsError, setting="scale", remedy="give is_autoregressive"):
        open_windows(out, **shape, scale="mean", is_autoregressive=False)


def test_predicting_beyond_the_last_row_needs_no_horizon(run):
    out, values = run
    options = {"targets": "none", "future": "none", "incomplete": "keep", "history": "preceding"}
    windows = open_windows(out, "test", input_length=5, output_length=7, **options)
    batch = windows.batch(range(len(windows)))
    ends = dict(zip(batch["entity"].tolist(), batch["input_end_date"], strict=True))

    assert "y" not in windows[0]
    assert "future" not in windows[0]
    for number, table in enumerate(values):  # the last window of each entity ends with its last row
        last = np.datetime64("2001-02-03", "us") + np.timedelta64(number + len(table) - 1, "D")
        assert last == ends[number]


def test_windows_travel_to_other_processes(run):
    out, _ = run
    windows = open_windows(out, "train", input_length=5, output_length=2)
    chunk = windows.in_memory(np.array([0, 3]))
    before = windows.batch([3, 1]), chunk.batch([4, 2])

    parcels = [pickle.dumps(each) for each in (windows, chunk)]
    after = [
        pickle.loads(each).batch(numbers)
        for each, numbers in zip(parcels, ([3, 1], [4, 2]), strict=True)
    ]

    assert len(parcels[0]) < 20_000
    for expected, found in zip(before, after, strict=True):
        for name, values in expected.items():
            np.testing.assert_array_equal(values, found[name])


def test_identities_differ_with_what_a_number_means(run):
    out, _ = run
    options = {"input_length": 5, "output_length": 2}
    windows = [
        open_windows(out, "train", **options),
        open_windows(out, "val", **options),
        open_windows(out, "train", **options, stride=2),
        open_windows(out, "train", **options, is_autoregressive=True),
        open_windows(out, "train", **options).of_entities(np.arange(7) > 2),
    ]

    assert len(windows) == len({each.identity for each in windows})
    assert (
        windows[0].identity == open_windows(out, "train", **options, layout="contiguous").identity
    )


def test_names_of_entities_come_on_demand(run):
    out, _ = run
    windows = open_windows(out, "train", input_length=5, output_length=2)

    assert ["basin_002", "basin_000"] == windows.entity_names(np.array([2, 0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_length": 0}, "input_length is 0; it should be greater than or equal to 1"),
        ({"output_length": 0}, "output_length is 0; it should be greater than or equal to 1"),
        ({"stride": True}, "stride is True"),
        ({"horizons": (1, 3)}, r"ascending steps from 1 to output_length, 2"),
        ({"horizons": (2, 1)}, "ascending steps"),
        ({"horizons": ()}, "ascending steps"),
        ({"history": "all"}, "history is 'all'; it should be 'within' or 'preceding'"),
        ({"targets": None}, "targets is None; it should be 'all', 'any' or 'none'"),
        ({"is_autoregressive": "yes"}, "is_autoregressive is 'yes'; it should be a valid boolean"),
        ({"input_lenght": 9}, "input_lenght is not a setting; did you mean 'input_length'"),
    ],
)
def test_options_that_cannot_work_are_said(run, options, message):
    with pytest.raises(SettingsError, match=message):
        open_windows(run[0], "train", **{"input_length": 5, "output_length": 2, **options})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"verify": "sometimes"}, "verify is 'sometimes'; expected one of first_touch, never"),
        ({"disk_bytes": True}, "disk_bytes is True; expected an integer of 1 or more"),
    ],
)
def test_a_wrong_word_about_its_files_never_means_unchecked(run, files, message):
    with pytest.raises(SettingsError, match=message):
        open_windows(run[0], "train", input_length=5, output_length=2, **files)


def test_windows_that_do_not_exist_are_index_errors(run):
    windows = open_windows(run[0], "train", input_length=5, output_length=2)

    for number in (-1, len(windows)):
        with pytest.raises(IndexError, match=f"window {number} of {len(windows)}"):
            windows.batch([0, number])


def test_what_holds_no_series_is_said(tmp_path, run):
    with raised(InputError, setting="split", value="training"):
        open_windows(run[0], "training", input_length=5, output_length=2)
    (tmp_path / "raw.jsonl").write_text(
        "".join(f'{{"a": {each}, "t": "2020-01-01"}}\n' for each in range(20))
    )
    headrace.prepare(
        headrace.TemporalSplit(
            source=tmp_path / "raw.jsonl", time="t", entity="a", split_date="2021-01-01"
        ),
        tmp_path / "out",
    )
    with pytest.raises(InputError, match="'temporal_split' and holds no series"):
        open_windows(tmp_path / "out", "train", input_length=5, output_length=2)


def test_missing_attributes_are_an_error_and_never_zero(tmp_path):
    """T11"""
    write_run(tmp_path, without_attribute=4)

    with raised(InputError, remedy='pass static="none"'):
        open_windows(tmp_path, "train", input_length=5, output_length=2)
    windows = open_windows(tmp_path, "train", input_length=5, output_length=2, static="none")
    assert "static" not in windows[0]


@pytest.mark.parametrize(
    "name", ["store/part-00001.arrow", "entities.parquet", "processed_static_features.parquet"]
)
def test_a_changed_byte_is_never_delivered(tmp_path, name):
    write_run(tmp_path)
    path = tmp_path / "runs" / RUN_ID / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    with raised(CorruptShard, remedy="restore it or prepare the run again"):
        open_windows(tmp_path, "train", input_length=5, output_length=2)


def test_a_lost_shard_is_said(tmp_path):
    write_run(tmp_path)
    (tmp_path / "runs" / RUN_ID / "store" / "part-00000.arrow").unlink()

    with raised(CorruptShard, remedy="restore it or prepare the run again"):
        open_windows(tmp_path, "train", input_length=5, output_length=2)
