"""The verbs that local paths and object stores share, with the same promises; one conformance suite runs them on all.

What only local files have – temporary names, links, directories that are synced – is in `local`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

import xxhash

from headrace.digest import checksum_file
from headrace.errors import CorruptShard
from headrace.storage import local
from headrace.storage.object_store import Fact
from headrace.storage.remote_path import RemotePath

Put = Literal["put", "kept"]


def stat(path: Path) -> Fact:
    """Size, time and tag of a file. A local file's tag is its inode and times. Raises `FileNotFoundError`."""
    if isinstance(path, RemotePath):
        return path.fact()
    return _local_fact(path, path.name)


def files_below(path: Path) -> list[Fact]:
    """Every file below a directory or prefix, named relative to it, sorted; none where there is nothing."""
    if isinstance(path, RemotePath):
        return path.store.below(path.key)
    found = (each for each in path.rglob("*") if each.is_file() and not each.name.startswith(local.TEMP_PREFIX))
    return sorted((_local_fact(each, each.relative_to(path).as_posix()) for each in found), key=lambda fact: fact.name)


def read_ranges(path: Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
    """The bytes [start, stop) of each range, in their order. Raises `FileNotFoundError`, `StoreError`."""
    if not isinstance(path, RemotePath):
        with path.open("rb") as file:
            return [os.pread(file.fileno(), stop - start, start) for start, stop in ranges]
    found = path.store.read_ranges(path.key, ranges)
    return [_cut(found, start, stop) for start, stop in ranges]


def put_new(path: Path, source: Path | bytes) -> Put:
    """Publish bytes, or a local file's, under a free name, whole and durable: "put", or "kept" if they were there.

    Raises `CorruptShard` if other bytes are there, which stay, and `StoreError`. What was put is checked: a store's
    object is read back.
    """
    if isinstance(path, RemotePath):
        return path.store.put_new(path.key, source)
    data = source.read_bytes() if isinstance(source, Path) else source
    if path.exists():
        if checksum_file(path) != xxhash.xxh3_128_hexdigest(data):
            raise CorruptShard(f"{path}: exists with other bytes; delete it and run again")
        return "kept"
    local.make_directory(path.parent)
    local.write_new(path, data)
    local.sync_directory(path.parent)
    return "put"


def replace(path: Path, data: bytes) -> None:
    """Put bytes under a name in one step, whatever was there."""
    if isinstance(path, RemotePath):
        path.store.replace(path.key, data)
        return
    local.make_directory(path.parent)
    temporary = local.temporary_for(path)
    try:
        with local.storing(path):
            temporary.write_bytes(data)
        local.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def checksum(path: Path) -> str:
    """XXH3-128 of a file's bytes, read whole."""
    return path.store.checksum(path.key) if isinstance(path, RemotePath) else checksum_file(path)


def delete(path: Path) -> None:
    """Delete a file; one that is not there is no error."""
    path.unlink(missing_ok=True)


def _local_fact(path: Path, name: str) -> Fact:
    found = path.stat()
    inode = 0 if found.st_dev in _fuse_devices() else found.st_ino
    return Fact(name, found.st_size, found.st_mtime_ns, f"{inode}-{found.st_mtime_ns}-{found.st_ctime_ns}")


@cache
def _fuse_devices() -> frozenset[int]:
    """Devices of FUSE mounts (gcsfuse, sshfs), which may number a file anew whenever the kernel has forgotten it."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return frozenset()
    numbers = [each[2].split(":") for each in mounts if each[each.index("-") + 1].startswith("fuse")]
    return frozenset(os.makedev(int(major), int(minor)) for major, minor in numbers)


def _cut(pieces: Sequence[tuple[int, memoryview]], start: int, stop: int) -> bytes:
    held = [piece[max(0, start - at) : stop - at] for at, piece in pieces if at < stop and start < at + len(piece)]
    return b"".join(held)
