"""Connect to one bucket of an object store, through obstore.

Credentials, endpoint and region come from the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`). obstore
reads them itself; this module never sees them. Messages quote only the status and code of a
response, because its body may echo the request. obstore retries requests that fail for now (503,
429, connections lost before a response) with exponential, jittered backoff. This module retries a
response that breaks off or is short, and adapts the number of requests under way to the store
(`InFlight`).
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Condition, Lock
from typing import Any, TypeVar

from headrace.errors import CorruptShard, MissingExtra, StoreError

Result = TypeVar("Result")

_STATUS = re.compile(r"status code: (\d{3}[A-Za-z ]*)")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_ATTEMPTS = 6  # at a response that breaks off
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_FIRST_BACKOFF_S = 0.1  # after a 503 or 429
_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL",
    "gs": "GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY",
}
SCHEMES = tuple(_VARIABLES)
_REFUSED = "check the credentials in the environment and what they may do"
_UNABLE = "see in the guide to object stores what a store must be able to do"
_ADVICE = {  # on obstore's errors that no retry helps
    **dict.fromkeys(("PermissionDeniedError", "UnauthenticatedError"), _REFUSED),
    **dict.fromkeys(
        (
            "NotImplementedError",
            "NotSupportedError",
            "InvalidPathError",
            "UnknownConfigurationKeyError",
        ),
        _UNABLE,
    ),
}

LIMITS = (16, 32, 64)  # requests under way
_WORTH_MORE = 1.1  # times the bytes a second, for twice the requests
_REMEMBERED = 32  # windows
_MOST_BYTES = 128 << 20  # under way, but one request in any case

_lock = Lock()
_buckets: dict[tuple[str, str], Bucket] = {}
_used_by: int | None = None


class Torn(Exception):
    """A response that is shorter than it should be."""


class InFlight:
    """Decide how many requests to one bucket are under way at once. Safe for threads.

    A store answers after a latency that grows with distance, and sends as fast as the slowest link
    allows, so the number of requests that fills the link is not known beforehand. The rate is
    measured at 16, 32 and 64 requests, each while others wait for a place, and the smallest number
    that reaches nine tenths of the best rate stays. Measurements are forgotten after a while,
    because networks change. A store that refuses for now sends less, so the number falls.

    It decides when bytes come, never which.
    """

    def __init__(self) -> None:
        self.limit = LIMITS[0]
        self._count = self._bytes = self._windows = 0
        self._change = Condition()
        # by limit: bytes a second, and the window they are of
        self._rates: dict[int, tuple[float, int]] = {}
        self._since = 0.0
        self._is_full = False
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
        """Count an answer of `size` bytes that arrived at `now`, in seconds.

        Sets the limit at the end of a window.
        """
        self._answers += 1
        self._received += size
        if self._answers == 0:
            self._begin(now)
        if self._answers < self.limit:
            return
        before = self.limit
        if self._is_full and now > self._since:
            self._windows += 1
            self._rates[self.limit] = self._received / (now - self._since), self._windows
            self.limit = self._next()
        self._begin(now)
        if self.limit != before:
            self._answers = -before  # of requests that were let in before

    def _begin(self, now: float) -> None:
        """Begin a window."""
        self._since = now
        self._is_full = False
        self._answers = self._received = 0

    def _next(self) -> int:
        """Return a limit that was not measured of late, or the best."""
        best = LIMITS[0]
        most = 0.0
        for limit in LIMITS:
            rate, window = self._rates.get(limit, (0.0, -_REMEMBERED))
            if self._windows - window >= _REMEMBERED:
                return limit
            if rate >= _WORTH_MORE * most:
                best = limit
                most = rate
            elif limit > best:
                break
        return best


class Bucket:
    """One bucket.

    Thread-safe, but unusable in a forked child of a process that used a store before the fork.

    verbs: the functions of obstore, which take `store` first. reading: requests for bytes that are
    under way.
    """

    def __init__(self, scheme: str, name: str) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise MissingExtra("obstore", scheme) from error
        self.scheme, self.address = scheme, f"{scheme}://{name}"
        self.verbs: Any = obstore
        self.reading = InFlight()
        try:
            self.store: Any = from_url(
                self.address,
                client_options={
                    "allow_http": True,  # of an endpoint that the environment names so
                    "timeout": timedelta(minutes=5),
                    "connect_timeout": timedelta(seconds=10),
                },
                retry_config={
                    "max_retries": 12,
                    "retry_timeout": timedelta(minutes=5),
                    "backoff": {
                        "init_backoff": timedelta(seconds=_FIRST_BACKOFF_S),
                        "max_backoff": timedelta(seconds=10),
                        "base": 2,
                    },
                },
            )
        except Exception as error:  # noqa: BLE001 - obstore's, of many classes; their texts may quote a setting's value
            raise StoreError(
                f"cannot be set up ({type(error).__name__})",
                path=self.address,
                remedy=(
                    f"check the bucket's name and the environment's settings ({_VARIABLES[scheme]})"
                ),
            ) from None

    def do(self, key: str, act: Callable[[], Result]) -> Result:
        """Call `act`, with retries if a response breaks off.

        Raises `FileNotFoundError` and `StoreError`.
        """
        _refuse_forked()
        address = f"{self.address}/{key}"
        attempt = 0
        while True:
            try:
                return act()
            except FileNotFoundError:
                raise FileNotFoundError(2, "no such object", address) from None
            except CorruptShard:
                raise
            except Torn as error:
                reason = f"the answer is cut: {error}"
                again = True
            except (ConnectionError, TimeoutError) as error:
                reason = type(error).__name__
                again = True
            except self.verbs.exceptions.BaseError as error:
                # Only the status and code of a response are quoted, and nothing that may echo the
                # request.
                status = _STATUS.search(str(error))
                code = _CODE.search(str(error))
                reason = (
                    ", ".join(match[1].strip() for match in (status, code) if match)
                    or type(error).__name__
                )
                again = status is None  # else the store said this itself, and no connection broke
                remedy = _ADVICE.get(type(error).__name__)
                if reason[:3] in ("401", "403"):
                    remedy = _REFUSED
                if remedy is not None:
                    raise StoreError(reason, path=address, remedy=remedy) from None
            if not again or attempt == _ATTEMPTS - 1:
                raise StoreError(
                    f"the store does not answer as it should ({reason})",
                    path=address,
                    remedy="see that it is well, then run again: what was finished is kept",
                ) from None
            time.sleep(random.uniform(0, min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)))
            attempt += 1


def bucket(scheme: str, name: str) -> Bucket:
    """Return the bucket of that name, one object per process.

    Raises `MissingExtra` without obstore, `StoreError`.
    """
    _refuse_forked()
    with _lock:
        if (scheme, name) not in _buckets:
            _buckets[scheme, name] = Bucket(scheme, name)
        return _buckets[scheme, name]


def forget_buckets() -> None:
    """Reconnect on next use, with the environment as it is then."""
    with _lock:
        _buckets.clear()


def _refuse_forked() -> None:
    """Raise `StoreError` in a forked child, which lacks the threads that speak to the store and
    would wait forever.
    """
    global _used_by
    if _used_by is None:
        _used_by = os.getpid()
    if _used_by != os.getpid():
        raise StoreError(
            "this process was forked from one that used an object store, and cannot use it itself",
            remedy=(
                'start workers with multiprocessing_context="forkserver" or "spawn", or stream'
                " without workers"
            ),
        )


def _new_lock() -> None:
    global _lock
    _lock = Lock()


os.register_at_fork(after_in_child=_new_lock)
