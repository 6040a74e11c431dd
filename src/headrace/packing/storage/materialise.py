"""From bins and a spool to rows with tokens: one gather for a whole row group, or one bin into scratch buffers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from headrace.arrays import I32, I64, U8
from headrace.bins.alignment import Alignment, check_alignment, roll_right, shift_left
from headrace.bins.bins import Bins
from headrace.bins.lengths import Counted, padded_lengths
from headrace.bins.rows import PackedRows
from headrace.packing.storage.spool import Spool


class Sequences(Protocol):
    """What bins are made of: a `Spool`, or several as one (`JoinedSpool`)."""

    def take(self, sequences: I64) -> tuple[I32, U8, I64]: ...


def gather(
    source: Sequences,
    bins: Bins,
    *,
    alignment: Alignment = "shift_left",
    pad_multiple: int = 1,
    pad_id: int = 0,
    counted: Counted = "stored",
) -> PackedRows:
    """The rows of all `bins`: their sequences end to end, the mask aligned inside each. Take a row group at a time.

    pad_multiple, counted: see `padded_lengths`; padding stands behind each sequence, of `pad_id` and mask 0, and
    belongs to it. Memory: about three times the rows'. Raises `IndexError` for a sequence that is not in the source.
    """
    check_alignment(alignment)
    ids, mask, lengths = source.take(bins.sequences)
    if alignment == "shift_left":
        mask = shift_left(mask, np.cumsum(lengths)) if len(mask) else mask
    stored = padded_lengths(lengths, pad_multiple, counted)
    ends = np.zeros(len(stored) + 1, np.int64)
    np.cumsum(stored, out=ends[1:])
    if pad_multiple > 1:
        at = np.repeat(ends[:-1] - (np.cumsum(lengths) - lengths), lengths) + np.arange(len(ids))
        ids = _placed(ids, at, int(ends[-1]), pad_id)
        mask = _placed(mask, at, int(ends[-1]), 0)
    token_offsets = ends[bins.offsets]
    if alignment == "legacy_roll_right":
        mask = roll_right(mask, token_offsets)
    starts = (ends[:-1] - np.repeat(token_offsets[:-1], bins.counts)).astype(np.int32)
    return PackedRows(ids, mask, starts, token_offsets, bins.offsets)


def materialise_bin_arrays(
    spool_reader: Spool,
    assignment: Bins,
    bin_id: int,
    pack_size: int,
    scratch_input_ids: npt.NDArray[np.int32],
    scratch_loss_mask: npt.NDArray[np.uint8],
    alignment: Alignment = "shift_left",
) -> tuple[int, I32]:
    """One bin into preallocated buffers of pack_size: the tokens it has, and where its sequences start, int32.

    Starts begin with 0, strictly rise, and stay below the number of tokens. What does not fit pack_size is cut off,
    and sequences behind it are left out. Behind the tokens the buffers are 0. For whole files `gather` is faster.
    """
    check_alignment(alignment)
    at = 0
    starts: list[int] = []
    for sequence in assignment.bin(bin_id).tolist():
        tokens, mask = spool_reader.read_sequence(sequence)
        size = min(len(tokens), pack_size - at)
        if size <= 0:
            break
        starts.append(at)
        scratch_input_ids[at : at + size] = tokens[:size]
        if alignment == "shift_left":
            scratch_loss_mask[at : at + size - 1] = mask[1:size]
            scratch_loss_mask[at + size - 1] = 0
        else:
            scratch_loss_mask[at : at + size] = mask[:size]
        at += size
    scratch_input_ids[at:] = 0
    scratch_loss_mask[at:] = 0
    if alignment == "legacy_roll_right" and at:
        scratch_loss_mask[1:at] = scratch_loss_mask[: at - 1].copy()
        scratch_loss_mask[0] = 0
    return at, np.array(starts, np.int32)


materialize_bin_arrays = materialise_bin_arrays
"""The specification's spelling."""


def _placed(values: npt.NDArray[Any], at: I64, size: int, fill: int) -> npt.NDArray[Any]:
    placed = np.full(size, fill, values.dtype)
    placed[at] = values
    return placed
