"""The example of Caravan: real basins on two ranks, each test window once, and an efficiency for each basin."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "caravan" / "train.py"
DATA = ROOT.parent / "shared" / "data" / "job4-caravan"
BASIN = re.compile(r"(camels\w+) +(\S+) \.\. (\S+) +([\d,]+) windows +NSE +(-?[\d.]+)")

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the basins of Caravan are not beside the project: {DATA}")


def run(*arguments):
    command = [sys.executable, str(SCRIPT), "--small", *map(str, arguments)]
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}  # more would wait for each other where other tests run
    return subprocess.run(command, capture_output=True, text=True, check=False, env=threads)


@needs_data
def test_two_ranks_learn_more_of_every_basin_than_its_mean(tmp_path):
    done = run("--data", DATA, "--out", tmp_path, "--epochs", 6, "--ranks", 2)

    assert done.returncode == 0, done.stderr
    found = {name: (int(windows), float(nse)) for name, _, _, windows, nse in BASIN.findall(done.stdout)}
    expected = {
        "camelsch_4001": 153,
        "camelsch_4003": 176,
        "camelses_1414": 106,
        "camelslx_054": 78,
        "camelslx_055": 68,
    }
    assert expected == {name: windows for name, (windows, _) in found.items()}
    assert sum(nse for _, nse in found.values()) / 5 > 0.05  # a few steps; the mean of a basin has 0
    assert find_spec("matplotlib") is None or (tmp_path / "hydrographs.png").stat().st_size > 10_000


def test_without_the_data_it_says_what_to_do(tmp_path):
    done = run("--data", tmp_path, "--out", tmp_path / "out")

    assert done.returncode == 1
    assert "--data DIR" in done.stderr
