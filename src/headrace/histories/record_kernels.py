"""ArrayRecord files of one uncompressed record a chunk, compiled by numba: the bytes that the array_record package
writes with `group_size:1,uncompressed`, without a call for each record. Extra `histories`.

Such a file is a Riegeli file (its description: riegeli/doc/riegeli_records_file_format.md): blocks of 64 KiB that begin
with a header, and chunks that go on across them. Behind the records come a chunk that lists where every chunk begins,
and in the last block one that says where that list is. Hashes are HighwayHash with 64 bits (Alakuijala, Cox and
Wassenberg, 2016). Here a place is a byte of the file as if there were no block headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.arrays import I64, U8
from headrace.compiled import compiled, read_only

OPTIONS = b"group_size:1,transpose:false,pad_to_block_boundary:false,uncompressed,max_parallelism:1"

_BLOCK, _BLOCK_HEAD, _CHUNK_HEAD = 1 << 16, 24, 40
_ROOM = _BLOCK - _BLOCK_HEAD  # of a block, for chunks
_SIGNATURE, _PADDING, _RECORDS = ord("s"), ord("p"), ord("r")
_MOST_A_HEAD = _CHUNK_HEAD + 2 + 10  # of a record: the chunk's, no compression, how long its length is, its length
_MAGIC = 0x71930E704FDAE05E  # of the postscript
_MOST_LISTED = 3 + 2 * 10  # of a chunk in the list: three fields, of which the last is 1
_AT_ONCE = 1 << 20  # bytes of records that are made into chunks at a time

_KEY = tuple(np.uint64(int.from_bytes(each, "little")) for each in (b"Riegeli/", b"records\n") * 2)
_MUL0 = tuple(
    np.uint64(each) for each in (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
)
_MUL1 = tuple(
    np.uint64(each) for each in (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
)
_1, _8, _16, _24, _32, _48, _56 = (np.uint64(each) for each in (1, 8, 16, 24, 32, 48, 56))
_B0, _B1, _B2, _B3, _B4, _B5, _B6, _B7 = (np.uint64(0xFF << each) for each in range(0, 64, 8))
_LOW = np.uint64(0xFFFFFFFF)


class Chunks:
    """The bytes of a file that is written from its begin to its end. O(records) of memory: 16 bytes each."""

    def __init__(self, options: bytes = OPTIONS) -> None:
        self._options = options
        self._place = 0
        self._begins: list[I64] = []
        self._sizes: list[I64] = []

    def start(self) -> U8:
        """The first bytes of a file."""
        return self._one(_SIGNATURE, 0, 0, b"")

    def records(self, data: U8, begins: I64, ends: I64) -> Iterator[U8]:
        """The bytes of the next records, a piece at a time. Record k is data[begins[k]:ends[k]]."""
        sizes = ends - begins
        total = np.cumsum(sizes + _MOST_A_HEAD)
        first = 0
        while first < len(sizes):
            before = int(total[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(total, before + _AT_ONCE, side="right")))
            out = np.empty(_with_headers(int(total[last - 1]) - before), np.uint8)
            stage = _stage(int(sizes[first:last].max()))
            at = np.empty(last - first, np.int64)
            length, self._place = _put_records(
                read_only(data), read_only(begins[first:last]), read_only(ends[first:last]), self._place, stage,
                stage.view(np.uint64), np.zeros(8, np.uint64), out, at,
            )  # fmt: skip
            self._begins.append(at)
            self._sizes.append(sizes[first:last])
            yield out[:length]
            first = last

    def finish(self) -> Iterator[U8]:
        """The last bytes, after the last record."""
        none = np.zeros(0, np.int64)
        begins, sizes = np.concatenate([none, *self._begins]), np.concatenate([none, *self._sizes])
        count = _varint(len(begins))
        about = b"\x08\x01\x10" + count + b"\x18" + count + b"\x22" + _varint(len(self._options)) + self._options
        listed, lengths = np.empty(_MOST_LISTED * len(begins), np.uint8), np.empty(len(begins), np.uint8)
        listed = listed[: _list_chunks(read_only(begins), read_only(sizes), listed, lengths)]
        about = b"\x0a" + _varint(len(about)) + about
        at = int(_in_file(self._place))
        yield self._several([about], listed.tobytes(), lengths.tobytes())
        yield self._padding()
        last = b"\x08" + _varint(at) + b"\x10" + _varint(_MAGIC)
        yield self._several([last] * 3)
        yield self._padding()

    def _several(self, records: list[bytes], more: bytes = b"", lengths: bytes = b"") -> U8:
        """A chunk of records, and behind them of others, end to end, each of a length below 128."""
        of_all = b"".join(_varint(len(each)) for each in records) + lengths
        values = b"".join(records) + more
        count = len(records) + len(lengths)
        return self._one(_RECORDS, count, len(values), b"\x00" + _varint(len(of_all)) + of_all + values)

    def _padding(self) -> U8:
        """Zeros up to the next block; nothing at its begin."""
        left = -self._place % _ROOM
        if not left:
            return np.zeros(0, np.uint8)
        left += 0 if left >= _CHUNK_HEAD else _ROOM
        return self._one(_PADDING, 0, 0, bytes(left - _CHUNK_HEAD))

    def _one(self, kind: int, records: int, decoded: int, data: bytes) -> U8:
        stage = _stage(len(data))
        stage[_CHUNK_HEAD : _CHUNK_HEAD + len(data)] = np.frombuffer(data, np.uint8)
        out = np.empty(_with_headers(_CHUNK_HEAD + len(data)), np.uint8)
        length = _put_chunk(
            kind, records, decoded, len(data), self._place, stage, stage.view(np.uint64), np.zeros(8, np.uint64), out, 0
        )
        self._place += _CHUNK_HEAD + len(data)
        return out[:length]


def _stage(size: int) -> U8:
    """Memory for a chunk with so much data, and for a whole packet of its hash behind it."""
    return np.zeros(-(-(_MOST_A_HEAD + size) // 8) * 8 + 32, np.uint8)


def _with_headers(size: int) -> int:
    """At most so many bytes of the file are chunks of this size."""
    return size + _BLOCK_HEAD * (2 + size // _ROOM)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first, the highest bit of all but the last set."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


@compiled
def _in_file(place: Any) -> Any:
    """Where in the file a chunk begins; at the begin of a block that is before the block's header."""
    return place + _BLOCK_HEAD * ((place + _ROOM - 1) // _ROOM)


@compiled
def _put_records(
    data: Any, begins: Any, ends: Any, place: Any, stage: Any, words: Any, scratch: Any, out: Any, chunks: Any
) -> Any:
    """A chunk for each record; fills where they begin in the file. How long `out` is, and the place behind them."""
    at = 0
    for record in range(len(begins)):
        size = ends[record] - begins[record]
        stage[_CHUNK_HEAD] = 0
        first = _CHUNK_HEAD + 2
        first = _put_varint(size, stage, first)
        stage[_CHUNK_HEAD + 1] = first - _CHUNK_HEAD - 2
        _copy(data, begins[record], stage, first, size)
        length = first + size - _CHUNK_HEAD
        chunks[record] = _in_file(place)
        at = _put_chunk(_RECORDS, 1, size, length, place, stage, words, scratch, out, at)
        place += _CHUNK_HEAD + length
    return at, place


@compiled
def _put_chunk(
    kind: Any, records: Any, decoded: Any, size: Any, place: Any,
    stage: Any, words: Any, scratch: Any, out: Any, at: Any,
) -> Any:  # fmt: skip
    """The chunk whose data of this size stand in the stage behind room for a header; where `out` ends.

    words: the stage as uint64; scratch: uint64 [8], for a block's header and what its hash looks at behind it.
    """
    words[1] = np.uint64(size)
    words[2] = _hash(stage, words, 5, size)
    words[3] = np.uint64(kind) | np.uint64(records) << _8
    words[4] = np.uint64(decoded)
    words[0] = _hash(stage, words, 1, 32)
    whole = _CHUNK_HEAD + size
    begin, end = _in_file(place), _in_file(place + whole)
    bytes_of = scratch.view(np.uint8)
    done = 0
    while done < whole:
        used = (place + done) % _ROOM
        if used == 0:
            here = (place + done) // _ROOM * _BLOCK
            scratch[1] = np.uint64(here - begin)
            scratch[2] = np.uint64(end - here)
            scratch[0] = _hash(bytes_of, scratch, 1, 16)
            _copy(bytes_of, 0, out, at, _BLOCK_HEAD)
            at += _BLOCK_HEAD
        take = min(_ROOM - used, whole - done)
        _copy(stage, done, out, at, take)
        at, done = at + take, done + take
    return at


@compiled
def _copy(data: Any, start: Any, out: Any, at: Any, size: Any) -> None:
    """Bytes from one array to another; a loop over unsigned places becomes wide moves, which a slice does not."""
    source, to = np.uint64(start), np.uint64(at)
    for place in range(np.uint64(size)):
        out[to + place] = data[source + place]


@compiled
def _list_chunks(begins: Any, sizes: Any, out: Any, lengths: Any) -> Any:
    """Of every chunk where it begins, the bytes of its records and that it has one, as a protocol buffer."""
    at = 0
    for chunk in range(len(begins)):
        begin = at
        out[at] = 0x08
        at = _put_varint(begins[chunk], out, at + 1)
        out[at] = 0x10
        at = _put_varint(sizes[chunk], out, at + 1)
        out[at], out[at + 1] = 0x18, 1
        at += 2
        lengths[chunk] = at - begin
    return at


@compiled
def _put_varint(value: Any, out: Any, at: Any) -> Any:
    while value > 127:
        out[at] = value & 127 | 128
        value >>= 7
        at += 1
    out[at] = value
    return at + 1


@compiled
def _hash(data: Any, words: Any, first: Any, size: Any) -> Any:
    """Of so many bytes from a word on. data: the words as bytes."""
    state = _begin()
    word = first
    for _ in range(size >> 5):
        state = _update(state, words[word], words[word + 1], words[word + 2], words[word + 3])
        word += 4
    rest = size & 31
    if rest:
        state = _remainder(state, data, words, 8 * word, rest)
    for _ in range(4):
        v0 = state[0]
        state = _update(state, _swapped(v0[2]), _swapped(v0[3]), _swapped(v0[0]), _swapped(v0[1]))
    return state[0][0] + state[1][0] + state[2][0] + state[3][0]


@compiled
def _begin() -> Any:
    """v0, v1, mul0 and mul1 of the key, four words each."""
    v0 = (_MUL0[0] ^ _KEY[0], _MUL0[1] ^ _KEY[1], _MUL0[2] ^ _KEY[2], _MUL0[3] ^ _KEY[3])
    v1 = (
        _MUL1[0] ^ _swapped(_KEY[0]), _MUL1[1] ^ _swapped(_KEY[1]),
        _MUL1[2] ^ _swapped(_KEY[2]), _MUL1[3] ^ _swapped(_KEY[3]),
    )  # fmt: skip
    return v0, v1, _MUL0, _MUL1


@compiled
def _swapped(x: Any) -> Any:
    """Its halves in the other order."""
    return (x >> _32) | (x << _32)


@compiled
def _update(state: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    (v00, v01, v02, v03), (v10, v11, v12, v13), (m00, m01, m02, m03), (m10, m11, m12, m13) = state
    v10, v11, v12, v13 = v10 + a + m00, v11 + b + m01, v12 + c + m02, v13 + d + m03
    m00, m01 = m00 ^ (v10 & _LOW) * (v00 >> _32), m01 ^ (v11 & _LOW) * (v01 >> _32)
    m02, m03 = m02 ^ (v12 & _LOW) * (v02 >> _32), m03 ^ (v13 & _LOW) * (v03 >> _32)
    v00, v01, v02, v03 = v00 + m10, v01 + m11, v02 + m12, v03 + m13
    m10, m11 = m10 ^ (v00 & _LOW) * (v10 >> _32), m11 ^ (v01 & _LOW) * (v11 >> _32)
    m12, m13 = m12 ^ (v02 & _LOW) * (v12 >> _32), m13 ^ (v03 & _LOW) * (v13 >> _32)
    v00, v01 = v00 + _zipped_even(v11, v10), v01 + _zipped_odd(v11, v10)
    v02, v03 = v02 + _zipped_even(v13, v12), v03 + _zipped_odd(v13, v12)
    v10, v11 = v10 + _zipped_even(v01, v00), v11 + _zipped_odd(v01, v00)
    v12, v13 = v12 + _zipped_even(v03, v02), v13 + _zipped_odd(v03, v02)
    return (v00, v01, v02, v03), (v10, v11, v12, v13), (m00, m01, m02, m03), (m10, m11, m12, m13)


@compiled
def _zipped_even(odd: Any, even: Any) -> Any:
    """Bytes of two words in the order 3, 12, 2, 5, 14, 1, 15, 0; those of the odd word are numbered from 8."""
    return (
        ((even & _B3 | odd & _B4) >> _24) | ((even & _B5 | odd & _B6) >> _16) | (even & _B2) | ((even & _B1) << _32)
        | ((odd & _B7) >> _8) | (even << _56)
    )  # fmt: skip


@compiled
def _zipped_odd(odd: Any, even: Any) -> Any:
    """Likewise 11, 4, 10, 13, 9, 6, 8, 7."""
    return (
        ((odd & _B3 | even & _B4) >> _24) | (odd & _B2) | ((odd & _B5) >> _16) | ((odd & _B1) << _24)
        | ((even & _B6) >> _8) | ((odd & _B0) << _48) | (even & _B7)
    )  # fmt: skip


@compiled
def _remainder(state: Any, data: Any, words: Any, at: Any, rest: Any) -> Any:
    """The last bytes, fewer than 32, which begin with a word; there are 32 in the array."""
    (v00, v01, v02, v03), (v10, v11, v12, v13), mul0, mul1 = state
    more = np.uint64(rest) << _32 | np.uint64(rest)
    v00, v01, v02, v03 = v00 + more, v01 + more, v02 + more, v03 + more
    v10, v11, v12, v13 = _turned(v10, rest), _turned(v11, rest), _turned(v12, rest), _turned(v13, rest)
    whole, odd, word = rest & ~3, rest & 3, at >> 3
    a, b = _cut(words[word], whole), _cut(words[word + 1], whole - 8)
    c, d = _cut(words[word + 2], whole - 16), _cut(words[word + 3], whole - 24)
    end = at + rest
    if rest & 16:
        for place in range(4):
            d |= np.uint64(data[end - 4 + place]) << np.uint64(32 + 8 * place)
    elif odd:
        c |= np.uint64(data[end - odd]) | np.uint64(data[end - odd + (odd >> 1)]) << _8
        c |= np.uint64(data[end - 1]) << _16
    state = (v00, v01, v02, v03), (v10, v11, v12, v13), mul0, mul1
    return _update(state, a, b, c, d)


@compiled
def _cut(word: Any, size: Any) -> Any:
    """The first bytes of a word: so many, none or all."""
    if size <= 0:
        return np.uint64(0)
    return word if size >= 8 else word & ((_1 << np.uint64(8 * size)) - _1)


@compiled
def _turned(x: Any, bits: Any) -> Any:
    """Both halves turned left by so many bits, 1 to 31."""
    low, high, left, right = x & _LOW, x >> _32, np.uint64(bits), np.uint64(32 - bits)
    low, high = (low << left | low >> right) & _LOW, (high << left | high >> right) & _LOW
    return high << _32 | low
