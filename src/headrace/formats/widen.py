"""Read the rows of shards that differ in their columns as the columns of all shards.

`common_schema` finds the wide schema. `fit` is the only place where values are cast to it, for
chunks of source shards and for blocks of plain datasets alike. The cast loses nothing, or refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InputError
from headrace.formats.column_paths import known_columns, with_paths
from headrace.formats.shard import ChunkInForm, Shard
from headrace.formats.types import first_refused, is_list, to_python, type_word

_MOST_CHANGES = 40  # listed one by one


class RowsOf(NamedTuple):
    """Where rows come from, for messages: their file, and the number of the first from 0."""

    path: str | PathLike[str]
    first_row: int


class Layouts:
    """Numbers distinct schemas in the order in which they come."""

    def __init__(self) -> None:
        self.schemas: list[pa.Schema] = []
        self._numbers: dict[bytes, int] = {}
        self._last = -1

    def number(self, schema: pa.Schema) -> int:
        """Return the number of a schema."""
        last = self._last  # most follow one like them, and comparing is faster than encoding
        if last >= 0 and (schema is self.schemas[last] or schema.equals(self.schemas[last])):
            return last
        self._last = self._numbers.setdefault(schema.serialize().to_pybytes(), len(self.schemas))
        if self._last == len(self.schemas):
            self.schemas.append(schema)
        return self._last


def schema_as_read(shard_schema: pa.Schema, schema: pa.Schema) -> pa.Schema:
    """Return the columns that a shard is read as before they are fitted to the wide schema.

    These are its own, but a column of nulls is read as any type.
    """
    if pa.null() not in shard_schema.types:
        return shard_schema
    file_schema = []
    read = set(schema.names)
    for name, type_ in zip(shard_schema.names, shard_schema.types, strict=True):
        is_null = pa.types.is_null(type_) and name in read
        file_schema.append((name, schema.field(name).type if is_null else type_))
    return pa.schema(file_schema)


def same_columns(a: pa.Schema, b: pa.Schema) -> bool:
    """Check whether two schemas have the same names and types in the same order."""
    return a is b or bool(a.names == b.names and a.types == b.types)


def widened(shard: Shard, schema: pa.Schema) -> Shard:
    """Return a shard whose rows are read as the columns of a schema: absent ones are null."""
    if shard.content == "nothing" or same_columns(shard.schema, schema):
        return shard
    return replace(
        shard, schema=schema, file_schema=schema_as_read(shard.file_schema or shard.schema, schema)
    )


def narrowed(shard: Shard, columns: Sequence[str]) -> Shard:
    """Return a shard of which only these columns are read, in this order, as far as it has them.

    A path to a field of a struct becomes a column of this name.
    """
    chosen = known_columns(shard.schema, columns)
    return replace(
        shard,
        schema=with_paths(shard.schema, chosen),
        null_columns=shard.null_columns_of(chosen),
        file_schema=shard.file_schema or shard.schema,
    )


def fit(table: pa.Table, schema: pa.Schema, rows: int, source: RowsOf) -> pa.Table:
    """Convert columns to those of a wide schema: reordered, cast, and null where absent.

    A dictionary of values of the right type stays. rows: their number, as the table may have no
    columns. Raises `InputError` with file, row, column and value if a value has no place in the
    wide type.
    """
    index_of_name = {name: index for index, name in enumerate(table.column_names)}
    columns = []
    fields = []
    for wide in schema:
        if wide.name not in index_of_name:
            columns.append(pa.chunked_array([pa.nulls(rows, wide.type)]))
            fields.append(wide)
            continue
        column = table.column(index_of_name[wide.name])
        type_ = column.type
        if pa.types.is_dictionary(type_) and type_.value_type == wide.type:
            wide = wide.with_type(type_)
        columns.append(column if type_ == wide.type else _cast(column, wide, source))
        fields.append(wide)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _cast(column: pa.ChunkedArray, wide: pa.Field, source: RowsOf) -> pa.ChunkedArray:
    try:
        return cast_chunks(column, wide.type)
    except pa.ArrowInvalid:
        row = first_refused(column, partial(cast_chunks, type_=wide.type))
        raise InputError(
            f"{wide.type}, the type for all shards, cannot hold it",
            path=source.path,
            row=source.first_row + row + 1,
            column=wide.name,
            value=to_python(column[row]),
            remedy="correct the value, or write the column as one type in all shards",
        ) from None
    except pa.ArrowNotImplementedError as error:
        raise InputError(
            f"this pyarrow cannot convert it to {wide.type}, the type for all shards ({error})",
            path=source.path,
            column=wide.name,
            value=str(column.type),
            remedy="write the column as one type in all shards",
        ) from None


def cast_chunks(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Cast every chunk as `cast_array` does."""
    return pa.chunked_array([cast_array(chunk, type_) for chunk in column.chunks], type_)


def cast_array(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast values to a wide type, those inside by their own casts; a struct without fields to text,
    as `{}`.

    Arrow casts some nested arrays to invalid ones: structs of lists that gain a field, in lists,
    and lists of nulls.
    """
    before = array.type
    if before == type_:
        return array
    if pa.types.is_null(before) or pa.types.is_null(type_) or not len(array):
        return pa.nulls(len(array), type_)
    if before == pa.struct([]) and not pa.types.is_nested(type_):
        return pc.if_else(array.is_valid(), "{}", pa.scalar(None, pa.string())).cast(type_)
    if pa.types.is_struct(before):
        children = []
        for field_ in type_:
            index = before.get_field_index(field_.name)
            if index < 0:
                children.append(pa.nulls(len(array), field_.type))
            else:
                children.append(cast_array(array.field(index), field_.type))
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=array.is_null())
    return _cast_list(array, type_) if is_list(before) else array.cast(type_)


def _cast_list(array: pa.Array, type_: pa.DataType) -> pa.Array:
    before = array.type
    if pa.types.is_fixed_size_list(before):
        size = before.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        offsets = pa.array(np.arange(len(array) + 1) * size, pa.int32())
    else:
        first = array.offsets[0].as_py()
        values = array.values.slice(first, array.offsets[-1].as_py() - first)
        offsets = pc.subtract(array.offsets, pa.scalar(first, pa.int32()))
    inside = cast_array(values, type_.value_type)
    mask = array.is_null()
    if pa.types.is_fixed_size_list(type_):
        return pa.FixedSizeListArray.from_arrays(inside, type=type_, mask=mask)
    return pa.ListArray.from_arrays(offsets, inside, type=type_, mask=mask)


@dataclass
class WidenedChunk(ChunkInForm):
    """Consecutive rows of a file, read as the columns of all shards.

    The bytes of rows have the columns `shard.file_schema`.
    """

    shard: Shard

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows as columns."""
        schema = self.shard.schema
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        assert self.shard.file_schema is not None
        table = self.chunk.table(known_columns(self.shard.file_schema, schema.names))
        return fit(table, schema, self.rows, RowsOf(self.shard.path, self.first_row))


def list_changes(
    schemas: Sequence[pa.Schema], wide: pa.Schema, counts: Sequence[int] | None = None
) -> list[str]:
    """List in words how shards differ from their wide schema, in one sentence for each column.

    schemas: of each shard; or of each layout of columns, with the `counts` of its shards. The words
    do not depend on the order of shards. A field of a struct is `column.field`, and one of structs
    in a list is `column[].field`.
    """
    if counts is None:
        counts = [1] * len(schemas)
    reordered = 0
    differences: dict[str, _Difference] = {}
    for schema, count in zip(schemas, counts, strict=True):
        if not count:
            continue
        types_in_file = dict(zip(schema.names, schema.types, strict=True))
        reordered += count * (
            schema.names != [name for name in wide.names if name in types_in_file]
        )
        for name, type_ in zip(wide.names, wide.types, strict=True):
            _compare(name, types_in_file.get(name), type_, count, differences)
    changes = []
    if reordered:
        verb = "has its" if reordered == 1 else "have their"
        changes.append(f"{_shards(reordered)} {verb} columns in another order: matched by name")
    for name, difference in differences.items():
        if difference.lacking:
            verb = "lacks" if difference.lacking == 1 else "lack"
            changes.append(f"{_shards(difference.lacking)} {verb} `{name}`: null there")
        if len(difference.types) > 1:
            types = _types_in(difference.types)
            changes.append(f"`{name}` is {types}: {type_word(difference.wide)}")
    if len(changes) > _MOST_CHANGES:
        changes[_MOST_CHANGES:] = [f"{len(changes) - _MOST_CHANGES:,} more columns differ"]
    return changes


@dataclass
class _Difference:
    """How shards differ in one column or field: how many lack it, and how many have each type."""

    wide: pa.DataType
    lacking: int = 0
    types: dict[str, int] = field(default_factory=dict)


def _compare(
    name: str,
    type_in_file: pa.DataType | None,
    wide: pa.DataType,
    count: int,
    differences: dict[str, _Difference],
) -> None:
    """Count a column or field of `count` shards.

    type_in_file: its type there, None if they lack it.
    """
    if type_in_file is not None and pa.types.is_null(type_in_file):
        return
    if type_in_file is not None and pa.types.is_struct(type_in_file) and pa.types.is_struct(wide):
        inner_types = {inner.name: inner.type for inner in type_in_file}
        for inner in wide:
            _compare(
                f"{name}.{inner.name}", inner_types.get(inner.name), inner.type, count, differences
            )
        return
    if (
        type_in_file is not None
        and is_list(type_in_file)
        and is_list(wide)
        and pa.types.is_nested(wide.value_type)
    ):
        _compare(f"{name}[]", type_in_file.value_type, wide.value_type, count, differences)
        return
    difference = differences.setdefault(name, _Difference(wide))
    if type_in_file is None:
        difference.lacking += count
    else:
        word = type_word(type_in_file)
        difference.types[word] = difference.types.get(word, 0) + count


def _types_in(types: Mapping[str, int]) -> str:
    """Say how many shards have each type."""
    (first, count), *others = sorted(types.items())
    parts = [f"{first} in {_shards(count)}", *(f"{word} in {n:,}" for word, n in others)]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _shards(count: int) -> str:
    return f"{count:,} shard" if count == 1 else f"{count:,} shards"
