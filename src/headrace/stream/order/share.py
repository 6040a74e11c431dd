"""Who takes which of the remaining rows, and when: arithmetic on residues. Pure.

Consumer c = worker * world_size + rank of C takes the places v = c (mod C) of what remains, batch_size at a time. Step
k of all consumers together is the places [k*G, (k+1)*G) with G = C * batch_size: the same number of steps everywhere,
whatever the shards are like. With workers, a rank's batches come from its workers in turn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.arrays import I64
from headrace.errors import SettingsError, StreamError
from headrace.stream.order.remaining import Remaining

Remainder = Literal["pad", "drop", "exact"]


def consumer_number(*, rank: int, worker: int, world_size: int) -> int:
    """c, the number of a (rank, worker) pair: consumers of one worker number are neighbours across ranks."""
    return worker * world_size + rank


def resolve_remainder(remainder: Remainder | None, consumers: int) -> Remainder:
    """What happens to the last, incomplete step: as asked, else "exact" for one consumer and "pad" for several."""
    if remainder is None:
        return "exact" if consumers == 1 else "pad"
    if remainder == "exact" and consumers > 1:
        raise SettingsError(
            f'remainder="exact" gives a last batch that not every reader has; here are {consumers} readers'
            ' (world_size x workers); use "pad" (nothing lost, see batch["valid"]) or "drop"'
        )
    return remainder


def count_steps(rows_left: int, *, consumers: int, batch_size: int, remainder: Remainder) -> int:
    """Batches that every consumer gets out of `rows_left` rows."""
    whole, rest = divmod(rows_left, consumers * batch_size)
    return whole if remainder == "drop" or rest == 0 else whole + 1


@dataclass(frozen=True, kw_only=True)
class Share:
    """The places of the remaining sequence that one consumer takes, item by item.

    Items 0..rows-1 are rows of its own; items rows..items-1 only fill the last step of "pad" and repeat a row.
    """

    consumer: int
    consumers: int
    batch_size: int
    steps: int
    rows: int
    items: int
    rows_left: int

    @property
    def stride(self) -> int:
        """From one of its places to the next."""
        return self.consumers

    @property
    def origin(self) -> int:
        """The position from which its rounds of windows count."""
        return 0

    def place_of(self, item: int) -> int:
        """The place item takes; a filling item repeats the consumer's last row, or one of another's if it has none."""
        if item < self.rows:
            return self.consumer + self.consumers * item
        return self.place_of(self.rows - 1) if self.rows else self.consumer % self.rows_left

    def places(self, start: int, stop: int) -> I64:
        """The places of the own items start..stop-1: int64, ascending."""
        return self.consumer + self.consumers * np.arange(start, min(stop, self.rows), dtype=np.int64)

    def items_below(self, place: int) -> int:
        """How many own items lie below a place."""
        return min(self.rows, max(0, -(-(place - self.consumer) // self.consumers)))


def share_of(rows_left: int, *, consumer: int, consumers: int, batch_size: int, remainder: Remainder) -> Share:
    """The share of one consumer; over all consumers the own items are each delivered place once."""
    steps = count_steps(rows_left, consumers=consumers, batch_size=batch_size, remainder=remainder)
    delivered = min(rows_left, steps * consumers * batch_size)
    rows = max(0, -(-(delivered - consumer) // consumers))
    return Share(
        consumer=consumer,
        consumers=consumers,
        batch_size=batch_size,
        steps=steps,
        rows=rows,
        items=steps * batch_size if remainder == "pad" else rows,
        rows_left=rows_left,
    )


def given_by_workers(batches: int, workers: int) -> I64:
    """How many of a rank's batches each of its workers gave: int64 [workers], at least one."""
    number = np.arange(max(1, workers))
    return (batches - number + len(number) - 1) // len(number)


def advance(
    remaining: Remaining, batches: int, *, world_size: int, workers: int, batch_size: int, remainder: Remainder
) -> Remaining:
    """What remains after every rank has received `batches` batches of a pass over `remaining`.

    With W workers the batches are W to a round: after the last full round some workers are one batch ahead, so the rows
    of the other workers in that round become holes. Raises `StreamError` if the pass has fewer batches.
    """
    workers = max(1, workers)
    consumers = world_size * workers
    steps = count_steps(remaining.total, consumers=consumers, batch_size=batch_size, remainder=remainder)
    if not 0 <= batches <= steps * workers:
        raise StreamError(
            f"a pass over the {remaining.total} rows left has {steps * workers} batches on each rank, not {batches}"
            f" (world_size {world_size}, workers {workers}, batch_size {batch_size}); pass the batches received since"
            " the pass began"
        )
    rounds, ahead = divmod(batches, workers)
    begin = rounds * consumers * batch_size
    if not ahead:
        return remaining.keep(np.array([begin], np.int64), np.array([remaining.total], np.int64))
    rows = begin + consumers * np.arange(batch_size + 1, dtype=np.int64)
    starts = np.append(rows[:-1] + ahead * world_size, rows[-1])
    stops = np.append(rows[1:], max(remaining.total, int(rows[-1])))
    return remaining.keep(starts, stops)
