"""Convert texts to addresses: IPv4 in 4 bytes, IPv6 in 16, each with its family; or numbers in the form of IPv4.

Arbitrary texts are numbers in rows too: their codes in a dictionary. Before the dictionary exists, the hash of a text
is stored in the form of IPv6.

Pass unique texts: the system parses them, one call per text, half a microsecond each. `text_kernels` reads columns of
millions. Only the strict forms are accepted (four decimal parts without leading zeros; no zone index), so whether a
text is an address is unambiguous. An address takes 16 bytes, IPv4 the first four of them; hashes and comparisons use
two words of those.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, U8, U64, Bools, Ints

Kind = Literal["address", "number", "text"]
KINDS: tuple[Kind, ...] = ("address", "number", "text")
_OCTETS = pa.array([str(number) for number in range(256)], pa.string())


@dataclass(frozen=True)
class Addresses:
    """Addresses as arrays.

    family: uint8 [N], 4 or 6, 0 for no address.
    bytes: uint8 [N, 16], zero after the fourth byte of IPv4.
    """

    family: U8
    bytes: U8

    @property
    def readable(self) -> Bools:
        """Mark the texts that were addresses: bool [N]."""
        return np.not_equal(self.family, 0)

    def __len__(self) -> int:
        return len(self.family)

    def take(self, places: I64) -> Addresses:
        """Return the addresses at these indices, in this order."""
        return Addresses(self.family[places], self.bytes[places])

    def words(self) -> U64:
        """Return the bytes as two big-endian words, so that words order as bytes do: uint64 [N, 2]."""
        return np.ascontiguousarray(self.bytes).view(">u8").astype(np.uint64).reshape(-1, 2)


def end_to_end(parts: Sequence[Addresses]) -> Addresses:
    """Concatenate addresses."""
    return Addresses(*(np.concatenate([getattr(each, name) for each in parts]) for name in ("family", "bytes")))


def of_words(family: U8, words: U64) -> Addresses:
    """Convert words to addresses, the inverse of `words`; family uint8 [N], words uint64 [N, 2]."""
    return Addresses(family, np.ascontiguousarray(words.astype(">u8")).view(np.uint8).reshape(-1, 16))


def parse(texts: pa.Array, kind: Kind) -> Addresses:
    """Parse texts without nulls as addresses, or as numbers from 0 to 4,294,967,295; any Arrow string type [N].

    Never raises for a text: `readable` says which were read.
    """
    texts = texts.cast(pa.large_string())
    if kind == "number":
        fits = pc.match_substring_regex(texts, r"^(0|[1-9][0-9]{0,9})$")
        numbers = pc.if_else(fits, texts, pa.scalar("-1", texts.type)).cast(pa.int64()).to_numpy()
        fitting = (numbers >= 0) & (numbers < 1 << 32)
        read = of_numbers(np.where(fitting, numbers, 0))
        return Addresses(np.where(fitting, read.family, np.uint8(0)), read.bytes)

    def packed_of(text: str) -> bytes:
        try:
            return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
        except (OSError, ValueError):
            return b""

    packed = list(map(packed_of, texts.to_pylist()))
    sizes = np.fromiter(map(len, packed), np.int64, len(packed))
    family = np.select([sizes == 4, sizes == 16], [4, 6], 0).astype(np.uint8)
    together = b"".join(each.ljust(16, b"\0") for each in packed)
    return Addresses(family, np.frombuffer(together, np.uint8).reshape(-1, 16))


def of_numbers(numbers: Ints) -> Addresses:
    """Return numbers below 2**32 as addresses: [N]."""
    data = np.zeros((len(numbers), 16), np.uint8)
    data[:, :4] = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
    return Addresses(np.full(len(numbers), 4, np.uint8), data)


def as_numbers(addresses: Addresses) -> I64:
    """Return addresses as numbers, the inverse of `of_numbers`: int64 [N]."""
    return np.ascontiguousarray(addresses.bytes[:, :4]).view(">u4").ravel().astype(np.int64)


def render(addresses: Addresses, kind: Kind, *, compiled: bool = False) -> pa.StringArray:
    """Format addresses in their usual form [N]; IPv6 compressed and in lower case, as the system writes it.

    compiled: use numba for IPv6; the texts are the same.
    """
    if kind == "number":
        return pa.array(as_numbers(addresses).astype(np.uint32)).cast(pa.string())
    fours = np.flatnonzero(addresses.family != 6)
    octets = [_OCTETS.take(pa.array(column)) for column in addresses.bytes[fours, :4].T]
    dotted = pc.binary_join_element_wise(*octets, ".")
    if len(fours) == len(addresses):
        return dotted
    sixes = np.flatnonzero(addresses.family == 6)
    if compiled:
        from headrace.histories.codec.text_kernels import format_sixes

        coloned = format_sixes(addresses.bytes[sixes])
    else:
        raw = addresses.bytes[sixes].tobytes()
        texts = [socket.inet_ntop(socket.AF_INET6, raw[at : at + 16]) for at in range(0, len(raw), 16)]
        coloned = pa.array(texts, pa.string())
    order = np.empty(len(addresses), np.int64)
    order[np.concatenate([fours, sixes])] = np.arange(len(addresses))
    return pa.concat_arrays([dotted, coloned]).take(pa.array(order))
