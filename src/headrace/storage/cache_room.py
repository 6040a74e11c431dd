"""Limit the disk space of cached blocks, over all streams and processes that share a directory.

Before a block is stored its bytes are asked for. Over the limit the least recently used blocks go first; those that
live streams of this process use stay, as an epoch comes back to all of them: what does not fit beside them is decoded
anew in every epoch, which is better than storing and sweeping in a circle. The size of the directory is counted when
a process begins and again after it wrote a sixteenth of the limit, so that several processes may exceed the limit by
that much each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock

from headrace.storage.local import TEMP_PREFIX, alone

_PARTS = 16  # what others write is counted anew after each such part of the limit
_ASK_AGAIN = 64  # refusals before the directory is counted anew
_LEFTOVER_S = 3600.0  # a temporary file so old is of a process that was killed

_in_use: set[Path] = set()  # directories of this process's streams


def use(directory: Path) -> None:
    """Protect a directory that this process reads again from being swept by it."""
    _in_use.add(directory)


def mark_used(path: str | Path) -> None:
    """Set a file's time of access, by which room is made; its time of change stays that of its bytes.

    Processes share the files and check the bytes of one that has changed, so a use must not look like a change.
    """
    with suppress(OSError):  # of a cache that others own
        os.utime(path, ns=(time.time_ns(), os.stat(path).st_mtime_ns))


class Room:
    """The bytes below one directory, kept at or below `limit_bytes`; safe for threads."""

    def __init__(self, directory: Path, limit_bytes: int) -> None:
        self._directory = directory
        self._limit = limit_bytes
        self._lock = Lock()
        self._held: int | None = None
        self._written = 0
        self._refused = 0

    def admit(self, size: int) -> bool:
        """Return whether `size` bytes may be stored now; make room where that is possible."""
        with self._lock:
            if self._refused % _ASK_AGAIN:
                self._refused += 1
                return False
            if self._held is None or self._written * _PARTS > self._limit:
                self._held, self._written = sum(each.st_size for _, each in self._files()), 0
            if self._held + size > self._limit and not self._sweep(size):
                self._refused += 1
                return False
            self._refused = 0
            self._held += size
            self._written += size
            return True

    def _sweep(self, size: int) -> bool:
        with alone(self._directory / ".lock", others="skip") as held_alone:
            if not held_alone:  # another process makes room
                return False
            files = sorted(self._files(), key=lambda each: (each[1].st_atime_ns, str(each[0])))
            held = sum(stat.st_size for _, stat in files)
            for path, stat in files:
                leftover = path.name.startswith(TEMP_PREFIX) and time.time() - stat.st_mtime > _LEFTOVER_S
                if held + size > self._limit and (path.parent not in _in_use or leftover):
                    with suppress(FileNotFoundError):
                        path.unlink()
                    held -= stat.st_size
            self._held, self._written = held, 0
            return held + size <= self._limit

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for directory in [Path(each.path) for each in os.scandir(self._directory) if each.is_dir()]:
            with suppress(FileNotFoundError), os.scandir(directory) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        yield directory / entry.name, entry.stat(follow_symlinks=False)
