"""Sequences that fit no bin: cut, left out or cut into pieces, every token and every label accounted for. Pure.

A label is a trained token that has a token before it in its sequence: the first token of a sequence is never one.
What a policy loses is counted in tokens and in labels; nothing else is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64

Policy = Literal["truncate", "drop", "split"]


@dataclass(frozen=True)
class Pieces:
    """The ranges of a flat token array that are kept, as sequences: parallel int64 [M].

    sequence: which input sequence a piece is of. `lost_tokens` + the pieces' tokens = the input's tokens.
    """

    sequence: I64
    starts: I64
    lengths: I64
    labels: I64
    truncated: int
    dropped: int
    divided: int
    lost_tokens: int
    lost_labels: int


def label_counts(mask: npt.NDArray[np.uint8], starts: I64, lengths: I64) -> I64:
    """Labels of each range of a flat 0/1 mask: its trained tokens but for the first token. int64 [M]."""
    if not len(starts):
        return np.empty(0, np.int64)
    sums = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
    return np.asarray(sums[starts + lengths] - sums[np.minimum(starts + 1, starts + lengths)], np.int64)


def fit(mask: npt.NDArray[np.uint8], lengths: I64, longest: int, policy: Policy) -> Pieces:
    """The pieces that fit `longest` tokens each. mask: uint8, flat; lengths int64 [N]: of the sequences in it.

    truncate: the first `longest` tokens; where no label is left of a sequence that had some, it is dropped: what is
    left would train nothing. drop: nothing of it. split: pieces of `longest` tokens; a last piece of one token has no
    label and is left out.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    before = label_counts(mask, starts, lengths)
    over = lengths > longest
    sequence, kept_starts, kept = np.arange(len(lengths)), starts, lengths
    divided = truncated = dropped = 0
    if policy == "split":
        counts = np.where(over, -(-lengths // longest), 1)
        sequence = np.repeat(sequence, counts)
        place = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
        kept_starts = starts[sequence] + place * longest
        kept = np.minimum(longest, ends[sequence] - kept_starts)
        whole = (kept > 1) | ~over[sequence]
        sequence, kept_starts, kept = sequence[whole], kept_starts[whole], kept[whole]
        divided = int(over.sum())
    elif policy == "truncate":
        kept = np.minimum(lengths, longest)
        useless = over & (before > 0) & (label_counts(mask, starts, kept) == 0)
        dropped, truncated = int(useless.sum()), int(over.sum() - useless.sum())
        sequence, kept_starts, kept = sequence[~useless], starts[~useless], kept[~useless]
    else:
        dropped = int(over.sum())
        sequence, kept_starts, kept = sequence[~over], starts[~over], lengths[~over]
    labels = label_counts(mask, kept_starts, kept)
    return Pieces(
        sequence=sequence,
        starts=kept_starts,
        lengths=kept,
        labels=labels,
        truncated=truncated,
        dropped=dropped,
        divided=divided,
        lost_tokens=int(lengths.sum() - kept.sum()),
        lost_labels=int(before.sum() - labels.sum()),
    )
