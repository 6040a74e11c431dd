"""Texts as addresses: IPv4 in 4 bytes, IPv6 in 16, each with its own family; or numbers in the place of IPv4.

Give unique texts: IPv4 is parsed for the whole column at once, IPv6 by the system, one call a text. Only the strict
forms are read (four decimal parts without leading zeros; no zone index), so that a text is an address or is not.
An address is kept in 16 bytes, IPv4 in the first four of them; two words of those are what is hashed and compared.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import U8, U64, Bools

Kind = Literal["address", "number"]
KINDS: tuple[Kind, ...] = ("address", "number")


_DOT, _ZERO, _SPACE = ord("."), ord("0"), ord(" ")
_V4_PATTERN = r"^[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}$"

# Each number of a byte with a dot behind it: four letters as a word, which of them are no padding, which are before the
# dot, and how many are no padding.
_LETTERS = np.frombuffer("".join(f"{number}.".ljust(4) for number in range(256)).encode(), np.uint8).reshape(256, 4)
_NUMBERS = _LETTERS.view(np.uint32).ravel()
_IS_WRITTEN = np.not_equal(_LETTERS, _SPACE)
_WRITTEN = _IS_WRITTEN.view(np.uint32).ravel()
_BEFORE_DOT = np.greater(_LETTERS, _DOT).view(np.uint32).ravel()
_SIZES = _IS_WRITTEN.sum(axis=1, dtype=np.int32)


@dataclass(frozen=True)
class Addresses:
    """family uint8 [N]: 4 or 6, 0 for no address; bytes uint8 [N, 16], zero behind the fourth of IPv4."""

    family: U8
    bytes: U8

    @property
    def readable(self) -> Bools:
        """Which texts were addresses: bool [N]."""
        return np.not_equal(self.family, 0)

    def __len__(self) -> int:
        return len(self.family)

    def take(self, places: npt.NDArray[np.int64]) -> Addresses:
        """Those at these places, in this order."""
        return Addresses(self.family[places], self.bytes[places])

    def words(self) -> U64:
        """The bytes as two big-endian words, so that words order as bytes do: uint64 [N, 2]."""
        return np.ascontiguousarray(self.bytes).view(">u8").astype(np.uint64).reshape(-1, 2)


def of_words(family: U8, words: U64) -> Addresses:
    """The inverse of `words`; family uint8 [N], words uint64 [N, 2]."""
    return Addresses(family, np.ascontiguousarray(words.astype(">u8")).view(np.uint8).reshape(-1, 16))


def parse(texts: pa.Array, kind: Kind) -> Addresses:
    """Read texts without nulls as addresses, or as numbers from 0 to 4,294,967,295; any Arrow string type [N].

    Never raises for a text: `readable` says which were read.
    """
    texts = texts.cast(pa.large_string())
    family, data = np.zeros(len(texts), np.uint8), np.zeros((len(texts), 16), np.uint8)
    if kind == "number":
        fits = pc.match_substring_regex(texts, r"^(0|[1-9][0-9]{0,9})$").to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(fits)
        numbers = texts.take(pa.array(rows)).cast(pa.int64()).to_numpy()
        rows, numbers = rows[numbers < 1 << 32], numbers[numbers < 1 << 32]
        family[rows] = 4
        data[rows, :4] = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
        return Addresses(family, data)
    fits = pc.match_substring_regex(texts, _V4_PATTERN).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(fits)
    parts, strict = _v4_parts(texts.take(pa.array(rows)))
    family[rows[strict]] = 4
    data[rows[strict], :4] = parts[strict]
    colon = pc.match_substring(texts, ":").to_numpy(zero_copy_only=False)
    packed = _v6_packed(texts.filter(pa.array(colon)).to_pylist())
    known = np.array([each is not None for each in packed], np.bool_)
    rows = np.flatnonzero(colon)[known]
    family[rows] = 6
    data[rows] = np.frombuffer(b"".join(each for each in packed if each is not None), np.uint8).reshape(-1, 16)
    return Addresses(family, data)


def _v6_packed(texts: list[str]) -> list[bytes] | list[bytes | None]:
    """The 16 bytes of each text, None where it is no IPv6 address."""
    try:
        return [socket.inet_pton(socket.AF_INET6, text) for text in texts]
    except (OSError, ValueError):  # one is none: find out which, a call in its own guard each
        return [_v6_or_none(text) for text in texts]


def _v6_or_none(text: str) -> bytes | None:
    try:
        return socket.inet_pton(socket.AF_INET6, text)
    except (OSError, ValueError):
        return None


def _v4_parts(texts: pa.Array) -> tuple[U8, Bools]:
    """Four numbers of each dotted text, and which texts are strict. texts: of `_V4_PATTERN`, [N] → [N, 4], [N]."""
    n = len(texts)
    if n == 0:
        return np.zeros((0, 4), np.uint8), np.zeros(0, np.bool_)
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + n + 1]
    data = np.frombuffer(texts.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    starts, ends = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
    dots = np.flatnonzero(data == _DOT).reshape(n, 3)
    first = np.column_stack([starts, dots + 1])
    size = np.column_stack([dots, ends]) - first
    value = np.zeros((n, 4), np.int64)
    for place in range(3):
        there = size > place
        digit = data[np.where(there, first + place, 0)].astype(np.int64) - _ZERO
        value = np.where(there, value * 10 + digit, value)
    strict = (value <= 255) & ((size == 1) | (data[first] != _ZERO))
    return value.astype(np.uint8), strict.all(axis=1)


def render(addresses: Addresses, kind: Kind) -> list[str]:
    """Texts of addresses in their usual form; IPv6 compressed in small letters, as the system writes it.

    For people and metadata: half a microsecond each.
    """
    raw = addresses.bytes.tobytes()
    if kind == "number":
        numbers = np.ascontiguousarray(addresses.bytes[:, :4]).view(">u4").ravel()
        return [str(number) for number in numbers.tolist()]
    return [
        socket.inet_ntop(socket.AF_INET6, raw[at : at + 16]) if family == 6 else socket.inet_ntoa(raw[at : at + 4])
        for at, family in zip(range(0, len(raw), 16), addresses.family.tolist(), strict=True)
    ]


def texts(addresses: Addresses, kind: Kind, *, compiled: bool = False) -> pa.StringArray:
    """The same as a column [N]; IPv4 and numbers in a quarter of the time. compiled: addresses by numba, in a tenth."""
    if compiled and kind == "address":
        from headrace.histories.codec.text_kernels import render_texts

        return render_texts(addresses)
    if kind == "number":
        numbers = np.ascontiguousarray(addresses.bytes[:, :4]).view(">u4").ravel()
        return pa.array(numbers.astype(np.uint32)).cast(pa.string())
    six = addresses.family == 6
    if not six.any():
        return _dotted(addresses.bytes[:, :4])
    fours, sixes = np.flatnonzero(~six), np.flatnonzero(six)
    together = [_dotted(addresses.bytes[fours, :4]), pa.array(render(addresses.take(sixes), kind), pa.string())]
    return pa.concat_arrays(together).take(pa.array(np.argsort(np.concatenate([fours, sixes]))))


def _dotted(data: U8) -> pa.StringArray:
    """Texts of IPv4: [N, 4] → [N]."""
    letters, kept = _NUMBERS[data], _WRITTEN[data]
    sizes = _SIZES[data]
    kept[:, 3] &= _BEFORE_DOT[data[:, 3]]
    ends = np.zeros(len(data) + 1, np.int32)
    np.cumsum(sizes[:, 0] + sizes[:, 1] + sizes[:, 2] + sizes[:, 3] - 1, out=ends[1:])
    written = letters.view(np.uint8).ravel()[kept.view(np.bool_).ravel()]
    return pa.StringArray.from_buffers(len(data), pa.py_buffer(ends), pa.py_buffer(written))
