"""The verbs of storage and their promises: the protocol that each backend implements in a module of its own.

A `Place` is a path together with the backend that it belongs to; `headrace.storage.places.place_of` makes it. Whoever
holds one asks it for a verb and never which backend it is. Where the way of working has to differ, the place says what
it can do (`reads`, `writes`, `has_links`). One contract suite runs against every backend.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

Put = Literal["put", "kept"]


@dataclass(frozen=True)
class Fact:
    """A file or object. name: relative to what was listed; mtime_ns: informational in a store; etag: its version."""

    name: str
    size: int
    mtime_ns: int
    etag: str


class Place(Protocol):
    """A file or directory in the backend that holds it.

    reads: what a read costs, a system call or a request that is worth planning, joining and caching.
    parallel_reads: how many files are worth asking for at a time.
    writes: whether files can be built and locked where they lie, or only appear whole.
    has_links: whether symbolic links can point into a run; `splits.json` does where there are none.
    Verbs that need a file raise `FileNotFoundError` if there is none. Those that write raise `StoreError`.
    """

    @property
    def path(self) -> Path: ...
    @property
    def reads(self) -> Literal["calls", "requests"]: ...
    @property
    def parallel_reads(self) -> int: ...
    @property
    def writes(self) -> Literal["in place", "whole files"]: ...
    @property
    def has_links(self) -> bool: ...

    # Names

    def absolute(self) -> Path:
        """The path from the root, with links as they are."""

    def real(self) -> Path:
        """The path from the root through all links."""

    def matches(self) -> list[Path]:
        """The files and directories that the path names when it is read as a pattern."""

    # Looking

    def stat(self) -> Fact:
        """Size, time and tag of a file. A local file's tag is its inode and times."""

    def version(self, fact: Fact) -> int | str:
        """The part of a file's facts that identifies its bytes in a fingerprint: a time or a tag."""

    def changed_ns(self, fact: Fact) -> int:
        """A number beside the size that differs between versions of a file, as an index keeps it."""

    def children(self) -> tuple[list[str], list[Fact]]:
        """Names of the directories and facts of the files directly below, sorted; nothing where nothing is."""

    def files_below(self) -> list[Fact]:
        """Every file at any depth, named relative to this directory, sorted; none where there is nothing."""

    def holds_any(self, names: Collection[str]) -> bool:
        """Whether one of these names is directly below."""

    def free_bytes(self) -> int | None:
        """The room that is left, or None where nobody can tell."""

    # Reading

    def read(self) -> bytes:
        """All bytes. Raises `CorruptShard` for what is neither a file nor missing, such as a pipe."""

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes [start, stop) of each range, in their order. A range ends where the file ends."""

    def read_pieces(self, ranges: Sequence[tuple[int, int]], fact: Fact) -> list[tuple[int, memoryview]]:
        """(start, bytes) that cover all the ranges, sorted. Raises `CorruptShard` if `fact` is of another version."""

    def tail(self, size: int) -> tuple[Fact, memoryview]:
        """The last bytes, at most `size`, and the facts of the file that they are of."""

    def open(self, fact: Fact, known: Sequence[tuple[int, memoryview]] = ()) -> BinaryIO:
        """A binary file with seeking. Reading raises `CorruptShard` if `fact` is of another version.

        known: (start, bytes) that were read before and need no request.
        """

    def arrow_stream(self) -> pa.NativeFile:
        """The bytes for Arrow, read as they are asked for."""

    def arrow_map(self) -> pa.NativeFile:
        """The bytes for Arrow without a copy where they can be mapped; else `arrow_stream`."""

    def checksum(self) -> str:
        """XXH3-128 of the bytes, read whole; O(1) of memory."""

    def fetch(self, target: Path) -> None:
        """Copy the bytes to a local file, whole and not synced."""

    def local_copy(self) -> AbstractContextManager[Path]:
        """The file itself where it is local, or a copy in the directory for temporary files, removed afterwards."""

    def local_tree(self) -> AbstractContextManager[Path]:
        """The same of a directory and all files below it."""

    # Writing

    def put_new(self, source: Path | bytes) -> Put:
        """Publish bytes, or a local file's, under a free name, whole and durable: "put", or "kept" if they were there.

        Raises `CorruptShard` if other bytes are there, which stay. A store's object is read back.
        """

    def replace(self, data: bytes) -> None:
        """Put bytes under the name in one step, whatever was there."""

    def alias(self, target: Path) -> None:
        """Give the file a second name in the same backend: a link or a copy that is made there."""

    def delete(self) -> None:
        """Delete a file; one that is not there is no error."""

    def delete_below(self) -> int | None:
        """Delete a directory and everything below it; how many bytes that were, None if nothing was there."""

    def sweep(self, older_than_s: float | None = None) -> None:
        """Delete the temporary files that killed writers of this name left beside it."""
