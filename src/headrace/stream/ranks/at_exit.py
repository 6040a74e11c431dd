"""What ends before the interpreter does: a thread inside a store while it goes down would abort the process."""

from __future__ import annotations

import atexit
import sys
from typing import Protocol
from weakref import WeakSet


class Stoppable(Protocol):
    """What has a thread, or a last word. It need not be taken out of `RUNNING`, which does not keep it."""

    def stop(self, error: Exception | None = None) -> None:
        """End the thread; a second time this does nothing. error: what the interpreter ends on."""


RUNNING: WeakSet[Stoppable] = WeakSet()


@atexit.register
def _stop_all() -> None:
    error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)  # of a session: of any time before
    for each in list(RUNNING):
        each.stop(error if isinstance(error, Exception) else None)
