"""Read and write CSV and TSV: every column is text, and every row keeps its bytes.

A shard is read in chunks that end on a record, so memory is O(chunk) for any file size and
compression. Values are parsed in `delimited_rows`. Rows that are only moved are not parsed and
rewritten: their bytes are copied (`source.copied_records`).

A header is split into names by the rules that split rows (`records`), so both end at the same byte.
LF and CRLF end a record. A lone carriage return ends a record for some readers and is text for
others, so it is refused outside quotes.

Fields are separated by comma, semicolon, pipe or tab. If the header has exactly one of them outside
quotes, that is the separator whatever the name of the file. If it has several, the separator is the
one that gives all rows in the file's first bytes as many fields as the header. If that does not
decide, nothing is guessed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, Bools
from headrace.errors import InputError
from headrace.formats import records
from headrace.formats.delimited_rows import DelimitedChunk, parse_numbers
from headrace.formats.registry import (
    LARGEST_RECORD,
    SEPARATOR_NAMES,
    Compression,
    FileType,
    open_bytes,
    reading,
    too_long,
)
from headrace.formats.shard import (
    BOM,
    BlockRead,
    Dialect,
    FormatCode,
    Shard,
    Span,
    WriteSettings,
    column_name,
    refuse_repeated_names,
)
from headrace.formats.text_columns import typed
from headrace.formats.types import Target, is_text
from headrace.formats.write import BLOCK_BYTES, HashingFile, TextSink, block_bytes, cut_blocks

CHUNK_BYTES = 32 << 20
_HEAD_BYTES = 1 << 20


def survey(
    path: Path,
    name: str,
    file_type: FileType,
    signature: Sequence[str] | None = None,
    text: bytes | None = None,
) -> Shard:
    """Read columns and dialect from the first record; the separator need not match the file name.

    signature: names for files without a header; a first record equal to it is still taken as a
    header. text: the content, if it is not the file's own bytes; `parse_block` parses the part
    after its header. Raises `InputError` on an empty file without signature, a blank first line,
    repeated names, bytes that are not UTF-8, and if two separators would fit.
    """
    shard = Shard.unread(path, name, file_type)
    if text is None:
        head, reads = _head(path, file_type.compression)
    else:
        head, reads = (text, "all")
    bom = head.startswith(BOM)
    text_start = 0
    if bom:
        text_start = len(BOM)
    ends = records.record_ends(records.as_bytes(head))
    if signature is None:
        width = None
    else:
        width = len(signature)
    separator = _find_separator(
        path, head[text_start:], expected=file_type.format.separator, width=width, reads=reads
    )
    if not len(ends) or text_start == len(head):
        if signature is None:
            raise InputError(
                "is empty, not even a header",
                path=path,
                remedy="remove the file, or give the column names by a signature file",
            )
        names = list(signature)
        header_bytes = text_start
        newline = "\n"
    else:
        first = head[text_start : int(ends[0])]
        newline = "\r\n" if first.endswith(b"\r\n") else "\n"
        names = _names_in(path, first, separator, signature)
        header_bytes = int(ends[0])
        if signature is not None and names != list(signature):
            names = list(signature)
            header_bytes = text_start
    columns = [column_name(raw) for raw in names]
    refuse_repeated_names(path, columns, " in the header")
    return replace(
        shard,
        content="table",
        schema=pa.schema([(column, pa.string()) for column in columns]),
        null_columns=frozenset(columns),
        dialect=Dialect(separator, newline, bom, header_bytes),
    )


def _names_in(
    path: Path, first: bytes, separator: str, signature: Sequence[str] | None
) -> list[str]:
    """Return the fields of the first record, which may be a header or a row of the signature."""
    if (signature is None or len(signature) != 1) and not first.strip(b"\r\n"):
        raise InputError(
            "it is blank, a header was expected",
            path=path,
            remedy="remove the blank lines before it",
        )
    names = _split_header(path, first, separator)
    if signature is None and any("\0" in name for name in names):
        raise InputError(
            "a column name holds a zero byte",
            path=path,
            row="line 1",
            remedy="convert the file to UTF-8 (it may be UTF-16)",
        )
    if signature is not None and len(names) != len(signature):
        raise InputError(
            f"it has {len(names)} fields, the signature names {len(signature)}",
            path=path,
            row="line 1",
            remedy="correct the signature file",
        )
    return names


class DelimitedCode(FormatCode):
    """Reads and writes CSV and TSV."""

    joined_by_bytes = True

    def survey(
        self, path: Path, name: str, file_type: FileType, signature: Sequence[str] | None = None
    ) -> Shard:
        """Read columns and dialect from the first record; see `survey`."""
        return survey(path, name, file_type, signature)

    def read(
        self,
        shard: Shard,
        columns: Sequence[str] | None = None,
        *,
        coded: Sequence[str] = (),
        most_rows: int | None = None,
    ) -> Iterator[DelimitedChunk]:
        """Read whole records. Raises `InputError` on damaged compression or an unclosed quote."""
        return chunks(shard)

    def blocks(self, shard: Shard) -> list[Span]:
        """Cut uncompressed text on record borders; a compressed file is one block."""
        assert shard.dialect is not None
        if shard.file_type.compression != "none":
            return super().blocks(shard)

        def blank(data: records.Data, ends: I64) -> Bools:
            return records.blank(records.as_bytes(data), ends) & (len(shard.schema) > 1)

        skip = shard.dialect.header_bytes
        return cut_blocks(record_blocks(shard, BLOCK_BYTES, skip), skip, blank)

    def read_block(self, block: BlockRead, target: Target) -> pa.Table:
        """Parse a byte range; one at offset 0 begins with the header of its file."""
        assert block.separator is not None
        schema = target.schema
        with block_bytes(block) as data:
            if block.offset == 0:
                data = without_header(data)
            table = parse_numbers(
                data,
                separator=block.separator,
                names=block.names,
                schema=schema,
                null_values=block.null_values,
            )
            if table is None:
                shard = Shard(
                    path=block.path,
                    name=block.path.name,
                    size=0,
                    mtime_ns=0,
                    file_type=block.file_type,
                    schema=pa.schema([(name, pa.string()) for name in block.names]),
                    dialect=Dialect(block.separator, "\n"),
                )
                table = parse_block(data, shard, schema.names)
        types = {}
        for field in schema:
            if not is_text(field.type):
                types[field.name] = field.type
        try:
            return typed(table, types, block.null_values, block.path, 0).cast(schema)
        except InputError as error:
            error.row = f"{block.words}, row {error.row}"
            raise

    def open_sink(self, file: HashingFile, settings: WriteSettings) -> TextSink:
        """Write the header in the given dialect."""
        dialect = settings.dialect
        assert dialect is not None
        header = header_bytes(settings.schema.names, dialect)
        return TextSink(
            file, header, lambda table: render(table, dialect), settings.file_type.compression
        )


CODE = DelimitedCode()


def chunks(shard: Shard, chunk_bytes: int = CHUNK_BYTES) -> Iterator[DelimitedChunk]:
    """Iterate over the rows in file order.

    Raises `InputError` on damaged compression or an unclosed quote.
    """
    assert shard.dialect is not None
    first_row = 0
    for data, quotes in record_blocks(shard, chunk_bytes, shard.dialect.header_bytes):
        chunk = _chunk(shard, data, quotes, first_row)
        if chunk.rows:
            yield chunk
        first_row += chunk.rows


def without_header(data: bytes) -> bytes:
    """Drop the first record of a whole file."""
    reach = 1 << 16
    while reach < len(data):  # a record that ends before `reach` also ends there in the whole file
        head = records.as_bytes(data[:reach])
        end = int(records.record_ends(head)[0])
        if end < reach:
            return data[end:]
        reach *= 4
    ends = records.record_ends(records.as_bytes(data))
    if len(ends):
        return data[int(ends[0]) :]
    return b""


def parse_block(data: bytes, shard: Shard, columns: Sequence[str] | None) -> pa.Table:
    """Parse one block (whole records, no header) as text columns."""
    quotes = records.quote_positions(records.as_bytes(data))
    if b"\r" in data:
        _check_returns(shard.path, shard.file_type.compression, data, quotes, None)
    return _chunk(shard, data, quotes, 0).table(columns)


def _chunk(shard: Shard, data: records.Data, quotes: I64, first_row: int) -> DelimitedChunk:
    """Make a chunk without blank lines, except in a file of one column, where they are nulls."""
    ends = records.record_ends(records.as_bytes(data), quotes)
    original = data
    if (
        len(shard.schema) > 1
        and len(ends)
        and (ends[0] <= 2 or int(np.diff(ends).min(initial=3)) <= 2)
    ):
        data = records.without_blank(data, ends)
        quotes = records.quote_positions(records.as_bytes(data))
        ends = records.record_ends(records.as_bytes(data), quotes)
    return DelimitedChunk(shard, data, first_row, quotes, ends, data is not original)


def header_bytes(columns: Sequence[str], dialect: Dialect) -> bytes:
    """Encode the header line, with a byte-order mark first if the dialect has one."""
    text = io.StringIO()
    # csv quotes only characters of its own line terminator, but names with CR or LF need quotes
    # too.
    csv.writer(text, delimiter=dialect.separator, lineterminator="\r\n").writerow(columns)
    return (BOM if dialect.bom else b"") + (
        text.getvalue().removesuffix("\r\n") + dialect.newline
    ).encode()


def render(table: pa.Table, dialect: Dialect) -> bytes:
    """Format columns as delimited text without a header; null is an empty field, empty text is
    quoted.
    """
    import polars as pl

    text = pl.DataFrame(table).write_csv(
        include_header=False, separator=dialect.separator, line_terminator=dialect.newline
    )
    return text.encode()


def record_blocks(shard: Shard, chunk_bytes: int, skip: int) -> Iterator[tuple[records.Data, I64]]:
    """Iterate over byte blocks that end on a record, with the positions of their quotes.

    A block exceeds `chunk_bytes` only if a single record does.
    """
    incomplete = b""
    offset = skip
    path = shard.path
    compression = shard.file_type.compression
    with reading(path), open_bytes(path, compression) as stream:
        if skip:
            stream.read(skip)
        while len(block := stream.read_buffer(chunk_bytes)):
            if incomplete:
                data = pa.py_buffer(b"".join((incomplete, block)))
            else:
                data = block
            quotes = records.quote_positions(records.as_bytes(data))
            cut = records.last_record_end(records.as_bytes(data), quotes)
            if cut:
                complete = data.slice(0, cut)
                inside = quotes[: int(np.searchsorted(quotes, cut))]
                _check_returns(path, compression, complete, inside, offset)
                yield complete, inside
            incomplete = data.slice(cut).to_pybytes()
            offset += cut
            if len(incomplete) > LARGEST_RECORD:
                raise too_long(path)
    if incomplete:
        quotes = records.quote_positions(records.as_bytes(incomplete))
        if len(quotes) & 1:
            line = incomplete[:80].decode("utf-8", "replace")
            raise InputError(
                f"a quote opened near {line!r} is never closed; the file is cut or damaged",
                path=path,
            )
        _check_returns(path, compression, incomplete, quotes, offset)
        yield incomplete, quotes


def _check_returns(
    path: Path, compression: Compression, data: records.Data, quotes: I64, offset: int | None
) -> None:
    """Raise `InputError` for a carriage return outside quotes that no newline follows.

    offset: where the data begin in the decompressed file; None: count lines from the beginning of
    the data.
    """
    at = records.first_lone_return(records.as_bytes(data), quotes)
    if at is None:
        return
    line = 1 + int(np.count_nonzero(records.as_bytes(data)[:at] == records.NEWLINE))
    if offset:
        # read again, because only errors need the line
        with open_bytes(path, compression) as stream:
            while offset and (block := stream.read(min(CHUNK_BYTES, offset))):
                line += block.count(b"\n")
                offset -= len(block)
    near = bytes(data[max(0, at - 40) : at + 40]).decode("utf-8", "replace")
    raise InputError(
        f"a carriage return (CR) without a newline (LF), near {near!r}",
        path=path,
        row=f"line {line}",
        remedy=(
            "end lines with LF or CRLF (tr '\\r' '\\n' converts old Mac files), and quote"
            " fields that hold a CR"
        ),
    )


def _head(path: Path, compression: Compression) -> tuple[bytes, Literal["all", "part"]]:
    """Read enough bytes to hold the first record; also return whether they are the whole file."""
    size = 1 << 16
    while True:
        with reading(path), open_bytes(path, compression) as stream:
            head: bytes = stream.read(size)
        quotes = records.quote_positions(records.as_bytes(head))
        _check_returns(
            path, compression, head.removesuffix(b"\r") if len(head) == size else head, quotes, None
        )
        if len(head) < size or records.last_record_end(records.as_bytes(head), quotes):
            return head, "all" if len(head) < size else "part"
        if size > _HEAD_BYTES:
            raise InputError(
                f"the first line is longer than {_HEAD_BYTES} bytes; this is not a table with a"
                " header",
                path=path,
            )
        size *= 4


def _find_separator(
    path: Path,
    text: bytes,
    *,
    expected: str | None,
    width: int | None,
    reads: Literal["all", "part"],
) -> str:
    """Find the separator from the beginning of a file, which holds the first record.

    width: number of columns, if the first record need not be a header. reads: whether the text is
    the whole file; a part may end inside a record. Raises `InputError` if two separators would fit.
    """
    data = records.as_bytes(text)
    quotes = records.quote_positions(data)
    ends = records.record_ends(data, quotes)
    usual = expected or ","
    if not len(ends) or width == 1:
        return usual
    at = {}
    for character in SEPARATOR_NAMES:
        positions = records.outside_quotes(data, quotes, ord(character))
        if len(positions) and positions[0] < ends[0]:
            at[character] = positions
    candidates = list(at)
    complete = ends if reads == "all" or len(ends) == 1 else ends[:-1]
    row = ~records.blank(data, complete)
    # a header and no rows, so nothing can be misread
    if len(candidates) < 2 or (width is None and np.count_nonzero(row) == 1):
        return usual if usual in candidates or not candidates else candidates[0]
    fitting = []
    for character in candidates:
        fields = records.fields_per_record(at[character], complete)[row]
        if (fields == (fields[0] if width is None else width)).all():
            fitting.append(character)
    if len(fitting) == 1:
        return fitting[0]
    if not fitting and usual in candidates:
        return usual  # a damaged file of its own kind; reading names the row
    first = bytes(text[: int(ends[0])])[:80].decode("utf-8", "replace").strip()
    names = " and ".join(f"{SEPARATOR_NAMES[character]}s" for character in fitting or candidates)
    raise InputError(
        f"it can be separated by {names}, and the rows do not show which: {first!r}",
        path=path,
        row="line 1",
        remedy="put quotes around the fields that hold the other character",
    )


def _split_header(path: Path, first: bytes, separator: str) -> list[str]:
    """Split a first record into names, as rows are split.

    Raises `InputError` if readers would disagree.
    """
    try:
        first.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte {first[error.start]:#04x} is not UTF-8",
            path=path,
            row="line 1",
            remedy="convert the file to UTF-8",
        ) from error
    data = records.as_bytes(first)
    quotes = records.quote_positions(data)
    if len(quotes) & 1 or records.first_stray_quote(data, quotes, ord(separator)) is not None:
        line = first[:80].decode("utf-8", "replace")
        raise InputError(
            f"quotes do not pair up, or are inside a name: {line!r}",
            path=path,
            row="line 1",
            remedy="quote names that hold quotes, double the quotes inside",
        )
    end = len(first.removesuffix(b"\n").removesuffix(b"\r"))
    stops = [*records.outside_quotes(data, quotes, ord(separator)).tolist(), end]
    fields = [
        first[start:stop]
        for start, stop in zip([0, *(stop + 1 for stop in stops[:-1])], stops, strict=True)
    ]
    unquoted = (
        field[1:-1].replace(b'""', b'"') if field.startswith(b'"') else field for field in fields
    )
    return [field.decode("utf-8") for field in unquoted]
