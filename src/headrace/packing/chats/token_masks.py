"""Find the tokens of character spans, from the offsets of tokens or from their bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.arrays import I32, U8
from headrace.packing.chats.byte_level import ByteLevel, Ids
from headrace.packing.chats.marks import Span

if TYPE_CHECKING:
    from tokenizers import Encoding


def masks_by_bytes(
    level: ByteLevel, texts: Sequence[str], spans: Sequence[Sequence[Span]], encoded: Ids
) -> list[tuple[I32, U8] | None]:
    """Return ids and mask of each text; None if bytes do not decide, as when a token straddles a border.

    encoded: ids of all texts end to end.
    """
    if not texts:
        return []
    ids, counts, *_ = encoded
    begins = np.concatenate([[0], np.cumsum(level.lengths[ids])])  # of tokens, in bytes of all texts
    borders: list[int] = []
    at = 0
    for text, own in zip(texts, spans, strict=True):
        if text.isascii():
            borders += [at + place for span in own for place in span]
            at += len(text)
        else:
            borders += [at + len(text[:place].encode()) for span in own for place in span]
            at += len(text.encode())
        borders.append(at)
    tokens = np.searchsorted(begins, borders)
    exact = (begins[np.minimum(tokens, len(ids))] == borders).tolist()
    places, last, first = tokens.tolist(), 0, 0
    mask = np.zeros(len(ids), np.uint8)
    found: list[tuple[I32, U8] | None] = []
    for text, own, end in zip(texts, spans, np.cumsum(counts).tolist(), strict=True):
        mine = slice(last, last + 2 * len(own))
        last = mine.stop + 1
        whole = exact[mine.stop] and places[mine.stop] == end and not level.changes(text)
        if whole and all(exact[mine]):
            for place in range(mine.start, mine.stop, 2):
                mask[places[place] : places[place + 1]] = 1
            found.append((ids[first:end], mask[first:end]))
        else:
            found.append(None)
        first = end
    return found


def token_runs(encoding: Encoding, spans: Sequence[Span], characters: int, tokens: int) -> list[Span] | None:
    """Find the tokens of each span; None if a token straddles a border or has no characters there."""
    runs = []
    for begin, end in spans:
        first = encoding.char_to_token(begin)
        last = encoding.char_to_token(end) if end < characters else tokens
        if first is None or last is None:
            return None
        for token, border in ((first, begin), (last, end)):
            if token < tokens and ((at := encoding.token_to_chars(token)) is None or at[0] != border):
                return None
        runs.append((first, last))
    return runs


def mask_of(runs: Sequence[Span], size: int) -> U8:
    """Return a mask of `size` tokens that is 1 in these runs; uint8."""
    mask = np.zeros(size, np.uint8)
    for first, last in runs:
        mask[first:last] = 1
    return mask
