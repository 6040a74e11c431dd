"""Define type words, and which column types hold which others without loss. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import SettingsError

TYPES: Mapping[str, pa.DataType] = {
    "text": pa.string(),
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
}
_DATA = re.compile(  # a name that looks like a number or a time
    r"([-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(nan|inf)"
    r"|\d{4}[-/.]\d\d?[-/.]\d\d?([ T]\d\d?:\d\d.*)?|\d\d?[-/.]\d\d?[-/.]\d{4}( .*)?"
    r"|\d\d?:\d\d(:\d\d.*)?)\Z",
    re.IGNORECASE,
)

REMEDY = "write a line of names before it"
_UNITS = ("s", "ms", "us", "ns")


def shorten_list(names: Sequence[str]) -> str:
    """Format column names for a message: only the first of very many, and long ones shortened."""
    listed = ", ".join(name if len(name) <= 60 else f"{name[:57]}…" for name in names[:40])
    if len(names) <= 40:
        return listed
    return f"{listed}, … ({len(names):,} in all)"


def hint(names: Sequence[str], remedy: str = REMEDY) -> str:
    """Return a hint that the header is missing if one of these column names looks like data; else
    "".
    """
    suspect = next(filter(_DATA.match, names), None)
    if suspect is None:
        return ""
    return f"; if {suspect!r} is data, the file has no header: {remedy}"


def missing_header(names: Sequence[str]) -> bool:
    """Detect a missing header: all names are numbers or times, but not a plain count (0, 1, 2, …)
    or years.
    """
    return (
        bool(names) and all(map(_DATA.match, names)) and not all(name.isdigit() for name in names)
    )


def type_named(word: str) -> pa.DataType:
    """Return the Arrow type of a word such as "int64" or "text".

    Raises `SettingsError` on others.
    """
    try:
        return TYPES[word]
    except KeyError:
        raise SettingsError(
            "no such type", setting="types", value=word, remedy=f"use one of {', '.join(TYPES)}"
        ) from None


def is_text(type_: pa.DataType) -> bool:
    """Check whether values of this type are text."""
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
    )


def plain(type_: pa.DataType) -> pa.DataType:
    """Normalize a type to what headrace writes, at any depth: one form of text, binary and lists;
    no dictionaries.

    Extension types that a library registers become their storage type, because pyarrow knows them
    only if the process imports that library. Of those that pyarrow itself defines, JSON becomes
    text.
    """
    registered = isinstance(type_, pa.ExtensionType)
    if registered or (
        isinstance(type_, pa.BaseExtensionType) and type_.extension_name == "arrow.json"
    ):
        return plain(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return plain(type_.value_type)
    if is_text(type_):
        return pa.string()
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_):
        return pa.binary()
    return _plain_nested(type_)


def _plain_nested(type_: pa.DataType) -> pa.DataType:
    """Normalize what lists and structs hold. Types in which nothing changes are returned as they
    are.
    """
    if (
        pa.types.is_large_list(type_)
        or pa.types.is_list_view(type_)
        or pa.types.is_large_list_view(type_)
    ):
        return pa.list_(plain(type_.value_type))
    if pa.types.is_struct(type_):
        inner = [field.with_type(plain(field.type)) for field in type_]
        return type_ if inner == list(type_) else pa.struct(inner)
    if pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        item = type_.value_field.with_type(plain(type_.value_type))
        if item == type_.value_field:
            return type_
        if pa.types.is_fixed_size_list(type_):
            return pa.list_(item, type_.list_size)
        return pa.list_(item)
    return type_


def supertype(  # noqa: PLR0911 - one case each
    a: pa.DataType,
    b: pa.DataType,
) -> pa.DataType | None:
    """Find the smallest type that holds every value of both without loss, or None.

    Numbers never become text and text never a number: 7 and "007" are different values.
    """
    a = plain(a)
    b = plain(b)
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    integers = pa.types.is_integer(a) and pa.types.is_integer(b)
    if integers and pa.types.is_signed_integer(a) != pa.types.is_signed_integer(b):
        signed, unsigned = (a, b) if pa.types.is_signed_integer(a) else (b, a)
        bits = max(signed.bit_width, 2 * unsigned.bit_width)
        return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(bits)
    if integers or (pa.types.is_floating(a) and pa.types.is_floating(b)):
        return a if a.bit_width >= b.bit_width else b
    for float_, other in ((a, b), (b, a)):
        if pa.types.is_floating(float_) and pa.types.is_integer(other) and other.bit_width <= 32:
            doubles = other.bit_width == 32 or float_.bit_width == 64
            return pa.float64() if doubles else pa.float32()
    for date, stamp in ((a, b), (b, a)):
        if pa.types.is_date(date) and pa.types.is_timestamp(stamp) and stamp.tz is None:
            # nanoseconds cover only 1677 to 2262
            return stamp if stamp.unit != "ns" else None
    if (
        pa.types.is_timestamp(a)
        and pa.types.is_timestamp(b)
        and a.tz == b.tz
        and "ns" not in (a.unit, b.unit)
    ):
        return a if _UNITS.index(a.unit) >= _UNITS.index(b.unit) else b
    return None


def as_texts(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """Return text if one type is text and the other whole numbers, whose decimal text loses
    nothing; else None.
    """
    for text, other in ((a, b), (b, a)):
        if is_text(plain(text)) and pa.types.is_integer(plain(other)):
            return pa.string()
    return None


@dataclass(frozen=True, eq=False)
class Target:
    """The schema that blocks are delivered in, made once for many blocks.

    Making and comparing schemas takes a tenth of the time of decoding a block.
    nullable: the same columns, all of which may hold nulls. required: the indices of those that may
    not.
    """

    schema: pa.Schema
    nullable: pa.Schema
    required: Sequence[int]

    @classmethod
    def of(cls, schema: pa.Schema) -> Target:
        """Make the target of a schema."""
        nullable = pa.schema([field.with_nullable(True) for field in schema])
        return cls(
            schema, nullable, [index for index, field in enumerate(schema) if not field.nullable]
        )


def in_schema(table: pa.Table, target: Target) -> pa.Table:
    """Convert columns, which have the target's names, to its types; the arrays are reused if the
    types are equal.

    Raises `pa.ArrowInvalid` or `ValueError` if a value does not fit, or if a required column has a
    null.
    """
    if table.schema.equals(target.schema):
        return table
    columns = table.columns
    schema = target.schema
    same = table.schema.equals(target.nullable) or table.schema.types == schema.types
    if same and not any(columns[index].null_count for index in target.required):
        return pa.Table.from_arrays(columns, schema=schema)  # `cast` would cost a tenth of decoding
    for index, field in enumerate(table.schema):
        type_ = field.type
        # Dictionaries of text views, as polars writes categories; Arrow's `take` has no kernel for
        # them.
        if pa.types.is_dictionary(type_) and pa.types.is_string_view(type_.value_type):
            chunks = [
                pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(pa.string()))
                for chunk in columns[index].iterchunks()
            ]
            decoded = pa.chunked_array(chunks, pa.dictionary(type_.index_type, pa.string())).cast(
                pa.string()
            )
            table = table.set_column(index, field.name, decoded)
    return table.cast(schema)


def describe(schema: pa.Schema) -> list[dict[str, object]]:
    """Describe a schema as JSON: name, type word, whether it may hold nulls."""
    words = {type_: word for word, type_ in TYPES.items()}
    return [
        {"name": f.name, "type": words.get(f.type, str(f.type)), "nullable": f.nullable}
        for f in schema
    ]
