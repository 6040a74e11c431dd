"""Compare documents by their shingles: hash shingles, sign documents, propose pairs, compute their
similarity.

**Shingles** are consecutive words of a text, as `headrace.near.words` cuts it, or consecutive
tokens. So case, punctuation and blanks do not count. A document with fewer words than a shingle is
one shingle; one without words has none. Hashes have 64 bits and depend only on the words, not on
the machine or on versions of libraries.

**Signatures.** For a random order of all shingles, the first shingles of two sets are the same with
probability J, the Jaccard index of the sets (Broder, On the resemblance and containment of
documents, 1997). `HASHES` orders are divided into bands of r rows; two documents are candidates if
all rows of one of b bands agree, which happens with probability

    recall(J) = 1 − (1 − J^r)^b

(the S-curve of locality-sensitive hashing: Leskovec, Rajaraman, Ullman, Mining of Massive Datasets,
section 3.4). For a threshold, the bands with the most rows are chosen, hence the fewest false
candidates, whose recall at the threshold is `LEAST_RECALL` or more. At 0.8: 20 bands of 6 rows,
recall 0.9977; at 0.3 a pair is a candidate with probability 0.015.

An order sorts by shingle × odd number modulo 2^64. A band is kept as 32 bits. In one band of 10^7
documents, one document in 400 shares its number with another by accident, which only costs a
comparison. State is 4 bytes per band, at most 160, and an 8-byte digest per document. Signing takes
about 0.4 nanoseconds per shingle and order.

**Pairs.** Documents with the same digest are copies. One of them represents all, so ten thousand
equal texts give ten thousand pairs. A bucket holds the documents with the same number in one band.
Starting with the smallest bucket, all pairs of a bucket are proposed until there are `PAIRS` per
document. In the remaining buckets (texts of one template), documents are ordered by their next
band, and each is paired with the `NEXT` documents after it and with `LEADERS` evenly spaced
documents. So the work grows with the number of documents, and a pair may be missed: `Crowds` counts
the missed pairs of documents that no chain of near documents connects. A pair of documents a < b is
one word, a · 2^32 + b.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.arrays import F64, I64, U32, U64, Ints, offsets_from_lengths
from headrace.digest import derive_key
from headrace.draws import GAMMA, mix
from headrace.keyed_hash import hash_texts
from headrace.near.words import words_of

# in a shingle; a word of most languages is between one and two tokens
WORDS = 3
TOKENS = 5
HASHES = 120
MOST_BANDS = 40
LEAST_RECALL = 0.995
# pairs of a band: per document, and at least in total
PAIRS = 2
LEAST_PAIRS = 1 << 16
NEXT = 2
LEADERS = 2
MOST_DOCUMENTS = 1 << 32

_KEY = derive_key(0, "near words")
_ORDERS = np.array(
    [derive_key(0, "near order", number)[0] | 1 for number in range(HASHES)], np.uint64
)
_CHUNK = 1 << 15  # shingles; twice as many words stay in the processor's cache
_HALF = np.uint64(32)


@dataclass(frozen=True)
class Shingles:
    """The hashed shingles of documents, end to end; a document may hold a shingle twice.

    hashes: uint64. offsets: int64 [documents + 1], where each document start_offsets.
    """

    hashes: U64
    offsets: I64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lists(self) -> pa.LargeListArray:
        """Return a view of them as one list per document."""
        return pa.LargeListArray.from_arrays(pa.array(self.offsets), pa.array(self.hashes))


def shingles_of_texts(texts: pl.Series, document: I64, documents: int) -> Shingles:
    """Hash the shingles of documents. A document is its texts end to end, in their order.

    document: the number of each text's document, below `documents`; int64 [texts].
    """
    if len(document) and np.any(np.diff(document) < 0):
        order = np.argsort(document, kind="stable")
        texts = texts.gather(order)
        document = document[order]
    words, counts = words_of(texts)
    # texts repeat words, so hash distinct words only
    distinct = words.to_arrow().dictionary_encode()
    hashes = hash_texts(_KEY, distinct.dictionary)[0][distinct.indices.to_numpy()]
    return _in_a_row(hashes, np.bincount(document, counts, documents).astype(np.int64), WORDS)


def shingles_of_tokens(tokens: Ints, lengths: I64) -> Shingles:
    """Hash the shingles of sequences.

    tokens: ids, flat; lengths: length of each sequence, int64.
    """
    return _in_a_row(mix(tokens.astype(np.uint64) + np.uint64(GAMMA)), lengths, TOKENS)


def hash_runs(words: U64, size: int) -> U64:
    """Hash every `size` consecutive words; each of them affects the hash.

    uint64 [max(0, words - size + 1)].
    """
    hashes = np.zeros(max(0, len(words) - size + 1), np.uint64)
    for turn in range(size):
        hashes = hashes * np.uint64(GAMMA) + words[turn : turn + len(hashes)]
    return hashes


def take_sequences(tokens: Ints, lengths: I64, selected: I64 | None) -> tuple[Ints, I64]:
    """Return the wanted ones of the sequences that lie end to end in `tokens`, copied, and their
    lengths.

    selected: numbers of sequences; None: all, not copied.
    """
    if selected is None:
        return tokens, lengths
    ends = pa.array(offsets_from_lengths(lengths))
    sequences = pa.LargeListArray.from_arrays(ends, pa.array(tokens)).take(pa.array(selected))
    return sequences.flatten().to_numpy(), lengths[selected]


def _in_a_row(words: U64, counts: I64, size: int) -> Shingles:
    """Hash every `size` consecutive words; of a document with fewer words, all of them.

    counts: number of words of each document.
    """
    ends = np.cumsum(counts)
    starts = ends - counts
    first = np.ones(len(words), np.bool_)  # marks the first word of each shingle
    for back in range(1, size):
        first[ends[counts > back] - back] = False
    runs = hash_runs(words, size)
    hashes = np.zeros(len(words), np.uint64)
    hashes[: len(runs)] = runs
    for count in range(1, size):
        at = starts[counts == count]
        hashes[at] = count
        for turn in range(count):
            hashes[at] = hashes[at] * np.uint64(GAMMA) + words[at + turn]
    run_counts = np.where(counts > 0, np.maximum(counts - size + 1, 1), 0)
    return Shingles(mix(hashes[first]), offsets_from_lengths(run_counts))


# --- signatures


@dataclass(frozen=True)
class Bands:
    """The number of bands in a signature, and of orders (`rows`) in each band."""

    bands: int
    rows: int

    @classmethod
    def of(cls, near: float) -> Bands:
        """Choose the bands of a threshold in 0.5..1."""
        choices = [cls(min(MOST_BANDS, HASHES // rows), rows) for rows in range(1, HASHES + 1)]
        return max(
            (bands for bands in choices if bands.recall(near) >= LEAST_RECALL),
            key=lambda bands: bands.rows,
        )

    def recall(self, jaccard: float) -> float:
        """Return the probability that a pair with this Jaccard index is a candidate."""
        return 1 - (1 - jaccard**self.rows) ** self.bands


@dataclass(frozen=True)
class Signatures:
    """The signatures of documents [N].

    digest: uint64 [N], equal for equal shingles in any order; 0 for documents without any.
    bands: uint32 [bands, N].
    """

    digest: U64
    bands: U32


def sign(shingles: Shingles, bands: Bands) -> Signatures:
    """Compute the signatures of documents."""
    counts = np.diff(shingles.offsets)
    digest = np.zeros(len(shingles), np.uint64)
    numbers = np.zeros((bands.bands, len(shingles)), np.uint32)
    documents = np.flatnonzero(counts > 0)
    start_offsets = shingles.offsets[:-1][documents]
    ends = shingles.offsets[1:][documents]
    at = 0
    while at < len(documents):
        stop = max(at + 1, int(np.searchsorted(ends, start_offsets[at] + _CHUNK, "right")))
        hashes = shingles.hashes[start_offsets[at] : ends[stop - 1]]
        starts = start_offsets[at:stop] - start_offsets[at]
        ordered = np.empty_like(hashes)
        digest[documents[at:stop]] = np.maximum(np.add.reduceat(mix(hashes), starts), np.uint64(1))
        for band in range(bands.bands):
            word = np.zeros(stop - at, np.uint64)
            for order in _ORDERS[band * bands.rows : (band + 1) * bands.rows]:
                np.multiply(hashes, order, out=ordered)
                word = (word ^ np.minimum.reduceat(ordered, starts)) * np.uint64(GAMMA)
                word ^= word >> np.uint64(32)
            numbers[band, documents[at:stop]] = (word >> np.uint64(32)).astype(np.uint32)
        at = stop
    return Signatures(digest, numbers)


# --- pairs


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
        return cls(
            np.concatenate([empty, *buckets]),
            np.concatenate([empty, *(part.document for part in parts)]),
        )

    def pairs_across(self, group: I64) -> int:
        """Count the pairs within these buckets that are in different groups.

        This is an upper bound for the pairs that were not compared.
        """
        sizes = np.unique(self.bucket, return_counts=True)[1]
        joined = np.unique(
            np.stack([self.bucket, group[self.document]]), axis=1, return_counts=True
        )[1]
        return int((sizes * (sizes - 1) // 2).sum() - (joined * (joined - 1) // 2).sum())


def pair_words(first: I64, second: I64) -> U64:
    """Pack pairs into words, the lower document first."""
    low = np.minimum(first, second).astype(np.uint64)
    high = np.maximum(first, second).astype(np.uint64)
    return low << _HALF | high


def documents_of(pairs: U64) -> tuple[I64, I64]:
    """Unpack pairs from words."""
    return (pairs >> _HALF).astype(np.int64), (pairs & np.uint64(MOST_DOCUMENTS - 1)).astype(
        np.int64
    )


def distinct(words: U64) -> U64:
    """Sort words and remove repeated ones; seventy times faster than `numpy.unique`, which hashes
    them first.
    """
    ordered = np.sort(words)
    is_new = np.append(True, ordered[1:] != ordered[:-1])
    distinct_words: U64 = ordered[is_new[: len(ordered)]]
    return distinct_words


def first_copies(digest: U64) -> I64:
    """Return the first document with the same digest, for each document; -1 without shingles.

    int64 [N].
    """
    _, first, which = np.unique(digest, return_index=True, return_inverse=True)
    return np.where(digest > 0, first[which], -1)


def propose(documents: I64, band: U32, next_band: U32) -> tuple[U64, Crowds]:  # noqa: PLR0914 - one array step after another
    """Propose pairs of one band.

    documents: int64 [N], ascending. band, next_band: the documents' numbers in these bands, uint32
    [N].
    """
    words = band.astype(np.uint64) << _HALF | np.arange(len(band), dtype=np.uint64)
    words.sort()
    new = np.ones(len(words) + 1, np.bool_)  # one extra for the end
    new[1:-1] = (words[1:] >> _HALF) != (words[:-1] >> _HALF)
    sizes = np.diff(np.flatnonzero(new))
    at = (words[np.repeat(sizes > 1, sizes)] & np.uint64(MOST_DOCUMENTS - 1)).astype(np.int64)
    sizes = sizes[sizes > 1]  # drops documents that share their number with no other
    by_size = np.argsort(sizes, kind="stable")
    allowed = np.cumsum(sizes[by_size] * (sizes[by_size] - 1) // 2) <= max(
        LEAST_PAIRS, PAIRS * len(band)
    )
    large = np.sort(by_size[~allowed])
    bucket = np.repeat(np.arange(len(sizes)), sizes)
    crowded = np.isin(bucket, large)
    crowds = Crowds(np.searchsorted(large, bucket[crowded]), documents[at[crowded]])
    if len(large):  # the order within small buckets does not matter
        at = at[np.lexsort((at, np.where(crowded, next_band[at], 0), bucket))]

    proposals = []
    starts = (np.cumsum(sizes) - sizes)[large]
    for turn in range(LEADERS):
        leader = np.repeat(at[starts + turn * sizes[large] // LEADERS], sizes[large])
        proposals.append((leader, at[crowded]))
    left = np.arange(len(at)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    left = np.repeat(sizes, sizes) - left - 1  # documents after each in its bucket
    left[crowded] = np.minimum(left[crowded], NEXT)
    position = np.arange(len(at))
    distance = 1
    while len(position := position[left[position] >= distance]):
        proposals.append((at[position], at[position + distance]))
        distance += 1
    none = np.empty(0, np.int64)
    first = np.concatenate([none, *(pair[0] for pair in proposals)])
    second = np.concatenate([none, *(pair[1] for pair in proposals)])
    other = first != second
    return distinct(pair_words(documents[first[other]], documents[second[other]])), crowds


def jaccard(shingles: pl.Series, first: I64, second: I64) -> F64:
    """Compute the Jaccard index of pairs of documents: shared shingles ÷ all; 0 if neither has any.

    shingles: a list for each document; first, second: numbers of documents, int64 [pairs].
    """
    sets = shingles.list.unique()
    counts = sets.list.len().to_numpy().astype(np.int64)
    pairs = pl.DataFrame({"a": sets.gather(first), "b": sets.gather(second)})
    shared = (
        pairs.select(pl.col("a").list.set_intersection("b").list.len())
        .to_series()
        .to_numpy()
        .astype(np.int64)
    )
    return np.asarray(shared / np.maximum(counts[first] + counts[second] - shared, 1), np.float64)
