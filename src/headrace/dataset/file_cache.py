"""Shards of an object store kept whole on a local disk, shared by the processes of a node.

A shard is fetched when one of its blocks is first read, by one process while the others wait, checked against its
published checksum, and gets its name when it is whole: the name holds the checksum of its bytes, against which every
process checks the file once before it reads it. Files are kept below `limit_bytes` with those of other datasets, least
recently used first out; those of a dataset that this process reads stay, so what does not fit beside them is read from
the store, block by block, and nothing is fetched and swept in a circle. Only copies are ever removed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.digest import checksum_file, sha256_hex
from headrace.errors import CorruptShard, StoreError
from headrace.storage.cache_room import Room, use
from headrace.storage.local import alone, make_directory, storing, temporary_for
from headrace.storage.places import place_of

_Stamp = tuple[int, int, int]


class FileCache:
    """Local copies of shards below one root; picklable, safe from any thread.

    directory: of all datasets' copies, which `limit_bytes` is for.
    """

    def __init__(self, directory: Path, limit_bytes: int, root: Path) -> None:
        self._base, self._limit, self._root = directory, limit_bytes, root
        self._begin()

    def place(self, path: Path, checksum: str) -> Path | None:
        """The local copy of a shard, whole and checked; None where there is no room for one.

        checksum: XXH3-128 of the published bytes; "" where it is not known: then the copy is of the object as it is
        when this process first asks. Raises `CorruptShard` if the object has other bytes, `FileNotFoundError`.
        """
        if self._process != os.getpid():  # forked: the parent's locks may be taken
            self._begin()
        with self._lock:
            lock = self._locks.setdefault(str(path), threading.Lock())
        with lock:
            known = self._whole.get(str(path))
            if known is not None and _stamp(known[0]) == known[1]:
                with suppress(OSError):  # of a cache that others own
                    os.utime(known[0])  # says when it was last used, to whoever makes room
                self._whole[str(path)] = known[0], _stamp(known[0])
                return known[0]
            if path in self._refused:
                return None
            found = self._found(path, checksum)
            if found is None:
                self._refused.add(path)
                return None
            self._whole[str(path)] = found, _stamp(found)
            return found

    def __getstate__(self) -> dict[str, Any]:
        return {"_base": self._base, "_limit": self._limit, "_root": self._root}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._whole: dict[str, tuple[Path, _Stamp | None]] = {}  # copies that had their checksum, as they were then
        self._refused: set[Path] = set()
        self._room = Room(self._base, self._limit)
        self._directory = self._base / sha256_hex(str(self._root).encode())[:32]
        use(self._directory)

    def _found(self, path: Path, checksum: str) -> Path | None:
        key = checksum or sha256_hex(f"{path} {place_of(path).stat().etag}".encode())[:32]
        make_directory(self._directory)
        try:
            with alone(self._directory / f".{key}.lock"):
                return self._kept(key) or self._fetched(path, key, checksum)
        except StoreError as error:
            if isinstance(error.__cause__, OSError):  # the local disk's, not the store's: it is full, or not ours
                return None
            raise

    def _kept(self, key: str) -> Path | None:
        """The copy that is there, if it is what its name says; else it is removed."""
        for place in sorted(self._directory.glob(f"{key}-*")):
            if checksum_file(place) == place.name.rpartition("-")[2]:
                return place
            place.unlink(missing_ok=True)
        return None

    def _fetched(self, path: Path, key: str, checksum: str) -> Path | None:
        size, temporary = place_of(path).stat().size, temporary_for(self._directory / key)
        try:
            with self._lock:  # what is on its way counts as held from the beginning
                if not self._room.admit(size):
                    return None
                with storing(temporary), temporary.open("xb") as file:
                    file.truncate(size)
            place_of(path).fetch(temporary)
            own = checksum_file(temporary)
            if checksum and own != checksum:
                raise CorruptShard(
                    f"{path}: its bytes are not those that were published; restore it or prepare the run again"
                )
            place = self._directory / f"{key}-{own}"
            with storing(place):
                os.replace(temporary, place)
            return place
        finally:
            with suppress(OSError):
                temporary.unlink()


def stored_bytes(root: Path, shards: Sequence[str]) -> int:
    """Bytes of these objects below a prefix; one listing for each prefix that they are in."""
    wanted = [root / shard for shard in shards]
    listed: dict[Path, int] = {}
    for parent in {each.parent for each in wanted}:
        listed |= {parent / fact.name: fact.size for fact in place_of(parent).children()[1]}
    return sum(listed.get(each, 0) for each in set(wanted))


def _stamp(path: Path) -> _Stamp | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
