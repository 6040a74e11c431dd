"""What a sequence of L tokens takes in a bin: padding to a multiple, and the readers that drop its last token."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from headrace.arrays import I64

Counted = Literal["stored", "runtime"]


def padded_lengths(lengths: npt.NDArray[np.integer], multiple: int = 1, counted: Counted = "stored") -> I64:
    """Count the tokens that are stored for sequences of so many; int64, never fewer.

    counted="stored": a multiple of `multiple`. "runtime": one more than a multiple, for readers that train on L - 1
    positions of a stored sequence and want those to be a multiple. Raises `ValueError` if multiple < 1.
    """
    if multiple < 1:
        raise ValueError(f"padding: the multiple is {multiple}; give at least 1 (1 pads nothing)")
    stored = np.asarray(lengths, np.int64)
    if multiple == 1:
        return stored
    extra = 1 if counted == "runtime" else 0
    return -(-np.maximum(stored - extra, 1) // multiple) * multiple + extra


def costs(lengths: npt.NDArray[np.integer], counted: Counted = "stored", multiple: int = 1) -> I64:
    """Count what sequences cost in a bin, padding included; the `lengths` argument of `pack`.

    counted="stored": their tokens; a bin never stores more than its capacity. "runtime": one less, at least 1; a bin
    may store one token a sequence more than its capacity, which readers that drop the last token never see.
    """
    stored = padded_lengths(lengths, multiple, counted)
    return np.maximum(stored - 1, 1) if counted == "runtime" else stored
