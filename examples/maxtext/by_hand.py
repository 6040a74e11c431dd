"""What a loss makes of a batch, in numpy: the loss of each target, and each segment in a context of its own."""

from __future__ import annotations

import numpy as np

Batch = dict[str, np.ndarray]


def losses(logits_BLV: np.ndarray, targets_BL: np.ndarray) -> np.ndarray:
    """−log of the probability of each target, float64 [B, L]."""
    logits_BLV = logits_BLV.astype(np.float64)
    most_BL1 = logits_BLV.max(axis=-1, keepdims=True)
    total_BL = np.log(np.exp(logits_BLV - most_BL1).sum(axis=-1)) + most_BL1[..., 0]
    return total_BL - np.take_along_axis(logits_BLV, targets_BL[..., None], axis=-1)[..., 0]


def alone(batch: Batch) -> tuple[Batch, np.ndarray, np.ndarray]:
    """Each segment as the first and only one of a context; and the places, in contexts and in them, it came from."""
    pieces = []
    for context, segments_L in enumerate(batch["inputs_segmentation"]):
        pieces += [
            (context, np.flatnonzero(segments_L == number))
            for number in range(1, segments_L.max() + 1)
        ]
    result = {
        name: np.zeros((len(pieces), array.shape[1]), np.int32) for name, array in batch.items()
    }
    for row, (context, places) in enumerate(pieces):
        for name in ("inputs", "targets"):
            result[name][row, : len(places)] = batch[name][context, places]
        for name in ("inputs_position", "targets_position"):
            result[name][row, : len(places)] = np.arange(len(places))
        result["inputs_segmentation"][row, : len(places)] = 1
        result["targets_segmentation"][row, : len(places)] = (
            batch["targets_segmentation"][context, places] > 0
        )
    return (
        result,
        np.concatenate([np.full(len(places), context) for context, places in pieces]),
        np.concatenate([places for _, places in pieces]),
    )
