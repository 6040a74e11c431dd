"""Encode latencies, hash addresses, find distinct ones, and group measurements by partition.

Extra `histories`.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from headrace.arrays import U8, U32, U64
from headrace.compiled import compiled, kernel
from headrace.draws import GAMMA, MIX_A, mix
from headrace.histories.codec.values import LARGEST_US

_SIZE = np.uint64(24 << 56)  # the number of hashed bytes, in the format of the last word of SipHash
_INITIAL_A = np.uint64(0x736F6D6570736575)
_INITIAL_B = np.uint64(0x646F72616E646F6D ^ 0xEE)
_INITIAL_C = np.uint64(0x6C7967656E657261)
_INITIAL_D = np.uint64(0x7465646279746573)
_FINISH_HIGH = np.uint64(0xEE)
_FINISH_LOW = np.uint64(0xDD)
_8, _13, _16, _17, _21, _29, _32, _48, _64 = (
    np.uint64(number) for number in (8, 13, 16, 17, 21, 29, 32, 48, 64)
)
_EVERY_8 = np.uint64(0x00FF00FF00FF00FF)
_EVERY_16 = np.uint64(0x0000FFFF0000FFFF)
_ONE = np.uint64(1)
_WORD = np.uint64(0xFFFFFFFF)
_BYTE = np.uint64(0xFF)
_GAMMA = np.uint64(GAMMA)
_MIX_A = np.uint64(MIX_A)
_SECOND = np.int64(1_000_000)
_MILLISECOND = np.int64(1_000)
_MOST = 2.0**62
NO_BASE = np.iinfo(np.int64).min  # no time is so early
# the family of IPv4 in the last word of `spill.WITH_PEER`
_HALF = np.uint64(0xFFFF)
_FOUR = np.uint64(4 << 48)


def hash_addresses(
    key: tuple[int, int],
    family: U8,
    data: U8,
    above: int,
    *,
    half: Literal["both", "high"] = "both",
) -> tuple[U64, U64]:
    """Hash addresses as `digest.hash_words` hashes three words each; two uint64 arrays [N].

    The hash is SipHash-2-4-128 of three words: the family with `above` in the bits over it, and the
    16 bytes as two words with the first byte uppermost.
    family: uint8 [N].
    data: uint8 [N, 16].
    half: with "high" the second array is empty, which saves a quarter of the work.
    """
    keys = (np.uint64(key[0]), np.uint64(key[1]))
    high, low = _hash(*keys, family, np.uint64(above << 8), data.view(np.uint64), half == "both")
    return high, low


def distinct(
    words: U64, families: U64, *, column: int = 0, family_column: int = 0, shift: int = 0
) -> tuple[U32, U64]:
    """Find distinct addresses.

    Returns the index of each address among the distinct ones, uint32 [N], and the distinct ones in
    order of first appearance, as both words and the family, uint64 [D, 3].
    words: uint64 [N, W]; both words of an address are in `column` and the next.
    families: uint64 [N, F]; the family is a byte in `family_column`, `shift` bits above the lowest.
    """
    slots = np.zeros(1 << (3 * len(words) // 2).bit_length(), np.uint64)  # load factor at most 2/3
    index, known = _distinct(words, column, families, family_column, np.uint64(shift), slots)
    return index, known


@kernel("reason")
def encode_latencies(  # noqa: PLR0913, PLR0917 - arrays of a numba kernel
    values: Any, factor: Any, infinite: Any, missing: Any, negative: Any, zero: Any, reason: Any
) -> Any:
    """Encode values × factor microseconds as latency codes, uint16 [N], and count those above
    `LARGEST_US`.

    values: float64 [N]; NaN is missing. factor: float.
    infinite, missing, negative, zero: for such values, the reason to drop the row, or 0 if it is a
    value, or −1 if the measurement failed. Only rows without a reason are read. A row that gets a
    reason has it in `reason` (int8 [N], 0: none).
    """
    codes = np.zeros(len(values), np.uint16)
    clamped = 0
    for row in range(len(values)):
        if reason[row] != 0:
            continue
        value = values[row]
        rule = 0
        if not 0 < value < np.inf:
            if np.isnan(value):
                rule = missing
            elif np.isinf(value):
                rule = infinite
            elif value < 0:
                rule = negative
            else:
                rule = zero
        if rule != 0:
            reason[row] = max(rule, 0)
            continue
        micros = max(np.rint(min(value * factor, _MOST)), 1.0)
        if micros > LARGEST_US:
            clamped += 1
            micros = np.float64(LARGEST_US)
        if micros < 1024.0:
            codes[row] = np.uint16(micros)
        else:
            # The bits of a float are its exponent above its mantissa. Rounded to 10 bits of
            # mantissa (the first one is implied) they are the code up to one bit and a constant,
            # because a mantissa rounded up to 2 carries into the exponent.
            rounded = ((np.float64(micros).view(np.int64) + (1 << 41)) >> 42) - (1033 << 10)
            codes[row] = rounded + (rounded & -1024) + 1024
    return codes, clamped


@kernel()
def _hash(k0: Any, k1: Any, family: Any, above: Any, words: Any, both: Any) -> Any:
    """Compute SipHash-2-4-128 of each row: three words, and their size."""
    high = np.empty(len(family), np.uint64)
    low = np.empty(len(family) if both else 0, np.uint64)
    for row in range(len(family)):
        a = k0 ^ _INITIAL_A
        b = k1 ^ _INITIAL_B
        c = k0 ^ _INITIAL_C
        d = k1 ^ _INITIAL_D
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
        if both:
            a, b, c, d = _round(*_round(*_round(*_round(a, b ^ _FINISH_LOW, c, d))))
            low[row] = a ^ b ^ c ^ d
    return high, low


@compiled
def _round(a: Any, b: Any, c: Any, d: Any) -> Any:
    a = a + b
    c = c + d
    b = _turned(b, _13) ^ a
    d = _turned(d, _16) ^ c
    a = _turned(a, _32)
    a = a + d
    c = c + b
    d = _turned(d, _21) ^ a
    b = _turned(b, _17) ^ c
    c = _turned(c, _32)
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


@kernel("slots")
def _distinct(
    words: Any, column: Any, families: Any, family_column: Any, shift: Any, slots: Any
) -> Any:
    """Put addresses into an open-addressing hash table.

    slots: half a hash above an index that counts from 1; 0 for an empty slot.
    """
    # Copies of the fields to compare, close together, because the records do not fit in a
    # processor's cache.
    index = np.empty(len(words), np.uint32)
    known = np.empty((len(words), 3), np.uint64)
    mask = np.uint64(len(slots) - 1)
    count = 0
    for row in range(len(words)):
        word0 = words[row, column]
        word1 = words[row, column + 1]
        family = (families[row, family_column] >> shift) & _BYTE
        mixed = (word0 ^ (word1 * _MIX_A) ^ family) * _GAMMA
        mixed = (mixed ^ (mixed >> _29)) * _MIX_A
        mixed ^= mixed >> _32
        slot = mixed & mask
        half = mixed >> _32
        number: Any = -1
        while slots[slot] != 0:
            if slots[slot] >> _32 == half:
                other = np.int64(slots[slot] & _WORD) - 1
                if (
                    known[other, 0] == word0
                    and known[other, 1] == word1
                    and known[other, 2] == family
                ):
                    number = other
                    break
            slot = (slot + _ONE) & mask
        if number < 0:
            number = count
            count += 1
            slots[slot] = (half << _32) | np.uint64(count)
            known[number, 0], known[number, 1], known[number, 2] = word0, word1, family
        index[row] = number
    return index, known[:count]


_mix = compiled(mix)


@kernel()
def group_entities(partition: Any, family: Any, words: Any, partitions: Any) -> Any:
    """Group entities by partition, keeping their order within each.

    Returns records of `spill.ENTITY`, uint64 [E, 3]; the index of each entity in its partition,
    int64 [E]; and the number of entities in each partition.
    words: the bytes of addresses, uint64 [E, 2].
    """
    records = np.empty((len(family), 3), np.uint64)
    local = np.empty(len(family), np.int64)
    counts = np.zeros(partitions, np.int64)
    for entity in range(len(partition)):
        counts[partition[entity]] += 1
    begin = np.zeros(len(counts), np.int64)
    for number in range(1, len(counts)):
        begin[number] = begin[number - 1] + counts[number - 1]
    at = begin.copy()
    for entity in range(len(partition)):
        mine = partition[entity]
        to = at[mine]
        at[mine] = to + 1
        local[entity] = to - begin[mine]
        records[to, 0], records[to, 1] = _swapped(words[entity, 0]), _swapped(words[entity, 1])
        records[to, 2] = np.uint64(family[entity])
    return records, local, counts


@compiled
def _stored_time(micros: Any, unit: Any) -> Any:
    """Convert a time to a stored one; division by a constant is several times faster."""
    if unit == _SECOND:
        return np.uint64(micros // _SECOND)
    if unit == _MILLISECOND:
        return np.uint64(micros // _MILLISECOND)
    return np.uint64(micros)


@kernel()
def group_measurements(  # noqa: C901, PLR0912, PLR0913, PLR0914, PLR0917 - one loop of a numba kernel
    partition: Any,
    local: Any,
    order: Any,
    entity: Any,
    micros: Any,
    codes: Any,
    peer: Any,
    peer_family: Any,
    peer_words: Any,
    values: Any,
    mixed: Any,
    base: Any,
    partitions: Any,
    unit: Any,
) -> Any:
    """Group measurements by partition, keeping their order within each.

    Returns records of `spill.NARROW` and records of `spill.ALONE` or `spill.WITH_PEER`, uint64 [N,
    W] each, with the words of values appended; how many of both each partition has, int64 [2, P];
    and their `spill.multiset_sum`. partition, local, order: for each entity its partition, its
    index there, and its hash [E].
    entity, micros, codes: [N].
    peer: the index of each measurement's peer [N]; peer_family, peer_words: of each peer, [P] and
    its bytes as uint64 [P, 2]; empty without peers.
    values, mixed: the words of values [N, K], and mixed to one word each [N]; empty without values.
    base: the time that narrow records count from; `NO_BASE` if there are none.
    unit: microseconds of a stored time, 1, 1,000 or 1,000,000.
    """
    counts = np.zeros((2, partitions), np.int64)
    kinds = np.ones(len(entity), np.uint8)
    for row in range(len(entity)):
        if len(peer) and base != NO_BASE:
            other = peer[row]
            # the first byte lowermost
            first = peer_words[other, 0]
            second = peer_words[other, 1]
            if peer_family[other] == 4 and first >> _32 == 0 and second == 0:
                kinds[row] = 0
        counts[kinds[row], partition[entity[row]]] += 1
    at = np.zeros(counts.shape, np.int64)
    for width in range(2):
        for number in range(1, partitions):
            at[width, number] = at[width, number - 1] + counts[width, number - 1]
    columns = values.shape[1]
    narrow = np.empty((counts[0].sum(), 2 + columns), np.uint64)
    wide = np.empty((counts[1].sum(), (4 if len(peer) else 2) + columns), np.uint64)
    last = wide.shape[1] - 1 - columns
    total = np.uint64(0)
    for row in range(len(entity)):
        mine = entity[row]
        code = np.uint64(codes[row])
        micro = np.uint64(micros[row])
        in_partition = np.uint64(local[mine])
        value = order[mine] + _mix(_stored_time(micros[row], unit) << _16 | code)
        width = kinds[row]
        word0 = np.uint64(0)
        word1 = np.uint64(0)
        family = np.uint64(0)
        if len(peer):
            other = peer[row]
            word0 = _swapped(peer_words[other, 0])
            word1 = _swapped(peer_words[other, 1])
            family = np.uint64(peer_family[other])
            value ^= _mix(_mix(word0 + family) ^ word1)
        to = at[width, partition[mine]]
        at[width, partition[mine]] = to + 1
        if width == 0:
            narrow[to, 0] = (micro - np.uint64(base)) << _16 | code
            narrow[to, 1] = word0 & ~_WORD | in_partition
            for number in range(columns):
                narrow[to, 2 + number] = values[row, number]
        else:
            wide[to, 0] = micro
            if len(peer):
                wide[to, 1], wide[to, 2] = word0, word1
            wide[to, last] = in_partition | (code << _32) | (family << _48)
            for number in range(columns):
                wide[to, last + 1 + number] = values[row, number]
        if columns:
            value ^= mixed[row]
        total += _mix(value + _GAMMA)
    return narrow, wide, counts, total


@kernel("out")
def widen_records(
    narrow: Any, lengths: Any, first: Any, base: Any, entities: Any, out: Any
) -> None:
    """Write records of `spill.NARROW` as those of `spill.WITH_PEER`, with entities by their index
    in the partition.

    lengths, first, base: for each part [S] its number of records, its first entity in `places`, and
    the time that its records count from. entities: the index of each entity.
    """
    end = 0
    for part in range(len(lengths)):
        begin = end
        end = end + lengths[part]
        part_entities = entities[first[part] :]
        zero = np.uint64(base[part])
        for row in range(begin, end):
            since = narrow[row, 0]
            tail = narrow[row, 1]
            out[row, 0] = (since >> _16) + zero
            out[row, 1], out[row, 2] = tail & ~_WORD, np.uint64(0)
            out[row, 3] = np.uint64(part_entities[tail & _WORD]) | (since & _HALF) << _32 | _FOUR
            for number in range(2, narrow.shape[1]):
                out[row, number + 2] = narrow[row, number]


@kernel("out")
def replace_entities(out: Any, last: Any, lengths: Any, first: Any, entities: Any) -> None:
    """Replace the entities of records, in word `last`, by their index in the partition; see
    `widen_records`.
    """
    end = 0
    for part in range(len(lengths)):
        begin = end
        end = end + lengths[part]
        part_entities = entities[first[part] :]
        for row in range(begin, end):
            out[row, last] = (out[row, last] & ~_WORD) | np.uint64(
                part_entities[out[row, last] & _WORD]
            )
