"""Tokens as the arrays that training loops take.

L + 1 tokens are drawn for a context of L, so that the last place has a target too. Inputs are the first L; the target
of a place is the token after it *in the same segment*: the last token of a segment has none, its target is pad and its
`targets_segmentation` is 0, which is where a loss has to be masked. Segments are numbered 1, 2, … in a context and 0 is
padding; positions count from 0 in each segment. Nothing is masked by the value of a token.
"""

from __future__ import annotations

import numpy as np

from headrace.arrays import I32
from headrace.histories.contexts.options import Keys
from headrace.histories.contexts.sample import Segments
from headrace.histories.contexts.tokens import Tokens
from headrace.histories.contexts.vocabulary import Vocabulary, in_vocabulary

MAXTEXT = (
    "inputs",
    "inputs_position",
    "inputs_segmentation",
    "targets",
    "targets_position",
    "targets_segmentation",
)
FOUR = ("inputs", "targets", "segmentation", "positions")


def batch_of(tokens: Tokens, segments: Segments, vocab: Vocabulary, keys: Keys) -> dict[str, I32]:
    """int32 [B, L] arrays: the six that MaxText names, or "inputs", "targets", "segmentation", "positions".

    targets_position is that of the inputs. Of the four, segmentation is 1, 2, … where a token is and 0 in padding.
    Nothing else says which places of the four have a target: with the standard vocabulary those whose target is not 0;
    with "compat", where 0 is a token too, those whose next place is of the same segment, but for the last place.
    """
    segment_BT, position_BT = numbered(tokens, segments)  # noqa: N806 - B contexts, T places
    drawn = in_vocabulary(tokens.tokens_BT, vocab)
    inputs, segment, position = drawn[:, :-1], segment_BT[:, :-1], position_BT[:, :-1]
    has_target = (segment > 0) & (segment_BT[:, 1:] == segment)
    targets = np.where(has_target, drawn[:, 1:], np.int32(0))
    if keys == "four":
        four = {"inputs": inputs, "targets": targets, "segmentation": segment, "positions": position}
        return {name: np.ascontiguousarray(array) for name, array in four.items()}
    target_segment = np.where(has_target, segment, np.int32(0))
    arrays = (inputs, position, segment, targets, position.copy(), target_segment)
    return {name: np.ascontiguousarray(array) for name, array in zip(MAXTEXT, arrays, strict=True)}


def numbered(tokens: Tokens, segments: Segments) -> tuple[I32, I32]:
    """Segment number (0 in padding) and position in its segment of every token; int32 [B, T]."""
    contexts, room = tokens.tokens_BT.shape
    begin = np.cumsum(tokens.lengths) - tokens.lengths  # in the tokens of all contexts, without padding
    first = np.searchsorted(segments.context, segments.context)
    number = np.arange(len(first)) - first + 1
    used = np.bincount(segments.context, tokens.lengths, contexts).astype(np.int64)
    real = np.arange(room)[None, :] < used[:, None]
    segment, position = np.zeros((contexts, room), np.int32), np.zeros((contexts, room), np.int32)
    segment[real] = np.repeat(number, tokens.lengths)
    position[real] = np.arange(int(used.sum())) - np.repeat(begin, tokens.lengths)
    return segment, position
