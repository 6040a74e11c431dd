"""List the names below a prefix, in any number of pages, until the store has no more.

A store that gives one page again and again, with names or without, would keep obstore busy forever.
Names that come twice, and a listing that brings no name for as long as any other transfer may be
without progress, are errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from headrace.errors import StoreError
from headrace.storage.bucket import Bucket

Result = TypeVar("Result")

_PAGE = 1000  # names
_WHOLE = 2  # times the time without progress, for a listing that comes in one piece
_REMEDY = "see that the store's listing ends, then run again: what was finished is kept"


def list_all(bucket: Bucket, prefix: str) -> list[Any]:
    """List all objects below a prefix, as obstore describes them.

    Raises `StoreError` if it does not get on.
    """

    async def look() -> list[Any]:
        entries: list[Any] = []
        seen: set[str] = set()
        pages = bucket.verbs.list(bucket.store, prefix or None, chunk_size=_PAGE)
        limit_s = bucket.patience.without_progress_s
        with _ending(bucket, prefix, limit_s):
            while True:
                try:
                    page = await asyncio.wait_for(pages.__anext__(), limit_s)
                except StopAsyncIteration:
                    return entries
                _refuse_repeated(bucket, prefix, [entry["path"] for entry in page], seen)
                entries.extend(page)

    return _waited(look())


def list_directly(bucket: Bucket, prefix: str) -> tuple[list[str], list[Any]]:
    """List the prefixes and objects directly below a prefix.

    Raises `StoreError` if it does not get on.
    """

    async def look() -> Any:
        limit_s = _WHOLE * bucket.patience.without_progress_s
        with _ending(bucket, prefix, limit_s):
            return await asyncio.wait_for(
                bucket.verbs.list_with_delimiter_async(bucket.store, prefix or None), limit_s
            )

    listing = _waited(look())
    prefixes, entries = listing["common_prefixes"], listing["objects"]
    _refuse_repeated(bucket, prefix, [entry["path"] for entry in entries], set())
    return prefixes, entries


def _waited(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run it in a thread of its own, as the caller's may have a loop already."""
    with ThreadPoolExecutor(1, thread_name_prefix="headrace-list") as pool:
        return pool.submit(asyncio.run, coroutine).result()


@contextmanager
def _ending(bucket: Bucket, prefix: str, limit_s: float) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise StoreError(
            f"the store's listing does not end: {limit_s:,.0f} s brought nothing new",
            path=f"{bucket.address}/{prefix}",
            remedy=_REMEDY,
        ) from None


def _refuse_repeated(bucket: Bucket, prefix: str, keys: Sequence[str], seen: set[str]) -> None:
    """Raise `StoreError` if a key was seen before, and remember them."""
    for key in keys:
        if key in seen:
            raise StoreError(
                "the store's listing repeats itself: this name came twice",
                path=f"{bucket.address}/{prefix}",
                value=key,
                remedy=_REMEDY,
            )
        seen.add(key)
