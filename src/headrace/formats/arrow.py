"""Read Arrow IPC: files (also called Feather version 2) and streams of record batches.

A block is a record batch of the size that its writer chose. Files are memory-mapped: uncompressed
columns are not copied, and compressed ones (lz4, zstd) are decompressed on request. Arrow has no
checksums, so a changed byte in a number goes unnoticed. Everything that memory safety depends on –
lengths, offsets, indices, UTF-8 – is checked by `headrace.gate`. Do not write to files in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from headrace.errors import InputError
from headrace.formats.dialect import PLAIN, TextDialect
from headrace.formats.registry import FileType, open_bytes, read_all_bytes
from headrace.formats.shard import BlockRead, FormatCode, Shard, Span, TableChunk, column_name
from headrace.formats.types import Target, in_schema
from headrace.gate.arrow import ArrowFile
from headrace.gate.mapped import map_bytes
from headrace.storage.places import place_of


def batch_spans(shard: Shard) -> list[tuple[int, int, int]]:
    """List (rows, offset, length) of every record batch, in order.

    In a stream, offset and length are the byte range of the batch's message. In a file, whose
    footer locates batches, offset is 0 and length is an estimate. Raises `InputError` on a damaged
    file, and on a stream with dictionaries, whose batches cannot be read alone.
    """
    file = _open(shard.path, shard.file_type)
    messages = list(file.messages())
    if file.is_file:
        total = max(1, sum(message.rows for message in messages))
        return [(message.rows, 0, shard.size * message.rows // total) for message in messages]
    if any(message.is_dictionary for message in messages):
        raise InputError(
            "is an Arrow stream with dictionaries, whose batches cannot be read alone",
            path=shard.path,
            remedy="save it as an Arrow file or as Parquet",
        )
    return [(message.rows, message.offset, message.length) for message in messages]


class ArrowCode(FormatCode):
    """Reads record batches of files and streams."""

    block_word = "record batch"

    def survey(
        self,
        path: Path,
        name: str,
        file_type: FileType,
        signature: Sequence[str] | None = None,
        dialect: TextDialect = PLAIN,
    ) -> Shard:
        """Read columns and types from the footer of a file or the head of a stream."""
        shard = Shard.unread(path, name, file_type)
        schema = _open(path, file_type).schema
        if len(schema):
            return shard.with_columns(schema)
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
            table = _read(shard.path, shard.file_type, batch, offset, length, target)
            yield TableChunk(table, first_row)
            first_row += rows

    def blocks(self, shard: Shard) -> list[Span]:
        """List the record batches."""
        return [Span(batch, *span) for batch, span in enumerate(batch_spans(shard))]

    def read_block(self, block: BlockRead, target: Target) -> pa.Table:
        """Read one record batch; views of the mapped file if the types are the file's own."""
        return _read(block.path, block.file_type, block.block, block.offset, block.length, target)


CODE = ArrowCode()


def _read(
    path: Path, file_type: FileType, batch: int, offset: int, length: int, target: Target
) -> pa.Table:
    file = _open(path, file_type)
    index_of_name = {column_name(name): index for index, name in enumerate(file.schema.names)}
    names = target.schema.names
    chosen = [index_of_name[name] for name in names]
    if file.is_file:
        record = file.batch(batch, chosen)
    else:
        record = file.batch_at(offset, length, chosen)
    return in_schema(pa.Table.from_batches([record]).rename_columns(names), target)


def _open(path: Path, file_type: FileType) -> ArrowFile:
    """Open a shard. Raises `CorruptShard`, and what its storage raises."""
    file = place_of(path)
    if file_type.compression != "none":
        with open_bytes(path, file_type.compression) as stream:
            return ArrowFile(
                pa.py_buffer(read_all_bytes(path, stream, file_type.compression)), path
            )
    if file.reads == "requests":
        return ArrowFile(file.arrow_stream(), path)
    mapped = map_bytes(path)
    return ArrowFile(mapped.buffer, path, mapped.identity)
