"""The global order and its delivery, slow and straightforward: one row at a time, from the design's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from headrace.digest import derive_key
from headrace.keyed_hash import permutation


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
        groups: int,
        shuffle: bool,
    ) -> None:
        first = np.concatenate([[0], np.cumsum(rows)])
        line = [int(first[block]) + row for block in blocks for row in range(rows[block])]
        lane_of_slice = (
            permutation(derive_key(seed, "lanes", epoch), lanes).tolist()
            if shuffle
            else range(lanes)
        )
        self.lanes: dict[int, list[int]] = {}
        short, longer = divmod(len(line), lanes)
        for lane in lane_of_slice:
            length = short + (lane < longer)
            self.lanes[lane], line = line[:length], line[length:]
        self.groups = [
            self._sequence(group, seed, epoch, window, groups) for group in range(groups)
        ]
        if not shuffle:
            self.groups = [self.lanes[lane] for lane in range(lanes)]

    def _sequence(self, group: int, seed: int, epoch: int, window: int, groups: int) -> list[int]:
        """The rows of a group, round after round."""
        lanes = [self.lanes[lane] for lane in range(group, len(self.lanes), groups)]
        sequence: list[int] = []
        for number, start in enumerate(range(0, max(map(len, lanes)), window)):
            rows = [row for lane in lanes for row in lane[start : start + window]]
            sequence += [
                rows[i]
                for i in permutation(derive_key(seed, "round", epoch, group, number), len(rows))
            ]
        return sequence

    def row(self, position: int) -> int:
        return self.groups[position % len(self.groups)][position // len(self.groups)]

    def epoch(self) -> list[int]:
        return [self.row(position) for position in range(sum(map(len, self.lanes.values())))]


def deliver(
    left: list[int], *, rank: int, ranks: int, batch_size: int, remainder: str
) -> Iterator[list[int]]:
    """Yield the batches of one rank, real rows only, out of the rows that are left."""
    step_rows = ranks * batch_size
    steps = len(left) // step_rows if remainder == "drop" else -(-len(left) // step_rows)
    for step in range(steps):
        places = [step * step_rows + rank + ranks * item for item in range(batch_size)]
        yield [left[place] for place in places if place < len(left)]
