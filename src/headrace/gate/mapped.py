"""Map files for reading, and tell one that was cut while it is in use.

A page of a mapped file that no longer exists ends the process (SIGBUS) when it is touched, and no
code can catch that. So whoever makes a batch of mapped bytes calls `check_mapped` first, which
compares the sizes of the files in use with those they had when they were mapped, a microsecond
each. A file that is cut between that and the touch still ends the process. A file that is replaced
or deleted does no harm, because the mapping keeps its bytes.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from headrace.arrays import U8
from headrace.errors import CorruptShard

_REMEDY = "restore it; give other programs a copy to write to"


class Identity(NamedTuple):
    """What tells a file from its other versions; changed_ns: time of its last change."""

    device: int
    inode: int
    size: int
    changed_ns: int


class Mapped(NamedTuple):
    """data: the bytes of a file, uint8 [size], read-only."""

    data: U8
    identity: Identity

    @property
    def buffer(self) -> pa.Buffer:
        """The bytes for Arrow. All that is made of them keeps the file mapped, and in use."""
        return pa.py_buffer(self.data)


# Weak: an array that nobody needs any more is unmapped.
_in_use: WeakValueDictionary[tuple[str, Identity], U8] = WeakValueDictionary()
_lock = threading.Lock()


def map_bytes(path: str | Path) -> Mapped:
    """Map a regular file; one that is mapped already, and unchanged, is shared.

    Raises `OSError`.
    """
    name = os.fspath(path)
    status = os.stat(name)
    if not stat.S_ISREG(status.st_mode):  # to open a pipe would block
        raise OSError(None, "is not a regular file", name)
    with _lock:
        known = _in_use.get((name, _identity(status)))
    if known is not None:
        return Mapped(known, _identity(status))
    if not status.st_size:  # an empty range cannot be mapped
        return Mapped(np.empty(0, np.uint8), _identity(status))
    with pa.memory_map(name) as source:  # once closed, it costs no file descriptor
        identity = _identity(os.fstat(source.fileno()))
        data: U8 = np.frombuffer(source.read_buffer(identity.size), np.uint8)
    if len(data) != identity.size:
        raise OSError(None, "was cut while it was opened", name)
    with _lock:
        return Mapped(_in_use.setdefault((name, identity), data), identity)


def check_mapped(paths: Iterable[str] | None = None) -> None:
    """Check that no mapped file was cut. Raises `CorruptShard`.

    paths: of those about to be read; None: all that are in use.
    """
    with _lock:
        files = list(_in_use)
    if paths is not None:
        wanted = set(paths)
        files = [file for file in files if file[0] in wanted]
    for name, identity in files:
        try:
            status = os.stat(name)
        except OSError:
            continue  # deleted
        same = (status.st_dev, status.st_ino) == identity[:2]
        if same and status.st_size < identity.size:
            raise CorruptShard(
                f"was cut while it was in use: {status.st_size:,} of {identity.size:,} bytes are"
                " left",
                path=name,
                remedy=_REMEDY,
            )


def _identity(status: os.stat_result) -> Identity:
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
