"""Decoded blocks, made by a few threads ahead of the reader.

The reader announces the blocks of coming pools in order; threads decode them, each once while anyone wants it, as
long as what is decoded ahead, or being decoded, stays below a bound. The blocks of the pool that the reader has do not
count: where they alone are more than the bound, nothing would be decoded while they are used. A block that the reader
asks for now is decoded in any case, so a bound that is too small costs speed, never progress. What is delivered does
not depend on which thread was faster.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from headrace.stream.read.columns import Columns, size_of
from headrace.stream.read.threads import end_threads, start_threads


class Fetcher:
    """Blocks by number; use as a context manager, which ends the threads whatever happens.

    decode: called in threads; estimate: bytes of a block before it is decoded.
    """

    def __init__(
        self,
        decode: Callable[[int], Columns],
        estimate: Callable[[int], int],
        *,
        threads: int,
        ahead_bytes: int,
        ahead_blocks: int,
    ) -> None:
        self._decode = decode
        self._estimate = estimate
        self._ahead_bytes = ahead_bytes
        self._ahead_blocks = ahead_blocks
        self._wanted: Counter[int] = Counter()  # by how many pools
        self._waiting: deque[int] = deque()  # announced, not begun
        self._begun: dict[int, Future[Columns]] = {}
        self._sizes: dict[int, int] = {}  # of what is decoded
        self._in_use: frozenset[int] = frozenset()  # by the pool that the reader has
        self._threads = start_threads(threads, name="headrace-read")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_threads(self._threads)
        self._begun.clear()
        self._sizes.clear()

    @property
    def has_room(self) -> bool:
        """Whether everything announced has begun, so that more may be announced."""
        return not self._waiting

    def announce(self, blocks: Iterable[int]) -> None:
        """A coming pool wants these blocks; each announcement is answered by one `release`."""
        for block in blocks:
            self._wanted[block] += 1
            if block not in self._begun and self._wanted[block] == 1:
                self._waiting.append(block)
        self._begin_ahead()

    def get(self, blocks: list[int]) -> list[Columns]:
        """The decoded blocks, all announced before; raises what decoding raised."""
        for block in blocks:
            if block not in self._begun:
                self._waiting.remove(block)
                self._begin(block)
        self._in_use = frozenset(blocks)
        self._begin_ahead()
        return [self._begun[block].result() for block in blocks]

    def release(self, blocks: Iterable[int]) -> None:
        """The reader's pool is done with these blocks; a block that no pool wants is let go."""
        for block in blocks:
            self._wanted[block] -= 1
            if not self._wanted[block]:
                del self._wanted[block], self._begun[block]
                self._sizes.pop(block, None)
        self._begin_ahead()

    def _begin_ahead(self) -> None:
        ahead = [block for block in self._begun if block not in self._in_use]
        held, count = sum(map(self._size, ahead)), len(ahead)
        while self._waiting and count < self._ahead_blocks:
            held += self._estimate(self._waiting[0])
            if held > self._ahead_bytes:
                return
            self._begin(self._waiting.popleft())
            count += 1

    def _begin(self, block: int) -> None:
        self._begun[block] = self._threads.submit(self._decode, block)

    def _size(self, block: int) -> int:
        if block not in self._sizes:
            future = self._begun[block]
            if not future.done() or future.cancelled() or future.exception() is not None:
                return self._estimate(block)
            self._sizes[block] = size_of(future.result())
        return self._sizes[block]
