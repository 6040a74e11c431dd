"""Seal what headrace keeps in its caches, so that an entry proves what it is and that it is whole.

    content ‖ identity: SHA-256 of what the entry is (32 bytes) ‖ XXH3-128 of both (16 bytes)

An entry in the place of another one is refused like one that was damaged, and made again: the name
of a file proves nothing. The checksum finds damage. It does not protect against somebody who may
write to the cache.
"""

from __future__ import annotations

import hashlib
import io
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from headrace.digest import canonical_json
from headrace.errors import CorruptShard, StoreError
from headrace.storage.local import make_directory, write_new

_IDENTITY_BYTES = 32
_CHECKSUM_BYTES = 16
TRAILER_BYTES = _IDENTITY_BYTES + _CHECKSUM_BYTES


def identity_of(*what: object) -> bytes:
    """Return the identity of an entry. what: JSON that no two different entries share."""
    return hashlib.sha256(canonical_json(list(what))).digest()


def trailer_of(content: Any, identity: bytes) -> bytes:
    """Return what stands behind the content of an entry."""
    checksum = xxhash.xxh3_128(content)
    checksum.update(identity)
    return identity + checksum.digest()


def content_bytes(data: Any, identity: bytes | None) -> int:
    """Return how many of an entry's bytes are its content.

    identity: what the entry must be; None: anything. Reads every byte for the checksum. Raises
    `ValueError` if it is another entry, or damaged.
    """
    view = memoryview(data).cast("B")
    size = len(view) - TRAILER_BYTES
    if size < 0:
        raise ValueError(f"it has only {len(view)} bytes")
    if xxhash.xxh3_128_digest(view[:-_CHECKSUM_BYTES]) != view[-_CHECKSUM_BYTES:]:
        raise ValueError("its bytes are not those that were written")
    if identity is not None and view[size:-_CHECKSUM_BYTES] != identity:
        raise ValueError("it is another entry than its name says")
    return size


def identity_in(data: Any) -> bytes:
    """Return the identity that an entry has; see `content_bytes` for its checks."""
    return bytes(memoryview(data).cast("B")[-TRAILER_BYTES:-_CHECKSUM_BYTES])


def read_entry(path: Path, identity: bytes) -> bytes:
    """Return the content of an entry in a file of its own.

    Raises `OSError`, and `ValueError` if it is another entry, or damaged.
    """
    data = path.read_bytes()
    return data[: content_bytes(data, identity)]


def keep_entry(path: Path, content: bytes, identity: bytes) -> None:
    """Write an entry to a file, in the place of the one there; nothing where that is impossible."""
    with suppress(StoreError, CorruptShard, OSError):
        make_directory(path.parent)
        path.unlink(missing_ok=True)
        write_new(path, content + trailer_of(content, identity), sync="none")


class Sealing(io.RawIOBase):
    """A file that forwards bytes, and writes the trailer behind them when `seal` is called."""

    def __init__(self, sink: BinaryIO, identity: bytes) -> None:
        self._sink = sink
        self._identity = identity
        self._checksum = xxhash.xxh3_128()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._checksum.update(view)
        self._sink.write(view)
        return len(view)

    def seal(self) -> None:
        """Write the trailer."""
        self._checksum.update(self._identity)
        self._sink.write(self._identity + self._checksum.digest())
