"""A process that makes its part of a run in a store, and is killed where a test wants it to be."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from store_cases import split_of

import headrace
from headrace.run.events import Event, Step
from headrace.run.members import Patience

WAIT_S = 200
PATIENCE = Patience(beat_s=0.2, dead_after_s=1, straggler_s=600, poll_s=0.05)


class Part:
    """Part `index` of 2 in a child process; SIGKILL at the `count`-th step of this name, if one is given."""

    def __init__(self, raw: Path, out: str, work: Path, index: int, step: str = "", count: int = 1) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["doomed_part", "headrace.split.recipe"])
        arguments = (str(raw), out, str(work), index, step, count, dict(os.environ))
        self.process = context.Process(target=_make, args=arguments, daemon=True)
        self.process.start()

    def wait(self) -> int:
        """The exit code; negative: the signal that ended it."""
        self.process.join(WAIT_S)
        assert self.process.exitcode is not None, "does not end"
        return self.process.exitcode


def _make(raw: str, out: str, work: str, index: int, step: str, count: int, environment: Mapping[str, str]) -> None:
    os.environ.update(environment)  # the server that this was forked from may be older than the test
    seen = 0

    def listen(event: Event) -> None:
        nonlocal seen
        if isinstance(event, Step) and event.name == step:
            seen += 1
            if seen == count:
                os.kill(os.getpid(), signal.SIGKILL)

    headrace.prepare(
        split_of(raw), out, workers=1, shard_of=(index, 2), patience=PATIENCE, work_dir=work, on_event=listen
    )
