"""Shards as checked local files, for readers that map files: a local run's own, of an object store copies on a disk.

A copy is made when a shard is first touched, once for all processes of the machine (see `file_cache`). What is mapped
has to lie there whole, so a limit below the size of all shards is refused when the run is opened, not in the middle
of an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.checks import check_integer, check_word
from headrace.dataset.file_cache import FileCache, stored_bytes
from headrace.dataset.indexed import Verify
from headrace.dataset.plain import cache_directory
from headrace.digest import checksum_file, sha256_file
from headrace.errors import CorruptShard, SettingsError, StoreError
from headrace.storage.places import place_of

DISK_BYTES = 1 << 35
_MEND = "restore it or prepare the run again"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFiles:
    """How shards become local files, checked.

    verify: whether a run's own files are checked when first touched; copies always are. cache_dir: of copies, None:
    ~/.cache/headrace. disk_bytes: most that all copies there take, 1 or more.
    """

    verify: Verify = "first_touch"
    cache_dir: str | Path | None = None
    disk_bytes: int = DISK_BYTES

    def __post_init__(self) -> None:
        check_word("verify", self.verify, get_args(Verify))
        check_integer("disk_bytes", self.disk_bytes, least=1)


class LocalShards:
    """The shards of a run by name, picklable. Who opens one keeps it open: each call checks it.

    checksums: shard, relative to root → XXH3-128 of its bytes, "" where it is not known.
    Raises `SettingsError` if copies of them do not fit.
    """

    def __init__(self, root: Path, checksums: Mapping[str, str], files: LocalFiles) -> None:
        self._root, self._checksums, self._verify = root, dict(checksums), files.verify
        self._cache: FileCache | None = None
        if place_of(root).reads == "requests":
            needed = stored_bytes(root, list(checksums))
            if needed > files.disk_bytes:
                raise SettingsError(
                    f"{root}: its shards have {needed:,} bytes, disk_bytes is {files.disk_bytes:,}; they are mapped"
                    f" from copies on a disk: set disk_bytes={needed} or more"
                )
            base = cache_directory(files.cache_dir)
            self._directory = base / "files"
            self._cache = FileCache(self._directory, files.disk_bytes, root)

    def place(self, shard: str) -> Path:
        """The local file of a shard, whole and checked. Raises `CorruptShard`, `StoreError`."""
        path = self._root / shard
        if self._cache is not None:
            return self._copy(self._cache, path, self._checksums[shard])
        checksum = self._checksums[shard] if self._verify == "first_touch" else ""
        try:
            whole = not checksum or checksum_file(path) == checksum
        except OSError as error:
            raise CorruptShard(f"{path}: cannot be read ({error.strerror}); {_MEND}") from error
        if not whole:
            raise CorruptShard(f"{path}: its bytes are not those that were published; {_MEND}")
        return path

    def _copy(self, cache: FileCache, path: Path, checksum: str) -> Path:
        try:
            found = cache.place(path, checksum)
        except FileNotFoundError as error:
            raise CorruptShard(f"{path}: cannot be read ({error.strerror}); {_MEND}") from error
        if found is None:
            raise StoreError(
                f"{path}: no room for a copy in {self._directory}, beside those that are in use there; make room on the"
                " disk, raise disk_bytes, or give another cache_dir"
            )
        return found


def checked_table(path: Path, sha256: str, columns: list[str] | None = None) -> pa.Table:
    """A Parquet file of a run, read whole. sha256: of its bytes, "" where it is not known. Raises `CorruptShard`."""
    try:
        with place_of(path).local_copy() as file:
            if sha256 and sha256_file(file) != sha256:
                raise CorruptShard(f"{path}: its bytes are not those that were published; {_MEND}")
            return pq.read_table(file, columns=columns)
    except (OSError, pa.ArrowException) as error:
        raise CorruptShard(f"{path}: cannot be read ({error}); {_MEND}") from error
