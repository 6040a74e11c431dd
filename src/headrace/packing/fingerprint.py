"""A 64-bit fingerprint of each sequence, so that the set of sequences put in is compared with the set got out. Pure.

Every (position, token, is a label) of a sequence is mixed on its own and the mixed words are added modulo 2^64; a set
of sequences has the sum of their fingerprints. Sums do not depend on order, so an input of any size is compared with
its output in one pass over each: a sequence that is missing, doubled, cut, moved by a token or joined with another
changes the sum but for one chance in 2^64. This finds mistakes, not forgers. About ten vector operations a token.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64, U64

_CHUNK = 1 << 20


def sequence_prints(
    ids: npt.NDArray[np.int32], labels: npt.NDArray[np.uint8] | None, lengths: I64, blank: int | None = None
) -> U64:
    """Fingerprints of the sequences [N] that lie end to end in `ids`; all lengths are 1 or more.

    labels: 1 where the NEXT token of the sequence is a label, flat; None: the prints are of the tokens alone.
    blank: a token that leaves no trace, so that padded and unpadded sequences have one print.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    prints = np.empty(len(lengths), np.uint64)
    begin = 0
    while begin < len(lengths):
        stop = max(begin + 1, int(np.searchsorted(ends, starts[begin] + _CHUNK, "right")))
        low, high = int(starts[begin]), int(ends[stop - 1])
        place = np.arange(low, high, dtype=np.uint64) - np.repeat(starts[begin:stop], lengths[begin:stop]).astype(
            np.uint64
        )
        words = ids[low:high].astype(np.uint64) << np.uint64(32) | place << np.uint64(1)
        if labels is not None:
            words |= labels[low:high]
        mixed = _mix(words)
        if blank is not None:
            mixed[ids[low:high] == blank] = 0
        prints[begin:stop] = np.add.reduceat(mixed, starts[begin:stop] - low)
        begin = stop
    return prints


def set_print(prints: U64) -> str:
    """The fingerprint of a set of sequences: count and sum, as text."""
    return f"{len(prints)}:{int(prints.sum(dtype=np.uint64)):016x}"


def _mix(words: U64) -> U64:
    """A bijection of 64-bit words that spreads every bit over all others (the finaliser of SplitMix64)."""
    words = (words + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
