"""Cache decoded blocks on a local disk: the first epoch stores them, and later ones map them
instead of decoding.

`CachedBlocks` wraps a block reader and returns the same tables. A block is one file, in a directory
named by the contents of the dataset, the split and the columns. A file gets its name only when it
is complete, so processes and ranks of a node share a directory without coordination. When a process
first uses a file, it compares the file with its checksum. A torn or changed file, or one of another
block, is removed and its block decoded again. A block that cannot be stored is still delivered.

A file is an uncompressed Arrow file, followed by the trailer of an entry of a cache, which says of
which dataset, columns and block it is; see `headrace.gate.cache_entry`.

Mapping it needs no copy: columns are views of the page cache. Nothing else may write to mapped
files; if one is truncated while it is mapped, the process dies with SIGBUS.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from headrace.dataset.indexed import ReadBlock
from headrace.errors import CorruptShard, StoreError
from headrace.gate.arrow import ArrowFile
from headrace.gate.cache_entry import content_bytes, identity_of, trailer_of
from headrace.gate.mapped import map_bytes
from headrace.storage.cache_room import Room, mark_used, use
from headrace.storage.local import make_directory, storing, temporary_for

_VERSION = 2
# per process; a mapped file takes address space, and disk space even after it was deleted
_MOST_MAPS = 1024

_Stamp = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class CacheCounts:
    """Blocks of this process so far: hits were mapped, misses were decoded.

    damaged: misses whose file was damaged. refused: misses that had no room on disk or within the
    limit.
    """

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    refused: int = 0


class CachedBlocks:
    """A block reader that decodes a block once per `directory`; thread-safe, and picklable if
    `read_block` is.

    contents: a word that changes whenever the rows of a block may have changed.
    limit_bytes: for everything below `directory`.
    Raises what `read_block` raises. The cache itself only warns, once, if nothing can be stored.
    """

    def __init__(
        self, read_block: ReadBlock, *, contents: str, directory: Path, limit_bytes: int
    ) -> None:
        self._read_block = read_block
        self._contents = contents
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._begin()

    @property
    def counts(self) -> CacheCounts:
        """Counts of the blocks that this process has requested."""
        return self._counts

    def __call__(self, number: int, columns: Sequence[str] | None) -> pa.Table:
        if self._process != os.getpid():  # after a fork, the parent's locks may be held forever
            self._begin()
        if columns is None:
            names = None
        else:
            names = tuple(columns)
        if names not in self._places:
            word = identity_of(*self._what(names)).hex()
            self._places[names] = self._directory / word[:32]
            use(self._places[names])
        path = f"{self._places[names]}/{number}.arrow"
        identity = identity_of(*self._what(names), number)
        try:
            table = self._mapped(path, identity)
            self._count(hits=1)
            return table
        except FileNotFoundError:
            pass
        except (TornFile, OSError):
            self._count(damaged=1)
            with suppress(OSError):
                os.unlink(path)
        table = self._read_block(number, columns)
        self._count(misses=1)
        self._store(Path(path), table, identity)
        return table

    def _what(self, columns: tuple[str, ...] | None) -> list[object]:
        """Return what the blocks of these columns are."""
        names = None if columns is None else list(columns)
        return ["block", _VERSION, self._contents, names]

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: self.__dict__[name]
            for name in ("_read_block", "_contents", "_directory", "_limit_bytes")
        }

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._counts = CacheCounts()
        self._room = Room(self._directory, self._limit_bytes)
        self._places: dict[tuple[str, ...] | None, Path] = {}
        # files whose checksum was verified, with their stamp then
        self._whole: dict[str, _Stamp] = {}
        # mapping again would cost page faults
        self._maps: OrderedDict[str, tuple[_Stamp, pa.Table]] = OrderedDict()
        self._storing = True

    def _mapped(self, path: str, identity: bytes) -> pa.Table:
        with self._lock:
            known = self._maps.pop(path, None)
        if known is not None and _stamp(path) == known[0]:
            table = known[1]
        else:
            contents: Literal["check", "trust"] = "check"
            if self._whole.get(path) == _stamp(path):
                contents = "trust"
            table = map_file(path, identity, contents)
        mark_used(path)
        stamp = self._whole[path] = _stamp(path)
        with self._lock:
            self._maps[path] = stamp, table
            if len(self._maps) > _MOST_MAPS:
                self._maps.popitem(last=False)
        return table

    def _store(self, path: Path, table: pa.Table, identity: bytes) -> None:
        if not self._storing:
            self._count(refused=1)
            return
        temporary = temporary_for(path)
        try:
            make_directory(path.parent)
            data, trailer = encode(table, identity)
            size = data.size + len(trailer)
            with storing(path):
                with self._lock:  # a file counts with its full size from the start of the write
                    admitted = self._room.admit(size)
                    if admitted:
                        with temporary.open("xb") as file:
                            file.truncate(size)
                if not admitted:
                    self._count(refused=1)
                    return
                with temporary.open("r+b") as file:
                    file.write(data)
                    file.write(trailer)
                os.replace(temporary, path)
        except StoreError as error:
            self._count(refused=1)
            with self._lock:  # several threads may find the disk full at once
                first = self._storing
                self._storing = False
            if first:
                warnings.warn(
                    f"decoded blocks are not kept: {error}; the stream continues without them",
                    RuntimeWarning,
                    stacklevel=2,
                )
        finally:
            with suppress(OSError):
                temporary.unlink()

    def _count(self, **more: int) -> None:
        with self._lock:
            before = self._counts
            self._counts = replace(
                before, **{name: getattr(before, name) + count for name, count in more.items()}
            )


def _stamp(path: str) -> _Stamp:
    stat = os.stat(path)
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class TornFile(Exception):
    """A cached file that is not the block that was written: cut, changed, or another one."""


def encode(table: pa.Table, identity: bytes) -> tuple[pa.Buffer, bytes]:
    """Return the Arrow file of a table, as one record batch if offsets allow, and the trailer
    behind it.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    data = sink.getvalue()
    return data, trailer_of(data, identity)


def map_file(path: str | Path, identity: bytes, contents: Literal["check", "trust"]) -> pa.Table:
    """Return the table of a file, as views of the file.

    identity: of the block that it must be. contents: whether to verify the checksum, which reads
    every byte. Raises `FileNotFoundError`, `OSError`, or `TornFile` if the file is damaged or
    another one. The mapping stays valid after the file is
    unlinked.
    """
    try:
        mapped = map_bytes(path)
        size = content_bytes(mapped.data, identity, check=contents == "check")
        return ArrowFile(mapped.buffer[:size], path, mapped.identity).table()
    except CorruptShard as error:
        raise TornFile(str(error)) from error
    except ValueError as error:
        raise TornFile(f"{path}: {error}") from error
