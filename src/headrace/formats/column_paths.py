"""Find the columns that names mean: a column, or a dotted path to a field of a struct.

A column whose name is the whole text comes first, dots or not. Otherwise `data.user.id` is the
field `id` of the field `user` of the column `data`; where a struct is null, so are its fields. A
text that two paths fit is refused. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InputError, SettingsError, setting_name
from headrace.formats.types import shorten_list


@dataclass(frozen=True)
class ColumnPath:
    """Where the values of a named column are.

    name: as it was given. column: that of the table. fields: of structs below it, outermost first.
    type: of the values. nullable: whether the column, or a struct on the way, may be null.
    """

    name: str
    column: str
    fields: tuple[str, ...]
    type: pa.DataType
    nullable: bool = True

    def expression(self) -> pc.Expression:
        """Return the values as an expression over a table."""
        return pc.field(self.column, *self.fields)

    def values(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the values of a table's rows."""
        column = table[self.column]
        if not self.fields:
            return column
        return pc.struct_field(column, list(self.fields))


def column_path(schema: pa.Schema, name: str) -> ColumnPath | None:
    """Find the column or the field of a struct that a name means; None if there is none.

    Raises `InputError` if several paths fit.
    """
    index = schema.get_field_index(name)
    if index >= 0:
        field = schema.field(index)
        return ColumnPath(name, name, (), field.type, field.nullable)
    if "." not in name:
        return None
    paths = [
        ColumnPath(
            name,
            fields[0].name,
            tuple(f.name for f in fields[1:]),
            fields[-1].type,
            any(field.nullable for field in fields),
        )
        for fields in _fields_at(list(schema), name)
    ]
    if len(paths) > 1:
        raise _several(name, [(path.column, *path.fields) for path in paths])
    return paths[0] if paths else None


def _several(name: str, paths: Sequence[tuple[str, ...]]) -> InputError:
    listed = " and ".join(map(repr, paths[:2]))
    return InputError(
        f"several fields fit this path, {listed}", column=name, remedy="rename one of them"
    )


def _fields_at(fields: Sequence[pa.Field], path: str) -> Iterator[list[pa.Field]]:
    """Iterate over all ways down to the field of a path; names themselves may hold dots."""
    for field in fields:
        if field.name == path:
            yield [field]
        elif path.startswith(f"{field.name}.") and pa.types.is_struct(field.type):
            for below in _fields_at(list(field.type), path[len(field.name) + 1 :]):
                yield [field, *below]


def required_path(schema: pa.Schema, name: str) -> ColumnPath:
    """Find the column or field that a name means. Raises `InputError` if there is none."""
    path = column_path(schema, name)
    if path is None:
        raise InputError(
            "there is no such column",
            column=name,
            remedy=f"choose one of {shorten_list(schema.names)}",
        )
    return path


def has_column(schema: pa.Schema, name: str) -> bool:
    """Return whether a schema has a column, or a field of a struct, that a name means."""
    return column_path(schema, name) is not None


def known_columns(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Return the names that mean a column or field of a schema, in their order."""
    columns = set(schema.names)
    if columns.issuperset(names):
        return list(names)
    has_structs = any(map(pa.types.is_struct, schema.types))
    return [name for name in names if name in columns or (has_structs and has_column(schema, name))]


def columns_of_paths(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Return the table's columns that hold the named ones, each once, in order of first use."""
    return list(dict.fromkeys(required_path(schema, name).column for name in names))


def with_paths(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the schema of the named columns."""
    fields = dict(zip(schema.names, schema, strict=True))
    if len(fields) == len(schema) and fields.keys() >= set(names):
        return pa.schema([fields[name] for name in names])
    paths = [required_path(schema, name) for name in names]
    return pa.schema([pa.field(path.name, path.type, path.nullable) for path in paths])


def select_paths(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return the named columns of a table; fields of structs come under their path."""
    if set(table.column_names).issuperset(names):
        return table.select(list(names))
    paths = [required_path(table.schema, name) for name in names]
    return pa.table([path.values(table) for path in paths], names=list(names))


def leaves_of(schema: pa.Schema, names: Sequence[str]) -> tuple[str, ...]:
    """Return named columns, and for those that are structs the paths of their innermost fields.

    A struct without fields, or with a path that means another column too, stays whole.
    """
    result: list[str] = []
    for name in names:
        result += _leaves(schema, name)
    return tuple(result)


def _leaves(schema: pa.Schema, name: str) -> list[str]:
    type_ = required_path(schema, name).type
    if not pa.types.is_struct(type_) or not type_.num_fields:
        return [name]
    paths = [f"{name}.{field.name}" for field in type_]
    if len(set(paths)) < len(paths) or not all(_means_one(schema, path) for path in paths):
        return [name]
    result: list[str] = []
    for path in paths:
        result += _leaves(schema, path)
    return result


def _means_one(schema: pa.Schema, path: str) -> bool:
    return path not in schema.names and sum(1 for _ in _fields_at(list(schema), path)) == 1


def columns_without(schema: pa.Schema, names: Collection[str | None]) -> list[str]:
    """Return the columns of a schema that are not among the named ones; of a struct that holds a
    named field, the paths of its other fields.
    """
    if not any(name is not None and "." in name for name in names):
        return [name for name in schema.names if name not in names]
    result: list[str] = []
    for field in schema:
        result += _without(field, field.name, names)
    return result


def _without(field: pa.Field, path: str, names: Collection[str | None]) -> list[str]:
    if path in names:
        return []
    is_parent = any(name is not None and name.startswith(f"{path}.") for name in names)
    if not is_parent or not pa.types.is_struct(field.type):
        return [path]
    result: list[str] = []
    for inner in field.type:
        result += _without(inner, f"{path}.{inner.name}", names)
    return result


@dataclass(frozen=True)
class ColumnSelection:
    """The columns to read: the named ones in their order, or all but those to leave out.

    columns, drop_columns: names or paths; at most one of them, and all columns without. Raises
    `SettingsError` when built.
    """

    columns: Sequence[str] | None = None
    drop_columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name in ("columns", "drop_columns"):
            names = getattr(self, name)
            if names is not None:
                object.__setattr__(self, name, _column_names(name, names))
        if self.columns is not None and self.drop_columns is not None:
            raise SettingsError(
                f"{setting_name('columns')} says what is read, and {setting_name('drop_columns')}"
                " what is not",
                setting="drop_columns",
                value=list(self.drop_columns),
                remedy="give one of them",
            )

    def names_in(self, schema: pa.Schema) -> list[str]:
        """Return the selected columns of a schema; the named ones even where it lacks them."""
        if self.columns is not None:
            return list(self.columns)
        return columns_without(schema, self.drop_columns or ())

    def check(self, schemas: Sequence[pa.Schema], path: str | PathLike[str] | None = None) -> None:
        """Raise `SettingsError` for a name that no schema has, and if no column is left in any."""
        named = self.columns or self.drop_columns
        if named is None:
            return
        name_of_setting = "columns" if self.columns else "drop_columns"
        unknown = [
            name for name in named if not any(has_column(schema, name) for schema in schemas)
        ]
        known = dict.fromkeys(name for schema in schemas for name in schema.names)
        remedy = f"choose among {shorten_list(list(known))}"
        if unknown:
            raise SettingsError(
                "the data has no such columns",
                path=path,
                setting=name_of_setting,
                value=unknown,
                remedy=remedy,
            )
        if not any(self.names_in(schema) for schema in schemas):
            raise SettingsError(
                "it leaves out all columns",
                path=path,
                setting=name_of_setting,
                value=list(named),
                remedy="leave one in",
            )


def _column_names(name: str, columns: Any) -> tuple[str, ...]:
    if isinstance(columns, str):
        raise SettingsError(
            "it is a text",
            setting=name,
            value=columns,
            remedy=f'pass a list of names, e.g. ["{columns}"]',
        )
    names = tuple(columns) if isinstance(columns, Iterable) else ()
    if not names or not all(isinstance(column, str) for column in names):
        raise SettingsError(
            setting=name,
            value=columns,
            remedy="give at least one column name, all of them text",
        )
    if len(set(names)) < len(names):
        raise SettingsError(
            "a column is named twice", setting=name, value=list(names), remedy="name each once"
        )
    return names


def value_at(row: Mapping[str, Any], name: str) -> Any:
    """Return the value of a named column of a row of JSON; None if it has none.

    As in tables, a key that is the whole name comes first. Raises `InputError` if several paths
    fit.
    """
    if name in row or "." not in name:
        return row.get(name)
    paths = list(_keys_at(row, name))
    if len(paths) > 1:
        raise _several(name, paths)
    value: Any = row
    for key in paths[0] if paths else ():
        value = value[key]
    return value if paths else None


def _keys_at(row: Mapping[str, Any], path: str) -> Iterator[tuple[str, ...]]:
    for key, value in row.items():
        if key == path:
            yield (key,)
        elif isinstance(value, Mapping) and path.startswith(f"{key}."):
            for below in _keys_at(value, path[len(key) + 1 :]):
                yield (key, *below)
