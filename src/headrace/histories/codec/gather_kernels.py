"""What pass 1 of histories does with every row, compiled by numba: the same as numpy does beside it. Extra `histories`.

Values become latency codes in one pass, and measurements become records of their partitions in another, which also
sums their hashes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import F64, I8, I64, U8, U16, U64
from headrace.compiled import compiled, read_only

_LARGEST_US, _LARGEST = 2047 << 31, 2.0**62
_ODD, _MIX_A = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_8, _16, _27, _30, _31, _32, _48 = (np.uint64(each) for each in (8, 16, 27, 30, 31, 32, 48))
_EVERY_8, _EVERY_16 = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_SECOND = np.uint64(1_000_000)
KEPT, FAILED = 0, -1


@dataclass(frozen=True)
class ValueRules:
    """What values become that are no latencies: `KEPT`, `FAILED`, or the number of a reason."""

    infinite: int
    missing: int
    negative: int
    zero: int


def codes_of(values: F64, factor: int, rules: ValueRules, reason: I8) -> tuple[U16, int]:
    """The latency codes of values × factor microseconds, uint16 [N], and how many were clamped; NaN is missing.

    Only rows without a reason are looked at; those that get one have it in `reason` (int8 [N], 0: none).
    """
    codes = np.zeros(len(values), np.uint16)
    clamped = _codes(
        read_only(values), float(factor), rules.infinite, rules.missing, rules.negative, rules.zero, reason, codes
    )
    return codes, int(clamped)


@dataclass(frozen=True)
class Keyed:
    """Of each entity or peer: what its measurements need. [E]"""

    partition: U16
    local: I64
    order: U64


def grouped(
    entities: Keyed, entity: I64, micros: I64, codes: U16, peer: tuple[I64, U8, U8] | None, partitions: int
) -> tuple[U64, I64, int]:
    """Measurements as records, those of a partition together in their order; how many each partition has; and what
    `keyed.multiset_sum` says of them.

    entity, micros, codes [N]; peer: of each measurement the place among peers [N], of each peer its family [P] and
    bytes [P, 16]. A record is 2 words, or 4 with peers, as `piece.ALONE` and `piece.WITH_PEER`: uint64 [N, 2 | 4].
    """
    counts = np.zeros(partitions, np.int64)
    out = np.empty((len(entity), 2 if peer is None else 4), np.uint64)
    none = (np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros((0, 16), np.uint8))
    place, family, data = none if peer is None else peer
    total = _group(
        read_only(entities.partition), read_only(entities.local), read_only(entities.order), read_only(entity),
        read_only(micros), read_only(codes), read_only(place), read_only(family), read_only(data.view(np.uint64)),
        counts, out,
    )  # fmt: skip
    return out, counts, int(total)


def placed(partition: U16, family: U8, data: U8, partitions: int) -> tuple[U64, I64, I64]:
    """Entities as records of `piece.ENTITY`, those of a partition together in their order: uint64 [E, 3]; of each
    entity its place in its partition, int64 [E]; how many each partition has. data: bytes, uint8 [E, 16].
    """
    records, local = np.empty((len(family), 3), np.uint64), np.empty(len(family), np.int64)
    counts = np.zeros(partitions, np.int64)
    _place(read_only(partition), read_only(family), read_only(data.view(np.uint64)), counts, records, local)
    return records, local, counts


@compiled
def _codes(
    values: Any, factor: Any, infinite: Any, missing: Any, negative: Any, zero: Any, reason: Any, codes: Any
) -> Any:
    clamped = 0
    for row in range(len(values)):
        if reason[row] != 0:
            continue
        value = values[row]
        if np.isnan(value):
            rule = missing
        elif np.isinf(value):
            rule = infinite
        elif value < 0:
            rule = negative
        elif value == 0:
            rule = zero
        else:
            rule = KEPT
        if rule != KEPT:
            reason[row] = max(rule, 0)
            continue
        micros: Any = np.int64(np.rint(min(value * factor, _LARGEST)))
        if micros > _LARGEST_US:
            clamped += 1
            micros = _LARGEST_US
        micros = max(micros, 1)
        exponent: Any = max(((np.float64(micros).view(np.int64) >> 52) & 2047) - 1033, 0)  # its bits beyond 11
        mantissa = (micros + ((1 << exponent) >> 1)) >> exponent
        if mantissa == 2048:
            exponent, mantissa = exponent + 1, 1024
        if exponent > 31:
            exponent, mantissa = 31, 2047
        codes[row] = (exponent << 11) | mantissa
    return clamped


@compiled
def _mix(x: Any) -> Any:
    x = (x ^ (x >> _30)) * _MIX_A
    x = (x ^ (x >> _27)) * _MIX_B
    return x ^ (x >> _31)


@compiled
def _swapped(x: Any) -> Any:
    """The bytes of a word from the other end."""
    x = ((x >> _8) & _EVERY_8) | ((x & _EVERY_8) << _8)
    x = ((x >> _16) & _EVERY_16) | ((x & _EVERY_16) << _16)
    return (x >> _32) | (x << _32)


@compiled
def _place(partition: Any, family: Any, words: Any, counts: Any, records: Any, local: Any) -> None:
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


@compiled
def _group(
    partition: Any, local: Any, order: Any, entity: Any, micros: Any, codes: Any,
    peer: Any, peer_family: Any, peer_bytes: Any, counts: Any, out: Any,
) -> Any:  # fmt: skip
    for row in range(len(entity)):
        counts[partition[entity[row]]] += 1
    at = np.zeros(len(counts), np.int64)
    for number in range(1, len(counts)):
        at[number] = at[number - 1] + counts[number - 1]
    last = out.shape[1] - 1
    total = np.uint64(0)
    for row in range(len(entity)):
        mine, code = entity[row], np.uint64(codes[row])
        to = at[partition[mine]]
        at[partition[mine]] = to + 1
        micro = np.uint64(micros[row])
        value = order[mine] + _mix((micro // _SECOND) << _16 | code)
        tail = np.uint64(local[mine]) | (code << _32)
        if last == 3:
            other = peer[row]
            word0, word1 = _swapped(peer_bytes[other, 0]), _swapped(peer_bytes[other, 1])
            out[to, 1], out[to, 2] = word0, word1
            family = np.uint64(peer_family[other])
            tail |= family << _48
            value ^= _mix(_mix(word0 + family) ^ word1)
        out[to, 0] = micro
        out[to, last] = tail
        total += _mix(value + _ODD)
    return total
