"""A process that takes part in a shared run, and dies or stands still where a test wants it to."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.run.events import Event, Note, Step
from headrace.run.members import Patience
from headrace.run.prepare import prepare

PATIENCE = Patience(beat_s=0.1, dead_after_s=60, straggler_s=600, poll_s=0.05)
WAIT_S = 200


@dataclass(frozen=True)
class Fate:
    """What happens at the `count`-th step of this name: the process is killed, or waits for a file `go` beside its log."""

    how: str = "lives"  # | "killed" | "waits"
    step: str = ""
    count: int = 1


def take_part(recipe: Any, out: str, share: tuple[int, int], log: str, fate: Fate, patience: Patience) -> None:
    """Exit code 0: the run is finished; 1: an error of ours, written to the log."""
    file = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    seen = 0

    def say(*words: str) -> None:
        os.write(file, (json.dumps(words) + "\n").encode())

    def listen(event: Event) -> None:
        nonlocal seen
        if isinstance(event, Note):
            say("note", event.text)
        if not isinstance(event, Step):
            return
        say("step", event.name, event.subject)
        seen += event.name == fate.step
        if event.name == fate.step and seen == fate.count:
            if fate.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            say("waits", event.subject)
            until = time.monotonic() + WAIT_S
            while not Path(log).with_suffix(".go").exists() and time.monotonic() < until:
                time.sleep(0.02)

    try:
        prepare(recipe, out, workers=1, shard_of=share, patience=patience, on_event=listen)
    except HeadraceError as error:
        say("error", type(error).__name__, str(error))
        sys.exit(1)
    say("finished")


class Process:
    """A child that takes part. Forked from a server that has loaded everything, so that it begins at once."""

    def __init__(
        self,
        recipe: Any,
        out: Path,
        index: int,
        count: int,
        *,
        fate: Fate | None = None,
        patience: Patience = PATIENCE,
        name: str = "",
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["shared_child", "recipe_runs", "headrace.split.recipe"])
        self.log = Path(f"{out}.{index}{name}.log")
        arguments = (recipe, str(out), (index, count), str(self.log), fate or Fate(), patience)
        self.process = context.Process(target=take_part, args=arguments, daemon=True)
        self.process.start()

    def said(self, word: str) -> list[list[str]]:
        """What the process has said under this word."""
        if not self.log.exists():
            return []
        lines = []
        for line in self.log.read_text().splitlines():
            with contextlib.suppress(ValueError):  # a line that is being written
                lines.append(json.loads(line))
        return [line[1:] for line in lines if line[0] == word]

    def wait(self) -> int:
        """The exit code; negative: the signal that ended it."""
        self.process.join(WAIT_S)
        assert self.process.exitcode is not None, f"{self.log}: does not end"
        return self.process.exitcode

    def until(self, word: str) -> None:
        """Wait until the process has said a word."""
        until = time.monotonic() + WAIT_S
        while not self.said(word):
            assert time.monotonic() < until, f"{self.log}: never says {word}"
            assert self.process.is_alive(), f"{self.log}: ended with {self.process.exitcode}"
            time.sleep(0.02)

    def go(self) -> None:
        """Let it go on from where it waits."""
        self.log.with_suffix(".go").touch()

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)
