"""Convert text columns to keys, numbers and declared types; strict, naming the first value that
does not fit. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InputError, setting
from headrace.formats.dates import advice, parse_dates, typed_times
from headrace.formats.dialect import TextDialect, null_setting
from headrace.formats.types import first_refused, is_text

_ISO_WITH_OFFSET = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*(Z|[+-]\d\d:?\d\d)")
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


def numbers(column: pa.ChunkedArray, dialect: TextDialect, name: str) -> pa.ChunkedArray:
    """Convert a column to float64; text must be a number.

    Raises `InputError` with the value and its row.
    """
    column = nulled(column, ("", *dialect.null_values))
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    plain = plain_numerals(column, dialect)
    if not is_text(column.type):
        return column.cast(pa.float64(), safe=False)
    try:
        return cast_text(plain, pa.float64())
    except pa.ArrowInvalid:
        row, _ = first_unreadable(plain, pa.float64())
        value = str(column[row].as_py())
        raise InputError(
            "it is not a number",
            row=row + 1,
            column=name,
            value=value,
            remedy=number_remedy(value, dialect),
        ) from None


_BLANKS = "[ \u00a0\u202f]"  # of a French thousand: no line breaks there
_GERMAN = re.compile(r"[-+]?(\d{1,3}(\.\d{3})+(,\d+)?|\d+,\d+)")
_ENGLISH = re.compile(r"[-+]?\d{1,3}(,\d{3})+(\.\d+)?")
_FRENCH = re.compile(rf"[-+]?\d{{1,3}}({_BLANKS}\d{{3}})+([.,]\d+)?")
_SWISS = re.compile(r"[-+]?\d{1,3}('\d{3})+(\.\d+)?")


def plain_numerals(column: pa.ChunkedArray, dialect: TextDialect) -> pa.ChunkedArray:
    """Write the numbers in a column of texts with a point and without marks of thousands.

    A text that is not a number of the dialect becomes one that is no number anywhere.
    """
    if dialect.plain_numbers or not is_text(column.type):
        return column
    if dialect.thousands == " ":
        mark = _BLANKS
    else:
        mark = re.escape(dialect.thousands or "")
    grouped = ""
    if dialect.thousands is not None:
        grouped = rf"[0-9]{{1,3}}({mark}[0-9]{{3}})+|"
    point = re.escape(dialect.decimal)
    pattern = (
        rf"^[-+]?(({grouped}[0-9]+)({point}[0-9]*)?|{point}[0-9]+)([eE][-+]?[0-9]+)?$"
        "|^[-+]?(?i:nan|inf|infinity)$"
    )
    fits = pc.match_substring_regex(column, pattern)
    plain = column
    if dialect.thousands is not None:
        plain = pc.replace_substring_regex(plain, mark, "")
    if dialect.decimal != ".":
        plain = pc.replace_substring(plain, dialect.decimal, ".")
    if pc.all(fits, min_count=0).as_py():
        return plain
    return pc.if_else(fits, plain, pa.scalar("?", column.type))


def number_remedy(value: str, dialect: TextDialect) -> str:
    """Advise on a text that is no number: the part of the dialect that would read it."""
    options: dict[str, str | None] = {}
    if dialect.plain_numbers:
        if _GERMAN.fullmatch(value):
            options = {"decimal": ","}
            if "." in value:
                options["thousands"] = "."
        elif _ENGLISH.fullmatch(value):
            options = {"thousands": ","}
        elif _SWISS.fullmatch(value):
            options = {"thousands": "'"}
        elif _FRENCH.fullmatch(value):
            options = {"thousands": " "}
            if "," in value:
                options["decimal"] = ","
    if options:
        return f"give {setting('dialect', options)}"
    return _correct(value)


def _correct(value: str) -> str:
    if any(map(str.isdigit, value)):
        return "correct it"
    return f"correct it, or if it means missing, give {null_setting(value)}"


def nulled(column: pa.ChunkedArray, null_values: Sequence[str]) -> pa.ChunkedArray:
    """Replace the values of a text column that are among `null_values` by null."""
    if not null_values or not is_text(column.type):
        return column
    absent = pc.is_in(column, value_set=pa.array(list(null_values), column.type))
    if not pc.any(absent).as_py():
        return column
    return pc.if_else(absent, pa.scalar(None, column.type), column)


def joined_time(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Return the column of a time; of a date and a clock, their texts with a blank between them.

    Null where either is.
    """
    if len(columns) == 1:
        return columns[0]
    texts = [column.cast(pa.large_string()) for column in columns]
    return pc.binary_join_element_wise(*texts, pa.scalar(" ", pa.large_string()))


def with_one_time(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """Join the columns of a date and a clock, in that of the date; one column stays as it is."""
    if len(names) == 1:
        return table
    times = joined_time([nulled(table[name], ("",)) for name in names])
    table = table.set_column(table.column_names.index(names[0]), names[0], times)
    return table.drop_columns(list(names[1:]))


def typed(
    table: pa.Table,
    types: Mapping[str, pa.DataType],
    dialect: TextDialect,
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
        column = nulled(columns[index], ("", *dialect.null_values))
        try:
            columns[index] = _converted(column, type_, dialect)
        except InputError as error:
            if isinstance(error.row, int):
                error.row += first_row
            raise error.at(path=path, column=name) from None
        fields[index] = pa.field(name, type_)
        changed = True
    if not changed:
        return table
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=table.schema.metadata))


def _converted(
    column: pa.ChunkedArray, type_: pa.DataType, dialect: TextDialect
) -> pa.ChunkedArray:
    """Convert texts to a type. Raises `InputError` with row and value."""
    temporal = pa.types.is_date(type_) or pa.types.is_timestamp(type_)
    if temporal and dialect.time_format:
        return typed_times(column, type_, dialect.time_format)
    plain = column
    if not temporal and not pa.types.is_boolean(type_):
        plain = plain_numerals(column, dialect)
    try:
        return cast_text(plain, type_)
    except pa.ArrowInvalid:
        row, _ = first_unreadable(plain, type_)
        value = str(column[row].as_py())
        if temporal:
            remedy = f"{_time_remedy(value, type_)}, or declare another type"
        else:
            remedy = f"{number_remedy(value, dialect)}, or declare another type"
        raise InputError(
            f"it is declared {type_}, which cannot hold it", row=row + 1, value=value, remedy=remedy
        ) from None


def _time_remedy(value: str, type_: pa.DataType) -> str:
    """Advise on a text that is no time of a declared type in ISO form."""
    if _ISO_WITH_OFFSET.fullmatch(value):
        return "it has a zone: declare it datetime_utc"
    if parse_dates(pa.chunked_array([[value]]), "iso").unreadable[0]:
        return advice(value, "iso")
    if pa.types.is_date(type_):
        return "it has a time of day: declare it datetime"
    form = setting("dialect", {"time_format": "iso"})
    return f"it has no zone: declare it datetime, or give {form} if it is UTC"


def cast_text(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Convert texts to a type that holds what they say.

    Arrow alone would read `0x10` as 16, and a number that is too large for a float as infinity.
    Raises `pa.ArrowInvalid`, also for these.
    """
    values = column.cast(type_)
    if pa.types.is_integer(type_):
        odd = _hexadecimal(column)
    elif pa.types.is_floating(type_):
        odd = _overflowed(column, values)
    else:
        odd = False
    if odd:
        raise pa.ArrowInvalid(f"a text is not a number that {type_} holds")
    return values


def _hexadecimal(column: pa.ChunkedArray) -> bool:
    """Check whether one of the integers is written in hexadecimal."""
    for chunk in column.iterchunks():
        data = chunk.buffers()[-1]
        # The data of other rows may hold the letter too, so it only says where to look.
        if data is None or not (np.frombuffer(data, np.uint8) | 0x20 == ord("x")).any():
            continue
        if pc.any(pc.match_substring(chunk, "x", ignore_case=True)).as_py():
            return True
    return False


def _overflowed(texts: pa.ChunkedArray, values: pa.ChunkedArray) -> bool:
    """Check whether one of the numbers became infinite."""
    infinite = pc.is_inf(values)
    if not pc.any(infinite).as_py():
        return False
    words = pc.utf8_lower(texts.filter(infinite))
    return not pc.all(pc.match_substring_regex(words, "^[+-]?inf(inity)?$")).as_py()


def first_unreadable(column: pa.ChunkedArray, type_: pa.DataType) -> tuple[int, str]:
    """Find row and text of the first value that does not convert to a type."""
    row = first_refused(column, partial(cast_text, type_=type_))
    return row, str(column[row].as_py())
