"""The verbs of storage and their promises: the protocol that each backend implements in a module of
its own.

A `Place` is a path together with the backend that it belongs to; `headrace.storage.places.place_of`
makes it. Whoever holds one asks it for a verb and never which backend it is. Where the way of
working has to differ, the place says what it can do (`reads`, `writes`, `has_links`). One contract
suite runs against every backend. `RemoteFile` is a file of any place that answers requests.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

Put = Literal["put", "kept"]

# bytes that a `RemoteFile` reads ahead
_LEAST = 64 << 10
_MOST = 8 << 20
_KEPT = 4  # pieces: heads, footers and bodies are read in turns


@dataclass(frozen=True)
class Fact:
    """A file or object.

    name: relative to what was listed; mtime_ns: informational in a store; etag: its version.
    """

    name: str
    size: int
    mtime_ns: int
    etag: str


class Place(Protocol):
    """A file or directory in the backend that holds it.

    reads: what a read costs, a system call or a request that is worth planning, joining and
    caching. parallel_reads: how many files are worth asking for at a time.
    writes: whether files can be built and locked where they lie, or only appear whole.
    has_links: whether symbolic links can point into a run; `splits.json` does where there are none.
    Verbs that need a file raise `FileNotFoundError` if there is none. Those that write raise
    `StoreError`.
    """

    path: Path
    reads: Literal["calls", "requests"]
    parallel_reads: int
    writes: Literal["in place", "whole files"]
    has_links: bool

    # Names

    def absolute(self) -> Path:
        """Return the path from the root, with links as they are."""

    def real(self) -> Path:
        """Return the path from the root through all links."""

    def matches(self) -> list[Path]:
        """List the files and directories that the path matches as a pattern."""

    # Looking

    def stat(self) -> Fact:
        """Return size, time and tag of a file. A local file's tag is its inode and times."""

    def version(self, fact: Fact) -> int | str:
        """Return the part of a file's facts that identifies its bytes in a fingerprint: a time or a
        tag.
        """

    def changed_ns(self, fact: Fact) -> int:
        """Return a number that differs between versions of a file of one size, as an index keeps
        it.
        """

    def children(self) -> tuple[list[str], list[Fact]]:
        """List names of directories and facts of files directly below, sorted; nothing if nothing
        is there.
        """

    def files_below(self) -> list[Fact]:
        """List every file at any depth, named relative to this directory, sorted; none if nothing
        is there.
        """

    def holds_any(self, names: Collection[str]) -> bool:
        """Return whether one of these names is directly below."""

    # Reading

    def read(self) -> bytes:
        """Read all bytes.

        Raises `CorruptShard` for what is neither a file nor missing, such as a pipe.
        """

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read the bytes [start, stop) of each range, in their order.

        A range ends where the file ends.
        """

    def read_covering(
        self, ranges: Sequence[tuple[int, int]], fact: Fact
    ) -> list[tuple[int, memoryview]]:
        """Read (start, bytes) that cover the ranges, sorted, each range inside one of them.

        Raises `CorruptShard` if `fact` is of another version.
        """

    def tail(self, size: int) -> tuple[Fact, memoryview]:
        """Read the last bytes, at most `size`, with the facts of the file that they are of."""

    def open(self, fact: Fact, known: Sequence[tuple[int, memoryview]] = ()) -> BinaryIO:
        """Open a binary file with seeking.

        Reading raises `CorruptShard` if `fact` is of another version.

        known: (start, bytes) that were read before and need no request.
        """

    def arrow_stream(self) -> pa.NativeFile:
        """Open the bytes for Arrow, read as they are asked for."""

    def checksum(self) -> str:
        """Compute XXH3-128 of the bytes, read whole; O(1) of memory."""

    def fetch(self, target: Path) -> None:
        """Copy the bytes to a local file, whole and not synced."""

    def local_copy(self) -> AbstractContextManager[Path]:
        """Give the file itself where it is local, or a temporary copy that is removed
        afterwards.
        """

    def local_tree(self) -> AbstractContextManager[Path]:
        """Give a directory and all files below it in the same way."""

    # Writing

    def put_new(self, source: Path | bytes) -> Put:
        """Publish bytes, or a local file's, under a free name, whole and durable: "put", or "kept"
        if they were there.

        Raises `CorruptShard` if other bytes are there, which stay. A store's object is read back.
        """

    def replace(self, data: bytes) -> None:
        """Put bytes under the name in one step, whatever was there."""

    def alias(self, target: Path) -> None:
        """Give the file a second name in the same backend: a link or a copy that is made there."""

    def delete(self) -> None:
        """Delete a file; a missing one is not an error."""

    def delete_below(self) -> int | None:
        """Delete a directory and everything below it; return its bytes, None if nothing was
        there.
        """

    def sweep(self, older_than_s: float | None = None) -> None:
        """Delete the temporary files that killed writers of this name left beside it."""


class RemoteFile(io.RawIOBase):
    """A readable, seekable file over the pieces of an object.

    known: pieces that were fetched before. Not thread-safe.

    Sequential reads fetch growing pieces (64 KiB to 8 MiB); a jump fetches what was asked for and
    little more. Every response must carry the tag of the first one, so an object that is replaced
    meanwhile is an error, never a mix.
    """

    def __init__(
        self, location: Place, fact: Fact, known: Sequence[tuple[int, memoryview]] = ()
    ) -> None:
        super().__init__()
        self._location = location
        self._fact = fact
        self._at = 0
        self._known = known
        self._recent: OrderedDict[int, memoryview] = OrderedDict()
        self._ahead = _LEAST
        self._reached = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        """Bytes of the object."""
        return self._fact.size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._fact.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Read `size` bytes, fewer only at the end of the object."""
        if size is None or size < 0:
            stop = self._fact.size
        else:
            stop = min(self._fact.size, self._at + size)
        if stop <= self._at:
            return b""
        data = self._cached_bytes(self._at, stop)
        if data is None:
            data = self._fetched(self._at, stop)
        self._at = stop
        return bytes(data)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self.read()

    def _cached_bytes(self, start: int, stop: int) -> memoryview | None:
        for begin, chunk in (*self._known, *self._recent.items()):
            if begin <= start and stop <= begin + len(chunk):
                if begin in self._recent:
                    self._recent.move_to_end(begin)
                return chunk[start - begin : stop - begin]
        return None

    def _fetched(self, start: int, stop: int) -> memoryview:
        """Fetch the bytes, reusing a piece that holds their beginning."""
        for begin, chunk in self._recent.items():
            if begin <= start < begin + len(chunk) == self._reached:
                known = chunk[start - begin :]
                remaining = self._ask(begin + len(chunk), stop)
                return memoryview(b"".join([known, remaining[: stop - start - len(known)]]))
        return self._ask(start, stop)[: stop - start]

    def _ask(self, start: int, stop: int) -> memoryview:
        if start == self._reached and start:
            self._ahead = min(_MOST, 2 * self._ahead)
        else:
            self._ahead = _LEAST
        end = min(self._fact.size, max(stop, start + self._ahead))
        [(_, data)] = self._location.read_covering([(start, end)], self._fact)
        self._reached = end
        self._recent[start] = data
        while len(self._recent) > _KEPT:
            self._recent.popitem(last=False)
        return data
