"""Measure what a pass costs the loop of one rank: a few additions for each batch, and quantiles on
request.

The loop and the reading threads write a few fields that others read. Nothing is locked: each field
is replaced whole, and a snapshot that is one batch late does no harm.

From a snapshot of each rank follows what is worth logging:

    waits     a rank has waited longer than stall_seconds for one batch
    behind    a rank is 16 batches, and stall_seconds at its own pace, behind the foremost; without
              collectives only
    share     a rank waits three times as much of its time as the others, and at least a fifth: it
              delays every step
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import pyarrow as pa

from headrace.arrays import Bools
from headrace.dataset.index import SplitIndex
from headrace.dataset.indexed import ReadBlock
from headrace.storage.bucket import Traffic, traffic
from headrace.stream.order.layout import BlendIndex
from headrace.stream.read.by_source import SourceCounts
from headrace.stream.read.runs import continues_of, run_reader

MOST_WAITS = 1 << 14  # kept for quantiles: half a megabyte
_AGAIN_S = 30.0
_BATCHES_BEHIND = 16  # reading ahead alone puts a rank less than this behind
_SHARE = 0.2
_TIMES_THE_OTHERS = 3.0

Complaint = tuple[str, int]  # its kind and its rank


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """The cost of one pass to the loop of one rank so far, in seconds of its clock.

    steps: batches received. rows: in them, without filling rows; bins, where rows are packed while
    they are streamed. waited_s: waited for batches, all together; loop_s: what the loop spent
    between them. first_wait_s: for the first batch. p50_wait_s, p95_wait_s: of the last 16,384
    steps. max_wait_s: of all. blocks_read: decoded, or mapped from a cache of decoded blocks, by
    this process, what is read ahead included; 0 where another process reads for it.

    rows_by_source, tokens_by_source: of a blend, by name, in the batches received; tokens are those
    of the column input_ids. Rows packed while they are streamed count as rows here. Empty where
    another process reads, and without a blend.

    store_bytes: read from object stores by this process since the pass began; store_s: seconds in
    which they came. store_retries: requests that were sent again; store_stalls: those of them that
    had run out of time.
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
    store_bytes: int
    store_s: float
    store_retries: int
    store_stalls: int
    rows_by_source: Mapping[str, int]
    tokens_by_source: Mapping[str, int]

    @property
    def store_bytes_per_s(self) -> float:
        """Bytes over the seconds in which they came."""
        if self.store_s > 0:
            return self.store_bytes / self.store_s
        return 0.0

    @property
    def mean_wait_s(self) -> float:
        """Seconds waited for a batch."""
        if self.steps:
            return self.waited_s / self.steps
        return 0.0

    @property
    def wait_share(self) -> float:
        """The part of all seconds that the loop waited for batches behind the first, in [0, 1]."""
        waited = self.waited_s - self.first_wait_s
        if waited + self.loop_s > 0:
            return waited / (waited + self.loop_s)
        return 0.0

    @property
    def rows_per_s(self) -> float:
        """Rows over all seconds."""
        seconds = self.waited_s + self.loop_s
        if seconds > 0:
            return self.rows / seconds
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of a pass at one moment.

    seconds: since its phase began; waited: seconds the loop waited for data.

    phase: "loop" (the training loop has the batch), "decode" (waiting for `place`, a shard and
    block), "transform" (waiting for what `reading` names), "gather" (waiting while neither runs) or
    "done".
    """

    phase: str
    seconds: float
    batches: int
    waited: float
    elapsed: float
    reading: str = ""


@dataclass(frozen=True, eq=False)
class NotedReader:
    """Reads blocks and notes it: see `Progress` for `reading` and `blocks_read`."""

    read_block: ReadBlock
    reading: dict[int, float]
    blocks_read: dict[int, int]

    def __call__(self, block: int, columns: Sequence[str] | None) -> pa.Table:
        with self._noting(range(block, block + 1)):
            return self.read_block(block, columns)

    def continues(self) -> Bools:
        """Return which blocks the reader reads together with the one before them."""
        return continues_of(self.read_block)

    def read_run(self, numbers: range, columns: Sequence[str]) -> pa.Table:
        """Read adjacent blocks at once, if the reader does."""
        reader = run_reader(self.read_block)
        assert reader is not None
        with self._noting(numbers):
            return reader.read_run(numbers, columns)

    @contextmanager
    def _noting(self, blocks: range) -> Iterator[None]:
        self.reading[blocks.start] = time.monotonic()
        count = 0 if len(blocks) > 1 else 1
        try:
            yield
            count = len(blocks)
        finally:
            self.reading.pop(blocks.start, None)
            thread = threading.get_ident()
            # a run that cannot be read is read again, block by block
            self.blocks_read[thread] = self.blocks_read.get(thread, 0) + count


@dataclass(eq=False)
class Progress:
    """The progress of one pass in one process. Clocks are monotonic seconds.

    index: names the blocks. reading: block number → since when a thread reads it. blocks_read: by
    thread, as each thread may only count its own. steps: batches received; waited, looped: seconds
    that the loop waited for them, and spent between them; first, longest: waits; lately: those of
    the last batches. making: what makes a batch of the rows that were read, if something does.
    """

    index: SplitIndex | None = None
    reading: dict[int, float] = field(default_factory=dict)
    blocks_read: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    waited: float = 0.0
    looped: float = 0.0
    first: float = 0.0
    longest: float = 0.0
    lately: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_WAITS))
    making: str = ""
    sources: SourceCounts = field(default_factory=SourceCounts)
    _began: float = field(default_factory=time.monotonic)
    _since: float = field(default_factory=time.monotonic)
    _phase: str = "loop"
    _stores_before: Traffic = field(default_factory=traffic)
    _stores_after: Traffic | None = None

    def wait(self) -> None:
        """Note that the loop asks for a batch."""
        self._enter("wait")

    def got(self) -> None:
        """Note that the loop has its batch."""
        now = time.monotonic()
        self.note(now - self._since)
        self._since = now
        self._phase = "loop"

    def done(self) -> None:
        """Note that the pass is over."""
        self._enter("done")
        self._stores_after = traffic()

    def note(self, wait: float) -> None:
        """Note how long the loop waited for a batch that it has now."""
        if not self.steps:
            self.first = wait
        self.steps += 1
        self.sources.delivered = self.steps
        self.waited += wait
        self.longest = max(self.longest, wait)
        self.lately.append(wait)

    def note_making(self, what: str) -> None:
        """Note what makes a batch now, such as a transform; "" when it is made."""
        self.making = what

    def noted(self, read_block: ReadBlock) -> ReadBlock:
        """Return a `read_block` that notes here which blocks are being read, since when, and how
        many were.
        """
        # alone: the pass may be held by what reads for it
        return NotedReader(read_block, self.reading, self.blocks_read)

    def count_blocks_of(self, other: Progress) -> None:
        """Count what is read for this pass and others of the same batches."""
        self.reading = other.reading
        self.blocks_read = other.blocks_read
        self.sources = other.sources
        self.sources.delivered = self.steps

    def _enter(self, phase: str) -> None:
        """Leave the loop, or a wait that came to nothing."""
        now = time.monotonic()
        if self.steps and self._phase == "loop":
            self.looped += now - self._since
        self._since = now
        self._phase = phase

    def snapshot(self) -> Snapshot:
        """Return the present state; of several blocks being read, it names the one read for
        longest.
        """
        now = time.monotonic()
        phase = self._phase
        block_name = ""
        waited = self.waited
        if phase == "wait":
            waited += now - self._since
            reading = [(since, block) for block, since in self.reading.copy().items()]
            phase = "gather"
            if reading:
                phase = "decode"
            making = self.making
            if making:
                phase = "transform"
                block_name = making
            elif reading and self.index is not None:
                block = min(reading)[1]
                block_name = (
                    f"{self.index.shards[self.index.shard_of_block[block]]} block"
                    f" {self.index.block[block]}"
                )
        return Snapshot(
            phase=phase,
            seconds=now - self._since,
            batches=self.steps,
            waited=waited,
            elapsed=now - self._began,
            reading=block_name,
        )

    def stats(self, rows: int) -> StreamStats:
        """Return what the pass has cost so far. rows: that the loop received."""
        waits = sorted(self.lately.copy())  # copied first, as the loop may go on in another thread

        def quantile(fraction: float) -> float:
            if waits:
                return waits[min(len(waits) - 1, int(fraction * len(waits)))]
            return 0.0

        stores = (self._stores_after or traffic()).since(self._stores_before)
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
            store_bytes=stores.bytes,
            store_s=stores.seconds,
            store_retries=stores.retries,
            store_stalls=stores.stalls,
            rows_by_source=self._by_source(0),
            tokens_by_source=self._by_source(1),
        )

    def _by_source(self, row: int) -> dict[str, int]:
        counts = self.sources.total()
        if counts is None or not isinstance(self.index, BlendIndex):
            return {}
        return dict(zip(self.index.names, counts[row].tolist(), strict=True))


# --- stalls


def complaints(moments: Mapping[int, Snapshot], *, stall_seconds: float) -> dict[Complaint, str]:
    """Return a sentence for each rank that stalls, by kind and rank; nothing where all is well.

    moments: of the known ranks, at about the same time and in the same epoch; ranks that are done
    are left out.
    """
    messages: dict[Complaint, str] = {}
    moments = {rank: moment for rank, moment in moments.items() if moment.phase != "done"}
    foremost = max(moments, key=lambda rank: (moments[rank].batches, -rank), default=0)
    shares = {}
    for rank, moment in moments.items():
        shares[rank] = moment.waited / moment.elapsed if moment.elapsed else 0.0
    for rank, moment in sorted(moments.items()):
        lag = moments[foremost].batches - moment.batches
        # alone, it delays none
        others = median([wait for other, wait in shares.items() if other != rank] or [1.0])
        what = f"{moment.reading or 'rows that are being put together'} ({moment.phase})"
        if moment.phase == "loop":
            now = "is now in the training loop (loop)"
        else:
            now = f"now waits for {what}"
        if moment.phase in ("decode", "transform", "gather") and moment.seconds >= stall_seconds:
            ahead = ""
            if lag:
                ahead = f"; rank {foremost} is {lag} batches ahead"
            messages["waits", rank] = (
                f"rank {rank} has waited {moment.seconds:.0f} s for {what}{ahead}"
            )
        elif lag > _BATCHES_BEHIND and lag * moment.elapsed >= stall_seconds * max(
            1, moment.batches
        ):
            messages["behind", rank] = (
                f"rank {rank} is {lag} batches behind rank {foremost}; it spent"
                f" {shares[rank]:.0%} of its time waiting for data, and {now}"
            )
        elif moment.elapsed >= 2 * stall_seconds and shares[rank] >= max(
            _SHARE, _TIMES_THE_OTHERS * others
        ):
            messages["share", rank] = (
                f"rank {rank} spent {shares[rank]:.0%} of its time waiting for data, the other"
                f" ranks {others:.0%}; it {now}"
            )
    return messages


def due(
    messages: Mapping[Complaint, str], last_logged: dict[Complaint, float], *, now: float
) -> list[str]:
    """Return the sentences to log now: each kind and rank once in `_AGAIN_S`, over all passes and
    blocks of a stream.

    last_logged: when each was last logged; updated. now: monotonic seconds.
    """
    ready = []
    for complaint in messages:
        if now - last_logged.get(complaint, -_AGAIN_S) >= _AGAIN_S:
            ready.append(complaint)
    last_logged.update(dict.fromkeys(ready, now))
    return [messages[complaint] for complaint in ready]
