"""SIGKILL at any instant: nothing torn, nothing lost, nothing doubled, and the same bytes once the run is made again.

A child process runs `prepare` and is killed, by itself at a named step or by its parent after a random while; this
process looks at what is left, resumes the run to its end and compares it with an undisturbed one.
"""

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.run.events import Event, StageBegan, Step
from tables import digests, small_source, split

TRIALS = 200
SHARDS, ROWS, WORKERS = 6, 2000, 2
ASKED: dict[str, dict[str, Any]] = {
    "sharded csv.gz": {"compression": "gz"},
    "single parquet": {"layout": "single", "format": "parquet"},
}
FILE_STEPS = ("shard.written", "shard.synced", "shard.linked")
LAST_STEPS = ("index.linked", "manifest.linked", "success.linked", "splits.linked", "stage.removed")

CHILD = """
import json, os, signal, sys
from headrace.run.events import Step, TaskDone
from tables import split

source, out, log, asked, step, count, workers = sys.argv[1:]
log = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
seen = 0
def on_event(event):
    global seen
    if isinstance(event, TaskDone):
        os.write(log, f"{event.stage} {event.subject}\\n".encode())
    if isinstance(event, Step) and event.name == step:
        seen += 1
        if seen >= int(count):
            os.kill(os.getpid(), signal.SIGKILL)
print("ready", flush=True)
split(source, out, workers=int(workers), on_event=on_event, **json.loads(asked))
"""
PATHS = os.pathsep.join([str(Path(headrace.__file__).parents[1]), str(Path(__file__).parents[1])])


@functools.cache
def source() -> Path:
    """One source for all trials of this process; its files' times are part of the run's identity."""
    import atexit
    import shutil
    import tempfile

    directory = Path(tempfile.mkdtemp(prefix="headrace-kills-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return small_source(directory / "in", count=SHARDS, rows=ROWS, entities=300)


@functools.cache
def undisturbed(asked: str) -> tuple[dict[str, str], dict[str, str], int]:
    """Digests of the finished run, of its files just before the end, and the steps of one kind it takes."""
    out = source().parent / f"undisturbed {asked}"
    before: dict[str, str] = {}
    steps = 0

    def listen(event: Event) -> None:
        nonlocal steps
        if isinstance(event, Step):
            steps += event.name == "shard.linked"
            if event.name == "index.linked":
                (run,) = (out / "runs").iterdir()
                before.update(digests(run))

    finished = split(source(), out, workers=WORKERS, on_event=listen, **ASKED[asked])
    return digests(finished.run), before, steps


def start(out: Path, asked: str, step: str, count: int) -> subprocess.Popen[str]:
    arguments = [source(), out, out.parent / f"{out.name}.log", json.dumps(ASKED[asked]), step, count, WORKERS]
    command = [sys.executable, "-c", CHILD, *map(str, arguments)]
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": PATHS}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@functools.cache
def duration_s(asked: str) -> float:
    """How long an undisturbed child works."""
    process = start(source().parent / f"timed {asked}", asked, "none", 1)
    began = time.monotonic()
    process.communicate()
    return time.monotonic() - began


def kill_at_step(out: Path, asked: str, step: str, count: int) -> None:
    process = start(out, asked, step, count)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors


def kill_after(out: Path, asked: str, share: float) -> None:
    process = start(out, asked, "none", 1)
    time.sleep(share * duration_s(asked))
    process.kill()
    process.communicate()


def check_and_resume(out: Path, asked: str) -> None:
    """Whatever is visible is whole; the run goes on where it was and ends as if nothing had happened."""
    expected, before, _ = undisturbed(asked)
    runs = list((out / "runs").iterdir()) if (out / "runs").is_dir() else []
    kept: dict[str, set[int]] = {}
    for run in runs:
        finished = (run / "manifest.json").exists()
        for path, digest in digests(run).items():
            assert digest in (before.get(path), expected.get(path)), f"torn: {path}"
        for path in sorted((run / "receipts").glob("[!.]*.json")):
            record = json.loads(path.read_bytes())
            kept.setdefault(record["stage"], set()).add(record["number"])
            for each in record["files"]:
                whole = run / each["path"]
                if not (finished and each["path"].startswith("stage/")):
                    assert sha256(whole.read_bytes()).hexdigest() == each["digest"], f"torn: {whole}"
    log = out.parent / f"{out.name}.log"
    announced = set(log.read_text().splitlines()) if log.exists() else set()

    events: list[Event] = []
    prepared = split(source(), out, workers=WORKERS, on_event=events.append, **ASKED[asked])
    done = {event.stage: event.done for event in events if isinstance(event, StageBegan)}

    assert digests(prepared.run) == expected
    if prepared.how == "computed":
        for stage, count in done.items():
            assert count == len(kept.get(stage, set())), f"{stage}: a finished task was done again"
            assert count >= sum(line.startswith(f"{stage} ") for line in announced)


def named_kills(asked: str) -> list[tuple[str, int]]:
    """Every step, at every file or receipt of a run."""
    layout = ASKED[asked].get("layout", "sharded")
    files = 2 * SHARDS + 3 * SHARDS + (3 if layout == "single" else 0)
    tasks = 2 * SHARDS + (3 if layout == "single" else 0)
    kills = [(step, count) for count in range(1, files + 1) for step in FILE_STEPS]
    return kills + [("receipt.linked", count) for count in range(1, tasks + 1)] + [(step, 1) for step in LAST_STEPS]


# (settings, step, count): 21 named kills that reach into every stage; 29 more come at random instants
FEW = [("sharded csv.gz", step, count) for step in FILE_STEPS for count in (1, 13, 29)]
FEW += [("single parquet", step, count) for step, count in zip(FILE_STEPS, (14, 30, 32), strict=True)]
FEW += [("sharded csv.gz", "receipt.linked", 6), ("sharded csv.gz", "receipt.linked", 11)]
FEW += [("single parquet", "receipt.linked", 13), ("sharded csv.gz", "manifest.linked", 1)]
FEW += [("single parquet", step, 1) for step in LAST_STEPS]
RANDOM_KILLS, GROUPS = 29, 4


@pytest.mark.parametrize(("asked", "step", "count"), FEW)
def test_a_kill_at_a_named_step_tears_loses_and_doubles_nothing(
    tmp_path: Path, asked: str, step: str, count: int
) -> None:
    kill_at_step(tmp_path / "out", asked, step, count)

    check_and_resume(tmp_path / "out", asked)


@pytest.mark.parametrize("group", range(GROUPS))
def test_kills_at_random_instants_tear_lose_and_double_nothing(tmp_path: Path, group: int) -> None:
    random_ = random.Random(group)
    for trial in range(group, RANDOM_KILLS, GROUPS):
        kill_after(tmp_path / str(trial), list(ASKED)[trial % 2], random_.random())

        check_and_resume(tmp_path / str(trial), list(ASKED)[trial % 2])


@pytest.mark.parametrize("seed", range(2))
def test_one_run_killed_again_and_again_comes_to_its_end(tmp_path: Path, seed: int) -> None:
    random_, asked = random.Random(100 + seed), list(ASKED)[seed]
    for _ in range(3):
        kill_after(tmp_path / "out", asked, random_.random() * 0.8)
        (tmp_path / "out.log").unlink(missing_ok=True)

    check_and_resume(tmp_path / "out", asked)


@pytest.mark.faults
@pytest.mark.parametrize("asked", ASKED)
def test_a_kill_at_every_named_step_tears_loses_and_doubles_nothing(tmp_path: Path, asked: str) -> None:
    for number, (step, count) in enumerate(named_kills(asked)):
        if count > undisturbed(asked)[2] and step in FILE_STEPS:
            continue
        kill_at_step(tmp_path / str(number), asked, step, count)

        check_and_resume(tmp_path / str(number), asked)


@pytest.mark.faults
def test_kills_at_200_random_instants_tear_lose_and_double_nothing(tmp_path: Path) -> None:
    random_ = random.Random(7)
    for trial in range(TRIALS):
        asked = random_.choice(list(ASKED))
        kill_after(tmp_path / str(trial), asked, random_.random())

        check_and_resume(tmp_path / str(trial), asked)
