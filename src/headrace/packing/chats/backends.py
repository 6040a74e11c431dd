"""Encode with fastokens, which gives ids without offsets, and compare its ids with those of
`tokenizers`.

fastokens is used for byte-level BPE only, whose masks do not need offsets (see `account`). Before
it is used, it encodes all triples of kinds of characters and ASCII. Then one text in `_ONE_IN`,
chosen by a hash of the text, is compared. After the first difference it is not used again, and
`BackendDiffers` lets a run repeat the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from headrace.arrays import I64
from headrace.errors import MissingExtra, SettingsError, setting
from headrace.packing.chats.account import FlatIds, TokenBytes
from headrace.packing.chats.settings import BackendName

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ONE_IN = 64
_CHARACTERS = ("a", "B", "7", " ", "\n", "\r", "'", ".", "é", "\u3000", "'s", "\t")


class BackendDiffers(Exception):
    """fastokens gave ids that differ from those of `tokenizers`."""


class Fastokens:
    """fastokens for one tokenizer. trusted: False after a difference from `tokenizers`."""

    def __init__(self, library: Any, tokenizer: Tokenizer) -> None:
        self._library = library
        self._tokenizer = tokenizer
        self.trusted = True

    def encode(self, texts: Sequence[str]) -> FlatIds:
        """Encode texts. Raises `BackendDiffers` at the first difference."""
        encoded = self._encode(texts)
        sample = []
        for index, text in enumerate(texts):
            if crc32(text.encode()) % _ONE_IN == 0:
                sample.append(index)
        if not self._agrees(encoded, texts, sample):
            self.trusted = False
            raise BackendDiffers
        return FlatIds(encoded.ids, encoded.counts, len(sample))

    def agrees_on_probes(self) -> bool:
        """Return whether both libraries cut all triples of kinds of characters, and ASCII, in the
        same way.
        """
        probes = ["".join(map(chr, range(128)))]
        for first in _CHARACTERS:
            triples = (
                f"{first}{second}{third}x" for second, third in product(_CHARACTERS, _CHARACTERS)
            )
            probes.append("".join(triples))
        try:
            encoded = self._encode(probes)
        except BackendDiffers:
            return False
        return self._agrees(encoded, probes, range(len(probes)))

    def _encode(self, texts: Sequence[str]) -> FlatIds:
        try:
            ids, offsets = self._library.encode_batch_flat([*texts], False)
        except ValueError as error:
            # fastokens refuses a byte that the vocabulary lacks; tokenizers leaves it out.
            self.trusted = False
            raise BackendDiffers from error
        boundaries: I64 = np.frombuffer(offsets, np.int64)
        return FlatIds(np.frombuffer(ids, np.int32), np.diff(boundaries))

    def _agrees(self, encoded: FlatIds, texts: Sequence[str], indices: Sequence[int]) -> bool:
        expected = self._tokenizer.encode_batch(
            [texts[index] for index in indices], add_special_tokens=False
        )
        ends = encoded.ends
        for index, encoding in zip(indices, expected, strict=True):
            ids = encoded.ids[ends[index] - encoded.counts[index] : ends[index]]
            if not np.array_equal(ids, encoding.ids):
                return False
        return True


def backend_of(
    name: BackendName, tokenizer: Tokenizer, token_bytes: TokenBytes | None, json_text: str
) -> Fastokens | None:
    """Choose the backend; None for `tokenizers`.

    "auto" uses fastokens if it is installed and fits this tokenizer.

    Raises `SettingsError` if fastokens is requested and cannot encode with this tokenizer,
    `MissingExtra`.
    """
    if name == "tokenizers":
        return None
    required = name == "fastokens"
    if token_bytes is None:
        if required:
            raise _unusable(
                "encodes byte-level BPE whose added tokens take nothing beside them, which this"
                " is not"
            )
        return None
    try:
        from fastokens import Tokenizer as Library
    except ModuleNotFoundError:
        if required:
            raise MissingExtra("fastokens", "fastokens") from None
        return None
    try:
        backend = Fastokens(Library.from_json_str(json_text), tokenizer)
    except Exception as error:
        if required:
            raise _unusable(f"cannot load this tokenizer ({error})") from error
        return None
    if not backend.agrees_on_probes():
        if required:
            raise _unusable("gives other ids than tokenizers with this tokenizer")
        return None
    return backend


def _unusable(why: str) -> SettingsError:
    return SettingsError(
        why,
        setting="tokenizer_backend",
        value="fastokens",
        remedy=f"give {setting('tokenizer_backend', 'auto')}",
    )
