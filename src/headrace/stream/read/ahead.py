"""Threads that read, how they end, and items made ahead of their consumer in a thread of their own."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
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


def made_ahead(
    items: Iterator[Item],
    *,
    thread_name: str,
    most: int = 1,
    most_bytes: int | None = None,
    size_of: Callable[[Item], int] | None = None,
) -> Generator[Item, None, None]:
    """Yield the same items; while one is used, the next are made. Raises what making an item raised, in its place.

    At most `most` items wait to be taken, the one being made among them. Where `size_of` gives their bytes, fewer wait:
    as many as `most_bytes` hold of the largest so far, and always one. The first item is made alone.
    The thread ends when the generator is exhausted, closed or dropped, after the item that it is at, and `items` is
    closed. When the interpreter ends first, at most `most` items are still made.
    """
    threads = start_threads(1, name=thread_name)
    coming: deque[Future[tuple[Item, int] | None]] = deque()
    end, close = end_threads, getattr(items, "close", None)  # this module may be empty when the interpreter ends

    def make() -> tuple[Item, int] | None:
        for item in items:
            return item, 0 if size_of is None else size_of(item)
        return None

    try:
        largest = 0
        coming.append(threads.submit(make))
        while (made := coming.popleft().result()) is not None:
            largest = max(largest, made[1])
            room = most if most_bytes is None or not largest else max(1, min(most, most_bytes // largest))
            while len(coming) < room:
                coming.append(threads.submit(make))
            yield made[0]
            del made
    finally:
        coming.clear()
        end(threads)
        if close is not None:
            try:  # noqa: SIM105 - `suppress` has gone by then, too
                close()
            except ValueError:  # its thread was not waited for, and is inside; it closes it when it drops it
                pass
