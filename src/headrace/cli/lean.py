"""Libraries in a process of the command line, where they need not know others that happen to be installed.

pyarrow imports pandas with the first Python value it is handed, to see whether the value is one of pandas'; numba
imports scipy.linalg with the first function it compiles or loads, to multiply matrices with it. Each takes a quarter of
a second and tens of megabytes. Commands hand pyarrow nothing of pandas and ask nothing of pandas of it, and histories
multiply no matrices.

The C library gives freed memory back to the kernel, which hands it out again page by page, each page filled with zeros:
a tenth of the time of histories, whose batches free and take the same few megabytes all the time.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.machinery import ModuleSpec

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGEST_KEPT, _MOST_FREE = 32 << 20, 128 << 20  # bytes: of a block; at the end of what a thread has freed


class _Absent:
    """The first finder of modules: there is none of this name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002 - as importlib calls it
        if name == self._name:
            raise ModuleNotFoundError(f"no {name} is wanted here", name=name)
        return None


def arrow_alone() -> None:
    """Let pyarrow find no pandas in this process, where it has not yet. For processes of a command only.

    Libraries that want pandas for themselves, as scikit-learn may, still get it.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    absent = _Absent("pandas")
    sys.meta_path.insert(0, absent)
    try:
        pa.scalar(0)  # it looks now, and remembers
    finally:
        sys.meta_path.remove(absent)


def numba_alone() -> None:
    """Let nobody find scipy in this process from now on. For processes of a command that runs no code of its user's."""
    if "scipy" not in sys.modules:
        sys.meta_path.insert(0, _Absent("scipy"))


def freed_memory_kept() -> None:
    """Let malloc keep what this process frees for what it asks next, where it is glibc's and nobody has set it up.

    For processes of a command only.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # another C library, or another way to load it
        return
    mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
    mallopt(_TRIM_THRESHOLD, _MOST_FREE)


def lean_histories() -> None:
    """Set up a process of `headrace histories`, which compiles functions and frees much memory."""
    numba_alone()
    freed_memory_kept()
