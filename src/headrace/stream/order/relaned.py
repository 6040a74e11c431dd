"""What is left of an epoch, cut into new lanes. Pure.

Consumers whose number does not divide L decode blocks that others decode too. Cutting the rows that are left anew ends
that: the positions left are enumerated group by group (each range of positions and group is one run, D apart), which is
nearly the order of the line, and these runs, end to end, are the line of a new order with lanes, windows and keys of
its own. Every row left is in it once. Cost is O(D * ranges); a row costs what it costs in the order below, and its
window. The order below may be of any kind, this one too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.arrays import I64
from headrace.digest import derive_key
from headrace.stream.order.epoch import EpochOrder, Order, Pieces, Reads, expand, pieces_one_by_one
from headrace.stream.order.remaining import Remaining


@dataclass(frozen=True, kw_only=True, eq=False)
class RelanedOrder:
    """The rows that `left` leaves of `base`, in new lanes.

    runs: the order of the runs; its "blocks" are runs of base positions. first: the base position where each begins.
    """

    base: Order
    left: Remaining
    runs: EpochOrder
    first: I64

    @property
    def rows(self) -> int:
        """M, the rows that are left."""
        return self.runs.rows

    @property
    def lanes(self) -> int:
        """The new number of lanes."""
        return self.runs.lanes

    @property
    def groups(self) -> int:
        """The new number of groups."""
        return self.runs.groups

    @property
    def window_rows(self) -> int:
        """Rows of a new lane that one round takes."""
        return self.runs.window_rows

    @property
    def shuffle(self) -> bool:
        """Whether rows are shuffled at all."""
        return self.runs.shuffle

    def line_of(self, positions: I64) -> I64:
        """The place on the line of the order below; int64 in [0, M) → int64, same length."""
        return self.base.line_of(self._base_positions(self.runs.line_of(positions)))

    def locate(self, places: I64) -> tuple[I64, I64]:
        """(block number, row inside the block) of each place on the line of the order below."""
        return self.base.locate(places)

    def positions_of_row(self, block: int, row: int) -> I64:
        """Every position at which a row is delivered, ascending; none if it was received before."""
        below = self.base.positions_of_row(block, row)
        if not self.rows:
            return below[:0]
        below = np.array([each for each in below.tolist() if self._is_left(each)], np.int64)
        by_first = np.lexsort((self.first, self.first % self.base.groups))
        keys = (self.first % self.base.groups)[by_first] * (self.left.rows + 1) + self.first[by_first]
        wanted = below % self.base.groups * (self.left.rows + 1) + below
        run = by_first[np.searchsorted(keys, wanted, side="right") - 1]
        inside = (below - self.first[run]) // self.base.groups
        return np.sort(self.runs.positions_of(self.runs.line[run] + inside))

    def reads(self, first: I64, last: I64) -> Reads:
        """The blocks that each run of positions first, first + L, .. last needs for its rounds."""
        owner, begins, ends = self.runs.spans(first, last)
        span, along = expand(begins, ends, self.runs.line)
        run = owner[span]
        skipped = np.maximum(begins[span] - self.runs.line[along], 0)
        rows = np.minimum(ends[span], self.runs.line[along + 1]) - self.runs.line[along]
        step = self.base.groups
        below = self.base.reads(self.first[along] + skipped * step, self.first[along] + (rows - 1) * step)
        return Reads(*np.unique(np.stack([run[below.run], below.block, below.laying]), axis=1))

    def pieces_of(self, positions: I64) -> Pieces:
        """What holds the rows of ascending positions [n > 0]."""
        return pieces_one_by_one(self, positions)

    def _base_positions(self, places: I64) -> I64:
        run, inside = self.runs.locate(places)
        return self.first[run] + inside * self.base.groups

    def _is_left(self, position: int) -> bool:
        return self.left.count_below(position) < self.left.count_below(position + 1)


def relane(
    base: Order, left: Remaining, *, seed: int, epoch: int, lanes: int, window_rows: int, groups: int
) -> RelanedOrder:
    """The rows left of an order in `lanes` new lanes, shuffled if the order is, by keys of this cut alone."""
    bounds = np.array(left.ranges, np.int64).reshape(-1, 2)
    group = np.arange(base.groups, dtype=np.int64)[:, None]
    first = bounds[:, 0] + (group - bounds[:, 0]) % base.groups  # [D, ranges]: group by group
    rows = -(-(bounds[:, 1] - first) // base.groups)
    first, rows = first[rows > 0], rows[rows > 0]
    cut = derive_key(seed, "relane", epoch, left.rows, left.first, left.total, base.groups)[0]
    runs = EpochOrder(
        blocks=np.arange(len(rows), dtype=np.int64),
        line=np.concatenate([[0], np.cumsum(rows)]).astype(np.int64),
        seed=cut,
        epoch=epoch,
        lanes=lanes,
        window_rows=window_rows,
        groups=groups if base.shuffle else lanes,
        shuffle=base.shuffle,
    )
    return RelanedOrder(base=base, left=left, runs=runs, first=first)
