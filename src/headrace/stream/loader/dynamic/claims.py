"""Cut an epoch into claims, and take them: a thread per rank claims the next part when asked, and decodes it ahead.

The line of an epoch is its blocks end to end, in shuffled order (see `order`). Rows inside a block are permuted by a
key of that block alone. What is left of the line is cut at the borders of blocks, so a claim is one block, or a run of
small ones of about a batch. The last blocks are cut finer: a rank that claims one of them late keeps the others
waiting. After a stop, what is left is ranges of the line again, whoever had claimed them. Cost is O(blocks).

    <pass>/here/<rank>         counts the processes that read as this rank
    <pass>/start               the state at which the pass starts, the same on every rank
    <pass>/next                a counter: the rank that adds 1 to it has the claim of that number
    <pass>/rows/<rank>         counts the rows that a rank has claimed
    <pass>/entered             counts these rows over all ranks, so <pass>/rows is complete once it reaches their total
    <pass>/left                a rank that left before all blocks were claimed
    <pass>/state/<n>/<rank>    what a rank had claimed and not delivered at the n-th call of state_dict
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from headrace.arrays import I64, U64
from headrace.digest import derive_key, permutation
from headrace.errors import StreamError
from headrace.stream.order.epoch import EpochOrder, Pool, span_rows
from headrace.stream.order.remaining import Remaining
from headrace.stream.ranks.group import text_of
from headrace.stream.ranks.topology import Topology
from headrace.stream.read.ahead import Threads, end_threads, start_threads
from headrace.stream.read.columns import Columns

_LAST_PARTS = 4  # small claims at the end keep the last ranks from waiting for one
_LOOK_S = 0.01
_TIMEOUT_S = 1800.0  # torch's own collectives wait as long


def claim_borders(order: EpochOrder, remaining: Remaining, *, batch_size: int, ranks: int) -> I64:
    """Return int64 [claims+1], strictly rising from 0: claim i is places [borders[i], borders[i+1]) of what remains."""
    if not remaining.total:
        return np.zeros(1, np.int64)
    starts, stops = np.array(remaining.ranges, np.int64).T
    before = np.concatenate([[0], np.cumsum(stops - starts)])
    part = np.searchsorted(starts, order.line, side="right") - 1
    inside = np.minimum(order.line, stops[part]) - starts[part]
    borders = np.unique(np.where(part < 0, 0, before[part] + inside))
    last = max(0, len(borders) - 1 - ranks)
    finer = [borders[: last + 1]]
    for start, stop in zip(borders[last:-1].tolist(), borders[last + 1 :].tolist(), strict=True):
        parts = max(1, min(_LAST_PARTS, (stop - start) // batch_size))
        finer.append(start + (stop - start) * np.arange(1, parts + 1, dtype=np.int64) // parts)
    borders = np.concatenate(finer)
    # Of the borders between two multiples of a batch the first is enough: small blocks are claimed in runs.
    wanted = np.diff(borders // batch_size) > 0
    wanted[-1] = True
    return np.concatenate([[0], borders[1:][wanted]]).astype(np.int64)


def claim_rows(order: EpochOrder, identities: U64, places: I64) -> Pool:
    """Return where the rows at these places of the line are, in the order of delivery."""
    along = np.searchsorted(order.line, places, side="right") - 1
    rows = places - order.line[along]
    needed, which = np.unique(along, return_inverse=True)
    if order.shuffle:
        for number, at in enumerate(needed.tolist()):
            block, of_block = order.blocks[at], which == number
            key = derive_key(order.seed, "claimed block", order.epoch, *map(int, identities[block]))
            rows[of_block] = permutation(key, int(order.line[at + 1] - order.line[at]))[rows[of_block]]
    found = span_rows(order.blocks[needed], which, rows)
    return Pool(pieces=found.pieces, index=found.index, items=len(places))


def left_of(remaining: Remaining, borders: I64, *, claimed: int, not_received: Iterable[tuple[int, int]]) -> Remaining:
    """Return what nobody has received: claims from number `claimed` on, and these [start, stop) of earlier ones."""
    parts = sorted((start, stop) for start, stop in not_received if start < stop)
    parts.append((int(borders[claimed]), int(borders[-1])))
    starts, stops = np.array(parts, np.int64).T
    return remaining.keep(starts, stops)


class LocalStore:
    """Stands in for a torch store where there is one rank."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._lock = Lock()
        self.set, self.get = self._values.__setitem__, self._values.__getitem__

    def add(self, key: str, amount: int) -> int:
        with self._lock:
            self._values[key] = self._values.get(key, 0) + amount
            return int(self._values[key])

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def compare_set(self, key: str, _expected: str, desired: str) -> Any:
        with self._lock:
            return self._values.setdefault(key, desired)


@dataclass(eq=False, kw_only=True)
class Claims:
    """The claims of one rank in one pass. Call `end` after it.

    The thread claims only when asked, one claim at a time, so a slow rank holds no more than the block it delivers and
    the next. It enters the rows of each claim in the store at once. A rank that finds no claim left therefore learns
    how many batches every rank will have without waiting for the slow ones, even while they stand in a collective.

    store: any of torch.distributed. prefix: the name of the pass, equal on all ranks. borders: see `claim_borders`.
    load: places [start, stop) → their rows, called in the thread. check: raises where another rank has failed.
    """

    store: Any
    prefix: str
    topology: Topology
    epoch: int
    borders: I64
    batch_size: int
    load: Callable[[int, int], Columns]
    check: Callable[[], None]
    _held: deque[tuple[int, int]] = field(default_factory=deque)  # claimed and not received
    _claimed: int = 0
    _next: Future[Columns | None] | None = None
    _claiming: Lock = field(default_factory=Lock)
    _threads: Threads = field(default_factory=lambda: start_threads(1, name="headrace-claim"))

    def arrive(self, start: str) -> None:
        """Register this rank. Raises `StreamError` if another process is it too, or another rank starts elsewhere."""
        if (processes := int(self.store.add(f"{self.prefix}/here/{self.topology.rank}", 1))) > 1:
            raise StreamError(
                f"{self.topology}: {processes} processes of this job are that rank, and with"
                ' distribution="dynamic" each of them would get other rows; use distribution="balanced", which gives'
                " all processes of a rank the same batches, or give each process a rank of its own"
            )
        agreed = text_of(self.store.compare_set(f"{self.prefix}/start", "", start))
        if agreed != start:
            self.leave()
            raise StreamError(
                f"{self.topology}: this pass starts at {start}, another rank's at {agreed}; load the same state and set"
                " the same epoch on every rank"
            )

    def leave(self) -> None:
        """Publish that this rank leaves before all blocks are claimed, so its number of batches stays unknown."""
        if not self._all_entered():
            self.store.set(f"{self.prefix}/left", str(self.topology.rank))

    def end(self) -> None:
        """End the thread; it reads its present block to the end."""
        end_threads(self._threads)

    def ask(self) -> None:
        """Request the next claim, ahead of the `take` that will want it; a second request changes nothing."""
        if self._next is None:
            self._next = self._threads.submit(self._claim)

    def take(self) -> Columns | None:
        """Return the rows of the next claim; None when no claim is left."""
        self.ask()
        assert self._next is not None, "asked for"
        columns, self._next = self._next.result(), None
        return columns

    def await_steps(self) -> int:
        """Return the number of batches that every rank gives, once no claim is left."""
        left = f"{self.prefix}/left"
        self._await(lambda: self.store.check([left]) or self._all_entered(), "the claims of every rank")
        if self.store.check([left]):
            raise StreamError(
                f"{self.topology}: rank {text_of(self.store.get(left))} left epoch {self.epoch} before its end, with"
                " blocks that only it has; end a pass on all ranks after the same number of batches, and resume all"
                " from one state"
            )
        rows = [int(self.store.add(f"{self.prefix}/rows/{rank}", 0)) for rank in range(self.topology.world_size)]
        return -(-max(rows) // self.batch_size)

    def received(self, rows: int) -> None:
        """Note that the training loop received this many more rows, in the order of `take`."""
        with self._claiming:
            while rows:
                start, stop = self._held.popleft()
                part = min(rows, stop - start)
                rows -= part
                if start + part < stop:
                    self._held.appendleft((start + part, stop))

    def left_over(self, call: int, remaining: Remaining) -> Remaining:
        """Return what no rank has received at its call number `call`. Waits for this call of every rank."""
        keys = [f"{self.prefix}/state/{call}/{rank}" for rank in range(self.topology.world_size)]
        with self._claiming:  # until all ranks have called: no claim is missed or counted twice
            self.store.set(keys[self.topology.rank], json.dumps([self._claimed, list(self._held)]))
            self._await(lambda: self.store.check(keys), f"call {call} of state_dict on every rank")
        answers = [json.loads(text_of(self.store.get(key))) for key in keys]
        held = [(start, stop) for _, parts in answers for start, stop in parts]
        return left_of(remaining, self.borders, claimed=sum(claimed for claimed, _ in answers), not_received=held)

    def _claim(self) -> Columns | None:
        with self._claiming:
            number = int(self.store.add(f"{self.prefix}/next", 1)) - 1
            if number >= len(self.borders) - 1:
                return None
            start, stop = int(self.borders[number]), int(self.borders[number + 1])
            self._claimed += 1
            self._held.append((start, stop))
            self.store.add(f"{self.prefix}/rows/{self.topology.rank}", stop - start)
            self.store.add(f"{self.prefix}/entered", stop - start)
        return self.load(start, stop)

    def _all_entered(self) -> bool:
        return int(self.store.add(f"{self.prefix}/entered", 0)) == int(self.borders[-1])

    def _await(self, ready: Callable[[], bool], what: str) -> None:
        began = time.monotonic()
        while not ready():
            self.check()
            waited_s = time.monotonic() - began
            if waited_s > _TIMEOUT_S:
                raise StreamError(
                    f"{self.topology}: waited {waited_s:.0f} s for {what}; start the same passes and call state_dict"
                    " on every rank"
                )
            time.sleep(_LOOK_S)
