"""Several spools as one: bins may take sequences from any of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.arrays import I32, I64, U8
from headrace.packing.storage.spool import Spool, runs


class JoinedSpool:
    """The sequences of all spools, numbered through: those of the first spool, then those of the second, …

    lengths: uint32 [n], tokens of each sequence. Taking copies each token twice where more than one spool is hit.
    """

    def __init__(self, spools: Sequence[Spool]) -> None:
        self._spools = tuple(spools)
        self._first: I64 = np.cumsum([0, *(len(each) for each in self._spools)])
        self.lengths: npt.NDArray[np.uint32] = np.concatenate(
            [np.empty(0, np.uint32), *(each.lengths for each in self._spools)]
        )

    def __len__(self) -> int:
        return int(self._first[-1])

    def take(self, sequences: I64) -> tuple[I32, U8, I64]:
        """See `Spool.take`."""
        if len(sequences) and (sequences.min() < 0 or sequences.max() >= len(self)):
            wrong = sequences[(sequences < 0) | (sequences >= len(self))][0]
            raise IndexError(f"spools: no sequence {wrong}; there are {len(self)}, counted from 0")
        owner = np.searchsorted(self._first, sequences, "right") - 1
        used = np.unique(owner)
        if len(used) == 1:
            return self._spools[int(used[0])].take(sequences - self._first[used[0]])
        by_owner = np.argsort(owner, kind="stable")
        parts = [self._spools[int(number)].take(sequences[owner == number] - self._first[number]) for number in used]
        if not parts:
            return np.empty(0, np.int32), np.empty(0, np.uint8), np.empty(0, np.int64)
        ids, mask, sizes = (np.concatenate([part[column] for part in parts]) for column in range(3))
        begins, lengths = np.empty_like(sizes), np.empty_like(sizes)
        begins[by_owner] = np.cumsum(sizes) - sizes
        lengths[by_owner] = sizes
        return runs(ids, begins, lengths), runs(mask, begins, lengths), lengths
