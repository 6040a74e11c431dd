"""SIGKILL during each pass: what is visible is whole, finished tasks stay finished, and the same bytes at the end.

A child process prepares histories and kills itself at a named step, or a random while after a pass has begun; this
process looks at what is left, makes the run again and compares it with an undisturbed one.
"""

import atexit
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import pytest
from pings import dealt, random_pings, shards_of, write_pings

import headrace
from headrace.recipes.histories.config import Histories
from headrace.run.events import Event, StageBegan
from headrace.run.prepare import prepare

STAGES = ("gather", "order")
SHARDS, PARTITIONS = 6, 4

CHILD = """
import json, os, signal, sys, threading, time
from headrace.recipes.histories.config import Histories
from headrace.run.events import StageBegan, Step, TaskDone
from headrace.run.prepare import prepare

settings, out, stage, after_s, step, count = sys.argv[1:]
began, seen = {}, 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def on_event(event):
    global seen
    if isinstance(event, StageBegan):
        began[event.stage] = time.monotonic()
        if event.stage == stage:
            timer = threading.Timer(float(after_s), die)
            timer.daemon = True
            timer.start()
    if isinstance(event, Step) and event.name == step:
        seen += 1
        if seen == int(count):
            die()

prepare(Histories(**json.loads(settings)), out, workers=2, on_event=on_event)
print(json.dumps([began["order"] - began["gather"], began["rows"] - began["order"]]))
"""
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(headrace.__file__).parents[1])}


@functools.cache
def asked() -> str:
    """Settings as JSON, over one source for all kills; its files' times are part of the run's identity."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-histories-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    source = write_pings(directory / "in", dealt(random_pings(3, 6000), SHARDS))
    settings = Histories(
        source=source, peer="dst_addr", partitions=PARTITIONS, max_row_bytes=3000, memory_limit=1 << 20, train_ratio=0.6
    )
    record = settings.config()
    record.pop("recipe")
    return json.dumps(record)


def resume(out: Path, events: list[Event]) -> dict[str, bytes]:
    return shards_of(prepare(Histories(**json.loads(asked())), out, workers=2, on_event=events.append))


@functools.cache
def undisturbed() -> tuple[dict[str, bytes], tuple[float, ...]]:
    """The shards of the finished run, and how long each pass takes in a child."""
    out = Path(json.loads(asked())["source"][0]).parent / "undisturbed"
    done = start(out, "none", 0.0, "none", 1)
    assert done.returncode == 0, done.stderr
    return resume(out, []), tuple(json.loads(done.stdout))


def start(out: Path, stage: str, after_s: float, step: str, count: int) -> subprocess.CompletedProcess[str]:
    arguments = [asked(), str(out), stage, str(after_s), step, str(count)]
    command = [sys.executable, "-c", CHILD, *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def check_and_resume(out: Path) -> None:
    """Whatever has a receipt is whole and is not done again; the run ends as if nothing had happened."""
    kept = dict.fromkeys(STAGES, 0)
    for path in sorted(out.glob("runs/*/receipts/[!.]*.json")):
        record = json.loads(path.read_bytes())
        kept[record["stage"]] = kept.get(record["stage"], 0) + 1
        for each in record["files"]:
            whole = path.parents[1] / each["path"]
            assert sha256(whole.read_bytes()).hexdigest() == each["digest"], f"torn: {whole}"
    assert not list(out.glob("runs/*/manifest.json"))

    events: list[Event] = []
    files = resume(out, events)

    assert undisturbed()[0] == files
    assert {event.stage: event.done for event in events if isinstance(event, StageBegan)}["gather"] == kept["gather"]
    assert {event.stage: event.done for event in events if isinstance(event, StageBegan)}["order"] == kept["order"]
    assert not list(out.glob("runs/*/stage"))
    strays = [path for path in out.glob("runs/*/**/.tmp-*") if "stage" not in path.parts]
    headrace.collect(out)
    assert not [path for path in strays if path.exists()]


@pytest.mark.parametrize(
    ("step", "count"),
    [("shard.written", 2), ("receipt.linked", SHARDS), ("shard.linked", SHARDS + 3), ("index.linked", 1)],
)
def test_a_kill_at_a_named_step_tears_loses_and_doubles_nothing(tmp_path: Path, step: str, count: int) -> None:
    undisturbed()
    done = start(tmp_path / "out", "none", 0.0, step, count)

    assert -signal.SIGKILL == done.returncode, done.stderr
    check_and_resume(tmp_path / "out")


def kill_during(out: Path, stage: str, share: float) -> None:
    """Kill at this share of a pass; where the child was quicker than its model, it is killed earlier."""
    after_s = share * undisturbed()[1][STAGES.index(stage)]
    for attempt in range(6):
        done = start(out, stage, after_s / 2**attempt, "none", 1)
        if done.returncode == -signal.SIGKILL and not list(out.glob("runs/*/manifest.json")):
            return
        shutil.rmtree(out)
    pytest.fail("the child was never killed before its end")


@pytest.mark.parametrize("stage", STAGES)
def test_a_kill_at_a_random_instant_of_each_pass(tmp_path: Path, stage: str) -> None:
    kill_during(tmp_path / "out", stage, random.Random(stage).random())

    check_and_resume(tmp_path / "out")


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stage", STAGES)
def test_50_kills_at_random_instants_of_each_pass(tmp_path: Path, stage: str) -> None:
    random_ = random.Random(f"50 {stage}")
    for trial in range(50):
        out = tmp_path / str(trial)
        kill_during(out, stage, random_.random())

        check_and_resume(out)
        shutil.rmtree(out)
