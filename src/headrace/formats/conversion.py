"""Convert tables for other libraries, whose refusals become errors that name the column.

Polars has no decimals of more than 128 bits and no struct with two fields of one name, and neither
it nor Python knows a zone that the database of zones lacks. Some of these end in a panic, which is
no `Exception`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import TypeVar

import pyarrow as pa

from headrace.errors import InputError

Result = TypeVar("Result")
_REASON_CHARACTERS = 160


def convert(
    table: pa.Table,
    conversion: Callable[[pa.Table], Result],
    *,
    purpose: str,
    remedy: str,
    path: str | PathLike[str] | None = None,
) -> Result:
    """Return the result of a conversion.

    purpose: what refuses, such as "csv". Raises `InputError` with the first column that cannot be
    converted by itself.
    """
    try:
        return conversion(table)
    except BaseException as error:
        if not _is_refusal(error):
            raise
        reason = _reason(error)
    for index, field in enumerate(table.schema):
        try:
            conversion(table.select([index]))
        except BaseException as error:
            if not _is_refusal(error):
                raise
            raise InputError(
                f"{purpose} cannot hold {field.type} ({_reason(error)})",
                path=path,
                column=field.name,
                remedy=remedy,
            ) from None
    raise InputError(f"{purpose} cannot hold its columns ({reason})", path=path, remedy=remedy)


def refused_columns(schema: pa.Schema, conversion: Callable[[pa.Table], object]) -> Sequence[str]:
    """Return the names of columns whose types cannot be converted, whatever their values."""
    tried: dict[pa.DataType, bool] = {}
    refused = []
    for field in schema:
        if field.type not in tried:
            empty = pa.schema([pa.field("column", field.type)]).empty_table()
            try:
                conversion(empty)
                tried[field.type] = False
            except BaseException as error:
                if not _is_refusal(error):
                    raise
                tried[field.type] = True
        if tried[field.type]:
            refused.append(field.name)
    return refused


def _is_refusal(error: BaseException) -> bool:
    """Check for errors of values and types: of Arrow, of Python, and of polars, also its panics."""
    if isinstance(error, InputError):
        return False
    # pytz, where it is installed, knows a zone or raises a `KeyError`
    if isinstance(error, pa.ArrowException | ValueError | TypeError | OverflowError | KeyError):
        return True
    names = {f"{base.__module__}.{base.__name__}" for base in type(error).__mro__}
    return not names.isdisjoint({"polars.exceptions.PolarsError", "pyo3_runtime.PanicException"})


def _reason(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:_REASON_CHARACTERS]
