"""Derive columns: class labels, the main target, the source of a row. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InputError, setting
from headrace.formats.dialect import TextDialect, null_setting
from headrace.formats.text_columns import as_text, numbers
from headrace.formats.types import is_text

_WHOLE = re.compile(r"([+-]?[0-9]+)(?:\.0*)?")
_NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf|infinity)", re.IGNORECASE
)


def main_target(
    table: pa.Table, targets: Sequence[str], main: str, dialect: TextDialect
) -> pa.ChunkedArray:
    """Return the row-wise maximum of the other targets; nulls are skipped, and a row of nulls is
    null.

    The result of typed columns has their common number type. The result of text columns is text,
    with whole numbers written without a point.
    """
    others = [name for name in targets if name != main]
    columns = [table[name] for name in others]
    if all(_fits_int64(column.type) for column in columns):
        columns = [_as_int64(column) for column in columns]
    else:
        columns = [numbers(table[name], dialect, name) for name in others]
    if len(columns) == 1:
        highest = columns[0]
    else:
        highest = pc.max_element_wise(*columns, skip_nulls=True)
    if is_text(table.schema.field(main).type):
        return number_texts(highest.cast(pa.float64(), safe=False))
    return highest


def _fits_int64(data_type: pa.DataType) -> bool:
    is_number: bool = pa.types.is_integer(data_type) or pa.types.is_boolean(data_type)
    return is_number and data_type != pa.uint64()


def _as_int64(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return column.cast(pa.int64())


def number_texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Write float64 as text: whole numbers without a point, others in the shortest form that reads
    back.
    """
    is_integer = pc.and_kleene(pc.equal(pc.floor(values), values), pc.less(pc.abs(values), 2.0**53))
    integers = (
        pc.if_else(is_integer, values, pa.scalar(0.0))
        .cast(pa.int64(), safe=False)
        .cast(pa.string())
    )
    return pc.if_else(
        pc.fill_null(is_integer, True),
        pc.if_else(pc.is_null(values), pa.scalar(None, pa.string()), integers),
        values.cast(pa.string()),
    )


def label_map(distinct: Sequence[str], name: str) -> dict[str, int]:
    """Number all label texts of the source, in one map for all shards.

    name: of the column, for errors.

    If all labels are whole numbers ("0", "1.0"), they keep their number. Any other set of texts
    becomes 0..k-1 in sorted order. Raises `InputError` if whole numbers are mixed with other
    numbers, which is not a classification.
    """
    matches = [_WHOLE.fullmatch(text) for text in distinct]
    values = [int(match[1]) for match in matches if match is not None]
    if len(values) == len(distinct) and all(-(2**63) <= value < 2**63 for value in values):
        return dict(zip(distinct, values, strict=True))
    has_digits = any(map(str.isdigit, "".join(distinct)))
    if has_digits and all(map(_NUMBER.fullmatch, distinct)):
        for text, match in zip(distinct, matches, strict=True):
            if match is None:
                raise InputError(
                    "appears among numbers and is not a class",
                    column=name,
                    value=text,
                    remedy=(
                        f"if it means missing, give {null_setting(text)}, or leave"
                        f" {setting('label')} out for regression targets"
                    ),
                )
    return {text: index for index, text in enumerate(sorted(distinct))}


def label_texts(column: pa.ChunkedArray, null_values: Sequence[str]) -> pa.ChunkedArray:
    """Return labels as text, in the form that `label_map` uses."""
    if pa.types.is_floating(column.type):
        return number_texts(
            pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column).cast(pa.float64())
        )
    if pa.types.is_boolean(column.type):
        return column.cast(pa.int8()).cast(pa.string())
    return as_text(column, null_values, "the label column").cast(pa.string())


def class_numbers(texts: pa.ChunkedArray, classes: Mapping[str, int]) -> pa.ChunkedArray:
    """Return the int64 class of every label text; null stays null."""
    indices = pc.index_in(texts, value_set=pa.array(list(classes), pa.string()))
    table = pa.array(list(classes.values()), pa.int64())
    return pa.chunked_array([table.take(chunk) for chunk in indices.chunks], pa.int64())


def with_lineage(table: pa.Table, shard: str, first_row: int) -> pa.Table:
    """Add the source shard and row number (from 0) of every row."""
    count = table.num_rows
    names = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(count, np.int32)), pa.array([shard])
    ).cast(pa.string())
    table = table.append_column(pa.field("source_shard", pa.string(), nullable=False), names)
    rows = pa.array(np.arange(first_row, first_row + count, dtype=np.int64))
    return table.append_column(pa.field("source_row", pa.int64(), nullable=False), rows)
