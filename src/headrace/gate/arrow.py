"""Read Arrow IPC files and streams, and validate what memory safety depends on.

Arrow verifies the metadata of a file as it reads it. It does not check that the lengths and offsets
of arrays stay inside their buffers, nor how much a compressed buffer grows. Here a record batch is
validated when it is first touched – once per process and file, until the file changes – so that a
store of 10 GB is not read to open it. Values of fixed width are never read for it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import CorruptShard
from headrace.gate import MOST_GROWTH, RESTORE
from headrace.gate.flatbuffer import FlatTable, root_table
from headrace.gate.growth import decoded_bytes, shares_values
from headrace.gate.mapped import Identity, Mapped, map_bytes
from headrace.gate.whole import is_ascii, is_whole

# A record batch may have so many rows, and bytes once it is decompressed, or more if that is at
# most so many times its bytes in the file.
_BATCH_ROWS = 1 << 24
_BATCH_BYTES = 256 << 20
_FILE_MAGIC = b"ARROW1"
_TAIL_BYTES = 10  # the footer's length and the magic behind it
_CONTINUES = b"\xff\xff\xff\xff"
_BLOCKS = np.dtype([("offset", "<i8"), ("metadata", "<i4"), ("", "<i4"), ("body", "<i8")])
_BUFFERS = np.dtype([("offset", "<i8"), ("length", "<i8")])
_SCHEMA = 1  # types of messages
_DICTIONARY = 2
_MOST_KNOWN = 1 << 17  # validated batches to remember
# (identity of the file, offset of the batch) → bits of its validated columns, and behind them one
# of a batch that is not compressed
_known: dict[tuple[Identity, int], int] = {}
_OF_SCHEMA = -1  # in place of an offset


class Message(NamedTuple):
    """What the metadata of a message says.

    offset, length: its bytes in the file. body: where its buffers begin, in the message.
    message_type: 1 for a schema, 2 for a dictionary, 3 for a record batch.
    """

    offset: int
    length: int
    body: int
    message_type: int
    rows: int
    compressed: bool
    buffers: npt.NDArray[np.void]

    @property
    def is_dictionary(self) -> bool:
        """Whether it holds values of a dictionary, not rows."""
        return self.message_type == _DICTIONARY


class ArrowFile:
    """An Arrow file or stream, whose record batches are validated when they are first touched.

    Methods raise `CorruptShard` for damage, and what the source raises if it cannot be read.

    source: its bytes. identity: of the mapped file; None: of bytes that are validated each time.
    remedy: for errors.
    """

    def __init__(
        self,
        source: pa.Buffer | pa.NativeFile,
        path: str | Path,
        identity: Identity | None = None,
        remedy: str = RESTORE,
    ) -> None:
        self.path = path
        self._data = source if isinstance(source, pa.Buffer) else None
        self._source = source if self._data is None else pa.BufferReader(source)
        self._identity = identity
        self._remedy = remedy
        self._dictionaries_checked = False
        with self._naming():
            self._size: int = self._source.size()
            self.is_file = self._source.read_at(len(_FILE_MAGIC), 0) == _FILE_MAGIC
            self._source.seek(0)
            if self.is_file:
                footer = self._footer()
                self._dictionaries = footer.structs(2, _BLOCKS)
                self._blocks = footer.structs(3, _BLOCKS)
                self._reader = pa.ipc.open_file(self._source)
            else:
                self._reader = pa.ipc.open_stream(self._source)
            self.schema: pa.Schema = self._reader.schema
            self._check_names()

    @property
    def batch_count(self) -> int:
        """Number of record batches of a file; a stream does not say it."""
        return len(self._blocks)

    def messages(self) -> Iterator[Message]:
        """List the record batches of a file, or the dictionaries and record batches of a stream, in
        order. No values are read.
        """
        if self.is_file:
            for number in range(self.batch_count):
                with self._naming(number):
                    listed = self._block(self._blocks[number])
                yield listed
            return
        offset = 0
        while True:
            with self._naming():
                message = self._message(offset)
            if message is None:
                return
            if message.message_type != _SCHEMA:
                yield message
            offset += message.length

    def batch(self, number: int, columns: Sequence[int] | None = None) -> pa.RecordBatch:
        """Read a record batch of a file; views of it where it is mapped and not compressed.

        columns: their positions; None: all.
        """
        with self._naming(number):
            if not 0 <= number < self.batch_count:
                raise pa.ArrowInvalid(f"it has {self.batch_count} record batches")
            if self._is_known_to_be_plain(number, columns):
                return self._chosen(self._reader.get_batch(number), columns)
            message = self._block(self._blocks[number])
            self._check_dictionaries()
            self._check_growth(message)
            if message.compressed:
                record = self._decompressed(message, number, columns)
            else:
                record = self._reader.get_batch(number)
            self._validate(record, message, columns)
            return self._chosen(record, columns)

    def batch_at(
        self, offset: int, length: int, columns: Sequence[int] | None = None
    ) -> pa.RecordBatch:
        """Read the record batch of a stream whose message has this range of bytes."""
        with self._naming():
            message = self._message(offset)
            if message is None or message.length != length:
                raise pa.ArrowInvalid(f"no record batch has the {length} bytes from {offset}")
            self._check_growth(message)
            data = pa.ipc.read_message(self._bytes(offset, length))
            record = pa.ipc.read_record_batch(data, self.schema)
            self._validate(record, message, columns)
            return self._chosen(record, columns)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read all record batches, one after the other."""
        if self.is_file:
            for number in range(self.batch_count):
                yield self.batch(number)
            return
        messages = list(self.messages())
        with self._naming():
            for message in messages:
                self._check_growth(message)
            self._source.seek(0)
            reader = pa.ipc.open_stream(self._source)
        for message in messages:
            if not message.is_dictionary:
                with self._naming():
                    record = reader.read_next_batch()
                    self._validate(record, message, None)
                yield record

    def table(self, schema: pa.Schema | None = None) -> pa.Table:
        """Read all rows. schema: the columns that the file must have, all values of which are
        there.
        """
        if schema is not None and not self.schema.equals(schema):
            raise CorruptShard(
                f"has columns {_words(self.schema)} in place of {_words(schema)}",
                path=self.path,
                remedy=self._remedy,
            )
        table = pa.Table.from_batches(list(self.batches()), self.schema)
        if schema is not None:
            for name, column in zip(table.column_names, table.columns, strict=True):
                if column.null_count:
                    raise CorruptShard(
                        f"{column.null_count:,} values are missing",
                        path=self.path,
                        column=name,
                        remedy=self._remedy,
                    )
        return table

    def _decompressed(
        self, message: Message, number: int, columns: Sequence[int] | None
    ) -> pa.RecordBatch:
        """Decompress some columns, others are missing or left alone; fetch the batch of an object
        at once.
        """
        if self._data is None and not len(self._dictionaries):
            data = pa.ipc.read_message(self._bytes(message.offset, message.length))
            return pa.ipc.read_record_batch(data, self.schema)
        if columns is None:
            return self._reader.get_batch(number)
        options = pa.ipc.IpcReadOptions(included_fields=sorted(columns))
        return pa.ipc.open_file(self._source, options=options).get_batch(number)

    def _is_known_to_be_plain(self, number: int, columns: Sequence[int] | None) -> bool:
        """Tell whether these columns of a batch were validated before and are not compressed."""
        if self._identity is None:
            return False
        needed = self._bits(columns) | self._plain_bit
        known = _known.get((self._identity, int(self._blocks[number]["offset"])), 0)
        return needed & ~known == 0

    def _validate(
        self, record: pa.RecordBatch, message: Message, columns: Sequence[int] | None
    ) -> None:
        """Validate those of these columns that have not been before."""
        known = 0
        if self._identity is not None:
            known = _known.get((self._identity, message.offset), 0)
        record.validate()
        for column, position in zip(*self._positions(record, columns), strict=True):
            if not known >> column & 1:
                self._check_values(record.column(position))
        new = self._bits(columns)
        if not message.compressed:
            new |= self._plain_bit
        if new & ~known:
            self._remember(message.offset, known | new)

    def _chosen(self, record: pa.RecordBatch, columns: Sequence[int] | None) -> pa.RecordBatch:
        """Choose columns of a record batch, in this order."""
        return record.select(self._positions(record, columns)[1])

    def _positions(
        self, record: pa.RecordBatch, columns: Sequence[int] | None
    ) -> tuple[Sequence[int], list[int]]:
        """Return positions of columns in the file, and in a batch that may lack others."""
        if columns is None:
            columns = range(len(self.schema))
        if record.num_columns == len(self.schema):
            return columns, list(columns)
        read = sorted(columns)
        return columns, [read.index(column) for column in columns]

    @property
    def _plain_bit(self) -> int:
        """The bit, behind those of the columns, of a batch that is not compressed."""
        return 1 << len(self.schema)

    def _bits(self, columns: Sequence[int] | None) -> int:
        """Return a bit for each of these columns."""
        if columns is None:
            return self._plain_bit - 1
        return sum(1 << column for column in set(columns))

    def _check_values(self, values: pa.Array) -> None:
        if not pa.types.is_primitive(values.type) and not is_ascii(values):
            values.validate(full=True)
        if not is_whole(values):
            raise pa.ArrowInvalid("a buffer ends within a value")
        if shares_values(values.type):
            self._refuse_growth(decoded_bytes(values), values.nbytes)

    def _check_names(self) -> None:
        """Read every name, because one that is not UTF-8 raises whenever it is read."""
        if self._identity is None or (self._identity, _OF_SCHEMA) not in _known:
            for field in self.schema:
                _read_names(field)
            self._remember(_OF_SCHEMA, 0)

    def _remember(self, offset: int, columns: int) -> None:
        if self._identity is not None:
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[self._identity, offset] = columns

    def _check_dictionaries(self) -> None:
        if not self._dictionaries_checked:
            for block in self._dictionaries:
                self._check_growth(self._block(block))
            self._dictionaries_checked = True

    def _check_growth(self, message: Message) -> None:
        """Refuse a batch of more rows or bytes than its part of the file can plausibly hold."""
        if message.rows < 0 or message.rows > max(_BATCH_ROWS, MOST_GROWTH * message.length):
            raise pa.ArrowInvalid(f"a record batch cannot have {message.rows} rows")
        if not message.compressed:
            # in parts, as int64 would wrap around
            self._refuse_growth(sum(message.buffers["length"].tolist()), message.length)
            return
        body = self._bytes(message.offset, message.length)[message.body :]
        total = 0
        for offset, length in message.buffers.tolist():
            if length >= 8:
                (size,) = struct.unpack_from("<q", body, offset)
                total += length if size == -1 else size  # -1: it is not compressed
                if size < -1:
                    raise pa.ArrowInvalid(f"a buffer cannot have {size} bytes")
        self._refuse_growth(total, message.length)

    def _refuse_growth(self, grown: int, length: int) -> None:
        if grown > max(_BATCH_BYTES, MOST_GROWTH * length):
            raise pa.ArrowInvalid(
                f"a record batch of {length:,} bytes holds {grown:,}, as only a bomb does; write"
                " smaller batches if it is none"
            )

    def _footer(self) -> FlatTable:
        (length,) = struct.unpack_from("<i", self._bytes(self._size - _TAIL_BYTES, 4))
        return root_table(self._bytes(self._size - _TAIL_BYTES - length, length).to_pybytes())

    def _block(self, block: np.void) -> Message:
        """Read the metadata of a batch that the footer lists; gaps between messages are allowed."""
        message = self._message(int(block["offset"]))
        if message is None or message.length != int(block["metadata"]) + int(block["body"]):
            raise pa.ArrowInvalid("its footer and its record batches differ")
        return message

    def _message(self, offset: int) -> Message | None:
        """Read the metadata of a message; None at the end of a stream."""
        if offset + 4 > self._size:
            return None
        prefix = self._bytes(offset, min(8, self._size - offset)).to_pybytes()
        start = 8 if prefix[:4] == _CONTINUES else 4  # 4 in files of before 2019
        if len(prefix) < start:
            return None
        (length,) = struct.unpack_from("<i", prefix, start - 4)
        if not length:
            return None
        table = root_table(self._bytes(offset + start, length).to_pybytes())
        body_bytes = table.number(3, "<q")
        end = start + length + body_bytes
        if body_bytes < 0 or offset + end > self._size:
            raise pa.ArrowInvalid("a message ends outside the file")
        message_type = table.number(1, "<B")
        header = table.table(2)
        if message_type == _SCHEMA:
            return Message(
                offset, end, start + length, message_type, 0, False, np.empty(0, _BUFFERS)
            )
        if message_type == _DICTIONARY:
            header = header.table(1)
        buffers = header.structs(2, _BUFFERS)
        _check_ranges(buffers, body_bytes)
        return Message(
            offset,
            end,
            start + length,
            message_type,
            rows=header.number(0, "<q"),
            compressed=header.has(3),
            buffers=buffers,
        )

    def _bytes(self, offset: int, length: int) -> pa.Buffer:
        if offset < 0 or length < 0 or offset + length > self._size:
            raise pa.ArrowInvalid(f"it names {length} bytes at {offset} and has {self._size}")
        if self._data is not None:
            return self._data.slice(offset, length)
        self._source.seek(offset)
        return self._source.read_buffer(length)

    @contextmanager
    def _naming(self, batch: int | None = None) -> Iterator[None]:
        """Raise `CorruptShard` for damage."""
        try:
            yield
        except (FileNotFoundError, PermissionError):
            raise
        except (OSError, ValueError, pa.ArrowException, StopIteration, struct.error) as error:
            raise CorruptShard(
                f"cannot be read ({error})",
                path=self.path,
                row=None if batch is None else f"record batch {batch}",
                remedy=self._remedy,
            ) from error


def _check_ranges(buffers: npt.NDArray[np.void], body_bytes: int) -> None:
    """Refuse buffers outside the body of their message, also where it has no rows to read."""
    starts, lengths = buffers["offset"], buffers["length"]
    if (starts < 0).any() or (lengths < 0).any():
        raise pa.ArrowInvalid("a buffer begins or ends outside the file")
    if (lengths[(starts > body_bytes) | (lengths > body_bytes - starts)] > 0).any():
        raise pa.ArrowInvalid("a buffer ends outside its message")


def _words(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def _read_names(field: pa.Field) -> None:
    """Read the names of a field and those in it; one that is not UTF-8 raises `ValueError`."""
    assert isinstance(field.name, str)
    type_ = field.type
    if isinstance(type_, pa.BaseExtensionType):
        type_ = type_.storage_type
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_timestamp(type_):
        assert type_.tz is None or isinstance(type_.tz, str)
    for number in range(type_.num_fields):
        _read_names(type_.field(number))


def open_arrow(path: str | Path) -> ArrowFile:
    """Map an Arrow file or stream on a local disk.

    Raises `CorruptShard`, also if it is missing.
    """
    mapped = mapped_file(path)
    return ArrowFile(mapped.buffer, path, mapped.identity, RESTORE)


def mapped_file(path: str | Path, remedy: str = RESTORE) -> Mapped:
    """Map a file that must be there. Raises `CorruptShard`."""
    try:
        return map_bytes(path)
    except FileNotFoundError as error:
        raise CorruptShard("is missing", path=path, remedy=remedy) from error
    except OSError as error:
        reason = error.strerror or error
        raise CorruptShard(f"cannot be read ({reason})", path=path, remedy=remedy) from error
