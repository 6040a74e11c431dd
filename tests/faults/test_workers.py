"""A DataLoader worker that the kernel kills is noticed, and the loop ends with an error instead of waiting for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fault_recipes import undisturbed
from fault_table import note
from forks import PATHS

PATIENCE_S, TRIALS = 100, 100
CHILD = """
import json, multiprocessing, os, signal, sys, time
import headrace

dataset = headrace.open(sys.argv[1]).torch_dataset("train", batch_size=4, num_workers=2, columns=["row"])
for trial in range(int(sys.argv[2])):
    loader = dataset.data_loader(method="fork")
    batches = iter(loader)
    next(batches)
    victim = sorted(each.pid for each in multiprocessing.active_children())[trial % 2]
    os.kill(victim, signal.SIGKILL)
    began, error = time.monotonic(), ""
    try:
        for _ in batches:
            pass
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    print(json.dumps({"victim": victim, "after_s": time.monotonic() - began, "error": error}), flush=True)
    del batches, loader
"""


def killed_workers(trials: int) -> list[dict]:
    out = undisturbed("split csv.gz").out
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, str(out), str(trials)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S * trials,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(told: list[dict], trials: int) -> None:
    assert trials == len(told)
    for each in told:
        assert str(each["victim"]) in each["error"], each
        assert each["after_s"] < PATIENCE_S
        note("DataLoader worker killed", after_s=round(each["after_s"], 2))


def test_a_killed_worker_is_an_error_and_no_hang(tmp_path: Path) -> None:
    check(killed_workers(2), 2)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_100_killed_workers_are_errors_and_no_hang() -> None:
    check(killed_workers(TRIALS), TRIALS)
