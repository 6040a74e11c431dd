"""Addresses into places and into hashes, compiled by numba: the same as without it. Extra `histories`."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from headrace.arrays import I64, U8, U64
from headrace.compiled import compiled, intrinsic, ir, loaded, pointer, read_only, spread, types

_SIZE = 24 << 56  # bytes that are hashed, as the last word of SipHash has it
_AT_ONCE = 4
_MIX_A, _MIX_B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x9E3779B97F4A7C15)


def hash_addresses(
    key: tuple[int, int], family: U8, data: U8, above: int, *, half: Literal["both", "high"] = "both"
) -> tuple[U64, U64]:
    """As `digest.hash_words` of three words each: SipHash-2-4-128 of the family below a number, and of the 16 bytes as
    two words, the first byte uppermost. family uint8 [N], data uint8 [N, 16] → two uint64 arrays [N].

    half: with "high" the second is empty, and a quarter of the work is spared.
    """
    rows = len(family)
    if rows < _AT_ONCE:
        family = np.concatenate([family, np.zeros(_AT_ONCE - rows, np.uint8)])
        data = np.concatenate([data, np.zeros((_AT_ONCE - rows, 16), np.uint8)])
    high, low = np.empty(len(family), np.uint64), np.empty(len(family) if half == "both" else 0, np.uint64)
    _hash(
        np.uint64(key[0]), np.uint64(key[1]), read_only(family), np.uint64(above << 8),
        read_only(data.view(np.uint64)), high, low,
    )  # fmt: skip
    return high[:rows], low[:rows]


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
    """Of four rows at least; the last four may overlap those before them."""
    rows = len(family)
    for row in range(0, rows, _AT_ONCE):
        _hash_four(k0, k1, family, above, words, min(row, rows - _AT_ONCE), high, low)


@intrinsic
def _hash_four(
    typing: Any, k0: Any, k1: Any, family: Any, above: Any, words: Any, row: Any, high: Any, low: Any,  # noqa: ARG001
) -> Any:  # fmt: skip
    """SipHash-2-4-128 of four rows at once, a lane of a vector each. low: left alone if it is empty."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, first = ir.IntType(64), context.cast(builder, arguments[5], signature.args[5], types.int64)

        def array(place: int) -> Any:
            return context.make_array(signature.args[place])(context, builder, arguments[place])

        lanes = _SipLanes(builder, *(arguments[place] for place in (0, 1)))
        families, data = array(2).data, array(4).data
        lanes.absorb(builder.or_(lanes.load(families, first, ir.IntType(8)), lanes.every(arguments[3])))
        at = builder.shl(first, ir.Constant(word, 1))
        both = lanes.load(data, at, word), lanes.load(data, builder.add(at, ir.Constant(word, 4)), word)
        for odd in (0, 1):
            lanes.absorb(lanes.reversed_bytes(lanes.chosen(*both, [odd, 2 + odd, 4 + odd, 6 + odd])))
        lanes.absorb(lanes.every(ir.Constant(word, _SIZE)))
        lanes.store(lanes.finish("high"), array(6).data, first)
        low = array(7)
        with builder.if_then(builder.icmp_signed(">", low.nitems, ir.Constant(word, 0))):
            lanes.store(lanes.finish("low"), low.data, first)
        return context.get_dummy_value()

    return types.void(k0, k1, family, above, words, row, high, low), generate


class _SipLanes:
    """SipHash in the instructions of LLVM; its four words are vectors of as many rows."""

    LANES = ir.VectorType(ir.IntType(64), 4)
    BYTES = ir.VectorType(ir.IntType(8), 32)
    FINISH = MappingProxyType({"high": (2, 0xEE), "low": (1, 0xDD)})  # which word is changed by what

    def __init__(self, builder: Any, k0: Any, k1: Any) -> None:
        self._builder = builder
        initial = (0x736F6D6570736575, 0x646F72616E646F6D ^ 0xEE, 0x6C7967656E657261, 0x7465646279746573)
        self._state = [
            builder.xor(self.every(key), self._constant(each))
            for key, each in zip((k0, k1, k0, k1), initial, strict=True)
        ]

    def every(self, value: Any) -> Any:
        """The same word in all lanes."""
        return spread(self._builder, self.LANES, value)

    def load(self, data: Any, at: Any, element: Any) -> Any:
        """Four consecutive numbers as words."""
        vector = ir.VectorType(element, _AT_ONCE)
        numbers = loaded(self._builder, data, at, vector, 1)
        return numbers if vector == self.LANES else self._builder.zext(numbers, self.LANES)

    def store(self, lanes: Any, data: Any, at: Any) -> None:
        """Four consecutive words."""
        self._builder.store(lanes, pointer(self._builder, data, at, self.LANES), align=8)

    def chosen(self, one: Any, other: Any, places: list[int]) -> Any:
        """Some of the lanes of two vectors, numbered through."""
        return self._builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places))

    def reversed_bytes(self, lanes: Any) -> Any:
        """Each word from its other end."""
        data = self._builder.bitcast(lanes, self.BYTES)
        return self._builder.bitcast(self.chosen(data, data, [place ^ 7 for place in range(32)]), self.LANES)

    def absorb(self, word: Any) -> None:
        """A word of the message."""
        self._state[3] = self._builder.xor(self._state[3], word)
        self._rounds(2)
        self._state[0] = self._builder.xor(self._state[0], word)

    def finish(self, half: Literal["high", "low"]) -> Any:
        """A half of the hash, the high one first."""
        which, number = self.FINISH[half]
        self._state[which] = self._builder.xor(self._state[which], self._constant(number))
        self._rounds(4)
        a, b, c, d = self._state
        return self._builder.xor(self._builder.xor(a, b), self._builder.xor(c, d))

    def _constant(self, value: int) -> Any:
        return ir.Constant(self.LANES, [value] * 4)

    def _rounds(self, count: int) -> None:
        add, xor, turned = self._builder.add, self._builder.xor, self._turned
        a, b, c, d = self._state
        for _ in range(count):
            a, c = add(a, b), add(c, d)
            b, d, a = xor(turned(b, 13), a), xor(turned(d, 16), c), turned(a, 32)
            a, c = add(a, d), add(c, b)
            d, b, c = xor(turned(d, 21), a), xor(turned(b, 17), c), turned(c, 32)
        self._state = [a, b, c, d]

    def _turned(self, lanes: Any, bits: int) -> Any:
        left = self._builder.shl(lanes, self._constant(bits))
        return self._builder.or_(left, self._builder.lshr(lanes, self._constant(64 - bits)))
