"""Choose the encoder of texts: headrace's own word-by-word encoder, or a requested library whose ids are checked.

All of them give ids end to end, and only for byte-level BPE. Every other tokenizer encodes with `tokenizers` and its
offsets. A library is compared with `tokenizers` on one text in `_ONE_IN`, chosen by a hash of the text. After the first
difference it is not used again, and `BackendDiffers` lets a run repeat the task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from zlib import crc32

import numpy as np

from headrace.arrays import I64
from headrace.errors import MissingExtra, SettingsError
from headrace.packing.chats.byte_level import ByteLevel, Ids, WordEncoder, word_encoder_of
from headrace.packing.chats.words import BackendName

_ONE_IN = 64


class BackendDiffers(Exception):
    """A library gave ids that differ from those of `tokenizers`."""


@dataclass(frozen=True)
class Plain:
    """`tokenizers` itself, without offsets."""

    level: ByteLevel

    def encode(self, texts: Sequence[str]) -> Ids:
        """Encode texts."""
        found = [each.ids for each in self.level.tokenizer.encode_batch_fast([*texts], add_special_tokens=False)]
        counts = np.array([len(ids) for ids in found], np.int64)
        return Ids(np.fromiter(chain.from_iterable(found), np.int32, int(counts.sum())), counts)


@dataclass
class Checked:
    """A library whose ids are compared with `tokenizers` on a hashed sample. trusted: False after a difference."""

    ask: Callable[[list[str]], Ids]
    plain: Plain
    trusted: bool = True

    def encode(self, texts: Sequence[str]) -> Ids:
        """Encode texts. Raises `BackendDiffers` at the first difference; later calls use `tokenizers`."""
        if not self.trusted:
            return self.plain.encode(texts)._replace(instead=len(texts))
        found = self.ask([*texts])
        sample = [place for place, text in enumerate(texts) if crc32(text.encode()) % _ONE_IN == 0]
        ends = np.cumsum(found.counts)
        expected = self.plain.encode([texts[place] for place in sample])
        for place, own in zip(sample, np.split(expected.ids, np.cumsum(expected.counts)[:-1]), strict=False):
            if not np.array_equal(found.ids[ends[place] - found.counts[place] : ends[place]], own):
                self.trusted = False
                raise BackendDiffers
        return found._replace(compared=len(sample))


Backend = WordEncoder | Plain | Checked
"""An encoder of texts, special tokens included."""


def backend_of(name: BackendName, level: ByteLevel | None, json_text: str) -> Backend | None:
    """Choose the encoder; None if this is not byte-level BPE and the offsets of `tokenizers` are needed.

    Raises `SettingsError` for a library that cannot encode with this tokenizer, `MissingExtra`.
    """
    if name in ("auto", "tokenizers"):
        if level is None:
            return None
        return (word_encoder_of(level) if name == "auto" else None) or Plain(level)
    if level is None:
        raise SettingsError(
            f"tokenizer_backend {name!r}: encodes byte-level BPE whose added tokens take nothing beside them, which "
            "this tokenizer is not; give tokenizer_backend='auto'"
        )
    try:
        from fastokens import Tokenizer
    except ModuleNotFoundError:
        raise MissingExtra("fastokens", "fastokens") from None
    try:
        library = Tokenizer.from_json_str(json_text)
    except Exception as error:
        raise SettingsError(
            f"tokenizer_backend {name!r}: cannot load this tokenizer ({error}); give tokenizer_backend='auto'"
        ) from error

    def encode(texts: list[str]) -> Ids:
        ids, offsets = library.encode_batch_flat(texts, False)
        begins: I64 = np.frombuffer(offsets, np.int64)
        return Ids(np.frombuffer(ids, np.int32), begins[1:] - begins[:-1])

    return Checked(encode, Plain(level))
