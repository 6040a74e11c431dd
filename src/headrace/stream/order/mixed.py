"""An epoch that is no whole pass: so many rows of one or several sources, each continued where it stopped. Pure.

Every source is an endless sequence of its own epochs, each in an order of its own: index q is position q mod N_d of own
epoch q // N_d. Epoch E of the stream takes the indices E*n_d .. (E+1)*n_d - 1 of source d, n_d its quota, and the
sources are interleaved in turns of D rows. So any N_d consecutive indices that begin an own epoch are every row once.
Places are those of the own epochs that the epoch touches, end to end. Orders of own epochs are made when asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from headrace.arrays import I64, U64
from headrace.stream.order.epoch import EpochOrder, OrderSettings, Reads, epoch_order
from headrace.stream.order.interleave import Interleave
from headrace.stream.order.joined import JoinedOrder, each_number, split_at

_MOST_KEPT_ORDERS = 4  # each is arrays as long as its blocks


@dataclass(frozen=True, kw_only=True, eq=False)
class Source(JoinedOrder):
    """The part of the endless sequence of one source that an epoch takes; its members are own epochs, by number.

    block_rows, identities, numbers: of its blocks, the numbers those in the whole index.
    own_rows: N_d; start: the index at which the epoch begins; count: n_d. settings: of its own epochs.
    """

    block_rows: I64
    identities: U64
    numbers: I64
    own_rows: int
    start: int
    count: int
    settings: OrderSettings
    _orders: dict[int, EpochOrder] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.count

    @property
    def epochs(self) -> range:
        """The own epochs that the epoch touches."""
        if not self.count:
            return range(0)
        return range(self.start // self.own_rows, (self.start + self.count - 1) // self.own_rows + 1)

    def order(self, own_epoch: int) -> EpochOrder:
        """The order of an own epoch."""
        if own_epoch not in self._orders:
            if len(self._orders) >= _MOST_KEPT_ORDERS:
                self._orders.pop(next(iter(self._orders)))
            own: OrderSettings = {**self.settings, "epoch": own_epoch}
            self._orders[own_epoch] = epoch_order(self.block_rows, self.identities, numbers=self.numbers, **own)
        return self._orders[own_epoch]

    def _split(self, positions: I64, /) -> tuple[I64, I64]:
        return np.divmod(self.start + positions, self.own_rows)

    def _split_places(self, places: I64, /) -> tuple[I64, I64]:
        return np.divmod(self.epochs.start * self.own_rows + places, self.own_rows)

    def _member(self, number: int) -> tuple[EpochOrder, int]:
        return self.order(number), (number - self.epochs.start) * self.own_rows

    def positions_of_row(self, block: int, row: int) -> I64:
        found = [epoch * self.own_rows + self.order(epoch).positions_of_row(block, row) for epoch in self.epochs]
        positions = np.concatenate([np.zeros(0, np.int64), *found]) - self.start
        return positions[(positions >= 0) & (positions < self.count)]

    def reads(self, first: I64, last: I64) -> Reads:
        found = [np.empty((3, 0), np.int64)]
        first, last = self.start + first, self.start + last
        for epoch in (
            range(int(first.min()) // self.own_rows, int(last.max()) // self.own_rows + 1) if len(first) else ()
        ):
            laid = epoch * self.own_rows
            begin = np.where(first < laid, laid + (first - laid) % self.groups, first)
            stop = laid + self.own_rows - 1
            end = np.where(last > stop, stop - (stop - last) % self.groups, last)
            runs = np.flatnonzero(begin <= end)
            run, block, _ = self.order(epoch).reads(begin[runs] - laid, end[runs] - laid)
            found.append(np.stack([runs[run], block, np.full(len(block), epoch)]))
        return Reads(*np.concatenate(found, axis=1))


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedOrder(JoinedOrder):
    """The order of an epoch of one or several sources; see the top."""

    sources: tuple[Source, ...]
    interleave: Interleave

    @property
    def rows(self) -> int:
        return sum(source.count for source in self.sources)

    @cached_property
    def _bases(self) -> I64:
        places = [len(source.epochs) * source.own_rows for source in self.sources]
        return np.cumsum([0, *places])[:-1].astype(np.int64)

    def _split(self, positions: I64, /) -> tuple[I64, I64]:
        return self.interleave.split(positions)

    def _split_places(self, places: I64, /) -> tuple[I64, I64]:
        return split_at(self._bases, places)

    def _member(self, number: int) -> tuple[Source, int]:
        return self.sources[number], int(self._bases[number])

    def positions_of_row(self, block: int, row: int) -> I64:
        found = [
            self.interleave.join(number, source.positions_of_row(block, row))
            for number, source in enumerate(self.sources)
            if block in source.numbers
        ]
        return np.sort(np.concatenate(found))

    def reads(self, first: I64, last: I64) -> Reads:
        found = [Reads(*np.empty((3, 0), np.int64))]
        rounds = self.interleave.rounds
        begins = self.interleave.turns_before(np.minimum(first // self.groups, rounds))
        ends = self.interleave.turns_before(np.minimum(last // self.groups + 1, rounds))
        for source, begin, end in zip(self.sources, begins, ends, strict=True):
            runs = np.flatnonzero(begin < end)
            inside = first[runs] % self.groups
            run, block, laying = source.reads(
                begin[runs] * self.groups + inside, (end[runs] - 1) * self.groups + inside
            )
            found.append(Reads(runs[run], block, laying))
        found += self._tail_reads(first, last)
        return Reads(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def _tail_reads(self, first: I64, last: I64) -> list[Reads]:
        """What the tails of the sources need: less than a round of rows each, asked one by one."""
        tails = self.interleave.rounds * self.groups
        begin = np.where(first < tails, tails + (first - tails) % self.groups, first)
        counts = np.maximum(0, (last - begin) // self.groups + 1)
        run = np.repeat(np.arange(len(first), dtype=np.int64), counts)
        turn = np.arange(len(run)) - np.repeat(np.cumsum(counts) - counts, counts)
        which, indexes = self.interleave.split(begin[run] + turn * self.groups)
        found = []
        for number, members in each_number(which):
            source = self.sources[number]
            block, _ = source.locate(source.line_of(indexes[members]))
            laying = (source.start + indexes[members]) // source.own_rows
            found.append(Reads(*np.unique(np.stack([run[members], block, laying]), axis=1)))
        return found
