"""The example of streamflow: real basins on two ranks, each test window once, and an efficiency for each basin."""

import importlib
import os
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest

import headrace

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "caravan"
DATA = ROOT.parent / "shared" / "data" / "job4-caravan"
BASIN = re.compile(r"(\w+_\d+) +(\S+) \.\. (\S+) +([\d,]+) windows +NSE +(-?[\d.]+)")
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(Path(headrace.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",  # more would wait for each other where other tests run
}

needs_package = pytest.mark.skipif(
    find_spec("lumod") is None,
    reason="the catchments are not installed: pip install --no-deps lumod",
)
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"the basins of Caravan are not beside the project: {DATA}"
)


@pytest.fixture(scope="module")
def sources():
    return runpy.run_path(str(EXAMPLE / "sources.py"))


def run(*arguments):
    command = [sys.executable, str(EXAMPLE / "train.py"), "--small", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)


@pytest.mark.slow
@needs_package
def test_two_ranks_learn_more_of_every_catchment_than_its_mean(tmp_path):
    done = run("--out", tmp_path, "--epochs", 6, "--ranks", 2)

    assert done.returncode == 0, done.stderr
    found = {
        name: (int(windows), float(nse)) for name, _, _, windows, nse in BASIN.findall(done.stdout)
    }
    expected = {
        "catchment_1": 137,
        "catchment_2": 41,
        "catchment_3": 19,
    }  # each once, from both ranks
    assert expected == {name: windows for name, (windows, _) in found.items()}
    assert (
        sum(nse for _, nse in found.values()) / 3 > 0.05
    )  # a few steps; the mean of a basin has 0
    assert (
        find_spec("matplotlib") is None
        or (tmp_path / "catchments" / "hydrographs.png").stat().st_size > 10_000
    )


@needs_package
def test_catchments_have_the_days_of_the_package_and_flow_in_millimetres(sources, tmp_path):
    series = sources["series_of"](None, tmp_path / "raw")
    written = {path.name: path.stat().st_mtime_ns for path, _ in series.source_files()}
    days = pl.read_csv(tmp_path / "raw" / "timeseries" / "catchment_1.csv")
    again = sources["series_of"](None, tmp_path / "raw")

    assert ["date", "prec", "tmean", "streamflow"] == days.columns
    assert ("1981-01-01", "2010-12-31", 10_957) == (days["date"][0], days["date"][-1], len(days))
    assert days["streamflow"][0] == pytest.approx(
        0.68 * 86_400 / 382e6 * 1000, abs=1e-5
    )  # m³ a day over m², in mm
    assert series == again
    assert written == {
        path.name: path.stat().st_mtime_ns for path, _ in again.source_files()
    }  # the run is found


@needs_data
@pytest.mark.slow
def test_basins_of_a_directory_are_found_and_each_test_window_comes_once(tmp_path):
    done = run("--data", DATA, "--out", tmp_path, "--epochs", 2)

    assert done.returncode == 0, done.stderr
    expected = {
        "camelsch_4001": 153,
        "camelsch_4003": 176,
        "camelses_1414": 106,
        "camelslx_054": 78,
        "camelslx_055": 68,
    }
    assert expected == {name: int(windows) for name, _, _, windows, _ in BASIN.findall(done.stdout)}


def test_without_the_data_it_says_what_to_do(sources, tmp_path):
    with pytest.raises(SystemExit, match="with --data DIR"):
        sources["series_of"](tmp_path, tmp_path / "raw")


def test_without_the_package_it_says_what_to_do(sources, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "lumod", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(SystemExit, match="pip install --no-deps lumod"):
        sources["series_of"](None, tmp_path / "raw")
