"""Connect to one bucket of an object store, through obstore.

Credentials, endpoint and region come from the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`). obstore
reads them itself; this module never sees them. Messages quote only the status and code of a
response, because its body may echo the request. obstore retries requests that fail for now (503,
429, lost connections) with exponential, jittered backoff, and continues a response that breaks off.
This module ends what does not get on (`Patience`), retries what obstore gives up or what is short,
counts both (`Traffic`), and adapts the number of requests under way to the store (`InFlight`).
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from threading import Condition, Lock
from typing import Any, NamedTuple, TypeVar

from headrace.errors import MissingExtra, StoreError
from headrace.storage.patience import SECONDS, Patience

Result = TypeVar("Result")

_STATUS = re.compile(r"status code: (\d{3}[A-Za-z ]*)")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_OUT_OF_TIME = re.compile(r"kind: Timeout\b|\bTimedOut\b")
_FOR_NOW = re.compile(r"429|5\d\d")
_OTHER_BYTES = re.compile(r"\b(NotPartial|UnexpectedRange)\b")  # than were asked for
_ATTEMPTS = 6  # at a response that breaks off
_ASK_AGAIN = 1.5  # times `Patience.seconds`: obstore itself asks once after a request in vain
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


@dataclass(frozen=True)
class Traffic:
    """What was read from stores by this process.

    seconds: in which at least one response was coming in, so bytes over seconds is the rate.
    stalls: requests that ran out of time. retries: those, and requests that failed, that were sent
    again; what obstore sends again itself after a 503 or a lost connection is not seen.
    """

    bytes: int = 0
    seconds: float = 0.0
    retries: int = 0
    stalls: int = 0

    def since(self, before: Traffic) -> Traffic:
        """Return what came after a moment."""
        return Traffic(
            bytes=self.bytes - before.bytes,
            seconds=self.seconds - before.seconds,
            retries=self.retries - before.retries,
            stalls=self.stalls - before.stalls,
        )


class TrafficCounter:
    """Count the traffic of one bucket. Safe for threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._so_far = Traffic()
        self._count = 0
        self._since = 0.0

    @contextmanager
    def receiving(self) -> Iterator[Callable[[int], None]]:
        """Count the time of the block, which is given a function that counts bytes."""
        size = 0

        def note(more: int) -> None:
            nonlocal size
            size += more

        with self._lock:
            if not self._count:
                self._since = time.monotonic()
            self._count += 1
        try:
            yield note
        finally:
            with self._lock:
                self._count -= 1
                busy = 0.0 if self._count else time.monotonic() - self._since
                self._add(Traffic(bytes=size, seconds=busy))

    def failed(self, requests: int, *, stalled: bool) -> None:
        """Count requests that were in vain; `stalled` if they ran out of time."""
        with self._lock:
            self._add(Traffic(retries=requests, stalls=requests * stalled))

    def so_far(self) -> Traffic:
        """Return the counts."""
        with self._lock:
            if self._count:
                now = time.monotonic()
                self._add(Traffic(seconds=now - self._since))
                self._since = now
            return self._so_far

    def _add(self, more: Traffic) -> None:
        self._so_far = total([self._so_far, more])


def total(counts: Iterable[Traffic]) -> Traffic:
    """Add counts up."""
    every = list(counts)
    return Traffic(
        bytes=sum(count.bytes for count in every),
        seconds=sum(count.seconds for count in every),
        retries=sum(count.retries for count in every),
        stalls=sum(count.stalls for count in every),
    )


class _Failure(NamedTuple):
    """What became of a request. again: whether it is worth another."""

    reason: str
    again: bool
    remedy: str | None = None
    out_of_time: bool = False


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
        self._answers = self._bytes_received = 0

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
        self._bytes_received += size
        if self._answers == 0:
            self._begin(now)
        if self._answers < self.limit:
            return
        before = self.limit
        if self._is_full and now > self._since:
            self._windows += 1
            self._rates[self.limit] = self._bytes_received / (now - self._since), self._windows
            self.limit = self._next()
        self._begin(now)
        if self.limit != before:
            self._answers = -before  # of requests that were let in before

    def _begin(self, now: float) -> None:
        """Begin a window."""
        self._since = now
        self._is_full = False
        self._answers = self._bytes_received = 0

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

    verbs: the functions of obstore, which take `store` first; those that upload take
    `store_for_upload`. reading: requests for bytes that are under way. is_slow: whether the
    last read ran out of time.
    """

    def __init__(self, scheme: str, name: str) -> None:
        try:
            import obstore
        except ImportError as error:
            raise MissingExtra("obstore", scheme) from error
        self.scheme, self.address = scheme, f"{scheme}://{name}"
        self.verbs: Any = obstore
        self.reading = InFlight()
        self.patience = Patience.of(os.environ)
        self.traffic = TrafficCounter()
        self.is_slow = False
        self.store: Any = self._connect(self.patience.seconds)
        self._uploads: dict[int, Any] = {}

    def store_for_upload(self, size: int) -> Any:
        """Return the store with the time that requests of up to `size` bytes may take."""
        upto = 1 << max(20, (size - 1).bit_length())
        if upto not in self._uploads:  # two threads may each make one
            self._uploads[upto] = self._connect(self.patience.upload_s(upto))
        return self._uploads[upto]

    def _connect(self, seconds: float) -> Any:
        """Make a store whose requests may take so many seconds."""
        from obstore.store import from_url

        try:
            return from_url(
                self.address,
                client_options={
                    "allow_http": True,  # of an endpoint that the environment names so
                    "timeout": timedelta(seconds=seconds),
                    "connect_timeout": timedelta(seconds=min(10, seconds)),
                },
                retry_config={
                    "max_retries": 12,
                    "retry_timeout": timedelta(seconds=_ASK_AGAIN * seconds),
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
                    "check the bucket's name and the environment's settings"
                    f" ({_VARIABLES[self.scheme]})"
                ),
            ) from None

    def do(self, key: str, act: Callable[[], Result], got: Callable[[], int] = lambda: 0) -> Result:
        """Call `act`, again if a response breaks off or does not come.

        got: bytes that `act` holds; enough of them are progress, after which nothing has failed
        yet. Raises `FileNotFoundError` and `StoreError`.
        """
        _refuse_forked()
        address = f"{self.address}/{key}"
        began = since = time.monotonic()
        attempt = before = 0
        while True:
            try:
                return act()
            except FileNotFoundError:
                raise FileNotFoundError(2, "no such object", address) from None
            except (Torn, ConnectionError, TimeoutError, self.verbs.exceptions.BaseError) as error:
                failure = self._failure(error)
            now = time.monotonic()
            if failure.remedy is not None:
                raise StoreError(failure.reason, path=address, remedy=failure.remedy) from None
            if got() - before >= self.patience.bytes:
                attempt = 0
                since = now
            before = got()
            attempt += 1
            if failure.out_of_time and now - since >= self.patience.without_progress_s:
                raise self._stalled(address, got(), now - since, now - began) from None
            if not failure.again or attempt == _ATTEMPTS:
                raise StoreError(
                    f"the store does not answer as it should ({failure.reason})",
                    path=address,
                    remedy="see that it is well, then run again: what was finished is kept",
                ) from None
            self.traffic.failed(1, stalled=failure.out_of_time)
            pause_s = min(_FIRST_PAUSE_S * 2 ** (attempt - 1), _LONGEST_PAUSE_S)
            time.sleep(random.uniform(0, pause_s))

    def says_replaced(self, error: Exception) -> bool:
        """Return whether an error of obstore says that the object has another tag than
        `If-Match`.
        """
        status = _STATUS.search(str(error))
        return isinstance(error, self.verbs.exceptions.PreconditionError) or (
            status is not None and status[1].startswith("412")
        )

    def _failure(self, error: Exception) -> _Failure:
        if isinstance(error, Torn):
            return _Failure(f"the answer is cut: {error}", again=True)
        if not isinstance(error, self.verbs.exceptions.BaseError):
            return _Failure(type(error).__name__, again=True)
        # Only the status and code of a response are quoted, and nothing that may echo the request.
        text = str(error)
        status = _STATUS.search(text)
        if status is None and _OUT_OF_TIME.search(text):
            return _Failure("no answer in time", again=True, out_of_time=True)
        other = _OTHER_BYTES.search(text)
        code = _CODE.search(text)
        reason = ", ".join(match[1].strip() for match in (status, code) if match)
        if other is not None:
            reason = f"other bytes than were asked for: {other[1]}"
        reason = reason or type(error).__name__
        remedy = _ADVICE.get(type(error).__name__)
        if reason[:3] in ("401", "403"):
            remedy = _REFUSED
        # any other status is the store's own word, and no connection broke
        again = status is None or _FOR_NOW.match(status[1]) is not None
        return _Failure(reason, again, remedy)

    def _stalled(self, address: str, got: int, waited_s: float, all_s: float) -> StoreError:
        least = self.patience.bytes
        return StoreError(
            f"the store has stalled: {got:,} bytes came in {all_s:,.0f} s, fewer than {least:,} of"
            f" them in the last {waited_s:,.0f} s",
            path=address,
            remedy=(
                "see that it is well, then run again: what was finished is kept;"
                f" {SECONDS} in the environment sets how long a request may take"
            ),
        )


def bucket(scheme: str, name: str) -> Bucket:
    """Return the bucket of that name, one object per process.

    Raises `MissingExtra` without obstore, `StoreError`.
    """
    _refuse_forked()
    with _lock:
        if (scheme, name) not in _buckets:
            _buckets[scheme, name] = Bucket(scheme, name)
        return _buckets[scheme, name]


def traffic() -> Traffic:
    """Return what this process has read from all stores so far."""
    with _lock:
        counts = [used.traffic.so_far() for used in _buckets.values()]
    return total(counts)


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
