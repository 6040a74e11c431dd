"""An epoch that is no whole pass: so many rows of one or several sources, each continued where it stopped. Pure.

Every source is an endless sequence of its own epochs, each in an order of its own: index q is position q mod N_d of own
epoch q // N_d. Epoch E of the stream takes the indices E*n_d .. (E+1)*n_d - 1 of source d, n_d its quota, and the
sources are interleaved in turns of D rows. So any N_d consecutive indices that begin an own epoch are every row once.
Places are those of the own epochs that the epoch touches, end to end. Orders of own epochs are made when asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from headrace.arrays import I64, U64
from headrace.stream.order.epoch import EpochOrder, Pieces, Reads, epoch_order
from headrace.stream.order.interleave import Interleave

_MOST_KEPT_ORDERS = 4  # each is arrays as long as its blocks


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """The endless sequence of one source, and the part of it that an epoch takes.

    block_rows, identities: of its blocks; first_block: the number of its first block in the whole index.
    rows: N_d; start: the index at which the epoch begins; count: n_d.
    """

    block_rows: I64
    identities: U64
    first_block: int
    rows: int
    start: int
    count: int
    seed: int
    lanes: int
    window_rows: int
    groups: int
    shuffle: bool
    _orders: dict[int, EpochOrder] = field(default_factory=dict)

    @property
    def epochs(self) -> range:
        """The own epochs that the epoch touches."""
        if not self.count:
            return range(0)
        return range(self.start // self.rows, (self.start + self.count - 1) // self.rows + 1)

    @property
    def places(self) -> int:
        """How long its line is: its own epochs, end to end."""
        return len(self.epochs) * self.rows

    def order(self, own_epoch: int) -> EpochOrder:
        """The order of an own epoch."""
        if own_epoch not in self._orders:
            if len(self._orders) >= _MOST_KEPT_ORDERS:
                self._orders.pop(next(iter(self._orders)))
            self._orders[own_epoch] = epoch_order(
                self.block_rows,
                self.identities,
                seed=self.seed,
                epoch=own_epoch,
                lanes=self.lanes,
                window_rows=self.window_rows,
                groups=self.groups,
                shuffle=self.shuffle,
            )
        return self._orders[own_epoch]

    def line_of(self, indexes: I64) -> I64:
        """The place on the source's line of each of the epoch's indexes, counted from 0."""
        own, positions = np.divmod(self.start + indexes, self.rows)
        places = np.empty_like(indexes)
        for epoch in np.unique(own).tolist():
            members = own == epoch
            laid = (epoch - self.epochs.start) * self.rows
            places[members] = laid + self.order(epoch).line_of(positions[members])
        return places

    def locate(self, places: I64) -> tuple[I64, I64]:
        """(block number in the whole index, row) of each place on the source's line."""
        laid, inside = np.divmod(places, self.rows)
        blocks, rows = np.empty_like(places), np.empty_like(places)
        for each in np.unique(laid).tolist():
            members = laid == each
            blocks[members], rows[members] = self.order(self.epochs.start + each).locate(inside[members])
        return self.first_block + blocks, rows

    def indexes_of_row(self, block: int, row: int) -> I64:
        """The epoch's indexes, counted from 0, at which a row of the source is delivered."""
        found = []
        for epoch in self.epochs:
            index = epoch * self.rows + int(self.order(epoch).positions_of_row(block, row)[0]) - self.start
            if 0 <= index < self.count:
                found.append(index)
        return np.array(found, np.int64)

    def reads(self, first: I64, last: I64) -> list[Reads]:
        """What each run of indexes first, first + D, .. last needs, own epoch by own epoch; runs are not empty."""
        found = []
        first, last = self.start + first, self.start + last
        for epoch in range(int(first.min()) // self.rows, int(last.max()) // self.rows + 1) if len(first) else ():
            laid = epoch * self.rows
            begin = np.where(first < laid, laid + (first - laid) % self.groups, first)
            stop = laid + self.rows - 1
            end = np.where(last > stop, stop - (stop - last) % self.groups, last)
            runs = np.flatnonzero(begin <= end)
            run, block, _ = self.order(epoch).reads(begin[runs] - laid, end[runs] - laid)
            found.append(Reads(runs[run], self.first_block + block, np.full(len(block), epoch)))
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedOrder:
    """The order of an epoch of one or several sources; see the top."""

    sources: tuple[Source, ...]
    interleave: Interleave
    lanes: int
    window_rows: int
    groups: int
    shuffle: bool

    @property
    def rows(self) -> int:
        """S, the rows of the epoch."""
        return sum(source.count for source in self.sources)

    def line_of(self, positions: I64) -> I64:
        """The place on the line of each position; int64 in [0, S) → int64, same length."""
        which, indexes = self.interleave.split(positions)
        places = np.empty_like(positions)
        for number, (source, laid) in enumerate(zip(self.sources, self._line, strict=False)):
            members = np.flatnonzero(which == number)
            if len(members):
                places[members] = laid + source.line_of(indexes[members])
        return places

    def pieces_of(self, positions: I64) -> Pieces:
        """What holds the rows of ascending positions [n > 0]: the windows of the sources' own epochs."""
        which, indexes = self.interleave.split(positions)
        pieces: list[tuple[int, int, int]] = []
        index, base = np.empty_like(positions), 0
        for number, source in enumerate(self.sources):
            of_source = np.flatnonzero(which == number)
            own, inside = np.divmod(source.start + indexes[of_source], max(1, source.rows))
            for epoch in np.unique(own).tolist():
                members = own == epoch
                found = source.order(epoch).pieces_of(inside[members])
                among = np.arange(int(members.sum()), dtype=np.int64) if found.index is None else found.index
                index[of_source[members]] = base + among
                pieces += [(source.first_block + block, start, stop) for block, start, stop in found.pieces]
                base += found.rows
        return Pieces(pieces, index)

    def locate(self, places: I64) -> tuple[I64, I64]:
        """(block number, row inside the block) of each place on the line."""
        which = np.searchsorted(self._line, places, side="right") - 1
        blocks, rows = np.empty_like(places), np.empty_like(places)
        for number in np.unique(which).tolist():
            members = which == number
            found = self.sources[number].locate(places[members] - self._line[number])
            blocks[members], rows[members] = found
        return blocks, rows

    def positions_of_row(self, block: int, row: int) -> I64:
        """Every position at which a row is delivered, ascending; none or several."""
        firsts = [source.first_block for source in self.sources]
        number = int(np.searchsorted(firsts, block, side="right")) - 1
        source = self.sources[number]
        indexes = source.indexes_of_row(block - source.first_block, row)
        return np.sort(self.interleave.join(number, indexes))

    def reads(self, first: I64, last: I64) -> Reads:
        """The blocks that each run of positions first, first + D, .. last needs for its rounds."""
        found = [Reads(*(np.empty(0, np.int64) for _ in range(3)))]
        rounds = self.interleave.rounds
        begins = self.interleave.turns_before(np.minimum(first // self.groups, rounds))
        ends = self.interleave.turns_before(np.minimum(last // self.groups + 1, rounds))
        for source, begin, end in zip(self.sources, begins, ends, strict=True):
            runs = np.flatnonzero(begin < end)
            inside = first[runs] % self.groups
            for run, block, laying in source.reads(
                begin[runs] * self.groups + inside, (end[runs] - 1) * self.groups + inside
            ):
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
        for number, source in enumerate(self.sources):
            members = which == number
            if members.any():
                block, _ = source.locate(source.line_of(indexes[members]))
                laying = (source.start + indexes[members]) // source.rows
                found.append(Reads(*np.unique(np.stack([run[members], block, laying]), axis=1)))
        return found

    @property
    def _line(self) -> I64:
        """The place at which each source's line begins."""
        return np.cumsum([0, *(source.places for source in self.sources)])[:-1].astype(np.int64)
