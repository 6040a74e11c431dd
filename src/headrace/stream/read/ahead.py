"""An iterator worked one item ahead in a thread of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TypeVar

from headrace.stream.read.threads import end_threads, start_threads

Item = TypeVar("Item")


def one_ahead(items: Iterator[Item], *, thread_name: str) -> Generator[Item, None, None]:
    """The same items; while one is used, the next is made. Raises what making it raised, in its place.

    The thread ends when the generator is exhausted, closed or dropped, after the item it is at.
    """
    threads = start_threads(1, name=thread_name)
    try:
        coming = threads.submit(_next, items)
        while (item := coming.result()) is not None:
            coming = threads.submit(_next, items)
            yield item[0]
            del item
    finally:
        end_threads(threads)


def _next(items: Iterator[Item]) -> tuple[Item] | None:
    for item in items:
        return (item,)
    return None
