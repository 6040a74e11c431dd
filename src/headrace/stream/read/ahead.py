"""Read ahead in threads: make items before their consumer asks for them, and decode blocks in time.

The reader announces the pieces of coming pools to a `Fetcher`, in order. Threads decode their
blocks, each once while any announced pool needs it and adjacent ones together, as long as the bytes
decoded ahead or being decoded stay below a bound. The blocks of the reader's current pool do not
count: if they alone exceeded the bound, nothing would be decoded while they are used. A block that
the reader requests now is decoded in any case, so a bound that is too small costs speed but never
stops progress. The delivered rows do not depend on which thread was faster.

Lanes read blocks from front to back and are at different positions of their blocks, so about half
of the rows of all open blocks are still needed. A block is therefore kept in parts, which are
dropped one by one. A part is one piece of memory of its own, which the next part reuses. Separate
allocations for each column of each part could not be returned while one of them is used. Copying
costs less than touching fresh memory would. A block no larger than a part is not worth a copy. If
two lanes meet in such a block, it stays decoded for the second one if there is room.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, MutableSequence, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import Literal, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.arrays import Bools
from headrace.stream.read.buffers import Buffers
from headrace.stream.read.columns import Columns, copied, cut, size_of

Piece = tuple[int, int, int]  # block number, first row, stop row
Made = TypeVar("Made")
Item = TypeVar("Item")
Keep = Literal["copies", "copies of the rest", "views"]

_PART_BYTES = 1 << 21
_SHARED_BYTES = 1 << 26  # bound of blocks that wait for their second lane
_SPARE_PARTS = 32  # free parts that are kept for reuse
_MOST_DONE = 16  # blocks
_RUN_BYTES = 1 << 23  # of blocks that are decoded together
_RUNS_AHEAD = 4  # so that every thread has one, and none waits
_LEAST_RATIO = 1 / 16
CHECK_S = 0.5  # between checks while a thread waits
_this_thread = threading.local()


class Threads(ThreadPoolExecutor):
    """The threads of one stream. starter: the thread that created them."""

    starter: threading.Thread


def start_threads(count: int, *, name: str) -> Threads:
    """Return a pool of `count` threads with this name, which start when there is work.

    End them with `end_threads`.
    """
    threads = Threads(
        count, thread_name_prefix=name, initializer=setattr, initargs=(_this_thread, "reads", True)
    )
    threads.starter = threading.current_thread()
    return threads


def end_threads(threads: Threads, *, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
    """Cancel work that has not begun, and wait for work that has.

    Does nothing while the interpreter shuts down with a stream open: it has already joined all such
    threads, and its modules are partly cleared.

    The garbage collector ends a stream that was dropped inside a cycle, in whichever thread it
    runs. A reading thread must not wait then: it would wait forever for itself, or for a thread
    that waits for its block. It waits only for threads that it started itself, because those never
    wait for it. While a thread is being started nothing waits: its starter may hold locks.
    """
    if finalizing():
        return
    is_own = threads.starter is threading.current_thread()
    waits = is_own or not getattr(_this_thread, "reads", False)
    if is_leaving() or _may_be_starting_a_thread():
        waits = False
    threads.shutdown(wait=waits, cancel_futures=True)


def _may_be_starting_a_thread() -> bool:
    """Return whether this thread has not fully begun, or may hold the lock of `threading` that a
    thread takes to start and to end.

    The garbage collector can run at either moment, and a wait for another thread would never end.
    """
    lock = getattr(threading, "_shutdown_locks_lock", None)  # until Python 3.12
    is_unknown = isinstance(threading.current_thread(), threading._DummyThread)
    return is_unknown or (lock is not None and lock.locked())


@contextmanager
def waiting(check: Callable[[], None] | None) -> Generator[None, None, None]:
    """Call `check` twice a second while this thread waits for what others read.

    If it raises, threads that read are left to themselves, as they may read for a long time.
    """
    _this_thread.check = check
    try:
        yield
    finally:
        _this_thread.check = None
        _this_thread.leaves = False


@contextmanager
def leaving() -> Generator[None, None, None]:
    """Let `end_threads` of this thread wait for no read."""
    _this_thread.leaves = True
    try:
        yield
    finally:
        _this_thread.leaves = False


def is_leaving() -> bool:
    """Return whether this thread ends a pass because another rank has gone."""
    return bool(getattr(_this_thread, "leaves", False))


def check_while_waiting() -> None:
    """Raise what the check of this thread raises; see `waiting`."""
    check = getattr(_this_thread, "check", None)
    if check is None:
        return
    try:
        check()
    except BaseException:
        _this_thread.leaves = True
        raise


def result_of(future: Future[Made]) -> Made:
    """Wait for a result of another thread, and return it; see `waiting`."""
    if getattr(_this_thread, "check", None) is not None:
        while not future.done() and not wait([future], timeout=CHECK_S).done:
            check_while_waiting()
    return future.result()


def prefetched(
    items: Iterator[Item],
    *,
    thread_name: str,
    most: int = 1,
    most_bytes: int | None = None,
    size_of: Callable[[Item], int] | None = None,
) -> Generator[Item, None, None]:
    """Yield the same items, and make the next ones while one is used.

    Raises what making an item raised, at its position. At most `most` items wait, including the one
    being made. If `size_of` gives their bytes, fewer wait: the number that fits in `most_bytes` at
    the size of the largest item so far, but at least one. The first item is made alone. When the
    generator is exhausted, closed or dropped, the thread finishes its current item and ends, and
    `items` is closed. If the interpreter ends first, at most `most` items are still made.
    """
    threads = start_threads(1, name=thread_name)
    coming: deque[Future[tuple[Item, int] | None]] = deque()
    # bound now: at exit the module may be cleared
    end = end_threads
    close = getattr(items, "close", None)

    def make() -> tuple[Item, int] | None:
        for item in items:
            return item, 0 if size_of is None else size_of(item)
        return None

    try:
        largest = 0
        coming.append(threads.submit(make))
        while (result := result_of(coming.popleft())) is not None:
            largest = max(largest, result[1])
            if most_bytes is None or not largest:
                room = most
            else:
                room = max(1, min(most, most_bytes // largest))
            while len(coming) < room:
                coming.append(threads.submit(make))
            yield result[0]
            del result
    finally:
        coming.clear()
        end(threads)
        if close is not None:
            try:  # noqa: SIM105 - `suppress` may be cleared by then, too
                close()
            except (
                ValueError
            ):  # an unjoined thread is still inside `items`, and closes it when done
                pass


class BlockPart(NamedTuple):
    """Rows start..stop-1 of a block."""

    start: int
    stop: int
    columns: Columns


_Decoded = Future[dict[int, list[BlockPart]]]  # of a run, by block


class Fetcher:
    """Decoded blocks by number; a context manager, which ends the threads on exit.

    decode: decodes adjacent blocks; called in threads.
    estimate: bytes of a block before it is decoded.
    continues: which blocks may be decoded together with the one before them, bool [B].
    keep: "copies" of the needed rows, in parts. "copies of the rest": of a block without the rows
    before the first wanted one at the time of decoding; if those are needed later, the block is
    decoded again. "views" of whole blocks, for mapped files.
    """

    # reachable even after the interpreter has cleared this module
    _end_threads = staticmethod(end_threads)

    def __init__(  # noqa: PLR0913 - all are settings
        self,
        decode: Callable[[range], list[Columns]],
        estimate: Callable[[int], int],
        continues: Bools,
        *,
        threads: int,
        ahead_bytes: int,
        ahead_blocks: int,
        keep: Keep,
    ) -> None:
        self._decode = decode
        self._estimated = estimate
        self._continues = continues
        self._ahead_bytes = ahead_bytes
        self._ahead_blocks = ahead_blocks
        self._keep = keep
        # the first row that each announced pool needs, in the order of pools
        self._requested: dict[int, deque[int]] = {}
        self._waiting: deque[range] = deque()  # announced but not begun, as runs
        self._begun: dict[int, _Decoded] = {}
        self._floors: dict[int, int] = {}  # the lowest row held of each begun block
        self._used: dict[int, int] = {}  # the number of rows of begun blocks that pools have used
        self._shared: dict[int, _Decoded] = {}  # whole blocks for pools not announced yet
        self._shared_bytes = 0
        self._sizes: dict[int, int] = {}  # bytes of decoded blocks
        self._ratio = 1.0  # actual over estimated bytes of the last block: fewer columns take less
        # Unused blocks. Decoding a new block first releases one of them, to reuse its memory: the
        # allocator would return memory that stays free for a moment to the system, and fresh memory
        # is slow to touch.
        self._done: deque[list[BlockPart]] = deque(maxlen=_MOST_DONE)
        self._met: set[int] = set()  # begun blocks that a pool has read from
        self._memory, self._memory_lock = Buffers(), threading.Lock()
        self._most_threads = threads
        self._threads = start_threads(threads, name="headrace-read")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_threads(self._threads)
        self._begun.clear()
        self._shared.clear()
        self._done.clear()
        self._sizes.clear()

    @property
    def has_room(self) -> bool:
        """True if everything announced has begun or waits for more, so more may be announced."""
        return not self._waiting or self._may_grow(self._waiting[0])

    @property
    def held_bytes(self) -> int:
        """Bytes of all rows held; for a block that is being decoded, the estimate."""
        return sum(map(self._size, self._begun)) + self._shared_bytes

    def decode_blocks(
        self, blocks: Iterable[int], use: Callable[[int, Columns], Made]
    ) -> list[Made]:
        """Return the result of `use` for each decoded block, in order; `use` runs in the threads.

        No block is held.

        Raises what decoding raised.
        """

        def use_run(run: range) -> list[Made]:
            return [use(*decoded) for decoded in zip(run, self._decode(run), strict=True)]

        runs: list[range] = []
        numbers = list(blocks)
        for block in numbers:
            if not runs or not self._join(runs, block, most=self._most_blocks(block, len(numbers))):
                runs.append(range(block, block + 1))
        coming = [self._threads.submit(use_run, run) for run in runs]
        return list(chain.from_iterable(map(result_of, coming)))

    def get_alone(self, requested_spans: Sequence[Piece]) -> list[Columns]:
        """Return the rows of pieces that were not announced, in order; holds nothing else of their
        blocks.
        """
        spans: dict[int, list[tuple[int, int]]] = {}
        for block, start, stop in requested_spans:
            spans.setdefault(block, []).append((start, stop))

        def copies(block: int, columns: Columns) -> list[Columns]:
            return [copied(cut(columns, start, stop), self._room) for start, stop in spans[block]]

        columns_of_span = dict(
            zip(spans, map(iter, self.decode_blocks(spans, copies)), strict=True)
        )
        return [next(columns_of_span[block]) for block, _, _ in requested_spans]

    def announce(self, spans: Sequence[Piece]) -> None:
        """Announce the pieces of a coming pool; each call needs one `release`, in the same
        order.
        """
        for block, first in _first_rows(spans).items():
            if block not in self._requested:
                self._requested[block] = deque()
                if block in self._shared:
                    self._begun[block], self._floors[block] = self._shared.pop(block), 0
                    self._shared_bytes -= self._size(block)
                else:
                    self._wait(block, len(spans))
            self._requested[block].append(first)
        self._begin_ahead()

    def begin(self, spans: Iterable[Piece]) -> None:
        """Begin the first blocks of these pieces, which the reader waits for, a block a thread."""
        for block in islice(_first_rows(spans), self._most_threads):
            if block not in self._begun:
                self._begin_waiting(block)

    def get(self, spans: Sequence[Piece]) -> list[Columns]:
        """Return the rows of the pieces announced first, in order. Raises what decoding raised."""
        firsts = _first_rows(spans)
        for block, first in firsts.items():
            if block not in self._begun:
                self._begin_waiting(block)
            elif first < self._floors[block]:  # two lanes meet in a block begun for the other one
                self._begin(range(block, block + 1))
        self._met.update(firsts)
        self._begin_ahead()
        return [
            cut(
                part.columns, max(start, part.start) - part.start, min(stop, part.stop) - part.start
            )
            for block, start, stop in spans
            for part in result_of(self._begun[block])[block]
            if part.start < stop and start < part.stop
        ]

    def release(self, spans: Sequence[Piece]) -> None:
        """Release the pieces of the reader's pool, and drop rows that no announced pool needs."""
        for block, start, stop in spans:
            self._used[block] = self._used.get(block, 0) + stop - start
        for block in _first_rows(spans):
            announced = self._requested[block]
            announced.popleft()
            if announced:
                # a view holds all rows
                if self._keep == "views":
                    first = 0
                else:
                    first = min(announced)
                floor = self._floors[block] = max(self._floors[block], first)
                parts = self._begun[block].result()[block]
                parts[:] = [part for part in parts if part.stop > floor]
            else:
                # Keep a small block whole if pools have used only a part of its rows; earlier
                # blocks keep their room.
                parts = self._begun[block].result()[block]
                size = self._size(block)
                rows = 0
                if parts:
                    rows = parts[-1].stop
                is_small_and_whole = len(parts) == 1 and parts[0].start == 0 and size <= _PART_BYTES
                if (
                    is_small_and_whole
                    and self._used[block] < rows
                    and self._shared_bytes + size <= _SHARED_BYTES
                ):
                    self._shared[block] = self._begun[block]
                    self._shared_bytes += size
                else:
                    del self._used[block], self._begun[block].result()[block]
                    if size <= _PART_BYTES:
                        self._done.append(parts)
                del self._requested[block], self._begun[block], self._floors[block]
                self._met.discard(block)
            self._sizes.pop(block, None)
        with self._memory_lock:
            self._memory.trim(_SPARE_PARTS)
        self._begin_ahead()

    def _most_blocks(self, block: int, count: int) -> int:
        """Return how many blocks like this one, of so many, are decoded together."""
        most_bytes = min(_RUN_BYTES, self._ahead_bytes // _RUNS_AHEAD)
        most = max(1, min(self._ahead_blocks, most_bytes // max(1, self._estimate(block))))
        if self._begun:
            return most
        return min(most, -(-count // self._most_threads))  # no thread has work, and all get some

    def _join(self, runs: MutableSequence[range], block: int, *, most: int) -> bool:
        """Let a block join the last of some runs, if it continues that and there is room."""
        last = runs[-1]
        continues = block == last.stop and block < len(self._continues) and self._continues[block]
        if not continues or len(last) >= most:
            return False
        runs[-1] = range(last.start, block + 1)
        return True

    def _wait(self, block: int, count: int) -> None:
        """Let a block wait for a thread; count: of blocks announced with it."""
        in_order = self._keep == "views" and self._waiting
        most = self._most_blocks(block, count)
        if not in_order or not self._join(self._waiting, block, most=most):
            self._waiting.append(range(block, block + 1))

    def _may_grow(self, run: range) -> bool:
        """Check whether blocks that are not announced yet may join a waiting run."""
        if self._keep != "views" or run is not self._waiting[-1]:
            return False
        if run.stop >= len(self._continues) or not self._continues[run.stop]:
            return False
        return len(run) < self._most_blocks(run.start, len(run))

    def _begin_waiting(self, block: int) -> None:
        """Begin the run of a block now."""
        run = next(run for run in self._waiting if block in run)
        self._waiting.remove(run)
        self._begin(run)

    def _begin_ahead(self) -> None:
        ahead = [block for block in self._begun if block not in self._met]
        ahead_bytes = sum(map(self._size, ahead))
        count = len(ahead)
        while self._waiting and count < self._ahead_blocks:
            run = self._waiting[0]
            if count and self._may_grow(run):
                return
            ahead_bytes += sum(map(self._estimate, run))
            if ahead_bytes > self._ahead_bytes:
                return
            self._begin(self._waiting.popleft())
            count += len(run)

    def _begin(self, run: range) -> None:
        for block in run:
            # With short lanes the next pool may need rows before these, and is announced in time.
            if self._keep == "copies of the rest":
                self._floors[block] = min(self._requested[block])
            else:
                self._floors[block] = 0
            self._sizes.pop(block, None)
        floors = [self._floors[block] for block in run]
        decoded = self._threads.submit(self._parts_of_run, run, floors)
        self._begun.update(dict.fromkeys(run, decoded))

    def _parts_of_run(self, run: range, floors: Sequence[int]) -> dict[int, list[BlockPart]]:
        """Decode blocks into parts, each from the row in `floors` on."""
        with suppress(IndexError):
            for _ in run:
                self._done.popleft()
        decoded = self._decode(run)
        parts = zip(run, map(self._parts, run, floors, decoded), strict=True)
        return dict(parts)

    def _parts(self, block: int, floor: int, columns: Columns) -> list[BlockPart]:
        """Cut a block into parts, from the row `floor` on."""
        rows = max(map(len, columns.values()), default=0)
        size = size_of(columns)
        self._ratio = max(_LEAST_RATIO, size / max(1, self._estimated(block)))
        if self._keep == "views" or size <= _PART_BYTES:
            return [BlockPart(0, rows, columns)]
        count = max(1, size // _PART_BYTES)
        size = max(1, -(-rows // count))
        parts = []
        for start in range(floor, rows, size):
            part = copied(cut(columns, start, start + size), self._room)
            parts.append(BlockPart(start, min(start + size, rows), part))
        return parts

    def _room(self, size: int) -> npt.NDArray[np.uint8]:
        with self._memory_lock:
            return self._memory.empty((size,), np.uint8)

    def _size(self, block: int) -> int:
        if block not in self._sizes:
            future = self._begun[block]
            if not future.done() or future.cancelled() or future.exception() is not None:
                return self._estimate(block)
            self._sizes[block] = sum(size_of(part.columns) for part in future.result()[block])
        return self._sizes[block]

    def _estimate(self, block: int) -> int:
        return int(self._estimated(block) * self._ratio)


def _first_rows(spans: Iterable[Piece]) -> dict[int, int]:
    """Return the first row of each block, with the blocks in the order of their first piece."""
    firsts: dict[int, int] = {}
    for block, start, _ in spans:
        firsts[block] = min(start, firsts.get(block, start))
    return firsts
