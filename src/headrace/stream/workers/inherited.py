"""What a forked worker has of its parent must outlive it there: the worker's garbage collector leaves it alone.

A training process holds garbage in cycles, such as the DDP model of an earlier training. A fork has a copy of it; once
the worker's collector frees that, its finalizers run in the worker: a process group of gloo then waits for threads that
do not survive a fork, for ever, or crashes. When a collector runs hangs on the release of Python.
"""

from __future__ import annotations

import gc
import os

_kept_in = 0  # the process that has done it; a fork of it has another number


def keep_inherited() -> None:
    """What is alive in this worker now, or garbage of its parent, is never collected in it; once a process."""
    global _kept_in
    if _kept_in != os.getpid():
        _kept_in = os.getpid()
        gc.freeze()
