"""Map files for reading, and tell one that was cut while it is in use.

A page of a mapped file that no longer exists ends the process (SIGBUS) when it is touched, and no
code can catch that. So whoever makes a batch of mapped bytes calls `check_mapped` first, which
compares the sizes of the files in use with those they had when they were mapped. Where a descriptor
of the file is kept, that takes a microsecond. A file that is cut between that and the
touch still ends the process. A file that is replaced or deleted does no harm, because the mapping
keeps its bytes.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary, finalize

import numpy as np
import pyarrow as pa

from headrace.arrays import U8
from headrace.errors import CorruptShard

_REMEDY = "restore it; give other programs a copy to write to"
# files that one call checks, and descriptors that are kept for it
_MOST_AT_ONCE = 64
Item = TypeVar("Item")


class Identity(NamedTuple):
    """What tells a file from its other versions; changed_ns: time of its last change."""

    device: int
    inode: int
    size: int
    changed_ns: int


class Mapped(NamedTuple):
    """data: the bytes of a file, uint8 [size], read-only. path: its name when it was mapped."""

    data: U8
    identity: Identity
    path: str

    @property
    def buffer(self) -> pa.Buffer:
        """The bytes for Arrow. All that is made of them keeps the file mapped."""
        return pa.py_buffer(self.data)

    def check(self) -> None:
        """Check that the file was not cut since it was mapped. Raises `CorruptShard`."""
        _check(self.path, self.identity)


# Weak: the array that nobody needs any more is unmapped.
_in_use: WeakValueDictionary[tuple[str, Identity], U8] = WeakValueDictionary()
# descriptors of some of them, closed when their array is unmapped
_descriptors: dict[int, tuple[str, Identity]] = {}
_lock = threading.Lock()
# how many files were checked, over all calls
_turn = 0


def map_bytes(path: str | Path) -> Mapped:
    """Map a regular file; one that is mapped already, and unchanged, is shared.

    Raises `OSError`.
    """
    name = os.fspath(path)
    status = os.stat(name)
    if not stat.S_ISREG(status.st_mode):  # to open a pipe would block
        raise OSError(errno.EINVAL, "is not a regular file", name)
    identity = _identity(status)
    with _lock:
        known = _in_use.get((name, identity))
    if known is not None:
        return Mapped(known, identity, name)
    if not identity.size:  # an empty range cannot be mapped
        return Mapped(np.empty(0, np.uint8), identity, name)
    with pa.memory_map(name) as source:  # once closed, it costs no file descriptor
        identity = _identity(os.fstat(source.fileno()))
        data: U8 = np.frombuffer(source.read_buffer(identity.size), np.uint8)
        if len(data) != identity.size:
            raise OSError(errno.EIO, "was cut while it was opened", name)
        key = name, identity
        with _lock:
            shared = _in_use.setdefault(key, data)
            if shared is data and len(_descriptors) < _MOST_AT_ONCE:
                descriptor = os.dup(source.fileno())
                _descriptors[descriptor] = key
                finalize(data, _forget, descriptor)
    return Mapped(shared, identity, name)


def _forget(descriptor: int) -> None:
    """Close the descriptor of a file that was unmapped."""
    del _descriptors[descriptor]
    os.close(descriptor)


def check_mapped() -> None:
    """Check that no file that is mapped in this process was cut; of very many, some in turn.

    Raises `CorruptShard`.
    """
    for descriptor, key in list(_descriptors.items()):
        try:
            # no lseek: the number may be that of another file by now, whose position it would move
            size = os.fstat(descriptor).st_size
        except OSError:
            continue  # it was unmapped just now
        if size < key[1].size:
            _check(*key)
    if len(_in_use) > len(_descriptors):
        _check_in_turn()


def _check_in_turn() -> None:
    """Check some of the files of which no descriptor is kept, others in the next call."""
    global _turn
    with _lock:
        files = list(_in_use.keys())
    first = _turn % max(1, len(files))
    _turn += _MOST_AT_ONCE
    for key in (files + files)[first : first + min(_MOST_AT_ONCE, len(files))]:
        _check(*key)


def while_mapped(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the same items, and check before each is made, as `check_mapped` does."""
    check_mapped()
    for item in items:
        yield item
        check_mapped()


def _check(name: str, identity: Identity) -> None:
    try:
        status = os.stat(name)
    except OSError:
        return  # it was deleted, and its bytes stay
    same = (status.st_dev, status.st_ino) == identity[:2]
    if same and status.st_size < identity.size:
        raise CorruptShard(
            f"was cut while it was in use: {status.st_size:,} of {identity.size:,} bytes are left",
            path=name,
            remedy=_REMEDY,
        )


def _identity(status: os.stat_result) -> Identity:
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
