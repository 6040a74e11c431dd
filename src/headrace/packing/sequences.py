"""Make tokenised sequences fit a bin, fingerprint them, and record where they came from.

**Fitting.** A label is a trained token that has a token before it in its sequence, so the first
token of a sequence is never a label. The loss of a policy is counted in tokens and in labels;
nothing else is lost.

**Fingerprints** of 64 bits compare the sequences before packing with those after it. Every
(position, token, label?) of a sequence is mixed separately, and the mixed words are added modulo
2^64. A set of sequences has the sum of their fingerprints. Sums do not depend on order, so an input
of any size is compared with its output in one pass over each. A sequence that is missing, doubled,
cut, moved by a token or joined with another changes the sum, except with a chance of one in 2^64.
This finds mistakes, not forgeries. It takes about ten vector operations per token.

**Origins** lie in a file beside the spool, one row per sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from headrace.arrays import I32, I64, U8, U64, offsets_from_lengths
from headrace.draws import mix

if TYPE_CHECKING:
    pass

Policy = Literal["truncate", "drop", "split", "error"]

_CHUNK = 1 << 20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # so that the word 0 is mixed too


@dataclass(frozen=True)
class Pieces:
    """Ranges of a flat token array that are kept as sequences. Parallel int64 [M].

    sequence: index of the input sequence of each piece. `lost_tokens` + the pieces' tokens = the
    input's tokens.
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


def label_counts(mask: U8, starts: I64, lengths: I64) -> I64:
    """Count the labels of each range of a flat 0/1 mask. Returns int64 [M].

    Labels of a range are its trained tokens without its first token.
    """
    if not len(starts):
        return np.empty(0, np.int64)
    sums = offsets_from_lengths(mask)
    return np.asarray(
        sums[starts + lengths] - sums[np.minimum(starts + 1, starts + lengths)], np.int64
    )


def fit(mask: U8, lengths: I64, longest: int, policy: Policy) -> Pieces:
    """Cut sequences into pieces of at most `longest` tokens.

    mask: flat. lengths [N]: lengths of the sequences in it.

    truncate: keeps the first `longest` tokens. A sequence that had labels and keeps none is
    dropped, because it would train nothing. drop, error: drops the whole sequence.
    split: makes pieces of `longest` tokens. A last piece of one
    token has no label and is left out.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    before = label_counts(mask, starts, lengths)
    over = lengths > longest
    sequence = np.arange(len(lengths))
    divided = truncated = dropped = 0
    if policy == "split":
        counts = np.where(over, -(-lengths // longest), 1)
        sequence = np.repeat(sequence, counts)
        part = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = starts[sequence] + part * longest
        retained = np.minimum(longest, ends[sequence] - starts)
        usable = (retained > 1) | ~over[sequence]
        divided = int(over.sum())
    elif policy == "truncate":
        retained = np.minimum(lengths, longest)
        usable = ~(over & (before > 0) & (label_counts(mask, starts, retained) == 0))
        dropped = int((~usable).sum())
        truncated = int(over.sum()) - dropped
    else:
        retained = lengths
        usable = ~over
        dropped = int(over.sum())
    sequence = sequence[usable]
    starts = starts[usable]
    retained = retained[usable]
    labels = label_counts(mask, starts, retained)
    return Pieces(
        sequence=sequence,
        starts=starts,
        lengths=retained,
        labels=labels,
        truncated=truncated,
        dropped=dropped,
        divided=divided,
        lost_tokens=int(lengths.sum() - retained.sum()),
        lost_labels=int(before.sum() - labels.sum()),
    )


def sequence_prints(ids: I32, labels: U8 | None, lengths: I64, blank: int | None = None) -> U64:
    """Compute fingerprints of the sequences [N] that lie end to end in `ids`.

    All lengths are at least 1.

    labels: 1 if the NEXT token of the sequence is a label, flat; None: fingerprints cover the
    tokens alone. blank: a token that fingerprints ignore, so that padded and unpadded sequences
    have the same fingerprint.
    """
    ends = np.cumsum(lengths)
    starts = ends - lengths
    prints = np.empty(len(lengths), np.uint64)
    begin = 0
    while begin < len(lengths):
        stop = max(begin + 1, int(np.searchsorted(ends, starts[begin] + _CHUNK, "right")))
        low = int(starts[begin])
        high = int(ends[stop - 1])
        first = np.repeat(starts[begin:stop], lengths[begin:stop]).astype(np.uint64)
        position = np.arange(low, high, dtype=np.uint64) - first
        words = ids[low:high].astype(np.uint64) << np.uint64(32) | position << np.uint64(1)
        if labels is not None:
            words |= labels[low:high]
        mixed = mix(words + _GOLDEN)
        if blank is not None:
            mixed[ids[low:high] == blank] = 0
        prints[begin:stop] = np.add.reduceat(mixed, starts[begin:stop] - low)
        begin = stop
    return prints


def set_print(prints: U64) -> str:
    """Return the fingerprint of a set of sequences as text: their count and the sum of their
    fingerprints.
    """
    return f"{len(prints)}:{int(prints.sum(dtype=np.uint64)):016x}"


@dataclass(frozen=True)
class Origins:
    """Origins of sequences [N] in spool order. Sequences of one source row are adjacent.

    file int32, row int64: index of the source file in its dataset, and number of the row in the
    file, from 1. unit_high, unit_low uint64: hash of the unit that stays in one split: the entity
    if there is one, else the row. content_high, content_low uint64: digest of the row's content,
    see `content_of`. lengths, labels int64: tokens, and trained tokens that have a token before
    them. prints uint64: fingerprints.
    """

    file: I32
    row: I64
    unit_high: U64
    unit_low: U64
    content_high: U64
    content_low: U64
    lengths: I64
    labels: I64
    prints: U64

    def __len__(self) -> int:
        return len(self.row)

    @property
    def first_of_row(self) -> I64:
        """The index of the first sequence of every row, [rows]."""
        new = np.ones(len(self), np.bool_)
        new[1:] = (np.diff(self.file) != 0) | (np.diff(self.row) != 0)
        return np.flatnonzero(new)

    def counts(self, sequences: I64) -> dict[str, int]:
        """Count the rows, sequences, tokens and labels of some sequences."""
        return {
            "rows": len(
                np.unique(self.file[sequences].astype(np.int64) << 40 | self.row[sequences])
            ),
            "sequences": len(sequences),
            "tokens": int(self.lengths[sequences].sum()),
            "labels": int(self.labels[sequences].sum()),
        }

    @classmethod
    def joined(cls, parts: Sequence[Origins], files: Sequence[int] | None = None) -> Origins:
        """Join the sequences of several spools end to end.

        files: number of files per part if every part is another dataset. Files are then numbered
        across datasets.
        """
        if files is not None:
            starts = np.cumsum([0, *files[:-1]], dtype=np.int32)
            parts = [
                replace(part, file=part.file + begin)
                for part, begin in zip(parts, starts, strict=True)
            ]
        kinds = (np.int32, np.int64, *(4 * (np.uint64,)), np.int64, np.int64, np.uint64)
        columns = {}
        for column, dtype in zip(fields(cls), kinds, strict=True):
            columns[column.name] = np.concatenate(
                [np.empty(0, dtype), *(getattr(part, column.name) for part in parts)]
            )
        return cls(**columns)

    @classmethod
    def of_table(cls, table: pa.Table) -> Origins:
        """View the columns of a table as arrays."""
        return cls(**{column.name: table[column.name].to_numpy() for column in fields(cls)})
