"""JSON lines, and JSON files that are one array of objects.

Types come from JSON itself: one pass over the whole shard finds them, so no later row can contradict an early guess.
A key that is absent is null. Rows that only change place keep their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.arrays import I32, I64
from headrace.errors import InputError
from headrace.formats import records
from headrace.formats.delimited import column_name
from headrace.formats.detect import LARGEST_RECORD, Kind, open_bytes, read_whole, too_long
from headrace.formats.json_array import array_as_lines
from headrace.formats.schema import is_text, plain, supertype
from headrace.formats.shard import Shard

if TYPE_CHECKING:
    import polars as pl

CHUNK_BYTES = 16 << 20
_WHITE = np.frombuffer(b" \t\r\n", np.uint8)
_NO_QUOTES = np.empty(0, np.int64)
_BOM = b"\xef\xbb\xbf"
_BLANK_LINES = re.compile(rb"^[ \t\r]*\n", re.MULTILINE)
_BLANK_INSIDE = re.compile(rb"\n[ \t\r]*\n")
_DOTTED_KEY = re.compile(rb'"((?:[^"\\]|\\.)*__DOT__(?:[^"\\]|\\.)*)"\s*:')
_EXACT = 2**53  # whole numbers up to here are exact as float64


def survey(path: Path, name: str, kind: Kind) -> Shard:
    """Columns and types of a JSON shard, found by reading all of it. A file of 0 bytes is an empty shard."""
    stat = path.stat()
    fields: dict[str, pa.DataType] = {}
    nulls: set[str] = set()
    largest: dict[str, int] = {}
    rows = 0
    for data in _blocks(path, kind, 0):
        data = _without_blank(data.removeprefix(_BOM))
        frame = _parse(path, data, None, rows)
        _check_numbers(path, frame, data, rows)
        table = frame.to_arrow()
        _check_texts(path, table.schema, data, rows)
        for column in table.schema:
            if pa.types.is_integer(column.type):
                largest[column.name] = max(largest.get(column.name, 0), _largest(table[column.name]))
            before = fields.get(column.name, pa.null())
            kind_now = supertype(before, column.type)
            if (
                kind_now is None
                and {before, column.type} == {pa.int64(), pa.float64()}
                and largest[column.name] <= _EXACT
            ):
                kind_now = pa.float64()
            if kind_now is None:
                raise InputError(
                    f"{path}: key {column.name!r} is {before} in one row and {column.type} in another "
                    f"(near row {rows + 1}); write one type throughout"
                )
            fields[column.name] = kind_now
            if table[column.name].null_count or (rows and before == pa.null()):
                nulls.add(column.name)
        nulls.update(set(fields) - set(table.column_names))
        rows += frame.height
    names = [column_name(raw) for raw in fields]
    if rows and not names:
        raise InputError(
            f"{path}: has {rows:,} rows and none of them has a key; remove the file, or give its rows keys"
        )
    if len(set(names)) != len(names):
        raise InputError(f"{path}: two keys are the same column once __DOT__ is read as a dot; rename one of them")
    return Shard.seen(
        path,
        name,
        stat,
        kind=kind,
        schema=pa.schema(list(zip(names, fields.values(), strict=True))),
        null_columns=(column_name(raw) for raw in nulls),
        content="table" if rows else "nothing",
    )


@dataclass
class JsonlChunk:
    """Whole lines of a JSON lines file."""

    shard: Shard
    data: bytes
    first_row: int
    blank_lines: bool = False

    @cached_property
    def _ends(self) -> I64:
        return records.record_ends(records.as_bytes(self.data), _NO_QUOTES)

    @cached_property
    def rows(self) -> int:
        """Number of objects."""
        return len(self._ends)

    def sizes(self) -> I32 | None:
        """Bytes of every line; None where blank lines stand between, or a key must be renamed."""
        copied = not self.blank_lines and b"__DOT__" not in self.data and self.shard.kind.format == "jsonl"
        return np.diff(self._ends, prepend=0).astype(np.int32) if copied else None

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The keys as columns, of the shard's types; an absent key is null."""
        wanted = self.shard.schema.names if columns is None else list(columns)
        schema = pa.schema([self.shard.schema.field(name) for name in wanted])
        return parse_block(self.data, self.shard.path, schema, self.first_row)


def chunks(shard: Shard, chunk_bytes: int = CHUNK_BYTES) -> Iterator[JsonlChunk]:
    """The objects of a shard in file order."""
    first_row = 0
    for block in _blocks(shard.path, shard.kind, chunk_bytes):
        data = _without_blank(block.removeprefix(_BOM))
        chunk = JsonlChunk(shard, data, first_row, data is not block)
        if chunk.rows:
            yield chunk
        first_row += chunk.rows


def line_blocks(shard: Shard, chunk_bytes: int) -> Iterator[tuple[bytes, I64]]:
    """The bytes of an uncompressed shard, end to end, in blocks that end on a line; lines have no quotes to heed."""
    for data in _blocks(shard.path, shard.kind, chunk_bytes):
        yield data, _NO_QUOTES


def blank_lines(data: bytes, starts: I64, ends: I64) -> npt.NDArray[np.bool_]:
    """Which lines hold nothing but white space; a line that is not blank is an object."""
    visible = np.isin(records.as_bytes(data), _WHITE, invert=True)
    if data.startswith(_BOM):
        visible[: len(_BOM)] = False
    before = np.concatenate([[0], np.cumsum(visible)])
    return np.asarray(before[ends] == before[starts])


def clean_block(data: bytes, path: Path, kind: Kind) -> bytes:
    """The bytes of one block as lines that each hold an object: no byte-order mark, no blank lines, no array."""
    if kind.format == "json":
        return b"".join(_array_as_lines(path, data)) if data.strip() else b""
    return _without_blank(data.removeprefix(_BOM))


def parse_block(data: bytes, path: Path, schema: pa.Schema, first_row: int = 0) -> pa.Table:
    """Lines as columns of the given types."""
    import polars as pl

    raw = {name: [name] for name in schema.names}
    for key in sorted({match.decode("utf-8", "replace") for match in set(_DOTTED_KEY.findall(data))}):
        raw.get(column_name(key), []).append(key)
    empty = pl.DataFrame(schema.empty_table())
    polars_schema = {key: empty.schema[name] for name, keys in raw.items() for key in keys}
    frame = _parse(path, data, polars_schema, first_row)
    return frame.select([pl.coalesce(keys).alias(name) for name, keys in raw.items()]).to_arrow().cast(schema)


def render(table: pa.Table) -> bytes:
    """Rows as JSON lines, every column present."""
    import polars as pl

    return pl.DataFrame(table).write_ndjson().encode()


def _blocks(path: Path, kind: Kind, chunk_bytes: int) -> Iterator[bytes]:
    chunk_bytes = chunk_bytes or CHUNK_BYTES
    try:
        with open_bytes(path, kind.compression) as stream:
            if kind.format == "json":
                data = read_whole(path, stream, kind.compression)
                if data.strip():
                    yield from _array_as_lines(path, data)
                return
            rest = b""
            while block := stream.read(chunk_bytes):
                data = rest + block
                cut = data.rfind(b"\n") + 1
                if cut:
                    yield data[:cut]
                rest = data[cut:]
                if len(rest) > LARGEST_RECORD:
                    raise too_long(path)
    except OSError as error:
        raise InputError(f"{path}: {error}; the file is cut or damaged, fetch it again") from error
    if rest.strip():
        yield rest


def _array_as_lines(path: Path, data: bytes) -> Iterator[bytes]:
    text = data.removeprefix(_BOM)
    if text.lstrip()[:1] != b"[":
        yield data
        return
    try:
        yield array_as_lines(text)
    except ValueError as error:
        raise InputError(f"{path}: is no JSON array of objects, {error}; correct the file") from error


def _without_blank(data: bytes) -> bytes:
    """The lines that hold something."""
    if not data[:1].isspace() and not any(data.find(pair) >= 0 for pair in (b"\n\n", b"\n\r", b"\n ", b"\n\t")):
        return data
    if _BLANK_INSIDE.search(data) or _BLANK_LINES.match(data):
        return _BLANK_LINES.sub(b"", data)
    return data


def _check_numbers(path: Path, frame: pl.DataFrame, data: bytes, first_row: int) -> None:
    """No whole number lost digits: none is beyond 64 bits, and none beyond 2^53 stands beside fractions."""
    import polars as pl

    for name, kind in frame.schema.items():
        if kind == pl.Float64 and (frame[name].abs() >= _EXACT).any():
            lossy = re.search(rb'"%s"\s*:\s*-?\d{16,}\s*[,}]' % re.escape(name.encode()), data) is not None
        else:
            lossy = kind in (pl.Int128, pl.UInt64)
        if lossy:
            raise InputError(
                f"{path}: near row {first_row + 1}: key {name!r} holds whole numbers that fit no 64 bits, or beside "
                f"fractions no 53; write them as text"
            )


def _check_texts(path: Path, schema: pa.Schema, data: bytes, first_row: int) -> None:
    """What was read as text was written as text: polars also reads numbers beside texts as texts, Arrow does not."""
    texts = pa.schema([(field.name, _as_json_type(field.type)) for field in schema if _holds_text(field.type)])
    if not len(texts) or not data:
        return
    try:
        pj.read_json(
            pa.BufferReader(data),
            pj.ReadOptions(use_threads=False, block_size=max(len(data), 1 << 10)),
            pj.ParseOptions(explicit_schema=texts, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid as error:
        key = re.search(r"Column\(/([^)/]*)", str(error))
        raise InputError(
            f"{path}: near row {first_row + 1}: {f'key {key[1]!r}' if key else 'a key'} has values of more than one "
            f"type ({str(error).splitlines()[0]}); write one type throughout"
        ) from error


def _holds_text(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_holds_text(kind.field(place).type) for place in range(kind.num_fields))
    return is_text(kind)


def _as_json_type(kind: pa.DataType) -> pa.DataType:
    """The type in the words of Arrow's JSON reader, which knows no large lists and texts."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _as_json_type(field.type)) for field in kind])
    return pa.list_(_as_json_type(kind.value_type)) if pa.types.is_large_list(kind) else plain(kind)


def _largest(column: pa.ChunkedArray) -> int:
    """The largest absolute value of a column of whole numbers."""
    bounds = pc.min_max(column).as_py()
    return max(abs(int(bounds["min"] or 0)), abs(int(bounds["max"] or 0)))


def _parse(path: Path, data: bytes, schema: dict[str, Any] | None, first_row: int) -> pl.DataFrame:
    import polars as pl

    if not data:
        return pl.DataFrame(schema=schema)
    try:
        return pl.read_ndjson(data, schema=schema, infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"{path}: near row {first_row + 1}: not JSON lines of one type per key ({str(error).splitlines()[0]}); "
            f"correct the file"
        ) from error
