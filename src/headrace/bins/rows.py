"""Hold bins with their tokens as flat arrays, check them, and move their loss masks.

A mask is made beside the tokens: 1 where the token is to be learned. A trainer's reader pairs
position j with the label at j + 1 inside one sequence, so what it needs at j is the mask of token j
+ 1, and nothing at the last position of a sequence. That is "shift_left", the default.
"legacy_roll_right" is what older preparations wrote: the mask of token j - 1, rolled over the whole
bin and across the borders of sequences; such a reader then trains on the wrong tokens. It is kept
for comparing with old files only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from headrace.arrays import I32, I64, U8, concatenated, offsets_from_lengths

ALIGNMENT_KEY = "headrace.loss_mask_alignment"
"""Key of the alignment in a Parquet file's metadata."""

TRACES = ("source", "source_row")
"""The columns of bins that name, for each of their sequences, a source and the row in it."""


def shift_left(mask: U8, ends: I64) -> U8:
    """Move each sequence's mask one to the left, its last position 0; ends: where the sequences
    end. A new array.
    """
    moved = np.append(mask[1:], mask[:1])
    moved[ends - 1] = 0
    return moved


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """Bin b has the tokens ids[token_offsets[b] : token_offsets[b + 1]], its sequences begin at
    starts[start_offsets[b] : start_offsets[b + 1]], counted from the bin's first token.

    ids: int32 [tokens], int64 on the way into a batch; mask: uint8 [tokens]; starts: int32 or int64
    [sequences]; token_offsets, start_offsets: int64 [bins + 1] from 0. Arrays may be read-only.
    sources, source_rows: int64 [sequences], where each sequence comes from, as a number of a source
    and of a row in it; None where that is not kept.
    """

    ids: npt.NDArray[Any]
    mask: U8
    starts: I32 | I64
    token_offsets: I64
    start_offsets: I64
    sources: I64 | None = None
    source_rows: I64 | None = None

    def __len__(self) -> int:
        return len(self.token_offsets) - 1

    def __getitem__(self, part: slice) -> PackedRows:
        """Take consecutive bins; the tokens are views."""
        first, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"packed rows: a slice with step {step}; take consecutive bins")
        stop = max(first, stop)
        token = self.token_offsets[first]
        token_end = self.token_offsets[stop]
        start = self.start_offsets[first]
        start_end = self.start_offsets[stop]
        return PackedRows(
            self.ids[token:token_end],
            self.mask[token:token_end],
            self.starts[start:start_end],
            self.token_offsets[first : stop + 1] - token,
            self.start_offsets[first : stop + 1] - start,
            None if self.sources is None else self.sources[start:start_end],
            None if self.source_rows is None else self.source_rows[start:start_end],
        )

    def bin(self, number: int) -> tuple[npt.NDArray[Any], U8, I32 | I64]:
        """Give tokens, mask and starts of one bin, as views.

        Raises `IndexError` if there is no such bin.
        """
        if not 0 <= number < len(self):
            raise IndexError(f"packed rows: no bin {number}; there are {len(self)}, counted from 0")
        one = self[number : number + 1]
        return one.ids, one.mask, one.starts

    @property
    def sizes(self) -> I64:
        """Tokens of each bin; int64 [bins]."""
        return self.token_offsets[1:] - self.token_offsets[:-1]

    @property
    def counts(self) -> I64:
        """Sequences of each bin; int64 [bins]."""
        return self.start_offsets[1:] - self.start_offsets[:-1]

    @property
    def sequence_starts(self) -> I64:
        """Return where each sequence begins in `ids`; int64 [sequences]."""
        return np.repeat(self.token_offsets[:-1], self.counts) + self.starts

    @property
    def sequence_lengths(self) -> I64:
        """Tokens of each sequence; int64 [sequences].

        It ends where the next sequence, or the next bin, begins.
        """
        return np.diff(self.sequence_starts, append=len(self.ids))

    @classmethod
    def of_sequences(
        cls, ids: npt.NDArray[Any], mask: U8, lengths: npt.ArrayLike, offsets: I64
    ) -> PackedRows:
        """Make rows of sequences that lie end to end.

        lengths: of each; offsets: of bins, in sequences; as `Bins`.
        """
        sequence_offsets = offsets_from_lengths(lengths)
        token_offsets = sequence_offsets[offsets]
        starts = (sequence_offsets[:-1] - np.repeat(token_offsets[:-1], np.diff(offsets))).astype(
            np.int32
        )
        return cls(ids, mask, starts, token_offsets, offsets)

    @classmethod
    def of_bin(cls, ids: I32, mask: U8, starts: I32) -> PackedRows:
        """Make rows of one bin, as views."""
        return cls(
            ids,
            mask,
            starts,
            np.array([0, len(ids)], np.int64),
            np.array([0, len(starts)], np.int64),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[PackedRows]) -> PackedRows:
        """Copy the bins of all parts end to end."""
        sources = [part.sources for part in parts if part.sources is not None]
        source_rows = [part.source_rows for part in parts if part.source_rows is not None]
        return cls(
            concatenated((part.ids for part in parts), np.int32),
            concatenated((part.mask for part in parts), np.uint8),
            concatenated((part.starts for part in parts), np.int32),
            offsets_from_lengths(concatenated((part.sizes for part in parts), np.int64)),
            offsets_from_lengths(concatenated((part.counts for part in parts), np.int64)),
            np.concatenate(sources) if sources else None,
            np.concatenate(source_rows) if source_rows else None,
        )


def first_fault(
    rows: PackedRows, *, empty: Literal["refuse", "take"] = "refuse"
) -> tuple[int, str] | None:
    """Find the first bin that no reader can use as it is, and what is wrong with it; None if all
    are sound.

    Sound: the first start 0, starts strictly increasing, the last one before the end of the bin;
    and at least one token, unless bins of nothing are taken too.
    """
    sizes = rows.sizes
    counts = rows.counts
    if empty == "take":
        bad = (sizes == 0) != (counts == 0)
    else:
        bad = (sizes == 0) | (counts == 0)
    owner = np.repeat(np.arange(len(rows)), counts)
    first = np.zeros(len(rows.starts), np.bool_)
    first[rows.start_offsets[:-1][counts > 0]] = True
    step = np.diff(rows.starts.astype(np.int64), prepend=0)
    wrong = np.where(first, rows.starts != 0, step <= 0) | (rows.starts >= sizes[owner])
    bad[owner[wrong]] = True
    if not bad.any():
        return None
    number = int(bad.argmax())
    starts = rows.starts[rows.start_offsets[number] : rows.start_offsets[number + 1]]
    starts_text = f"{starts[:8].tolist()}{' …' if len(starts) > 8 else ''}"
    return (
        number,
        (
            f"seq_start_id is {starts_text} in a row of {sizes[number]} tokens; "
            "it begins with 0, rises, and stays below the number of tokens"
        ),
    )


def as_type(values: npt.NDArray[Any], dtype: np.dtype[Any], what: str) -> npt.NDArray[Any]:
    """Cast integers to another type, copying only where needed.

    Raises `ValueError` if a value does not fit.
    """
    if values.dtype == dtype:
        return np.ascontiguousarray(values)
    if values.dtype.kind not in "iub":
        raise ValueError(f"{what} are {values.dtype}; give integers")
    if len(values) and not np.can_cast(values.dtype, dtype):
        limits = np.iinfo(dtype)
        for value in (int(values.min()), int(values.max())):
            if not limits.min <= value <= limits.max:
                raise ValueError(
                    f"{what}: {value} does not fit {dtype.name}; give {limits.min} to {limits.max}"
                )
    return values.astype(dtype)
