"""Cache decoded blocks on a local disk: the first epoch stores them, and later ones map them
instead of decoding.

`CachedBlocks` wraps a block reader and returns the same tables. A block is one file, in a directory
named by the contents of the dataset, the split and the columns. A file gets its name only when it
is complete, so processes and ranks of a node share a directory without coordination. When a process
first uses a file, it compares the file with its checksum. A torn or changed file is removed and its
block decoded again. A block that cannot be stored is still delivered.

A file is an uncompressed Arrow file, followed by its length and a checksum of all its bytes:

    Arrow file ‖ magic (8 bytes) ‖ length of the Arrow file (8) ‖ CRC-32 of it (4), little-endian

Mapping it needs no copy: columns are views of the page cache. Nothing else may write to mapped
files; if one is truncated while it is mapped, the process dies with SIGBUS.
"""

from __future__ import annotations

import os
import struct
import threading
import warnings
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from headrace.dataset.indexed import ReadBlock
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import CorruptShard, StoreError
from headrace.gate.arrow import ArrowFile
from headrace.gate.mapped import map_bytes
from headrace.storage.cache_room import Room, mark_used, use
from headrace.storage.local import make_directory, storing, temporary_for

_VERSION = 1
# per process; a mapped file takes address space, and disk space even after it was deleted
_MOST_MAPS = 1024

_MAGIC = b"headrac1"
_TRAILER = struct.Struct("<8sQI")

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
            word = sha256_hex(
                canonical_json([_VERSION, self._contents, None if names is None else list(names)])
            )
            self._places[names] = self._directory / word[:32]
            use(self._places[names])
        path = f"{self._places[names]}/{number}.arrow"
        try:
            table = self._mapped(path)
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
        self._store(Path(path), table)
        return table

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

    def _mapped(self, path: str) -> pa.Table:
        with self._lock:
            known = self._maps.pop(path, None)
        if known is not None and _stamp(path) == known[0]:
            table = known[1]
        else:
            table = map_file(path, "trust" if self._whole.get(path) == _stamp(path) else "check")
        mark_used(path)
        stamp = self._whole[path] = _stamp(path)
        with self._lock:
            self._maps[path] = stamp, table
            if len(self._maps) > _MOST_MAPS:
                self._maps.popitem(last=False)
        return table

    def _store(self, path: Path, table: pa.Table) -> None:
        if not self._storing:
            self._count(refused=1)
            return
        temporary = temporary_for(path)
        try:
            make_directory(path.parent)
            data, trailer = encode(table)
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
    """A cached file that differs from what was written: truncated, changed, or of another kind."""


def encode(table: pa.Table) -> tuple[pa.Buffer, bytes]:
    """Return the Arrow file of a table, as one record batch if offsets allow, and the trailer
    behind it.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    data = sink.getvalue()
    return data, _TRAILER.pack(_MAGIC, data.size, zlib.crc32(data))


def map_file(path: str | Path, contents: Literal["check", "trust"]) -> pa.Table:
    """Return the table of a file, as views of the file.

    contents: whether to verify the checksum, which reads every byte. Raises `FileNotFoundError`,
    `OSError`, or `TornFile` if the file is damaged. The mapping stays valid after the file is
    unlinked.
    """
    try:
        mapped = map_bytes(path)
        size = len(mapped.data) - _TRAILER.size
        if size < 0:
            raise TornFile(f"{path}: has only {len(mapped.data)} bytes")
        magic, length, checksum = _TRAILER.unpack(mapped.data[size:].tobytes())
        data = mapped.buffer[:size]
        if (magic, length) != (_MAGIC, size):
            raise TornFile(f"{path}: was cut or written by another version")
        if contents == "check" and zlib.crc32(data) != checksum:
            raise TornFile(f"{path}: its bytes are not those that were written")
        return ArrowFile(data, path, mapped.identity).table()
    except CorruptShard as error:
        raise TornFile(str(error)) from error
