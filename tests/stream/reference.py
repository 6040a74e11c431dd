"""The global order and its delivery, slow and straightforward: one row at a time, from the design's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from headrace.digest import derive_key, permutation


class SlowOrder:
    """Position g → row number, for blocks that were already put in this order."""

    def __init__(
        self,
        rows: Sequence[int],
        blocks: Sequence[int],
        *,
        seed: int,
        epoch: int,
        lanes: int,
        window: int,
        shuffle: bool,
    ) -> None:
        first = np.concatenate([[0], np.cumsum(rows)])
        self.line = [int(first[block]) + row for block in blocks for row in range(rows[block])]
        self.settings = (seed, epoch, window, shuffle)
        self.lanes: list[list[int]] = []
        short, longer = divmod(len(self.line), lanes)
        start = 0
        for lane in range(lanes):
            stop = start + short + (lane < longer)
            self.lanes.append(self._shuffled(lane, self.line[start:stop]))
            start = stop

    def _shuffled(self, lane: int, rows: list[int]) -> list[int]:
        seed, epoch, window, shuffle = self.settings
        if not shuffle:
            return rows
        out: list[int] = []
        for number, start in enumerate(range(0, len(rows), window)):
            part = rows[start : start + window]
            out += [part[i] for i in permutation(derive_key(seed, "window", epoch, lane, number), len(part))]
        return out

    def row(self, position: int) -> int:
        return self.lanes[position % len(self.lanes)][position // len(self.lanes)]

    def epoch(self) -> list[int]:
        return [self.row(position) for position in range(len(self.line))]


def deliver(left: list[int], *, consumer: int, consumers: int, batch_size: int, remainder: str) -> Iterator[list[int]]:
    """Batches of the real rows of one consumer, out of the rows that are left."""
    step_rows = consumers * batch_size
    steps = len(left) // step_rows if remainder == "drop" else -(-len(left) // step_rows)
    for step in range(steps):
        places = [step * step_rows + consumer + consumers * item for item in range(batch_size)]
        yield [left[place] for place in places if place < len(left)]
