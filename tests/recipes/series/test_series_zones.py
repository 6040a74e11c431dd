"""Times with a zone or an offset are instants, in UTC; times without are UTC as they stand."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import headrace
from headrace.run.prepare import Prepared

BEGIN, ROWS = datetime(2024, 2, 1), 1500  # the clocks of Berlin change on 31 March


def write(path: Path, times: pl.Series) -> Path:
    path.parent.mkdir(parents=True)
    frame = pl.DataFrame(
        {"date": times, "flow": np.arange(len(times)) % 37, "rain": np.arange(len(times)) % 11}
    )
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
    return path.parent


def run(source: Path, out: Path) -> Prepared:
    recipe = headrace.Series(
        source=[source], target="flow", future_features=["rain"], min_train_years=0.01
    )
    return headrace.prepare(recipe, out)


def outputs(prepared: Prepared) -> dict[str, bytes]:
    files = [
        *prepared.run.glob("processed_time_series/**/*.parquet"),
        *prepared.run.glob("store/*"),
    ]
    return {path.relative_to(prepared.run).as_posix(): path.read_bytes() for path in files}


@pytest.mark.slow
def test_one_instant_is_one_time_however_it_is_written(tmp_path: Path) -> None:
    berlin = pl.datetime_range(
        BEGIN, BEGIN + timedelta(hours=ROWS), "1h", time_zone="Europe/Berlin", eager=True
    )
    utc = berlin.dt.convert_time_zone("UTC")
    written = {
        "zoned.parquet": berlin,
        "utc.parquet": utc,
        "naive.parquet": utc.dt.replace_time_zone(None),
        "offset.csv": berlin.dt.strftime("%Y-%m-%dT%H:%M:%S%:z"),
        "naive.csv": utc.dt.strftime("%Y-%m-%d %H:%M:%S"),
    }
    found = []
    for name, times in written.items():
        source = write(tmp_path / name.replace(".", "-") / f"a.{name.rpartition('.')[2]}", times)
        found.append(outputs(run(source, tmp_path / f"out-{name}")))

    assert len(found[0]) > 3
    assert found[0] == found[1] == found[2] == found[3] == found[4]


def test_local_days_are_told_where_their_clocks_change(tmp_path: Path) -> None:
    days = pl.datetime_range(
        BEGIN, BEGIN + timedelta(days=200), "1d", time_zone="Europe/Berlin", eager=True
    )
    with pytest.raises(
        headrace.InputError,
        match="between steps of 1d, .* clocks change are not equal steps in UTC",
    ):
        run(write(tmp_path / "zoned/a.parquet", days), tmp_path / "out")

    assert (
        run(write(tmp_path / "dates/a.parquet", days.dt.date()), tmp_path / "out").how == "computed"
    )


def test_other_times_between_days_are_not_taken_for_that(tmp_path: Path) -> None:
    days = [BEGIN + timedelta(days=day, hours=9 * (day % 50 == 7)) for day in range(200)]
    with pytest.raises(headrace.InputError, match="between steps of 1d") as raised:
        run(write(tmp_path / "in/a.parquet", pl.Series(days)), tmp_path / "out")

    assert "clocks" not in str(raised.value)
