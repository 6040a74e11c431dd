"""One bucket of an object store, over obstore: list, head, read ranges, read, put if absent, replace, delete.

Credentials, endpoint and region are the environment's (`AWS_*`, `GOOGLE_*`, `AZURE_*`). obstore reads them itself, and
nothing here sees them. Messages repeat the status and code of an answer alone, as its body may repeat the request.
obstore repeats requests that are refused for now (503, 429, lost connections before an answer) after a growing,
jittered pause. An answer that breaks off or is short is asked for again here.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import xxhash

from headrace.digest import checksum_file
from headrace.errors import CorruptShard, MissingExtra, StoreError
from headrace.storage.local import storing
from headrace.storage.place import Fact, Put

Result = TypeVar("Result")

PIECE_BYTES = 8 << 20  # of a large range that is fetched in parallel
_JOIN_GAP_BYTES = 512 << 10  # between two ranges that are cheaper to fetch than another request
_STATUS = re.compile(r"status code: (\d{3}[A-Za-z ]*)")
_CODE = re.compile(r"<Code>([A-Za-z]{1,60})</Code>")
_ATTEMPTS = 6  # of an answer that breaks off
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_FIRST_BACKOFF_S = 0.1  # of what is refused for now
_MOST_PARALLEL = 8  # requests of one call
_SINGLE_PUT = 64 << 20  # larger files are uploaded in parts
_PART = 16 << 20  # bytes of one part of such an upload
_MOST_AHEAD = 4  # pieces of 8 MiB, so that a reader holds 32 MiB


class _Torn(Exception):
    """An answer that is not whole."""


class Bucket:
    """One bucket. Safe from any thread; not in a forked child of a process that used a store before."""

    def __init__(self, scheme: str, name: str) -> None:
        self.scheme, self.name = scheme, name
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise MissingExtra("obstore", scheme) from error
        self._verbs: Any = obstore
        try:
            self._store: Any = from_url(
                f"{scheme}://{name}",
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
                f"{scheme}://{name}: cannot be set up ({type(error).__name__}); check the bucket's name and the"
                f" environment's settings ({_VARIABLES[scheme]})"
            ) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return bucket, (self.scheme, self.name)

    # Looking

    def head(self, key: str) -> Fact:
        """Facts of one object. Raises `FileNotFoundError`, `StoreError`."""
        return _fact(self._do(key, lambda: self._verbs.head(self._store, key)), key.rpartition("/")[2])

    def below(self, prefix: str) -> list[Fact]:
        """Every object below a prefix, sorted by name."""

        def look() -> list[Fact]:
            found = self._verbs.list(self._store, prefix or None, chunk_size=1000)
            return [_fact(each, _relative(each["path"], prefix)) for chunk in found for each in chunk]

        return sorted(self._do(prefix, look), key=lambda fact: fact.name)

    def children(self, prefix: str) -> tuple[list[str], list[Fact]]:
        """Names of prefixes, and objects, directly below a prefix."""
        found = self._do(prefix, lambda: self._verbs.list_with_delimiter(self._store, prefix or None))
        prefixes = [_relative(each, prefix) for each in found["common_prefixes"]]
        return sorted(prefixes), [_fact(each, _relative(each["path"], prefix)) for each in found["objects"]]

    def holds_any(self, prefix: str) -> bool:
        """Whether there is an object below a prefix."""
        prefixes, facts = self.children(prefix)
        return bool(prefixes or facts)

    # Reading

    def read(self, key: str) -> bytes:
        """An object's bytes. Raises `FileNotFoundError`, `StoreError`."""

        def read() -> bytes:
            answer = self._verbs.get(self._store, key)
            data = bytes(memoryview(answer.bytes()))
            if len(data) != answer.meta["size"]:
                raise _Torn(f"{len(data)} of {answer.meta['size']} bytes")
            return data

        return self._do(key, read)

    def tail(self, key: str, size: int) -> tuple[Fact, memoryview]:
        """The last bytes of an object, at most `size`, and its facts."""
        if self.scheme == "az":  # knows no ranges from the end
            fact = self.head(key)
            start = max(0, fact.size - size)
            return fact, self.read_range(key, start, fact.size, fact.etag) if fact.size else memoryview(b"")

        def read() -> tuple[Fact, memoryview]:
            try:
                answer = self._verbs.get(self._store, key, options={"range": {"suffix": size}})
            except self._verbs.exceptions.BaseError:
                meta = self._verbs.head(self._store, key)
                if meta["size"]:
                    raise
                return _fact(meta, key.rpartition("/")[2]), memoryview(b"")  # S3 refuses every range of an empty object
            fact = _fact(answer.meta, key.rpartition("/")[2])
            data = memoryview(answer.bytes())
            if len(data) != min(size, fact.size):
                raise _Torn(f"{len(data)} of {min(size, fact.size)} bytes")
            return fact, data

        return self._do(key, read)

    def read_range(self, key: str, start: int, stop: int, etag: str | None = None) -> memoryview:
        """The bytes [start, stop) of an object. Raises `CorruptShard` if its tag is not `etag`: it was replaced."""

        def read() -> memoryview:
            answer = self._verbs.get(self._store, key, options={"range": (start, stop)})
            if etag is not None and (answer.meta["e_tag"] or "") != etag:
                raise CorruptShard(
                    f"{self.place(key)}: was replaced while it was read; restore it or open the dataset again"
                )
            data = memoryview(answer.bytes())
            if len(data) != stop - start:
                raise _Torn(f"{len(data)} of {stop - start} bytes")
            return data

        return self._do(key, read) if stop > start else memoryview(b"")

    def read_ranges(
        self, key: str, ranges: Sequence[tuple[int, int]], etag: str | None = None
    ) -> list[tuple[int, memoryview]]:
        """Bytes that cover all the ranges, as (start, bytes), sorted; near ones are fetched as one."""
        wanted = joined_ranges(ranges)
        if len(wanted) < 2:
            return [(start, self.read_range(key, start, stop, etag)) for start, stop in wanted]
        with ThreadPoolExecutor(min(_MOST_PARALLEL, len(wanted)), thread_name_prefix="headrace-get") as pool:
            found = list(pool.map(lambda each: self.read_range(key, each[0], each[1], etag), wanted))
        return [(start, data) for (start, _), data in zip(wanted, found, strict=True)]

    def checksum(self, key: str) -> str:
        """XXH3-128 of an object's bytes, read back whole; O(1) of memory."""
        digest = xxhash.xxh3_128()
        for piece in self.pieces(key, self.head(key)):
            digest.update(piece)
        return digest.hexdigest()

    def _told_checksum(self, key: str, size: int) -> str:
        """The same; of a small object with one request."""
        return xxhash.xxh3_128_hexdigest(self.read(key)) if size <= PIECE_BYTES else self.checksum(key)

    def fetch(self, key: str, target: Path) -> Fact:
        """Write an object's bytes to a local file, synced by nobody; whole, or an error is raised."""
        fact = self.head(key)
        with storing(target), target.open("r+b" if target.exists() else "xb", buffering=0) as file:
            file.truncate(fact.size)
            for piece in self.pieces(key, fact):
                view = piece
                while len(view):
                    view = view[file.write(view) :]
        return fact

    def pieces(self, key: str, fact: Fact) -> Iterator[memoryview]:
        """An object's bytes in order, a few pieces of 8 MiB fetched ahead: one that breaks off costs itself only."""
        starts = range(0, fact.size, PIECE_BYTES)
        if len(starts) < 2:
            yield self.read_range(key, 0, fact.size, fact.etag)
            return
        with ThreadPoolExecutor(_MOST_AHEAD, thread_name_prefix="headrace-get") as pool:
            ahead: deque[Future[memoryview]] = deque()
            try:
                for start in starts:
                    stop = min(start + PIECE_BYTES, fact.size)
                    ahead.append(pool.submit(self.read_range, key, start, stop, fact.etag))
                    if len(ahead) == _MOST_AHEAD:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for each in ahead:
                    each.cancel()

    # Writing

    def put_new(self, key: str, source: Path | bytes) -> Put:
        """Publish bytes under a key that is free, and read them back: "put", or "kept" if they were there already.

        A key appears whole or not at all. Exactly one of several writers of a small object wins (a conditional put);
        the others find its bytes and compare. Files above 64 MiB go up in parts, after a look that the key is free:
        of two that write it at the same instant the last one is kept. Raises `CorruptShard` if other bytes are there.
        """
        size = source.stat().st_size if isinstance(source, Path) else len(source)
        own = checksum_file(source) if isinstance(source, Path) else xxhash.xxh3_128_hexdigest(source)
        how: Put = "put"
        if size <= _SINGLE_PUT:
            data = source.read_bytes() if isinstance(source, Path) else source
            how = self._create(key, data)
        elif self._is_there(key):
            how = "kept"
        else:
            self._do(
                key,
                lambda: self._verbs.put(
                    self._store, key, source, use_multipart=True, chunk_size=_PART, max_concurrency=4
                ),
            )
        if self._told_checksum(key, size) != own:
            raise CorruptShard(
                f"{self.place(key)}: holds other bytes than this run makes; it is damaged or was made by other library"
                f" versions; delete it (or run `headrace gc --incomplete`) and run again"
            )
        return how

    def replace(self, key: str, data: bytes) -> None:
        """Put bytes under a key, whatever was there, in one step."""
        self._do(key, lambda: self._verbs.put(self._store, key, data, use_multipart=False))

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the store."""
        self._do(source, lambda: self._verbs.copy(self._store, source, target))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are no error."""
        for key in keys:

            def drop(key: str = key) -> None:
                with suppress(FileNotFoundError):
                    self._verbs.delete(self._store, key)

            self._do(key, drop)

    def place(self, key: str) -> str:
        """The address of a key."""
        return f"{self.scheme}://{self.name}/{key}"

    def _create(self, key: str, data: bytes) -> Put:
        def put() -> Put:
            try:
                self._verbs.put(self._store, key, data, mode="create", use_multipart=False)
            except self._verbs.exceptions.AlreadyExistsError:
                return "kept"  # another writer's, or our own whose answer was lost: the bytes are compared
            return "put"

        return self._do(key, put)

    def _is_there(self, key: str) -> bool:
        try:
            self.head(key)
        except FileNotFoundError:
            return False
        return True

    def _do(self, key: str, act: Callable[[], Result]) -> Result:
        """Do it; again where an answer broke off. Raises `FileNotFoundError` and `StoreError`, without secrets."""
        _refuse_forked()
        pauses = _pauses()
        while True:
            try:
                return act()
            except FileNotFoundError:
                raise FileNotFoundError(2, "no such object", self.place(key)) from None
            except _Torn as error:
                said, again = f"the answer is cut: {error}", True
            except (CorruptShard, OSError) as error:
                if isinstance(error, CorruptShard) or not _is_transport(error):
                    raise
                said, again = type(error).__name__, True
            except self._verbs.exceptions.BaseError as error:
                said, again = _told(error), not _is_answer(error)
                remedy = _advice(error)
                if remedy is not None:
                    raise StoreError(f"{self.place(key)}: {said}; {remedy}") from None
            pause = next(pauses, None) if again else None
            if pause is None:
                raise StoreError(
                    f"{self.place(key)}: the store does not answer as it should ({said}); see that it is well, then run"
                    " again: what was finished is kept"
                ) from None
            time.sleep(pause)


_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL",
    "gs": "GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY",
}

_lock = Lock()
_buckets: dict[tuple[str, str], Bucket] = {}
_used_by: int | None = None


def bucket(scheme: str, name: str) -> Bucket:
    """The bucket of that name, one object a process. Raises `MissingExtra` without obstore, `StoreError`."""
    _refuse_forked()
    with _lock:
        if (scheme, name) not in _buckets:
            _buckets[scheme, name] = Bucket(scheme, name)
        return _buckets[scheme, name]


def forget_buckets() -> None:
    """Set stores up anew when they are next asked for, from the environment as it is then."""
    with _lock:
        _buckets.clear()


def _refuse_forked() -> None:
    """The threads that speak to the store do not come along into a forked child: it would wait for them for ever."""
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


def _relative(path: str, prefix: str) -> str:
    return path.removeprefix(prefix).removeprefix("/") if prefix else path


def _fact(meta: Any, name: str) -> Fact:
    changed = meta["last_modified"]
    seconds = int(changed.timestamp())
    return Fact(name, int(meta["size"]), seconds * 1_000_000_000 + changed.microsecond * 1000, meta["e_tag"] or "")


def _is_transport(error: OSError) -> bool:
    return isinstance(error, ConnectionError | TimeoutError)


def _is_answer(error: Exception) -> bool:
    """Whether the store said this itself, and no connection broke."""
    return _STATUS.search(str(error)) is not None


def _told(error: Exception) -> str:
    """What a store answered, without what it may have repeated of the request."""
    text = str(error)
    parts = [each[1].strip() for each in (_STATUS.search(text), _CODE.search(text)) if each is not None]
    return ", ".join(parts) or type(error).__name__


def _advice(error: Exception) -> str | None:
    """What to do about an answer that will be the same the next time; None: it may be asked for again."""
    name = type(error).__name__
    if name in ("PermissionDeniedError", "UnauthenticatedError") or _told(error)[:3] in ("401", "403"):
        return "access is refused: check the credentials in the environment and what they may do"
    if name in ("NotImplementedError", "NotSupportedError", "InvalidPathError", "UnknownConfigurationKeyError"):
        return "the store cannot do this; see the guide to object stores"
    return None


def joined_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges [start, stop) that cover the given ones; sorted, without overlap, none empty or above 8 MiB."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(each for each in ranges if each[0] < each[1]):
        if joined and start <= joined[-1][1] + _JOIN_GAP_BYTES:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return [(at, min(at + PIECE_BYTES, stop)) for start, stop in joined for at in range(start, stop, PIECE_BYTES)]
