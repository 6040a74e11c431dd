"""SIGKILL while packing: nothing torn, no half spool used, and the same bytes once the run is made again.

A child process prepares packed sequences and is killed, by itself at a named step or by its parent after a random
while; this process looks at what is left, resumes the run to its end and compares it with an undisturbed one.
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

import pytest
from recipe_cases import packed, sources

import headrace
from headrace.run.events import Event, StageBegan, Step
from tables import digests

TRIALS, WORKERS = 50, 2
ASKED = {"num_shards": 3, "sample": 300, "too_long": "split", "pack_size": 256}
STAGES = ("sample", "tokenise", "pack", "materialise")
LAST_STEPS = ("index.linked", "manifest.linked", "success.linked", "splits.linked", "stage.removed")

CHILD = """
import json, os, signal, sys
from headrace.run.events import Step, TaskDone
from recipe_cases import packed

blend, out, log, asked, step, count, workers = sys.argv[1:]
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
packed(json.loads(blend), out, workers=int(workers), on_event=on_event, **json.loads(asked))
"""
TESTS = Path(__file__).parents[1]
PATHS = os.pathsep.join(map(str, (Path(headrace.__file__).parents[1], TESTS, TESTS / "recipes" / "packed_sequences")))


@functools.cache
def source() -> tuple[Path, ...]:
    """One source for all trials of this process; its files' times are part of the run's identity."""
    import atexit
    import shutil
    import tempfile

    directory = Path(tempfile.mkdtemp(prefix="headrace-packed-kills-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return tuple(sources(directory / "in", files=3, rows=150))


def blend() -> dict:
    one, *others = (str(path) for path in source())
    return {"datasets": [{"name": "one", "path": one}, {"name": "two", "path": others, "weight": 0.5}]}


@functools.cache
def undisturbed() -> tuple[dict[str, str], dict[str, str], int, float]:
    """Digests of the finished run, of its files just before the end, how many files it links, and how long it takes."""
    out = source()[0].parents[1] / "undisturbed"
    before: dict[str, str] = {}
    steps = 0

    def listen(event: Event) -> None:
        nonlocal steps
        if isinstance(event, Step):
            steps += event.name == "shard.linked"
            if event.name == "index.linked":
                (run,) = (out / "runs").iterdir()
                before.update(digests(run))

    finished = packed(blend(), out, workers=WORKERS, on_event=listen, **ASKED)
    process = start(out.with_name("timed"), "none", 1)
    began = time.monotonic()
    process.communicate()
    return digests(finished.run), before, steps, time.monotonic() - began


def start(out: Path, step: str, count: int) -> subprocess.Popen[str]:
    arguments = [json.dumps(blend()), out, f"{out}.log", json.dumps(ASKED), step, count, WORKERS]
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line == "ready\n", process.communicate()[1]
    return process


def kill_at_step(out: Path, step: str, count: int) -> None:
    process = start(out, step, count)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors


def kill_after(out: Path, share: float) -> None:
    took = undisturbed()[3]
    process = start(out, "none", 1)
    time.sleep(share * took)
    process.kill()
    process.communicate()


def check_and_resume(out: Path) -> None:
    """Whatever is visible is whole; the run goes on where it was and ends as if nothing had happened."""
    expected, before, _, _ = undisturbed()
    kept: dict[str, set[int]] = {}
    for run in (out / "runs").iterdir() if (out / "runs").is_dir() else ():
        finished = (run / "manifest.json").exists()
        for path, digest in digests(run).items():
            assert digest in (before.get(path), expected.get(path)), f"torn: {path}"
        for path in sorted((run / "receipts").glob("[!.]*.json")):
            record = json.loads(path.read_bytes())
            kept.setdefault(record["stage"], set()).add(record["number"])
            for each in record["files"]:
                if not (finished and each["path"].startswith("stage/")):
                    assert sha256((run / each["path"]).read_bytes()).hexdigest() == each["digest"], f"torn: {each}"
    log = Path(f"{out}.log")
    announced = log.read_text().splitlines() if log.exists() else []

    events: list[Event] = []
    prepared = packed(blend(), out, workers=WORKERS, on_event=events.append, **ASKED)
    done = {event.stage: event.done for event in events if isinstance(event, StageBegan)}

    assert digests(prepared.run) == expected
    assert headrace.verify(out).problems == []
    if prepared.how == "computed":
        for stage, count in done.items():
            assert count == len(kept.get(stage, set())), f"{stage}: a finished task was done again"
            assert count >= sum(line.startswith(f"{stage} ") for line in announced)


# Every stage is reached: a task of `tokenise` links seven files, one of `pack` two, the others one.
FEW = [("shard.linked", 3), ("shard.written", 11), ("shard.synced", 40), ("shard.linked", 57), ("receipt.linked", 8)]
FEW += [(step, 1) for step in LAST_STEPS]


@pytest.mark.parametrize(("step", "count"), FEW)
def test_a_kill_at_a_named_step_tears_loses_and_doubles_nothing(tmp_path: Path, step: str, count: int) -> None:
    kill_at_step(tmp_path / "out", step, count)

    check_and_resume(tmp_path / "out")


def test_one_run_killed_again_and_again_comes_to_its_end(tmp_path: Path) -> None:
    random_ = random.Random(3)
    for _ in range(4):
        kill_after(tmp_path / "out", random_.random() * 0.9)
        Path(f"{tmp_path / 'out'}.log").unlink(missing_ok=True)

    check_and_resume(tmp_path / "out")


def test_a_spool_that_lost_its_receipt_or_a_byte_is_made_again(tmp_path: Path) -> None:
    kill_at_step(tmp_path / "out", "receipt.linked", 10)
    (run,) = (tmp_path / "out" / "runs").iterdir()
    receipts = sorted((run / "receipts").glob("tokenise-*.json"))
    spools = [json.loads(path.read_bytes())["files"][0]["path"] for path in receipts[:2]]
    receipts[0].unlink()
    data = bytearray((run / spools[1]).read_bytes())
    data[7] ^= 1
    (run / spools[1]).write_bytes(data)

    prepared = packed(blend(), tmp_path / "out", workers=WORKERS, **ASKED)

    assert undisturbed()[0] == digests(prepared.run)


@pytest.mark.faults
def test_a_kill_at_every_named_step_tears_loses_and_doubles_nothing(tmp_path: Path) -> None:
    kills = [(step, count) for count in range(1, undisturbed()[2] + 1) for step in ("shard.synced", "shard.linked")]
    for number, (step, count) in enumerate(kills):
        kill_at_step(tmp_path / str(number), step, count)

        check_and_resume(tmp_path / str(number))


@pytest.mark.faults
def test_kills_at_50_random_instants_tear_lose_and_double_nothing(tmp_path: Path) -> None:
    random_ = random.Random(11)
    for trial in range(TRIALS):
        kill_after(tmp_path / str(trial), random_.random())

        check_and_resume(tmp_path / str(trial))
