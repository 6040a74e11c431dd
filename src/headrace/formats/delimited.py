"""CSV and TSV: every column is text, and every row keeps its bytes.

A shard is read in chunks that end on a record, so memory is O(chunk) for any file size and compression. Values are
parsed by polars without type inference; an empty field is null, a quoted empty field is empty text. Rows that only
change place are not parsed and written again: their bytes are copied (`copy.py`). A few columns are cut from the
bytes at the separators, found for all rows at once; quoted columns and whole tables go through the parser. Declared
numbers of a block that is streamed are made without the text in between (`delimited_numbers`).

A header is cut into names by the rules that cut rows (`records`), so both end at the same byte. LF and CRLF end a
record. A carriage return alone ends one for some readers and is text for others: outside quotes it is refused.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I32, I64
from headrace.errors import InputError
from headrace.formats import records
from headrace.formats.detect import LARGEST_RECORD, Compression, Kind, open_bytes, too_long
from headrace.formats.forked import parse_delimited, polars_is_lost
from headrace.formats.separator import find_separator
from headrace.formats.shard import Dialect, Shard, each_once

CHUNK_BYTES = 32 << 20
_HEAD_BYTES = 1 << 20
FEW_COLUMNS = 4  # up to here, cutting columns from the bytes beats parsing
_BOM = b"\xef\xbb\xbf"


def column_name(raw: str) -> str:
    """The name a column has in headrace: `__DOT__` stands for a dot in files that cannot have dots in names."""
    return raw.replace("__DOT__", ".")


def survey(path: Path, name: str, kind: Kind, signature: Sequence[str] | None) -> Shard:
    """Columns and dialect of a CSV or TSV file from its first record; its separator need not be the name's.

    signature: names for files without a header; a first record equal to it is a header all the same.
    Raises `InputError` on an empty file without signature, a blank first line, repeated names, bytes that are not
    UTF-8, and where two separators would do.
    """
    stat = path.stat()
    head, reads = _head(path, kind.compression)
    bom = head.startswith(_BOM)
    text_start = len(_BOM) if bom else 0
    ends = records.record_ends(records.as_bytes(head), records.quote_positions(records.as_bytes(head)))
    width = None if signature is None else len(signature)
    separator = find_separator(path, head[text_start:], format_=kind.format, width=width, reads=reads)
    if not len(ends) or text_start == len(head):
        if signature is None:
            raise InputError(
                f"{path}: is empty, not even a header; remove the file, or give the column names by a signature file"
            )
        names, header_bytes, newline = list(signature), text_start, "\n"
    else:
        first = head[text_start : int(ends[0])]
        newline = "\r\n" if first.endswith(b"\r\n") else "\n"
        if width != 1 and not first.strip(b"\r\n"):
            raise InputError(f"{path}: line 1 is blank, a header was expected; remove the blank lines before it")
        names = _split_header(path, first, separator)
        header_bytes = int(ends[0])
        if signature is None and any("\0" in name for name in names):
            raise InputError(
                f"{path}: line 1: a column name holds a zero byte; convert the file to UTF-8 (it may be UTF-16)"
            )
        if signature is not None and names != list(signature):
            if len(names) != len(signature):
                raise InputError(
                    f"{path}: line 1 has {len(names)} fields, the signature names {len(signature)}; "
                    f"correct the signature file"
                )
            names, header_bytes = list(signature), text_start
    columns = [column_name(raw) for raw in names]
    each_once(path, columns, " in the header")
    return Shard.seen(
        path,
        name,
        stat,
        kind=kind,
        schema=pa.schema([(column, pa.string()) for column in columns]),
        null_columns=columns,
        dialect=Dialect(separator, newline, bom, header_bytes),
    )


@dataclass
class DelimitedChunk:
    """Whole records of a CSV or TSV file. `first_row` counts data rows from 0."""

    shard: Shard
    data: records.Data
    first_row: int
    quotes: I64
    ends: I64
    blank_lines: bool = False
    _proved: bool = False
    _parsed: dict[str, pa.ChunkedArray] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Number of records."""
        return len(self.ends)

    def sizes(self) -> I32 | None:
        """Bytes of every row, line end included; None where blank lines stand between rows."""
        return None if self.blank_lines else np.diff(self.ends, prepend=0).astype(np.int32)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The columns as text. Raises `InputError` naming the row if a row has too few or too many fields."""
        names = self.shard.schema.names
        wanted = list(names if columns is None else columns)
        missing = [name for name in wanted if name not in self._parsed]
        places = {name: place for place, name in enumerate(names)}
        if missing and len(missing) <= FEW_COLUMNS < len(names):
            self._parsed |= self._cut([places[name] for name in missing])
            missing = [name for name in missing if name not in self._parsed]
        if missing:
            read = sorted({places[name] for name in missing})
            for place, column in zip(read, self._parse(read).columns, strict=True):
                self._parsed[names[place]] = column.cast(pa.large_string())
        return pa.table({name: self._parsed[name] for name in wanted})

    def _stops(self, places: Sequence[int]) -> records.Stops:
        """Where the fields at these places stop, row by row. It proves that every row is complete and all is UTF-8."""
        width = len(self.shard.schema)
        assert self.shard.dialect is not None
        separator = ord(self.shard.dialect.separator)
        if not self._proved:
            self._check_encoding()
            self._check_quotes()
        data = records.as_bytes(self.data)
        stops = records.field_stops(data, self.quotes, rows=self.rows, separator=separator, width=width, wanted=places)
        if stops is not None:
            self._proved = True
            return stops
        at = records.outside_quotes(data, self.quotes, separator)
        fields = records.fields_per_record(at, self.ends)
        row = int(np.flatnonzero(fields != width)[0])
        start = int(self.ends[row - 1]) if row else 0
        line = bytes(self.data[start : int(self.ends[row])]).decode("utf-8", "replace").strip()
        raise InputError(
            f"{self.shard.path}: row {self.first_row + row + 1} has {int(fields[row])} fields, the header {width}: "
            f"{line[:120]!r}; complete or remove that row"
        )

    def _cut(self, places: list[int]) -> dict[str, pa.ChunkedArray]:
        """Columns cut from the bytes, unparsed, by name; those with quoted fields are left out: they must be parsed."""
        last = len(self.shard.schema) - 1
        stops = self._stops(sorted({near for place in places for near in (place - 1, place) if 0 <= near < last}))
        data = records.as_bytes(self.data)
        columns = {}
        for place in places:
            starts = stops[place - 1] + 1 if place else np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])
            ends = stops[place] if place < last else self._content_ends()
            if (data[starts[starts < ends]] == records.QUOTE).any():
                continue
            text = records.cut(self.data, starts, ends).cast(pa.large_string())
            if (starts == ends).any():
                text = pc.if_else(pa.array(starts == ends), pa.scalar(None, pa.large_string()), text)
            columns[self.shard.schema.names[place]] = pa.chunked_array([text])
        return columns

    def _content_ends(self) -> I64:
        """Where each record ends without its line end."""
        data = records.as_bytes(self.data)
        stops: I64 = self.ends - (data[self.ends - 1] == records.NEWLINE)
        starts = np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])
        stops -= (stops > starts) & (data[np.maximum(stops - 1, 0)] == records.RETURN)
        return stops

    def _parse(self, columns: list[int]) -> pa.Table:
        assert self.shard.dialect is not None
        separator = self.shard.dialect.separator
        if not len(self.data):
            return pa.schema([(f"column_{place + 1}", pa.large_string()) for place in columns]).empty_table()
        if not self._proved:
            self._stops([])  # polars fills up short rows in silence; this raises on them
        data = bytes(self.data)
        if data.startswith(_BOM):  # a value; the parsers take away one mark, wherever in the file the data come from
            data = _BOM + data
        import polars as pl

        try:
            if polars_is_lost():
                table = parse_delimited(data, separator=separator, width=len(self.shard.schema), columns=columns)
            else:
                table = pl.read_csv(
                    data, has_header=False, separator=separator, infer_schema=False, columns=columns
                ).to_arrow()
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, pa.ArrowInvalid) as error:
            raise InputError(
                f"{self.shard.path}: cannot be read as {self.shard.kind.format} near row {self.first_row + 1} "
                f"({str(error).splitlines()[0]}); quote fields that hold quotes, double the quotes inside"
            ) from error
        if table.num_rows != self.rows:
            raise InputError(
                f"{self.shard.path}: rows {self.first_row + 1} to {self.first_row + self.rows}: quotes do not pair up; "
                f"quote fields that hold quotes, double the quotes inside"
            )
        return table

    def _check_quotes(self) -> None:
        """Every quote is one that all readers understand alike."""
        assert self.shard.dialect is not None
        data = records.as_bytes(self.data)
        at = records.first_stray_quote(data, self.quotes, ord(self.shard.dialect.separator))
        if at is not None:
            row = int(np.searchsorted(self.ends, at, side="right"))
            near = bytes(self.data[max(0, at - 40) : at + 40]).decode("utf-8", "replace")
            raise InputError(
                f"{self.shard.path}: row {self.first_row + row + 1}: a quote stands inside a field, near {near!r}; "
                f"quote fields that hold quotes, double the quotes inside"
            )

    def _check_encoding(self) -> None:
        if records.is_utf8(self.data):
            return
        try:
            bytes(self.data).decode("utf-8")
        except UnicodeDecodeError as error:
            row = int(np.searchsorted(self.ends, error.start, side="right"))
            raise InputError(
                f"{self.shard.path}: row {self.first_row + row + 1}: "
                f"byte {error.object[error.start]:#04x} is not UTF-8; convert the file to UTF-8"
            ) from error


def chunks(shard: Shard, chunk_bytes: int = CHUNK_BYTES) -> Iterator[DelimitedChunk]:
    """The rows of a shard in file order. Raises `InputError` on damaged compression or an unclosed quote."""
    assert shard.dialect is not None
    first_row = 0
    for data, quotes in record_blocks(shard, chunk_bytes, shard.dialect.header_bytes):
        chunk = _chunk(shard, data, quotes, first_row)
        if chunk.rows:
            yield chunk
        first_row += chunk.rows


def without_header(data: bytes) -> bytes:
    """The bytes behind the first record of a whole file; empty if there is none."""
    reach = 1 << 16
    while reach < len(data):  # a record that ends before this does ends there in the whole
        head = records.as_bytes(data[:reach])
        end = int(records.record_ends(head, records.quote_positions(head))[0])
        if end < reach:
            return data[end:]
        reach *= 4
    whole = records.as_bytes(data)
    ends = records.record_ends(whole, records.quote_positions(whole))
    return data[int(ends[0]) :] if len(ends) else b""


def parse_block(data: bytes, shard: Shard, columns: Sequence[str] | None) -> pa.Table:
    """The rows of one block (whole records, no header) as text columns."""
    quotes = records.quote_positions(records.as_bytes(data))
    if b"\r" in data:
        _check_returns(shard.path, shard.kind.compression, data, quotes, None)
    return _chunk(shard, data, quotes, 0).table(columns)


def _chunk(shard: Shard, data: records.Data, quotes: I64, first_row: int) -> DelimitedChunk:
    """Blank lines are no rows, except in a file of one column, where they are nulls."""
    ends = records.record_ends(records.as_bytes(data), quotes)
    whole = data
    if len(shard.schema) > 1 and len(ends) and (ends[0] <= 2 or int(np.diff(ends).min(initial=3)) <= 2):
        data = records.without_blank(data, ends)
        quotes = records.quote_positions(records.as_bytes(data))
        ends = records.record_ends(records.as_bytes(data), quotes)
    return DelimitedChunk(shard, data, first_row, quotes, ends, data is not whole)


def header_bytes(columns: Sequence[str], dialect: Dialect) -> bytes:
    """The header line as bytes, byte-order mark first where the dialect has one."""
    text = io.StringIO()
    # csv quotes only the characters of its own line terminator; names with CR or LF both need quotes.
    csv.writer(text, delimiter=dialect.separator, lineterminator="\r\n").writerow(columns)
    return (_BOM if dialect.bom else b"") + (text.getvalue().removesuffix("\r\n") + dialect.newline).encode()


def render(table: pa.Table, dialect: Dialect) -> bytes:
    """Columns as delimited text without a header; null is an empty field, empty text is quoted."""
    import polars as pl

    text = pl.DataFrame(table).write_csv(
        include_header=False, separator=dialect.separator, line_terminator=dialect.newline
    )
    return text.encode()


def record_blocks(shard: Shard, chunk_bytes: int, skip: int) -> Iterator[tuple[records.Data, I64]]:
    """Byte blocks that end on a record, with the places of their quotes.

    A block is longer than `chunk_bytes` only where one record is.
    """
    rest, offset = b"", skip
    path, compression = shard.path, shard.kind.compression
    try:
        with open_bytes(path, compression) as stream:
            if skip:
                stream.read(skip)
            while len(block := stream.read_buffer(chunk_bytes)):
                data = pa.py_buffer(b"".join((rest, block))) if rest else block
                quotes = records.quote_positions(records.as_bytes(data))
                cut = records.last_record_end(records.as_bytes(data), quotes)
                if cut:
                    whole, inside = data.slice(0, cut), quotes[: int(np.searchsorted(quotes, cut))]
                    _check_returns(path, compression, whole, inside, offset)
                    yield whole, inside
                rest = data.slice(cut).to_pybytes()
                offset += cut
                if len(rest) > LARGEST_RECORD:
                    raise too_long(path)
    except OSError as error:
        raise InputError(f"{path}: {error}; the file is cut or damaged, fetch it again") from error
    if rest:
        quotes = records.quote_positions(records.as_bytes(rest))
        if len(quotes) & 1:
            line = rest[:80].decode("utf-8", "replace")
            raise InputError(f"{path}: a quote opened near {line!r} is never closed; the file is cut or damaged")
        _check_returns(path, compression, rest, quotes, offset)
        yield rest, quotes


def _check_returns(path: Path, compression: Compression, data: records.Data, quotes: I64, offset: int | None) -> None:
    """Raise `InputError` for a carriage return outside quotes that no newline follows.

    offset: where the data begin in the decompressed file; None: lines are counted from the data's beginning.
    """
    at = records.first_lone_return(records.as_bytes(data), quotes)
    if at is None:
        return
    line = 1 + int(np.count_nonzero(records.as_bytes(data)[:at] == records.NEWLINE))
    if offset:
        with open_bytes(path, compression) as stream:  # read once more: only errors need to know the line
            while offset and (block := stream.read(min(CHUNK_BYTES, offset))):
                line += block.count(b"\n")
                offset -= len(block)
    near = bytes(data[max(0, at - 40) : at + 40]).decode("utf-8", "replace")
    raise InputError(
        f"{path}: line {line}: a carriage return (CR) stands without a newline (LF), near {near!r}; end lines with LF "
        f"or CRLF (tr '\\r' '\\n' converts old Mac files), and quote fields that hold a CR"
    )


def _head(path: Path, compression: Compression) -> tuple[bytes, Literal["all", "part"]]:
    """Enough bytes to hold the first record, and whether they are all of the file."""
    size = 1 << 16
    while True:
        with open_bytes(path, compression) as stream:
            try:
                head: bytes = stream.read(size)
            except OSError as error:
                raise InputError(f"{path}: {error}; the file is cut or damaged, fetch it again") from error
        quotes = records.quote_positions(records.as_bytes(head))
        _check_returns(path, compression, head.removesuffix(b"\r") if len(head) == size else head, quotes, None)
        if len(head) < size or records.last_record_end(records.as_bytes(head), quotes):
            return head, "all" if len(head) < size else "part"
        if size > _HEAD_BYTES:
            raise InputError(
                f"{path}: the first line is longer than {_HEAD_BYTES} bytes; this is no table with a header"
            )
        size *= 4


def _split_header(path: Path, first: bytes, separator: str) -> list[str]:
    """The names in a first record, cut as rows are. Raises `InputError` where readers would not agree on them."""
    try:
        first.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: line 1: byte {first[error.start]:#04x} is not UTF-8; convert the file to UTF-8"
        ) from error
    data = records.as_bytes(first)
    quotes = records.quote_positions(data)
    if len(quotes) & 1 or records.first_stray_quote(data, quotes, ord(separator)) is not None:
        line = first[:80].decode("utf-8", "replace")
        raise InputError(
            f"{path}: line 1: quotes do not pair up, or stand inside a name: {line!r}; quote names that hold quotes, "
            f"double the quotes inside"
        )
    end = len(first.removesuffix(b"\n").removesuffix(b"\r"))
    stops = [*records.outside_quotes(data, quotes, ord(separator)).tolist(), end]
    fields = [first[start:stop] for start, stop in zip([0, *(stop + 1 for stop in stops[:-1])], stops, strict=True)]
    return [_unquoted(field).decode("utf-8") for field in fields]


def _unquoted(field: bytes) -> bytes:
    return field[1:-1].replace(b'""', b'"') if field.startswith(b'"') else field
