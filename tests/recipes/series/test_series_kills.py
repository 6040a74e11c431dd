"""SIGKILL during each stage: what is visible is whole, finished tasks stay finished, and the same bytes at the end.

A child process prepares series and kills itself at a named step, or a random while after a stage has begun; this
process looks at what is left, makes the run again and compares it with an undisturbed one.
"""

import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from basins import a_basin, files_of, parquet, settings

import headrace
from headrace.run.events import Event, StageBegan
from headrace.run.prepare import prepare
from headrace.series.settings import Series
from places import new_place

STAGES = ("spread", "clean", "fit", "write", "finish")

CHILD = """
import itertools, json, os, signal, sys, threading, time
from headrace.series.settings import Series
from headrace.run.events import StageBegan, Step
from headrace.run.prepare import prepare

settings, out, stage, after_s, step, count = sys.argv[1:]
began, number = {}, itertools.count(1)  # two threads hear: each number comes once

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def on_event(event):
    if isinstance(event, StageBegan):
        began[event.stage] = time.monotonic()
        if event.stage == stage:
            timer = threading.Timer(float(after_s), die)
            timer.daemon = True
            timer.start()
    if isinstance(event, Step) and event.name == step and next(number) == int(count):
        die()

prepare(Series(**json.loads(settings)), out, workers=2, on_event=on_event)
times = [*began.values(), time.monotonic()]
print(json.dumps({name: after - before for name, before, after in zip(began, times, times[1:])}))
"""
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(headrace.__file__).parents[1])}


@functools.cache
def asked() -> str:
    """Settings as JSON, over one source for all kills; its files' times are part of the run's identity."""
    directory = new_place()
    basins = {f"g{place}": a_basin(place, 80) for place in range(8)}
    every = sorted((row.date, name, row) for name, rows in basins.items() for row in rows)
    for part in range(3):
        rows = every[part::3]
        parquet(
            directory / "in" / f"p{part}.parquet",
            [row for _, _, row in rows],
            [name for _, name, _ in rows],
        )
    unified = {"strategy": "unified", "pipeline": ["StandardScaler"], "fit_on_n_entities": 3}
    asked = settings(
        directory / "in",
        entity="gauge",
        frequency="infer",
        preprocessing_configs={"features": unified},
    )
    record = asked.config()
    record.pop("recipe")
    return json.dumps(record)


def resume(out: Path, events: list[Event]) -> dict[str, bytes]:
    return files_of(prepare(Series(**json.loads(asked())), out, workers=2, on_event=events.append))


@functools.cache
def undisturbed() -> tuple[dict[str, bytes], dict[str, float]]:
    """The files of the finished run, and how long each stage takes in a child."""
    out = Path(json.loads(asked())["source"][0]).parent / "undisturbed"
    done = start(out, "none", 0.0, "none", 1)
    assert done.returncode == 0, done.stderr
    return resume(out, []), json.loads(done.stdout)


def start(
    out: Path, stage: str, after_s: float, step: str, count: int
) -> subprocess.CompletedProcess[str]:
    arguments = [asked(), str(out), stage, str(after_s), step, str(count)]
    command = [sys.executable, "-c", CHILD, *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def check_and_resume(out: Path) -> None:
    """Whatever has a receipt is whole and is not done again; the run ends as if nothing had happened."""
    kept: dict[str, int] = {}
    for path in sorted(out.glob("runs/*/receipts/[!.]*.json")):
        record = json.loads(path.read_bytes())
        kept[record["stage"]] = kept.get(record["stage"], 0) + 1
        for each in record["files"]:
            whole = path.parents[1] / each["path"]
            assert sha256(whole.read_bytes()).hexdigest() == each["digest"], f"torn: {whole}"
    assert not list(out.glob("runs/*/_SUCCESS"))

    events: list[Event] = []
    files = resume(out, events)

    found = {name: data for name, data in files.items() if "/.tmp-" not in name}
    assert undisturbed()[0] == found
    done = {event.stage: event.done for event in events if isinstance(event, StageBegan)}
    assert {stage: kept.get(stage, 0) for stage in done} == done
    assert not list(out.glob("runs/*/stage"))
    headrace.collect(out)
    assert not list(out.glob("runs/*/**/.tmp-*"))


@pytest.mark.slow
@pytest.mark.smoke("shard.linked-30")
@pytest.mark.parametrize(
    ("step", "count"), [("receipt.linked", 5), ("shard.linked", 30), ("index.linked", 1)]
)
def test_a_kill_at_a_named_step_tears_loses_and_doubles_nothing(
    tmp_path: Path, step: str, count: int
) -> None:
    undisturbed()
    done = start(tmp_path / "out", "none", 0.0, step, count)

    assert -signal.SIGKILL == done.returncode, done.stderr
    check_and_resume(tmp_path / "out")


def kill_during(out: Path, stage: str, share: float) -> None:
    """Kill at this share of a stage; where the child was quicker than its model, it is killed earlier."""
    after_s = share * undisturbed()[1][stage]
    for attempt in range(12):
        done = start(out, stage, after_s / 2**attempt, "none", 1)
        if done.returncode == -signal.SIGKILL and not list(out.glob("runs/*/manifest.json")):
            return
        shutil.rmtree(out)
    pytest.fail("the child was never killed before its end")


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["write"])
def test_a_kill_at_a_random_instant_of_a_stage(tmp_path: Path, stage: str) -> None:
    kill_during(tmp_path / "out", stage, random.Random(stage).random())
    check_and_resume(tmp_path / "out")


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(50))
def test_kills_at_random_instants_one_after_another(tmp_path: Path, seed: int) -> None:
    """A run that is killed again and again still comes to the same bytes."""
    rng = random.Random(seed)
    kill_during(tmp_path / "out", rng.choice(STAGES), rng.random())
    if seed % 3 == 0:
        start(
            tmp_path / "out",
            rng.choice(STAGES),
            rng.random() * undisturbed()[1]["write"],
            "none",
            1,
        )
        if list(tmp_path.glob("out/runs/*/manifest.json")):
            assert undisturbed()[0] == resume(tmp_path / "out", [])
            return
    check_and_resume(tmp_path / "out")


def test_two_processes_at_once_end_in_one_run(tmp_path: Path) -> None:
    """T15: without a lock two jobs of one identity interleaved. The second one ends busy, or finds the run finished."""
    undisturbed()
    command = [
        sys.executable,
        "-c",
        CHILD,
        asked(),
        str(tmp_path / "out"),
        "none",
        "0",
        "none",
        "1",
    ]
    children = [
        subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    ends = [(child.communicate()[1], child.returncode) for child in children]

    assert 0 in [code for _, code in ends]
    for error, code in ends:
        assert code == 0 or "RunBusy" in error, error
    assert undisturbed()[0] == resume(tmp_path / "out", [])
