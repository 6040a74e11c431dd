"""JSON lines, and JSON files that are one array of objects.

Types come from JSON itself: one pass over the whole shard finds them, so no later row can contradict an early guess.
A key that is absent is null. Rows that only change place keep their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.errors import InputError
from headrace.formats import records
from headrace.formats.delimited import column_name
from headrace.formats.detect import Kind, open_bytes
from headrace.formats.schema import supertype
from headrace.formats.shard import Shard

CHUNK_BYTES = 16 << 20
_NO_QUOTES = np.empty(0, np.int64)


def survey(path: Path, name: str, kind: Kind) -> Shard:
    """Columns and types of a JSON shard, found by reading all of it. A file of 0 bytes is an empty shard."""
    stat = path.stat()
    fields: dict[str, pa.DataType] = {}
    nulls: set[str] = set()
    rows = 0
    for data in _blocks(path, kind, 0):
        frame = _parse(path, _without_blank(data), None, rows)
        table = frame.to_arrow()
        for column in table.schema:
            before = fields.get(column.name, pa.null())
            kind_now = supertype(before, column.type)
            if kind_now is None:
                raise InputError(
                    f"{path}: key {column.name!r} is {before} in one row and {column.type} in another (near row {rows + 1}); "
                    f"write one type throughout"
                )
            fields[column.name] = kind_now
            if table[column.name].null_count or (rows and before == pa.null()):
                nulls.add(column.name)
        nulls.update(set(fields) - set(table.column_names))
        rows += frame.height
    names = [column_name(raw) for raw in fields]
    if len(set(names)) != len(names):
        raise InputError(f"{path}: two keys are the same column once __DOT__ is read as a dot; rename one of them")
    return Shard(
        path=path,
        name=name,
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        kind=kind,
        schema=pa.schema(list(zip(names, fields.values(), strict=True))),
        null_columns=frozenset(column_name(raw) for raw in nulls),
    )


@dataclass
class JsonlChunk:
    """Whole lines of a JSON lines file."""

    shard: Shard
    data: bytes
    first_row: int
    blank_lines: bool = False

    @cached_property
    def _ends(self) -> records.I64:
        return records.record_ends(records.as_bytes(self.data), _NO_QUOTES)

    @cached_property
    def rows(self) -> int:
        """Number of objects."""
        return len(self._ends)

    def sizes(self) -> records.I32 | None:
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
        data = _without_blank(block)
        chunk = JsonlChunk(shard, data, first_row, data is not block)
        if chunk.rows:
            yield chunk
        first_row += chunk.rows


def parse_block(data: bytes, path: Path, schema: pa.Schema, first_row: int = 0) -> pa.Table:
    """Lines as columns of the given types."""
    raw = {name.replace(".", "__DOT__") if b"__DOT__" in data else name: name for name in schema.names}
    empty = pl.DataFrame(schema.empty_table())
    polars_schema = {key: empty.schema[name] for key, name in raw.items()}
    frame = _parse(path, data, polars_schema, first_row)
    return frame.select([pl.col(key).alias(name) for key, name in raw.items()]).to_arrow().cast(schema)


def render(table: pa.Table) -> bytes:
    """Rows as JSON lines, every column present."""
    return pl.DataFrame(table).write_ndjson().encode()


def _blocks(path: Path, kind: Kind, chunk_bytes: int) -> Iterator[bytes]:
    chunk_bytes = chunk_bytes or CHUNK_BYTES
    try:
        with open_bytes(path, kind.compression) as stream:
            if kind.format == "json":
                data = bytes(stream.read())
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
    except OSError as error:
        raise InputError(f"{path}: {error}; the file is cut or damaged, fetch it again") from error
    if rest.strip():
        yield rest


def _array_as_lines(path: Path, data: bytes) -> Iterator[bytes]:
    text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] != b"[":
        yield data
        return
    try:
        yield pl.read_json(text, infer_schema_length=None).write_ndjson().encode()
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{path}: is no JSON array of objects ({error}); correct the file") from error


def _without_blank(data: bytes) -> bytes:
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not (b"\n\n" in data or b"\n\r\n" in data or data[:1] in b"\r\n"):
        return data
    return records.without_blank(data, records.record_ends(records.as_bytes(data), _NO_QUOTES))


def _parse(path: Path, data: bytes, schema: dict[str, Any] | None, first_row: int) -> pl.DataFrame:
    try:
        return pl.read_ndjson(data, schema=schema, infer_schema_length=None)
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"{path}: near row {first_row + 1}: not JSON lines of one type per key ({str(error).splitlines()[0]}); "
            f"correct the file"
        ) from error
