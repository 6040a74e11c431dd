"""Addresses into places and into hashes, compiled by numba: the same as without it. Extra `histories`."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from headrace.arrays import I64, U8, U64
from headrace.compiled import compiled, read_only

_SIZE = np.uint64(24 << 56)  # bytes that are hashed, as the last word of SipHash has it
_INITIAL_A, _INITIAL_B = np.uint64(0x736F6D6570736575), np.uint64(0x646F72616E646F6D ^ 0xEE)
_INITIAL_C, _INITIAL_D = np.uint64(0x6C7967656E657261), np.uint64(0x7465646279746573)
_FINISH_HIGH, _FINISH_LOW = np.uint64(0xEE), np.uint64(0xDD)
_8, _13, _16, _17, _21, _32, _64 = (np.uint64(each) for each in (8, 13, 16, 17, 21, 32, 64))
_EVERY_8, _EVERY_16 = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_MIX_A, _MIX_B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x9E3779B97F4A7C15)


def hash_addresses(
    key: tuple[int, int], family: U8, data: U8, above: int, *, half: Literal["both", "high"] = "both"
) -> tuple[U64, U64]:
    """As `digest.hash_words` of three words each: SipHash-2-4-128 of the family below a number, and of the 16 bytes as
    two words, the first byte uppermost. family uint8 [N], data uint8 [N, 16] → two uint64 arrays [N].

    half: with "high" the second is empty, and a quarter of the work is spared.
    """
    high, low = np.empty(len(family), np.uint64), np.empty(len(family) if half == "both" else 0, np.uint64)
    _hash(
        np.uint64(key[0]), np.uint64(key[1]), read_only(family), np.uint64(above << 8),
        read_only(data.view(np.uint64)), high, low,
    )  # fmt: skip
    return high, low


def places_of(family: U8, data: U8) -> tuple[I64, I64]:
    """Addresses each once, in the order they first appear: the place of each among those, and where those first stand.

    family uint8 [N], data uint8 [N, 16] → int64 [N], −2 where the family is 0; int64 [D].
    """
    place, first = np.empty(len(family), np.int64), np.empty(len(family), np.int64)
    slots = np.full(max(16, 1 << (2 * len(family)).bit_length()), -1, np.int32)
    found = _places(read_only(family), read_only(data.view(np.uint64)), slots, place, first)
    return place, first[:found]


@compiled
def _places(family: Any, words: Any, slots: Any, place: Any, first: Any) -> Any:
    """An open hash table of rows; returns how many are distinct."""
    mask = np.uint64(len(slots) - 1)
    found = 0
    for row in range(len(family)):
        if family[row] == 0:
            place[row] = -2
            continue
        mixed = (words[row, 0] ^ (words[row, 1] * _MIX_A) ^ np.uint64(family[row])) * _MIX_B
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIX_A
        slot = (mixed >> np.uint64(24)) & mask
        while True:
            number = slots[slot]
            if number < 0:
                slots[slot] = found
                first[found] = row
                place[row] = found
                found += 1
                break
            other = first[number]
            if words[other, 0] == words[row, 0] and words[other, 1] == words[row, 1] and family[other] == family[row]:
                place[row] = number
                break
            slot = (slot + np.uint64(1)) & mask
    return found


@compiled
def _hash(k0: Any, k1: Any, family: Any, above: Any, words: Any, high: Any, low: Any) -> None:
    """SipHash-2-4-128 of each row: three words, and their size. low: left alone if it is empty."""
    for row in range(len(family)):
        a, b, c, d = k0 ^ _INITIAL_A, k1 ^ _INITIAL_B, k0 ^ _INITIAL_C, k1 ^ _INITIAL_D
        for number in range(4):
            if number == 0:
                word = np.uint64(family[row]) | above
            elif number == 3:
                word = _SIZE
            else:
                word = _swapped(words[row, number - 1])
            d ^= word
            a, b, c, d = _round(*_round(a, b, c, d))
            a ^= word
        a, b, c, d = _round(*_round(*_round(*_round(a, b, c ^ _FINISH_HIGH, d))))
        high[row] = a ^ b ^ c ^ d
        if len(low):
            a, b, c, d = _round(*_round(*_round(*_round(a, b ^ _FINISH_LOW, c, d))))
            low[row] = a ^ b ^ c ^ d


@compiled
def _round(a: Any, b: Any, c: Any, d: Any) -> Any:
    a, c = a + b, c + d
    b, d, a = _turned(b, _13) ^ a, _turned(d, _16) ^ c, _turned(a, _32)
    a, c = a + d, c + b
    d, b, c = _turned(d, _21) ^ a, _turned(b, _17) ^ c, _turned(c, _32)
    return a, b, c, d


@compiled
def _turned(word: Any, bits: Any) -> Any:
    return (word << bits) | (word >> (_64 - bits))


@compiled
def _swapped(word: Any) -> Any:
    """Reverse the bytes of a word."""
    word = ((word >> _8) & _EVERY_8) | ((word & _EVERY_8) << _8)
    word = ((word >> _16) & _EVERY_16) | ((word & _EVERY_16) << _16)
    return _turned(word, _32)
