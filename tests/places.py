"""Directories of a test process beside pytest's own: gone when it ends, or else when the next such process begins.

A process that is killed, or that a time limit ends, tidies nothing up. So each directory holds a lock that ends with its
process, and whoever makes a new one removes those that nobody holds.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX, _LOCK = "headrace-tests-", ".lock"
INSIDE = "HEADRACE_TESTS_PLACE"  # children of a test process make theirs inside its own


def new_place() -> Path:
    """An empty directory; removed at the end of this process, whatever lies in it."""
    inside = os.environ.get(INSIDE)
    if inside:
        return Path(tempfile.mkdtemp(dir=inside))
    sweep()
    lock, name = tempfile.mkstemp(prefix=_PREFIX)
    fcntl.flock(lock, fcntl.LOCK_EX)
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    os.rename(name, directory / _LOCK)  # never seen there without being held
    atexit.register(_remove_own, directory, os.getpid())
    return directory


def sweep() -> None:
    """Remove the directories of processes that are gone."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        try:
            held = os.open(lock, os.O_RDWR)
        except OSError:  # another process sweeps too, or it is another user's
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(lock.parent)
        except BlockingIOError:  # its process lives
            pass
        finally:
            os.close(held)


def remove(directory: Path) -> None:
    """Remove a directory with everything in it, what nobody may write or enter included."""
    for place, names, _ in os.walk(directory):
        for each in (place, *(os.path.join(place, name) for name in names)):
            if not os.path.islink(each):
                os.chmod(each, 0o700)  # before `walk` enters it
    shutil.rmtree(directory, ignore_errors=True)


def _remove_own(directory: Path, pid: int) -> None:
    if os.getpid() == pid:  # a fork of it has its exit functions, too
        remove(directory)
