"""Convert texts to addresses: IPv4 in 4 bytes, IPv6 in 16, each with its family; or numbers in the
form of IPv4.

Arbitrary texts are numbers in rows too: their codes in a dictionary. Before the dictionary exists,
the hash of a text is stored in the form of IPv6.

Only the strict forms are accepted (four decimal parts without leading zeros; no zone index), so
whether a text is an address is unambiguous. An address takes 16 bytes, IPv4 the first four of them;
hashes and comparisons use two words of those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, U8, U64, Ints
from headrace.histories import IdKind
from headrace.histories.codec.text_kernels import format_ipv6, parse_texts

_OCTETS = pa.array([str(number) for number in range(256)], pa.string())


@dataclass(frozen=True)
class Addresses:
    """Addresses as arrays.

    family: uint8 [N], 4 or 6, 0 for no address.
    bytes: uint8 [N, 16], zero after the fourth byte of IPv4.
    """

    family: U8
    bytes: U8

    def __len__(self) -> int:
        return len(self.family)

    def take(self, indices: I64) -> Addresses:
        """Return the addresses at these indices, in this order."""
        return Addresses(self.family[indices], self.bytes[indices])

    def words(self) -> U64:
        """Return the bytes as two big-endian words, so that words order as bytes do: uint64
        [N, 2].
        """
        return np.ascontiguousarray(self.bytes).view(">u8").astype(np.uint64).reshape(-1, 2)


NO_ADDRESSES = Addresses(np.zeros(0, np.uint8), np.zeros((0, 16), np.uint8))


def concatenate(parts: Sequence[Addresses]) -> Addresses:
    """Lay addresses end to end."""
    return Addresses(
        np.concatenate([part.family for part in parts]),
        np.concatenate([part.bytes for part in parts]),
    )


def from_words(family: U8, words: U64) -> Addresses:
    """Convert words to addresses, the inverse of `words`; family uint8 [N], words uint64 [N, 2]."""
    data = np.ascontiguousarray(words.astype(">u8")).view(np.uint8)
    return Addresses(family, data.reshape(-1, 16))


def from_native_words(words: U64) -> Addresses:
    """Convert rows of `kernels.distinct` over bytes to addresses: their 16 bytes as two words, and
    the family, [N, 3].
    """
    data = np.ascontiguousarray(words[:, :2]).view(np.uint8)
    return Addresses(words[:, 2].astype(np.uint8), data)


def parse(texts: pa.Array, id_kind: IdKind) -> Addresses:
    """Parse texts as addresses, or texts without nulls as numbers from 0 to 4,294,967,295; any
    Arrow string type [N].

    Never raises for a text: the family is 0 for those that cannot be read.
    """
    if id_kind == "address":
        return Addresses(*parse_texts(texts))
    texts = texts.cast(pa.large_string())
    fits = pc.match_substring_regex(texts, r"^(0|[1-9][0-9]{0,9})$")
    numbers = pc.if_else(fits, texts, pa.scalar("-1", texts.type)).cast(pa.int64()).to_numpy()
    in_range = (numbers >= 0) & (numbers < 1 << 32)
    addresses = from_numbers(np.where(in_range, numbers, 0))
    return Addresses(np.where(in_range, addresses.family, np.uint8(0)), addresses.bytes)


def from_numbers(numbers: Ints) -> Addresses:
    """Return numbers below 2**32 as addresses: [N]."""
    data = np.zeros((len(numbers), 16), np.uint8)
    data[:, :4] = numbers.astype(">u4").view(np.uint8).reshape(-1, 4)
    return Addresses(np.full(len(numbers), 4, np.uint8), data)


def to_numbers(addresses: Addresses) -> I64:
    """Return addresses as numbers, the inverse of `from_numbers`: int64 [N]."""
    return np.ascontiguousarray(addresses.bytes[:, :4]).view(">u4").ravel().astype(np.int64)


def render(addresses: Addresses, id_kind: IdKind) -> pa.StringArray:
    """Format addresses in their usual form [N]; IPv6 compressed and in lower case, as the system
    writes it.
    """
    if id_kind == "number":
        return pa.array(to_numbers(addresses).astype(np.uint32)).cast(pa.string())
    is_ipv6 = addresses.family == 6
    ipv4_rows = np.flatnonzero(~is_ipv6)
    octets = [_OCTETS.take(pa.array(column)) for column in addresses.bytes[ipv4_rows, :4].T]
    dotted = pc.binary_join_element_wise(*octets, ".")
    if not is_ipv6.any():
        return dotted
    ipv6_rows = np.flatnonzero(is_ipv6)
    order = np.empty(len(addresses), np.int64)
    order[np.concatenate([ipv4_rows, ipv6_rows])] = np.arange(len(addresses))
    texts = pa.concat_arrays([dotted, format_ipv6(addresses.bytes[ipv6_rows])])
    return texts.take(pa.array(order))
