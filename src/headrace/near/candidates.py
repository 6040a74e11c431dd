"""Propose pairs of documents that may be near: those that share a band, a bounded number a document.

Documents of the same digest are copies; one of them stands for all, so ten thousand equal texts are ten thousand pairs.
A bucket holds the documents of one number in one band. From the smallest bucket on, all pairs of a bucket are proposed
until there are `PAIRS` for each document. The documents of the others (texts of one template) are ordered by their next
band, and each is paired with the `NEXT` behind it and with `LEADERS` documents that are evenly apart. So the work grows
with the number of documents, and a pair may be passed over: `Crowds` counts those of documents that no chain of near
ones joins.

A pair of documents a < b is one word, a · 2^32 + b.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.arrays import I64, U32, U64

PAIRS, LEAST_PAIRS = 2, 1 << 16  # of a band: for each document, and in all
NEXT, LEADERS = 2, 2
MOST_DOCUMENTS = 1 << 32
_HALF = np.uint64(32)


@dataclass(frozen=True)
class Crowds:
    """Documents of buckets that are too large for all their pairs. bucket, document: int64 [M], by bucket."""

    bucket: I64
    document: I64

    @classmethod
    def joined(cls, parts: Sequence[Crowds]) -> Crowds:
        """Number the buckets of several bands through."""
        firsts = np.cumsum([0, *(int(part.bucket.max(initial=-1)) + 1 for part in parts)])
        buckets = [part.bucket + first for part, first in zip(parts, firsts.tolist(), strict=False)]
        empty = np.empty(0, np.int64)
        return cls(np.concatenate([empty, *buckets]), np.concatenate([empty, *(part.document for part in parts)]))

    def apart(self, group: I64) -> int:
        """Count the pairs of these buckets in different groups, an upper bound for the pairs that were not compared."""
        sizes = np.unique(self.bucket, return_counts=True)[1]
        joined = np.unique(np.stack([self.bucket, group[self.document]]), axis=1, return_counts=True)[1]
        return int((sizes * (sizes - 1) // 2).sum() - (joined * (joined - 1) // 2).sum())


def pair_words(first: I64, second: I64) -> U64:
    """Write pairs as words, the lower document first."""
    low, high = np.minimum(first, second).astype(np.uint64), np.maximum(first, second).astype(np.uint64)
    return low << _HALF | high


def documents_of(pairs: U64) -> tuple[I64, I64]:
    """Read pairs from words."""
    return (pairs >> _HALF).astype(np.int64), (pairs & np.uint64(MOST_DOCUMENTS - 1)).astype(np.int64)


def distinct(words: U64) -> U64:
    """Sort words and leave out repeated ones; seventy times faster than `numpy.unique`, which hashes them first."""
    ordered = np.sort(words)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(words) else ordered


def first_copies(digest: U64) -> I64:
    """Find the first document of the same digest, for each; -1 for documents without shingles. int64 [N]."""
    _, first, which = np.unique(digest, return_index=True, return_inverse=True)
    return np.where(digest > 0, first[which], -1)


def propose(documents: I64, band: U32, next_band: U32) -> tuple[U64, Crowds]:
    """Propose pairs of one band. documents: int64 [N], ascending; band, next_band: their numbers, uint32 [N]."""
    words = band.astype(np.uint64) << _HALF | np.arange(len(band), dtype=np.uint64)
    words.sort()
    new = np.ones(len(words) + 1, np.bool_)  # one more: the end
    new[1:-1] = (words[1:] >> _HALF) != (words[:-1] >> _HALF)
    sizes = np.diff(np.flatnonzero(new))
    at = (words[np.repeat(sizes > 1, sizes)] & np.uint64(MOST_DOCUMENTS - 1)).astype(np.int64)
    sizes = sizes[sizes > 1]  # from here on, only documents that share the number with another
    by_size = np.argsort(sizes, kind="stable")
    allowed = np.cumsum(sizes[by_size] * (sizes[by_size] - 1) // 2) <= max(LEAST_PAIRS, PAIRS * len(band))
    large = np.sort(by_size[~allowed])
    bucket = np.repeat(np.arange(len(sizes)), sizes)
    crowded = np.isin(bucket, large)
    crowds = Crowds(np.searchsorted(large, bucket[crowded]), documents[at[crowded]])
    if len(large):  # the order in small buckets is of no account
        at = at[np.lexsort((at, np.where(crowded, next_band[at], 0), bucket))]

    found = []
    starts = (np.cumsum(sizes) - sizes)[large]
    for turn in range(LEADERS):
        leader = np.repeat(at[starts + turn * sizes[large] // LEADERS], sizes[large])
        found.append((leader, at[crowded]))
    left = np.arange(len(at)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    left = np.repeat(sizes, sizes) - left - 1  # documents behind each in its bucket
    left[crowded] = np.minimum(left[crowded], NEXT)
    place, distance = np.arange(len(at)), 1
    while len(place := place[left[place] >= distance]):
        found.append((at[place], at[place + distance]))
        distance += 1
    first, second = (np.concatenate([np.empty(0, np.int64), *(pair[half] for pair in found)]) for half in (0, 1))
    other = first != second
    return distinct(pair_words(documents[first[other]], documents[second[other]])), crowds
