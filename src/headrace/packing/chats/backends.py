"""What makes the ids of texts: headrace itself word by word, or a library that was asked for and is checked.

All of them give ids end to end, and only for byte-level BPE; every other tokenizer encodes with `tokenizers` and its
offsets. A library is compared with `tokenizers` on one text in `_ONE_IN`, chosen by the text itself. At the first
difference it is not asked again, and `BackendDiffers` lets a run do the task anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from headrace.arrays import I32, I64
from headrace.errors import MissingExtra, SettingsError
from headrace.packing.chats.byte_level import ByteLevel, word_encoder_of
from headrace.packing.chats.words import BackendName

_ONE_IN = 64


class BackendDiffers(Exception):
    """A library gave other ids than `tokenizers`."""


class Backend(Protocol):
    """Encodes texts, special tokens included: ids end to end, and how many each text has. Counts are added to `tally`."""

    def encode(self, texts: Sequence[str], tally: Counter[str]) -> tuple[I32, I64]: ...


@dataclass(frozen=True)
class Plain:
    """`tokenizers` itself, without offsets."""

    level: ByteLevel

    def encode(self, texts: Sequence[str], tally: Counter[str]) -> tuple[I32, I64]:
        found = [each.ids for each in self.level.tokenizer.encode_batch_fast([*texts], add_special_tokens=False)]
        counts = np.array([len(ids) for ids in found], np.int64)
        return np.fromiter(chain.from_iterable(found), np.int32, int(counts.sum())), counts


@dataclass
class Checked:
    """A library, compared with `tokenizers` on a keyed sample. trusted: until the first difference."""

    name: str
    ask: Callable[[list[str]], tuple[I32, I64]]
    plain: Plain
    trusted: bool = True

    def encode(self, texts: Sequence[str], tally: Counter[str]) -> tuple[I32, I64]:
        """Encode. Raises `BackendDiffers` at a difference; asked again, it answers with `tokenizers`."""
        if not self.trusted:
            tally["backend_instead"] += len(texts)
            return self.plain.encode(texts, tally)
        ids, counts = self.ask([*texts])
        sample = [place for place, text in enumerate(texts) if crc32(text.encode()) % _ONE_IN == 0]
        ends = np.cumsum(counts)
        expected, sizes = self.plain.encode([texts[place] for place in sample], tally)
        tally["backend_compared"] += len(sample)
        for place, own in zip(sample, np.split(expected, np.cumsum(sizes)[:-1]), strict=False):
            if not np.array_equal(ids[ends[place] - counts[place] : ends[place]], own):
                self.trusted = False
                raise BackendDiffers(self.name)
        return ids, counts


def backend_of(name: BackendName, level: ByteLevel | None, json_text: str) -> Backend | None:
    """Choose what encodes. None where offsets of `tokenizers` are needed, as it is no byte-level BPE.

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
        library = import_module(name)
    except ModuleNotFoundError:
        raise MissingExtra(name, name) from None
    try:
        ask = (_fastokens if name == "fastokens" else _gigatoken)(library, json_text)
    except Exception as error:
        raise SettingsError(
            f"tokenizer_backend {name!r}: cannot load this tokenizer ({error}); give tokenizer_backend='auto'"
        ) from error
    return Checked(name, ask, Plain(level))


def _fastokens(library: Any, json_text: str) -> Callable[[list[str]], tuple[I32, I64]]:
    tokenizer = library.Tokenizer.from_json_str(json_text)

    def encode(texts: list[str]) -> tuple[I32, I64]:
        ids, offsets = tokenizer.encode_batch_flat(texts, False)
        return np.frombuffer(ids, np.int32), np.diff(np.frombuffer(offsets, np.int64))

    return encode


def _gigatoken(library: Any, json_text: str) -> Callable[[list[str]], tuple[I32, I64]]:
    tokenizer = library.Tokenizer.from_json(json_text)

    def encode(texts: list[str]) -> tuple[I32, I64]:
        if not texts:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        layout = tokenizer.encode_batch(texts).layout
        offsets = np.asarray(layout.offsets.data)
        return np.asarray(layout.content.data)[offsets[0] : offsets[-1]].view(np.int32), np.diff(offsets)

    return encode
