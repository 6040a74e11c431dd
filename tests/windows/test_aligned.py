"""Windows of several frequencies: every value is the one that the readable files have at its moment."""

import pickle
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import headrace
import headrace.windows
from headrace.windows import aligned, open_windows
from raised import raised

DAY, HOUR = np.timedelta64(1, "D"), np.timedelta64(1, "h")
DAYS = {"input_length": 5, "output_length": 2}
HOURS = {"input_length": 30, "output_length": 24}
FIRST = {"a": "2021-01-01T00", "b": "2021-01-03T07"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two gauges by the hour, with outages, and the same by the day; c is by the day alone."""
    folder, draw = tmp_path_factory.mktemp("runs"), np.random.default_rng(0)
    for name, first in FIRST.items():
        rain, flow = draw.random(24 * 60), draw.random(24 * 60)
        rain[24 * 20 : 24 * 20 + 9] = flow[24 * 33] = np.nan
        times = np.datetime64(first, "us") + np.arange(24 * 60) * HOUR
        table = pl.DataFrame({"date": times, "flow": flow, "rain": rain}, nan_to_null=True)
        (folder / "raw").mkdir(exist_ok=True)
        table.write_parquet(folder / f"raw/{name}.parquet")
    asked = {
        "source": folder / "raw", "target": "flow", "features": "rain", "min_train_years": 0.01,
        "train_end": "2021-02-10", "max_imputation_gap_size": 0,
    }  # fmt: skip
    headrace.prepare(headrace.Series(**asked, frequency="1h"), folder / "hours")
    headrace.prepare(headrace.Series(**asked, frequency="1d", resample="mean"), folder / "days")
    return folder


def rows_of(out: Path, split: str) -> dict[tuple[str, np.datetime64], tuple[float, float]]:
    """The scaled flow and rain of each entity and moment."""
    tables = [
        pl.read_parquet(path)
        for path in next((out / "runs").iterdir()).glob(f"processed_time_series/{split}/*")
    ]
    return {(e, np.datetime64(t, "us")): (y, x) for e, t, y, x in pl.concat(tables).iter_rows()}


def test_they_are_the_whole_windows_of_both_runs_that_end_together(runs: Path) -> None:
    both = aligned(
        open_windows(runs / "days", **DAYS), hourly=open_windows(runs / "hours", **HOURS)
    )
    days, hours = rows_of(runs / "days", "train"), rows_of(runs / "hours", "train")
    expected = []
    for entity, day in sorted(days):
        input_days = [(entity, day + at * DAY) for at in range(-4, 3)]
        input_hours = [(entity, day + DAY + at * HOUR) for at in range(-30, 24)]
        if all(each in days for each in input_days) and all(each in hours for each in input_hours):
            coarse = np.array([days[each] for each in input_days], np.float32)
            fine = np.array([hours[each] for each in input_hours], np.float32)
            needed = (coarse[:, 1], coarse[5:, 0], fine[:, 1], fine[30:, 0])
            if not np.isnan(np.concatenate(needed)).any():
                expected.append((entity, day, coarse, fine))
    batch = both.batch(range(len(both)))

    assert len(expected) > 30
    assert [each[0] for each in expected] == both.entity_names(batch["entity"])
    np.testing.assert_array_equal([each[1] for each in expected], batch["input_end_date"])
    np.testing.assert_array_equal([each[2][:5, 1:] for each in expected], batch["X"])
    np.testing.assert_array_equal([each[2][5:, 0] for each in expected], batch["y"])
    np.testing.assert_array_equal([each[3][:30, 1:] for each in expected], batch["X_hourly"])
    np.testing.assert_array_equal([each[3][30:, 0] for each in expected], batch["y_hourly"])
    np.testing.assert_array_equal([each[3][30:, 1:] for each in expected], batch["future_hourly"])
    np.testing.assert_array_equal(
        batch["input_end_date"] + 23 * HOUR, batch["input_end_date_hourly"]
    )


def test_they_stream_as_any_windows_do_mapped_and_in_chunks(runs: Path) -> None:
    days = headrace.windows.open(runs / "days", "test", **DAYS)
    both = aligned(days, hourly=headrace.windows.open(runs / "hours", "test", **HOURS))
    expected = both.windows.batch(range(len(both)))["X_hourly"]

    for more in ({}, {"chunk_size": 2}, {"shuffle": "nearby"}):
        stream = both.stream(batch_size=7, seed=3, batch_format="numpy", **more)
        found = np.concatenate([batch["X_hourly"][batch["valid"]] for batch in stream])
        assert sorted(map(bytes, expected)) == sorted(map(bytes, found))
    copied = pickle.loads(pickle.dumps(both.windows))
    assert copied.identity == both.windows.identity != days.windows.identity
    np.testing.assert_array_equal(expected, copied.batch(range(len(copied)))["X_hourly"])


def test_what_cannot_be_aligned_is_refused_with_advice(runs: Path) -> None:
    days, hours = (
        open_windows(runs / name, **rule) for name, rule in (("days", DAYS), ("hours", HOURS))
    )

    with raised(headrace.SettingsError, setting="daily", remedy="give finer ones"):
        aligned(hours, daily=days)
    with raised(headrace.SettingsError, setting="hourly", value="test"):
        aligned(days, hourly=open_windows(runs / "hours", "test", **HOURS))
    with raised(headrace.SettingsError, setting="finer"):
        aligned(days)
    late = open_windows(runs / "hours", input_length=24 * 15, output_length=1)
    with pytest.raises(
        headrace.InputError, match="none ends with one of each finer run .* same train_end"
    ):
        aligned(days.of_entities(np.array([False, False])), hourly=late)
