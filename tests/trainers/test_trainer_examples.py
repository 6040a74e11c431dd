"""Every script of examples/trainers, on 49 rows: stopped inside the epoch, and resumed on another number of ranks."""

import importlib.util
import os
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from script_processes import run_script

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "trainers"
NEEDS = {
    "ddp": "torch",
    "fsdp2": "torch",
    "accelerate_train": "accelerate",
    "lightning_train": "lightning",
    "stateful_dataloader": "torchdata",
    "ray_train": "ray",
    "deepspeed_train": "deepspeed",
    "composer_train": "composer",
}
COMPOSER = Path(
    f"{sys.prefix}-composer/bin/python"
)  # an environment of its own, as it needs another torch
ENVIRONMENT = os.environ | {
    "PATH": f"{COMPOSER.parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(ROOT / "src"),
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
}
OWN = {"hf_trainer", "trl_sft", "llama_factory", "elastic", "anneal"}  # with tests of their own
STOPPED = {
    1: "1 ranks, 2 steps: 16 of 49 rows, none twice\n",
    2: "2 ranks, 2 steps: 32 of 49 rows, none twice\n",
}
WHOLE = {
    1: "1 ranks, 7 steps: 49 of 49 rows, none twice\n",
    2: "2 ranks, 4 steps: 49 of 49 rows, none twice\n",
}
REST = {
    1: "1 ranks, 3 steps: 49 of 49 rows, none twice\n",
    2: "2 ranks, 3 steps: 49 of 49 rows, none twice\n",
}


def run(name, folder, processes, *flags):
    """The last line of a script on so many ranks."""
    script = str(SCRIPTS / f"{name}.py")
    if name == "composer_train":
        if not COMPOSER.exists():
            pytest.skip("needs Composer beside this environment: make trainer-composer_train")
        command = [str(COMPOSER.parent / "composer"), "-n", str(processes), script]
    elif importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    elif name == "ray_train":
        command = [sys.executable, script, "--ranks", str(processes)]
    elif name == "deepspeed_train":
        ranks = ["--standalone", "--nproc-per-node", str(processes)]
        command = [sys.executable, "-m", "torch.distributed.run", *ranks, script]
    else:
        return run_script(folder, processes, [script, *flags])
    done = subprocess.run(
        [*command, *flags], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines(keepends=True) if " rows, " in line][
        -1
    ]  # launchers print too


def test_every_script_is_run_here_and_by_make_and_is_on_the_page():
    (made,) = re.findall(
        r"^TRAINERS := (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE
    )
    page = (SCRIPTS / "README.md").read_text("utf-8")

    assert sorted([*NEEDS, *OWN, "rows"]) == sorted(path.stem for path in SCRIPTS.glob("*.py"))
    assert sorted(NEEDS) == sorted(made.split())
    assert [name for name in NEEDS if f"`{name}.py`" not in page] == []


@pytest.mark.slow
@pytest.mark.smoke("0-2-ddp", "0-2-accelerate_train")
@pytest.mark.parametrize("name", NEEDS)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stopped_epoch_goes_on_on_other_ranks_and_every_row_comes_once(
    tmp_path, name, processes, workers
):
    flags = ["--workers", str(workers), "--checkpoint", "saved"]

    assert STOPPED[processes] == run(name, tmp_path, processes, *flags, "--stop-after", "2")
    assert REST[3 - processes] == run(name, tmp_path, 3 - processes, *flags)


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
@pytest.mark.parametrize("processes", [1, 2])
def test_an_epoch_that_nothing_stops_has_every_row_once(tmp_path, name, processes):
    assert WHOLE[processes] == run(name, tmp_path, processes)


@pytest.fixture
def rows(monkeypatch, tmp_path):
    """The module that the scripts share."""
    spec = importlib.util.spec_from_file_location("rows", SCRIPTS / "rows.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "rows", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("given", "stop_after", "said"),
    [
        ([*range(49), 3], None, "49 of 49 rows, 1 twice"),
        ([*range(16), 3], 2, "16 of 49 rows, 1 twice"),
        (list(range(48)), None, "48 of 49 rows, none twice"),
    ],
)
def test_a_row_that_comes_twice_or_never_fails_the_script(rows, tmp_path, given, stop_after, said):
    seen = rows.Seen()
    seen.add({"row": torch.tensor(given), "valid": torch.ones(len(given), dtype=torch.bool)})
    options = Namespace(shards=rows.write_shards(None, tmp_path), stop_after=stop_after)

    with pytest.raises(SystemExit, match=said):
        seen.report(options)


def test_purchases_are_sharded_by_month_and_each_is_a_row(rows):
    header = "id date number value"
    lines = [" 00001 19970101  1   11.77", " 00002 19980212  2   23.50", " 00001 19970218  1 9.00"]
    splits = rows.purchases("\r\n".join([header, *lines]))

    assert {"train": [[0], [2]], "val": [[1]]} == {
        name: [table["row"].to_pylist() for table in tables] for name, tables in splits.items()
    }


def test_without_the_purchases_the_scripts_say_what_to_do(rows, tmp_path):
    with pytest.raises(SystemExit, match="say where CDNOW_master.txt.gz is with --data DIR"):
        rows.write_shards(tmp_path, tmp_path / "out")
