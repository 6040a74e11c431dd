"""Read and write Parquet: footers, chunks of bounded size, and files laid out for training.

Written files declare columns without nulls as such, have a checksum on every page, row groups of at
most 65,536 rows or 8 MiB, and dictionaries only where they pay off. Page checksums are verified on
every read of a file that has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.errors import CorruptShard, InputError
from headrace.formats.open_parquet import open_file, read_group
from headrace.formats.registry import FileType
from headrace.formats.shard import (
    BlockRead,
    Encoding,
    FormatCode,
    Shard,
    Span,
    TableChunk,
    WriteSettings,
    column_name,
    unchanged,
)
from headrace.formats.types import Target, in_schema, is_text
from headrace.formats.write import HashingFile

CHUNK_ROWS = 65_536
_SAMPLE_ROWS = 4096
_CODE_BYTES = 8  # a plain text takes four bytes of length plus its own

# Earlier pyarrow versions cannot read missing fixed-size lists from Parquet, and some cannot write
# them.
READS_MISSING_VECTORS = int(pa.__version__.split(".")[0]) >= 26


def row_groups(shard: Shard, file: pq.ParquetFile) -> list[Span]:
    """List the row groups of an open file that have rows."""
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    unchanged(shard)
    result = []
    for number, group in enumerate(groups):
        if group.num_rows:
            result.append(Span(number, group.num_rows, 0, group.total_byte_size))
    return result


def surveyed(
    file: pq.ParquetFile, path: Path, name: str, file_type: FileType, known: pa.Schema | None = None
) -> Shard:
    """Survey an open file. known: a schema object to reuse if it equals this file's."""
    shard = Shard.unread(path, name, file_type)
    file_schema = file.schema_arrow
    if not len(file_schema) and not file.metadata.num_rows:
        return shard
    shard = shard.with_columns(file_schema, _columns_with_nulls(file_schema, file.metadata))
    if known is not None and shard.schema.equals(known):
        return replace(shard, schema=known)
    return shard


def _chunks(
    shard: Shard, columns: Sequence[str] | None, coded: Sequence[str], most_rows: int
) -> Iterator[TableChunk]:
    """Iterate over the rows of a shard in file order, at most `most_rows` at a time.

    coded: text columns to deliver as dictionaries if they are stored as such, so that texts are not
    decoded for every row. A chunk is then a row group, or 4 × `most_rows` rows of a larger one, so
    that each dictionary is made once.
    """
    texts = []
    for name in coded:
        if is_text(shard.schema.field(name).type):
            texts.append(name)
    if columns is None:
        selected = shard.schema.names
    else:
        selected = list(columns)
    first_row = 0
    file = open_file(shard.path, shard.file_type)
    metadata = file.metadata
    codes = []
    if texts:
        codes = _stored_as_codes(metadata, texts)
    if codes:
        with file:
            file = open_file(shard.path, shard.file_type, footer=metadata, coded=codes)
    with file:
        raw = {column_name(raw_name): raw_name for raw_name in file.schema_arrow.names}
        file_names = [raw[name] for name in selected]
        batches = _batches(file, file_names, "whole" if coded else "cut", most_rows)
        while True:
            try:
                table = next(batches, None)
            except (OSError, pa.ArrowInvalid) as error:
                raise InputError(
                    f"row {first_row + 1} and on: {error}; the file is damaged, fetch it again",
                    path=shard.path,
                ) from error
            if table is None:
                if selected and first_row != metadata.num_rows:
                    raise InputError(
                        f"has {first_row} rows, its footer says {metadata.num_rows}; the file is"
                        " damaged, fetch it again",
                        path=shard.path,
                    )
                return
            table = table.rename_columns(selected)
            fields = [
                (
                    table.schema.field(name)
                    if pa.types.is_dictionary(table.schema.field(name).type) and name in coded
                    else shard.schema.field(name)
                )
                for name in selected
            ]
            yield TableChunk(table.cast(pa.schema(fields)), first_row)
            first_row += table.num_rows


def _batches(
    file: pq.ParquetFile, columns: list[str], groups: Literal["whole", "cut"], most_rows: int
) -> Iterator[pa.Table]:
    """Yield tables with the columns in this order; groups="whole" keeps row groups of up to 4 ×
    most_rows whole.
    """
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    if groups == "whole":
        rows = 4 * most_rows
    else:
        rows = most_rows
    if groups == "cut" or max(sizes, default=0) > rows:
        for batch in file.iter_batches(rows, columns=columns, use_threads=False):
            yield pa.Table.from_batches([batch])
        return
    for group, size in enumerate(sizes):
        if size:
            yield file.read_row_group(group, columns=columns, use_threads=False).select(columns)


def _stored_as_codes(metadata: pq.FileMetaData, texts: list[str]) -> list[str]:
    """Select the columns whose values are mostly dictionary codes, judging by few uncompressed
    bytes per value.

    A writer abandons a dictionary once it is large, and making one from plain texts costs more than
    reading them.
    """
    size = dict.fromkeys(texts, 0)
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            if column_name(column.path_in_schema) in size:
                size[column_name(column.path_in_schema)] += column.total_uncompressed_size
    return [name for name in texts if size[name] < _CODE_BYTES * metadata.num_rows]


class ParquetCode(FormatCode):
    """Reads footers and row groups, and writes row groups."""

    def survey(
        self, path: Path, name: str, file_type: FileType, signature: Sequence[str] | None = None
    ) -> Shard:
        """Read columns, types and which columns hold nulls from the footer alone."""
        with open_file(path, file_type) as file:
            return surveyed(file, path, name, file_type)

    def read(
        self,
        shard: Shard,
        columns: Sequence[str] | None = None,
        *,
        coded: Sequence[str] = (),
        most_rows: int | None = None,
    ) -> Iterator[TableChunk]:
        """Decode the columns of at most `CHUNK_ROWS` rows at a time."""
        return _chunks(shard, columns, coded, most_rows or CHUNK_ROWS)

    def blocks(self, shard: Shard) -> list[Span]:
        """List the row groups, from the footer."""
        with open_file(shard.path, shard.file_type) as file:
            return row_groups(shard, file)

    def read_block(self, block: BlockRead, target: Target) -> pa.Table:
        """Read one row group. block.content: the bytes of the file, if they are in memory."""
        try:
            table = read_group(
                block.path,
                block.file_type,
                block.block,
                target.schema.names,
                block.pages,
                block.content,
            )
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowInvalid, KeyError, InputError) as error:
            raise CorruptShard(
                f"row group {block.block}: {error}",
                path=block.path,
                remedy="restore the file or prepare the run again",
            ) from error
        return in_schema(table, target)

    def open_sink(self, file: HashingFile, settings: WriteSettings) -> ParquetSink:
        """Begin a file whose options follow from the schema and the first row group."""
        return ParquetSink(file, settings.schema, settings.codec, settings.encoding)


CODE = ParquetCode()


class ParquetSink:
    """Writes row groups to a binary file object; the schema and the first row group fix all
    options.

    encoding: "compact" uses a dictionary for every column whose first rows repeat. "fast" does so
    only for text with few values, because plain numbers decode faster.
    """

    def __init__(
        self, file: Any, schema: pa.Schema, compression: str, encoding: Encoding = "compact"
    ) -> None:
        self._file = file
        self._schema = schema
        self._compression = compression
        self._encoding = encoding
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        """Write one row group."""
        table = table.cast(self._schema)
        for name in () if READS_MISSING_VECTORS else table.column_names:
            missing = table[name].null_count
            if missing and pa.types.is_fixed_size_list(table.schema.field(name).type):
                raise InputError(
                    f"column {name}: {missing} lists of a fixed size are missing, which pyarrow"
                    f" {pa.__version__} cannot read back from Parquet",
                    remedy="install pyarrow 26 or newer",
                )
        if self._writer is None:
            self._writer = self._open(table)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def close(self) -> None:
        """Write the footer; a file without rows still gets its schema."""
        if self._writer is None:
            self._writer = self._open(self._schema.empty_table())
        self._writer.close()

    def _open(self, sample: pa.Table) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            self._file,
            self._schema,
            compression="zstd" if self._compression == "zst" else self._compression,
            use_dictionary=_columns_worth_a_dictionary(
                sample.slice(0, _SAMPLE_ROWS), self._encoding
            ),
            write_page_checksum=True,
        )


def _columns_with_nulls(schema: pa.Schema, metadata: pq.FileMetaData) -> set[str]:
    """Select the columns that may hold nulls: declared nullable, unless every row group's
    statistics count none.
    """
    nulls: set[str] = set()
    leaves = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    for field in schema:
        leaf = leaves.get(field.name)
        if not field.nullable:
            continue
        if leaf is None:  # nested columns have statistics of leaves, not rows
            nulls.add(field.name)
            continue
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(leaf).statistics
            if statistics is None or not statistics.has_null_count or statistics.null_count:
                nulls.add(field.name)
                break
    return nulls


def _columns_worth_a_dictionary(sample: pa.Table, encoding: Encoding) -> list[str]:
    """Select the columns whose first rows repeat.

    compact: at most one distinct value in four rows (one in two for text). fast: text with at most
    one in 32, which decodes 1.4 times slower than plain text but takes a tenth of the bytes.
    """
    repeating = []
    for field in sample.schema:
        if pa.types.is_nested(field.type) or pa.types.is_boolean(field.type) or sample.num_rows < 2:
            continue
        if encoding == "fast" and not is_text(field.type):
            continue
        values = sample[field.name]
        # in half the time of count_distinct
        distinct = len(pc.unique(values)) - bool(values.null_count)
        if (
            distinct * (32 if encoding == "fast" else 2 if is_text(field.type) else 4)
            <= sample.num_rows
        ):
            repeating.append(field.name)
    return repeating
