"""Compare a table with what another reader reads, by values and types.

The comparison has its own idea of the values of every type, so it shares no code with what it
checks; it is slow, and for small files.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.formats.plain_types import plain, settled


def difference(
    truth: pa.Table, actual: pa.Table, *, types: Literal["plain", "any"] = "plain"
) -> str | None:
    """Return how a table differs from the truth; None if it does not.

    types: "plain": each must be the plain type of that of the truth.
    """
    names = [name.replace("__DOT__", ".") for name in truth.column_names]
    if actual.column_names != names:
        return f"columns {actual.column_names}, not {names}"
    if actual.num_columns and actual.num_rows != truth.num_rows:
        return f"{actual.num_rows} rows, not {truth.num_rows}"
    for number, name in enumerate(names):
        expected, column = truth.column(number), actual.column(number)
        type_ = settled(plain(expected.type))
        if types == "plain" and column.type != type_:
            return f"{name} is {column.type}, not {type_}"
        a, b = _values(expected), _values(column)
        for row, (first, second) in enumerate(zip(a, b, strict=True)):
            if not _equal(first, second):
                return f"{name}, row {row} is {second!r:.200}, not {first!r:.200}"
    return None


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(map(_equal, a.values(), b.values()))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b)
    # a null number of a tensor is NaN, a null time is NaT
    if a is None and isinstance(b, float):
        return b != b
    return bool(a == b)


def _values(column: pa.ChunkedArray) -> list[Any]:
    return [value for chunk in column.chunks for value in values_of(chunk)]


def values_of(array: pa.Array) -> list[Any]:
    """Return the values as Python objects: times as whole numbers, in nanoseconds or days."""
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        stored = values_of(array.storage)
        if type_.extension_name == "arrow.uuid":
            return [None if value is None else _uuid(value) for value in stored]
        if type_.extension_name == "arrow.bool8":
            return [None if value is None else bool(value) for value in stored]
        return stored
    if pa.types.is_dictionary(type_):
        words = values_of(array.dictionary)
        codes = array.indices.to_pylist()
        return [None if code is None else words[code] for code in codes]
    if pa.types.is_run_end_encoded(type_):
        ends = array.run_ends.to_pylist()
        values = values_of(array.values)
        rows = range(array.offset, array.offset + len(array))
        return [values[int(np.searchsorted(ends, row, side="right"))] for row in rows]
    if pa.types.is_struct(type_):
        return _structs(array)
    if pa.types.is_map(type_):
        return [
            None if item is None else [list(pair) for pair in zip(*item, strict=True)]
            for item in zip_lists(array, array.keys, array.items)
        ]
    if type_.num_fields == 1:
        return _lists(array)
    if pa.types.is_timestamp(type_) or pa.types.is_duration(type_) or pa.types.is_time(type_):
        width = pa.int32() if type_.bit_width == 32 else pa.int64()
        factor = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}[type_.unit]
        numbers = array.cast(width).to_pylist()
        return [None if number is None else number * factor for number in numbers]
    if pa.types.is_date(type_):
        width = pa.int32() if type_.bit_width == 32 else pa.int64()
        factor = 86_400_000 if type_.bit_width == 32 else 1
        numbers = array.cast(width).to_pylist()
        return [None if number is None else number * factor for number in numbers]
    return list(array.to_pylist())


def _structs(array: pa.StructArray) -> list[Any]:
    valid = array.is_valid().to_pylist()
    names = [array.type.field(number).name for number in range(array.type.num_fields)]
    columns = [values_of(array.field(number)) for number in range(len(names))]
    if array.offset and columns and len(columns[0]) != len(array):
        columns = [column[array.offset : array.offset + len(array)] for column in columns]
    rows = []
    for row, is_valid in enumerate(valid):
        value = {f"{number} {name}": columns[number][row] for number, name in enumerate(names)}
        rows.append(value if is_valid else None)
    return rows


def _lists(array: pa.Array) -> list[Any]:
    return [
        None if value is None else values_of(value)
        for value in (scalar.values if scalar.is_valid else None for scalar in array)
    ]


def zip_lists(array: pa.MapArray, keys: pa.Array, items: pa.Array) -> list[Any]:
    """Return the keys and items of each map; None where it is null."""
    offsets = array.offsets.to_pylist()
    all_keys, all_items = values_of(keys), values_of(items)
    result: list[Any] = []
    for row, is_valid in enumerate(array.is_valid().to_pylist()):
        start, stop = offsets[row], offsets[row + 1]
        result.append((all_keys[start:stop], all_items[start:stop]) if is_valid else None)
    return result


def _uuid(value: bytes) -> str:
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
