"""Read columns from directory names: `year=2024/place=Ghent/part.parquet` is of the year 2024.

This is the layout of Hive, which Spark, Polars, DuckDB and Arrow write too. Keys and values are
percent-encoded in names, and `__HIVE_DEFAULT_PARTITION__` is a missing value. A column is int64 if
all of its values are whole numbers that fit, without leading zeros; else it is text, unless its
type is declared. The values of a shard depend on its own name only; the types depend on the names
of other shards too. If the files themselves hold a column, it is read from them and its directory
names are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from headrace.errors import InputError
from headrace.formats.names import partition_of
from headrace.formats.shard import ChunkInForm, Shard
from headrace.formats.text_columns import cast_text

_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")
_INT64 = range(-(1 << 63), 1 << 63)


def partition_types(
    names: Iterable[str], declared: Mapping[str, pa.DataType] | None = None
) -> dict[str, pa.DataType]:
    """Find the columns in the names of shards, and their types.

    declared: types of columns, which may be others. Raises `InputError` if some names lack a
    column, or a value is not of its declared type.
    """
    directories = dict.fromkeys(name.rpartition("/")[0] for name in names)
    if not any("=" in directory for directory in directories):
        return {}
    columns_of = {directory: partition_of(f"{directory}/") for directory in directories}
    first = next(iter(columns_of))
    values: dict[str, dict[str, str]] = {key: {} for key in columns_of[first]}
    for directory, columns in columns_of.items():
        if columns.keys() != values.keys():
            key = min(columns.keys() ^ values.keys())
            if key in columns:
                has, lacks = (directory, first)
            else:
                has, lacks = (first, directory)
            raise InputError(
                f"{lacks or '.'} has no such column in its name",
                path=has or ".",
                column=key,
                remedy="give files that have the same columns in the names of their directories",
            )
        for key, value in columns.items():
            if value is not None:
                values[key].setdefault(value, directory)
    types = {}
    for key, texts in values.items():
        if declared is not None and key in declared:
            types[key] = declared[key]
            _check_declared(key, texts, declared[key])
        elif texts and all(_WHOLE.fullmatch(text) and int(text) in _INT64 for text in texts):
            types[key] = pa.int64()
        else:
            types[key] = pa.string()
    return types


def _check_declared(key: str, directory_of: Mapping[str, str], type_: pa.DataType) -> None:
    """Raise `InputError` for the first value of a column that its declared type cannot hold."""
    for text, directory in directory_of.items():
        try:
            cast_text(pa.chunked_array([[text]], pa.string()), type_)
        except pa.ArrowInvalid:
            raise InputError(
                f"it is declared {type_}, which cannot hold it",
                path=directory,
                column=key,
                value=text,
                remedy="rename the directory, or declare another type",
            ) from None


def in_partition(shard: Shard, types: Mapping[str, pa.DataType] | None) -> Shard:
    """Add the columns of its name to a shard, after those of the file.

    types: of all shards of the source.
    """
    if not types or shard.content == "nothing":
        return shard
    in_name = {
        key: text for key, text in partition_of(shard.name).items() if key not in shard.schema.names
    }
    fields = []
    for key in in_name:
        if key in types:
            fields.append(pa.field(key, types[key]))
    in_name = {field.name: in_name[field.name] for field in fields}
    missing = {key for key, text in in_name.items() if text is None}
    return replace(
        shard,
        schema=pa.schema([*shard.schema, *fields]),
        null_columns=shard.null_columns | missing,
        partition=in_name,
    )


def ignored_names(types: Mapping[str, pa.DataType], read: Iterable[str]) -> list[str]:
    """Say which columns in names of directories are read from the files, which have them too.

    read: the columns that are read from names.
    """
    both = sorted(types.keys() - set(read))
    if not both:
        return []
    return [
        f"the files and the names of their directories have {', '.join(both)}; the values of the"
        " files are read"
    ]


def stored(shard: Shard) -> Shard:
    """Return the shard as stored in its file, without the columns of its name."""
    if not shard.partition:
        return shard
    schema = pa.schema([field for field in shard.schema if field.name not in shard.partition])
    return replace(
        shard, schema=schema, null_columns=shard.null_columns - set(shard.partition), partition={}
    )


def with_partition(
    table: pa.Table, rows: int, schema: pa.Schema, partition: Mapping[str, str | None]
) -> pa.Table:
    """Return rows with the columns of a schema: those of the partition from it, the others from the
    table.
    """
    columns = []
    for field in schema:
        if field.name not in partition:
            columns.append(table[field.name])
            continue
        text = partition[field.name]
        if text is None:
            columns.append(pa.nulls(rows, field.type))
        else:
            columns.append(pa.repeat(pa.scalar(text).cast(field.type), rows))
    fields = [
        field if field.name in partition else table.schema.field(field.name) for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


@dataclass
class PartitionChunk(ChunkInForm):
    """Consecutive rows of a file, with the columns of its name."""

    shard: Shard

    def sizes(self) -> None:
        """Return None, because the bytes of rows lack the columns of the name and so cannot be
        copied.
        """

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows as columns."""
        partition = self.shard.partition
        schema = self.shard.schema
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        file_columns = [name for name in schema.names if name not in partition]
        table = self.chunk.table(None if columns is None else file_columns)
        return with_partition(table, self.rows, schema, partition)
