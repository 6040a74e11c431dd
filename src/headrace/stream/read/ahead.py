"""Run reading threads, end them safely, and make items ahead of their consumer in a thread."""

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
    """The threads of one stream. starter: the thread that created them."""

    starter: threading.Thread


def start_threads(count: int, *, name: str) -> Threads:
    """Return a pool of `count` threads with this name, which start when there is work. End them with `end_threads`."""
    threads = Threads(count, thread_name_prefix=name, initializer=_mark)
    threads.starter = threading.current_thread()
    return threads


def end_threads(threads: Threads, *, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Cancel work that has not begun, and wait for work that has.

    Does nothing while the interpreter shuts down with a stream open: it has already joined all such threads, and its
    modules are partly cleared.

    The garbage collector ends a stream that was dropped inside a cycle, in whichever thread it runs. A reading thread
    must not wait then: it would wait forever for itself, or for a thread that waits for its block. It waits only for
    threads that it started itself, because those never wait for it.
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
    """Yield the same items, and make the next ones while one is used.

    Raises what making an item raised, at its position. At most `most` items wait, including the one being made. If
    `size_of` gives their bytes, fewer wait: the number that fits in `most_bytes` at the size of the largest item so
    far, but at least one. The first item is made alone. When the generator is exhausted, closed or dropped, the thread
    finishes its current item and ends, and `items` is closed. If the interpreter ends first, at most `most` items are
    still made.
    """
    threads = start_threads(1, name=thread_name)
    coming: deque[Future[tuple[Item, int] | None]] = deque()
    end, close = end_threads, getattr(items, "close", None)  # bound now: at exit the module may be cleared

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
            try:  # noqa: SIM105 - `suppress` may be cleared by then, too
                close()
            except ValueError:  # an unjoined thread is still inside `items`, and closes it when done
                pass
