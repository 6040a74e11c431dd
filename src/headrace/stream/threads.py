"""Threads that read, and how they end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

_this_thread = threading.local()


def start_threads(count: int, *, name: str) -> ThreadPoolExecutor:
    """So many threads under this name; begun when there is work. To be ended with `end_threads`."""
    return ThreadPoolExecutor(count, thread_name_prefix=name, initializer=_mark)


def end_threads(threads: ThreadPoolExecutor) -> None:
    """Drop what has not begun, and wait for what has.

    A stream that was dropped inside a cycle is ended by the garbage collector, in whatever thread that runs. A reading
    thread must not wait then: for itself, or for one that waits for its block, it would wait forever.
    """
    threads.shutdown(wait=not getattr(_this_thread, "reads", False), cancel_futures=True)


def _mark() -> None:
    _this_thread.reads = True
