"""Batches in the form training wants: a dict of torch tensors, a dict of numpy arrays, or an Arrow table.

    column                        torch                          numpy                    arrow
    integer, float, bool          tensor of that type            array of that type       as it is
    null float                    NaN                            NaN                      null
    date, timestamp, duration     int64 in the column's unit     datetime64, timedelta64  as it is
    fixed-size list of numbers    tensor [rows, size]            array [rows, size]       as it is
    list of numbers               list of tensors, None if null  list of arrays, None     as it is
    text                          list of str, None if null      object array             as it is
    everything else               list of Python objects         object array             as it is

A date32 counts days in torch. Tensors share memory with the arrays, which are
made for this pass alone, so a batch may be written to.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import InputError, MissingExtra
from headrace.stream.columns import Column, Columns
from headrace.stream.options import VALID, BatchFormat

Batch: TypeAlias = dict[str, Any] | pa.Table


def make_batch(columns: Columns, valid: npt.NDArray[np.bool_] | None, batch_format: BatchFormat) -> Batch:
    """A batch of these columns, and the mask of real rows where there is one.

    Raises `InputError` for a null date or moment in torch, `MissingExtra` if torch is asked for and not installed.
    """
    if batch_format == "arrow":
        arrays = dict(columns) if valid is None else {**columns, VALID: pa.array(valid)}
        table: Batch = pa.table(arrays)
        return table
    convert = _torch_column if batch_format == "torch" else _numpy_column
    batch = {name: convert(name, column) for name, column in columns.items()}
    if valid is not None:
        batch[VALID] = convert(VALID, valid)
    return batch


def import_torch() -> Any:
    """The torch module. Raises `MissingExtra` if it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "torch") from error
    return torch


def _torch_column(name: str, column: Column) -> Any:
    torch = import_torch()
    if isinstance(column, np.ndarray):
        if column.dtype.kind in "mM":
            if np.isnat(column).any():
                raise InputError(
                    f"column {name}: {int(np.isnat(column).sum())} nulls among its {column.dtype}, and torch has no"
                    " missing time; fill them when preparing, leave the column out with columns=, or use"
                    ' batch_format="numpy"'
                )
            column = column.view(np.int64)
        return torch.from_numpy(column)
    if _is_number_list(column.type):
        flat, lengths = _flat_numbers(name, column)
        parts: list[Any] = list(torch.split(torch.from_numpy(flat), lengths.tolist()))
        return _with_nulls(parts, column)
    return column.to_pylist()


def _numpy_column(name: str, column: Column) -> Any:
    if isinstance(column, np.ndarray):
        return column
    if _is_number_list(column.type):
        flat, lengths = _flat_numbers(name, column)
        return _with_nulls(np.split(flat, np.cumsum(lengths)[:-1]), column)
    return np.fromiter(column.to_pylist(), object, len(column))


def _is_number_list(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    return bool(pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type))


def _flat_numbers(name: str, column: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """The values of all lists end to end, as a copy, and how many each list has; a null list has none."""
    values = column.flatten()
    if values.null_count and not pa.types.is_floating(values.type):
        raise InputError(
            f"column {name}: {values.null_count} nulls inside lists of {values.type}, which only floats can hold;"
            ' fill them when preparing, leave the column out with columns=, or use batch_format="arrow"'
        )
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.array(values.to_numpy(zero_copy_only=False)), lengths


def _with_nulls(parts: list[Any], column: pa.Array) -> list[Any]:
    if column.null_count:
        for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            parts[row] = None
    return parts
