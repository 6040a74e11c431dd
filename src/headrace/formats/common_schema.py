"""Find the schema that all shards of a source fit, and convert rows to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pyarrow as pa

from headrace.errors import InputError
from headrace.formats.shard import Shard
from headrace.formats.types import as_texts, hint, supertype

Drift = Literal["error", "widen"]
_ONE_FORMAT = "give files of one kind at a time, e.g. by a glob pattern"


def with_content(shards: Sequence[Shard]) -> list[Shard]:
    """Select the shards that have columns. Raises `InputError` if there is none."""
    with_columns = [shard for shard in shards if shard.content != "nothing"]
    if not with_columns:
        raise InputError(
            "is empty, and no other file of the source holds anything",
            path=shards[0].path,
            remedy="give the files that have rows",
        )
    return with_columns


def common_schema(
    shards: Sequence[Shard], drift: Drift, *, widen_by: str | None = None
) -> pa.Schema:
    """Find the common schema of all shards; columns that cannot hold nulls in any shard are
    declared so.

    drift="error": names, order and types must be those of the first shard. drift="widen": columns
    are matched by name, absent ones are null, types become the smallest that loses nothing. Whole
    numbers mixed with text become their decimal text, so 7 and "007" stay distinct. JSON shards
    always match by name.
    widen_by: how the caller's user sets drift="widen", if possible. Shards of content "nothing" fit
    any schema. Raises `InputError` that names both files, or if no shard has columns.
    """
    shards = with_content(shards)
    first = shards[0]
    fields = {field.name: field.type for field in first.schema}
    seen_in = dict.fromkeys(fields, first)
    nulls = set(first.null_columns)
    by_name = drift == "widen" or all(shard.file_type.format.content == "json" for shard in shards)
    for shard in shards[1:]:
        for name in shard.partition.keys() ^ first.partition.keys():
            if name in first.schema.names and name in shard.schema.names:
                raise InputError(
                    f"column {name} comes from"
                    f" {('its name' if name in shard.partition else 'the file')}, and that of"
                    f" {first.path} from {('its name' if name in first.partition else 'the file')}",
                    path=shard.path,
                    remedy="give such files apart, or leave the column out of the files",
                )
        if not by_name:
            _same_columns(first, shard, widen_by)
        for field in shard.schema:
            before = fields.get(field.name, field.type)
            common_type = supertype(before, field.type)
            if common_type is None and widen_by is not None:
                common_type = as_texts(before, field.type)
            exact = before == field.type or pa.types.is_null(field.type) or pa.types.is_null(before)
            if common_type is None or (drift == "error" and not exact):
                if common_type is None or widen_by is None:
                    remedy = _ONE_FORMAT
                else:
                    remedy = f"use {widen_by} for a type that holds both"
                raise InputError(
                    f"column {field.name} is {field.type}, in {seen_in[field.name].path} it is"
                    f" {before}",
                    path=shard.path,
                    remedy=f"rewrite one of them, or {remedy}",
                )
            if field.name not in fields:
                nulls.add(field.name)
            fields[field.name] = common_type
            seen_in.setdefault(field.name, shard)
        nulls |= shard.null_columns | (set(fields) - set(shard.schema.names))
    # A column of nulls only has no type of its own; text can hold it.
    typed = {
        name: pa.string() if pa.types.is_null(type_) else type_ for name, type_ in fields.items()
    }
    return pa.schema(
        [pa.field(name, type_, nullable=name in nulls) for name, type_ in typed.items()]
    )


def fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert a shard's columns to the common schema: reordered, widened, absent ones null."""
    if table.schema.equals(schema):
        return table
    # Arrow would search all for each
    index_of_name = {name: index for index, name in enumerate(table.column_names)}
    columns = []
    for field in schema:
        if field.name in index_of_name:
            column = table.column(index_of_name[field.name])
        else:
            column = pa.nulls(table.num_rows, field.type)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _same_columns(first: Shard, other: Shard, widen_by: str | None) -> None:
    if other.schema.names == first.schema.names:
        return
    known = dict.fromkeys(first.schema.names)
    other_names = dict.fromkeys(other.schema.names)
    missing = [name for name in known if name not in other_names]
    extra = [name for name in other_names if name not in known]
    parts = []
    if missing:
        parts = [f"lacks {', '.join(missing)}"]
    if extra:
        parts += [f"adds {', '.join(extra)}"]
    what = "; ".join(parts) or "has its columns in another order"
    if widen_by is None:
        remedy = _ONE_FORMAT
    else:
        remedy = f"use {widen_by} to match columns by name"
    header_hint = hint(first.schema.names)
    raise InputError(
        f"{what}, compared with {first.path}",
        path=other.path,
        remedy=f"correct it, or {remedy}{header_hint}",
    )
