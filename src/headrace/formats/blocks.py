"""Find the blocks of a file that can be read independently, and read one block.

A Parquet block is a row group, known from the footer. An Arrow block is a record batch. Uncompressed text is cut in one
pass into byte ranges on record borders, at most 65,536 rows or about 8 MiB each. Compressed text and JSON arrays that
headrace did not write cannot be read from the middle: the whole file is one block, so reading takes memory in
proportion to the file. Rows are counted exactly.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import CorruptShard, HeadraceError, InputError
from headrace.formats import arrow, delimited, jsonl, parquet, records
from headrace.formats.delimited_rows import parse_numbers
from headrace.formats.detect import Kind, decompress_block, kind_of_name
from headrace.formats.open_parquet import Pages, open_file
from headrace.formats.partitions import in_partition
from headrace.formats.schema import Target, is_text
from headrace.formats.shard import Dialect, Shard, separator_of
from headrace.formats.source import read_chunks, survey, unchanged
from headrace.formats.text_columns import typed
from headrace.formats.write import BLOCK_BYTES, BLOCK_ROWS
from headrace.recipe import recipes
from headrace.storage.places import place_of


@dataclass(frozen=True)
class Span:
    """One block of a shard: `rows` rows in `length` bytes from `offset`; a whole file begins at 0, header included.

    block: row group number (Parquet), record batch (Arrow), else the index among the shard's blocks. length: for
    Parquet, the uncompressed size.
    """

    block: int
    rows: int
    offset: int
    length: int


def scan(shard: Shard) -> list[Span]:
    """List the non-empty blocks of a shard. Raises `InputError` if the file cannot be read to its end."""
    if shard.content == "nothing":
        return []
    if shard.kind.format == "parquet":
        with open_file(shard.path, shard.kind) as file:
            return _row_groups(shard, file)
    if shard.kind.format == "arrow":
        spans = arrow.batch_spans(shard)
    elif shard.kind.compression != "none" or shard.kind.format == "json":
        spans = [(sum(chunk.rows for chunk in read_chunks(shard)), 0, shard.size)]
    else:
        spans = list(_text_spans(shard))
    unchanged(shard)
    return [Span(block, *span) for block, span in enumerate(spans) if span[0]]


def look(
    path: Path, name: str, last: Shard | None = None, partitions: Mapping[str, pa.DataType] | None = None
) -> tuple[Shard, list[Span]]:
    """Survey and scan a file; a Parquet file is opened once for both.

    last: another shard, whose schema object is reused if it is equal, so that many files share one.
    partitions: `partition_types` of the source, for columns that names hold.
    """
    kind, spans = kind_of_name(path.name), list[Span]()
    if kind == Kind("parquet", "none"):
        try:
            with open_file(path, kind) as file:
                shard = parquet.surveyed(file, path, name, kind, None if last is None else last.schema)
                spans = _row_groups(shard, file)
        except (InputError, OSError):
            shard = survey(path, name)  # raises with the actual format, if recognized
            if shard.content != "nothing":
                raise
    else:
        shard = survey(path, name)
        spans = scan(shard)
    return in_partition(shard, partitions), spans


def _row_groups(shard: Shard, file: pq.ParquetFile) -> list[Span]:
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    unchanged(shard)
    return [Span(group, each.num_rows, 0, each.total_byte_size) for group, each in enumerate(groups) if each.num_rows]


def _text_spans(shard: Shard) -> Iterator[tuple[int, int, int]]:
    """List (rows, offset, length) of byte ranges that begin and end on a record border."""
    quoted = shard.kind.format != "jsonl"
    offset = shard.dialect.header_bytes if shard.dialect is not None else 0
    parts = delimited.record_blocks(shard, BLOCK_BYTES, offset) if quoted else jsonl.line_blocks(shard, BLOCK_BYTES)
    for data, quotes in parts:
        ends = records.record_ends(records.as_bytes(data), quotes)
        if quoted:
            blank = records.blank(records.as_bytes(data), ends) & (len(shard.schema) > 1)
        else:
            blank = jsonl.blank_lines(data, ends)
        rows = np.cumsum(~blank)
        pieces = max(1, -(-int(rows[-1]) // BLOCK_ROWS))
        borders = np.unique(np.searchsorted(rows, [int(rows[-1]) * part // pieces for part in range(1, pieces)]) + 1)
        begin = before = 0
        for border in [*borders.tolist(), len(ends)]:
            stop, count = int(ends[border - 1]), int(rows[border - 1])
            yield count - before, offset + begin, stop - begin
            begin, before = stop, count
        offset += len(data)


def kind_of_word(word: str) -> Kind:
    """Parse a format word of the index, such as "csv.gz", "csv-semicolon" or "parquet"."""
    try:
        kind = kind_of_name(f"shard.{separator_of(word)[0]}")
    except KeyError:
        kind = None
    if kind is not None:
        return kind
    for recipe in recipes().values():
        if word in recipe.readers:
            raise InputError(recipe.readers[word])
    raise CorruptShard(f"format {word!r} is not known; the index was written by another version, upgrade headrace")


def read_block(
    path: Path,
    word: str,
    *,
    block: int,
    offset: int,
    length: int,
    target: Target,
    names: Sequence[str],
    null_values: Sequence[str] = (),
    pages: Pages = "check",
    content: pa.Buffer | None = None,
) -> pa.Table:
    """Read one block as the target's columns. names: of all columns of the file, which delimited text needs.

    block: row group number (Parquet) or record batch (Arrow). offset, length: byte range (text, Arrow streams); a CSV
    or TSV block at offset 0 begins with the header of its file, which is not a row. Thread-safe; the work releases the
    interpreter lock. Raises `CorruptShard` naming file and block if the bytes cannot be read as they were written, and
    `InputError` if a text is not of its declared type. pages, content: see `parquet.read_block`.
    """
    kind = kind_of_word(word)
    try:
        if kind.format == "arrow":
            return arrow.read_block(path, kind, block, offset, length, target)
        if kind.format == "parquet":
            return parquet.read_block(path, kind, block, target, pages, content)
    except FileNotFoundError as error:
        raise CorruptShard(f"{path}: is missing; restore it or prepare the run again") from error
    wanted = target.schema
    if kind.format in ("jsonl", "json"):
        jsonl.require_polars(path)
    where = f"{path}: block {block} (bytes {offset} to {offset + length})"
    try:
        data = place_of(path).read_ranges([(offset, offset + length)])[0]
        if len(data) < length:
            raise CorruptShard("the file ends before")
        data = decompress_block(data, kind.compression)
        if kind.format in ("jsonl", "json"):
            return jsonl.parse_block(jsonl.clean_block(data, path, kind), path, wanted)
        if offset == 0:
            data = delimited.without_header(data)
        separator = separator_of(word)[1]
        assert separator is not None
        table = parse_numbers(data, separator=separator, names=names, wanted=wanted, null_values=null_values)
        if table is None:
            text = pa.schema([(name, pa.string()) for name in names])
            dialect = Dialect(separator, "\n")
            shard = Shard(path=path, name=path.name, size=0, mtime_ns=0, kind=kind, schema=text, dialect=dialect)
            table = delimited.parse_block(data, shard, wanted.names)
    except FileNotFoundError as error:
        raise CorruptShard(f"{path}: is missing; restore it or prepare the run again") from error
    except (OSError, zlib.error, pa.ArrowInvalid, HeadraceError) as error:
        told = str(error).removeprefix(f"{path}: ")
        changed = "or, if it changed, " if isinstance(error, HeadraceError) else ""  # ours include a remedy
        raise CorruptShard(f"{where}: {told}; {changed}restore the file or prepare the run again") from error
    types = {field.name: field.type for field in wanted if not is_text(field.type)}
    return typed(table, types, null_values, where, 0).cast(wanted)
