"""Runs of histories that are killed in a chosen pass, at a random instant of it.

A child says when a pass begins, and how many of its tasks are done. Its parent waits for that, and for a random share
of the time that the pass takes, and sends the signal. Where the child was by then is read from what it has said: a
kill counts for a pass if the child had begun it and had not finished all of its tasks.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from fault_recipes import Settings, make, place, settings_of
from forks import Child, server
from large_histories import write_large

from headrace.histories.config import Histories
from headrace.run.events import Event, StageBegan, TaskDone
from headrace.run.prepare import prepare

PASSES = ("gather", "order", "rows", "publish")
PATIENCE_S = 240
STOPPED = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: -signal.SIGTERM, signal.SIGINT: 1}


def load() -> None:
    """Load, or compile, all that a child will call: else its passes would be spent with that."""
    with tempfile.TemporaryDirectory() as directory:
        source = str(write_large(Path(directory) / "in", rows=10_000))
        kinds = itertools.product(("array_record", "arrow"), (1 << 20, 2 << 30))
        for number, (format_, memory_limit) in enumerate(kinds):  # merged, and in memory
            asked = Histories(
                source=[source],
                peer="dst_addr",
                max_row_bytes=3000,
                partitions=1,
                memory_limit=memory_limit,
                format=format_,
            )
            prepare(asked, Path(directory) / str(number), workers=1)


def child(name: str, settings: Settings, out: str, workers: int) -> None:
    """Prepare, and say how far it is: `began PASS TASKS DONE TIME`, a line with its pass for each task, and `ended`."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(f"{out}.log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def began(of_pass: str, tasks: int, done: int) -> None:
        os.write(log, f"began {of_pass} {tasks} {done} {time.monotonic()}\n".encode())

    def on_event(event: Event) -> None:
        if isinstance(event, StageBegan):
            began(event.stage, event.tasks, event.done)
        if isinstance(event, TaskDone):
            os.write(log, f"{event.stage}\n".encode())
            if event.stage == "rows":
                began("publish", 1, 0)

    try:
        make(name, settings, Path(out), workers=workers, on_event=on_event)
    finally:
        os.write(log, f"ended {time.monotonic()}\n".encode())


@dataclass(frozen=True)
class Said:
    """What a child has said so far. began: pass → (tasks, done before, time); done: tasks by pass, with those done
    before; ended: when, if it has."""

    began: dict[str, tuple[int, int, float]]
    done: Counter[str]
    ended: float | None

    def within(self) -> str | None:
        """The pass that it was in; None before the first one and between two."""
        if not self.began:
            return None
        last = list(self.began)[-1]
        return last if self.done[last] < self.began[last][0] else None

    def took_s(self) -> dict[str, float]:
        """How long each pass of a child that has ended took."""
        assert self.ended is not None
        times = [at for _, _, at in self.began.values()]
        return dict(
            zip(
                self.began,
                (b - a for a, b in zip(times, [*times[1:], self.ended], strict=True)),
                strict=True,
            )
        )


def said(out: Path) -> Said:
    """From its files; a last line that is still being written is left out."""
    lines = [line.split() for line in _lines(Path(f"{out}.log"))]
    began = {
        line[1]: (int(line[2]), int(line[3]), float(line[4]))
        for line in lines
        if line[0] == "began"
    }
    ended = next((float(line[1]) for line in lines if line[0] == "ended"), None)
    done = Counter(line[0] for line in lines if len(line) == 1)
    return Said(began, done, ended)


def _lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1] if path.exists() else []


def start(name: str, out: Path, workers: int) -> Child:
    """A child that begins where everything is loaded."""
    Path(f"{out}.log").unlink(missing_ok=True)
    return server("killed_passes:load").start(
        "killed_passes:child", name, settings_of(name), str(out), workers, output=Path(f"{out}.out")
    )


@functools.cache
def alone(name: str, workers: int) -> Said:
    """What a child says that nothing happens to, the second of two: it finds its files in memory."""
    for number in range(2):
        out = place() / name / f"alone {workers} {number}"
        ended = start(name, out, workers).wait()
        assert ended.code == 0, ended.output
    return said(out)


def stop_in_pass(
    name: str,
    out: Path,
    workers: int,
    of_pass: str,
    share: float,
    number: signal.Signals = signal.SIGKILL,
) -> str | None:
    """Send a child the signal when this share of a pass, or of what is left of it, should be done.

    The pass that it ended in; "between" where that was none; None where it had ended before, or could not be stopped.
    """
    took_s = alone(name, workers).took_s()[of_pass]
    running = start(name, out, workers)
    found = _wait_for(out, of_pass)
    if found.ended is None:
        tasks, done, at = found.began[of_pass]
        time.sleep(max(0.0, at + share * took_s * (tasks - done) / tasks - time.monotonic()))
    running.kill(number)
    ended = running.wait()
    if ended.code == 0:
        return None
    assert ended.code == STOPPED[number], ended
    if number is signal.SIGINT:
        assert "KeyboardInterrupt" in ended.output, ended.output
    return said(out).within() or "between"


def _wait_for(out: Path, of_pass: str) -> Said:
    until = time.monotonic() + PATIENCE_S
    while True:
        found = said(out)
        if of_pass in found.began or found.ended is not None:
            return found
        assert time.monotonic() < until, f"{out}: {of_pass} never began"
        time.sleep(0.0005)


def kill_again_and_again(
    name: str, out: Path, workers: int, of_pass: str, random_: random.Random
) -> list[str]:
    """Kill a child in a pass, and then up to two that go on, each in that pass or the next. Where each was."""
    ends = []
    for number in range(random_.randint(1, 3)):
        if number:
            of_pass = random_.choice(PASSES[PASSES.index(of_pass) :][:2])
        end = stop_in_pass(name, out, workers, of_pass, random_.random())
        if end is None:
            break
        ends.append(end)
    return ends
