"""Make MinHash signatures: near documents share at least one of a few numbers with a known probability.

For a random order of all shingles, the first shingles of two sets are the same with probability J, the Jaccard index of
the sets (Broder, On the resemblance and containment of documents, 1997). `HASHES` orders are divided into bands of r
rows; two documents are candidates if all rows of one of b bands agree, which happens with probability

    recall(J) = 1 − (1 − J^r)^b

(the S-curve of locality-sensitive hashing: Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, section 3.4). For a
threshold, the bands with the most rows are chosen, hence the fewest false candidates, whose recall at the threshold is
`LEAST_RECALL` or more. At 0.8: 20 bands of 6 rows, recall 0.9977; at 0.3 a pair is a candidate with probability 0.015.

An order sorts by shingle × odd number modulo 2^64. A band is kept as 32 bits. In one band of 10^7 documents, one
document in 400 shares its number with another by accident, which only costs a comparison. State is 4 bytes per band, at
most 160, and an 8-byte digest per document. Signing takes about 0.4 nanoseconds per shingle and order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.arrays import U32, U64
from headrace.digest import derive_key
from headrace.draws import GAMMA, mix
from headrace.near.shingles import Shingles

HASHES, MOST_BANDS = 120, 40
LEAST_RECALL = 0.995

_ORDERS = np.array([derive_key(0, "near order", number)[0] | 1 for number in range(HASHES)], np.uint64)
_CHUNK = 1 << 15  # shingles; twice as many words stay in the processor's cache


@dataclass(frozen=True)
class Bands:
    """The number of bands in a signature, and of orders (`rows`) in each band."""

    bands: int
    rows: int

    @classmethod
    def of(cls, near: float) -> Bands:
        """Choose the bands of a threshold in 0.5..1."""
        choices = [cls(min(MOST_BANDS, HASHES // rows), rows) for rows in range(1, HASHES + 1)]
        return max((each for each in choices if each.recall(near) >= LEAST_RECALL), key=lambda each: each.rows)

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
    digest, made = np.zeros(len(shingles), np.uint64), np.zeros((bands.bands, len(shingles)), np.uint32)
    held = np.flatnonzero(counts > 0)
    begins, ends = shingles.offsets[:-1][held], shingles.offsets[1:][held]
    at = 0
    while at < len(held):
        stop = max(at + 1, int(np.searchsorted(ends, begins[at] + _CHUNK, "right")))
        hashes, starts = shingles.hashes[begins[at] : ends[stop - 1]], begins[at:stop] - begins[at]
        ordered = np.empty_like(hashes)
        digest[held[at:stop]] = np.maximum(np.add.reduceat(mix(hashes), starts), np.uint64(1))
        for band in range(bands.bands):
            word = np.zeros(stop - at, np.uint64)
            for order in _ORDERS[band * bands.rows : (band + 1) * bands.rows]:
                np.multiply(hashes, order, out=ordered)
                word = (word ^ np.minimum.reduceat(ordered, starts)) * np.uint64(GAMMA)
                word ^= word >> np.uint64(32)
            made[band, held[at:stop]] = (word >> np.uint64(32)).astype(np.uint32)
        at = stop
    return Signatures(digest, made)
