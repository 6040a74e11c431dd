"""Texts into addresses, into places, into hashes and into partitions, compiled by numba: the same as without it.

Parsing takes a tenth of a microsecond a text instead of one, so what is read needs no memo. Extra `histories`; compiled
once for a machine, which takes seconds: worth it from many thousands of texts on. The interpreter lock is not held.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, U8, U16, U64
from headrace.compiled import compiled

_DOT, _COLON = ord("."), ord(":")
_NONE = 16  # no digit
_DIGIT = np.full(256, _NONE, np.int64)
_DIGIT[[*b"0123456789abcdef"]] = np.arange(16)
_DIGIT[[*b"ABCDEF"]] = np.arange(10, 16)
_GROUPS = 8  # of an IPv6 address, 16 bits each
_LONGEST = 45  # text of an address
_MIX_A, _MIX_B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x9E3779B97F4A7C15)


def parse_texts(texts: pa.LargeStringArray) -> tuple[U8, U64]:
    """The family, 0 for what is no address, and the two big-endian words of each text: uint8 [N], uint64 [N, 2]."""
    n = len(texts)
    family, words = np.zeros(n, np.uint8), np.zeros((n, 2), np.uint64)
    if n:
        offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + n + 1]
        values = texts.buffers()[2]
        data = np.zeros(0, np.uint8) if values is None else np.frombuffer(values, np.uint8)
        _parse(data, offsets, family, words)
    return family, words


def hash_rows(key: tuple[int, int], words: U64) -> tuple[U64, U64]:
    """As `digest.hash_words`: SipHash-2-4-128 of rows of words; uint64 [N, W] → two uint64 arrays [N]."""
    high, low = np.empty(len(words), np.uint64), np.empty(len(words), np.uint64)
    _hash(np.uint64(key[0]), np.uint64(key[1]), np.ascontiguousarray(words), high, low)
    return high, low


def places_of(family: U8, words: U64) -> tuple[I64, I64]:
    """Addresses each once, in the order they first appear: the place of each among those, and where those first stand.

    family uint8 [N], words uint64 [N, 2] → int64 [N], −2 where the family is 0; int64 [D].
    """
    place, first = np.empty(len(family), np.int64), np.empty(len(family), np.int64)
    slots = np.full(max(16, 1 << (2 * len(family)).bit_length()), -1, np.int32)
    found = _places(family, words, slots, place, first)
    return place, first[:found]


def grouped(
    partition: U16, local: I64, entity: I64, micros: I64, codes: U16, peer: tuple[I64, U8, U64] | None, partitions: int
) -> tuple[U64, I64]:
    """Measurements as records, those of a partition together in their order, and how many each partition has.

    partition, local [E]: of each entity its partition and its place there; entity, micros, codes [N]; peer: of each
    measurement the place among peers [N], of each peer its family [P] and words [P, 2].
    A record is 2 words, or 4 with peers, laid out as `piece.ALONE` and `piece.WITH_PEER`: uint64 [N, 2 | 4].
    """
    counts = np.zeros(partitions, np.int64)
    out = np.empty((len(entity), 2 if peer is None else 4), np.uint64)
    none = (np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros((0, 2), np.uint64))
    _group(partition, local, entity, micros, codes, *(none if peer is None else peer), counts, out)
    return out, counts


@compiled
def _parse(data: Any, offsets: Any, family: Any, words: Any) -> None:
    groups = np.zeros(_GROUPS, np.uint64)
    for row in range(len(family)):
        start, stop = offsets[row], offsets[row + 1]
        if stop - start > _LONGEST:
            continue
        value = _dotted(data, start, stop)
        if value >= 0:
            family[row] = 4
            words[row, 0] = np.uint64(value) << np.uint64(32)
        elif _coloned(data, start, stop, groups):
            family[row] = 6
            for place in range(_GROUPS):
                shift = np.uint64(48 - 16 * (place & 3))
                words[row, place >> 2] |= groups[place] << shift


@compiled
def _dotted(data: Any, start: Any, stop: Any) -> Any:
    """Four decimal numbers of at most 255 without leading zeros, as one number; −1 if the text is not that."""
    value, parts, part, digits = 0, 0, 0, 0
    for at in range(start, stop):
        digit = _DIGIT[data[at]]
        if digit < 10:
            if digits > 0 and part == 0:
                return -1
            part = 10 * part + digit
            digits += 1
            if part > 255:
                return -1
        elif data[at] == _DOT:
            if digits == 0 or parts == 3:
                return -1
            value = (value << 8) | part
            parts, part, digits = parts + 1, 0, 0
        else:
            return -1
    if parts != 3 or digits == 0:
        return -1
    return (value << 8) | part


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
def _group(
    partition: Any, local: Any, entity: Any, micros: Any, codes: Any,
    peer: Any, peer_family: Any, peer_words: Any, counts: Any, out: Any,
) -> None:  # fmt: skip
    for row in range(len(entity)):
        counts[partition[entity[row]]] += 1
    at = np.zeros(len(counts), np.int64)
    for number in range(1, len(counts)):
        at[number] = at[number - 1] + counts[number - 1]
    last = out.shape[1] - 1
    for row in range(len(entity)):
        mine = entity[row]
        to = at[partition[mine]]
        at[partition[mine]] = to + 1
        tail = np.uint64(local[mine]) | (np.uint64(codes[row]) << np.uint64(32))
        if last == 3:
            other = peer[row]
            out[to, 1], out[to, 2] = peer_words[other, 0], peer_words[other, 1]
            tail |= np.uint64(peer_family[other]) << np.uint64(48)
        out[to, 0] = np.uint64(micros[row])
        out[to, last] = tail


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
def _hash(k0: Any, k1: Any, words: Any, high: Any, low: Any) -> None:
    width = words.shape[1]
    size = np.uint64((8 * width) & 0xFF) << np.uint64(56)
    for row in range(len(high)):
        a = k0 ^ np.uint64(0x736F6D6570736575)
        b = k1 ^ np.uint64(0x646F72616E646F6D) ^ np.uint64(0xEE)
        c = k0 ^ np.uint64(0x6C7967656E657261)
        d = k1 ^ np.uint64(0x7465646279746573)
        for column in range(width + 1):
            word = words[row, column] if column < width else size
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
