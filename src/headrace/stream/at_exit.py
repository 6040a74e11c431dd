"""Threads that end before the interpreter does: one inside a store while it goes down would abort the process."""

from __future__ import annotations

import atexit
from typing import Protocol
from weakref import WeakSet


class Stoppable(Protocol):
    """What has a thread. It need not be taken out of `RUNNING`, which does not keep it."""

    def stop(self) -> None:
        """End the thread; a second time this does nothing."""


RUNNING: WeakSet[Stoppable] = WeakSet()


@atexit.register
def _stop_all() -> None:
    for each in list(RUNNING):
        each.stop()
