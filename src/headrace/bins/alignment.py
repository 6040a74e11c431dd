"""Where a loss mask stands: on the token itself, or on the position that predicts it.

A mask is made beside the tokens: 1 where the token is to be learned. A trainer's reader pairs position j with the
label at j + 1 inside one sequence, so what it needs at j is the mask of token j + 1, and nothing at the last position
of a sequence. That is "shift_left", the default. "legacy_roll_right" is what older preparations wrote: the mask of
token j - 1, rolled over the whole bin and across the borders of sequences; such a reader then trains on the wrong
tokens. It is kept for comparing with old files only.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from headrace.arrays import I64, U8

Alignment = Literal["shift_left", "legacy_roll_right"]

ALIGNMENT_KEY = "headrace.loss_mask_alignment"
"""Key of the alignment in a Parquet file's metadata."""


def shift_left(mask: U8, ends: I64) -> U8:
    """Move each sequence's mask one to the left, its last position 0; ends: where the sequences end. A new array."""
    moved = np.empty_like(mask)
    moved[:-1] = mask[1:]
    moved[ends - 1] = 0
    return moved


def roll_right(mask: U8, offsets: I64) -> U8:
    """Move each bin's mask one to the right, its first position 0, in a new array; offsets: borders of bins."""
    moved = np.empty_like(mask)
    moved[1:] = mask[:-1]
    begins = offsets[:-1]
    moved[begins[begins < offsets[1:]]] = 0
    return moved
