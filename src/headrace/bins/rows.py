"""Packed bins with their tokens, as flat arrays: what is gathered, written, read and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import I32, I64, U8


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """Bin b has the tokens ids[token_offsets[b] : token_offsets[b + 1]], its sequences begin at
    starts[start_offsets[b] : start_offsets[b + 1]], counted from the bin's first token.

    ids: int32 [tokens]; mask: uint8 [tokens]; starts: int32 [sequences]; token_offsets, start_offsets: int64
    [bins + 1] from 0. Arrays may be read-only.
    """

    ids: I32
    mask: U8
    starts: I32
    token_offsets: I64
    start_offsets: I64

    def __len__(self) -> int:
        return len(self.token_offsets) - 1

    def __getitem__(self, part: slice) -> PackedRows:
        """Take consecutive bins; the tokens are views."""
        first, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"packed rows: a slice with step {step}; take consecutive bins")
        stop = max(first, stop)
        token, token_end = self.token_offsets[first], self.token_offsets[stop]
        start, start_end = self.start_offsets[first], self.start_offsets[stop]
        return PackedRows(
            self.ids[token:token_end],
            self.mask[token:token_end],
            self.starts[start:start_end],
            self.token_offsets[first : stop + 1] - token,
            self.start_offsets[first : stop + 1] - start,
        )

    def bin(self, number: int) -> tuple[I32, U8, I32]:
        """Give tokens, mask and starts of one bin, as views. Raises `IndexError` if there is no such bin."""
        if not 0 <= number < len(self):
            raise IndexError(f"packed rows: no bin {number}; there are {len(self)}, counted from 0")
        tokens = slice(self.token_offsets[number], self.token_offsets[number + 1])
        starts = slice(self.start_offsets[number], self.start_offsets[number + 1])
        return self.ids[tokens], self.mask[tokens], self.starts[starts]

    @property
    def sequence_begins(self) -> I64:
        """Where each sequence begins in `ids`; int64 [sequences]."""
        return self.starts.astype(np.int64) + np.repeat(self.token_offsets[:-1], np.diff(self.start_offsets))

    @property
    def sequence_lengths(self) -> I64:
        """Tokens of each sequence; int64 [sequences]. It ends where the next sequence, or the next bin, begins."""
        return np.diff(self.sequence_begins, append=len(self.ids))

    @classmethod
    def of_bin(cls, ids: I32, mask: U8, starts: I32) -> PackedRows:
        """Make rows of one bin, as views."""
        return cls(ids, mask, starts, np.array([0, len(ids)], np.int64), np.array([0, len(starts)], np.int64))

    @classmethod
    def concatenate(cls, parts: Sequence[PackedRows]) -> PackedRows:
        """Copy the bins of all parts end to end."""
        tokens = np.cumsum([0, *(len(part.ids) for part in parts)])
        starts = np.cumsum([0, *(len(part.starts) for part in parts)])
        zero = np.zeros(1, np.int64)
        return cls(
            np.concatenate([np.empty(0, np.int32), *(part.ids for part in parts)]),
            np.concatenate([np.empty(0, np.uint8), *(part.mask for part in parts)]),
            np.concatenate([np.empty(0, np.int32), *(part.starts for part in parts)]),
            np.concatenate([zero, *(part.token_offsets[1:] + at for part, at in zip(parts, tokens, strict=False))]),
            np.concatenate([zero, *(part.start_offsets[1:] + at for part, at in zip(parts, starts, strict=False))]),
        )


def first_fault(rows: PackedRows) -> tuple[int, str] | None:
    """Find the first bin that no reader can use as it is, and what is wrong with it; None if all are sound.

    Sound: at least one token, the first start 0, starts strictly increasing, the last one before the end of the bin.
    """
    sizes, counts = np.diff(rows.token_offsets), np.diff(rows.start_offsets)
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
    shown = starts[:8].tolist()
    problem = (
        f"{sizes[number]} tokens and sequence starts {shown}{' …' if len(starts) > 8 else ''}; "
        f"starts must be 0 first, then rise, and stay below the number of tokens"
    )
    return number, problem


def as_type(values: npt.NDArray[Any], dtype: np.dtype[Any], what: str) -> npt.NDArray[Any]:
    """Cast integers to another type, copying only where needed. Raises `ValueError` if a value does not fit."""
    if values.dtype == dtype:
        return np.ascontiguousarray(values)
    if values.dtype.kind not in "iub":
        raise ValueError(f"{what} are {values.dtype}; give integers")
    if len(values) and not np.can_cast(values.dtype, dtype):
        limits = np.iinfo(dtype)
        for value in (int(values.min()), int(values.max())):
            if not limits.min <= value <= limits.max:
                raise ValueError(f"{what}: {value} does not fit {dtype.name}; give {limits.min} to {limits.max}")
    return values.astype(dtype)
