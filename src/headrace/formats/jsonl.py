"""Read and write JSON lines, and read JSON files that are one array of objects.

Types come from JSON itself. One pass over the whole shard finds them, so no later row can
contradict an early guess. A key that is absent is null. Rows that are only moved keep their bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import I32, I64
from headrace.errors import InputError
from headrace.formats import records
from headrace.formats.dialect import PLAIN, TextDialect
from headrace.formats.json_parse import (
    EXACT,
    KeyPath,
    Lines,
    Location,
    infer,
    infer_values,
    joined_leaves,
    leaf_types,
    leaves_of,
    merged_schema,
    parse,
)
from headrace.formats.json_text import array_as_lines
from headrace.formats.registry import (
    LARGEST_RECORD,
    FileType,
    open_bytes,
    read_all_bytes,
    reading,
    too_long,
)
from headrace.formats.shard import (
    BOM,
    BlockRead,
    FormatCode,
    Shard,
    Span,
    WriteSettings,
    column_name,
)
from headrace.formats.types import Target, in_schema
from headrace.formats.widen import cast_chunks
from headrace.formats.write import BLOCK_BYTES, HashingFile, TextSink, block_bytes, cut_blocks

if TYPE_CHECKING:
    import polars as pl

CHUNK_BYTES = 16 << 20
_WHITE = np.frombuffer(b" \t\r\n", np.uint8)
_NO_QUOTES = np.empty(0, np.int64)
_DOTTED_KEY = re.compile(rb'"((?:[^"\\]|\\.)*__DOT__(?:[^"\\]|\\.)*)"\s*:')
_JSON_TYPES = (pa.null(), pa.bool_(), pa.int64(), pa.float64(), pa.string())


def survey(path: Path, name: str, file_type: FileType) -> Shard:
    """Find columns and types of a JSON shard by reading all of it.

    A file of 0 bytes is an empty shard.
    """
    shard = Shard.unread(path, name, file_type)
    seen = _SeenLines()
    for lines in _lines(path, file_type, CHUNK_BYTES):
        seen.add(lines)
    if seen.turned_fractions():
        for lines in _lines(path, file_type, CHUNK_BYTES):
            parse(lines, seen.schema)
    if seen.rows and not seen.schema.names:
        raise InputError(
            f"none of its {seen.rows} rows has a key",
            path=path,
            remedy="remove the file, or write a key into a row",
        )
    names = [column_name(raw) for raw in seen.schema.names]
    if len(set(names)) != len(names):
        raise InputError(
            "two keys are the same column once __DOT__ is read as a dot",
            path=path,
            remedy="rename one of them",
        )
    return replace(
        shard,
        schema=pa.schema(list(zip(names, seen.schema.types, strict=True))),
        null_columns=frozenset(map(column_name, seen.nulls)),
        content="table" if seen.rows else "nothing",
    )


class _SeenLines:
    """What the lines of a shard hold so far.

    nulls: keys that are null or absent somewhere.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.schema = pa.schema([])
        self.nulls: set[str] = set()
        self._large: set[KeyPath] = set()  # whole numbers that float64 may not hold

    def add(self, lines: Lines) -> None:
        """Add lines. Raises `InputError`."""
        inferred, table = infer_values(lines)
        schema = merged_schema(self.schema, inferred)
        if schema is None:
            lines.refuse(self.schema)
        if _beyond(joined_leaves(table, pa.types.is_integer)):
            for path, values in leaves_of(table):
                if pa.types.is_integer(values.type) and _beyond(values):
                    self._large.add(path)
        if self.rows:
            self.nulls.update(set(inferred.names).symmetric_difference(self.schema.names))
        columns = zip(inferred.names, table.columns, strict=True)
        nulls = (name for name, column in columns if column.null_count)
        self.nulls.update(nulls)
        self.schema = schema
        self.rows += table.num_rows

    def turned_fractions(self) -> bool:
        """Check for whole numbers that were read before fractions of the same key."""
        if not self._large:
            return False
        floats = (
            path
            for field in self.schema
            for path, type_ in leaf_types((field.name,), field.type)
            if pa.types.is_floating(type_)
        )
        return not self._large.isdisjoint(floats)


def _beyond(values: pa.Array) -> bool:
    bounds = pc.min_max(values).as_py()
    return max(bounds["max"] or 0, -(bounds["min"] or 0)) > EXACT


@dataclass
class JsonlChunk:
    """Whole lines of a JSON lines file."""

    shard: Shard
    lines: Lines
    first_row: int

    @cached_property
    def _ends(self) -> I64:
        return records.record_ends(records.as_bytes(self.lines.data), _NO_QUOTES)

    @cached_property
    def rows(self) -> int:
        """The number of objects."""
        return len(self._ends)

    def sizes(self) -> I32 | None:
        """Return the bytes of every line; None if there are blank lines or a byte-order mark, or a
        key must be renamed.
        """
        lines = self.lines
        copied = (
            lines.data is lines.raw
            and not lines.location.after_bom
            and b"__DOT__" not in lines.data
            and self.shard.file_type.format.name == "jsonl"
        )
        if copied:
            return np.diff(self._ends, prepend=0).astype(np.int32)
        return None

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the keys as columns of the shard's types; an absent key is null."""
        if columns is None:
            selected = self.shard.schema.names
        else:
            selected = list(columns)
        schema = pa.schema([self.shard.schema.field(name) for name in selected])
        return _parse_keys(self.lines, schema)


def chunks(shard: Shard, chunk_bytes: int = CHUNK_BYTES) -> Iterator[JsonlChunk]:
    """Iterate over the objects of a shard in file order."""
    first_row = 0
    for lines in _lines(shard.path, shard.file_type, chunk_bytes):
        chunk = JsonlChunk(shard, lines, first_row)
        if chunk.rows:
            yield chunk
        first_row += chunk.rows


def _blank_lines(data: records.Data, ends: I64) -> npt.NDArray[np.bool_]:
    """Mask the lines that hold nothing but white space; every other line is an object."""
    array = records.as_bytes(data)
    starts = np.append(0, ends[:-1])
    if (array[starts] == ord("{")).all():
        return np.zeros(len(ends), np.bool_)
    visible = np.isin(array, _WHITE, invert=True)
    if bytes(data[: len(BOM)]) == BOM:
        visible[: len(BOM)] = False
    return np.asarray(np.diff(np.cumsum(visible)[ends - 1], prepend=0) == 0)


def _parse_keys(lines: Lines, schema: pa.Schema) -> pa.Table:
    """Parse lines as columns, whose keys may be written with __DOT__ for a dot."""
    keys = {name: [name] for name in schema.names}
    dotted: set[bytes] = set()
    if b"__DOT__" in lines.data:
        dotted = set(_DOTTED_KEY.findall(lines.data))
    for key in sorted({match.decode("utf-8", "replace") for match in dotted}):
        keys.get(column_name(key), []).append(key)
    types = zip(keys.values(), schema.types, strict=True)
    table = parse(lines, pa.schema([(key, type_) for raw, type_ in types for key in raw]))
    if not dotted:
        return table
    columns = [pc.coalesce(*(table[key] for key in raw)) for raw in keys.values()]
    return pa.Table.from_arrays(columns, schema=schema)


def parse_block(lines: Lines, schema: pa.Schema) -> pa.Table:
    """Parse lines as columns of any types that hold what JSON has in them.

    Raises `InputError`, and `pa.ArrowInvalid` if a value does not fit its type.
    """
    if all(_of_json(type_) for type_ in schema.types):
        nullable = pa.schema(list(zip(schema.names, schema.types, strict=True)))
        try:
            return in_schema(_parse_keys(lines, nullable), Target.of(schema))
        except InputError:
            inferred = _fields_of(infer(lines), schema)
            if inferred.equals(nullable):
                raise
    else:
        inferred = _fields_of(infer(lines), schema)
    table = _parse_keys(lines, inferred)
    columns = []
    for column, type_ in zip(table.columns, schema.types, strict=True):
        columns.append(cast_chunks(column, type_))
    return in_schema(pa.table(columns, names=schema.names), Target.of(schema))


def _fields_of(inferred: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """Return the columns of a schema with the types that were found for their keys."""
    types = {column_name(field.name): field.type for field in inferred}
    return pa.schema([(name, types.get(name, pa.null())) for name in schema.names])


def _of_json(type_: pa.DataType) -> bool:
    """Check whether the parser makes values of a type."""
    if pa.types.is_list(type_) or pa.types.is_struct(type_):
        return all(_of_json(type_.field(index).type) for index in range(type_.num_fields))
    return type_ in _JSON_TYPES


class JsonCode(FormatCode):
    """Reads JSON lines and JSON arrays, and writes lines."""

    joined_by_bytes = True

    def survey(
        self,
        path: Path,
        name: str,
        file_type: FileType,
        signature: Sequence[str] | None = None,
        dialect: TextDialect = PLAIN,
    ) -> Shard:
        """Find columns and types by reading all of the file."""
        return survey(path, name, file_type)

    def read(
        self,
        shard: Shard,
        columns: Sequence[str] | None = None,
        *,
        coded: Sequence[str] = (),
        most_rows: int | None = None,
    ) -> Iterator[JsonlChunk]:
        """Read whole lines."""
        return chunks(shard)

    def blocks(self, shard: Shard) -> list[Span]:
        """Cut uncompressed lines into byte ranges; a compressed file and an array are one block."""
        if shard.file_type.compression != "none" or shard.file_type.format.name == "json":
            return super().blocks(shard)
        blocks = _blocks(shard.path, shard.file_type, BLOCK_BYTES)
        return cut_blocks(((data, _NO_QUOTES) for data in blocks), 0, _blank_lines)

    def read_block(self, block: BlockRead, target: Target) -> pa.Table:
        """Parse a byte range of lines, or a whole array."""
        with block_bytes(block) as data:
            if block.file_type.format.name == "json":
                lines = _array_as_lines(block.path, data)
            else:
                location = Location(block.path, offset=block.offset)
                lines = Lines.of(data.removeprefix(BOM), location)
            return parse_block(lines, target.schema)

    def open_sink(self, file: HashingFile, settings: WriteSettings) -> TextSink:
        """Write every row as one line."""
        return TextSink(file, b"", render, settings.file_type.compression)


CODE = JsonCode()


def render(table: pa.Table) -> bytes:
    """Format rows as JSON lines, every column present."""
    return _frame(table).write_ndjson().encode()


def _frame(table: pa.Table) -> pl.DataFrame:
    """Convert a table for polars, which would rename a column without a name."""
    import polars as pl

    frame = pl.DataFrame(table.rename_columns([str(index) for index in range(table.num_columns)]))
    frame.columns = table.column_names
    return frame


def _lines(path: Path, file_type: FileType, chunk_bytes: int) -> Iterator[Lines]:
    """Iterate over whole lines, without a byte-order mark."""
    if file_type.format.name == "json":
        with reading(path), open_bytes(path, file_type.compression) as stream:
            data = read_all_bytes(path, stream, file_type.compression)
        if data.strip():
            yield _array_as_lines(path, data)
        return
    first = 1
    for block in _blocks(path, file_type, chunk_bytes):
        after_bom = first == 1 and block.startswith(BOM)
        text = block
        if after_bom:
            text = block.removeprefix(BOM)
        yield Lines.of(text, Location(path, first, after_bom=after_bom))
        first += block.count(b"\n")


def _blocks(path: Path, file_type: FileType, chunk_bytes: int) -> Iterator[bytes]:
    """Iterate over whole lines of a file of lines."""
    with reading(path), open_bytes(path, file_type.compression) as stream:
        incomplete = b""
        while block := stream.read(chunk_bytes):
            data = incomplete + block
            cut = data.rfind(b"\n") + 1
            if cut:
                yield data[:cut]
            incomplete = data[cut:]
            if len(incomplete) > LARGEST_RECORD:
                raise too_long(path)
    if incomplete.strip():
        yield incomplete


def _array_as_lines(path: Path, data: bytes) -> Lines:
    """Return the content of a .json file as lines: of an array of objects, or as they are."""
    text = data.removeprefix(BOM)
    if text.lstrip()[:1] != b"[":
        return Lines.of(text, Location(path))
    try:
        lines = array_as_lines(text)
    except ValueError as error:
        raise InputError(
            f"is not a JSON array of objects, {error}", path=path, remedy="correct the file"
        ) from error
    return Lines.of(lines, Location(path, unit="row"))
