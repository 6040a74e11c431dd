"""Read Arrow IPC: files (also called Feather version 2) and streams of record batches.

A block is a record batch of the size that its writer chose. Files are memory-mapped: uncompressed
columns are not copied, and compressed ones (lz4, zstd) are decompressed on request. Arrow has no
checksums, so a changed byte in a number goes unnoticed. Everything that memory safety depends on –
lengths, offsets, indices, UTF-8 – is checked in every block that is read. A file that is truncated
while it is mapped ends the process (SIGBUS), so do not write to files in use.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from headrace.errors import CorruptShard, InputError
from headrace.formats.registry import FileType, open_bytes
from headrace.formats.shard import BlockRead, FormatCode, Shard, Span, TableChunk, column_name
from headrace.formats.types import Target, in_schema
from headrace.storage.places import place_of

_FILE_MAGIC = b"ARROW1"
# length of footer size and magic at the end; message prefix
_TAIL = 10
_CONTINUES = b"\xff\xff\xff\xff"
# Field indices in Arrow's flatbuffer tables Message, RecordBatch and Footer.
_MESSAGE_HEADER = 2
_BATCH_COMPRESSION = 3
_FOOTER_BATCHES = 3


def batch_spans(shard: Shard) -> list[tuple[int, int, int]]:
    """List (rows, offset, length) of every record batch, in order.

    In a stream, offset and length are the byte range of the batch's message. In a file, whose
    footer locates batches, offset is 0 and length is an estimate. Raises `InputError` on a damaged
    file, and on a stream with dictionaries, whose batches cannot be read alone.
    """
    with _arrow_errors(shard.path):
        source = _source(shard.path, shard.file_type)
        if _is_file(source):
            # One column is enough to count rows; in a compressed file only that one is
            # decompressed.
            fewest = pa.ipc.IpcReadOptions(included_fields=[0])
            reader = pa.ipc.open_file(source, options=fewest)
            counts = [
                reader.get_batch(batch).num_rows for batch in range(reader.num_record_batches)
            ]
            return [(rows, 0, shard.size * rows // max(1, sum(counts))) for rows in counts]
        schema = _own_schema(source)
        spans = list[tuple[int, int, int]]()
        source.seek(0)
        messages = pa.ipc.MessageReader.open_stream(source)
        messages.read_next_message()  # the schema
        while True:
            offset = source.tell()
            try:
                message = messages.read_next_message()
            except StopIteration:
                return spans
            if message.type == "dictionary":
                raise InputError(
                    "is an Arrow stream with dictionaries, whose batches cannot be read alone",
                    path=shard.path,
                    remedy="save it as an Arrow file or as Parquet",
                )
            spans.append(
                (pa.ipc.read_record_batch(message, schema).num_rows, offset, source.tell() - offset)
            )


class ArrowCode(FormatCode):
    """Reads record batches of files and streams."""

    def survey(
        self, path: Path, name: str, file_type: FileType, signature: Sequence[str] | None = None
    ) -> Shard:
        """Read columns and types from the footer of a file or the head of a stream."""
        shard = Shard.unread(path, name, file_type)
        with _arrow_errors(path):
            schema = _own_schema(_source(path, file_type))
        if len(schema):
            return shard.with_columns(schema, [field.name for field in schema if field.nullable])
        return shard

    def read(
        self,
        shard: Shard,
        columns: Sequence[str] | None = None,
        *,
        coded: Sequence[str] = (),
        most_rows: int | None = None,
    ) -> Iterator[TableChunk]:
        """Read a record batch at a time, of the size that its writer chose."""
        if columns is None:
            schema = shard.schema
        else:
            schema = pa.schema([shard.schema.field(name) for name in columns])
        target = Target.of(schema)
        first_row = 0
        for batch, (rows, offset, length) in enumerate(batch_spans(shard)):
            with _arrow_errors(shard.path):
                table = _read(shard.path, shard.file_type, batch, offset, length, target)
            yield TableChunk(table, first_row)
            first_row += rows

    def blocks(self, shard: Shard) -> list[Span]:
        """List the record batches."""
        return [Span(batch, *span) for batch, span in enumerate(batch_spans(shard))]

    def read_block(self, block: BlockRead, target: Target) -> pa.Table:
        """Read one record batch; views of the mapped file if the types are the file's own.

        Raises `CorruptShard` on damaged bytes, `InputError` on types that pyarrow cannot convert to
        the given ones.
        """
        try:
            return _read(
                block.path, block.file_type, block.block, block.offset, block.length, target
            )
        except FileNotFoundError:
            raise
        except (OSError, KeyError, IndexError, pa.ArrowException) as error:
            raise CorruptShard(
                f"{error}",
                path=block.path,
                row=f"record batch {block.block}",
                remedy="restore the file or prepare the run again",
            ) from error


CODE = ArrowCode()


def _read(
    path: Path, file_type: FileType, batch: int, offset: int, length: int, target: Target
) -> pa.Table:
    source = _source(path, file_type)
    schema = _own_schema(source)
    index_of_name = {column_name(name): index for index, name in enumerate(schema.names)}
    names = target.schema.names
    chosen = [index_of_name[name] for name in names]
    source.seek(0)
    try:
        if _is_file(source):
            # Selecting columns on read copies them, which pays off only if they must be
            # decompressed anyway.
            options = pa.ipc.IpcReadOptions(
                included_fields=chosen if _is_compressed(source) else None
            )
            record = pa.ipc.open_file(source, options=options).get_batch(batch)
            record = record.select([schema.names[index] for index in chosen])
        else:
            source.seek(offset)
            message = pa.ipc.read_message(source.read_buffer(length))
            record = pa.ipc.read_record_batch(message, schema).select(chosen)
        for column in record.columns:
            column.validate(full=not pa.types.is_primitive(column.type))
        return in_schema(pa.Table.from_batches([record]).rename_columns(names), target)
    except pa.ArrowNotImplementedError as error:
        raise InputError(
            f"has a column of a type that this pyarrow cannot read ({error})",
            path=path,
            remedy="write it as another type",
        ) from error


def _source(path: Path, file_type: FileType) -> pa.NativeFile:
    if file_type.compression == "none":
        return place_of(path).arrow_map()
    with open_bytes(path, file_type.compression) as stream:
        return pa.BufferReader(stream.read())


def _is_file(source: pa.NativeFile) -> bool:
    source.seek(0)
    start: bytes = source.read(len(_FILE_MAGIC))
    source.seek(0)
    return start == _FILE_MAGIC


def _is_compressed(source: pa.NativeFile) -> bool:
    """Return whether the first record batch of a file has compressed buffers, from its metadata
    (flatbuffers).

    Only the footer says where the batch is, because writers may leave gaps between messages.
    """
    size = source.size()
    footer_bytes = _number("<i", _part(source, size - _TAIL, _TAIL), 0)
    footer = _part(source, size - _TAIL - footer_bytes, footer_bytes)
    batches = _field(footer, _number("<I", footer, 0), _FOOTER_BATCHES)
    vector = batches + _number("<I", footer, batches)
    if not batches or not _number("<I", footer, vector):
        return False
    offset = _number("<q", footer, vector + 4)
    metadata_bytes = _number("<i", footer, vector + 12)
    metadata = _part(source, offset, metadata_bytes)
    metadata = metadata[8 if metadata[:4] == _CONTINUES else 4 :]
    header = _field(metadata, _number("<I", metadata, 0), _MESSAGE_HEADER)
    return bool(
        header and _field(metadata, header + _number("<I", metadata, header), _BATCH_COMPRESSION)
    )


def _part(source: pa.NativeFile, offset: int, length: int) -> bytes:
    if offset < 0 or length < 0:
        raise pa.ArrowInvalid(f"the footer is damaged: it names {length} bytes at {offset}")
    source.seek(offset)
    return bytes(source.read(length))


def _field(data: bytes, table: int, field: int) -> int:
    """Find a field of a flatbuffer table; 0 if the table lacks it."""
    fields = table - _number("<i", data, table)
    entry = 4 + 2 * field
    offset = 0
    if entry < _number("<H", data, fields):
        offset = _number("<H", data, fields + entry)
    if offset:
        return table + offset
    return 0


def _number(form: str, data: bytes, at: int) -> int:
    try:
        return int(struct.unpack_from(form, data, at)[0])
    except struct.error as error:
        raise pa.ArrowInvalid(f"the metadata of a record batch is damaged: {error}") from error


def _own_schema(source: pa.NativeFile) -> pa.Schema:
    return (pa.ipc.open_file if _is_file(source) else pa.ipc.open_stream)(source).schema


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    """Convert errors of Arrow and the system about this file to `InputError`, if it is there and
    may be read.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError):
        raise
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"is not a complete Arrow file ({error}); the file is cut or damaged",
            path=path,
            remedy="fetch it again",
        ) from error
