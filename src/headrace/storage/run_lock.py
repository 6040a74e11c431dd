"""Lock a run: one process works on it, and others can see that it does, and what.

The lock is a file in the directory, held with flock, so that the kernel frees it when its holder
dies. A process that works holds it exclusively and writes into it what it does. A process that only
looks or sweeps, such as `headrace gc`, holds it shared: one that begins to work meanwhile waits for
it and does not fail. The lock only avoids double work: the output of a run stays correct without
it, as on a file system without locks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from headrace.errors import RunBusy, StoreError
from headrace.storage import local
from headrace.storage.places import place_of

LOCK = ".lock"
_PAUSE_S = 0.005  # while others only look
_MOST_BYTES = 300

Doing = Literal["makes this run", "erases entities from this run"]


class RunRemoved(RunBusy):
    """A run's directory was removed while this process was about to lock it."""


@contextmanager
def only_writer(run: Path, doing: Doing = "makes this run") -> Iterator[None]:
    """Hold the lock of a run, to work on it.

    Raises `RunBusy` that says what another process does if one holds it, and `RunRemoved` if the
    directory is gone.
    """
    lock = run / LOCK
    with local.storing(lock):
        try:
            # not through a link, behind which a file of somebody else would be emptied
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(lock, flags, 0o644)
        except FileNotFoundError:
            raise _removed(run) from None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise StoreError(
                "is a link, and must be a file", path=lock, remedy="remove it and run again"
            ) from error
    try:
        if not _lock(descriptor):
            raise _busy(run, descriptor)
        if not os.path.exists(lock) or os.stat(lock).st_ino != os.fstat(descriptor).st_ino:
            raise _removed(run)
        with suppress(OSError):  # a full disk: nobody is told what this process does
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {platform.node()} {doing}".encode(), 0)
        yield
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


@contextmanager
def locked_briefly(run: Path, to: Literal["look", "remove it"] = "look") -> Iterator[None]:
    """Keep others from beginning to work on a run for a moment; they wait.

    to: who looks does not make a lock file that is missing, so somebody may begin to work: what was
    seen before belongs to nobody, what comes later may belong to him. Raises `RunBusy` if a process
    works on the run. In an object store, where nothing can be locked, it always may.
    """
    if place_of(run).writes != "in place":
        yield
        return
    flags = os.O_RDONLY if to == "look" else os.O_RDWR | os.O_CREAT
    try:
        descriptor = os.open(run / LOCK, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError:
        yield
        return
    try:
        with suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _busy(run, descriptor) from None
        yield
    finally:
        os.close(descriptor)


def is_busy(run: Path) -> bool:
    """Return whether a live process works on a run; False in an object store."""
    try:
        with locked_briefly(run):
            return False
    except RunBusy:
        return True


def remove_run(run: Path) -> int | None:
    """Delete a run's directory, which readers see whole or not at all; return its bytes, None if it
    does not exist.

    On a local disk it gets a temporary name first, which `headrace gc` deletes if this process
    dies. In an object store its manifest goes first.
    """
    directory = place_of(run)
    if directory.writes == "in place":
        going = local.temporary_for(run)
        with local.storing(run):
            try:
                os.rename(run, going)
            except FileNotFoundError:
                return None
        return place_of(going).delete_below()
    place_of(run / "manifest.json").delete()
    size = directory.delete_below()
    if left := directory.files_below():
        raise StoreError(
            f"the store was told to delete {len(left):,} objects of it and still has them",
            path=run,
            remedy="see that it deletes what it is told, and that nobody writes there; run again",
        )
    return size


def _lock(descriptor: int) -> bool:
    """Lock a file exclusively; return False if a process works on its run."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
        except OSError:  # a file system without locks
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        time.sleep(random.uniform(0, _PAUSE_S))


def _busy(run: Path, descriptor: int) -> RunBusy:
    pid, _, remainder = os.pread(descriptor, _MOST_BYTES, 0).decode(errors="replace").partition(" ")
    node, _, doing = remainder.partition(" ")
    who = "another process is working on this run"
    if doing:
        who = f"another process (PID {pid} on {node}) {doing}"
    return RunBusy(who, path=run, remedy="wait for it and run again to reuse its result")


def _removed(run: Path) -> RunRemoved:
    return RunRemoved(
        "was just removed by a process that failed, swept it or erased entities from it",
        path=run,
        remedy="run again",
    )
