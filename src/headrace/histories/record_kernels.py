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
from headrace.compiled import compiled, instructions, intrinsic, ir, loaded, read_only, spread, types

OPTIONS = b"group_size:1,transpose:false,pad_to_block_boundary:false,uncompressed,max_parallelism:1"

_BLOCK, _BLOCK_HEAD, _CHUNK_HEAD = 1 << 16, 24, 40
_ROOM = _BLOCK - _BLOCK_HEAD  # of a block, for chunks
_SIGNATURE, _PADDING, _RECORDS = ord("s"), ord("p"), ord("r")
_MOST_A_HEAD = _CHUNK_HEAD + 2 + 10  # of a record: the chunk's, no compression, how long its length is, its length
_MAGIC = 0x71930E704FDAE05E  # of the postscript
_MOST_LISTED = 3 + 2 * 10  # of a chunk in the list: three fields, of which the last is 1
_LAST, _SCRATCH = 8, 12  # words of scratch memory: where a packet begins, and all
_AT_ONCE = 1 << 20  # bytes of records that are made into chunks at a time

_1, _8, _16 = (np.uint64(each) for each in (1, 8, 16))


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
                stage.view(np.uint64), np.zeros(_SCRATCH, np.uint64), out, at,
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
        scratch = np.zeros(_SCRATCH, np.uint64)
        length = _put_chunk(
            kind, records, decoded, len(data), self._place, stage, stage.view(np.uint64), scratch, out, 0
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

    words: the stage as uint64; scratch: for a block's header and what its hash looks at behind it, and for a packet.
    """
    words[1] = np.uint64(size)
    last = scratch[_LAST:]
    words[2] = _hash(stage, words, 5, size, last)
    words[3] = np.uint64(kind) | np.uint64(records) << _8
    words[4] = np.uint64(decoded)
    words[0] = _hash(stage, words, 1, 32, last)
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
            scratch[0] = _hash(bytes_of, scratch, 1, 16, last)
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
def _hash(data: Any, words: Any, first: Any, size: Any, last: Any) -> Any:
    """Of so many bytes from a word on. data: the words as bytes; last: uint64 [4], for what is no whole packet."""
    rest = size & 31
    if rest:
        _last_packet(data, words, 8 * first + size - rest, rest, last)
    return _highway(words, first, size >> 5, rest, last)


@compiled
def _last_packet(data: Any, words: Any, at: Any, rest: Any, out: Any) -> None:
    """What is hashed for the last bytes, fewer than 32, which begin with a word; there are 32 in the array."""
    whole, odd, word = rest & ~3, rest & 3, at >> 3
    for place in range(4):
        out[place] = _cut(words[word + place], whole - 8 * place)
    end = at + rest
    if rest & 16:
        for place in range(4):
            out[3] |= np.uint64(data[end - 4 + place]) << np.uint64(32 + 8 * place)
    elif odd:
        out[2] |= np.uint64(data[end - odd]) | np.uint64(data[end - odd + (odd >> 1)]) << _8
        out[2] |= np.uint64(data[end - 1]) << _16


@compiled
def _cut(word: Any, size: Any) -> Any:
    """The first bytes of a word: so many, none or all."""
    if size <= 0:
        return np.uint64(0)
    return word if size >= 8 else word & ((_1 << np.uint64(8 * size)) - _1)


@intrinsic
def _highway(typing: Any, words: Any, first: Any, packets: Any, rest: Any, last: Any) -> Any:  # noqa: ARG001
    """HighwayHash of packets of four words, from word `first` on, and of the last packet if it has `rest` bytes.

    Its four lanes are vectors of the processor, whichever it has: on single words it takes five times as long, most
    of it for moving bytes, which is one instruction for a vector.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, last = (
            context.make_array(signature.args[place])(context, builder, arguments[place]).data for place in (0, 4)
        )
        first, packets, rest = (
            context.cast(builder, arguments[place], signature.args[place], types.int64) for place in (1, 2, 3)
        )
        return _Lanes(builder).digest(words, first, packets, rest, last)

    return types.uint64(words, first, packets, rest, last), generate


class _Lanes:
    """HighwayHash in the instructions of LLVM; v0, v1, mul0 and mul1 are vectors of four words."""

    WORDS, HALVES, BYTES = (ir.VectorType(ir.IntType(64 // n), 4 * n) for n in (1, 2, 8))
    # Per 16 bytes: how they are mixed between two words.
    ZIPPED = (3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7)
    PERMUTED = (5, 4, 7, 6, 1, 0, 3, 2)  # halves of v0 where the digest is made
    INITIAL0 = (0xDBE6D5D5FE4CCE2F, 0xA4093822299F31D0, 0x13198A2E03707344, 0x243F6A8885A308D3)
    INITIAL1 = (0x3BD39E10CB0EF593, 0xC0ACF169B5F18A8C, 0xBE5466CF34E90C6C, 0x452821E638D01377)
    KEY = tuple(int.from_bytes(each, "little") for each in (b"Riegeli/", b"records\n") * 2)

    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self._state = [instructions.alloca_once(builder, self.WORDS) for _ in range(4)]

    def digest(self, words: Any, first: Any, packets: Any, rest: Any, last: Any) -> Any:
        """The hash, an LLVM value."""
        builder, zero = self._builder, ir.Constant(ir.IntType(64), 0)
        turned = [(key << 32 | key >> 32) & (1 << 64) - 1 for key in self.KEY]
        initial = [
            [each ^ key for each, key in zip(self.INITIAL0, self.KEY, strict=True)],
            [each ^ key for each, key in zip(self.INITIAL1, turned, strict=True)],
            self.INITIAL0,
            self.INITIAL1,
        ]
        self._put([ir.Constant(self.WORDS, list(each)) for each in initial])
        with instructions.for_range(builder, packets) as loop:
            place = builder.add(first, builder.shl(loop.index, ir.Constant(ir.IntType(64), 2)))
            self._update(self._packet(words, place))
        with builder.if_then(builder.icmp_signed(">", rest, zero)):
            self._lengthen(rest)
            self._update(self._packet(last, zero))
        for _ in range(4):
            self._update(self._shuffled(builder.load(self._state[0]), self.HALVES, self.PERMUTED))
        total = zero
        for vector in self._get():
            total = builder.add(total, builder.extract_element(vector, ir.Constant(ir.IntType(32), 0)))
        return total

    def _get(self) -> list[Any]:
        return [self._builder.load(each) for each in self._state]

    def _put(self, state: list[Any]) -> None:
        for value, place in zip(state, self._state, strict=True):
            self._builder.store(value, place)

    def _packet(self, words: Any, place: Any) -> Any:
        return loaded(self._builder, words, place, self.WORDS, 8)

    def _every(self, vector: ir.VectorType, value: int) -> Any:
        return ir.Constant(vector, [value] * vector.count)

    def _shuffled(self, value: Any, parts: ir.VectorType, order: tuple[int, ...]) -> Any:
        value = self._builder.bitcast(value, parts)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), list(order))
        return self._builder.bitcast(self._builder.shuffle_vector(value, value, mask), self.WORDS)

    def _zipped(self, value: Any) -> Any:
        return self._shuffled(value, self.BYTES, (*self.ZIPPED, *(16 + each for each in self.ZIPPED)))

    def _product(self, low: Any, high: Any) -> Any:
        """The lower halves of one times the upper halves of the other."""
        builder = self._builder
        low = builder.and_(low, self._every(self.WORDS, (1 << 32) - 1))
        return builder.mul(low, builder.lshr(high, self._every(self.WORDS, 32)))

    def _update(self, packet: Any) -> None:
        builder = self._builder
        v0, v1, mul0, mul1 = self._get()
        v1 = builder.add(v1, builder.add(packet, mul0))
        mul0 = builder.xor(mul0, self._product(v1, v0))
        v0 = builder.add(v0, mul1)
        mul1 = builder.xor(mul1, self._product(v0, v1))
        v0 = builder.add(v0, self._zipped(v1))
        v1 = builder.add(v1, self._zipped(v0))
        self._put([v0, v1, mul0, mul1])

    def _lengthen(self, rest: Any) -> None:
        """Before the last packet: v0 grows by its size in bytes, and both halves of v1 are turned by it, 1 to 31."""
        builder = self._builder
        v0, v1, mul0, mul1 = self._get()
        size = spread(builder, self.HALVES, builder.trunc(rest, ir.IntType(32)))
        v0 = builder.add(v0, builder.bitcast(size, self.WORDS))
        halves = builder.bitcast(v1, self.HALVES)
        left = builder.shl(halves, size)
        right = builder.lshr(halves, builder.sub(self._every(self.HALVES, 32), size))
        self._put([v0, builder.bitcast(builder.or_(left, right), self.WORDS), mul0, mul1])
