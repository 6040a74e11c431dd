"""CSV and TSV: every column is text, and every row keeps its bytes.

A shard is read in chunks that end on a record, so memory is O(chunk) for any file size and compression. Values are
parsed by polars without type inference; an empty field is null, a quoted empty field is empty text. Rows that only
change place are not parsed and written again: their bytes are copied (`records`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.errors import InputError
from headrace.formats import records
from headrace.formats.detect import Compression, Kind, open_bytes
from headrace.formats.shard import Dialect, Shard

CHUNK_BYTES = 32 << 20
_HEAD_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
SEPARATOR = {"csv": ",", "tsv": "\t"}


def column_name(raw: str) -> str:
    """The name a column has in headrace: `__DOT__` stands for a dot in files that cannot have dots in names."""
    return raw.replace("__DOT__", ".")


def survey(path: Path, name: str, kind: Kind, signature: Sequence[str] | None) -> Shard:
    """Columns and dialect of a CSV or TSV file from its first record.

    signature: names for files without a header; a first record equal to it is a header all the same.
    Raises `InputError` on an empty file without signature, repeated names, bytes that are not UTF-8.
    """
    stat = path.stat()
    head = _head(path, kind.compression)
    bom = head.startswith(_BOM)
    text_start = len(_BOM) if bom else 0
    ends = records.record_ends(records.as_bytes(head), records.quote_positions(records.as_bytes(head)))
    separator = SEPARATOR[kind.format]
    if not len(ends) or text_start == len(head):
        if signature is None:
            raise InputError(
                f"{path}: is empty, not even a header; remove the file, or give the column names by a signature file"
            )
        names, header_bytes, newline = list(signature), text_start, "\n"
    else:
        first = head[text_start : int(ends[0])]
        newline = "\r\n" if first.endswith(b"\r\n") else "\n"
        names = _split_header(path, first, separator)
        header_bytes = int(ends[0])
        if signature is not None and names != list(signature):
            if len(names) != len(signature):
                raise InputError(
                    f"{path}: line 1 has {len(names)} fields, the signature names {len(signature)}; correct the signature file"
                )
            names, header_bytes = list(signature), text_start
        elif signature is None:
            _refuse_other_separator(path, first, kind.format, separator)
    columns = [column_name(raw) for raw in names]
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated:
        raise InputError(f"{path}: column name {repeated[0]!r} stands more than once in the header; rename one of them")
    return Shard(
        path=path,
        name=name,
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        kind=kind,
        schema=pa.schema([(column, pa.string()) for column in columns]),
        null_columns=frozenset(columns),
        dialect=Dialect(separator, newline, bom, header_bytes),
    )


@dataclass
class DelimitedChunk:
    """Whole records of a CSV or TSV file. `first_row` counts data rows from 0."""

    shard: Shard
    data: bytes
    first_row: int
    _parsed: dict[str, pa.ChunkedArray] = field(default_factory=dict)

    @cached_property
    def _quotes(self) -> records.I64:
        return records.quote_positions(records.as_bytes(self.data))

    @cached_property
    def _ends(self) -> records.I64:
        return records.record_ends(records.as_bytes(self.data), self._quotes)

    @cached_property
    def rows(self) -> int:
        """Number of records."""
        return len(self._ends)

    def records(self) -> pa.LargeBinaryArray:
        """Each row's bytes, line end included (added where the file's last line has none)."""
        if not self.data.endswith(b"\n"):
            assert self.shard.dialect is not None
            data = self.data + self.shard.dialect.newline.encode()
            return records.slices(data, np.append(self._ends[:-1], len(data)))
        return records.slices(self.data, self._ends)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The columns as text. Raises `InputError` naming the row if a row has too few or too many fields."""
        names = self.shard.schema.names
        wanted = list(names if columns is None else columns)
        missing = [name for name in wanted if name not in self._parsed]
        if missing:
            last = names[-1]
            read = sorted({names.index(name) for name in (*missing, last)})
            if not self._parsed:
                self._check_quotes()
            frame = self._parse(read)
            for place, column in zip(read, frame.to_arrow().columns, strict=True):
                self._parsed[names[place]] = column.cast(pa.large_string())
            self._check_shape(self._parsed[last].null_count)
        return pa.table({name: self._parsed[name] for name in wanted})

    def _parse(self, columns: list[int]) -> pl.DataFrame:
        assert self.shard.dialect is not None
        if not self.data:
            return pl.DataFrame({f"column_{place + 1}": pl.Series([], dtype=pl.String) for place in columns})
        try:
            frame = pl.read_csv(
                self.data,
                has_header=False,
                separator=self.shard.dialect.separator,
                infer_schema=False,
                columns=columns,
            )
        except pl.exceptions.PolarsError as error:
            self._check_shape(1)
            self._check_encoding()
            raise InputError(
                f"{self.shard.path}: cannot be read as {self.shard.kind.format} near row {self.first_row + 1} "
                f"({str(error).splitlines()[0]}); quote fields that hold quotes, double the quotes inside"
            ) from error
        if frame.height != self.rows:
            raise InputError(
                f"{self.shard.path}: rows {self.first_row + 1} to {self.first_row + self.rows}: quotes do not pair up; "
                f"quote fields that hold quotes, double the quotes inside"
            )
        return frame

    def _check_shape(self, nulls_in_last: int) -> None:
        """Every record has one field per column.

        With no null in the last column no record is short; if the separators then add up, none is long either.
        """
        width = len(self.shard.schema)
        assert self.shard.dialect is not None
        separator = ord(self.shard.dialect.separator)
        data = records.as_bytes(self.data)
        if nulls_in_last == 0:
            total = records.separators_outside_quotes(data, self._quotes, separator)
            if total == self.rows * (width - 1):
                return
        fields = records.fields_per_record(data, self._quotes, separator)
        wrong = np.flatnonzero(fields != width)
        if len(wrong):
            row = int(wrong[0])
            start = int(self._ends[row - 1]) if row else 0
            line = self.data[start : int(self._ends[row])].decode("utf-8", "replace").strip()
            raise InputError(
                f"{self.shard.path}: row {self.first_row + row + 1} has {int(fields[row])} fields, the header {width}: "
                f"{line[:120]!r}; complete or remove that row"
            )

    def _check_quotes(self) -> None:
        """Every quote is one that all readers understand alike."""
        assert self.shard.dialect is not None
        data = records.as_bytes(self.data)
        at = records.first_stray_quote(data, self._quotes, ord(self.shard.dialect.separator))
        if at is not None:
            row = int(np.searchsorted(self._ends, at, side="right"))
            near = self.data[max(0, at - 40) : at + 40].decode("utf-8", "replace")
            raise InputError(
                f"{self.shard.path}: row {self.first_row + row + 1}: a quote stands inside a field, near {near!r}; "
                f"quote fields that hold quotes, double the quotes inside"
            )

    def _check_encoding(self) -> None:
        try:
            self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            row = int(np.searchsorted(self._ends, error.start, side="right"))
            raise InputError(
                f"{self.shard.path}: row {self.first_row + row + 1}: byte {self.data[error.start]:#04x} is not UTF-8; "
                f"convert the file to UTF-8"
            ) from error


def chunks(shard: Shard, chunk_bytes: int = CHUNK_BYTES) -> Iterator[DelimitedChunk]:
    """The rows of a shard in file order. Raises `InputError` on damaged compression or an unclosed quote."""
    assert shard.dialect is not None
    first_row = 0
    for data in _record_blocks(shard, chunk_bytes, shard.dialect.header_bytes):
        chunk = DelimitedChunk(shard, _without_blank(shard, data), first_row)
        if chunk.rows:
            yield chunk
        first_row += chunk.rows


def parse_block(data: bytes, shard: Shard, columns: Sequence[str] | None) -> pa.Table:
    """The rows of one block (whole records, no header) as text columns."""
    return DelimitedChunk(shard, _without_blank(shard, data), 0).table(columns)


def header_bytes(columns: Sequence[str], dialect: Dialect) -> bytes:
    """The header line as bytes, byte-order mark first where the dialect has one."""
    text = io.StringIO()
    csv.writer(text, delimiter=dialect.separator, lineterminator=dialect.newline).writerow(columns)
    return (_BOM if dialect.bom else b"") + text.getvalue().encode()


def render(table: pa.Table, dialect: Dialect) -> bytes:
    """Columns as delimited text without a header; null is an empty field, empty text is quoted."""
    text = pl.DataFrame(table).write_csv(
        include_header=False, separator=dialect.separator, line_terminator=dialect.newline
    )
    return text.encode()


def _record_blocks(shard: Shard, chunk_bytes: int, skip: int) -> Iterator[bytes]:
    """Byte blocks that end on a record; a block grows only when one record is longer than `chunk_bytes`."""
    rest = b""
    try:
        with open_bytes(shard.path, shard.kind.compression) as stream:
            if skip:
                stream.read(skip)
            while block := stream.read(chunk_bytes):
                data = rest + block if rest else block
                quotes = records.quote_positions(records.as_bytes(data))
                cut = records.last_record_end(data, quotes)
                if cut:
                    yield data[:cut] if cut != len(data) else data
                rest = data[cut:]
    except OSError as error:
        raise InputError(f"{shard.path}: {error}; the file is cut or damaged, fetch it again") from error
    if rest:
        if len(records.quote_positions(records.as_bytes(rest))) & 1:
            line = rest[:80].decode("utf-8", "replace")
            raise InputError(f"{shard.path}: a quote opened near {line!r} is never closed; the file is cut or damaged")
        yield rest


def _without_blank(shard: Shard, data: bytes) -> bytes:
    """Blank lines are no rows, except in a file of one column, where they are nulls."""
    if len(shard.schema) == 1 or not (b"\n\n" in data or b"\n\r\n" in data or data[:1] in b"\r\n"):
        return data
    array = records.as_bytes(data)
    return records.without_blank(data, records.record_ends(array, records.quote_positions(array)))


def _head(path: Path, compression: Compression) -> bytes:
    """Enough bytes to hold the first record."""
    size = 1 << 16
    while True:
        with open_bytes(path, compression) as stream:
            try:
                head: bytes = stream.read(size)
            except OSError as error:
                raise InputError(f"{path}: {error}; the file is cut or damaged, fetch it again") from error
        quotes = records.quote_positions(records.as_bytes(head))
        if len(head) < size or records.last_record_end(head, quotes):
            return head
        if size > _HEAD_BYTES:
            raise InputError(
                f"{path}: the first line is longer than {_HEAD_BYTES} bytes; this is no table with a header"
            )
        size *= 4


def _split_header(path: Path, first: bytes, separator: str) -> list[str]:
    try:
        text = first.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: line 1: byte {first[error.start]:#04x} is not UTF-8; convert the file to UTF-8"
        ) from error
    text = text.removesuffix("\n").removesuffix("\r")
    return next(csv.reader(io.StringIO(text, newline=""), delimiter=separator), [""])


def _refuse_other_separator(path: Path, first: bytes, format_: str, separator: str) -> None:
    for other, format_name in ((b"\t", "tab"), (b",", "comma"), (b";", "semicolon")):
        if separator.encode() not in first and other in first:
            raise InputError(
                f"{path}: the name says {format_}, the header is separated by {format_name}s: "
                f"{first[:80].decode('utf-8', 'replace').strip()!r}; rename or convert the file"
            )
