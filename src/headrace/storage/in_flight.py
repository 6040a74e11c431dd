"""How many requests to a store are under way at once: more as long as more of them bring more bytes a second.

A store answers after a latency that grows with distance, and sends as fast as the slowest link allows. How many
requests fill that link cannot be told beforehand. So the bytes a second are measured at 16, 32 and 64 requests, each
while others wait for a place, and the least number stays that brings nine tenths of the most. What was measured is
forgotten after a while, as networks change, and is tried again. A store that refuses for now sends less, so the number
falls.

The number decides when bytes come, never which.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

LIMITS = (16, 32, 64)
_WORTH_MORE = 1.1  # times the bytes a second, for twice the requests
_WINDOW = 2  # times as many answers as requests are under way
_REMEMBERED = 32  # windows
_MOST_BYTES = 128 << 20  # under way, but one request in any case


class InFlight:
    """The requests to one bucket that are under way. Safe for threads."""

    def __init__(self) -> None:
        self.limit = LIMITS[0]
        self._count = self._bytes = self._windows = 0
        self._change = Condition()
        self._rates: dict[int, tuple[float, int]] = {}  # by limit: bytes a second, and the window they are of
        self._since, self._is_full = 0.0, False
        self._answers = self._received = 0

    @contextmanager
    def request(self, size: int) -> Iterator[None]:
        """Wait for a place, and hold it while the block runs."""
        with self._change:
            while self._count and (self._count >= self.limit or self._bytes + size > _MOST_BYTES):
                self._is_full = True
                self._change.wait()
            if not self._count:  # between two bursts nothing is measured
                self._begin(time.perf_counter())
            self._count += 1
            self._bytes += size
            self._change.notify()  # whoever has no place either waits again
        try:
            yield
        finally:
            with self._change:
                self._count -= 1
                self._bytes -= size
                self.answered(size, time.perf_counter())
                self._change.notify()

    def answered(self, size: int, now: float) -> None:
        """Count an answer of so many bytes that is there at `now`, seconds. Sets the limit at the end of a window."""
        self._answers += 1
        self._received += size
        if self._answers == 0:
            self._begin(now)
        if self._answers < _WINDOW * self.limit:
            return
        if self._is_full and now > self._since:
            self._windows += 1
            self._rates[self.limit] = self._received / (now - self._since), self._windows
            before, self.limit = self.limit, self._next()
            self._begin(now)
            if self.limit != before:
                self._answers = -before  # of requests that were let in before
        else:
            self._begin(now)

    def _begin(self, now: float) -> None:
        """Begin a window."""
        self._since, self._is_full = now, False
        self._answers = self._received = 0

    def _next(self) -> int:
        """Return a limit that was not measured of late, or the best."""
        best, most = LIMITS[0], 0.0
        for limit in LIMITS:
            rate, window = self._rates.get(limit, (0.0, -_REMEMBERED))
            if self._windows - window >= _REMEMBERED:
                return limit
            if rate >= _WORTH_MORE * most:
                best, most = limit, rate
            elif limit > best:
                break
        return best
