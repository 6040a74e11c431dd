"""Convert text columns to keys, numbers and declared types; strict, naming the first value that
does not fit. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InputError, setting_name
from headrace.formats.types import is_text

_SCALAR_TYPES = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_decimal,
    pa.types.is_binary,
    pa.types.is_fixed_size_binary,
)

# Texts that pandas reads as missing by default. Here text stays text, so their occurrence is
# reported.
MEANS_MISSING = frozenset(
    {
        *("NA", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "null", "NULL", "None", "NaT"),
        *("nan", "-nan", "NaN", "-NaN", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
    }
)


def as_text(
    column: pa.ChunkedArray,
    null_values: Sequence[str],
    name: str,
    path: str | PathLike[str] | None = None,
) -> pa.ChunkedArray:
    """Convert a column to text keys; empty text, NaN and `null_values` are null, numbers their
    decimal text.

    name, path: of the column and its file, for messages.

    Raises `InputError` for types that cannot be keys (lists, structs).
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not is_text(column.type):
        if not any(test(column.type) for test in _SCALAR_TYPES):
            raise InputError(
                "it cannot be a key",
                path=path,
                column=name,
                value=str(column.type),
                remedy="name a column of text, numbers or dates",
            )
        if pa.types.is_binary(column.type) or pa.types.is_fixed_size_binary(column.type):
            column = column.cast(pa.binary())
        if pa.types.is_floating(column.type):
            column = _without_exponents(
                pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
            )
    try:
        column = column.cast(pa.large_string())
    except pa.ArrowInvalid:
        raise InputError(
            "it holds bytes that are not UTF-8",
            path=path,
            column=name,
            remedy="convert it to text",
        ) from None
    return nulled(column, ("", *null_values))


def _without_exponents(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert floats to text, those of whole 64-bit numbers as the integer: an id column with a
    null is often float.
    """
    values = column.cast(pa.float64())
    is_integer = pc.and_(pc.equal(pc.trunc(values), values), pc.less(pc.abs(values), 2.0**63))
    integers = pc.if_else(is_integer, values, pa.scalar(None, pa.float64())).cast(pa.int64())
    return pc.coalesce(integers.cast(pa.large_string()), column.cast(pa.large_string()))


def numbers(column: pa.ChunkedArray, null_values: Sequence[str], name: str) -> pa.ChunkedArray:
    """Convert a column to float64; text must be a number.

    Raises `InputError` with the value and its row.
    """
    column = nulled(column, ("", *null_values))
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    try:
        return column.cast(pa.float64(), safe=False)
    except pa.ArrowInvalid:
        row, value = first_unreadable(column, pa.float64())
        raise InputError(
            "it is not a number",
            row=row + 1,
            column=name,
            value=value,
            remedy=f"correct it or name it in {setting_name('null_values')}",
        ) from None


def with_points(column: pa.ChunkedArray, decimal: str) -> pa.ChunkedArray:
    """Replace another decimal mark by a point in a column of texts; a text with a point becomes an
    invalid number.
    """
    if decimal == "." or not is_text(column.type):
        return column
    return pc.replace_substring(pc.replace_substring(column, ".", ".."), decimal, ".")


def nulled(column: pa.ChunkedArray, null_values: Sequence[str]) -> pa.ChunkedArray:
    """Replace the values of a text column that are among `null_values` by null."""
    if not null_values or not is_text(column.type):
        return column
    absent = pc.is_in(column, value_set=pa.array(list(null_values), column.type))
    if not pc.any(absent).as_py():
        return column
    return pc.if_else(absent, pa.scalar(None, column.type), column)


def typed(
    table: pa.Table,
    types: Mapping[str, pa.DataType],
    null_values: Sequence[str],
    path: str | PathLike[str],
    first_row: int,
) -> pa.Table:
    """Convert text columns to their declared types.

    Raises `InputError` naming file, row, column and value.
    """
    index_of_name = {name: index for index, name in enumerate(table.column_names)}
    columns = list(table.columns)
    fields = list(table.schema)
    changed = False
    for name, type_ in types.items():
        index = index_of_name.get(name)
        if index is None or not is_text(fields[index].type) or is_text(type_):
            continue
        column = nulled(columns[index], ("", *null_values))
        try:
            columns[index] = column.cast(type_)
        except pa.ArrowInvalid:
            row, value = first_unreadable(column, type_)
            raise InputError(
                f"it is declared {type_}",
                path=path,
                row=first_row + row + 1,
                column=name,
                value=value,
                remedy=(
                    f"correct the value, name it in {setting_name('null_values')}, or declare"
                    " another type"
                ),
            ) from None
        fields[index] = pa.field(name, type_)
        changed = True
    if not changed:
        return table
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=table.schema.metadata))


def first_unreadable(column: pa.ChunkedArray, type_: pa.DataType) -> tuple[int, str]:
    """Find row and text of the first value that does not convert to a type, by bisection;
    O(rows).
    """
    low = 0
    high = len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            column.slice(low, middle - low).cast(type_)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low, str(column[low].as_py())
