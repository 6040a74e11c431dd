"""Count what a pass costs the loop of one rank: a few additions for each batch, and quantiles when somebody asks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

MOST_WAITS = 1 << 14  # kept for quantiles: half a megabyte


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """The cost of one pass to the loop of one rank so far, in seconds of its clock.

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
class Waits:
    """Seconds waited for batches, and seconds that the loop had them; noted by one thread, read by any.

    lately: of the last batches. blocks_read: by thread, as each thread may only count its own.
    """

    steps: int = 0
    waited: float = 0.0
    looped: float = 0.0
    first: float = 0.0
    longest: float = 0.0
    lately: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_WAITS))
    blocks_read: dict[int, int] = field(default_factory=dict)

    def note(self, wait: float) -> None:
        """Note how long the loop waited for a batch that it has now."""
        if not self.steps:
            self.first = wait
        self.steps += 1
        self.waited += wait
        self.longest = max(self.longest, wait)
        self.lately.append(wait)

    def stats(self, rows: int) -> StreamStats:
        """Return what the pass has cost so far. rows: that the loop received."""
        waits = sorted(self.lately.copy())  # copied first, as the loop may go on in another thread

        def quantile(share: float) -> float:
            return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else 0.0

        return StreamStats(
            steps=self.steps,
            rows=rows,
            loop_s=self.looped,
            waited_s=self.waited,
            first_wait_s=self.first,
            p50_wait_s=quantile(0.5),
            p95_wait_s=quantile(0.95),
            max_wait_s=self.longest,
            blocks_read=sum(self.blocks_read.copy().values()),
        )
