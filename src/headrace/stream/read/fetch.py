"""Decoded blocks, made by a few threads ahead of the reader.

The reader announces the pieces of coming pools in order; threads decode their blocks, each once while anyone wants it,
as long as what is decoded ahead, or being decoded, stays below a bound. The blocks of the pool that the reader has do
not count: where they alone are more than the bound, nothing would be decoded while they are used. A block that the
reader asks for now is decoded in any case, so a bound that is too small costs speed, never progress. What is delivered
does not depend on which thread was faster.

Lanes read a block from front to back, and stand at different places of their blocks: about half of the rows of all open
blocks are still needed. So a block is kept in parts, which are dropped one by one. A part is one piece of memory of its
own, which the next part takes over: what an allocator gives out for each column of each part cannot be given back as
long as one of them is used. Copying costs less than touching fresh memory would. A block that is no larger than a part
is not worth a copy. Where two lanes meet in such a block it stays decoded for the second one, if there is room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from types import TracebackType
from typing import Literal, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.stream.read.ahead import end_threads, start_threads
from headrace.stream.read.buffers import Buffers
from headrace.stream.read.columns import Columns, copied, cut, size_of

Piece = tuple[int, int, int]  # block number, first row, stop row
Made = TypeVar("Made")
Keep = Literal["copies", "copies of the rest", "views"]

_PART_BYTES = 1 << 21
_SHARED_BYTES = 1 << 26  # of blocks that wait for their second lane
_SPARE_PARTS = 32  # memory of parts that is kept for the next ones
_MOST_DONE = 16  # blocks
_LEAST_RATIO = 1 / 16


class Part(NamedTuple):
    """Rows start..stop-1 of a block."""

    start: int
    stop: int
    columns: Columns


class Fetcher:
    """Blocks by number; use as a context manager, which ends the threads whatever happens.

    decode: called in threads; estimate: bytes of a block before it is decoded. keep: "copies" of the rows that are
    needed, in parts; "copies of the rest" of a block, without the rows in front of what is wanted when it is decoded,
    which would be decoded again; or "views" of whole blocks, for those that are mapped files.
    """

    _end_threads = staticmethod(end_threads)  # still found when the interpreter has emptied this module

    def __init__(
        self,
        decode: Callable[[int], Columns],
        estimate: Callable[[int], int],
        *,
        threads: int,
        ahead_bytes: int,
        ahead_blocks: int,
        keep: Keep,
    ) -> None:
        self._decode = decode
        self._estimated = estimate
        self._ahead_bytes = ahead_bytes
        self._ahead_blocks = ahead_blocks
        self._keep = keep
        self._wanted: dict[int, deque[int]] = {}  # the first row that each announced pool wants, pool after pool
        self._waiting: deque[int] = deque()  # announced, not begun
        self._begun: dict[int, Future[list[Part]]] = {}
        self._floors: dict[int, int] = {}  # rows of a begun block below this one are not held
        self._used: dict[int, int] = {}  # rows of begun blocks that pools have had
        self._shared: dict[int, Future[list[Part]]] = {}  # whole blocks that no announced pool wants, of rows to come
        self._shared_bytes = 0
        self._sizes: dict[int, int] = {}  # of what is decoded
        self._ratio = 1.0  # bytes of the block decoded last, for each that was estimated: few columns take less
        # Nobody wants these any more. Decoding takes memory for each new block, and lets go of one of these first: an
        # allocator gives memory that stays free for a moment back to the system, and fresh memory is slow to touch.
        self._done: deque[Future[list[Part]]] = deque(maxlen=_MOST_DONE)
        self._in_use: frozenset[int] = frozenset()  # by the pool that the reader has
        self._memory, self._memory_lock = Buffers(), Lock()
        self._threads = start_threads(threads, name="headrace-read")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_threads(self._threads)
        self._begun.clear()
        self._shared.clear()
        self._done.clear()
        self._sizes.clear()

    @property
    def has_room(self) -> bool:
        """True if everything announced has begun, so that more may be announced."""
        return not self._waiting

    @property
    def held_bytes(self) -> int:
        """Bytes of all rows held; of a block that is being decoded, the estimate."""
        return sum(map(self._size, self._begun)) + self._shared_bytes

    def decode_each(self, blocks: Iterable[int], use: Callable[[int, Columns], Made]) -> list[Made]:
        """Return what `use` makes of each decoded block, in the same order; called in the threads. No block is held.

        Raises what decoding raised.
        """
        coming = [self._threads.submit(lambda block: use(block, self._decode(block)), block) for block in blocks]
        return [made.result() for made in coming]

    def get_alone(self, pieces: Sequence[Piece]) -> list[Columns]:
        """The rows of pieces that were not announced, in order; of their blocks nothing else is held."""
        spans: dict[int, list[tuple[int, int]]] = {}
        for block, start, stop in pieces:
            spans.setdefault(block, []).append((start, stop))

        def copies(block: int, columns: Columns) -> list[Columns]:
            return [copied(cut(columns, start, stop), self._room) for start, stop in spans[block]]

        found = dict(zip(spans, map(iter, self.decode_each(spans, copies)), strict=True))
        return [next(found[block]) for block, _, _ in pieces]

    def announce(self, pieces: Sequence[Piece]) -> None:
        """A coming pool wants these pieces; each announcement is answered by one `release`, in the same order."""
        for block, first in _first_rows(pieces).items():
            if block not in self._wanted:
                self._wanted[block] = deque()
                if block in self._shared:
                    self._begun[block], self._floors[block] = self._shared.pop(block), 0
                    self._shared_bytes -= self._size(block)
                else:
                    self._waiting.append(block)
            self._wanted[block].append(first)
        self._begin_ahead()

    def get(self, pieces: Sequence[Piece]) -> list[Columns]:
        """The rows of the pieces that were announced first, in order; raises what decoding raised."""
        firsts = _first_rows(pieces)
        for block, first in firsts.items():
            begun = block in self._begun
            if not begun:
                self._waiting.remove(block)
            if not begun or first < self._floors[block]:  # two lanes meet in one block: it was begun for the other one
                self._begin(block)
        self._in_use = frozenset(firsts)
        self._begin_ahead()
        return [
            cut(part.columns, max(start, part.start) - part.start, min(stop, part.stop) - part.start)
            for block, start, stop in pieces
            for part in self._begun[block].result()
            if part.start < stop and start < part.stop
        ]

    def release(self, pieces: Sequence[Piece]) -> None:
        """The reader's pool is done with these pieces; what no announced pool wants is let go."""
        for block, start, stop in pieces:
            self._used[block] = self._used.get(block, 0) + stop - start
        for block in _first_rows(pieces):
            wanted = self._wanted[block]
            wanted.popleft()
            if wanted:
                first = 0 if self._keep == "views" else min(wanted)  # a view holds all rows
                floor = self._floors[block] = max(self._floors[block], first)
                parts = self._begun[block].result()
                parts[:] = [part for part in parts if part.stop > floor]
            else:
                self._keep_shared(block)
                del self._wanted[block], self._begun[block], self._floors[block]
            self._sizes.pop(block, None)
        with self._memory_lock:
            self._memory.trim(_SPARE_PARTS)
        self._begin_ahead()

    def _keep_shared(self, block: int) -> None:
        """Keep a small block of which pools have had a part, as it is whole; blocks that came first keep their room."""
        parts, size = self._begun[block].result(), self._size(block)
        rows = parts[-1].stop if parts else 0
        is_small_and_whole = len(parts) == 1 and parts[0].start == 0 and size <= _PART_BYTES
        if is_small_and_whole and self._used[block] < rows and self._shared_bytes + size <= _SHARED_BYTES:
            self._shared[block] = self._begun[block]
            self._shared_bytes += size
        else:
            del self._used[block]
            if size <= _PART_BYTES:
                self._done.append(self._begun[block])

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
        # Where lanes are short, the next pool may want rows in front of these, and is announced in time.
        self._floors[block] = min(self._wanted[block]) if self._keep == "copies of the rest" else 0
        self._sizes.pop(block, None)
        self._begun[block] = self._threads.submit(self._parts, block, self._floors[block])

    def _parts(self, block: int, floor: int) -> list[Part]:
        """The rows of a block."""
        with suppress(IndexError):
            self._done.popleft()
        columns = self._decode(block)
        rows = max(map(len, columns.values()), default=0)
        size = size_of(columns)
        self._ratio = max(_LEAST_RATIO, size / max(1, self._estimated(block)))
        if self._keep == "views" or size <= _PART_BYTES:
            return [Part(0, rows, columns)]
        count = max(1, size // _PART_BYTES)
        size = max(1, -(-rows // count))
        return [
            Part(start, min(start + size, rows), copied(cut(columns, start, start + size), self._room))
            for start in range(floor, rows, size)
        ]

    def _room(self, size: int) -> npt.NDArray[np.uint8]:
        with self._memory_lock:
            return self._memory.empty((size,), np.uint8)

    def _size(self, block: int) -> int:
        if block not in self._sizes:
            future = self._begun[block]
            if not future.done() or future.cancelled() or future.exception() is not None:
                return self._estimate(block)
            self._sizes[block] = sum(size_of(part.columns) for part in future.result())
        return self._sizes[block]

    def _estimate(self, block: int) -> int:
        return int(self._estimated(block) * self._ratio)


def _first_rows(pieces: Sequence[Piece]) -> dict[int, int]:
    """The first row of each block, the blocks in the order they are met."""
    firsts: dict[int, int] = {}
    for block, start, _ in pieces:
        firsts[block] = min(start, firsts.get(block, start))
    return firsts
