"""Columns as text keys and as numbers. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InputError
from headrace.formats.schema import is_text
from headrace.formats.typed import first_unreadable, nulled

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


def as_text(column: pa.ChunkedArray, null_values: Sequence[str], role: str) -> pa.ChunkedArray:
    """A column as text keys; empty text, NaN and `null_values` are null. Numbers are their decimal text.

    Raises `InputError` for types that are no key (lists, structs).
    """
    if not is_text(column.type):
        if not any(test(column.type) for test in _SCALAR_TYPES):
            raise InputError(f"{role} is {column.type}, which is no key; name a column of text, numbers or dates")
        if pa.types.is_binary(column.type) or pa.types.is_fixed_size_binary(column.type):
            column = column.cast(pa.binary())
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    try:
        column = column.cast(pa.large_string())
    except pa.ArrowInvalid:
        raise InputError(f"{role} holds bytes that are not UTF-8; convert it to text") from None
    return nulled(column, ("", *null_values))


def numbers(column: pa.ChunkedArray, null_values: Sequence[str], name: str) -> pa.ChunkedArray:
    """A column as float64; text must be a number. Raises `InputError` with the value and its row in the column."""
    column = nulled(column, ("", *null_values))
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    try:
        return column.cast(pa.float64(), safe=False)
    except pa.ArrowInvalid:
        row, value = first_unreadable(column, pa.float64())
        raise InputError(
            f"row {row + 1}: {name} is {value!r}, which is no number; correct it or name it in null_values"
        ) from None
