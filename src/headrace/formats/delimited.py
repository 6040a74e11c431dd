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
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I64, Bools
from headrace.errors import InputError, setting
from headrace.formats import records
from headrace.formats.decoding import decoded, not_utf8
from headrace.formats.delimited_rows import (
    DelimitedChunk,
    lines_before,
    parse_numbers,
    quotes_remedy,
    unescaped,
)
from headrace.formats.dialect import PLAIN, UTF8, TextDialect
from headrace.formats.evidence import Evidence
from headrace.formats.registry import (
    LARGEST_RECORD,
    SEPARATOR_NAMES,
    FileType,
    open_text,
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
from headrace.storage.places import place_of

CHUNK_BYTES = 32 << 20
_HEAD_BYTES = 1 << 20
_HINT = re.compile(rb'"?sep=[,;|\t]"?\r?\n')
LITERAL_QUOTES = setting("dialect", {"quoting": "none"})


def survey(
    path: Path,
    name: str,
    file_type: FileType,
    signature: Sequence[str] | None = None,
    dialect: TextDialect = PLAIN,
    *,
    text: bytes | None = None,
) -> Shard:
    """Read columns and separator from the first record; the latter need not match the file name.

    signature: names for files without a header; a first record equal to it is still taken as a
    header. text: the content, if it is not the file's own bytes; `parse_block` parses the part
    after its header, and is UTF-8. Raises `InputError` on an empty file without signature, a blank
    first line, repeated names, bytes that are not of the encoding, and if two separators would fit.
    """
    shard = Shard.unread(path, name, file_type)
    if text is None:
        head, reads = _head(shard, dialect)
    else:
        head, reads = (text, "all")
    bom = head.startswith(BOM)
    text_start = lines_end(head, dialect.skip_rows)
    if bom and not text_start:
        text_start = len(BOM)
    _refuse_hint(path, head[text_start:], dialect)
    marked = records.mark(head[text_start:], dialect)
    ends = records.record_ends(marked.marks, marked.quotes)
    width = None if signature is None else len(signature)
    separator = _find_separator(
        path,
        marked,
        expected=file_type.format.separator,
        width=width,
        reads=reads,
        line=_line_of_names(dialect),
    )
    names = list(signature or ())
    header_bytes = text_start
    newline = "\n"
    if len(ends) and text_start < len(head):
        first = head[text_start : text_start + int(ends[0])]
        if first.endswith(b"\r\n"):
            newline = "\r\n"
        header = _names_in(path, first, Dialect(separator, newline, text=dialect), signature)
        if signature is None or header == names:
            names = header
            header_bytes = text_start + int(ends[0])
    elif signature is None:
        raise _no_header(path, dialect)
    columns = [column_name(raw) for raw in names]
    refuse_repeated_names(path, columns, " in the header")
    return replace(
        shard,
        content="table",
        schema=pa.schema([(column, pa.string()) for column in columns]),
        null_columns=frozenset(columns),
        # what is written of other encodings has no mark
        dialect=Dialect(
            separator, newline, bom and dialect.encoding == UTF8, header_bytes, dialect
        ),
    )


def lines_end(text: bytes, lines: int) -> int:
    """Return the position behind so many lines of a text; its length if it has fewer."""
    end = 0
    for _ in range(lines):
        end = text.find(b"\n", end) + 1
        if not end:
            return len(text)
    return end


def _refuse_hint(path: Path, text: bytes, dialect: TextDialect) -> None:
    """Raise `InputError` if a line that tells Excel the separator stands where names should."""
    if _HINT.match(text):
        raise InputError(
            "it tells Excel the separator, and a line of names was expected",
            path=path,
            row=_line_of_names(dialect),
            value=text[: text.index(b"=") + 2].decode("utf-8", "replace"),
            remedy=f"give {setting('dialect', {'skip_rows': dialect.skip_rows + 1})}",
        )


def _line_of_names(dialect: TextDialect) -> str:
    return f"line {dialect.skip_rows + 1}"


def _no_header(path: Path, dialect: TextDialect) -> InputError:
    if dialect.skip_rows:
        return InputError(
            f"has no line after the first {dialect.skip_rows:,}",
            path=path,
            remedy=f"give fewer as {setting('dialect', {'skip_rows': 1})}",
        )
    return InputError(
        "is empty, not even a header",
        path=path,
        remedy="remove the file, or give the column names by a signature file",
    )


def _names_in(
    path: Path, first: bytes, dialect: Dialect, signature: Sequence[str] | None
) -> list[str]:
    """Return the fields of the first record, which may be a header or a row of the signature."""
    if (signature is None or len(signature) != 1) and not first.strip(b"\r\n"):
        raise InputError(
            "it is blank, a header was expected",
            path=path,
            remedy=(
                "remove the blank lines before it, or give their number, such as"
                f" {setting('dialect', {'skip_rows': dialect.text.skip_rows + 1})}"
            ),
        )
    names = _split_header(path, first, dialect)
    if signature is None and any("\0" in name for name in names):
        raise InputError(
            "a column name holds a zero byte",
            path=path,
            row=_line_of_names(dialect.text),
            remedy=f"if it is UTF-16, give {setting('dialect', {'encoding': 'utf-16'})}",
        )
    if signature is not None and len(names) != len(signature):
        raise InputError(
            f"it has {len(names)} fields, the signature names {len(signature)}",
            path=path,
            row=_line_of_names(dialect.text),
            remedy="correct the signature file",
        )
    return names


class DelimitedCode(FormatCode):
    """Reads and writes CSV and TSV."""

    joined_by_bytes = True

    def survey(
        self,
        path: Path,
        name: str,
        file_type: FileType,
        signature: Sequence[str] | None = None,
        dialect: TextDialect = PLAIN,
    ) -> Shard:
        """Read columns and separator from the first record; see `survey`."""
        return survey(path, name, file_type, signature, dialect)

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
        """Cut uncompressed text on record borders.

        A compressed file is one block, and so is one in an encoding that is not read from the
        middle.
        """
        assert shard.dialect is not None
        width = shard.dialect.text.bytes_of_character
        if shard.file_type.compression != "none" or width is None:
            return super().blocks(shard)
        return _cut(shard, _parts(shard), width)

    def blocks_seen_by(self, evidence: Evidence, shard: Shard) -> list[Span]:
        """List the blocks, and show all values to the evidence, in one pass over the file."""
        assert shard.dialect is not None
        width = shard.dialect.text.bytes_of_character
        if shard.file_type.compression == "none" and width is not None:
            return _cut(shard, _seen_by(evidence, shard, _parts(shard)), width)
        rows = 0
        for chunk in chunks(shard):
            rows += chunk.rows
            evidence.add(chunk.table(evidence.undecided(shard.schema.names)))
        return [Span(0, rows, 0, shard.size)]

    def read_block(self, block: BlockRead, target: Target) -> pa.Table:
        """Parse a byte range; one at offset 0 begins with the header of its file."""
        assert block.separator is not None
        schema = target.schema
        dialect = block.dialect
        with block_bytes(block) as data:
            if dialect.encoding != UTF8:
                data = decoded(data, block.path, _encoding_of(block, data))
            full_size = len(data)
            if block.offset == 0:
                data = without_header(data, dialect)
            table = None
            if dialect.plain_records and dialect.plain_numbers:
                table = parse_numbers(
                    data,
                    separator=block.separator,
                    names=block.names,
                    schema=schema,
                    null_values=dialect.null_values,
                )
            if table is None:
                shard = Shard(
                    path=block.path,
                    name=block.path.name,
                    size=0,
                    mtime_ns=0,
                    file_type=block.file_type,
                    schema=pa.schema([(name, pa.string()) for name in block.names]),
                    dialect=Dialect(block.separator, "\n", text=dialect),
                )
                offset = None
                if block.offset == 0 or dialect.encoding == UTF8:
                    offset = block.offset + full_size - len(data)
                table = parse_block(data, shard, schema.names, offset)
        types = {}
        for field in schema:
            if not is_text(field.type):
                types[field.name] = field.type
        try:
            return typed(table, types, dialect, block.path, 0).cast(schema)
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


_Parts = Iterator[records.Marked]


def _parts(shard: Shard) -> _Parts:
    """Iterate over the records of a shard in parts of a block's size."""
    assert shard.dialect is not None
    return record_blocks(shard, BLOCK_BYTES, shard.dialect.header_bytes)


def _cut(shard: Shard, parts: _Parts, width: int) -> list[Span]:
    """Cut consecutive records into blocks. width: bytes of a character in the file."""
    assert shard.dialect is not None

    def blank(data: records.Data, ends: I64) -> Bools:
        return records.blank(records.as_bytes(data), ends) & (len(shard.schema) > 1)

    marks = ((part.marks, part.quotes) for part in parts)
    spans = cut_blocks(marks, shard.dialect.header_bytes, blank)
    if shard.dialect.text.encoding == UTF8:
        return spans
    return _encoded_spans(shard, spans, width)


def _seen_by(evidence: Evidence, shard: Shard, parts: _Parts) -> _Parts:
    """Pass records on, and show their columns to the evidence of types."""
    assert shard.dialect is not None
    first_row = 0
    offset = shard.dialect.header_bytes
    for part in parts:
        chunk = chunk_of(shard, part, first_row, offset)
        offset += len(part.data)
        first_row += chunk.rows
        evidence.add(chunk.table(evidence.undecided(shard.schema.names)))
        yield part


def chunks(shard: Shard, chunk_bytes: int = CHUNK_BYTES) -> Iterator[DelimitedChunk]:
    """Iterate over the rows in file order.

    Raises `InputError` on damaged compression or an unclosed quote.
    """
    assert shard.dialect is not None
    first_row = 0
    offset = shard.dialect.header_bytes
    for part in record_blocks(shard, chunk_bytes, offset):
        chunk = chunk_of(shard, part, first_row, offset)
        offset += len(part.data)
        if chunk.rows:
            yield chunk
        first_row += chunk.rows


def _encoded_spans(shard: Shard, spans: Sequence[Span], width: int) -> list[Span]:
    """Convert spans of UTF-8 text to those of the bytes of its file.

    width: bytes of a character; in UTF-16, some take two such.
    """
    assert shard.dialect is not None
    text = shard.dialect.text

    def encoded_bytes(size: int) -> int:
        counted = 0
        while size:
            part = records.as_bytes(stream.read(min(size, CHUNK_BYTES)))
            size -= len(part)
            counted += int(np.count_nonzero(part & 0xC0 != 0x80))
            if width == 2:
                counted += int(np.count_nonzero(part >= 0xF0))
        return counted * width

    result = []
    with reading(shard.path), open_text(shard.path, "none", text) as stream:
        offset = encoded_bytes(shard.dialect.header_bytes)
        for span in spans:
            length = encoded_bytes(span.length)
            result.append(replace(span, offset=offset, length=length))
            offset += length
    return result


def _encoding_of(block: BlockRead, data: bytes) -> str:
    """Return the encoding of a block with its byte order, which the first bytes of the file say."""
    start = data[:4]
    if block.offset and block.dialect.encoding != block.dialect.of_file(b""):
        start = place_of(block.path).read_ranges([(0, 4)])[0]
    return block.dialect.of_file(start)


def without_header(data: bytes, dialect: TextDialect = PLAIN) -> bytes:
    """Drop the first record of a whole file, and the lines before it."""
    data = data[lines_end(data, dialect.skip_rows) :]
    reach = 1 << 16
    while reach < len(data):  # a record that ends before `reach` also ends there in the whole file
        marked = records.mark(data[:reach], dialect)
        end = int(records.record_ends(marked.marks, marked.quotes)[0])
        if end < reach:
            return data[end:]
        reach *= 4
    marked = records.mark(data, dialect)
    ends = records.record_ends(marked.marks, marked.quotes)
    if len(ends):
        return data[int(ends[0]) :]
    return b""


def parse_block(
    data: bytes, shard: Shard, columns: Sequence[str] | None, offset: int | None = None
) -> pa.Table:
    """Parse one block (whole records, no header) as text columns.

    offset: of the block in the text of its file, if known.
    """
    assert shard.dialect is not None
    marked = records.mark(data, shard.dialect.text)
    if b"\r" in data:
        check_returns(shard, marked, None)
    return chunk_of(shard, marked, 0, offset).table(columns)


def chunk_of(
    shard: Shard, marked: records.Marked, first_row: int, offset: int | None
) -> DelimitedChunk:
    """Make a chunk without blank lines, except in a file of one column, where they are nulls."""
    ends = records.record_ends(marked.marks, marked.quotes)
    original = None
    if (
        len(shard.schema) > 1
        and len(ends)
        and (ends[0] <= 2 or int(np.diff(ends).min(initial=3)) <= 2)
    ):
        assert shard.dialect is not None
        data = records.without_blank(marked.data, ends)
        if data is not marked.data:
            original = marked.data
        marked = records.mark(data, shard.dialect.text)
        ends = records.record_ends(marked.marks, marked.quotes)
    return DelimitedChunk(shard, marked, first_row, ends, original, offset)


def header_bytes(columns: Sequence[str], dialect: Dialect) -> bytes:
    """Encode the header line, with a byte-order mark first if the dialect has one."""
    text = io.StringIO()
    bom = BOM if dialect.bom else b""
    if not dialect.text.plain_records:
        names = pa.table([pa.array([name]) for name in columns], names=list(columns))
        return bom + _joined_fields(names, dialect)
    # csv quotes only characters of its own line terminator, but names with CR or LF need quotes
    # too.
    csv.writer(text, delimiter=dialect.separator, lineterminator="\r\n").writerow(columns)
    return bom + (text.getvalue().removesuffix("\r\n") + dialect.newline).encode()


def render(table: pa.Table, dialect: Dialect) -> bytes:
    """Format columns as delimited text without a header; null is an empty field, empty text is
    quoted.

    Raises `InputError` for a value that text without quotes cannot hold.
    """
    import polars as pl

    if dialect.text.decimal != ".":
        for index, field in enumerate(table.schema):
            if pa.types.is_floating(field.type):
                words = pc.replace_substring(table[index].cast(pa.string()), ".", ",")
                table = table.set_column(index, field.name, words)
    if not dialect.text.plain_records:
        return _joined_fields(table, dialect)
    text = pl.DataFrame(table).write_csv(
        include_header=False, separator=dialect.separator, line_terminator=dialect.newline
    )
    return text.encode()


def _joined_fields(table: pa.Table, dialect: Dialect) -> bytes:
    """Format columns as text in which values are escaped, or are none that would need quotes.

    Without quotes, empty text would be null, so it cannot be written.
    """
    import polars as pl

    separator = dialect.separator
    escape = dialect.text.escape
    quoting = dialect.text.quoting == "minimal"
    columns = []
    for name, column in zip(table.column_names, pl.DataFrame(table).cast(pl.String), strict=True):
        wrong = column.str.contains(f"[{re.escape(separator)}\r\n]")
        if escape is not None:
            special = re.escape(separator) + ('"' if quoting else "")
            column = column.str.replace_all(rf"([\\\n{special}])", r"\${1}")
            column = column.str.replace_all("\r", r"\r", literal=True)
            wrong = pl.Series([False])
        if quoting:
            column = column.set(column == "", '""')
        else:
            wrong |= column == ""
        if (wrong.fill_null(False)).any():
            raise InputError(
                "without quotes, text cannot hold this value",
                column=name,
                value=column.filter(wrong.fill_null(False))[0],
                remedy=f"choose {setting('format', 'parquet')}, or leave {LITERAL_QUOTES} out",
            )
        columns.append(column.fill_null(""))
    lines = pl.select(pl.concat_str(columns, separator=separator)).to_series()
    newline = dialect.newline
    return "".join(f"{line}{newline}" for line in lines).encode()


def record_blocks(shard: Shard, chunk_bytes: int, skip: int) -> Iterator[records.Marked]:
    """Iterate over byte blocks that end on a record, with what splits them.

    A block exceeds `chunk_bytes` only if a single record does.
    """
    assert shard.dialect is not None
    text = shard.dialect.text
    incomplete = b""
    offset = skip
    path = shard.path
    compression = shard.file_type.compression
    with reading(path), open_text(path, compression, text) as stream:
        if skip:
            stream.read(skip)
        while len(block := stream.read_buffer(chunk_bytes)):
            if incomplete:
                data = pa.py_buffer(b"".join((incomplete, block)))
            else:
                data = block
            _, marks, quotes = records.mark(data, text)
            cut = records.last_record_end(marks, quotes)
            if cut:
                inside = quotes[: int(np.searchsorted(quotes, cut))]
                complete = records.Marked(data.slice(0, cut), marks[:cut], inside)
                check_returns(shard, complete, offset)
                yield complete
            incomplete = data.slice(cut).to_pybytes()
            offset += cut
            if len(incomplete) > LARGEST_RECORD:
                raise too_long(path)
    if incomplete:
        last = records.mark(incomplete, text)
        if len(last.quotes) & 1:
            line = incomplete[:80].decode("utf-8", "replace")
            raise InputError(
                f"a quote opened near {line!r} is never closed; the file is cut or damaged",
                path=path,
                remedy=f"or, if {quotes_remedy(incomplete, text)}",
            )
        check_returns(shard, last, offset)
        yield last


def check_returns(shard: Shard, marked: records.Marked, offset: int | None) -> None:
    """Raise `InputError` for a carriage return outside quotes that no newline follows.

    offset: where the data begin in the text of the file; None: count lines from the beginning of
    the data.
    """
    at = records.first_lone_return(marked.marks, marked.quotes)
    if at is None:
        return
    line = 1 + int(np.count_nonzero(records.as_bytes(marked.data)[:at] == records.NEWLINE))
    if offset:
        line += lines_before(shard, offset)
    near = bytes(marked.data[max(0, at - 40) : at + 40]).decode("utf-8", "replace")
    raise InputError(
        f"a carriage return (CR) without a newline (LF), near {near!r}",
        path=shard.path,
        row=f"line {line}",
        remedy=(
            "end lines with LF or CRLF (tr '\\r' '\\n' converts old Mac files), and quote"
            " fields that hold a CR"
        ),
    )


def _head(shard: Shard, dialect: TextDialect) -> tuple[bytes, Literal["all", "part"]]:
    """Read enough bytes to hold the first record; also return whether they are the whole file."""
    size = 1 << 16
    path = shard.path
    while True:
        with reading(path), open_text(path, shard.file_type.compression, dialect) as stream:
            head: bytes = stream.read(size)
        start = lines_end(head, dialect.skip_rows)
        checked = head[start:]
        if len(head) == size:
            checked = checked.removesuffix(b"\r")
        titled = replace(shard, dialect=Dialect(",", "\n", text=dialect))
        check_returns(titled, records.mark(checked, dialect), start)
        _, marks, quotes = records.mark(head[start:], dialect)
        if len(head) < size or records.last_record_end(marks, quotes):
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
    marked: records.Marked,
    *,
    expected: str | None,
    width: int | None,
    reads: Literal["all", "part"],
    line: str,
) -> str:
    """Find the separator from the beginning of a file, which holds the first record.

    width: number of columns, if the first record need not be a header. reads: whether the text is
    the whole file; a part may end inside a record. line: of the names.

    Raises `InputError` if two separators would fit.
    """
    text, data, quotes = marked
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
        row=line,
        remedy="put quotes around the fields that hold the other character",
    )


def _split_header(path: Path, first: bytes, dialect: Dialect) -> list[str]:
    """Split a first record into names, as rows are split.

    Raises `InputError` if readers would disagree.
    """
    if not records.is_utf8(first):
        raise not_utf8(path, first, _line_of_names(dialect.text))
    separator = ord(dialect.separator)
    _, data, quotes = records.mark(first, dialect.text)
    if len(quotes) & 1 or records.first_stray_quote(data, quotes, separator) is not None:
        line = first[:80].decode("utf-8", "replace")
        raise InputError(
            f"quotes do not pair up, or are inside a name: {line!r}",
            path=path,
            row=_line_of_names(dialect.text),
            remedy=(
                "quote names that hold quotes, double the quotes inside, or if"
                f" {quotes_remedy(first, dialect.text)}"
            ),
        )
    end = len(first.removesuffix(b"\n").removesuffix(b"\r"))
    stops = np.append(records.outside_quotes(data, quotes, separator), end)
    starts = np.append(0, stops[:-1] + 1)
    if dialect.text.escape is not None:
        names = unescaped(records.Marked(first, data, quotes), starts, stops).to_pylist()
        return [name or "" for name in names]
    names = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        field = first[start:stop]
        if len(quotes) and field.startswith(b'"'):
            field = field[1:-1].replace(b'""', b'"')
        names.append(field.decode("utf-8"))
    return names
