"""A process that erases entities and dies by SIGKILL at a named step."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Sequence

import headrace
from headrace.run.events import Event, Step


def child(out: str, names: Sequence[str], home: str, step: str, count: int) -> None:
    """Erase; die at the count-th step of this name."""
    os.environ["HOME"] = home  # of the cache
    number = itertools.count(1)

    def on_event(event: Event) -> None:
        if isinstance(event, Step) and event.name == step and next(number) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    headrace.forget(out, names, workers=1, on_event=on_event)


def suspended(out: str, names: Sequence[str], home: str, step: str, old_run: str) -> None:
    """Erase; stop at the first step of this name until somebody lets it go on."""
    os.environ["HOME"] = home
    number = itertools.count(1)

    def on_event(event: Event) -> None:
        if isinstance(event, Step) and event.name == step and next(number) == 1:
            os.kill(os.getpid(), signal.SIGSTOP)

    print(headrace.forget(out, names, workers=1, on_event=on_event, old_run=old_run).how)
