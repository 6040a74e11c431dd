"""Read texts as addresses, compiled by numba: the same as `addresses.parse` without a call each. Extra `histories`.

All bytes of a text are looked at together: which of them are separators is a number with a bit for each, and a group of
digits is turned into its value as one word. `addresses.parse` decides on what is not plainly an address that way. The
interpreter lock is not held. Three steps are written in LLVM, because without them reading texts takes three to four
times as long, and a whole run a fifth longer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import U8, Ints
from headrace.compiled import compiled, read_only
from headrace.errors import MissingExtra
from headrace.histories.codec.addresses import parse

try:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic
except ImportError as error:
    raise MissingExtra("numba", "histories") from error

_DOT, _COLON, _ZERO, _NINE = (ord(letter) for letter in ".:09")
_LOWER_A, _LOWER_F, _UPPER_A, _UPPER_F = (ord(letter) for letter in "afAF")
_UNSURE = 255  # not plainly an address, and not plainly none
_GROUPS = 8  # of an IPv6 address, 16 bits each
_LONGEST, _LONGEST_DOTTED, _LONGEST_COLONED = 45, 15, 39  # text of an address; of numbers; of groups alone
_LOOKED_AT = 64  # bytes from the begin of a text on, whatever its length
_1, _3, _4, _6, _8, _10, _16, _24, _32, _100 = (np.uint64(each) for each in (1, 3, 4, 6, 8, 10, 16, 24, 32, 100))
_BYTE, _UPPER_BYTE, _HALF = (np.uint64(each) for each in (0xFF, 0xFF00, 0xFFFF))
_EVERY, _NIBBLES, _LETTERS = np.uint64(0x01010101), np.uint64(0x0F0F0F0F), np.uint64(9)
_SHIFT = np.uint64(63)  # the largest that is one
_LEAST = np.uint64(0x640A0000)  # number of so many digits, a byte each


def _intrinsic(function: Any) -> Any:
    """Decorate a function whose LLVM instructions are written by hand: numba's decorator, which has no types."""
    return intrinsic(function)


def parse_texts(texts: pa.StringArray | pa.LargeStringArray) -> tuple[U8, U8]:
    """Read texts: the family, 0 for what is no address, and the bytes of each: uint8 [N], uint8 [N, 16]."""
    n = len(texts)
    family, data = np.zeros(n, np.uint8), np.zeros((n, 16), np.uint8)
    if n:
        values = texts.buffers()[2]
        letters = np.zeros(0, np.uint8) if values is None else np.frombuffer(values, np.uint8)
        _parse(read_only(letters), read_only(offsets_of(texts)), family, data.view(np.uint16))
        unsure = np.flatnonzero(family == _UNSURE)
        if len(unsure):
            each_once = pc.fill_null(texts.take(pa.array(unsure)), "").dictionary_encode()
            read, place = parse(each_once.dictionary, "address"), each_once.indices.to_numpy()
            family[unsure], data[unsure] = read.family[place], read.bytes[place]
    return family, data


def offsets_of(texts: pa.StringArray | pa.LargeStringArray) -> Ints:
    """Say where each text begins and the last ends: [N + 1]."""
    width: type[np.integer] = np.int64 if pa.types.is_large_string(texts.type) else np.int32
    if not len(texts):
        return np.zeros(1, width)
    return np.frombuffer(texts.buffers()[1], width)[texts.offset : texts.offset + len(texts) + 1]


@compiled
def _parse(letters: Any, offsets: Any, family: Any, halves: Any) -> None:
    """halves uint16 [N, 8]: of the bytes of the address; zeros. They hold anything where it is not sure."""
    for row in range(len(family)):
        start = np.int64(offsets[row])
        size = np.int64(offsets[row + 1]) - start
        if size == 0 or size > _LONGEST:
            continue
        family[row] = _UNSURE
        if size <= _LONGEST_COLONED and start + _LOOKED_AT <= len(letters):
            mine = (_1 << np.uint64(size)) - _1
            colons = _between64(letters, start, _COLON, _COLON) & mine
            if colons != 0:
                if _plainly_coloned(letters, start, size, mine, colons, halves, row):
                    family[row] = 6
            elif size <= _LONGEST_DOTTED and _plainly_dotted(letters, start, size, mine, halves, row):
                family[row] = 4


@compiled
def _plainly_dotted(letters: Any, start: Any, size: Any, mine: Any, halves: Any, row: Any) -> Any:
    """Four decimal numbers; fills two of `halves`. False, and nothing filled, where that is not sure.

    How long a number is costs no jump, as a processor could not guess it.
    """
    dots = _between16(letters, start, _DOT, _DOT) & mine
    if dots | (_between16(letters, start, _ZERO, _NINE) & mine) != mine:
        return False
    at = 0
    value, wrong = np.uint64(0), False
    for part in range(4):
        end = min(_lowest_bit(dots), size) if part < 3 else size
        bits = np.uint64(end - at) << _3
        wrong |= (end - at < 1) | (end - at > 3)
        digits = (_word(letters, start + at) << ((_32 - bits) & _SHIFT)) & _NIBBLES  # the last one uppermost
        number = (digits >> _24) + _10 * ((digits >> _16) & _BYTE) + _100 * ((digits >> _8) & _BYTE)
        wrong |= (number > _BYTE) | (number < (_LEAST >> (bits & _SHIFT)) & _BYTE)
        value |= number << np.uint64(8 * part)
        if part < 3:
            dots &= dots - _1
        at = end + 1
    if wrong or dots != 0:
        return False
    halves[row, 0], halves[row, 1] = value & _HALF, value >> _16
    return True


@compiled
def _plainly_coloned(letters: Any, start: Any, size: Any, mine: Any, colons: Any, halves: Any, row: Any) -> Any:
    """Eight groups of hexadecimal digits, or fewer around one `::`; fills `halves`. False where that is not sure."""
    digits = _between64(letters, start, _ZERO, _NINE) | _between64(letters, start, _LOWER_A, _LOWER_F)
    digits = (digits | _between64(letters, start, _UPPER_A, _UPPER_F)) & mine
    double = colons & (colons >> _1)
    if digits | colons != mine or double & (double - _1) != 0:
        return False
    group, gap, at = 0, -1, 0
    if colons & _1 != 0:
        if double & _1 == 0:
            return False
        gap, at = 0, 2
        colons &= ~_3
    while at < size:
        end = min(_lowest_bit(colons), size)
        if end - at > 4 or group == _GROUPS:
            return False
        word = _word(letters, start + at) << ((_32 - (np.uint64(end - at) << _3)) & _SHIFT)  # the last digit uppermost
        word = (word & _NIBBLES) + _LETTERS * ((word >> _6) & _EVERY)  # letters have a bit that digits have not
        word = (word << _4) | (word >> _8)
        halves[row, group] = (word & _BYTE) | ((word >> _8) & _UPPER_BYTE)
        group, at = group + 1, end + 1
        colons &= colons - _1
        if end < size and (double >> np.uint64(end)) & _1 != 0:
            gap, at = group, end + 2
            colons &= colons - _1
        elif at == size:  # a single colon is followed by something
            return False
    return _gap_filled(halves, row, group, gap)


@compiled
def _gap_filled(halves: Any, row: Any, count: Any, gap: Any) -> Any:
    """Tell if so many groups are an address, with a `::` before group `gap`, or none if that is below 0; those behind
    it are moved to the end."""
    if gap < 0:
        return count == _GROUPS
    if count == _GROUPS:  # a gap of no group
        return False
    behind = count - gap
    for place in range(1, behind + 1):
        halves[row, _GROUPS - place] = halves[row, count - place]
    for place in range(gap, _GROUPS - behind):
        halves[row, place] = 0
    return True


@_intrinsic
def _word(typing: Any, letters: Any, at: Any) -> Any:  # noqa: ARG001
    """Read the four bytes that begin there, the first lowermost; places need not be multiples of four."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(_loaded(context, builder, signature, arguments, ir.IntType(32)), ir.IntType(64))

    return types.uint64(letters, at), generate


@_intrinsic
def _lowest_bit(typing: Any, bits: Any) -> Any:  # noqa: ARG001
    """Find the lowest bit of a word that is 1, by its number; 64 if there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


def _between(count: int) -> Any:
    def between(typing: Any, letters: Any, at: Any, least: Any, most: Any) -> Any:  # noqa: ARG001
        """Test which of the bytes that begin there are from `least` to `most`: a bit each, the first lowermost."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            vector, byte = ir.VectorType(ir.IntType(8), count), ir.IntType(8)
            low, high = (builder.trunc(arguments[place], byte) for place in (2, 3))
            above = builder.sub(_loaded(context, builder, signature, arguments, vector), _spread(builder, vector, low))
            inside = builder.icmp_unsigned("<=", above, _spread(builder, vector, builder.sub(high, low)))
            bits = builder.bitcast(inside, ir.IntType(count))
            return bits if count == 64 else builder.zext(bits, ir.IntType(64))

        return types.uint64(letters, at, types.int64, types.int64), generate

    return _intrinsic(between)


_between16, _between64 = _between(16), _between(64)


def _loaded(context: Any, builder: Any, signature: Any, arguments: Any, pointed: Any) -> Any:
    """Load what begins at arguments[1] of arguments[0], as a value of this type."""
    letters = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    at = context.cast(builder, arguments[1], signature.args[1], types.int64)
    return builder.load(builder.bitcast(builder.gep(letters, [at]), pointed.as_pointer()), align=1)


def _spread(builder: Any, vector: Any, value: Any) -> Any:
    """Make a vector with the same value in all its lanes."""
    made = ir.Constant(vector, ir.Undefined)
    for place in range(vector.count):
        made = builder.insert_element(made, value, ir.Constant(ir.IntType(32), place))
    return made
