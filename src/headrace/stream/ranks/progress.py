"""What a pass is doing now, as its watch sees it from another thread: a few fields, written once per batch and block.

Nothing here is locked: each field is replaced whole, and a reader that is one batch late does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock


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


@dataclass(eq=False)
class Progress:
    """Of one pass in one process, in monotonic seconds. reading: block number → since when a thread reads it."""

    began: float = field(default_factory=time.monotonic)
    batches: int = 0
    waited: float = 0.0
    reading: dict[int, float] = field(default_factory=dict)
    otherwise: str = "gather"  # the phase of a wait while no block is read
    _since: float = field(default_factory=time.monotonic)
    _waiting: bool = False
    _done: bool = False

    def wait(self) -> None:
        """The loop asks for a batch."""
        self._since, self._waiting = time.monotonic(), True

    def got(self) -> None:
        """The loop has its batch."""
        now = time.monotonic()
        self.waited += now - self._since
        self.batches += 1
        self._since, self._waiting = now, False

    def done(self) -> None:
        """The pass is over."""
        self._since, self._waiting, self._done = time.monotonic(), False, True

    def snapshot(self, index: SplitIndex | None) -> Snapshot:
        """This moment."""
        now = time.monotonic()
        phase, place = ("done" if self._done else "loop"), ""
        if self._waiting:
            oldest = self._oldest()
            phase = self.otherwise if oldest is None else "decode"
            place = (
                ""
                if oldest is None or index is None
                else f"{index.shards[index.shard_of_block[oldest]]} block {index.block[oldest]}"
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
    """A `read_block` that notes in `reading` which blocks are being read, and since when."""

    read_block: ReadBlock
    reading: dict[int, float]

    def __call__(self, block: int, columns: Sequence[str] | None) -> pa.Table:
        self.reading[block] = time.monotonic()
        try:
            return self.read_block(block, columns)
        finally:
            self.reading.pop(block, None)
