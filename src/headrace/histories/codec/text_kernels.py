"""Parse texts as addresses and format IPv6, compiled by numba. Extra `histories`.

All bytes of a text are examined together: a bit mask marks which of them are separators, and a
group of digits is converted to its value as one word. Texts that are not clearly addresses this way
are left to the system, one call per distinct text, half a microsecond each. The interpreter lock is
released. Three steps are written in LLVM, because without them reading texts takes three to four
times as long, and a whole run a fifth longer.
"""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import U8, Ints
from headrace.compiled import compiled, kernel
from headrace.errors import MissingExtra

try:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic
except ImportError as error:
    raise MissingExtra("numba", "histories") from error

_DOT, _COLON, _ZERO, _NINE = (ord(letter) for letter in ".:09")
_LOWER_A, _LOWER_F, _UPPER_A, _UPPER_F = (ord(letter) for letter in "afAF")
_UNSURE = 255  # neither clearly an address nor clearly something else
_GROUPS = 8  # in an IPv6 address, 16 bits each
# characters of any address; of IPv4; of IPv6 in groups only
_LONGEST = 45
_LONGEST_DOTTED = 15
_LONGEST_COLONED = 39
# IPv6 addresses that begin with this many zero groups may end with a dotted IPv4 address
_DOTTED_FROM = 5
_LOOKED_AT = 64  # bytes read from the start of a text, whatever its length
_1, _3, _4, _6, _8, _10, _16, _24, _32, _100 = (
    np.uint64(number) for number in (1, 3, 4, 6, 8, 10, 16, 24, 32, 100)
)
_BYTE, _UPPER_BYTE, _HALF = (np.uint64(number) for number in (0xFF, 0xFF00, 0xFFFF))
_EVERY = np.uint64(0x01010101)
_NIBBLES = np.uint64(0x0F0F0F0F)
_LETTERS = np.uint64(9)
_SHIFT = np.uint64(63)  # the largest valid shift of a word
_LEAST = np.uint64(0x640A0000)  # smallest number with 1, 2 and 3 digits, a byte each


def _intrinsic(function: Any) -> Any:
    """Decorate a function whose LLVM instructions are written by hand; wraps numba's decorator,
    which has no types.
    """
    return intrinsic(function)


def parse_texts(texts: pa.StringArray | pa.LargeStringArray) -> tuple[U8, U8]:
    """Parse texts into family, 0 for no address, and bytes: uint8 [N], uint8 [N, 16]."""
    family = np.zeros(len(texts), np.uint8)
    data = np.zeros((len(texts), 16), np.uint8)
    if not len(texts):
        return family, data
    values = texts.buffers()[2]
    letters = np.zeros(0, np.uint8)
    if values is not None:
        letters = np.frombuffer(values, np.uint8)
    _parse(letters, text_offsets(texts), family, data.view(np.uint16))
    unsure = np.flatnonzero(family == _UNSURE)
    if len(unsure):
        encoded = pc.fill_null(texts.take(pa.array(unsure)), "").dictionary_encode()
        packed = [_parse_by_system(text) for text in encoded.dictionary.to_pylist()]
        families = np.array([{4: 4, 16: 6}.get(len(address), 0) for address in packed], np.uint8)
        padded = b"".join(address.ljust(16, b"\0") for address in packed)
        index = encoded.indices.to_numpy()
        family[unsure] = families[index]
        data[unsure] = np.frombuffer(padded, np.uint8).reshape(-1, 16)[index]
    return family, data


def _parse_by_system(text: str) -> bytes:
    """Return the bytes of an address, none if the text is not one."""
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
    except (OSError, ValueError):
        return b""


def text_offsets(texts: pa.StringArray | pa.LargeStringArray) -> Ints:
    """Return where each text starts and the last ends: [N + 1]."""
    if pa.types.is_large_string(texts.type):
        dtype: type[np.integer] = np.int64
    else:
        dtype = np.int32
    if not len(texts):
        return np.zeros(1, dtype)
    return np.frombuffer(texts.buffers()[1], dtype)[texts.offset : texts.offset + len(texts) + 1]


def format_ipv6(data: U8) -> pa.StringArray:
    """Format IPv6 addresses as the system does: uint8 [N, 16]."""
    letters = np.empty(_LONGEST_COLONED * len(data), np.uint8)
    ends = np.zeros(len(data) + 1, np.int32)
    _format_ipv6(data, letters, ends)
    texts = pa.StringArray.from_buffers(len(data), pa.py_buffer(ends), pa.py_buffer(letters))
    unsure = np.flatnonzero(ends[1:] == ends[:-1])
    if len(unsure):
        formatted = [
            socket.inet_ntop(socket.AF_INET6, data[row].tobytes()) for row in unsure.tolist()
        ]
        mask = np.zeros(len(data), np.bool_)
        mask[unsure] = True
        texts = pc.replace_with_mask(texts, mask, pa.array(formatted, pa.string()))
    return texts


@kernel("letters", "ends")
def _format_ipv6(data: Any, letters: Any, ends: Any) -> None:
    """Write groups in hexadecimal, with `::` for the longest of several zeros; nothing if the text
    may be dotted.
    """
    at = 0
    for row in range(len(data)):
        gap = -1
        longest = 1
        zeros = 0
        for group in range(_GROUPS):
            zeros = zeros + 1 if data[row, 2 * group] == 0 and data[row, 2 * group + 1] == 0 else 0
            if zeros > longest:
                gap = group + 1 - zeros
                longest = zeros
        group = 0
        if gap == 0 and longest >= _DOTTED_FROM:
            group = _GROUPS
        while group < _GROUPS:
            if group > 0 or gap == 0:
                letters[at] = _COLON
                at += 1
            if group == gap:
                group += longest
                if group == _GROUPS:
                    letters[at] = _COLON
                    at += 1
                continue
            value: Any = np.int64(data[row, 2 * group]) << 8 | np.int64(data[row, 2 * group + 1])
            digits = 1 + (value > 0xF) + (value > 0xFF) + (value > 0xFFF)
            for position in range(digits):
                digit = (value >> (4 * (digits - 1 - position))) & 0xF
                letters[at + position] = digit + (_ZERO if digit < 10 else _LOWER_A - 10)
            at += digits
            group += 1
        ends[row + 1] = at


@kernel("family", "halves")
def _parse(letters: Any, offsets: Any, family: Any, halves: Any) -> None:
    """Parse texts; halves uint16 [N, 8]: the bytes of the address, zeros before; undefined if the
    text is unsure.
    """
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
            elif size <= _LONGEST_DOTTED and _plainly_dotted(
                letters, start, size, mine, halves, row
            ):
                family[row] = 4


@compiled
def _plainly_dotted(letters: Any, start: Any, size: Any, mine: Any, halves: Any, row: Any) -> Any:
    """Parse four decimal numbers into two of `halves`; False, and nothing filled, if the text is
    not clearly that.

    The length of a number decides no branch, because a processor could not predict it.
    """
    dots = _between16(letters, start, _DOT, _DOT) & mine
    if dots | (_between16(letters, start, _ZERO, _NINE) & mine) != mine:
        return False
    at = 0
    value = np.uint64(0)
    wrong = False
    for part in range(4):
        end = min(lowest_bit(dots), size) if part < 3 else size
        bits = np.uint64(end - at) << _3
        wrong |= (end - at < 1) | (end - at > 3)
        # the last digit uppermost
        digits = (_word(letters, start + at) << ((_32 - bits) & _SHIFT)) & _NIBBLES
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
def _plainly_coloned(  # noqa: PLR0913, PLR0917 - arrays of a numba kernel
    letters: Any, start: Any, size: Any, mine: Any, colons: Any, halves: Any, row: Any
) -> Any:
    """Parse eight groups of hexadecimal digits, or fewer around one `::`, into `halves`; False if
    not clearly that.
    """
    digits = _between64(letters, start, _ZERO, _NINE) | _between64(
        letters, start, _LOWER_A, _LOWER_F
    )
    digits = (digits | _between64(letters, start, _UPPER_A, _UPPER_F)) & mine
    double = colons & (colons >> _1)
    if digits | colons != mine or double & (double - _1) != 0:
        return False
    group = 0
    gap = -1
    at = 0
    if colons & _1 != 0:
        if double & _1 == 0:
            return False
        gap = 0
        at = 2
        colons &= ~_3
    while at < size:
        end = min(lowest_bit(colons), size)
        if end - at > 4 or group == _GROUPS:
            return False
        # the last digit uppermost
        word = _word(letters, start + at) << ((_32 - (np.uint64(end - at) << _3)) & _SHIFT)
        # letters have bit 6 set, digits do not
        word = (word & _NIBBLES) + _LETTERS * ((word >> _6) & _EVERY)
        word = (word << _4) | (word >> _8)
        halves[row, group] = (word & _BYTE) | ((word >> _8) & _UPPER_BYTE)
        group = group + 1
        at = end + 1
        colons &= colons - _1
        if end < size and (double >> np.uint64(end)) & _1 != 0:
            gap = group
            at = end + 2
            colons &= colons - _1
        elif at == size:  # a single colon must not end the text
            return False
    return _gap_filled(halves, row, group, gap)


@compiled
def _gap_filled(halves: Any, row: Any, count: Any, gap: Any) -> Any:
    """Check if this many groups are an address, with a `::` before group `gap`, and move those
    after it to the end.

    gap: below 0 if there is no `::`.
    """
    if gap < 0:
        return count == _GROUPS
    if count == _GROUPS:  # a `::` that replaces no group
        return False
    after_gap = count - gap
    for position in range(1, after_gap + 1):
        halves[row, _GROUPS - position] = halves[row, count - position]
    for position in range(gap, _GROUPS - after_gap):
        halves[row, position] = 0
    return True


@_intrinsic
def _word(typing: Any, letters: Any, at: Any) -> Any:  # noqa: ARG001
    """Read the four bytes at a position, the first lowermost; it need not be aligned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.zext(
            _loaded(context, builder, signature, arguments, ir.IntType(32)), ir.IntType(64)
        )

    return types.uint64(letters, at), generate


@_intrinsic
def lowest_bit(typing: Any, bits: Any) -> Any:  # noqa: ARG001
    """Return the number of the lowest 1 bit of a word; 64 if there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


def _between(count: int) -> Any:
    def between(typing: Any, letters: Any, at: Any, least: Any, most: Any) -> Any:  # noqa: ARG001
        """Test which of the bytes from a position on are from `least` to `most`: a bit each, the
        first lowermost.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            vector = ir.VectorType(ir.IntType(8), count)
            byte = ir.IntType(8)
            low, high = (builder.trunc(arguments[number], byte) for number in (2, 3))
            above = builder.sub(
                _loaded(context, builder, signature, arguments, vector),
                _spread(builder, vector, low),
            )
            inside = builder.icmp_unsigned(
                "<=", above, _spread(builder, vector, builder.sub(high, low))
            )
            bits = builder.bitcast(inside, ir.IntType(count))
            if count == 64:
                return bits
            return builder.zext(bits, ir.IntType(64))

        return types.uint64(letters, at, types.int64, types.int64), generate

    return _intrinsic(between)


_between16 = _between(16)
_between64 = _between(64)


def _loaded(context: Any, builder: Any, signature: Any, arguments: Any, pointed: Any) -> Any:
    """Load a value of this type from arguments[0] at offset arguments[1]."""
    letters = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    at = context.cast(builder, arguments[1], signature.args[1], types.int64)
    return builder.load(builder.bitcast(builder.gep(letters, [at]), pointed.as_pointer()), align=1)


def _spread(builder: Any, vector: Any, value: Any) -> Any:
    """Make a vector with the same value in all its lanes."""
    filled = ir.Constant(vector, ir.Undefined)
    for lane in range(vector.count):
        filled = builder.insert_element(filled, value, ir.Constant(ir.IntType(32), lane))
    return filled
