"""Account for the characters that every token covers, and so for the tokens that are trained. Pure.

Offsets of `tokenizers` say it for any tokenizer. A backend without offsets needs a tokenizer whose
tokens are bytes: a token of byte-level BPE has as many bytes as its name has characters, so adding
up the lengths of the tokens shows where each one begins.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any
from unicodedata import is_normalized

import numpy as np
import numpy.typing as npt

from headrace.arrays import I32, I64, U8, offsets_from_lengths
from headrace.packing.chats.marks import Span

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class FlatIds:
    """Ids of several texts, end to end.

    counts: tokens of each text. compared: texts whose ids were checked.
    """

    ids: I32
    counts: I64
    compared: int = 0

    @property
    def ends(self) -> I64:
        """Return where the ids of each text end."""
        return np.cumsum(self.counts)


@dataclass(frozen=True, slots=True, eq=False)
class TokenBytes:
    """The bytes that tokens of a byte-level BPE cover.

    lengths: int64 by id. nfc: whether texts are normalised.
    """

    lengths: I64
    nfc: bool

    def cover(self, text: str) -> bool:
        """Return whether tokens cover the bytes of this very text, which normalising may change."""
        return not self.nfc or text.isascii() or is_normalized("NFC", text)


def token_bytes_of(tokenizer: Tokenizer) -> TokenBytes | None:
    """Read the bytes of tokens from a tokenizer; None if it is not byte-level BPE, or if bytes may
    not add up.
    """
    model = tokenizer.model
    inexact = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    if type(model).__name__ != "BPE" or any(getattr(model, name) for name in inexact):
        return None
    normalizer = _definition(tokenizer.normalizer)
    if normalizer not in ({}, {"type": "Sequence", "normalizers": []}, {"type": "NFC"}):
        return None
    splitting = _definition(tokenizer.pre_tokenizer)
    if splitting.get("type") == "Sequence":
        steps = splitting["pretokenizers"]
    else:
        steps = [splitting]
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space", True):
        return None
    if any(step["type"] not in ("Split", "Digits") for step in steps[:-1]):
        return None
    added = tokenizer.get_added_tokens_decoder().values()
    if any(
        token.lstrip or token.rstrip or token.single_word or token.normalized for token in added
    ):
        return None
    from tokenizers.pre_tokenizers import ByteLevel

    literal = {token.content for token in added}
    alphabet = frozenset(ByteLevel.alphabet())
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    lengths = np.zeros(1 + max(vocabulary.values(), default=-1), np.int64)
    for name, number in vocabulary.items():
        if name in literal:
            lengths[number] = len(name.encode())
        elif alphabet.issuperset(name):
            lengths[number] = len(name)
    return TokenBytes(lengths, nfc=normalizer == {"type": "NFC"})


def _definition(part: Any) -> dict[str, Any]:
    """Return the definition of a tokenizer's part as in tokenizer.json; empty if there is no such
    part.
    """
    if part is None:
        return {}
    definition: dict[str, Any] = json.loads(part.__getstate__())
    return definition


@dataclass(frozen=True, slots=True, eq=False)
class ByteMask:
    """A mask of the ids of several texts.

    mask: uint8 [ids]. certain: bool [texts], whether bytes decide the mask of a text. It is 0 where
    they do not.
    """

    mask: U8
    certain: npt.NDArray[np.bool_]


def flat_ids(encodings: Sequence[Encoding]) -> FlatIds:
    """Lay the ids of encodings end to end."""
    ids = [encoding.ids for encoding in encodings]
    counts = np.fromiter(map(len, ids), np.int64, len(ids))
    return FlatIds(np.fromiter(chain.from_iterable(ids), np.int32, int(counts.sum())), counts)


def mask_by_bytes(
    token_bytes: TokenBytes, texts: Sequence[str], spans: Sequence[Sequence[Span]], encoded: FlatIds
) -> ByteMask:
    """Return the mask of all texts.

    Bytes do not decide where a token straddles the border of a span, or where normalising changes a
    text.
    """
    starts = offsets_from_lengths(token_bytes.lengths[encoded.ids])  # of tokens, in bytes
    firsts = offsets_from_lengths(encoded.counts)  # token of each text, then their number
    boundaries: list[int] = []  # of each text's spans and its end, in bytes of the text
    for text, text_spans in zip(texts, spans, strict=True):
        if text.isascii():
            boundaries += chain.from_iterable(text_spans)
            boundaries.append(len(text))
        elif token_bytes.cover(text):
            boundaries += _bytes_before(text, [*chain.from_iterable(text_spans), len(text)])
        else:
            boundaries += [-1] * (2 * len(text_spans) + 1)
    sizes = np.fromiter((2 * len(text_spans) + 1 for text_spans in spans), np.int64, len(spans))
    owners = np.repeat(np.arange(len(texts)), sizes)
    positions = starts[firsts[owners]] + np.array(boundaries, np.int64)
    tokens = np.searchsorted(starts, positions)
    exact = (starts[np.minimum(tokens, len(encoded.ids))] == positions) & (tokens >= firsts[owners])
    last = np.cumsum(sizes) - 1
    exact[last] &= tokens[last] == firsts[1:]
    certain = np.bincount(owners[~exact], minlength=len(texts)) == 0
    inside = certain[owners]
    inside[last] = False
    changes = tokens[inside]  # a span begins and ends in turn
    runs = np.diff(changes, prepend=0, append=len(encoded.ids))
    mask = np.repeat((np.arange(len(runs)) & 1).astype(np.uint8), runs)
    return ByteMask(mask, certain)


def _bytes_before(text: str, characters: Sequence[int]) -> list[int]:
    """Return how many bytes come before characters of a text, which ascend."""
    result = []
    size = 0
    for begin, end in pairwise([0, *characters]):
        size += len(text[begin:end].encode())
        result.append(size)
    return result


def runs_by_offsets(
    encoding: Encoding, spans: Sequence[Span], characters: int
) -> list[Span] | None:
    """Find the tokens of each span; None if a token straddles a border or has no characters
    there.
    """
    count = len(encoding.ids)
    runs = []
    for begin, end in spans:
        first = encoding.char_to_token(begin)
        if end < characters:
            last = encoding.char_to_token(end)
        else:
            last = count
        if first is None or last is None:
            return None
        if not _starts_at(encoding, first, begin) or not _starts_at(encoding, last, end):
            return None
        runs.append((first, last))
    return runs


def _starts_at(encoding: Encoding, token: int, character: int) -> bool:
    if token == len(encoding.ids):
        return True
    span = encoding.token_to_chars(token)
    return span is not None and span[0] == character


def mask_of_runs(runs: Sequence[Span], size: int) -> U8:
    """Return a mask of `size` tokens that is 1 in these runs; uint8."""
    mask = np.zeros(size, np.uint8)
    for first, last in runs:
        mask[first:last] = 1
    return mask
