"""Read and write JSON lines, and read JSON files that are one array of objects.

Types come from JSON itself. One pass over the whole shard finds them, so no later row can
contradict an early guess. A key that is absent is null. Rows that are only moved keep their bytes.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from headrace.arrays import I32, I64
from headrace.errors import InputError, StreamError
from headrace.formats import records
from headrace.formats.json_text import (
    array_as_lines,
    arrays_of,
    first_repeated,
    key_bound,
    values_found,
)
from headrace.formats.registry import (
    LARGEST_RECORD,
    FileType,
    open_bytes,
    read_whole,
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
from headrace.formats.types import Target, is_text, plain, supertype
from headrace.formats.write import BLOCK_BYTES, HashingFile, TextSink, block_bytes, cut_blocks

if TYPE_CHECKING:
    import polars as pl
    from polars._typing import PolarsDataType

CHUNK_BYTES = 16 << 20
_WHITE = np.frombuffer(b" \t\r\n", np.uint8)
_NO_QUOTES = np.empty(0, np.int64)
_BLANK_LINES = re.compile(rb"^[ \t\r]*\n", re.MULTILINE)
_BLANK_INSIDE = re.compile(rb"\n[ \t\r]*\n")
_DOTTED_KEY = re.compile(rb'"((?:[^"\\]|\\.)*__DOT__(?:[^"\\]|\\.)*)"\s*:')
_EXACT = 2**53  # up to this, whole numbers are exact as float64
# as the value of a key, or in its list
_WHOLE = rb'"%s"\s*:\s*(?:\[(?:[^"{}:]*[\[,\s])?)?-?\d{16,}\s*[],}]'


class _Repeats(InputError):
    """An object inside a row repeats a key."""


def _line_of(block: bytes, row: int) -> int:
    """Return the line of a row of a block, from 1; blank lines are no rows."""
    visible = (
        number for number, line in enumerate(block.split(b"\n"), start=1) if line.strip(b" \t\r")
    )
    return next(itertools.islice(visible, row, None))


def _common_type(before: pa.DataType, now: pa.DataType, largest: int) -> pa.DataType | None:
    """Return the type of both; None if a value would be lost. largest: of the whole numbers."""
    common_type = supertype(before, now)
    if common_type is None and {before, now} == {pa.int64(), pa.float64()} and largest <= _EXACT:
        return pa.float64()
    return common_type


def survey(path: Path, name: str, file_type: FileType) -> Shard:  # noqa: PLR0914 - one pass
    """Find columns and types of a JSON shard by reading all of it.

    A file of 0 bytes is an empty shard.
    """
    shard = Shard.unread(path, name, file_type)
    fields: dict[str, pa.DataType] = {}
    nulls: set[str] = set()
    largest: dict[str, int] = {}
    rows = lines = 0
    for block in _blocks(path, file_type, CHUNK_BYTES):
        data = _without_blank(block if lines else block.removeprefix(BOM))
        try:
            frame = _parse(path, data, None, rows)
            _check_schema(path, frame.schema, rows)
            table = frame.to_arrow()
            repeated = key_bound(records.as_bytes(data)) > values_found(table) and first_repeated(
                data
            )
        except _Repeats:
            repeated = first_repeated(data)
        if repeated:
            at, key = repeated
            row = data.count(b"\n", 0, at)
            in_lines = file_type.format.name == "jsonl"
            raise InputError(
                "the key appears twice in an object, and readers take different values",
                path=path,
                row=f"line {lines + _line_of(block, row)}" if in_lines else rows + row + 1,
                column=key,
                remedy="leave one of them",
            )
        _check_numbers(path, table, data, rows)
        _check_texts(path, table.schema, data, rows)
        for column in table.schema:
            if pa.types.is_integer(column.type):
                bounds = pc.min_max(table[column.name]).as_py()
                largest[column.name] = max(
                    largest.get(column.name, 0), *(abs(bound or 0) for bound in bounds.values())
                )
            before = fields.get(column.name, pa.null())
            common_type = _common_type(before, column.type, largest.get(column.name, 0))
            if common_type is None:
                raise InputError(
                    f"it is {before} in another row",
                    path=path,
                    row=f"near row {rows + 1}",
                    column=column.name,
                    value=str(column.type),
                    remedy="write one type throughout",
                )
            fields[column.name] = common_type
            if table[column.name].null_count or (rows and before == pa.null()):
                nulls.add(column.name)
        nulls.update(set(fields) - set(table.column_names))
        rows += table.num_rows
        lines += block.count(b"\n")
    if rows and not fields:
        raise InputError(
            f"none of its {rows} rows has a key",
            path=path,
            remedy="remove the file, or write a key into a row",
        )
    names = [column_name(raw) for raw in fields]
    if len(set(names)) != len(names):
        raise InputError(
            "two keys are the same column once __DOT__ is read as a dot",
            path=path,
            remedy="rename one of them",
        )
    return replace(
        shard,
        schema=pa.schema(list(zip(names, fields.values(), strict=True))),
        null_columns=frozenset(map(column_name, nulls)),
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
        """The number of objects."""
        return len(self._ends)

    def sizes(self) -> I32 | None:
        """Return the bytes of every line; None if there are blank lines or a key must be
        renamed.
        """
        copied = (
            not self.blank_lines
            and b"__DOT__" not in self.data
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
        return parse_block(self.data, self.shard.path, schema, self.first_row)


def chunks(shard: Shard, chunk_bytes: int = CHUNK_BYTES) -> Iterator[JsonlChunk]:
    """Iterate over the objects of a shard in file order."""
    first_row = lines = 0
    for block in _blocks(shard.path, shard.file_type, chunk_bytes):
        data = _without_blank(block if lines else block.removeprefix(BOM))
        lines += block.count(b"\n")
        chunk = JsonlChunk(shard, data, first_row, data is not block)
        if chunk.rows:
            yield chunk
        first_row += chunk.rows


def _blank_lines(data: records.Data, ends: I64) -> npt.NDArray[np.bool_]:
    """Mask the lines that hold nothing but white space; every other line is an object."""
    visible = np.isin(records.as_bytes(data), _WHITE, invert=True)
    if bytes(data[: len(BOM)]) == BOM:
        visible[: len(BOM)] = False
    return np.asarray(np.diff(np.cumsum(visible)[ends - 1], prepend=0) == 0)


def parse_block(data: bytes, path: Path, schema: pa.Schema, first_row: int = 0) -> pa.Table:
    """Parse lines as columns of the given types."""
    import polars as pl

    raw = {name: [name] for name in schema.names}
    dotted: set[bytes] = set()
    if b"__DOT__" in data:
        dotted = set(_DOTTED_KEY.findall(data))
    for key in sorted({match.decode("utf-8", "replace") for match in dotted}):
        raw.get(column_name(key), []).append(key)
    kinds = dict(zip(schema.names, _frame(schema.empty_table()).dtypes, strict=True))
    polars_schema = {key: kinds[name] for name, keys in raw.items() for key in keys}
    frame = _parse(path, data, polars_schema, first_row)
    return (
        frame.select([pl.coalesce(keys).alias(name) for name, keys in raw.items()])
        .to_arrow()
        .cast(schema)
    )


class JsonCode(FormatCode):
    """Reads JSON lines and JSON arrays, and writes lines."""

    joined_by_bytes = True

    def survey(
        self, path: Path, name: str, file_type: FileType, signature: Sequence[str] | None = None
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
        require_polars(block.path)
        with block_bytes(block) as data:
            if block.file_type.format.name == "json":
                lines = b""
                if data.strip():
                    lines = _array_as_lines(block.path, data)
            else:
                lines = _without_blank(data.removeprefix(BOM))
            return parse_block(lines, block.path, target.schema)

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


def _blocks(path: Path, file_type: FileType, chunk_bytes: int) -> Iterator[bytes]:
    with reading(path), open_bytes(path, file_type.compression) as stream:
        if file_type.format.name == "json":
            data = read_whole(path, stream, file_type.compression)
            if data.strip():
                yield _array_as_lines(path, data)
            return
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


def _array_as_lines(path: Path, data: bytes) -> bytes:
    text = data.removeprefix(BOM)
    if text.lstrip()[:1] != b"[":
        return data
    try:
        return array_as_lines(text)
    except ValueError as error:
        raise InputError(
            f"is not a JSON array of objects, {error}", path=path, remedy="correct the file"
        ) from error


def _without_blank(data: bytes) -> bytes:
    """Remove blank lines."""
    array = records.as_bytes(data)
    line_starts = np.flatnonzero(array[:-1] == records.NEWLINE) + 1
    if not data[:1].isspace() and not np.isin(array[line_starts], _WHITE).any():
        return data
    if _BLANK_INSIDE.search(data) or _BLANK_LINES.match(data):
        return _BLANK_LINES.sub(b"", data)
    return data


def _check_schema(path: Path, schema: Mapping[str, PolarsDataType], first_row: int) -> None:
    """Raise `InputError` on keys that crash polars or Arrow as names, and on whole numbers beyond
    64 bits.

    polars reads half of a surrogate pair as a zero byte.
    """
    import polars as pl

    for key, type_ in itertools.chain.from_iterable(itertools.starmap(_fields, schema.items())):
        if "\0" in key:
            raise InputError(
                "its name holds a zero byte or half a surrogate pair",
                path=path,
                row=f"near row {first_row + 1}",
                column=key,
                remedy="rename it",
            )
        if type_ in (pl.Int128, pl.UInt64):
            raise _lossy(path, key, first_row)


def _fields(key: str, type_: PolarsDataType) -> Iterator[tuple[str, PolarsDataType]]:
    """Iterate over a type and those inside it, each with the nearest key."""
    import polars as pl

    yield key, type_
    if isinstance(type_, pl.Struct):
        for field in type_.fields:
            yield from _fields(field.name, field.dtype)
    elif isinstance(type_, pl.List):
        yield from _fields(key, type_.inner)


def _lossy(path: Path, key: str, first_row: int) -> InputError:
    return InputError(
        "it holds whole numbers that do not fit 64 bits, or 53 beside fractions",
        path=path,
        row=f"near row {first_row + 1}",
        column=key,
        remedy="write them as text",
    )


def _check_numbers(path: Path, table: pa.Table, data: bytes, first_row: int) -> None:
    """Check that no whole number lost digits by being stored as a float."""
    every = (
        leaf
        for name in table.column_names
        for leaf in arrays_of(name, table[name].combine_chunks())
    )
    for key, values, _ in every:
        if (
            pa.types.is_floating(values.type)
            and pc.any(pc.greater_equal(pc.abs(values), _EXACT)).as_py()
        ):
            # an escaped key may be any key
            if b"\\" in data:
                written = b'[^"]*'
            else:
                written = re.escape(key.encode())
            if re.search(_WHOLE % written, data):
                raise _lossy(path, key, first_row)


def _check_texts(path: Path, schema: pa.Schema, data: bytes, first_row: int) -> None:
    """Check that text was written as text: among texts, polars also reads numbers as text, Arrow
    does not.
    """
    texts = pa.schema(
        [(field.name, _as_json_type(field.type)) for field in schema if _holds_text(field.type)]
    )
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
            f"it has values of more than one type ({str(error).splitlines()[0]})",
            path=path,
            row=f"near row {first_row + 1}",
            column=None if key is None else key[1],
            remedy="write one type throughout",
        ) from error


def _holds_text(type_: pa.DataType) -> bool:
    if pa.types.is_nested(type_):
        return any(_holds_text(type_.field(index).type) for index in range(type_.num_fields))
    return is_text(type_)


def _as_json_type(type_: pa.DataType) -> pa.DataType:
    """Translate a type for Arrow's JSON reader, which has no large lists and texts."""
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _as_json_type(field.type)) for field in type_])
    if pa.types.is_large_list(type_):
        return pa.list_(_as_json_type(type_.value_type))
    return plain(type_)


def _parse(path: Path, data: bytes, schema: dict[str, Any] | None, first_row: int) -> pl.DataFrame:
    import polars as pl

    if not data:
        return pl.DataFrame(schema=schema)
    try:
        frame = pl.read_ndjson(data, schema=schema, infer_schema_length=None)
    except pl.exceptions.DuplicateError as error:
        raise _Repeats(
            "a key appears twice in an object",
            path=path,
            row=f"near row {first_row + 1}",
            remedy="leave one of them",
        ) from error
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InputError(
            f"not JSON lines of one type per key ({str(error).splitlines()[0]})",
            path=path,
            row=f"near row {first_row + 1}",
            remedy="correct the file",
        ) from error
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    if frame.height != lines:
        raise InputError(
            f"{lines} lines hold {frame.height} objects",
            path=path,
            row=f"near row {first_row + 1}",
            remedy="write one object per line",
        )
    return frame


_polars_ran = False  # when this process forked
_polars_is_lost = False  # in a process forked from one where polars ran


def require_polars(path: Path) -> None:
    """Raise `StreamError` if polars would wait forever, because its threads do not survive a fork.

    A DataLoader forks its workers by default on many platforms, and its process has often used
    polars before: it prepared the dataset, or read JSON lines itself.
    """
    if _polars_is_lost:
        raise StreamError(
            "JSON lines cannot be read in a process that was forked after its parent had"
            " used polars, whose threads do not survive a fork",
            path=path,
            remedy=(
                'start workers with multiprocessing_context="spawn" or "forkserver", or read'
                " with num_workers=0"
            ),
        )


def _before_fork() -> None:
    global _polars_ran
    try:
        tasks = list(Path("/proc/self/task").iterdir())
    except OSError:  # no such system files; refusing is better than waiting forever
        _polars_ran = True
        return
    for task in tasks:
        try:
            name = (task / "comm").read_text().strip()
        except OSError:  # that thread has ended
            continue
        _polars_ran |= name.startswith("polars-") and name[7:].isdigit()


def _after_fork() -> None:
    global _polars_is_lost
    _polars_is_lost |= _polars_ran


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
