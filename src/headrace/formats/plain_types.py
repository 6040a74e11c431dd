"""Read every type of Arrow as one of a few plain types with the same values, or refuse it by name.

Every source passes here when it is surveyed, whatever its format: `plain_schema` gives the types
that its columns are read as, and `converted` brings values to them. A column of a type that is not
read keeps it, and `check_read` refuses it where it is read, so that it can be left out. What a
library has registered with Arrow in this process changes nothing. `docs/types.md` has the table.

Most conversions are casts of Arrow, which copy at most. Arrow has none for UUIDs, run ends and
structs without fields inside other types; these are converted here, by whole arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.arrays import offsets_from_lengths
from headrace.errors import InputError, setting

_MOST_BYTES = (1 << 31) - 1  # of text, or items, in an array with offsets of 32 bits
_WIDEST = (1 << 28) - 1  # bytes of a value, all of one size, that Arrow can write
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_UUID_DIGITS = [*range(8), *range(9, 13), *range(14, 18), *range(19, 23), *range(24, 36)]
_UUID_DASHES = [8, 13, 18, 23]
_EMPTY_OBJECT = "{}"

# By Arrow's type id, as some types have no class in pyarrow.
_KEPT = {
    pa.null().id,
    pa.bool_().id,
    *(TYPE().id for TYPE in (pa.int8, pa.int16, pa.int32, pa.int64)),
    *(TYPE().id for TYPE in (pa.uint8, pa.uint16, pa.uint32, pa.uint64)),
    *(TYPE().id for TYPE in (pa.float16, pa.float32, pa.float64)),
    *(pa.decimal128(1).id, pa.decimal256(1).id),
    *(pa.date32().id, pa.timestamp("s").id, pa.duration("s").id),
    *(pa.time32("s").id, pa.time64("us").id),
    *(pa.string().id, pa.binary().id, pa.binary(1).id),
}
_REPLACED = {
    pa.large_string().id: pa.string(),
    pa.string_view().id: pa.string(),
    pa.large_binary().id: pa.binary(),
    pa.binary_view().id: pa.binary(),
    pa.date64().id: pa.date32(),
}


def plain(type_: pa.DataType) -> pa.DataType:
    """Return the type that values of a type are read as, at any depth; a plain type as it is.

    Raises `InputError` for a type that no plain one stands for: unions, calendar intervals and
    values of one size too large for Arrow.
    """
    if type_.id in _KEPT and not isinstance(type_, pa.BaseExtensionType):
        _check_width(type_)
        return type_
    if isinstance(type_, pa.BaseExtensionType):
        return _plain_extension(type_)
    if type_.id in _REPLACED:
        return _REPLACED[type_.id]
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return plain(type_.value_type)
    if pa.types.is_decimal(type_):
        return pa.decimal128(type_.precision, type_.scale)
    if pa.types.is_union(type_):
        raise _refused(
            type_,
            "is a union, whose rows have values of several types",
            "write a column, or a field of a struct, for each of its types",
        )
    if not type_.num_fields and not pa.types.is_struct(type_):
        raise _refused(
            type_,
            "is a type that headrace does not read",
            "write it as whole numbers or as text, such as months and days in columns of their own",
        )
    return _plain_nested(type_)


def _check_width(type_: pa.DataType) -> None:
    if pa.types.is_fixed_size_binary(type_) and type_.byte_width > _WIDEST:
        raise _refused(
            type_,
            f"has values of more than {_WIDEST:,} bytes, which Arrow cannot write",
            "write it as bytes of any size",
        )


def _plain_extension(type_: pa.BaseExtensionType) -> pa.DataType:
    """Return text for a UUID, bool for one of eight bits, else what the values are stored as."""
    if type_.extension_name == "arrow.uuid":
        return pa.string()
    if type_.extension_name == "arrow.bool8":
        return pa.bool_()
    return plain(type_.storage_type)


def _plain_nested(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type_):
        inner = [_plain_field(field) for field in type_]
        return type_ if inner == list(type_) else pa.struct(inner)
    if pa.types.is_map(type_):
        key, item = _plain_field(type_.key_field), _plain_field(type_.item_field)
        if (key, item) == (type_.key_field, type_.item_field):
            return type_
        return pa.map_(key, item, keys_sorted=type_.keys_sorted)
    item = _plain_field(type_.value_field)
    if pa.types.is_fixed_size_list(type_):
        return type_ if item == type_.value_field else pa.list_(item, type_.list_size)
    return type_ if pa.types.is_list(type_) and item == type_.value_field else pa.list_(item)


def _plain_field(field: pa.Field) -> pa.Field:
    type_ = plain(field.type)
    return field if type_ == field.type else pa.field(field.name, type_, field.nullable)


def _refused(type_: pa.DataType, problem: str, remedy: str) -> InputError:
    leave_out = f"leave it out with {setting('columns')}, or out of the file"
    return InputError(problem, value=str(type_), remedy=f"{leave_out}, or {remedy}")


def plain_schema(names: Sequence[str], types: Sequence[pa.DataType]) -> pa.Schema:
    """Return the columns of a source as they are read; those of types that are not read keep
    them.

    Raises `InputError`, with the column, for a type that no file of Arrow can hold: it could not
    stand in an index.
    """
    fields = []
    for name, type_ in zip(names, types, strict=True):
        error = refusal(type_)
        if error is None:
            fields.append((name, plain(type_)))
            continue
        schema = pa.schema([(name, type_)])
        try:
            pa.ipc.read_schema(schema.serialize())
        except (pa.ArrowException, ValueError):
            raise error.at(column=name) from None
        fields.append((name, type_))
    return pa.schema(fields)


def refusal(type_: pa.DataType) -> InputError | None:
    """Return the error of a type that no plain one stands for; None for others."""
    try:
        plain(type_)
    except InputError as error:
        return error
    return None


def readable(schema: pa.Schema) -> pa.Schema:
    """Return a schema without the columns of types that are not read."""
    fields = [field for field in schema if refusal(field.type) is None]
    return schema if len(fields) == len(schema) else pa.schema(fields)


def in_text(type_: pa.DataType) -> bool:
    """Check whether text has a form for values of a plain type, at any depth."""
    return not _holds(type_, _has_no_text)


def _has_no_text(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type_)
        or pa.types.is_fixed_size_binary(type_)
        or pa.types.is_decimal256(type_)
        or (pa.types.is_struct(type_) and len(set(type_.names)) < type_.num_fields)
    )


def check_read(schema: pa.Schema, path: str | PathLike[str] | None = None) -> None:
    """Raise `InputError`, with file and column, if a column that is read has a type that is not.

    schema: of the columns that are read.
    """
    types = schema.types
    errors = {type_: refusal(type_) for type_ in set(types)}  # of few types, even in wide tables
    for name, type_ in zip(schema.names, types, strict=True):
        error = errors[type_]
        if error is not None:
            raise error.at(path=path, column=name)


def settled(type_: pa.DataType) -> pa.DataType:  # noqa: PLR0911 - one case each
    """Return the type of a column of all shards: nulls and structs without fields, which other
    shards may give a type, are text in the end, at any depth.
    """
    if pa.types.is_null(type_):
        return pa.string()
    if not pa.types.is_nested(type_) or pa.types.is_union(type_):
        return type_
    if pa.types.is_map(type_):
        item = type_.item_field.with_type(settled(type_.item_type))
        if item == type_.item_field:
            return type_
        return pa.map_(type_.key_field, item, keys_sorted=type_.keys_sorted)
    if pa.types.is_struct(type_):
        inner = [field.with_type(settled(field.type)) for field in type_]
        if not inner:
            return pa.string()
        return type_ if inner == list(type_) else pa.struct(inner)
    item = type_.value_field.with_type(settled(type_.value_type))
    if item == type_.value_field:
        return type_
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(item, type_.list_size)
    return pa.list_(item)


def converted(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Convert a column to its plain type, or a type that Arrow casts that one to.

    A chunk of more than 2 GiB of text becomes several. Raises `pa.ArrowException` or `ValueError`
    if a value does not fit.
    """
    if column.type == type_:
        return column
    has_wide = _holds(column.type, _is_wide)
    if not has_wide and not _holds(column.type, _is_odd):
        return column.cast(type_)
    chunks: list[pa.Array] = []
    for chunk in column.chunks:
        for part in _parts(chunk) if has_wide else [chunk]:
            chunks.append(cast_array(part, type_))
    return pa.chunked_array(chunks, type_)


def _parts(array: pa.Array) -> list[pa.Array]:
    """Cut an array into parts whose texts and lists are within the reach of 32 bits."""
    if array.nbytes <= _MOST_BYTES or len(array) < 2:
        return [array]
    half = len(array) // 2
    parts = [*_parts(array[:half]), *_parts(array[half:])]
    if not pa.types.is_nested(array.type):
        return parts
    # Arrow casts all values below a slice of lists, so each part gets values of its own.
    return [part.take(pa.array(np.arange(len(part)))) for part in parts]


def _holds(type_: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Check whether a type, or one in it at any depth, passes a test."""
    if test(type_):
        return True
    if isinstance(type_, pa.BaseExtensionType):
        return _holds(type_.storage_type, test)
    if pa.types.is_dictionary(type_) or pa.types.is_run_end_encoded(type_):
        return _holds(type_.value_type, test)
    return any(_holds(type_.field(number).type, test) for number in range(type_.num_fields))


def _is_wide(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_large_string(type_)
        or pa.types.is_large_binary(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_string_view(type_)
        or pa.types.is_binary_view(type_)
    )


def _is_odd(type_: pa.DataType) -> bool:
    """Whether Arrow has no cast of the type to its plain one, at least inside other types."""
    if pa.types.is_dictionary(type_):  # Arrow's `take` has no kernel for text views
        return not (pa.types.is_string(type_.value_type) or pa.types.is_primitive(type_.value_type))
    return (
        isinstance(type_, pa.BaseExtensionType)
        or pa.types.is_null(type_)  # Arrow's cast of lists of nulls to others is invalid
        or pa.types.is_run_end_encoded(type_)
        or _is_list_view(type_)
        or (pa.types.is_struct(type_) and not type_.num_fields)
    )


def _is_list_view(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(type_) or pa.types.is_large_list_view(type_))


def cast_array(array: pa.Array, type_: pa.DataType) -> pa.Array:  # noqa: PLR0911 - one case each
    """Cast an array, and what Arrow has no cast for by whole arrays."""
    source = array.type
    if source == type_:
        return array
    if isinstance(source, pa.BaseExtensionType):
        return _cast_extension(array, type_)
    if pa.types.is_null(source):
        return pa.nulls(len(array), type_)
    if not _holds(source, _is_odd):
        return array.cast(type_)
    if pa.types.is_dictionary(source):
        return cast_array(array.dictionary, type_).take(array.indices)
    if pa.types.is_run_end_encoded(source):
        rows = np.arange(array.offset, array.offset + len(array))
        runs = np.searchsorted(array.run_ends.to_numpy(), rows, side="right")
        return cast_array(array.values, type_).take(pa.array(runs))
    if pa.types.is_struct(source) and not source.num_fields:
        if not pa.types.is_string(type_):
            return array.cast(type_)
        return pc.if_else(array.is_valid(), _EMPTY_OBJECT, pa.scalar(None, pa.string()))
    rebuilt = _cast_inside(array, type_)
    return rebuilt if rebuilt.type == type_ else rebuilt.cast(type_)


def _cast_extension(array: pa.ExtensionArray, type_: pa.DataType) -> pa.Array:
    storage = array.storage
    if array.type.extension_name == "arrow.bool8":
        storage = pc.not_equal(storage, pa.scalar(0, storage.type))
    elif array.type.extension_name == "arrow.uuid":
        storage = _uuid_texts(storage)
    return cast_array(storage, type_)


def _cast_inside(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Cast what a nested array holds to the types inside another type of its kind."""
    source = array.type
    missing = array.is_null() if array.null_count else None
    if pa.types.is_struct(source):
        columns = []
        for number, field in enumerate(source):
            inner = plain(field.type)
            if pa.types.is_struct(type_) and type_.get_field_index(field.name) >= 0:
                inner = type_.field(field.name).type
            columns.append(cast_array(array.field(number), inner))
        fields = [
            field.with_type(column.type) for field, column in zip(source, columns, strict=True)
        ]
        return pa.StructArray.from_arrays(columns, fields=fields, mask=missing)
    if pa.types.is_map(source):
        same = pa.types.is_map(type_)
        keys = cast_array(array.keys, type_.key_type if same else plain(source.key_type))
        items = cast_array(array.items, type_.item_type if same else plain(source.item_type))
        key, item = source.key_field.with_type(keys.type), source.item_field.with_type(items.type)
        target = pa.map_(key, item, keys_sorted=source.keys_sorted)
        return pa.MapArray.from_arrays(_offsets(array), keys, items, type=target, mask=missing)
    inner = type_.value_type if type_.num_fields == 1 else plain(source.value_type)
    if pa.types.is_fixed_size_list(source):
        size = source.list_size
        values = cast_array(array.values.slice(array.offset * size, len(array) * size), inner)
        target = pa.list_(source.value_field.with_type(values.type), size)
        return pa.FixedSizeListArray.from_arrays(values, type=target, mask=missing)
    if _is_list_view(source):  # Arrow's cast to lists mistakes views that are out of order
        sizes = pc.fill_null(pc.list_value_length(array), 0).to_numpy().astype(np.int64)
        offsets = pa.array(offsets_from_lengths(sizes))
        values = cast_array(array.flatten(), inner)
        target = pa.large_list(source.value_field.with_type(values.type))
        return pa.LargeListArray.from_arrays(offsets, values, type=target, mask=missing)
    values = cast_array(array.values, inner)
    item = source.value_field.with_type(values.type)
    if pa.types.is_large_list(array.type):
        target = pa.large_list(item)
        return pa.LargeListArray.from_arrays(_offsets(array), values, type=target, mask=missing)
    return pa.ListArray.from_arrays(_offsets(array), values, type=pa.list_(item), mask=missing)


def _offsets(array: Any) -> pa.Array:
    """Copy the offsets of lists, as a mask beside a slice of others is refused."""
    return pa.array(np.array(array.offsets))


def _uuid_texts(storage: pa.FixedSizeBinaryArray) -> pa.StringArray:
    """Write UUIDs of 16 bytes as text, such as 123e4567-e89b-12d3-a456-426614174000."""
    rows = len(storage)
    stored = storage.buffers()[1]
    digits: npt.NDArray[np.uint8] = np.empty((rows, 32), np.uint8)
    if stored is not None:
        values = np.frombuffer(stored, np.uint8, rows * 16, storage.offset * 16).reshape(rows, 16)
        digits[:, 0::2] = _HEX[values >> 4]
        digits[:, 1::2] = _HEX[values & 15]
    texts = np.empty((rows, 36), np.uint8)
    texts[:, _UUID_DIGITS] = digits
    texts[:, _UUID_DASHES] = ord("-")
    packed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(36), rows, [None, pa.py_buffer(texts)])
    result = packed.cast(pa.binary()).cast(pa.string())
    if storage.null_count:
        return pc.if_else(storage.is_valid(), result, pa.scalar(None, pa.string()))
    return result
