"""Who takes which of the remaining rows, and when: arithmetic on residues. Pure.

Rank r of R takes the places v = r (mod R) of what remains, batch_size at a time. Global step k is the places
[k*G, (k+1)*G) with G = R * batch_size, so every rank takes the same number of steps, whatever the shards are like.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.arrays import I64
from headrace.errors import SettingsError, StreamError
from headrace.stream.order.remaining import Remaining

Remainder = Literal["pad", "drop", "exact"]


def resolve_remainder(remainder: Remainder | None, ranks: int) -> Remainder:
    """What happens to the last, incomplete step: as asked, else "exact" for one rank and "pad" for several."""
    if remainder is None:
        return "exact" if ranks == 1 else "pad"
    if remainder == "exact" and ranks > 1:
        raise SettingsError(
            f'remainder="exact" gives a last batch that not every reader has; here are {ranks} ranks'
            '; use "pad" (nothing lost, see batch["valid"]) or "drop"'
        )
    return remainder


def count_steps(rows_left: int, *, ranks: int, batch_size: int, remainder: Remainder) -> int:
    """Batches that every rank gets out of `rows_left` rows."""
    whole, rest = divmod(rows_left, ranks * batch_size)
    return whole if remainder == "drop" or rest == 0 else whole + 1


@dataclass(frozen=True, kw_only=True)
class Share:
    """The places of the remaining sequence that one rank takes: begin, begin + stride, …, item by item.

    Items 0..rows-1 are rows of its own; items rows..items-1 only fill the last step of "pad": they repeat its last row,
    or are at place `filler` if it has none. origin: the position from which its rounds of windows count.
    """

    begin: int
    stride: int
    batch_size: int
    steps: int
    rows: int
    items: int
    filler: int
    origin: int = 0

    def place_of(self, item: int) -> int:
        """The place item takes."""
        return self.begin + self.stride * min(item, self.rows - 1) if self.rows else self.filler

    def places(self, start: int, stop: int) -> I64:
        """The places of the own items start..stop-1: int64, ascending."""
        return self.begin + self.stride * np.arange(start, min(stop, self.rows), dtype=np.int64)

    def items_below(self, place: int) -> int:
        """How many own items lie below a place."""
        return min(self.rows, max(0, -(-(place - self.begin) // self.stride)))


def share_of(rows_left: int, *, rank: int, ranks: int, batch_size: int, remainder: Remainder) -> Share:
    """The share of one rank; over all ranks the own items are each delivered place once."""
    steps = count_steps(rows_left, ranks=ranks, batch_size=batch_size, remainder=remainder)
    rows = max(0, -(-(min(rows_left, steps * ranks * batch_size) - rank) // ranks))
    return Share(
        begin=rank,
        stride=ranks,
        batch_size=batch_size,
        steps=steps,
        rows=rows,
        items=steps * batch_size if remainder == "pad" else rows,
        filler=rank % max(1, rows_left),
    )


def advance(remaining: Remaining, batches: int, *, ranks: int, batch_size: int, remainder: Remainder) -> Remaining:
    """What remains after every rank has received `batches` batches. Raises `StreamError` if the pass has fewer."""
    steps = count_steps(remaining.total, ranks=ranks, batch_size=batch_size, remainder=remainder)
    check_batches(batches, steps)
    begin = np.array([batches * ranks * batch_size], np.int64)
    return remaining.keep(begin, np.array([remaining.total], np.int64))


def check_batches(batches: int, steps: int) -> None:
    """Raise `StreamError` unless a pass of `steps` batches on each rank can have given so many."""
    if not 0 <= batches <= steps:
        raise StreamError(
            f"the pass has {steps} batches on each rank, and {batches} are said to be received; pass the number that"
            " this rank received since the pass began"
        )
