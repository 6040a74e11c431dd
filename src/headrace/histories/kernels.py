"""Texts into addresses, into places and into hashes, compiled by numba: the same as without it.

Parsing takes a tenth of a microsecond a text instead of one, so what is read needs no memo. Extra `histories`; compiled
once for a machine, which takes seconds: worth it from many thousands of texts on. The interpreter lock is not held.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U8, U64, Ints
from headrace.compiled import compiled, read_only

_DOT, _COLON, _ZERO, _NINE = (ord(letter) for letter in ".:09")
_NONE = 16  # no digit
_DIGIT = np.full(256, _NONE, np.int64)
_DIGIT[[*b"0123456789abcdef"]] = np.arange(16)
_DIGIT[[*b"ABCDEF"]] = np.arange(10, 16)
_GROUPS = 8  # of an IPv6 address, 16 bits each
_LONGEST, _LONGEST_DOTTED = 45, 15  # text of an address
_8, _16, _32, _BYTE = (np.uint64(each) for each in (8, 16, 32, 0xFF))
_EVERY_8, _EVERY_16 = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_SIZE = np.uint64(24 << 56)  # bytes that are hashed, as the last word of SipHash has it
_MIX_A, _MIX_B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x9E3779B97F4A7C15)


def parse_texts(texts: pa.StringArray | pa.LargeStringArray) -> tuple[U8, U8]:
    """The family, 0 for what is no address, and the bytes of each text: uint8 [N], uint8 [N, 16]."""
    n = len(texts)
    family, data = np.zeros(n, np.uint8), np.zeros((n, 16), np.uint8)
    if n:
        values = texts.buffers()[2]
        letters = np.zeros(0, np.uint8) if values is None else np.frombuffer(values, np.uint8)
        _parse(read_only(letters), read_only(offsets_of(texts)), family, data.view(np.uint16))
    return family, data


def offsets_of(texts: pa.StringArray | pa.LargeStringArray) -> Ints:
    """Where each text begins and the last ends: [N + 1]."""
    width: type[np.integer] = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    if not len(texts):
        return np.zeros(1, width)
    return np.frombuffer(texts.buffers()[1], width)[texts.offset : texts.offset + len(texts) + 1]


def hash_addresses(key: tuple[int, int], family: U8, data: U8, above: int) -> tuple[U64, U64]:
    """As `digest.hash_words` of three words each: SipHash-2-4-128 of the family below a number, and of the 16 bytes as
    two words, the first byte uppermost. family uint8 [N], data uint8 [N, 16] → two uint64 arrays [N]."""
    high, low = np.empty(len(family), np.uint64), np.empty(len(family), np.uint64)
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
def _parse(letters: Any, offsets: Any, family: Any, halves: Any) -> None:
    """halves uint16 [N, 8]: of the bytes of the address."""
    groups = np.zeros(_GROUPS, np.uint64)
    for row in range(len(family)):
        start, stop = np.int64(offsets[row]), np.int64(offsets[row + 1])
        if stop - start > _LONGEST:
            continue
        colon = False
        for at in range(start, min(start + 5, stop)):  # where one of IPv6 has one
            colon |= letters[at] == _COLON
        if colon:
            if _coloned(letters, start, stop, groups):
                family[row] = 6
                for place in range(_GROUPS):
                    halves[row, place] = ((groups[place] & _BYTE) << _8) | (groups[place] >> _8)
            continue
        value = _dotted(letters, start, stop)
        if value >= 0:
            family[row] = 4
            halves[row, 0] = (value >> 24) | ((value >> 8) & 0xFF00)
            halves[row, 1] = ((value >> 8) & 0xFF) | ((value & 0xFF) << 8)


@compiled
def _dotted(letters: Any, start: Any, stop: Any) -> Any:
    """Four decimal numbers of at most 255 without leading zeros, as one number; −1 if the text is not that.

    A letter costs no jump, as a processor could not guess which are dots. Leading zeros show in the length.
    """
    if stop - start > _LONGEST_DOTTED:
        return -1
    value: Any = 0
    part: Any = 0
    parts: Any = 1
    large: Any = 0
    wrong: Any = 0
    before: Any = -1
    for at in range(start, stop):
        letter = np.int64(letters[at])
        dot = -np.int64(letter == _DOT)  # all bits, or none
        wrong |= (-np.int64((letter < _ZERO) | (letter > _NINE)) & ~dot) | (dot & before)
        before = dot
        value ^= (value ^ ((value << 8) | part)) & dot
        parts -= dot
        part = (10 * part + letter - _ZERO) & ~dot
        large |= part
    value = (value << 8) | part
    if wrong != 0 or before != 0 or parts != 4 or large > 255:
        return -1
    length = 3
    for place in range(4):
        part = (value >> (8 * place)) & 0xFF
        length += 1 + (part > 9) + (part > 99)
    return value if length == stop - start else -1


@compiled
def _coloned(data: Any, start: Any, stop: Any, groups: Any) -> Any:
    """Whether the text is eight groups of hexadecimal digits, `::` once for those that are zero; fills `groups`.

    The last two groups may be dotted.
    """
    groups[:] = 0
    at, count, gap, digits = start, 0, -1, 0
    value = 0
    if at < stop and data[at] == _COLON:  # only as the first half of ::
        at += 1
        if at == stop or data[at] != _COLON:
            return False
    group_at = at
    while at < stop:
        digit = _DIGIT[data[at]]
        if digit != _NONE:
            if digits == 4:
                return False
            value = (value << 4) | digit
            digits += 1
            at += 1
        elif data[at] == _COLON:
            at += 1
            group_at = at
            if digits == 0:
                if gap >= 0:
                    return False
                gap = count
                continue
            if at == stop or count == _GROUPS:  # a single colon is followed by something
                return False
            groups[count] = value
            count, value, digits = count + 1, 0, 0
        elif data[at] == _DOT:
            if count + 2 > _GROUPS:
                return False
            four = _dotted(data, group_at, stop)
            if four < 0:
                return False
            groups[count], groups[count + 1] = four >> 16, four & 0xFFFF
            count, digits = count + 2, 0
            break
        else:
            return False
    if digits > 0:
        if count == _GROUPS:
            return False
        groups[count] = value
        count += 1
    if gap < 0:
        return count == _GROUPS
    if count == _GROUPS:  # a gap of no group
        return False
    behind = count - gap
    for place in range(1, behind + 1):
        groups[_GROUPS - place] = groups[count - place]
    for place in range(gap, _GROUPS - behind):
        groups[place] = 0
    return True


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
def _round(a: Any, b: Any, c: Any, d: Any) -> Any:
    a = a + b
    b = ((b << np.uint64(13)) | (b >> np.uint64(51))) ^ a
    a = (a << np.uint64(32)) | (a >> np.uint64(32))
    c = c + d
    d = ((d << np.uint64(16)) | (d >> np.uint64(48))) ^ c
    a = a + d
    d = ((d << np.uint64(21)) | (d >> np.uint64(43))) ^ a
    c = c + b
    b = ((b << np.uint64(17)) | (b >> np.uint64(47))) ^ c
    c = (c << np.uint64(32)) | (c >> np.uint64(32))
    return a, b, c, d


@compiled
def _swapped(x: Any) -> Any:
    """The bytes of a word from the other end."""
    x = ((x >> _8) & _EVERY_8) | ((x & _EVERY_8) << _8)
    x = ((x >> _16) & _EVERY_16) | ((x & _EVERY_16) << _16)
    return (x >> _32) | (x << _32)


@compiled
def _hash(k0: Any, k1: Any, family: Any, above: Any, words: Any, high: Any, low: Any) -> None:
    for row in range(len(high)):
        a = k0 ^ np.uint64(0x736F6D6570736575)
        b = k1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
        c = k0 ^ np.uint64(0x6C7967656E657261)
        d = k1 ^ np.uint64(0x7465646279746573)
        for word in (np.uint64(family[row]) | above, _swapped(words[row, 0]), _swapped(words[row, 1]), _SIZE):
            d ^= word
            a, b, c, d = _round(a, b, c, d)
            a, b, c, d = _round(a, b, c, d)
            a ^= word
        c ^= np.uint64(0xEE)
        for _ in range(4):
            a, b, c, d = _round(a, b, c, d)
        high[row] = a ^ b ^ c ^ d
        b ^= np.uint64(0xDD)
        for _ in range(4):
            a, b, c, d = _round(a, b, c, d)
        low[row] = a ^ b ^ c ^ d
