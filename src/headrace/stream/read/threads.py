"""Threads that read, and how they end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_this_thread = threading.local()


def start_threads(count: int, *, name: str) -> ThreadPoolExecutor:
    """So many threads under this name; begun when there is work. To be ended with `end_threads`."""
    return ThreadPoolExecutor(count, thread_name_prefix=name, initializer=_mark)


def end_threads(threads: ThreadPoolExecutor, *, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Drop what has not begun, and wait for what has.

    Nothing is left to end when the interpreter goes down with a stream open: it has joined all such threads, and its
    modules are no longer whole.

    A stream that was dropped inside a cycle is ended by the garbage collector, in whatever thread that runs. A reading
    thread must not wait then: for itself, or for one that waits for its block, it would wait forever.
    """
    if finalizing():
        return
    threads.shutdown(wait=not getattr(_this_thread, "reads", False), cancel_futures=True)


def _mark() -> None:
    _this_thread.reads = True
