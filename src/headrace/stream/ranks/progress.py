"""What a pass is doing now, as its watch sees it from another thread: a few fields, written once per batch and block.

Nothing here is locked: each field is replaced whole, and a reader that is one batch late does no harm.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock

MOST_WAITS = 1 << 14  # kept for quantiles: half a megabyte


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A moment of a pass. seconds: how long this phase has lasted; waited: seconds waited for data before it.

    phase: "loop" (the batch is in the training loop), "decode" (waiting for `place`, a shard and block), "gather"
    (waiting, and no block is being read), "others" (waiting for other ranks), "done".
    """

    phase: str
    seconds: float
    batches: int
    waited: float
    elapsed: float
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """What one pass has cost the loop of one rank so far, in seconds of its clock.

    steps: batches received. rows: in them, without filling rows; bins, where rows are packed while they are streamed.
    waited_s: waited for batches, all together; loop_s: what the loop spent between them. first_wait_s: for the first
    batch. p50_wait_s, p95_wait_s: of the last 16,384 steps. max_wait_s: of all. blocks_read: decoded, or mapped from a
    cache of decoded blocks, by this rank, what is read ahead included.
    """

    steps: int
    rows: int
    waited_s: float
    loop_s: float
    first_wait_s: float
    p50_wait_s: float
    p95_wait_s: float
    max_wait_s: float
    blocks_read: int

    @property
    def mean_wait_s(self) -> float:
        """Seconds waited for a batch."""
        return self.waited_s / self.steps if self.steps else 0.0

    @property
    def wait_share(self) -> float:
        """The part of all seconds that the loop waited for batches behind the first, in [0, 1]."""
        waited = self.waited_s - self.first_wait_s
        return waited / (waited + self.loop_s) if waited + self.loop_s > 0 else 0.0

    @property
    def rows_per_s(self) -> float:
        """Rows over all seconds."""
        seconds = self.waited_s + self.loop_s
        return self.rows / seconds if seconds > 0 else 0.0


@dataclass(eq=False)
class Progress:
    """Of one pass in one process, in monotonic seconds. reading: block number → since when a thread reads it.

    waits: seconds waited for each of the last batches. looped: seconds that the loop had its batches. blocks_read: by
    thread, as each thread may only count its own.
    """

    began: float = field(default_factory=time.monotonic)
    batches: int = 0
    waited: float = 0.0
    looped: float = 0.0
    longest_wait: float = 0.0
    first_wait: float = 0.0
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_WAITS))
    blocks_read: dict[int, int] = field(default_factory=dict)
    reading: dict[int, float] = field(default_factory=dict)
    otherwise: str = "gather"  # the phase of a wait while no block is read
    _since: float = field(default_factory=time.monotonic)
    _waiting: bool = False
    _done: bool = False

    def wait(self) -> None:
        """The loop asks for a batch."""
        now = time.monotonic()
        if self.batches:
            self.looped += now - self._since
        self._since, self._waiting = now, True

    def got(self) -> None:
        """The loop has its batch."""
        now = time.monotonic()
        wait = now - self._since
        self.waited += wait
        self.waits.append(wait)
        if wait > self.longest_wait:
            self.longest_wait = wait
        if not self.batches:
            self.first_wait = wait
        self.batches += 1
        self._since, self._waiting = now, False

    def done(self) -> None:
        """The pass is over."""
        now = time.monotonic()
        if self.batches and not self._waiting:  # it was left inside the loop
            self.looped += now - self._since
        self._since, self._waiting, self._done = now, False, True

    def noted(self, read_block: ReadBlock) -> Noted:
        """A `read_block` that notes here what it reads."""
        return Noted(read_block, self.reading, self.blocks_read)

    def stats(self, rows: int) -> StreamStats:
        """What the pass has cost its loop so far. rows: that the loop received."""
        waits = sorted(self.waits.copy())  # copied first, as the loop may go on in another thread

        def quantile(share: float) -> float:
            return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else 0.0

        return StreamStats(
            steps=self.batches,
            rows=rows,
            loop_s=self.looped,
            waited_s=self.waited,
            first_wait_s=self.first_wait,
            p50_wait_s=quantile(0.5),
            p95_wait_s=quantile(0.95),
            max_wait_s=self.longest_wait,
            blocks_read=sum(self.blocks_read.copy().values()),
        )

    def snapshot(self, index: SplitIndex) -> Snapshot:
        """This moment."""
        now = time.monotonic()
        phase, place = ("done" if self._done else "loop"), ""
        if self._waiting:
            oldest = self._oldest()
            phase = self.otherwise if oldest is None else "decode"
            place = (
                "" if oldest is None else f"{index.shards[index.shard_of_block[oldest]]} block {index.block[oldest]}"
            )
        waiting = now - self._since if self._waiting else 0.0
        return Snapshot(
            phase=phase,
            seconds=now - self._since,
            batches=self.batches,
            waited=self.waited + waiting,
            elapsed=now - self.began,
            place=place,
        )

    def _oldest(self) -> int | None:
        """The block that has been read for the longest time: whatever is waited for stands behind it."""
        reading = [(since, block) for block, since in self.reading.copy().items()]
        return min(reading)[1] if reading else None


@dataclass(frozen=True)
class Noted:
    """A `read_block` that notes in `reading` which blocks are being read, and since when.

    finished: how many each thread has read.
    """

    read_block: ReadBlock
    reading: dict[int, float]
    finished: dict[int, int] = field(default_factory=dict)

    def __call__(self, block: int, columns: Sequence[str] | None) -> pa.Table:
        self.reading[block] = time.monotonic()
        try:
            return self.read_block(block, columns)
        finally:
            self.reading.pop(block, None)
            thread = threading.get_ident()
            self.finished[thread] = self.finished.get(thread, 0) + 1
