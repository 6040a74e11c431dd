"""Waits for what must come, however slow the machine: for a condition, and never for a time that should be enough."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 120.0  # of a wait for something that is bound to happen
_LOOK_S = 0.02


def wait_until(true: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
    """Wait until this is so; whether it is."""
    until = time.monotonic() + patience_s
    while not (so := true()) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return so


def until_at_rest(seconds: float) -> None:
    """Wait until no other thread of this process has run for so long, however much else the machine has to do.

    Only a thread that waits for nothing but a processor, or reads from a disk, is not at rest.
    """
    looks = round(seconds / _LOOK_S)
    calm, until = 0, time.monotonic() + PATIENCE_S
    while calm < looks and time.monotonic() < until:
        time.sleep(_LOOK_S)
        calm = 0 if _another_runs() else calm + 1


def _another_runs() -> bool:
    own = str(threading.get_native_id())
    for task in Path("/proc/self/task").glob("*"):  # none where there is no /proc
        try:
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has ended
            continue
        if task.name != own and state in "RD":
            return True
    return False
