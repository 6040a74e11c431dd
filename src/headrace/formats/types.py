"""Define type words, and which column types hold which others without loss. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import pairwise

import pyarrow as pa

from headrace.errors import SettingsError
from headrace.formats.plain_types import converted, plain
from headrace.formats.type_words import ALL_COLUMNS

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
    "datetime_utc": pa.timestamp("us", "UTC"),
}
_WORDS = {type_: word for word, type_ in TYPES.items()}
_UNITS = ("s", "ms", "us", "ns")


def shorten_list(names: Sequence[str]) -> str:
    """Format column names for a message: only the first of very many, and long ones shortened."""
    listed = ", ".join(name if len(name) <= 60 else f"{name[:57]}…" for name in names[:40])
    if len(names) <= 40:
        return listed
    return f"{listed}, … ({len(names):,} in all)"


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


def column_types(words: Mapping[str, str]) -> dict[str, pa.DataType]:
    """Return the Arrow types of the columns that are declared by name.

    Raises `SettingsError` on other words.
    """
    return {name: type_named(word) for name, word in words.items() if name != ALL_COLUMNS}


def to_python(value: pa.Scalar) -> object:
    """Convert a value to Python; to text if Python has no such time, as of the year -5."""
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        return str(value.cast(pa.string()).as_py())


def is_text(type_: pa.DataType) -> bool:
    """Check whether values of this type are text."""
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_string_view(type_)
    )


def is_list(type_: pa.DataType) -> bool:
    """Check whether values of this normalized type are lists, of any or of one size."""
    return bool(pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_))


def first_refused(
    column: pa.ChunkedArray, convert: Callable[[pa.ChunkedArray], pa.ChunkedArray]
) -> int:
    """Find the first row whose value cannot be converted, by bisection; O(rows).

    convert: raises `pa.ArrowInvalid` for values of which one cannot be.
    """
    low = 0
    high = len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            convert(column.slice(low, middle - low))
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def type_word(type_: pa.DataType) -> str:
    """Return the word for a type, and Arrow's own for one that settings cannot name."""
    return _WORDS.get(type_, str(type_))


def supertype(*types: pa.DataType, numbers_as_text: bool = False) -> pa.DataType | None:
    """Find the smallest type that holds every value of these types without loss, or None.

    The law is the round trip: values of each type, cast to this one and back, are equal. All types
    are looked at together, so their order does not matter. A column of nulls has any type. Structs
    are joined by the names of their fields; those that one lacks are null in it.

    Some values may have no place in the type: whole numbers of 64 bits beyond 2^53 beside floats,
    and times beyond the years of a finer unit. The cast of `widened` is checked, and refuses them.

    numbers_as_text: join whole numbers and text to text, as decimal text, so that 7 and "007" stay
    distinct. Otherwise numbers never become text.
    """
    known = [type_ for type_ in dict.fromkeys(map(plain, types)) if not pa.types.is_null(type_)]
    if not known:
        return pa.null()
    if len(known) == 1 and not pa.types.is_nested(known[0]):
        return known[0]
    if all(pa.types.is_nested(type_) for type_ in known):
        return _nested_supertype(known, partial(supertype, numbers_as_text=numbers_as_text))
    if numbers_as_text and pa.string() in known:
        known = [type_ for type_ in known if not pa.types.is_integer(type_)]
        return pa.string() if len(known) == 1 else None
    for tests, join in _FAMILIES:
        if all(any(test(type_) for test in tests) for type_ in known):
            return join(known)
    return None


def _integers(types: Sequence[pa.DataType]) -> pa.DataType | None:
    signed = [type_.bit_width for type_ in types if pa.types.is_signed_integer(type_)]
    unsigned = [type_.bit_width for type_ in types if pa.types.is_unsigned_integer(type_)]
    if not signed:
        return TYPES[f"uint{max(unsigned)}"]
    bits = max([*signed, *(2 * width for width in unsigned)])
    return TYPES[f"int{bits}"] if bits <= 64 else None


def _numbers(types: Sequence[pa.DataType]) -> pa.DataType | None:
    """Join floats, and whole numbers beside them: float32 holds 16 bits, float64 32 bits, and of
    more what is checked.
    """
    widths = [type_.bit_width for type_ in types if pa.types.is_floating(type_)]
    for type_ in types:
        if pa.types.is_integer(type_):
            widths.append(32 if type_.bit_width <= 16 else 64)
    return {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}[max(widths)]


_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}  # of the whole numbers of so many bits
_DECIMALS = ((9, 32), (18, 64), (38, 128), (76, 256))  # most digits, bits


def _decimals(types: Sequence[pa.DataType]) -> pa.DataType | None:
    """Join decimals, and whole numbers beside them, to the digits before and after the point of
    all.
    """
    before_point = after_point = narrowest = 0
    for type_ in types:
        if pa.types.is_integer(type_):
            before_point = max(before_point, _DIGITS[type_.bit_width])
        else:
            before_point = max(before_point, type_.precision - type_.scale)
            after_point = max(after_point, type_.scale)
            narrowest = max(narrowest, type_.bit_width)
    for most_digits, bits in _DECIMALS:
        if before_point + after_point <= most_digits and bits >= narrowest:
            make = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128, 256: pa.decimal256}
            return make[bits](before_point + after_point, after_point)
    return None


def _times(types: Sequence[pa.DataType]) -> pa.DataType | None:
    """Join dates and timestamps: the finest unit. Instants of several zones are those of UTC; wall
    clock time is no instant.
    """
    stamps = [type_ for type_ in types if pa.types.is_timestamp(type_)]
    if not stamps:
        return pa.date64()
    zones = {type_.tz for type_ in stamps}
    if None in zones and len(zones) > 1:
        return None
    if None not in zones and len(stamps) < len(types):  # a date has no zone
        return None
    units = [type_.unit for type_ in stamps]
    if pa.date64() in types:
        units.append("ms")
    return pa.timestamp(_finest(units), zones.pop() if len(zones) == 1 else "UTC")


def _clock_times(types: Sequence[pa.DataType]) -> pa.DataType | None:
    unit = _finest([type_.unit for type_ in types])
    return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)


def _finest(units: Iterable[str]) -> str:
    return max(units, key=_UNITS.index)


# Tests that all types of a family pass, and what joins them; the first family that fits.
_FAMILIES: Sequence[
    tuple[
        Sequence[Callable[[pa.DataType], bool]],
        Callable[[Sequence[pa.DataType]], pa.DataType | None],
    ]
] = (
    ((pa.types.is_integer,), _integers),
    ((pa.types.is_integer, pa.types.is_floating), _numbers),
    ((pa.types.is_integer, pa.types.is_decimal), _decimals),
    ((pa.types.is_date, pa.types.is_timestamp), _times),
    ((pa.types.is_time,), _clock_times),
    ((pa.types.is_duration,), lambda types: pa.duration(_finest(type_.unit for type_ in types))),
    ((pa.types.is_binary, pa.types.is_fixed_size_binary), lambda _: pa.binary()),
)

_Join = Callable[..., pa.DataType | None]


def _nested_supertype(types: Sequence[pa.DataType], join: _Join) -> pa.DataType | None:
    """Join lists, maps or structs. join: joins the types inside."""
    if all(map(pa.types.is_struct, types)):
        fields = _joined_fields([list(type_) for type_ in types], join)
        return None if fields is None else pa.struct(fields)
    if all(map(pa.types.is_map, types)):
        key = join(*(type_.key_type for type_ in types))
        item = _joined_field([type_.item_field for type_ in types], join)
        if key is None or item is None:
            return None
        return pa.map_(key, item, keys_sorted=all(type_.keys_sorted for type_ in types))
    if not all(map(is_list, types)):
        return types[0] if len(types) == 1 else None
    item = _joined_field([type_.value_field for type_ in types], join)
    if item is None:
        return None
    sizes = {type_.list_size if pa.types.is_fixed_size_list(type_) else -1 for type_ in types}
    return pa.list_(item, sizes.pop() if len(sizes) == 1 else -1)


def _joined_field(fields: Sequence[pa.Field], join: _Join) -> pa.Field | None:
    type_ = join(*(field.type for field in fields))
    if type_ is None:
        return None
    nullable = any(field.nullable or pa.types.is_null(field.type) for field in fields)
    return pa.field(min(field.name for field in fields), type_, nullable=nullable)


def _joined_fields(structs: Sequence[Sequence[pa.Field]], join: _Join) -> Sequence[pa.Field] | None:
    """Join the fields of structs by name; None if two cannot be joined."""
    by_name: dict[str, list[pa.Field]] = {}
    for fields in structs:
        for field in fields:
            by_name.setdefault(field.name, []).append(field)
    if any(len({field.name for field in fields}) < len(fields) for fields in structs):
        return structs[0] if len(structs) == 1 else None  # repeated names say not which is which
    joined = []
    for name in merged_names([[field.name for field in fields] for fields in structs]):
        field = _joined_field(by_name[name], join)
        if field is None:
            return None
        absent = len(by_name[name]) < len(structs)
        joined.append(field.with_nullable(field.nullable or absent))
    return joined


def merged_names(orders: Sequence[Sequence[str]]) -> list[str]:
    """Merge orders of distinct names: a name comes after those that it follows in any order.

    Names that follow each other in a circle, and those that no order compares, go by the alphabet.
    So the order of the orders does not matter.
    """
    if all(order == orders[0] for order in orders):
        return list(orders[0])
    before: dict[str, set[str]] = {name: set() for order in orders for name in order}
    after: dict[str, set[str]] = {name: set() for name in before}
    for order in orders:
        for name, follower in pairwise(order):
            before[follower].add(name)
            after[name].add(follower)
    free = [name for name, earlier in before.items() if not earlier]
    heapify(free)
    left = sorted(before, reverse=True)
    merged: dict[str, None] = {}
    while len(merged) < len(before):
        if free:
            name = heappop(free)
        else:
            while left[-1] in merged:
                left.pop()
            name = _first_of_circle(left[-1], before)
        if name in merged:
            continue
        merged[name] = None
        for follower in after[name]:
            before[follower].discard(name)
            if not before[follower]:
                heappush(free, follower)
    return list(merged)


def _first_of_circle(name: str, before: Mapping[str, set[str]]) -> str:
    """Go back from a name until a circle closes; return its first name by the alphabet."""
    path: dict[str, None] = {}
    while name not in path:
        path[name] = None
        name = min(before[name])
    circle = list(path)
    return min(circle[circle.index(name) :])


def rounds(type_: pa.DataType, wide: pa.DataType) -> bool:
    """Check whether a type holds whole numbers, at any depth, that are floats of 64 bits in the
    other type.
    """
    if pa.types.is_struct(type_) and pa.types.is_struct(wide):
        return any(rounds(field.type, wide.field(field.name).type) for field in type_)
    if type_.num_fields and type_.num_fields == wide.num_fields:
        inside = range(type_.num_fields)
        return any(rounds(type_.field(at).type, wide.field(at).type) for at in inside)
    return pa.types.is_integer(type_) and type_.bit_width == 64 and bool(pa.types.is_floating(wide))


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
    columns = [
        converted(column, type_) for column, type_ in zip(columns, schema.types, strict=True)
    ]
    for index in target.required:
        if columns[index].null_count:
            raise ValueError(f"column {schema.names[index]!r} has nulls, which its schema excludes")
    return pa.Table.from_arrays(columns, schema=schema)


def describe(schema: pa.Schema) -> list[dict[str, object]]:
    """Describe a schema as JSON: name, type word, whether it may hold nulls."""
    return [{"name": f.name, "type": type_word(f.type), "nullable": f.nullable} for f in schema]
