"""Limit the disk space of cached files, over all streams and processes that share a directory.

A file is stored only after `Room.admit` agrees. Over the limit, the least recently used files are
deleted first. Files of live streams of this process stay, because each epoch returns to all of
them. One that does not fit beside them is read from the store in every epoch, which beats storing
and deleting in a circle. The directory is measured when a process starts and again after it has
written a sixteenth of the limit, so each process may exceed the limit by that much.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock

from headrace.errors import SettingsError, setting_name
from headrace.storage.local import TEMP_PREFIX, alone
from headrace.storage.places import local_path_of

_PARTS = 16  # the directory is measured again after each such part of the limit is written
_ASK_AGAIN = 64  # refusals before the directory is measured again
_LEFTOVER_S = 3600.0  # an older temporary file belongs to a killed process

_in_use: set[Path] = set()  # directories of this process's streams


def cache_directory(directory: str | Path | None, name: str = "cache_dir") -> Path:
    """Return the directory that a setting of this name gives, or ~/.cache/headrace.

    Raises `SettingsError` for one that is not local.
    """
    if directory is not None:
        return local_path_of(directory, name)
    try:
        return Path.home() / ".cache" / "headrace"
    except RuntimeError:
        raise SettingsError(
            "the cache of indexes has no place: this user has no home directory",
            remedy=f"set HOME, or give {setting_name(name)}",
        ) from None


def use(directory: Path) -> None:
    """Keep this process from deleting files of a directory that its own streams read."""
    _in_use.add(directory)


def mark_used(path: str | Path) -> None:
    """Set a file's time of access, by which room is made; its time of change stays that of its
    bytes.

    Processes share the files and check the bytes of one that has changed, so a use must not look
    like a change.
    """
    with suppress(OSError):  # of a cache that others own
        os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))


class Room:
    """The bytes below one directory, kept at or below `limit_bytes`; safe for threads."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self._directory = directory
        self._limit = limit_bytes
        self._lock = Lock()
        self._used_bytes: int | None = None
        self._written = 0
        self._refused = 0

    def admit(self, size: int) -> bool:
        """Return whether `size` bytes may be stored now; make room where that is possible."""
        with self._lock:
            if self._refused % _ASK_AGAIN:
                self._refused += 1
                return False
            if self._used_bytes is None or self._written * _PARTS > self._limit:
                self._used_bytes = sum(stat.st_size for _, stat in self._files())
                self._written = 0
            if self._used_bytes + size > self._limit and not self._sweep(size):
                self._refused += 1
                return False
            self._refused = 0
            self._used_bytes += size
            self._written += size
            return True

    def _sweep(self, size: int) -> bool:
        with alone(self._directory / ".lock", others="skip") as has_lock:
            if not has_lock:  # another process makes room
                return False
            files = sorted(self._files(), key=lambda entry: (entry[1].st_atime_ns, str(entry[0])))
            total = sum(stat.st_size for _, stat in files)
            for path, stat in files:
                leftover = (
                    path.name.startswith(TEMP_PREFIX) and time.time() - stat.st_mtime > _LEFTOVER_S
                )
                if total + size > self._limit and (path.parent not in _in_use or leftover):
                    with suppress(FileNotFoundError):
                        path.unlink()
                    total -= stat.st_size
            self._used_bytes = total
            self._written = 0
            return total + size <= self._limit

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for directory in [
            Path(entry.path) for entry in os.scandir(self._directory) if entry.is_dir()
        ]:
            with suppress(FileNotFoundError), os.scandir(directory) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        yield directory / entry.name, entry.stat(follow_symlinks=False)
