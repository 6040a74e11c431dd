"""Objects in a store: the backend `ObjectPlace` and its paths, `s3://bucket/key`, `gs://bucket/key`, `az://container/key`.

An `ObjectPath` is a `Path` whose reading verbs go to the store: it joins, compares, sorts and pickles as paths do, and
`stat`, `open("rb")`, `exists`, `iterdir` and `glob` answer for objects. Every other verb of `Path` asks for a name on
the local file system first (`os.fspath`), and that is refused with an error, so nothing is done to a local file by
mistake. A directory is a prefix: it is there while an object is below it. There are no links.

Objects appear whole or not at all. A bucket's own verbs are in `headrace.storage.bucket`.
"""

from __future__ import annotations

import io
import os
import stat as modes
import tempfile
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PosixPath, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeVar, cast

import xxhash

from headrace.errors import StoreError
from headrace.storage import bucket
from headrace.storage.bucket import Bucket
from headrace.storage.place import Fact, Put
from headrace.storage.remote_file import RemoteFile

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMES = ("s3", "gs", "az")
Item = TypeVar("Item")

_SECOND = 1_000_000_000  # nanoseconds


class ObjectPath(PosixPath):
    """An object, or a prefix of objects. Made by `path_of`."""

    # Names

    def as_posix(self) -> str:
        parts = self.parts
        if not parts or not self._is_whole:
            return "/".join(parts) or "."
        return f"{parts[0]}//{'/'.join(parts[1:])}"

    def __str__(self) -> str:
        return self.as_posix()

    def __fspath__(self) -> str:
        raise StoreError(f"{self}: is in an object store, and this step needs a local file; copy it to a disk first")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.parts)

    @property
    def _is_whole(self) -> bool:
        """Whether it has a scheme; what `relative_to` gives has none."""
        return self.parts[0].removesuffix(":") in SCHEMES and self.parts[0].endswith(":")

    @property
    def key(self) -> str:
        """The name inside the bucket; "" for the bucket itself."""
        return "/".join(self.parts[2:])

    @property
    def store(self) -> Bucket:
        """The bucket."""
        return bucket.bucket(self.parts[0].removesuffix(":"), self.parts[1])

    def is_absolute(self) -> bool:
        return bool(self.parts) and self._is_whole

    def absolute(self) -> ObjectPath:
        return self

    def resolve(self, strict: bool = False) -> ObjectPath:  # noqa: ARG002 - as in Path
        return self

    def expanduser(self) -> ObjectPath:
        return self

    # What is there

    def fact(self) -> Fact:
        """Size, time and tag of the object. Raises `FileNotFoundError`."""
        return self.store.head(self.key)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:  # noqa: ARG002 - as in Path
        """Size and time of the object; the inode is a hash of its tag, so that another object is another one."""
        return _as_stat(self.fact())

    def lstat(self) -> os.stat_result:
        return self.stat()

    def exists(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - as in Path
        return self.is_file() or self.is_dir()

    def is_file(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - as in Path
        try:
            return bool(self.key) and self.fact() is not None
        except FileNotFoundError:
            return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:  # noqa: ARG002 - as in Path
        return self.store.holds_any(self.key)

    def is_symlink(self) -> bool:
        return False

    def iterdir(self) -> Generator[ObjectPath, None, None]:
        """What lies directly below: objects and prefixes, sorted."""
        prefixes, facts = self.store.children(self.key)
        yield from (self / name for name in sorted({*prefixes, *(fact.name for fact in facts)}))

    def glob(self, pattern: str, **_: Any) -> Generator[ObjectPath, None, None]:
        """Objects whose names below this prefix match, sorted; "**" is any number of parts."""
        wanted = [*PurePath(pattern).parts]
        names = (fact.name for fact in self.store.below(self.key))
        yield from (self / name for name in names if matches(name.split("/"), wanted))

    def rglob(self, pattern: str, **_: Any) -> Generator[ObjectPath, None, None]:
        yield from self.glob(f"**/{pattern}")

    def walk(self, *_: Any, **__: Any) -> Any:
        """Not here: `glob` and `iterdir` are."""
        return os.fspath(self)

    # Bytes

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        """The object for reading ("rb" or "r"), with seeking; bytes are fetched as they are asked for."""
        if mode not in ("r", "rb", "rt"):
            raise StoreError(f"{self}: objects are not opened for writing (mode {mode!r}); publish whole files")
        fact = self.fact()
        raw = RemoteFile(self.store, self.key, fact)
        return raw if mode == "rb" else io.TextIOWrapper(io.BufferedReader(cast("io.RawIOBase", raw)), "utf-8")

    def read_bytes(self) -> bytes:
        return self.store.read(self.key)

    def read_text(self, encoding: str | None = None, *_: Any, **__: Any) -> str:
        return self.read_bytes().decode(encoding or "utf-8")

    def unlink(self, missing_ok: bool = False) -> None:
        """Delete the object. What is not there is not told apart by stores."""
        if not missing_ok:
            self.fact()
        self.store.delete([self.key])


class ObjectPlace:
    """An object or a prefix in a store. See `Place` for the promises."""

    reads: Literal["calls", "requests"] = "requests"
    parallel_reads = 32  # each waits for an answer
    writes: Literal["in place", "whole files"] = "whole files"
    has_links = False

    def __init__(self, path: ObjectPath) -> None:
        self.path = path

    def absolute(self) -> Path:
        return self.path

    def real(self) -> Path:
        return self.path

    def matches(self) -> list[Path]:
        return list(ObjectPath(*self.path.parts[:2]).glob(self.path.key))

    def stat(self) -> Fact:
        return self.path.fact()

    def version(self, fact: Fact) -> int | str:
        return fact.etag

    def changed_ns(self, fact: Fact) -> int:
        return _as_stat(fact).st_mtime_ns

    def children(self) -> tuple[list[str], list[Fact]]:
        return self.path.store.children(self.path.key)

    def files_below(self) -> list[Fact]:
        return self.path.store.below(self.path.key)

    def holds_any(self, names: Collection[str]) -> bool:
        prefixes, facts = self.children()
        return not {*prefixes, *(fact.name for fact in facts)}.isdisjoint(names)

    def free_bytes(self) -> int | None:
        return None

    def read(self) -> bytes:
        return self.path.store.read(self.path.key)

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        found = self.path.store.read_ranges(self.path.key, ranges)
        return [_cut(found, start, stop) for start, stop in ranges]

    def read_pieces(self, ranges: Sequence[tuple[int, int]], fact: Fact) -> list[tuple[int, memoryview]]:
        return self.path.store.read_ranges(self.path.key, ranges, fact.etag)

    def tail(self, size: int) -> tuple[Fact, memoryview]:
        return self.path.store.tail(self.path.key, size)

    def open(self, fact: Fact, known: Sequence[tuple[int, memoryview]] = ()) -> BinaryIO:
        return cast("BinaryIO", RemoteFile(self.path.store, self.path.key, fact, known))

    def arrow_stream(self) -> pa.NativeFile:
        import pyarrow as pa

        return pa.PythonFile(self.path.open("rb"), mode="r")

    def arrow_map(self) -> pa.NativeFile:
        return self.arrow_stream()

    def checksum(self) -> str:
        return self.path.store.checksum(self.path.key)

    def fetch(self, target: Path) -> None:
        self.path.store.fetch(self.path.key, target)

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
                ObjectPlace(self.path / name).fetch(root / name)

            _in_parallel(fetch, [fact.name for fact in self.files_below()])
            yield root

    def put_new(self, source: Path | bytes) -> Put:
        return self.path.store.put_new(self.path.key, source)

    def replace(self, data: bytes) -> None:
        self.path.store.replace(self.path.key, data)

    def alias(self, target: Path) -> None:
        assert isinstance(target, ObjectPath)
        self.path.store.copy(self.path.key, target.key)

    def delete(self) -> None:
        self.path.store.delete([self.path.key])

    def delete_below(self) -> int | None:
        facts = self.files_below()
        _in_parallel(lambda fact: ObjectPlace(self.path / fact.name).delete(), facts)
        return sum(fact.size for fact in facts) if facts else None

    def sweep(self, older_than_s: float | None = None) -> None:
        """Objects have no temporary names."""


_THREADS = 8  # of verbs for many objects


def _in_parallel(act: Callable[[Item], None], items: Sequence[Item]) -> None:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-store") as pool:
        list(pool.map(act, items))


def _as_stat(fact: Fact) -> os.stat_result:
    """An object's facts in the form of a file's.

    Stores tell whole seconds, so the nanoseconds of the time are made of the tag: another object has another time.
    Some stores tell a tag with quotes in one answer and without them in another.
    """
    seconds = fact.mtime_ns // _SECOND
    tag = xxhash.xxh3_64_intdigest(fact.etag.strip('"').encode()) >> 1
    changed_ns = seconds * _SECOND + tag % _SECOND
    return os.stat_result(
        (modes.S_IFREG | 0o644, tag, 0, 1, 0, 0, fact.size, seconds, seconds, seconds),
        {"st_mtime_ns": changed_ns, "st_mtime": changed_ns / 1e9},
    )


def _cut(pieces: Sequence[tuple[int, memoryview]], start: int, stop: int) -> bytes:
    held = [piece[max(0, start - at) : stop - at] for at, piece in pieces if at < stop and start < at + len(piece)]
    return b"".join(held)


def matches(parts: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether the parts of a name are those of a pattern; "**" stands for any number of parts."""
    if not wanted:
        return not parts
    if wanted[0] == "**":
        return any(matches(parts[skip:], wanted[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], wanted[0]) and matches(parts[1:], wanted[1:])
