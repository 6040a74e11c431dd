"""Which rows lie in which bin of a pass, how many batches every rank has, and the state of a pass. Pure.

A rank's own rows, in the order of its share, are cut into windows, and each window is packed by itself. So bins
depend on the order of the pass and on lengths alone; any rank can say what the others do, and a place in a pass is a
number of batches. Cost: O(rows of the split) for the number of steps, once a pass; a window at a time for what is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from headrace.arrays import I32, I64
from headrace.bins.bins import Bins
from headrace.bins.lengths import Counted, costs
from headrace.bins.pack import pack
from headrace.digest import derive_key
from headrace.errors import InputError, StreamError
from headrace.sealed import MOST_POSITIONS, seal, unseal
from headrace.stream.order.plan import Plan, plan_pools
from headrace.stream.order.remaining import Remaining
from headrace.stream.order.state import FORMAT_VERSION, StreamState
from headrace.stream.packed.batches import PackRows

_KIND = "packing"
_LEAST = {"batches": 0, "world_size": 1, "batch_size": 1}


@dataclass(frozen=True, kw_only=True)
class PackingReport:
    """A pass in numbers, over all ranks; known before it begins.

    rows: those that are packed; bins: that hold them; filling_bins: that only fill last batches, and train nothing.
    tokens: in bins; fill: their part of what bins could hold. truncated_rows, truncated_tokens, dropped_rows,
    dropped_tokens: what too_long did; empty_rows: rows without tokens.
    """

    rows: int
    bins: int
    filling_bins: int
    tokens: int
    fill: float
    truncated_rows: int
    truncated_tokens: int
    dropped_rows: int
    dropped_tokens: int
    empty_rows: int


@dataclass(frozen=True, kw_only=True, eq=False)
class PackingPlan:
    """The bins of a pass that begins where `plan` does; batches of `batch_size` bins.

    plan: of rows, cut into "batches" of pack.buffer_rows, remainder "pad". lengths: of all rows, int32 [N], by their
    number in the split; first_row: of each block. start: the state at which the pass begins.
    """

    plan: Plan
    start: StreamState
    lengths: I32
    first_row: I64
    pack: PackRows
    counted: Counted
    batch_size: int
    _known: dict[int, I64] = field(default_factory=dict, repr=False)

    @property
    def longest(self) -> int:
        """Tokens that a row may have to fit into a bin."""
        return self.pack.capacity + (1 if self.counted == "runtime" else 0)

    @cached_property
    def steps(self) -> int:
        """Batches of every rank: what the one with the most bins needs. Raises `InputError` for too long rows."""
        self.check_lengths()
        most = max(int(self.bins_of_windows(rank).sum()) for rank in range(self.plan.world_size))
        return -(-most // self.batch_size)

    def check_lengths(self) -> None:
        """Raise `InputError` if too_long="error" and a row does not fit into a bin."""
        if self.pack.too_long != "error":
            return
        long = np.flatnonzero(self.lengths > self.longest)
        if len(long):
            raise InputError(
                f"pack: {len(long)} rows have more than {self.longest} tokens, the first of them row {long[0]} with"
                f' {self.lengths[long[0]]}; choose a larger capacity, or too_long="truncate" or "drop"'
            )

    def lengths_of(self, rank: int) -> I64:
        """Tokens of each of its rows, in its order, as they are stored: int64 [rows]."""
        share = self.plan.share(rank)
        if not share.rows:
            return np.zeros(0, np.int64)
        parts = []
        for pool in plan_pools(self.plan.order, self.plan.remaining, share):
            firsts = self.first_row
            rows = [self.lengths[firsts[block] + start : firsts[block] + stop] for block, start, stop in pool.pieces]
            laid = np.concatenate(rows)
            parts.append(laid if pool.index is None else laid[pool.index])
        return np.concatenate(parts)[: share.rows].astype(np.int64)

    def bins_of_windows(self, rank: int) -> I64:
        """How many bins each window of a rank makes: int64 [windows]."""
        if rank not in self._known:
            self._known[rank] = np.array([len(bins) for _, bins in self.windows(rank)], np.int64)
        return self._known[rank]

    def windows(self, rank: int, first: int = 0) -> Iterator[tuple[I64, Bins]]:
        """Each window of a rank, from window `first` on: tokens of its rows as they are stored, and its bins.

        Sequences of the bins are places in the window.
        """
        lengths, size = self.lengths_of(rank), self.pack.buffer_rows
        for window in range(first, -(-len(lengths) // size)):
            of_window = lengths[window * size : (window + 1) * size]
            kept = self.kept(of_window)
            taking = np.flatnonzero(kept)
            seed = derive_key(self.start.seed, "stream.pack", self.start.epoch, rank, window)[0] >> 1
            bins = pack(
                costs(kept[taking], self.counted),
                self.pack.capacity,
                algorithm=self.pack.algorithm,
                seed=seed,
                max_sequences=self.pack.max_sequences,
            )
            bins = Bins(bins.offsets, taking[bins.sequences])
            yield of_window, bins.shuffled(seed) if self.start.shuffle else bins

    def kept(self, lengths: I64) -> I64:
        """The tokens of rows as they are packed: what is too long cut, or 0 where a row takes no part."""
        if self.pack.too_long == "drop":
            return np.where(lengths > self.longest, 0, lengths)
        return np.minimum(lengths, self.longest)

    def left_after(self, batches: I64) -> Remaining:
        """The rows that nobody has received after so many batches of each rank, int64 [ranks].

        Rows that take no part are left if their window is not delivered to its end.
        """
        positions = [np.zeros(0, np.int64)]
        for rank in range(self.plan.world_size):
            share = self.plan.share(rank)
            left = np.ones(share.rows, np.bool_)
            given = int(batches[rank]) * self.batch_size
            for window, (_, bins) in enumerate(self.windows(rank)):
                begin = window * self.pack.buffer_rows
                if given >= len(bins):
                    left[begin : begin + self.pack.buffer_rows] = False
                else:
                    left[begin + bins[:given].sequences] = False
                given -= min(given, len(bins))
                if not given:
                    break
            positions.append(self.plan.remaining.positions(share.places(0, share.rows)[left]))
        return Remaining.of_positions(self.plan.order.rows, np.sort(np.concatenate(positions)))

    def report(self) -> PackingReport:
        """The pass in numbers; of what is too long and empty, all rows of the split are counted."""
        packed = np.concatenate([self.lengths_of(rank) for rank in range(self.plan.world_size)])
        kept = self.kept(packed)
        bins = sum(int(self.bins_of_windows(rank).sum()) for rank in range(self.plan.world_size))
        long = packed > self.longest
        cut, dropped = long & (kept > 0), long & (kept == 0)
        held = costs(kept[kept > 0], self.counted)
        return PackingReport(
            rows=int(np.count_nonzero(kept)),
            bins=bins,
            filling_bins=self.steps * self.batch_size * self.plan.world_size - bins,
            tokens=int(kept.sum()),
            fill=int(held.sum()) / (bins * self.pack.capacity) if bins else 0.0,
            truncated_rows=int(np.count_nonzero(cut)),
            truncated_tokens=int((packed - kept)[cut].sum()),
            dropped_rows=int(np.count_nonzero(dropped)),
            dropped_tokens=int(packed[dropped].sum()),
            empty_rows=int(np.count_nonzero(packed == 0)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingState:
    """`batches` batches of the pass from `start`, on each of `world_size` ranks. identity: of how rows are packed."""

    start: StreamState
    batches: int
    world_size: int
    batch_size: int
    identity: str

    def to_dict(self) -> dict[str, Any]:
        """A JSON object; `from_dict` gives an equal state back."""
        numbers = {name: getattr(self, name) for name in _LEAST}
        return seal(_KIND, FORMAT_VERSION, {"start": self.start.to_dict(), **numbers, "pack": self.identity})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PackingState:
        """Read a state back. Raises `StreamError` if it is none, or was changed."""
        values = unseal(values, kind=_KIND, version=FORMAT_VERSION)
        sound = set(values) == {"start", "pack", *_LEAST}
        if not sound or any(
            type(values[name]) is not int or not least <= values[name] <= MOST_POSITIONS
            for name, least in _LEAST.items()
        ):
            raise StreamError(
                "packing state: it is not what state_dict() of a packing stream gave; pass it on unchanged"
            )
        start = StreamState.from_dict(values["start"])
        return cls(start=start, identity=values["pack"], **{name: values[name] for name in _LEAST})
