"""Draw random numbers without state: each is a function of a context's key and a slot. Pure.

A context's key is a keyed hash of (seed, epoch, context id). Its draw s is the splitmix64 finaliser
of key + s × γ. So any draw can be computed alone, in any order and any process, and numpy and
compiled code agree: the arithmetic is on 64-bit integers, or on floats with operations that IEEE
754 rounds exactly.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from headrace.arrays import F64, I64, U64
from headrace.digest import derive_key

GAMMA = 0x9E3779B97F4A7C15
MIX_A = 0xBF58476D1CE4E5B9
MIX_B = 0x94D049BB133111EB
ROUNDS = 12  # with 8, pairs of positions in sizes below 12 are visibly not uniform

# Slots of a key. Those that count positions have a million each.
MODE = 1
FRACTION = 2
WINDOW = 3
OFFSET = 4
ROUND_KEYS = 16
POSITIONS = 1 << 20
FIELDS = 2 << 20

_SHIFT = np.uint64(32)


def mix(words: U64) -> U64:
    """Apply the splitmix64 finaliser (Steele, Lea and Flood, 2014), a permutation of words that
    hides counters.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(MIX_A)
    words ^= words >> np.uint64(27)  # in place: columns of millions are mixed
    words *= np.uint64(MIX_B)
    words ^= words >> np.uint64(31)
    return words


@lru_cache(maxsize=64)
def epoch_key(seed: int, purpose: str, epoch: int) -> tuple[int, int]:
    """Cache `derive_key`, which would take a tenth of the time of a batch of one context."""
    return derive_key(seed, purpose, epoch)


def context_keys(seed: int, epoch: int, ids: I64) -> U64:
    """Return the key of each context in one epoch; uint64, same length."""
    first, second = epoch_key(seed, "contexts", epoch)
    return mix(mix(ids.astype(np.uint64) * np.uint64(GAMMA) + np.uint64(first)) + np.uint64(second))


def segment_keys(keys: U64, numbers: I64) -> U64:
    """Return the key of segment `number` inside the context of each key."""
    return mix(keys + (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(MIX_B))


def draw(keys: U64, slots: int | I64) -> U64:
    """Draw 64 random bits for each key and slot (broadcast)."""
    return mix(keys + np.asarray(slots).astype(np.uint64) * np.uint64(GAMMA))


def unit(words: U64) -> F64:
    """Map random words to floats in [0, 1)."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permuted(keys: U64, sizes: I64, positions: I64) -> I64:
    """Permute positions in 0..size-1 pseudorandomly, with one permutation per key; arrays
    broadcast.

    A Feistel network whose halves are residues modulo ⌈√size⌉ and size / ⌈√size⌉, so its domain is
    hardly larger than the size; values outside are mapped again (cycle walking). The images of 0,
    1, 2, … are a sample without replacement in random order, computed without memory or
    comparisons. sizes < 2**62.
    """
    keys, sizes, positions = np.broadcast_arrays(keys, sizes, positions)
    shape = keys.shape
    keys = keys.ravel()
    size = sizes.astype(np.uint64).ravel()
    position = positions.astype(np.uint64).ravel()
    left = np.maximum(np.ceil(np.sqrt(size.astype(np.float64))), 1).astype(np.uint64)
    right = (size + left - np.uint64(1)) // left
    round_keys = [draw(keys, ROUND_KEYS + number) for number in range(ROUNDS)]
    out = _network(round_keys, left, right, position)
    outside = np.flatnonzero(out >= size)
    while len(outside):
        out[outside] = _network(
            [round_key[outside] for round_key in round_keys],
            left[outside],
            right[outside],
            out[outside],
        )
        outside = outside[out[outside] >= size[outside]]
    return out.astype(np.int64).reshape(shape)


def _network(round_keys: list[U64], left: U64, right: U64, position: U64) -> U64:
    a = position // np.maximum(right, np.uint64(1))
    b = position % np.maximum(right, np.uint64(1))
    for number in range(0, ROUNDS, 2):
        a = a + ((half(round_keys[number], b) * left) >> _SHIFT)
        a = np.where(a >= left, a - left, a)
        b = b + ((half(round_keys[number + 1], a) * right) >> _SHIFT)
        b = np.where(b >= right, b - right, b)
    return a * right + b


def half(round_key: U64, value: U64) -> U64:
    """Compute 32 random bits from a round key and one half."""
    word = (value ^ round_key) * np.uint64(MIX_A)
    return ((word ^ (word >> _SHIFT)) * np.uint64(MIX_B)) >> _SHIFT
