"""The example under Ray Train: a split on Ray, two workers of which one dies, and every row of each epoch once."""

import importlib
import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "ray_train" / "train.py"
DATA = ROOT.parent / "shared" / "data" / "job1-cdnow"
PACKAGE = importlib.util.find_spec("lifetimes") is not None
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(Path(headrace.__file__).parents[1]),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
}


def run(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not PACKAGE and not DATA.is_dir(),
    reason="the purchases are neither installed (pip install --no-deps lifetimes) nor beside the project",
)
def test_a_worker_dies_and_every_row_comes_exactly_once(tmp_path):
    done = run("--out", tmp_path / "out", "--limit", 20_000, *(() if PACKAGE else ("--data", DATA)))
    assert done.returncode == 0, done.stderr
    rows = headrace.open(tmp_path / "out" / "split").manifest.splits["train"].rows
    epochs = re.findall(
        r"epoch (\d): ([\d,]+) rows exactly once on 2 workers, loss ([\d.]+)", done.stdout
    )
    (resumed,) = re.findall(
        r"a worker died; epoch (\d) went on behind its first ([\d,]+) rows", done.stdout
    )

    assert [("0", f"{rows:,}"), ("1", f"{rows:,}")] == [
        (number, count) for number, count, _ in epochs
    ]
    assert float(epochs[0][2]) > float(epochs[1][2])
    assert resumed in (
        ("1", "5,120"),
        ("1", "0"),
    )  # five steps, or the checkpoint before them if Ray was that slow


@pytest.mark.slow
def test_without_the_data_the_example_says_what_to_do(tmp_path):
    done = run("--out", tmp_path / "out", "--data", tmp_path)

    assert done.returncode == 1
    assert (
        "CDNOW_master.txt.gz does not exist; say where CDNOW_master.txt.gz is with --data DIR"
        in done.stderr
    )


@pytest.mark.slow
def test_the_purchases_are_those_of_the_package(tmp_path, monkeypatch):
    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "lifetimes", raising=False)
    with pytest.raises(SystemExit, match="pip install --no-deps lifetimes"):
        script["write_raw"](None, tmp_path / "raw", None)
    (tmp_path / "lifetimes" / "datasets").mkdir(parents=True)
    (tmp_path / "lifetimes" / "__init__.py").write_text(
        "raise ImportError('it is not to be imported')"
    )
    lines = [
        "id date number value",
        " 00001 19970101  1   11.77",
        " 00002 19970212  2   23.50",
        " 00001 19970118  1 9.00",
    ]
    (tmp_path / "lifetimes" / "datasets" / "CDNOW_master.txt").write_text("\r\n".join(lines))
    importlib.invalidate_caches()
    written = script["write_raw"](None, tmp_path / "raw", None)

    assert 3 == written
    assert [
        [
            "customer,date,discs,dollars,row_id",
            "00001,1997-01-01,1,11.77,0",
            "00001,1997-01-18,1,9.00,2",
        ],
        ["customer,date,discs,dollars,row_id", "00002,1997-02-12,2,23.50,1"],
    ] == [path.read_text().splitlines() for path in sorted((tmp_path / "raw").iterdir())]
