"""Runs that are killed, and what must hold of what they leave.

The child prepares, and dies by SIGKILL: by itself at a named step, or by its parent at a random instant. Then: every
visible name is whole, the run goes on where it was, at most the tasks that were under way are done again, and it ends
with the bytes of a run that nothing happened to.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import re
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fault_recipes import WORKERS, Settings, make, place, settings_of, undisturbed
from forks import Child, server

import headrace
from headrace.run.events import Event, StageBegan, Step, StepName, TaskDone
from headrace.run.receipts import FileRecord, has_recorded_bytes
from headrace.storage.local import strays
from tables import digests

Task = tuple[str, int]
LAST_STEPS: tuple[StepName, ...] = (
    "index.linked",
    "manifest.linked",
    "success.linked",
    "splits.linked",
    "stage.removed",
)
_TEMPORARY = re.compile(r"\.tmp-(.+)-[0-9a-f]{16}")


def child(name: str, settings: Settings, out: str, step: str, count: int, workers: int) -> None:
    """Prepare; die at the count-th step of this name. Finished tasks are noted in a file that outlives a kill."""
    log = os.open(f"{out}.log", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    number = itertools.count(1)  # several threads hear: each number comes once

    def on_event(event: Event) -> None:
        if isinstance(event, TaskDone):
            os.write(log, f"{event.stage}\n".encode())
        if isinstance(event, Step) and event.name == step and next(number) >= count:
            os.kill(os.getpid(), signal.SIGKILL)

    make(name, settings, Path(out), workers=workers, on_event=on_event)


def start(
    name: str, out: Path, step: str = "none", count: int = 1, *, workers: int = WORKERS
) -> Child:
    Path(f"{out}.log").unlink(
        missing_ok=True
    )  # an earlier attempt's, if this one dies before it has its own
    return server().start(
        "killed_runs:child",
        name,
        settings_of(name),
        str(out),
        step,
        count,
        workers,
        output=Path(f"{out}.out"),
    )


@dataclass(frozen=True)
class Undisturbed:
    """files: path → digest of the finished run; stage: of the files that are gone at the end; task_of: path → the task
    that makes it; steps: how often each step is taken; took_s: time of a child from its start to its end."""

    files: dict[str, str]
    stage: dict[str, str]
    task_of: dict[str, Task]
    steps: Counter[str]
    took_s: float


@functools.cache
def expected(name: str) -> Undisturbed:
    """What an undisturbed run is."""
    finished = digests(undisturbed(name).run)
    before: dict[str, str] = {}
    task_of: dict[str, Task] = {}
    steps: Counter[str] = Counter()
    out = place() / name / "watched"

    def listen(event: Event) -> None:
        if isinstance(event, Step):
            steps[event.name] += 1
            if event.name == "index.linked":
                (run,) = (out / "runs").iterdir()
                before.update(digests(run))
                for record in records(run):
                    task_of.update(
                        dict.fromkeys((each["path"] for each in record["files"]), task(record))
                    )

    make(name, settings_of(name), out, on_event=listen)
    ended = start(name, place() / name / "timed").wait()
    assert ended.code == 0, ended.output
    return Undisturbed(finished, before, task_of, steps, ended.wall_s)


def records(run: Path) -> list[dict]:
    """The receipts of a run."""
    return [json.loads(path.read_bytes()) for path in sorted((run / "receipts").glob("[!.]*.json"))]


def task(record: dict) -> Task:
    return record["stage"], record["number"]


def kill_at_step(name: str, out: Path, step: str, count: int) -> None:
    """Let a child die at a step."""
    ended = start(name, out, step, count).wait()
    assert ended.code == -signal.SIGKILL, (step, count, ended)


def kill_at_random(name: str, out: Path, random_: random.Random) -> None:
    """Kill a child at a random instant of its life, and again sooner where it was quicker than its model."""
    share = random_.random() * expected(name).took_s
    for attempt in range(12):
        running = start(name, out)
        time.sleep(share / 2**attempt)
        running.kill()
        ended = running.wait()
        if ended.code == -signal.SIGKILL:
            return
        assert ended.code == 0, ended.output
        for path in out.glob(
            "runs/*/*"
        ):  # a finished run tells nothing: the next child begins anew
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    raise AssertionError("the child was never killed before its end")


@dataclass(frozen=True)
class Resumed:
    """kept: tasks that were found done; redone: tasks that had begun and had to be done again; strays: temporary files
    that were left."""

    how: str
    kept: int
    redone: int
    strays: int


def check_and_resume(name: str, out: Path, workers: int = WORKERS, *, lives: int = 1) -> Resumed:
    """Whatever is visible is whole; the run goes on where it was and ends as if nothing had happened.

    lives: how often it was killed; each time it may leave a task per worker.
    """
    whole = expected(name)
    kept: set[Task] = set()
    begun: set[Task] = set()
    left: list[Path] = []
    for run in (out / "runs").iterdir() if (out / "runs").is_dir() else ():
        finished = (run / "manifest.json").exists()
        for path, digest in digests(run).items():
            assert digest in (whole.stage.get(path), whole.files.get(path)), f"torn: {path}"
            if path in whole.task_of:
                begun.add(whole.task_of[path])
        for record in records(run):
            kept.add(task(record))
            for each in record["files"]:
                if not (finished and each["path"].startswith("stage/")):
                    assert has_recorded_bytes(run, FileRecord(**each)), f"torn: {each}"
        left = strays(run)
        for path in left:
            match = _TEMPORARY.fullmatch(path.name)
            target = path.with_name(match[1]).relative_to(run).as_posix() if match else ""
            if target in whole.task_of:
                begun.add(whole.task_of[target])
    log = Path(f"{out}.log")
    announced = Counter(log.read_text().splitlines()) if log.exists() else Counter()
    assert len(begun - kept) <= lives * workers, (
        f"more than a shard per worker to do again: {begun - kept}"
    )

    events: list[Event] = []
    prepared = make(name, settings_of(name), out, workers=workers, on_event=events.append)
    done = {event.stage: event.done for event in events if isinstance(event, StageBegan)}

    assert digests(prepared.run) == whole.files
    assert not list(out.glob("runs/*/stage"))
    if prepared.how == "computed":
        for stage, count in done.items():
            assert count == sum(each[0] == stage for each in kept), (
                f"{stage}: a finished task was done again"
            )
            assert count >= announced[stage], f"{stage}: an announced task was done again"
    headrace.collect(out)
    assert not strays(out)
    assert digests(prepared.run) == whole.files
    return Resumed(
        prepared.how, len(kept), len(begun - kept) if prepared.how == "computed" else 0, len(left)
    )
