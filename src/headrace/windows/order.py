"""The order of an epoch's windows: positions 0..N-1 → window numbers. Pure.

- "everywhere": one permutation of all windows; 8 bytes a window, or nothing kept where there are very many.
- "nearby": groups of entities that lie together are permuted, laid end to end and cut into lanes; the next stretches
  of all lanes are permuted together. At any time an epoch reads in as many places as it has lanes, so a store larger
  than memory is read page after page. It is the order of rows in a stream with one group, see `stream.order`.
- "none": as they are numbered.

An order depends on the windows, seed and epoch, and of "nearby" on its lanes and stretches: not on ranks or batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.contexts.draws import permuted
from headrace.digest import derive_key, hash_texts, permutation
from headrace.stream.order.epoch import EpochOrder, epoch_order

Shuffle = Literal["everywhere", "nearby", "none"]
SHUFFLES: tuple[Shuffle, ...] = get_args(Shuffle)

_KEPT = 1 << 22  # windows whose permutation is kept, 32 MiB; larger ones are computed again for each position
_GROUP_ROWS = 1 << 16
_NAMES = derive_key(0, "entity identity")


class WindowOrder(Protocol):
    """One epoch's order."""

    def numbers(self, positions: I64) -> I64:
        """The window at each position; int64, same length."""


@dataclass(frozen=True)
class InOrder:
    """As windows are numbered."""

    def numbers(self, positions: I64) -> I64:
        """The positions themselves."""
        return positions


class Everywhere:
    """One permutation of `count` windows under a key."""

    def __init__(self, key: tuple[int, int], count: int) -> None:
        self._key, self._count = key, count
        self._permutation = permutation(key, count) if count <= _KEPT else None

    def numbers(self, positions: I64) -> I64:
        """Where the permutation puts each position."""
        if self._permutation is not None:
            return self._permutation[positions]
        key = np.uint64((self._key[0] ^ (self._key[1] * 0x9E3779B97F4A7C15)) & 0xFFFFFFFFFFFFFFFF)
        return permuted(np.atleast_1d(key), np.array([self._count], np.int64), positions)


class Nearby:
    """Groups of entities permuted, windows permuted among their neighbours. first: number of each group's first."""

    def __init__(self, first: I64, order: EpochOrder) -> None:
        self._first, self._order = first, order

    def numbers(self, positions: I64) -> I64:
        """The window at each position."""
        group, inside = self._order.locate(self._order.line_of(positions))
        return self._first[group] + inside


def nearby(names: pa.Array, rows: I64, windows: I64, *, seed: int, epoch: int, lanes: int, stretch: int) -> Nearby:
    """The "nearby" order over entities as they lie: their names, rows and numbers of windows [E].

    Neighbours share a group until it has some 65,536 rows. stretch: windows that a round takes of each lane.
    """
    group = np.concatenate([[0], np.cumsum(rows)[:-1] // _GROUP_ROWS]) if len(rows) else np.empty(0, np.int64)
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    high, low = hash_texts(_NAMES, names.take(pa.array(begins)))
    identities = np.column_stack([high, low, np.zeros(len(high), np.uint64)])
    counts = np.add.reduceat(windows, begins) if len(begins) else np.empty(0, np.int64)
    order = epoch_order(
        counts, identities, seed=seed, epoch=epoch, lanes=lanes, window_rows=stretch, groups=1, shuffle=True
    )
    return Nearby(np.cumsum(counts) - counts, order)


def everywhere(count: int, *, seed: int, epoch: int) -> Everywhere:
    """The "everywhere" order of so many windows."""
    return Everywhere(derive_key(seed, "windows", epoch), count)
