"""Provide shards as checked local files: a local run's own files, or copies of an object store's on
disk.

A copy is made on first access to a shard, by one process of the machine while the others wait. It
is checked against its published checksum and gets its name once it is complete. The name holds the
checksum of its bytes, against which every process checks the file once before it reads it. Copies
of all datasets together are kept below `limit_bytes`; the least recently used are deleted first.
Copies of a dataset that this process reads stay, so a shard that does not fit beside them is read
from the store, block by block, and nothing is fetched and deleted in a circle. Only copies are ever
removed.

Readers that map files (`LocalShards`) need all shards complete on disk, so a limit below their size
is refused when the run is opened, not during an epoch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from headrace.checks import check_integer, check_word
from headrace.dataset.sound import damaged
from headrace.digest import checksum_file, sha256_hex
from headrace.errors import SettingsError, StoreError, setting, setting_name
from headrace.storage.cache_room import Room, cache_directory, mark_used, use
from headrace.storage.local import alone, beside, make_directory, storing
from headrace.storage.places import place_of

Verify = Literal["first_touch", "never"]

DISK_BYTES = 1 << 35
_Stamp = tuple[int, int, int]


class FileCache:
    """Local copies of shards below one root; picklable, thread-safe.

    directory: of the copies of all datasets, to which `limit_bytes` applies. indexed: the copy of
    each object that was seen to be as an index says.
    """

    def __init__(self, directory: Path, limit_bytes: int, root: Path) -> None:
        self._base = directory
        self._limit = limit_bytes
        self._root = root
        self._begin()

    def local_path(self, path: Path, checksum: str) -> Path | None:
        """Return the local copy of a shard, complete and checked; None if there is no room for one.

        checksum: XXH3-128 of the published bytes. If "", it is unknown, and the object is copied as
        it is on this process's first request. Raises `CorruptShard` if the object is missing or has
        other bytes.
        """
        if self._process != os.getpid():  # forked: the parent's locks may be held
            self._begin()
        with self._lock:
            lock = self._locks.setdefault(str(path), threading.Lock())
        with lock:
            known = self._verified.get(str(path))
            if known is not None and _stamp(known[0]) == known[1]:
                mark_used(known[0])
                return known[0]
            if path in self._refused:
                return None
            try:
                copy = self._find_copy(path, checksum)
            except FileNotFoundError as error:
                raise damaged(path, "is missing") from error
            if copy is None:
                self._refused.add(path)
                return None
            self._verified[str(path)] = copy, _stamp(copy)
            return copy

    def try_again(self) -> None:
        """Forget which shards had no room: there may be room now."""
        self._refused.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {"_base": self._base, "_limit": self._limit, "_root": self._root}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        # verified copies, with their stamps
        self._verified: dict[str, tuple[Path, _Stamp | None]] = {}
        self._refused: set[Path] = set()
        self.indexed: dict[Path, Path] = {}
        self._room = Room(self._base, self._limit)
        self._directory = self._base / sha256_hex(str(self._root).encode())[:32]
        use(self._directory)

    def _find_copy(self, path: Path, checksum: str) -> Path | None:
        key = checksum or sha256_hex(f"{path} {place_of(path).stat().etag}".encode())[:32]
        make_directory(self._directory)
        try:
            with alone(self._directory / f".{key}.lock"):
                for copy in sorted(self._directory.glob(f"{key}-*")):
                    if checksum_file(copy) == (checksum or copy.name.rpartition("-")[2]):
                        return copy
                    copy.unlink(missing_ok=True)
                return self._fetched(path, key, checksum)
        except StoreError as error:
            # an error of the local disk, not the store: full, or not writable
            if isinstance(error.__cause__, OSError):
                return None
            raise

    def _fetched(self, path: Path, key: str, checksum: str) -> Path | None:
        size = place_of(path).stat().size
        with beside(self._directory / key) as temporary:
            with self._lock:  # a download counts as held from its start
                if not self._room.admit(size):
                    return None
                with storing(temporary), temporary.open("xb") as file:
                    file.truncate(size)
            place_of(path).fetch(temporary)
            actual = checksum_file(temporary)
            if checksum and actual != checksum:
                raise damaged(path)
            final = self._directory / f"{key}-{actual}"
            with storing(final):
                os.replace(temporary, final)
            return final


def stored_bytes(root: Path, shards: Sequence[str]) -> int:
    """Sum the bytes of these objects below a prefix, with one listing for each prefix that contains
    some.
    """
    paths = [root / shard for shard in shards]
    listed: dict[Path, int] = {}
    for parent in {path.parent for path in paths}:
        listed |= {parent / fact.name: fact.size for fact in place_of(parent).children()[1]}
    return sum(listed.get(path, 0) for path in set(paths))


def _stamp(path: Path) -> _Stamp | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFiles:
    """Options for providing shards as checked local files.

    verify: whether a run's own files are checked on first access; copies always are. cache_dir: of
    copies, None: ~/.cache/headrace. disk_bytes: limit of all copies there together, 1 or more.
    """

    verify: Verify = "first_touch"
    cache_dir: str | Path | None = None
    disk_bytes: int = DISK_BYTES

    def __post_init__(self) -> None:
        check_word("verify", self.verify, get_args(Verify))
        check_integer("disk_bytes", self.disk_bytes, least=1)


class LocalShards:
    """The shards of a run by name, picklable.

    Keep an opened shard open, because each call checks it.

    checksums: shard, relative to root → XXH3-128 of its bytes, "" if unknown.
    Raises `SettingsError` if copies of them do not fit.
    """

    def __init__(self, root: Path, checksums: Mapping[str, str], files: LocalFiles) -> None:
        self._root, self._checksums, self._verify = root, dict(checksums), files.verify
        self._cache: FileCache | None = None
        if place_of(root).reads == "requests":
            needed = stored_bytes(root, list(checksums))
            if needed > files.disk_bytes:
                raise SettingsError(
                    f"the shards have {needed:,} bytes, are mapped from copies on a disk, and"
                    f" {setting_name('disk_bytes')} is {files.disk_bytes:,}",
                    path=root,
                    value=files.disk_bytes,
                    remedy=f"give {setting('disk_bytes', needed)} or more",
                )
            self._directory = cache_directory(files.cache_dir) / "files"
            self._cache = FileCache(self._directory, files.disk_bytes, root)

    def local_path(self, shard: str) -> Path:
        """Return the local file of a shard, complete and checked.

        Raises `CorruptShard`, `StoreError`.
        """
        path = self._root / shard
        checksum = self._checksums[shard]
        if self._cache is not None:
            copy = self._cache.local_path(path, checksum)
            if copy is None:
                raise StoreError(
                    f"no room for a copy in {self._directory}, besides those in use",
                    path=path,
                    remedy=(
                        f"make room on the disk, raise {setting_name('disk_bytes')}, or give"
                        f" another {setting_name('cache_dir')}"
                    ),
                )
            return copy
        try:
            intact = self._verify == "never" or not checksum or checksum_file(path) == checksum
        except OSError as error:
            raise damaged(path, f"cannot be read ({error.strerror})") from error
        if not intact:
            raise damaged(path)
        return path
