"""A row's columns at the places of candidates, and tokens as the arrays of training loops; compiled by numba.

The same as in `sample` and `batch`. Extra `histories`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.arrays import I32, I64
from headrace.compiled import compiled
from headrace.contexts.batch import FOUR, MAXTEXT
from headrace.contexts.options import Keys
from headrace.contexts.sample import Columns, Segments
from headrace.contexts.tokens import Tokens
from headrace.contexts.vocabulary import Vocabulary
from headrace.histories.rows import RowColumns

MADE = ("inputs", "targets", "inputs_segmentation", "inputs_position", "targets_segmentation", "targets_position")
_NO_PEERS = np.empty(0, np.uint8)


def gather_in_numba(row: RowColumns, mine: I64, offsets: I64, index: I64, out: Columns) -> None:
    """As `gather`."""
    peers, width = _NO_PEERS, 0
    if row.peers is not None:
        peers, width = row.peers.view(np.uint8), row.peers.itemsize  # bytes, so that one kernel reads all widths
    _gather(
        mine, offsets, index, np.int64(row.first_time), row.offsets, row.codes, peers, width, row.peer_family,
        row.peer_bytes, out.time, out.code, out.family, out.address,
    )  # fmt: skip


def batch_in_numba(tokens: Tokens, segments: Segments, *, vocab: Vocabulary, keys: Keys) -> dict[str, I32]:
    """As `batch_of`."""
    contexts, room = tokens.tokens_BT.shape
    names = MADE if keys == "maxtext" else FOUR
    arrays = np.empty((len(names), contexts, room - 1), np.int32)
    _batch(tokens.tokens_BT, segments.context, tokens.lengths, 1 if vocab == "compat" else 0, arrays)
    made = dict(zip(names, arrays, strict=True))
    return made if keys == "four" else {name: made[name] for name in MAXTEXT}


@compiled
def _gather(
    mine: Any, offsets: Any, index: Any, first_time: Any, seconds: Any, codes: Any, peers: Any, width: Any,
    peer_family: Any, peer_bytes: Any, time: Any, code: Any, family: Any, address: Any,
) -> None:  # fmt: skip
    for s in mine:
        for m in range(offsets[s], offsets[s + 1]):
            i = index[m]
            time[m] = first_time + np.int64(seconds[i])
            code[m] = codes[i]
            if width == 0:
                family[m] = 0
                address[m, :] = 0
                continue
            peer = np.int64(peers[i * width])
            if width > 1:
                peer |= np.int64(peers[i * width + 1]) << 8
            if width > 2:
                peer |= np.int64(peers[i * width + 2]) << 16 | np.int64(peers[i * width + 3]) << 24
            family[m] = peer_family[peer]
            for q in range(16):
                address[m, q] = peer_bytes[peer, q]


@compiled
def _batch(tokens: Any, context: Any, lengths: Any, lower: Any, arrays: Any) -> None:
    """arrays [4 | 6, B, L]: inputs, targets, segmentation, positions, and for targets segmentation and positions."""
    kinds, contexts, width = arrays.shape
    s = 0
    for b in range(contexts):
        used, number = 0, 0
        _copy(tokens[b, :width], lower, arrays[0, b])
        while s < len(context) and context[s] == b:
            number += 1
            end = min(used + lengths[s], width)
            target_end = max(used, min(used + lengths[s] - 1, width))  # the last token of a segment has no target
            _copy(tokens[b, used + 1 : target_end + 1], lower, arrays[1, b, used:target_end])
            arrays[1, b, target_end:end] = 0
            arrays[2, b, used:end] = number
            _count(arrays[3, b, used:end])
            if kinds == 6:
                arrays[4, b, used:target_end] = number
                arrays[4, b, target_end:end] = 0
                _count(arrays[5, b, used:end])
            used = end
            s += 1
        for kind in range(1, kinds):
            arrays[kind, b, used:] = 0


@compiled
def _copy(tokens: Any, lower: Any, out: Any) -> None:
    for t in range(len(tokens)):
        out[t] = max(tokens[t] - lower, 0)


@compiled
def _count(out: Any) -> None:
    for t in range(len(out)):
        out[t] = t
