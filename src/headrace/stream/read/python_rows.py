"""A batch as a list of dicts, one a row, of plain Python values: the slow, friendly form.

    null                            None
    date; timestamp                 datetime.date; datetime.datetime, with its time zone
    duration; time                  datetime.timedelta; datetime.time
    list; struct; map               list; dict; list of (key, value)
    decimal; binary; text           decimal.Decimal; bytes; str

What is not there in Python is an `InputError`, not another value: moments finer than a microsecond, years beyond 9999.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.errors import InputError


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows in order. Raises `InputError` for a value that Python's types cannot hold, naming its column."""
    names = table.schema.names
    columns = [_values(name, column) for name, column in zip(names, table.columns, strict=True)]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _values(name: str, column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if text or (number and not column.null_count):  # many times faster than to_pylist
        plain: list[Any] = column.to_numpy().tolist()
        return plain
    try:
        rows: list[Any] = column.cast(_in_microseconds(kind)).to_pylist()
    except (pa.ArrowInvalid, OverflowError, ValueError) as error:
        raise InputError(
            f"column {name} of type {kind}: a value is no Python value ({error}); Python counts moments in microseconds"
            ' of the years 1 to 9999: leave the column out with columns=, or use batch_format="arrow" or "numpy"'
        ) from error
    return rows


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """The type with microseconds for nanoseconds, inside nested types too."""
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    if pa.types.is_map(kind):
        return pa.map_(_in_microseconds(kind.key_type), _in_microseconds(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_microseconds(field.type)) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    return kind
