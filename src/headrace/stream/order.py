"""The global order of an epoch: position g = 0..N-1 → one row. Pure.

1. The blocks, permuted by a keyed hash of (seed, epoch, block identity) and laid end to end, are a line of N places.
2. The line is cut into L lanes; the first N mod L lanes are one row longer.
3. Inside a lane, each window of `window_rows` places is permuted by its own key.
4. Position g is in lane g mod L, at g div L of it.

The order is a function of the index, seed, epoch, L and window_rows: not of ranks, workers, threads or batch size.
Building it costs O(blocks); a question about n positions costs O(n) plus the windows it touches, each made alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.dataset.index import SplitIndex
from headrace.digest import derive_key, hash_texts, hash_words, permutation

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

_NAME_KEY = derive_key(0, "block identity")
_HASH_ROWS = 1 << 14  # one part's hash state stays in the processor's cache


def block_identities(index: SplitIndex) -> U64:
    """A stable identity of each block, from shard name and place in the shard alone: uint64 [B, 3].

    Independent of seed and epoch, and of which other shards there are.
    """
    high, low = hash_texts(_NAME_KEY, pa.array(index.shards, pa.large_string()))
    return np.column_stack([high[index.shard_of_block], low[index.shard_of_block], index.block.astype(np.uint64)])


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochOrder:
    """One epoch's order of rows.

    blocks: block numbers along the line, int64 [B]; line: first place of each, then N, int64 [B+1].
    """

    blocks: I64
    line: I64
    seed: int
    epoch: int
    lanes: int
    window_rows: int
    shuffle: bool

    @property
    def rows(self) -> int:
        """N, the rows of the epoch."""
        return int(self.line[-1])

    def lane_starts(self, lanes: I64) -> I64:
        """The first place on the line of each lane; lane number L gives N."""
        short, longer = divmod(self.rows, self.lanes)
        return lanes * short + np.minimum(lanes, longer)

    def line_of(self, positions: I64) -> I64:
        """The place on the line of each position; int64 in [0, N) → int64, same length."""
        lane, offset = positions % self.lanes, positions // self.lanes
        if not self.shuffle:
            return self.lane_starts(lane) + offset
        window = offset // self.window_rows
        group = window * self.lanes + lane
        by_group = np.argsort(group, kind="stable")
        grouped = group[by_group]
        cuts = np.flatnonzero(np.diff(grouped)) + 1
        inside = offset - window * self.window_rows
        shuffled = np.empty_like(offset)
        for members in np.split(by_group, cuts) if len(by_group) else []:
            shuffled[members] = self._window(int(lane[members[0]]), int(window[members[0]]))[inside[members]]
        return self.lane_starts(lane) + window * self.window_rows + shuffled

    def locate(self, places: I64) -> tuple[I64, I64]:
        """(block number, row inside the block) of each place on the line."""
        at = np.searchsorted(self.line, places, side="right") - 1
        return self.blocks[at], places - self.line[at]

    def places_of(self, blocks: I64, rows: I64) -> I64:
        """The inverse of `locate`: the place on the line of each (block number, row inside the block)."""
        along = np.empty_like(self.blocks)
        along[self.blocks] = np.arange(len(self.blocks), dtype=np.int64)
        return self.line[along[blocks]] + rows

    def positions_of(self, places: I64) -> I64:
        """The inverse of `line_of`: the position of each place on the line; int64 in [0, N) → int64, same length."""
        starts = self.lane_starts(np.arange(self.lanes + 1, dtype=np.int64))
        lane = np.searchsorted(starts[:-1], places, side="right") - 1
        offset = places - starts[lane]
        if self.shuffle:
            window, inside = np.divmod(offset, self.window_rows)
            groups, member = np.unique(window * self.lanes + lane, return_inverse=True)
            offset = np.empty_like(places)
            for number, group in enumerate(groups.tolist()):
                of_window = member == number
                shuffled = self._window(group % self.lanes, group // self.lanes)
                back = np.empty_like(shuffled)
                back[shuffled] = np.arange(len(shuffled), dtype=np.int64)
                offset[of_window] = group // self.lanes * self.window_rows + back[inside[of_window]]
        return offset * self.lanes + lane

    def _window(self, lane: int, window: int) -> I64:
        lane_rows = int(np.diff(self.lane_starts(np.array([lane, lane + 1], np.int64)))[0])
        rows = min(self.window_rows, lane_rows - window * self.window_rows)
        return permutation(derive_key(self.seed, "window", self.epoch, lane, window), rows)


def epoch_order(
    rows: I64, identities: U64, *, seed: int, epoch: int, lanes: int, window_rows: int, shuffle: bool
) -> EpochOrder:
    """The order of one epoch from the rows [B] and identities [B, 3] of its blocks.

    Without shuffle the blocks keep their natural order and each lane is read from its first row to its last.
    """
    blocks = np.arange(len(rows), dtype=np.int64)
    if shuffle:
        blocks = _shuffled_blocks(derive_key(seed, "blocks", epoch), identities)
    line = np.concatenate([[0], np.cumsum(rows[blocks])]).astype(np.int64)
    return EpochOrder(
        blocks=blocks, line=line, seed=seed, epoch=epoch, lanes=lanes, window_rows=window_rows, shuffle=shuffle
    )


def _shuffled_blocks(key: tuple[int, int], identities: U64) -> I64:
    """Block numbers sorted by the keyed hash of their identity; equal hashes keep the natural order."""
    high, low = np.empty(len(identities), np.uint64), np.empty(len(identities), np.uint64)
    for begin in range(0, len(identities), _HASH_ROWS):
        part = slice(begin, begin + _HASH_ROWS)
        high[part], low[part] = hash_words(key, identities[part])
    return np.lexsort((low, high)).astype(np.int64)
