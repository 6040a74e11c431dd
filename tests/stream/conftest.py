"""What tests of the stream share by name."""

import gc
import threading
import time
from contextlib import suppress

import pytest

_BOUND_S = 120.0


class OwnThreads:
    """The threads of headrace that began in this test: what an earlier one left to the collector is not counted."""

    def __init__(self):
        self._before = set(threading.enumerate())

    def now(self):
        """Those alive."""
        own = set(threading.enumerate()) - self._before
        return sorted(
            (thread for thread in own if thread.name.startswith("headrace")),
            key=lambda each: each.name,
        )

    def left(self):
        """Those that have not ended within a bound, which is nothing but the patience of a loaded machine."""
        gc.collect()  # an exception's frames may hold the iterator
        until = time.monotonic() + _BOUND_S
        while (living := self.now()) and time.monotonic() < until:
            with suppress(RuntimeError):  # a thread is listed a moment before it can be joined
                living[0].join(0.1)
        return living


@pytest.fixture
def own_threads():
    return OwnThreads()
