"""Threads that end before the interpreter does: one inside a store while it goes down would abort the process."""

from __future__ import annotations

import atexit
from typing import Protocol
from weakref import WeakSet


class Stoppable(Protocol):
    """What has a thread."""

    def stop(self) -> None:
        """End the thread."""


RUNNING: WeakSet[Stoppable] = WeakSet()


@atexit.register
def _stop_all() -> None:
    for each in list(RUNNING):
        each.stop()
