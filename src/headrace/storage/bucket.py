"""Connect to one bucket of an object store, through obstore.

Credentials, endpoint and region come from the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`). obstore reads them itself;
this module never sees them. Messages quote only the status and code of a response, because its body may echo the
request. obstore retries requests that fail for now (503, 429, connections lost before a response) with exponential,
jittered backoff. This module retries a response that breaks off or is short.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Lock
from typing import Any, TypeVar

from headrace.errors import CorruptShard, MissingExtra, StoreError
from headrace.storage.in_flight import InFlight

Result = TypeVar("Result")

_STATUS = re.compile(r"status code: (\d{3}[A-Za-z ]*)")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_ATTEMPTS = 6  # at a response that breaks off
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_FIRST_BACKOFF_S = 0.1  # after a 503 or 429
_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL",
    "gs": "GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY",
}
SCHEMES = tuple(_VARIABLES)

_lock = Lock()
_buckets: dict[tuple[str, str], Bucket] = {}
_used_by: int | None = None


class Torn(Exception):
    """A response that is shorter than it should be."""


class Bucket:
    """One bucket. Thread-safe, but unusable in a forked child of a process that used a store before the fork.

    verbs: the functions of obstore, which take `store` first. reading: requests for bytes that are under way.
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
                f"{self.address}: cannot be set up ({type(error).__name__}); check the bucket's name and the"
                f" environment's settings ({_VARIABLES[scheme]})"
            ) from None

    def do(self, key: str, act: Callable[[], Result]) -> Result:
        """Call `act`, with retries if a response breaks off. Raises `FileNotFoundError` and `StoreError`."""
        _refuse_forked()
        address = f"{self.address}/{key}"
        pauses = _pauses()
        while True:
            try:
                return act()
            except FileNotFoundError:
                raise FileNotFoundError(2, "no such object", address) from None
            except CorruptShard:
                raise
            except Torn as error:
                said, again = f"the answer is cut: {error}", True
            except (ConnectionError, TimeoutError) as error:
                said, again = type(error).__name__, True
            except self.verbs.exceptions.BaseError as error:
                said = _told(error)
                again = _STATUS.search(str(error)) is None  # else the store said this itself, and no connection broke
                remedy = _advice(error)
                if remedy is not None:
                    raise StoreError(f"{address}: {said}; {remedy}") from None
            pause = next(pauses, None) if again else None
            if pause is None:
                raise StoreError(
                    f"{address}: the store does not answer as it should ({said}); see that it is well, then run"
                    " again: what was finished is kept"
                ) from None
            time.sleep(pause)


def bucket(scheme: str, name: str) -> Bucket:
    """Return the bucket of that name, one object per process. Raises `MissingExtra` without obstore, `StoreError`."""
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
    """Raise `StoreError` in a forked child, which lacks the threads that speak to the store and would wait forever."""
    global _used_by
    if _used_by is None:
        _used_by = os.getpid()
    if _used_by != os.getpid():
        raise StoreError(
            "this process was forked from one that used an object store, and cannot use it itself; start workers with"
            ' multiprocessing_context="forkserver" or "spawn", or stream without workers'
        )


def _new_lock() -> None:
    global _lock
    _lock = Lock()


os.register_at_fork(after_in_child=_new_lock)


def _pauses() -> Iterator[float]:
    longest = _FIRST_PAUSE_S
    for _ in range(_ATTEMPTS - 1):
        yield random.uniform(0, longest)
        longest = min(2 * longest, _LONGEST_PAUSE_S)


def _told(error: Exception) -> str:
    """Quote the status and code of a store's response, and nothing that may echo the request."""
    text = str(error)
    parts = [each[1].strip() for each in (_STATUS.search(text), _CODE.search(text)) if each is not None]
    return ", ".join(parts) or type(error).__name__


def _advice(error: Exception) -> str | None:
    """Return advice for an error that retrying cannot fix; None if a retry may help."""
    name = type(error).__name__
    if name in ("PermissionDeniedError", "UnauthenticatedError") or _told(error)[:3] in ("401", "403"):
        return "access is refused: check the credentials in the environment and what they may do"
    if name in ("NotImplementedError", "NotSupportedError", "InvalidPathError", "UnknownConfigurationKeyError"):
        return "the store cannot do this; see the guide to object stores"
    return None
