"""Threads that read, and how they end."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

_this_thread = threading.local()


class Threads(ThreadPoolExecutor):
    """Threads of one stream. starter: the thread that asked for them."""

    starter: threading.Thread


def start_threads(count: int, *, name: str) -> Threads:
    """Return `count` threads under this name, begun when there is work. End them with `end_threads`."""
    threads = Threads(count, thread_name_prefix=name, initializer=_mark)
    threads.starter = threading.current_thread()
    return threads


def end_threads(threads: Threads, *, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Drop what has not begun, and wait for what has.

    Nothing is left to end when the interpreter goes down with a stream open: it has joined all such threads, and its
    modules are no longer whole.

    A stream that was dropped inside a cycle is ended by the garbage collector, in whatever thread that runs. A reading
    thread must not wait then: for itself, or for one that waits for its block, it would wait forever. Only the threads
    that it started itself never wait for it.
    """
    if finalizing():
        return
    is_own = threads.starter is threading.current_thread()
    threads.shutdown(wait=is_own or not getattr(_this_thread, "reads", False), cancel_futures=True)


def _mark() -> None:
    _this_thread.reads = True
