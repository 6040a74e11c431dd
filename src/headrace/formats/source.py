"""Find the files of a source, survey them, read them, and unify their schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from headrace.arrays import I32
from headrace.errors import InputError, SettingsError
from headrace.formats import arrow, delimited, jsonl, parquet, records
from headrace.formats.detect import detect, holds_nothing, open_bytes, reading
from headrace.formats.listing import list_files
from headrace.formats.partitions import PartitionChunk, in_partition, stored
from headrace.formats.schema import as_texts, hint, supertype
from headrace.formats.shard import Chunk, Shard

Drift = Literal["error", "widen"]
COPY_BYTES = 16 << 20  # bytes copied at once
_ONE_KIND = "give files of one kind at a time, e.g. by a glob pattern"


def find_files(source: Sequence[str | Path]) -> list[tuple[Path, str]]:
    """List the files of a source and their names relative to its root, sorted by name, each once.

    Each entry is a file, a directory (its data files, not its subdirectories') or a glob pattern. Files whose names
    begin with "." or "_" and files of other kinds are not data. Raises `InputError` if an entry matches no file.
    """
    listing = list_files(source)
    return [(listing.path(place), name) for place, name in enumerate(listing.names)]


def read_signature(path: Path) -> list[str]:
    """Read column names from a file of one comma-separated line."""
    try:
        lines = [line for line in path.read_text("utf-8-sig").split("\n") if line.strip()]
    except OSError as error:
        raise SettingsError(f"{path}: the signature file cannot be read ({error.strerror}); check the path") from error
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{path}: the signature file is not UTF-8 (byte {error.start}); convert it to UTF-8"
        ) from error
    if len(lines) != 1:
        raise SettingsError(
            f"{path}: a signature is one line of comma-separated column names, this has {len(lines)} lines"
        )
    return [name.strip() for name in lines[0].split(",")]


def survey(
    path: Path, name: str, signature: Sequence[str] | None = None, partitions: Mapping[str, pa.DataType] | None = None
) -> Shard:
    """Find format, columns and types of one file, without reading its rows (except for JSON).

    A file without content is a shard of content "nothing", unless a signature names its columns.
    partitions: `partition_types` of the source, for columns that names hold.
    """
    with reading(path):
        kind = detect(path)
        named = signature is not None and kind.format in ("csv", "tsv")
        if not named and holds_nothing(path, kind):
            shard = Shard.unread(path, name, kind)
        elif kind.format in ("csv", "tsv"):
            shard = delimited.survey(path, name, kind, signature)
        elif kind.format == "parquet":
            shard = parquet.survey(path, name, kind)
        else:
            shard = (arrow if kind.format == "arrow" else jsonl).survey(path, name, kind)
    return in_partition(shard, partitions)


def read_chunks(shard: Shard, columns: Sequence[str] | None = None, *, coded: Sequence[str] = ()) -> Iterator[Chunk]:
    """Iterate over the rows of a shard in file order, with O(chunk) memory.

    columns: the columns that Parquet chunks decode. coded: text columns that may come as dictionaries if that is
    cheaper.
    """
    if shard.partition:
        own = None if columns is None else [name for name in columns if name not in shard.partition]
        if own == []:  # the rows must still be counted
            own = [name for name in shard.schema.names if name not in shard.partition][:1]
        coded = [name for name in coded if name not in shard.partition]
        for chunk in read_chunks(stored(shard), own, coded=coded):
            yield PartitionChunk(chunk, shard, chunk.first_row)
        return
    if shard.content == "nothing":
        pass
    elif shard.kind.format in ("csv", "tsv"):
        yield from delimited.chunks(shard)
    elif shard.kind.format == "parquet":
        yield from parquet.chunks(shard, columns, coded=coded)
    elif shard.kind.format == "arrow":
        yield from arrow.chunks(shard, columns)
    else:
        yield from jsonl.chunks(shard)
    unchanged(shard)


def copied_records(shard: Shard, sizes: I32, chunk_bytes: int = COPY_BYTES) -> Iterator[pa.LargeBinaryArray]:
    """Iterate over the bytes of each row in file order, in chunks; the last row gets a line end if it has none.

    sizes: bytes of every row, int32 [rows]. Raises `InputError` if the file no longer has these rows.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    newline = shard.dialect.newline.encode() if shard.dialect is not None else b"\n"
    row = 0
    with reading(shard.path), open_bytes(shard.path, shard.kind.compression) as stream:
        if shard.dialect is not None and shard.dialect.header_bytes:
            stream.read(shard.dialect.header_bytes)
        while row < len(ends):
            start = int(ends[row - 1]) if row else 0
            stop_row = max(row + 1, int(np.searchsorted(ends, start + chunk_bytes, side="right")))
            size = int(ends[stop_row - 1]) - start
            data = stream.read_buffer(size)
            bounds = ends[row:stop_row] - start
            if len(data) == size and stop_row == len(ends) and data[-1:].to_pybytes() != b"\n":
                data = pa.py_buffer(data.to_pybytes() + newline)
                bounds = np.append(bounds[:-1], len(data))
            if len(data) < size:
                raise InputError(f"{shard.path}: is shorter than it was; run again once it is complete")
            yield records.slices(data, bounds)
            row = stop_row


def unchanged(shard: Shard) -> None:
    """Raise `InputError` if the file has changed since it was surveyed."""
    stat = shard.path.stat()
    if (stat.st_size, stat.st_mtime_ns) != (shard.size, shard.mtime_ns):
        raise InputError(f"{shard.path}: changed while it was read; run again once it is complete")


def with_content(shards: Sequence[Shard]) -> list[Shard]:
    """Select the shards that have columns. Raises `InputError` if there is none."""
    found = [shard for shard in shards if shard.content != "nothing"]
    if not found:
        raise InputError(
            f"{shards[0].path}: is empty, and no other file of the source holds anything; give the files that have rows"
        )
    return found


def told_empty(names: Sequence[str], files: int, what: str = "source files") -> str:
    """Return a sentence about the files of a source that have no rows."""
    shown = ", ".join(names[:5]) + (f", … ({len(names):,} in all)" if len(names) > 5 else "")
    verbs = "has no rows and is" if len(names) == 1 else "have no rows and are"
    return f"{len(names):,} of {files:,} {what} {verbs} skipped: {shown}"


def common_schema(shards: Sequence[Shard], drift: Drift, *, widen_by: str | None = None) -> pa.Schema:
    """Find the common schema of all shards; columns that cannot hold nulls in any shard are declared so.

    drift="error": names, order and types must be those of the first shard. drift="widen": columns are matched by name,
    absent ones are null, types become the smallest that loses nothing. Whole numbers mixed with text become their
    decimal text, so 7 and "007" stay distinct. JSON shards always match by name.
    widen_by: how the caller's user sets drift="widen", if possible. Shards of content "nothing" fit any schema. Raises
    `InputError` that names both files, or if no shard has columns.
    """
    shards = with_content(shards)
    first = shards[0]
    fields = {field.name: field.type for field in first.schema}
    seen_in = dict.fromkeys(fields, first)
    nulls = set(first.null_columns)
    by_name = drift == "widen" or all(shard.kind.format in ("jsonl", "json") for shard in shards)
    for shard in shards[1:]:
        for name in shard.partition.keys() ^ first.partition.keys():
            if name in first.schema.names and name in shard.schema.names:
                raise InputError(
                    f"{shard.path}: column {name} comes from {'its name' if name in shard.partition else 'the file'}, "
                    f"and that of {first.path} from {'its name' if name in first.partition else 'the file'}; give "
                    "such files apart, or leave the column out of the files"
                )
        if not by_name:
            _same_columns(first, shard, widen_by)
        for field in shard.schema:
            before = fields.get(field.name, field.type)
            kind = supertype(before, field.type)
            if kind is None and widen_by is not None:
                kind = as_texts(before, field.type)
            exact = before == field.type or pa.types.is_null(field.type) or pa.types.is_null(before)
            if kind is None or (drift == "error" and not exact):
                remedy = _ONE_KIND if kind is None or widen_by is None else f"use {widen_by} for a type that holds both"
                raise InputError(
                    f"{shard.path}: column {field.name} is {field.type}, in {seen_in[field.name].path} it is {before}; "
                    f"rewrite one of them, or {remedy}"
                )
            if field.name not in fields:
                nulls.add(field.name)
            fields[field.name] = kind
            seen_in.setdefault(field.name, shard)
        nulls |= shard.null_columns | (set(fields) - set(shard.schema.names))
    # A column of nulls only has no type of its own; text can hold it.
    typed = {name: pa.string() if pa.types.is_null(kind) else kind for name, kind in fields.items()}
    return pa.schema([pa.field(name, kind, nullable=name in nulls) for name, kind in typed.items()])


def fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert a shard's columns to the common schema: reordered, widened, absent ones null."""
    if table.schema.equals(schema):
        return table
    places = {name: place for place, name in enumerate(table.column_names)}  # Arrow would search all for each
    columns = []
    for field in schema:
        column = table.column(places[field.name]) if field.name in places else pa.nulls(table.num_rows, field.type)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _same_columns(first: Shard, other: Shard, widen_by: str | None) -> None:
    if other.schema.names == first.schema.names:
        return
    known, own = dict.fromkeys(first.schema.names), dict.fromkeys(other.schema.names)
    missing = [name for name in known if name not in own]
    extra = [name for name in own if name not in known]
    parts = [f"lacks {', '.join(missing)}"] if missing else []
    parts += [f"adds {', '.join(extra)}"] if extra else []
    what = "; ".join(parts) or "has its columns in another order"
    remedy = _ONE_KIND if widen_by is None else f"use {widen_by} to match columns by name"
    told = hint(first.schema.names)
    raise InputError(f"{other.path}: {what}, compared with {first.path}; correct it, or {remedy}{told}")
