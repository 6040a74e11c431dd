"""Store objects: the backend `ObjectPlace` and its paths, `s3://bucket/key`, `gs://bucket/key`,
`az://container/key`.

An `ObjectPath` is a pure path: it joins, compares, sorts and pickles as paths do. `stat`,
`open("rb")`, `exists`, `iterdir` and a few other reading verbs answer for objects. Every other verb
of `Path`, and every function that asks for a name on the local file system (`os.fspath`), raises
`StoreError`, so nothing is done to a local file by mistake. A directory is a prefix: it is there
while an object is below it. There are no links.

Objects appear whole or not at all.
"""

from __future__ import annotations

import io
import os
import re
import stat as modes
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar, cast

import xxhash

from headrace.digest import checksum_file
from headrace.errors import CorruptShard, StoreError
from headrace.storage.bucket import SCHEMES, Bucket, bucket
from headrace.storage.local import storing
from headrace.storage.place import Fact, Put, RemoteFile
from headrace.storage.reading import ObjectReading

if TYPE_CHECKING:
    import pyarrow as pa

Item = TypeVar("Item")

_SECOND = 1_000_000_000  # nanoseconds
_JOIN_GAP_BYTES = 512 << 10  # between two ranges that are cheaper to fetch than another request
_PIECE_BYTES = 8 << 20  # of a large range that is fetched in parallel
_MOST_PARALLEL = 8  # requests of one call
_MOST_AHEAD = 4  # pieces, so that a reader holds 32 MiB
_SINGLE_PUT = 64 << 20  # larger files are uploaded in parts
_PART = 16 << 20  # bytes of one part of such an upload
_NO_SUCH_RANGE = re.compile(r"\b(416|NotPartial)\b")
_LOST = "see that the store keeps what it is given, then run again: what was finished is kept"


class ObjectPath(PurePosixPath):
    """An object, or a prefix of objects. Made by `path_of`."""

    # Names

    def as_posix(self) -> str:
        parts = self.parts
        if not self.is_absolute():
            return "/".join(parts) or "."
        return f"{parts[0]}//{'/'.join(parts[1:])}"

    def __str__(self) -> str:
        return self.as_posix()

    def __fspath__(self) -> str:
        raise StoreError(
            "is in an object store, and this step needs a local file",
            path=str(self),
            remedy="copy it to a disk first",
        )

    def __getattr__(self, name: str) -> Any:
        """Make a verb of local files raise `StoreError` when it is called, which says more than
        `AttributeError`.
        """
        if name.startswith("_") or not hasattr(Path, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return lambda *_, **__: self.__fspath__()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.parts)

    def is_absolute(self) -> bool:
        """Return whether it has a scheme; the result of `relative_to` has none."""
        return bool(self.parts) and self.parts[0].endswith(":") and self.parts[0][:-1] in SCHEMES

    def absolute(self) -> ObjectPath:
        """Return the path itself."""
        return self

    # What is there

    def stat(self) -> os.stat_result:
        """Return size and time of the object; the inode is a hash of its tag."""
        return _as_stat(ObjectPlace(self).stat())

    def exists(self) -> bool:
        """Return whether there is an object of that name, or one below it."""
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        """Return whether there is an object of that name."""
        try:
            return len(self.parts) > 2 and ObjectPlace(self).stat() is not None
        except FileNotFoundError:
            return False

    def is_dir(self) -> bool:
        """Return whether there is an object below it."""
        return any(ObjectPlace(self).children())

    def is_symlink(self) -> bool:
        """Return False: there are no links."""
        return False

    def iterdir(self) -> Iterator[ObjectPath]:
        """List objects and prefixes directly below, sorted."""
        prefixes, files = ObjectPlace(self).children()
        yield from (self / name for name in sorted({*prefixes, *(fact.name for fact in files)}))

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """List objects whose names below this prefix match, sorted; "**" is any number of parts."""
        patterns = PurePosixPath(pattern).parts
        names = (fact.name for fact in ObjectPlace(self).files_below())
        yield from (self / name for name in names if matches(name.split("/"), patterns))

    def rglob(self, pattern: str) -> Iterator[ObjectPath]:
        """List matching objects at any depth."""
        yield from self.glob(f"**/{pattern}")

    # Bytes

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        """Open the object for reading ("rb" or "r"), with seeking; bytes are fetched as they are
        asked for.
        """
        if mode not in ("r", "rb", "rt"):
            raise StoreError(
                f"objects are not opened for writing (mode {mode!r})",
                path=str(self),
                remedy="publish whole files",
            )
        location = ObjectPlace(self)
        raw = location.open(location.stat())
        if mode == "rb":
            return raw
        return io.TextIOWrapper(io.BufferedReader(cast("io.RawIOBase", raw)), "utf-8")

    def read_bytes(self) -> bytes:
        """Read the object's bytes."""
        return ObjectPlace(self).read()

    def read_text(self, encoding: str | None = None) -> str:
        """Read the object's bytes as text, UTF-8 by default."""
        return self.read_bytes().decode(encoding or "utf-8")


class ObjectPlace:
    """An object or a prefix in a store. See `Place` for the promises."""

    reads: Literal["calls", "requests"] = "requests"
    parallel_reads = 32  # each waits for a response
    writes: Literal["in place", "whole files"] = "whole files"
    has_links = False

    def __init__(self, path: ObjectPath) -> None:
        # Callers hold paths of both backends as `Path`. Its local verbs are refused when they are
        # called.
        self.path = cast("Path", path)
        self._key = "/".join(path.parts[2:])

    # Names

    def absolute(self) -> Path:
        return self.path

    def real(self) -> Path:
        return self.path

    def matches(self) -> list[Path]:
        return [cast("Path", path) for path in ObjectPath(*self.path.parts[:2]).glob(self._key)]

    # Looking

    def stat(self) -> Fact:
        meta = self._do(lambda: self._verbs.head(self._store, self._key))
        return _fact(meta, self.path.name)

    def version(self, fact: Fact) -> int | str:
        return fact.etag

    def changed_ns(self, fact: Fact) -> int:
        return _as_stat(fact).st_mtime_ns

    def children(self) -> tuple[list[str], list[Fact]]:
        from headrace.storage.listing import list_directly  # loads asyncio

        prefixes, entries = self._do(lambda: list_directly(self._bucket, self._key))
        return sorted(self._relative(entry) for entry in prefixes), [
            _fact(entry, self._relative(entry["path"])) for entry in entries
        ]

    def files_below(self) -> list[Fact]:
        from headrace.storage.listing import list_all  # loads asyncio

        entries = self._do(lambda: list_all(self._bucket, self._key))
        listed = [_fact(entry, self._relative(entry["path"])) for entry in entries]
        return sorted(listed, key=lambda fact: fact.name)

    def holds_any(self, names: Collection[str]) -> bool:
        prefixes, files = self.children()
        return not {*prefixes, *(fact.name for fact in files)}.isdisjoint(names)

    # Reading

    def read(self) -> bytes:
        reading = ObjectReading(self._bucket, self._key)
        data = reading.take_up_to(_PIECE_BYTES)
        if data is None:
            return b"".join(self._chunks(_fact(reading.meta, self.path.name)))
        return bytes(data)

    def read_range(self, start: int, stop: int, etag: str | None = None) -> memoryview:
        """Read the bytes [start, stop).

        Raises `CorruptShard` if the object was replaced: its tag is not `etag`.
        """
        if stop > start:
            return ObjectReading(self._bucket, self._key, (start, stop), etag).take()
        return memoryview(b"")

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        chunks = self._read_joined(ranges, None)
        result = []
        for start, stop in ranges:
            overlapping = []
            for at, chunk in chunks:
                if at < stop and start < at + len(chunk):
                    overlapping.append(chunk[max(0, start - at) : stop - at])
            result.append(b"".join(overlapping))
        return result

    def read_covering(
        self, ranges: Sequence[tuple[int, int]], fact: Fact
    ) -> list[tuple[int, memoryview]]:
        return self._read_joined(ranges, fact.etag)

    def _read_joined(
        self, ranges: Sequence[tuple[int, int]], etag: str | None
    ) -> list[tuple[int, memoryview]]:
        joined = joined_ranges(ranges)
        if len(joined) < 2:
            return [(start, self.read_range(start, stop, etag)) for start, stop in joined]
        with ThreadPoolExecutor(
            min(_MOST_PARALLEL, len(joined)), thread_name_prefix="headrace-get"
        ) as pool:
            answers = pool.map(lambda range_: self.read_range(range_[0], range_[1], etag), joined)
            chunks: list[tuple[int, list[memoryview]]] = []
            end = -1
            for (start, stop), data in zip(joined, answers, strict=True):
                if start == end:
                    chunks[-1][1].append(data)
                else:
                    chunks.append((start, [data]))
                end = stop
        return [
            (start, parts[0] if len(parts) == 1 else memoryview(b"".join(parts)))
            for start, parts in chunks
        ]

    def tail(self, size: int) -> tuple[Fact, memoryview]:
        if self._bucket.scheme == "az":  # knows no ranges from the end
            fact = self.stat()
            return fact, self.read_range(max(0, fact.size - size), fact.size, fact.etag)

        reading = ObjectReading(self._bucket, self._key, {"suffix": size})
        try:
            data = reading.take()
        except StoreError as error:
            if not _NO_SUCH_RANGE.search(error.args[0]):
                raise
            fact = self.stat()
            if fact.size:
                raise
            return fact, memoryview(b"")  # S3 refuses every range of an empty object
        return _fact(reading.meta, self.path.name), data

    def open(self, fact: Fact, known: Sequence[tuple[int, memoryview]] = ()) -> BinaryIO:
        return cast("BinaryIO", RemoteFile(self, fact, known))

    def arrow_stream(self) -> pa.NativeFile:
        import pyarrow as pa

        return pa.PythonFile(self.open(self.stat()), mode="r")

    def checksum(self) -> str:
        digest = xxhash.xxh3_128()
        for chunk in self._chunks(self.stat()):
            digest.update(chunk)
        return digest.hexdigest()

    def fetch(self, target: Path) -> None:
        fact = self.stat()
        with storing(target), target.open("r+b" if target.exists() else "xb", buffering=0) as file:
            file.truncate(fact.size)
            for chunk in self._chunks(fact):
                view = chunk
                while len(view):
                    view = view[file.write(view) :]

    def _chunks(self, fact: Fact) -> Iterator[memoryview]:
        """Iterate over the bytes in pieces of 8 MiB, a few fetched ahead; a broken piece is fetched
        again alone.
        """
        if fact.size <= _PIECE_BYTES:
            yield self.read_range(0, fact.size, fact.etag)
            return
        with ThreadPoolExecutor(_MOST_AHEAD, thread_name_prefix="headrace-get") as pool:
            ahead: deque[Future[memoryview]] = deque()
            try:
                for start in range(0, fact.size, _PIECE_BYTES):
                    stop = min(start + _PIECE_BYTES, fact.size)
                    ahead.append(pool.submit(self.read_range, start, stop, fact.etag))
                    if len(ahead) == _MOST_AHEAD:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for future in ahead:
                    future.cancel()

    @contextmanager
    def local_copy(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
            copy = Path(directory) / self.path.name
            self.fetch(copy)
            yield copy

    @contextmanager
    def local_tree(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
            root = Path(directory) / self.path.name

            def fetch(name: str) -> None:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                self._below(name).fetch(root / name)

            _in_parallel(fetch, [fact.name for fact in self.files_below()])
            yield root

    # Writing

    def put_new(self, source: Path | bytes) -> Put:
        """Publish as `Place` says.

        Exactly one of several writers of a small object wins (a conditional put).

        Files above 64 MiB go up in parts, after a look that the key is free: of two that write it
        at the same instant the last one is kept.
        """
        if isinstance(source, Path):
            size = source.stat().st_size
        else:
            size = len(source)
        if isinstance(source, Path):
            checksum = checksum_file(source)
        else:
            checksum = xxhash.xxh3_128_hexdigest(source)
        how: Put = "put"

        def create(data: bytes) -> Put:
            store = self._bucket.store_for_upload(size)
            try:
                self._verbs.put(store, self._key, data, mode="create", use_multipart=False)
            except self._verbs.exceptions.AlreadyExistsError:
                # another writer's, or our own whose answer was lost: the bytes are compared
                return "kept"
            return "put"

        if size <= _SINGLE_PUT:
            if isinstance(source, Path):
                data = source.read_bytes()
            else:
                data = source
            how = self._do(lambda: create(data))
        elif self.path.is_file():
            how = "kept"
        else:
            in_parts = {"use_multipart": True, "chunk_size": _PART, "max_concurrency": 4}
            store = self._bucket.store_for_upload(2 * _PART)  # the last request may take minutes
            self._do(lambda: self._verbs.put(store, self._key, source, **in_parts))
        with self._confirming():
            # One request or two.
            if size <= _PIECE_BYTES:
                there = xxhash.xxh3_128_hexdigest(self.read())
            else:
                there = self.checksum()
        if there != checksum:
            raise CorruptShard(
                "holds other bytes than this run makes; it is damaged or was made by other"
                " library versions",
                path=self.path,
                remedy="delete it (or run `headrace gc --incomplete`) and run again",
            )
        return how

    def replace(self, data: bytes) -> None:
        before = None
        with suppress(FileNotFoundError):
            before = self.stat()
        store = self._bucket.store_for_upload(len(data))
        self._do(lambda: self._verbs.put(store, self._key, data, use_multipart=False))
        with self._confirming():  # the bytes may be those of another writer by now
            if self.stat() == before and self.read() != data:
                raise StoreError(
                    "the store acknowledged new bytes of this object and still has those of before",
                    path=self.path,
                    remedy=_LOST,
                )

    def alias(self, target: Path) -> None:
        key = "/".join(target.parts[2:])
        store = self._bucket.store_for_upload(_SINGLE_PUT)  # a copy may take minutes
        self._do(lambda: self._verbs.copy(store, self._key, key))
        with ObjectPlace(cast("ObjectPath", target))._confirming():
            copied = ObjectPlace(cast("ObjectPath", target)).stat()
        if copied.size != self.stat().size:
            raise StoreError(
                f"the store copied {copied.size:,} bytes of it only", path=target, remedy=_LOST
            )

    @contextmanager
    def _confirming(self) -> Iterator[None]:
        """Say what it means if an object that was just put is not there."""
        try:
            yield
        except FileNotFoundError:
            raise StoreError(
                "the store acknowledged this object and does not have it",
                path=self.path,
                remedy=_LOST,
            ) from None

    def delete(self) -> None:
        def drop() -> None:
            with suppress(FileNotFoundError):
                self._verbs.delete(self._store, self._key)

        self._do(drop)

    def delete_below(self) -> int | None:
        files = self.files_below()
        _in_parallel(lambda fact: self._below(fact.name).delete(), files)
        if files:
            return sum(fact.size for fact in files)
        return None

    def sweep(self, older_than_s: float | None = None) -> None:
        """Do nothing: objects have no temporary names."""

    # The bucket

    @property
    def _bucket(self) -> Bucket:
        return bucket(self.path.parts[0].removesuffix(":"), self.path.parts[1])

    @property
    def _verbs(self) -> Any:
        return self._bucket.verbs

    @property
    def _store(self) -> Any:
        return self._bucket.store

    def _do(self, act: Callable[[], Item]) -> Item:
        return self._bucket.do(self._key, act)

    def _below(self, name: str) -> ObjectPlace:
        return ObjectPlace(cast("ObjectPath", self.path / name))

    def _relative(self, key: str) -> str:
        if self._key:
            return key.removeprefix(self._key).removeprefix("/")
        return key


_THREADS = 8  # of verbs for many objects


def _in_parallel(act: Callable[[Item], None], items: Sequence[Item]) -> None:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-store") as pool:
        list(pool.map(act, items))


def _fact(meta: Any, name: str) -> Fact:
    changed = meta["last_modified"]
    seconds = int(changed.timestamp())
    return Fact(
        name, int(meta["size"]), seconds * _SECOND + changed.microsecond * 1000, meta["e_tag"] or ""
    )


def _as_stat(fact: Fact) -> os.stat_result:
    """Convert an object's facts to a file's.

    Stores report whole seconds, so the nanoseconds come from a hash of the tag: a new object gets a
    new time. Some stores quote a tag in one response and not in another.
    """
    seconds = fact.mtime_ns // _SECOND
    tag = xxhash.xxh3_64_intdigest(fact.etag.strip('"').encode()) >> 1
    changed_ns = seconds * _SECOND + tag % _SECOND
    return os.stat_result(
        (modes.S_IFREG | 0o644, tag, 0, 1, 0, 0, fact.size, seconds, seconds, seconds),
        {"st_mtime_ns": changed_ns, "st_mtime": changed_ns / 1e9},
    )


def joined_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge ranges [start, stop) into sorted ones without overlap, none empty or above 8 MiB."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(range_ for range_ in ranges if range_[0] < range_[1]):
        if joined and start <= joined[-1][1] + _JOIN_GAP_BYTES:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return [
        (at, min(at + _PIECE_BYTES, stop))
        for start, stop in joined
        for at in range(start, stop, _PIECE_BYTES)
    ]


def matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Match the parts of a name against those of a pattern; "**" stands for any number of parts."""
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(matches(parts[skip:], patterns[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], patterns[0]) and matches(parts[1:], patterns[1:])
