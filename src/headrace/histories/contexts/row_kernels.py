"""A row's columns at the places of candidates, and tokens as the arrays of training loops; compiled by numba.

The same as in `sample` and `batch`. Extra `histories`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.arrays import I32, I64
from headrace.compiled import compiled
from headrace.histories.codec.rows import RowColumns
from headrace.histories.contexts.batch import FOUR, MAXTEXT
from headrace.histories.contexts.options import Keys
from headrace.histories.contexts.sample import Columns, Segments
from headrace.histories.contexts.tokens import Tokens
from headrace.histories.contexts.vocabulary import Vocabulary

_NO_PEERS = np.empty(0, np.uint8)


def gather_in_numba(row: RowColumns, mine: I64, offsets: I64, index: I64, out: Columns) -> None:
    """As `gather`. Addresses are copied as two words each."""
    peers, width = _NO_PEERS, 0
    if row.peers is not None:
        peers, width = row.peers.view(np.uint8), row.peers.itemsize  # bytes, so that one kernel reads all widths
    _gather(
        mine, offsets, index, np.int64(row.first_time), row.offsets, row.codes, peers, width, row.peer_family,
        row.peer_bytes.view(np.uint64), out.time, out.code, out.family, out.address.view(np.uint64),
    )  # fmt: skip


def batch_in_numba(tokens: Tokens, segments: Segments, *, vocab: Vocabulary, keys: Keys) -> dict[str, I32]:
    """As `batch_of`. The arrays lie in one block: several would be given back to the system after every batch, and
    every page of them cost a fault in the next one, more than it costs to fill it."""
    contexts, room = tokens.tokens_BT.shape
    none = np.empty((2, 0, room - 1), np.int32)
    block = np.empty((6 if keys == "maxtext" else 4, contexts, room - 1), np.int32)
    inputs, targets, segment, position = block[:4]
    target_segment, target_position = block[4:] if keys == "maxtext" else none
    lower = np.int32(vocab == "compat")
    _batch(
        tokens.tokens_BT, segments.context, tokens.lengths, lower, inputs, targets, segment, position,
        target_segment, target_position,
    )  # fmt: skip
    if keys == "four":
        return dict(zip(FOUR, (inputs, targets, segment, position), strict=True))
    arrays = (inputs, position, segment, targets, target_position, target_segment)
    return dict(zip(MAXTEXT, arrays, strict=True))


@compiled
def _gather(
    mine: Any, offsets: Any, index: Any, first_time: Any, seconds: Any, codes: Any, peers: Any, width: Any,
    peer_family: Any, peer_words: Any, time: Any, code: Any, family: Any, address: Any,
) -> None:  # fmt: skip
    for s in mine:
        for m in range(offsets[s], offsets[s + 1]):
            i = index[m]
            time[m] = first_time + np.int64(seconds[i])
            code[m] = codes[i]
            if width == 0:
                family[m], address[m, 0], address[m, 1] = 0, 0, 0
                continue
            peer = np.int64(peers[i * width])
            if width > 1:
                peer |= np.int64(peers[i * width + 1]) << 8
            if width > 2:
                peer |= np.int64(peers[i * width + 2]) << 16 | np.int64(peers[i * width + 3]) << 24
            family[m] = peer_family[peer]
            address[m, 0], address[m, 1] = peer_words[peer, 0], peer_words[peer, 1]


@compiled
def _batch(
    tokens: Any, context: Any, lengths: Any, lower: Any, inputs: Any, targets: Any, segment: Any, position: Any,
    target_segment: Any, target_position: Any,
) -> None:  # fmt: skip
    """int32 [B, L] each; the last two may be empty, and are then left out."""
    contexts, width = inputs.shape
    all_six = len(target_segment) > 0
    s = 0
    for b in range(contexts):
        _copy(tokens[b, :width], lower, inputs[b])
        used, number = 0, 0
        while s < len(context) and context[s] == b:
            number += 1
            end = min(used + lengths[s], width)
            last = max(used, min(used + lengths[s] - 1, width))  # the last token of a segment has no target
            _copy(tokens[b, used + 1 : last + 1], lower, targets[b, used:last])
            targets[b, last:end] = 0
            segment[b, used:end] = number
            _count(position[b, used:end])
            if all_six:
                target_segment[b, used:last], target_segment[b, last:end] = number, 0
                _count(target_position[b, used:end])
            used = end
            s += 1
        targets[b, used:], segment[b, used:], position[b, used:] = 0, 0, 0
        if all_six:
            target_segment[b, used:], target_position[b, used:] = 0, 0


@compiled
def _copy(tokens: Any, lower: Any, out: Any) -> None:
    for t in range(len(tokens)):
        out[t] = max(tokens[t] - lower, 0)


@compiled
def _count(out: Any) -> None:
    for t in range(len(out)):
        out[t] = t
