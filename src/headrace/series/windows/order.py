"""The order of an epoch's windows: positions 0..N-1 → window numbers. Pure.

- "everywhere": one permutation of all windows; 8 bytes a window, or nothing kept where there are very many.
- "nearby": groups of entities that lie together are permuted, laid end to end and cut into lanes; the next stretches
  of all lanes are permuted together. At any time an epoch reads in as many places as it has lanes, so a store larger
  than memory is read page after page. It is the order of rows in a stream with one group, see `stream.order`.
- "none": as they are numbered.

An order depends on the windows, seed and epoch, and of "nearby" on its lanes and stretches: not on ranks or batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from headrace.arrays import I64
from headrace.digest import derive_key, hash_texts, permutation
from headrace.draws import permuted
from headrace.stream.order.epoch import epoch_order

Shuffle = Literal["everywhere", "nearby", "none"]
WindowOrder: TypeAlias = Callable[[I64], I64]  # positions of an epoch → windows at them; int64, same length
SHUFFLES: tuple[Shuffle, ...] = get_args(Shuffle)

_KEPT = 1 << 22  # windows whose permutation is kept, 32 MiB; larger ones are computed again for each position
_GROUP_ROWS = 1 << 16
_NAMES = derive_key(0, "entity identity")


def everywhere(count: int, *, seed: int, epoch: int) -> WindowOrder:
    """One permutation of so many windows."""
    key = derive_key(seed, "windows", epoch)
    if count <= _KEPT:
        kept = permutation(key, count)
        return lambda positions: kept[positions]
    word = np.array([(key[0] ^ (key[1] * 0x9E3779B97F4A7C15)) & 0xFFFFFFFFFFFFFFFF], np.uint64)
    return lambda positions: permuted(word, np.array([count], np.int64), positions)


def nearby(names: pa.Array, rows: I64, windows: I64, *, seed: int, epoch: int, lanes: int, stretch: int) -> WindowOrder:
    """Groups of entities permuted, and windows among their neighbours; of entities as they lie, [E] each.

    Neighbours share a group until it has some 65,536 rows. stretch: windows that a round takes of each lane.
    """
    group = np.concatenate([[0], np.cumsum(rows)[:-1] // _GROUP_ROWS]) if len(rows) else np.empty(0, np.int64)
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    high, low = hash_texts(_NAMES, names.take(pa.array(begins)))
    identities = np.column_stack([high, low, np.zeros(len(high), np.uint64)])
    counts = np.add.reduceat(windows, begins) if len(begins) else np.empty(0, np.int64)
    first = np.cumsum(counts) - counts
    order = epoch_order(
        counts, identities, seed=seed, epoch=epoch, lanes=lanes, window_rows=stretch, groups=1, shuffle=True
    )

    def numbers(positions: I64) -> I64:
        place, inside = order.locate(order.line_of(positions))
        found: I64 = first[place] + inside
        return found

    return numbers
