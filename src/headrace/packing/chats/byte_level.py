"""Encode byte-level BPE word by word: ids without offsets, and where tokens begin in bytes.

Most tokenizers of chat models cut a text at their added tokens, cut the rest into words by a pattern, and merge the
bytes of each word. Words repeat, so their ids are cached, and only the pattern has to run on a text. The tokenizer's
own model merges a new word. A token has as many bytes as its name has characters, so `masks_by_bytes` needs no
offsets. Where bytes do not decide, `token_runs` finds the tokens of spans by their offsets.

Ids are exactly those of `tokenizers`. The pattern is translated for Python's `re`, with the characters of each class
spelled out. Only characters whose class has been the same since Unicode 3.2 count as known. `tokenizers` encodes parts
of texts with other characters, parts that normalising would change, and everything if the tokenizer has a form that is
not supported here.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple
from unicodedata import category, is_normalized, ucd_3_2_0

import numpy as np

from headrace.arrays import I32, I64, U8, borders_of
from headrace.packing.chats.marks import Span

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern that `ByteLevel` cuts texts with by default."""

_MOST_WORDS = 1 << 18
_LONG_WORD = 64  # characters; longer words rarely repeat
_MOST_KEPT = 4 << 20  # characters of parts that may repeat, such as system prompts
_SPACES = "\t\n\v\f\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_FOLDED = frozenset("\u017f\u212a")  # a case-insensitive pattern matches them as s and k
_NO_CHARACTER = "\uffff"
_CLASS = re.compile(r"\\p\{(\w\w?)\}|\\([sdrnt])|(\\[^\w])|([^\\])", re.DOTALL)
_PROBES = ("a", "B", "7", " ", "\n", "\r", "'", ".", "é", "\u3000", "'s", "\t")


def _alphabet() -> dict[int, str]:
    """Map each byte to the character that the names of tokens use for it."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + place) for place, byte in enumerate(others)}}


class Ids(NamedTuple):
    """Ids of texts, end to end, and the count of each text. compared, instead: numbers of texts, see `backends`."""

    ids: I32
    counts: I64
    compared: int = 0
    instead: int = 0


class ByteLevel:
    """A byte-level BPE tokenizer. lengths: bytes of each token. pattern: cuts out words. nfc: whether it normalises.

    added: ids of added tokens by their text.
    """

    def __init__(self, tokenizer: Tokenizer, lengths: I64, pattern: str | None, added: Mapping[str, int], *, nfc: bool):
        self.tokenizer, self.lengths, self.pattern, self.added, self.nfc = tokenizer, lengths, pattern, added, nfc

    def changes(self, text: str) -> bool:
        """Return whether normalising changes a text, so that its tokens do not cover its own bytes."""
        return self.nfc and not text.isascii() and not is_normalized("NFC", text)


def byte_level_of(tokenizer: Tokenizer) -> ByteLevel | None:
    """Read the form of a tokenizer; None if it is not byte-level BPE, or has a part that is not known to be exact."""
    model, normalizer = tokenizer.model, _state(tokenizer.normalizer)
    if type(model).__name__ != "BPE" or any(
        getattr(model, name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
    ):
        return None
    if normalizer.get("type") == "Sequence" and not normalizer["normalizers"]:
        normalizer = {}
    if normalizer not in ({}, {"type": "NFC"}):
        return None
    whole = _state(tokenizer.pre_tokenizer)
    steps = [*whole["pretokenizers"]] if whole.get("type") == "Sequence" else [whole]
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space", True):
        return None
    if any(each.get("type") not in ("Split", "Digits") for each in steps[:-1]):
        return None
    tokens = tokenizer.get_added_tokens_decoder()
    if any(each.lstrip or each.rstrip or each.single_word or each.normalized for each in tokens.values()):
        return None
    added = {each.content: number for number, each in tokens.items()}
    known, signs = tokenizer.get_vocab(with_added_tokens=True), frozenset(_alphabet().values())
    lengths = np.zeros(1 + max(known.values(), default=-1), np.int64)
    for token, number in known.items():
        lengths[number] = len(token.encode()) if token in added else len(token) if signs.issuperset(token) else 0
    return ByteLevel(tokenizer, lengths, _pattern(steps), added, nfc=bool(normalizer))


def _state(part: Any) -> dict[str, Any]:
    """Return the settings that a part of a tokenizer was made of."""
    found: dict[str, Any] = {} if part is None else json.loads(part.__getstate__())
    return found


def _pattern(steps: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the pattern that cuts words; None if cutting needs more than one pattern."""
    if len(steps) == 1:
        return GPT2 if steps[0].get("use_regex", True) else None
    first, last = steps[0], steps[-1]
    isolated = first.get("behavior") == "Isolated" and not first.get("invert")
    if len(steps) != 2 or not isolated or last.get("use_regex", True):
        return None
    pattern = first.get("pattern", {}).get("Regex")
    return pattern if isinstance(pattern, str) else None


@cache
def _known_characters() -> dict[str, str]:
    """Return the ranges of known characters beyond ASCII, by category."""
    found: dict[str, list[list[int]]] = {}
    for number in range(0x80, 0x30000):
        sign = chr(number)
        kind = category(sign)
        if kind != ucd_3_2_0.category(sign) or kind in ("Cn", "Cs") or sign in _FOLDED:
            continue
        runs = found.setdefault(kind, [])
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return {
        kind: "".join(chr(low) if low == high else f"{chr(low)}-{chr(high)}" for low, high in runs)
        for kind, runs in found.items()
    }


def _characters(name: str, wide: bool) -> str:
    """Return the characters of a Unicode category, or group of them, for use inside brackets of a pattern."""
    own = [sign for sign in map(chr, range(128)) if category(sign).startswith(name)]
    found = "".join(map(re.escape, own))
    if wide:
        found += "".join(ranges for kind, ranges in sorted(_known_characters().items()) if kind.startswith(name))
    return found or _NO_CHARACTER


def translated(pattern: str, wide: bool) -> re.Pattern[str] | None:
    """Translate a pattern of a tokenizer for `re`, with its classes spelled out; None if it holds anything unusual.

    wide: include all known characters, not ASCII alone.
    """
    spaces = _SPACES if wide else "\t\n\v\f\r "
    found: list[str] = []
    within, at = False, 0
    while at < len(pattern):
        match = _CLASS.match(pattern, at)
        if match is None and pattern.startswith("\\S", at) and not within:
            found.append(f"[^{spaces}]")
            at += 2
            continue
        if match is None:
            return None
        at = match.end()
        name, short, escaped, plain = match.groups()
        if name or short in ("s", "d"):
            inner = _characters(name or "Nd", wide) if short != "s" else spaces
            found.append(inner if within else f"[{inner}]")
        elif plain in (("[", "&", "#") if within else (".",)) or (plain in ("+", "?") and found[-1:] == ["}"]):
            return None  # has another meaning there
        elif plain in ("[", "]"):
            within = plain == "["
            found.append(plain)
        else:
            found.append(match[0] if short or escaped else plain)
    try:
        return re.compile("".join(found))
    except re.error:
        return None


class Words(dict[str, bytes]):
    """A bounded cache of the ids of words, as bytes of int32. The model merges new words. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenize = tokenizer.model.tokenize
        self._signs = _alphabet()

    def __missing__(self, word: str) -> bytes:
        name = word.encode().decode("latin-1").translate(self._signs)
        ids = array("i", [token.id for token in self._tokenize(name)]).tobytes()
        if len(word) <= _LONG_WORD:
            if len(self) >= _MOST_WORDS:
                self.clear()
            self[word] = ids
        return ids


class WordEncoder:
    """Encoder of texts, word by word."""

    def __init__(self, level: ByteLevel, narrow: re.Pattern[str], wide: re.Pattern[str]) -> None:
        self._level, self._words = level, Words(level.tokenizer)
        self._narrow, self._wide = narrow.findall, wide.findall
        known = "".join(_known_characters().values())
        self._unknown = re.compile(f"[^\x00-\x7f{known}]").search
        tokens = sorted(level.added, key=lambda each: (-len(each), each))
        self._cut = re.compile(f"({'|'.join(map(re.escape, tokens)) or '(?!)'})").split
        self._added = {text: array("i", [number]).tobytes() for text, number in level.added.items()}
        self._parts: dict[str, bytes] = {}
        self._kept = 0

    def encode(self, texts: Sequence[str]) -> Ids:
        """Encode texts."""
        found: list[bytes] = []
        counts = np.empty(len(texts), np.int64)
        parts, added = self._parts, self._added
        for place, text in enumerate(texts):
            size = 0
            for number, part in enumerate(self._cut(text)):
                if number & 1:
                    ids = added[part]
                elif not part:
                    continue
                else:
                    kept = parts.get(part)
                    ids = self._of_part(part) if kept is None else kept
                found.append(ids)
                size += len(ids)
            counts[place] = size >> 2
        return Ids(np.frombuffer(b"".join(found), np.int32), counts)

    def _of_part(self, part: str) -> bytes:
        if part.isascii():
            ids = b"".join(map(self._words.__getitem__, self._narrow(part)))
        elif self._unknown(part) or self._level.changes(part):
            own = self._level.tokenizer.encode(part, add_special_tokens=False).ids
            ids = array("i", own).tobytes()
        else:
            ids = b"".join(map(self._words.__getitem__, self._wide(part)))
        if self._kept > _MOST_KEPT:
            self._kept = 0
            self._parts.clear()
        if len(part) <= _MOST_KEPT:
            self._kept += len(part)
            self._parts[part] = ids
        return ids


def word_encoder_of(level: ByteLevel) -> WordEncoder | None:
    """Build an encoder for a tokenizer; None if its pattern cannot be translated, or a probe differs."""
    if level.pattern is None:
        return None
    narrow, wide = (translated(level.pattern, each) for each in (False, True))
    if narrow is None or wide is None:
        return None
    found = WordEncoder(level, narrow, wide)
    # All triples of kinds of characters, and ASCII.
    probes = ["".join(f"{first}{second}{third}x" for second, third in product(_PROBES, _PROBES)) for first in _PROBES]
    probes.append("".join(map(chr, range(128))))
    ids, counts, *_ = found.encode(probes)
    expected = level.tokenizer.encode_batch(probes, add_special_tokens=False)
    same = [own.tolist() for own in np.split(ids, np.cumsum(counts)[:-1])] == [each.ids for each in expected]
    return found if same else None


def masks_by_bytes(
    level: ByteLevel, texts: Sequence[str], spans: Sequence[Sequence[Span]], encoded: Ids
) -> list[tuple[I32, U8] | None]:
    """Return ids and mask of each text; None if bytes do not decide, as when a token straddles a border.

    encoded: ids of all texts end to end.
    """
    if not texts:
        return []
    ids, counts, *_ = encoded
    begins = borders_of(level.lengths[ids])  # of tokens, in bytes of all texts
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
