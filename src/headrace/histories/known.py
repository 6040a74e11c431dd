"""Texts of addresses that were read before: a memo that all tasks of a run share, because entities and peers repeat.

A text is found by a 64-bit hash and must then be the same text, so what is given is what parsing gives. Hashes are
sorted, so looking up costs a binary search: a quarter of parsing. At most 262,144 texts are kept, about 20 MB, those
that came first; with more of them, the rest is parsed each time.

Compiled kernels parse faster than a memo finds, so with them nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, U64
from headrace.histories.codec.addresses import Addresses, Kind, parse

MOST = 1 << 18
_WORTH = 32


@dataclass(frozen=True)
class _Kept:
    """Texts and what they are, [K], and their hashes, ascending; number int64 [K]: of which text each hash is."""

    texts: pa.LargeStringArray
    read: Addresses
    hashes: U64
    number: I64

    def find(self, texts: pa.LargeStringArray, hashes: U64) -> I64:
        """The number of each text, −1 where it is not kept: int64 [N]."""
        found = np.full(len(texts), -1)
        if not len(self.hashes):
            return found
        order = np.argsort(hashes)  # searching in order is five times as fast, as each step is near the one before
        ascending = hashes[order]
        at = np.minimum(np.searchsorted(self.hashes, ascending), len(self.hashes) - 1)
        hit = self.hashes[at] == ascending
        rows, number = order[hit], self.number[at[hit]]
        same = pc.equal(self.texts.take(pa.array(number)), texts.take(pa.array(rows)))
        same = np.asarray(same.to_numpy(zero_copy_only=False), np.bool_)
        found[rows[same]] = number[same]
        return found


class KnownAddresses:
    """Reads texts as `addresses.parse` does, those it knows without parsing; may be called from any thread.

    compiled: addresses by numba instead.
    """

    def __init__(self, kind: Kind, most: int = MOST, *, compiled: bool = False) -> None:
        self.kind, self._most = kind, most
        self.compiled = compiled and kind == "address"
        self._lock = Lock()
        self._kept = _Kept(
            pa.array([], pa.large_string()),
            Addresses(np.zeros(0, np.uint8), np.zeros((0, 16), np.uint8)),
            np.zeros(0, np.uint64),
            np.zeros(0, np.int64),
        )

    def __reduce__(self) -> tuple[Callable[..., KnownAddresses], tuple[()]]:
        # Another process remembers its own: hashes are of a process.
        return partial(KnownAddresses, self.kind, self._most, compiled=self.compiled), ()

    def read(self, texts: pa.Array) -> Addresses:
        """What each text is; without nulls, best each once, of any Arrow string type: [N]."""
        texts = texts.cast(pa.large_string())
        if self.compiled:
            from headrace.histories.codec.parse_kernels import parse_texts

            return Addresses(*parse_texts(texts))
        import polars as pl

        kept = self._kept
        hashes = pl.Series(texts).hash().to_numpy()
        number = kept.find(texts, hashes)
        new = np.flatnonzero(number < 0)
        if not len(new):
            return kept.read.take(number)
        unread = texts.take(pa.array(new))
        parsed = parse(unread, self.kind)
        if len(new) >= len(texts) // _WORTH:  # few are not worth the merge
            self._keep(kept, unread, parsed, hashes[new])
        if len(new) == len(texts):
            return parsed
        family, data = np.empty(len(texts), np.uint8), np.empty((len(texts), 16), np.uint8)
        family[new], data[new] = parsed.family, parsed.bytes
        old = np.flatnonzero(number >= 0)
        family[old], data[old] = kept.read.family[number[old]], kept.read.bytes[number[old]]
        return Addresses(family, data)

    def _keep(self, kept: _Kept, texts: pa.LargeStringArray, parsed: Addresses, hashes: U64) -> None:
        """Remember texts that are not in `kept`; nothing, if another task was quicker."""
        room = self._most - len(kept.hashes)
        if room <= 0:
            return
        order = np.argsort(hashes[:room])
        at = np.searchsorted(kept.hashes, hashes[order])
        merged = _Kept(
            pa.concat_arrays([kept.texts, texts.slice(0, room)]),
            Addresses(
                np.concatenate([kept.read.family, parsed.family[:room]]),
                np.concatenate([kept.read.bytes, parsed.bytes[:room]]),
            ),
            np.insert(kept.hashes, at, hashes[order]),
            np.insert(kept.number, at, len(kept.hashes) + order),
        )
        with self._lock:
            if self._kept is kept:
                self._kept = merged
