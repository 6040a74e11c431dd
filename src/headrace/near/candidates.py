"""Propose pairs of documents that share a band, a bounded number per document, and compute their Jaccard index.

Documents with the same digest are copies. One of them represents all, so ten thousand equal texts give ten thousand
pairs. A bucket holds the documents with the same number in one band. Starting with the smallest bucket, all pairs of a
bucket are proposed until there are `PAIRS` per document. In the remaining buckets (texts of one template), documents
are ordered by their next band, and each is paired with the `NEXT` documents after it and with `LEADERS` evenly spaced
documents. So the work grows with the number of documents, and a pair may be missed: `Crowds` counts the missed pairs of
documents that no chain of near documents connects.

A pair of documents a < b is one word, a · 2^32 + b.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from headrace.arrays import F64, I64, U32, U64

PAIRS, LEAST_PAIRS = 2, 1 << 16  # pairs of a band: per document, and at least in total
NEXT, LEADERS = 2, 2
MOST_DOCUMENTS = 1 << 32
_HALF = np.uint64(32)


@dataclass(frozen=True)
class Crowds:
    """Documents in buckets that are too large to propose all their pairs.

    bucket, document: int64 [M], sorted by bucket.
    """

    bucket: I64
    document: I64

    @classmethod
    def joined(cls, parts: Sequence[Crowds]) -> Crowds:
        """Join the crowds of several bands, numbering their buckets consecutively."""
        firsts = np.cumsum([0, *(int(part.bucket.max(initial=-1)) + 1 for part in parts)])
        buckets = [part.bucket + first for part, first in zip(parts, firsts.tolist(), strict=False)]
        empty = np.empty(0, np.int64)
        return cls(np.concatenate([empty, *buckets]), np.concatenate([empty, *(part.document for part in parts)]))

    def apart(self, group: I64) -> int:
        """Count the pairs within these buckets that are in different groups.

        This is an upper bound for the pairs that were not compared.
        """
        sizes = np.unique(self.bucket, return_counts=True)[1]
        joined = np.unique(np.stack([self.bucket, group[self.document]]), axis=1, return_counts=True)[1]
        return int((sizes * (sizes - 1) // 2).sum() - (joined * (joined - 1) // 2).sum())


def pair_words(first: I64, second: I64) -> U64:
    """Pack pairs into words, the lower document first."""
    low, high = np.minimum(first, second).astype(np.uint64), np.maximum(first, second).astype(np.uint64)
    return low << _HALF | high


def documents_of(pairs: U64) -> tuple[I64, I64]:
    """Unpack pairs from words."""
    return (pairs >> _HALF).astype(np.int64), (pairs & np.uint64(MOST_DOCUMENTS - 1)).astype(np.int64)


def distinct(words: U64) -> U64:
    """Sort words and remove repeated ones; seventy times faster than `numpy.unique`, which hashes them first."""
    ordered = np.sort(words)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(words) else ordered


def first_copies(digest: U64) -> I64:
    """Return the first document with the same digest, for each document; -1 without shingles. int64 [N]."""
    _, first, which = np.unique(digest, return_index=True, return_inverse=True)
    return np.where(digest > 0, first[which], -1)


def propose(documents: I64, band: U32, next_band: U32) -> tuple[U64, Crowds]:
    """Propose pairs of one band.

    documents: int64 [N], ascending. band, next_band: the documents' numbers in these bands, uint32 [N].
    """
    words = band.astype(np.uint64) << _HALF | np.arange(len(band), dtype=np.uint64)
    words.sort()
    new = np.ones(len(words) + 1, np.bool_)  # one extra for the end
    new[1:-1] = (words[1:] >> _HALF) != (words[:-1] >> _HALF)
    sizes = np.diff(np.flatnonzero(new))
    at = (words[np.repeat(sizes > 1, sizes)] & np.uint64(MOST_DOCUMENTS - 1)).astype(np.int64)
    sizes = sizes[sizes > 1]  # drops documents that share their number with no other
    by_size = np.argsort(sizes, kind="stable")
    allowed = np.cumsum(sizes[by_size] * (sizes[by_size] - 1) // 2) <= max(LEAST_PAIRS, PAIRS * len(band))
    large = np.sort(by_size[~allowed])
    bucket = np.repeat(np.arange(len(sizes)), sizes)
    crowded = np.isin(bucket, large)
    crowds = Crowds(np.searchsorted(large, bucket[crowded]), documents[at[crowded]])
    if len(large):  # the order within small buckets does not matter
        at = at[np.lexsort((at, np.where(crowded, next_band[at], 0), bucket))]

    found = []
    starts = (np.cumsum(sizes) - sizes)[large]
    for turn in range(LEADERS):
        leader = np.repeat(at[starts + turn * sizes[large] // LEADERS], sizes[large])
        found.append((leader, at[crowded]))
    left = np.arange(len(at)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    left = np.repeat(sizes, sizes) - left - 1  # documents after each in its bucket
    left[crowded] = np.minimum(left[crowded], NEXT)
    place, distance = np.arange(len(at)), 1
    while len(place := place[left[place] >= distance]):
        found.append((at[place], at[place + distance]))
        distance += 1
    first, second = (np.concatenate([np.empty(0, np.int64), *(pair[half] for pair in found)]) for half in (0, 1))
    other = first != second
    return distinct(pair_words(documents[first[other]], documents[second[other]])), crowds


def jaccard(shingles: pl.Series, first: I64, second: I64) -> F64:
    """Compute the Jaccard index of pairs of documents: shared shingles ÷ all; 0 if neither has any.

    shingles: a list for each document; first, second: numbers of documents, int64 [pairs].
    """
    sets = shingles.list.unique()
    counts = sets.list.len().to_numpy().astype(np.int64)
    pairs = pl.DataFrame({"a": sets.gather(first), "b": sets.gather(second)})
    shared = pairs.select(pl.col("a").list.set_intersection("b").list.len()).to_series().to_numpy().astype(np.int64)
    return np.asarray(shared / np.maximum(counts[first] + counts[second] - shared, 1), np.float64)
