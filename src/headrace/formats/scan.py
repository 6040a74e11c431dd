"""Find the blocks of a file that headrace did not write: what can be read on its own, and how many rows each holds.

Parquet: a block is a row group, known from the footer. Arrow: a record batch. Uncompressed text: one pass cuts byte
ranges on record borders, at most 65,536 rows or about 8 MiB each. Compressed text and JSON arrays cannot be entered in
the middle: one block, the whole file, so reading it takes memory in proportion to the file. Rows are counted exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.errors import InputError
from headrace.formats import arrow, delimited, jsonl, parquet, records
from headrace.formats.detect import Kind, kind_of_name
from headrace.formats.opened import open_file
from headrace.formats.shard import Shard
from headrace.formats.source import read_chunks, survey, unchanged
from headrace.formats.write import BLOCK_BYTES, BLOCK_ROWS


@dataclass(frozen=True)
class Span:
    """One block of a shard: `rows` rows in `length` bytes from `offset`; a whole file begins at 0, header included.

    block: row group number (Parquet), record batch (Arrow), else the place among the shard's blocks.
    """

    block: int
    rows: int
    offset: int
    length: int


def scan(shard: Shard) -> list[Span]:
    """The blocks of a shard that hold rows, in order. Raises `InputError` if the file cannot be read to its end."""
    if shard.content == "nothing":
        return []
    if shard.kind.format == "parquet":
        spans = parquet_spans(shard)
    elif shard.kind.format == "arrow":
        spans = [Span(place, *span) for place, span in enumerate(arrow.batch_spans(shard))]
    elif shard.kind.compression != "none" or shard.kind.format == "json":
        rows = sum(chunk.rows for chunk in read_chunks(shard))
        spans = [Span(0, rows, 0, shard.size)]
    else:
        spans = [Span(place, *span) for place, span in enumerate(_text_spans(shard))]
    unchanged(shard)
    return [span for span in spans if span.rows]


def look(path: Path, name: str, last: Shard | None = None) -> tuple[Shard, list[Span]]:
    """A file surveyed and scanned; a Parquet file is opened once for both.

    last: another shard, whose schema is used again if it is the same: many files then have one.
    """
    kind = kind_of_name(path.name)
    if kind != Kind("parquet", "none"):
        shard = survey(path, name)
        return shard, scan(shard)
    try:
        with open_file(path, kind) as file:
            shard = parquet.surveyed(file, path, name, kind, None if last is None else last.schema)
            groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    except (InputError, OSError):
        shard = survey(path, name)  # says what it is instead, if it is anything
        if shard.content == "nothing":
            return shard, []
        raise
    unchanged(shard)
    return shard, [Span(group, g.num_rows, 0, g.total_byte_size) for group, g in enumerate(groups) if g.num_rows]


def parquet_spans(shard: Shard) -> list[Span]:
    """The row groups, from the footer alone; `length` counts bytes before compression."""
    with open_file(shard.path, shard.kind) as file:
        groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    return [Span(group, each.num_rows, 0, each.total_byte_size) for group, each in enumerate(groups)]


def _text_spans(shard: Shard) -> Iterator[tuple[int, int, int]]:
    """(rows, offset, length) of byte ranges that begin and end on a record."""
    quoted = shard.kind.format != "jsonl"
    offset = shard.dialect.header_bytes if shard.dialect is not None else 0
    parts = delimited.record_blocks(shard, BLOCK_BYTES, offset) if quoted else jsonl.line_blocks(shard, BLOCK_BYTES)
    for data, quotes in parts:
        ends = records.record_ends(records.as_bytes(data), quotes)
        starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        if quoted:
            blank = records.blank(records.as_bytes(data), ends) & (len(shard.schema) > 1)
        else:
            blank = jsonl.blank_lines(data, starts, ends)
        rows = np.cumsum(~blank)
        pieces = max(1, -(-int(rows[-1]) // BLOCK_ROWS))
        borders = np.unique(np.searchsorted(rows, [int(rows[-1]) * part // pieces for part in range(1, pieces)]) + 1)
        begin = before = 0
        for border in [*borders.tolist(), len(ends)]:
            stop, count = int(ends[border - 1]), int(rows[border - 1])
            yield count - before, offset + begin, stop - begin
            begin, before = stop, count
        offset += len(data)
