"""The example of histories: real pings, a small transformer, 50 steps; the loss falls and stopping changes nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "histories" / "train.py"
DATA = ROOT.parent / "shared" / "data" / "job3-ripe-rtt-labelled"

needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"the RIPE Atlas pings are not beside the project: {DATA}")


def run(*arguments):
    command = [sys.executable, str(SCRIPT), "--batch-size", "4", *map(str, arguments)]
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}  # more would wait for each other where other tests run
    return subprocess.run(command, capture_output=True, text=True, check=False, env=threads)


def losses(text):
    return {int(step): float(loss) for step, loss in re.findall(r"step +(\d+): loss ([\d.]+)", text)}


@needs_data
def test_the_loss_falls_and_both_loaders_bring_the_same(tmp_path):
    whole = run("--data", DATA, "--out", tmp_path)
    by_grain = run("--data", DATA, "--out", tmp_path, "--loader", "grain", "--steps", 12)

    assert whole.returncode == 0, whole.stderr
    assert by_grain.returncode == 0, by_grain.stderr
    found = losses(whole.stdout)
    assert [0, 10, 20, 30, 40, 49] == sorted(found)
    assert found[0] > 5
    assert found[49] < 3
    assert found[10] == pytest.approx(losses(by_grain.stdout)[10], abs=0.002)  # 12 steps stop at 6, 50 at 25
    assert float(re.search(r"([\d.]+)% padding", whole.stdout)[1]) < 5


def test_without_the_data_it_says_what_to_do(tmp_path):
    done = run("--data", tmp_path, "--out", tmp_path / "out")

    assert done.returncode == 1
    assert "--data DIR" in done.stderr
