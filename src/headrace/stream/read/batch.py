"""Make batches in the formats of training: dicts of torch tensors or numpy arrays, Arrow tables, or
lists of rows.

    column                        torch                          numpy                    arrow
    integer, float, bool          tensor of that type            array of that type       as it is
    null float                    NaN                            NaN                      null
    date, timestamp, duration     int64 in the column's unit     datetime64, timedelta64  as it is
    fixed-size list of numbers    tensor [rows, size]            array [rows, size]       as it is
    list of numbers               list of tensors, None if null  list of arrays, None     as it is
      with lists="padded"         tensor [rows, longest]         array [rows, longest]    –
    text                          list of str, None if null      object array             as it is
    everything else               list of Python objects         object array             as it is

A date32 counts days in torch. Tensors share memory with the arrays, which are made for this pass
alone, so a batch may be written to. Rows are dicts of plain Python values, which is slow but
convenient:

    null                            None
    date; timestamp                 datetime.date; datetime.datetime, with its time zone
    duration; time                  datetime.timedelta; datetime.time
    list; struct; map               list; dict; list of (key, value)
    decimal; binary; text           decimal.Decimal; bytes; str

A value that Python cannot represent raises `InputError` and is never changed: times finer than a
microsecond, years beyond 9999.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import InputError, MissingExtra, setting
from headrace.stream.loader.options import IN_ARROW, BatchFormat, RowForm
from headrace.stream.read.columns import Column, Columns
from headrace.stream.read.ragged import LENGTHS, Padding, Ragged, padded_batches

Batch: TypeAlias = dict[str, Any] | list[dict[str, Any]] | pa.Table


def make_batches(
    columns: Columns,
    batch_size: int,
    batch_format: BatchFormat,
    padding: Padding | None = None,
    form: RowForm | None = None,
) -> Iterator[Batch]:
    """Yield batches of `batch_size` rows, the last with the rest; a bool column `VALID` is the mask
    of real rows.

    padding: turns lists of numbers into matrices [rows, longest], with an additional column of
    their lengths. form: makes the batches of rows that are more than their columns. Batches share
    memory with the columns. Raises `InputError` for a null date or time in torch and for values
    that Python rows cannot represent, `MissingExtra` if torch is requested but not installed.
    """
    if batch_format in IN_ARROW:
        table = pa.table(
            {
                name: column if isinstance(column, pa.Array) else pa.array(column)
                for name, column in columns.items()
            }
        )
        slices = (table.slice(start, batch_size) for start in range(0, table.num_rows, batch_size))
        yield from slices if batch_format == "arrow" else map(python_rows, slices)
        return
    if form is not None:
        yield from form.batches(columns, batch_size, batch_format)
        return
    torch = None
    if batch_format == "torch":
        torch = import_torch()
    cuts: dict[str, Iterable[Any]] = {}
    for name, column in columns.items():
        if padding is not None and isinstance(column, Ragged):
            fill = padding.values.get(name, 0)
            matrices = padded_batches(column, batch_size, fill=fill, multiple=padding.multiple)
            if torch is None:
                cuts[name] = matrices
            else:
                cuts[name] = map(torch.from_numpy, matrices)
            cuts[name + LENGTHS] = _parts(name, column.lengths.copy(), batch_size, torch)
        else:
            cuts[name] = _parts(name, column, batch_size, torch)
    names = list(cuts)
    for parts in zip(*cuts.values(), strict=True):
        yield dict(zip(names, parts, strict=True))


def make_batch(
    columns: Columns,
    batch_format: BatchFormat,
    padding: Padding | None = None,
    form: RowForm | None = None,
) -> Batch:
    """Return all rows as one batch; see `make_batches`."""
    rows = len(next(iter(columns.values())))
    return next(make_batches(columns, max(1, rows), batch_format, padding, form))


def in_format(batch: dict[str, Any], batch_format: BatchFormat) -> dict[str, Any]:
    """Convert a batch to a format: for torch, arrays become tensors that share their memory.

    Other values, and batches of other formats, are returned unchanged.
    """
    if batch_format != "torch":
        return batch
    torch = import_torch()
    return {
        name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        for name, value in batch.items()
    }


def import_torch() -> Any:
    """Return the torch module. Raises `MissingExtra` if it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "torch") from error
    return torch


def _parts(name: str, column: Column, batch_size: int, torch: Any | None) -> Iterable[Any]:
    """Cut a column into batches, in the form of torch, or of numpy if `torch` is None."""
    parts: Iterable[Any] = _slices(column, batch_size)
    if isinstance(column, np.ndarray):
        if torch is None:
            return parts
        if column.dtype.kind in "mM":
            if np.isnat(column).any():
                raise InputError(
                    f"it holds {int(np.isnat(column).sum())} nulls among its {column.dtype}, and"
                    " torch has no missing time",
                    column=name,
                    remedy=(
                        "fill them when preparing, leave the column out with"
                        f" {setting('columns')}, or use {setting('batch_format', 'numpy')}"
                    ),
                )
            column = column.view(np.int64)
        # torch's own split releases the interpreter lock, and regains it late while other threads
        # decode.
        return map(torch.from_numpy, _slices(column, batch_size))
    if isinstance(column, Ragged):
        if torch is None:
            return map(list, parts)
        return ([None if row is None else torch.from_numpy(row) for row in part] for part in parts)
    objects = (_objects(name, part) for part in parts)
    if torch is None:
        return objects
    return (array.tolist() for array in objects)


def _slices(column: Any, batch_size: int) -> Iterator[Any]:
    return (
        column[start : start + batch_size] for start in range(0, max(1, len(column)), batch_size)
    )


def _objects(name: str, column: pa.Array) -> npt.NDArray[np.object_]:
    """Return the values as Python objects, None for nulls. Raises `InputError` as `python_rows`."""
    dtype = column.type
    # many times faster than to_pylist
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        return _texts(name, column)
    return np.fromiter(python_values(name, column), object, len(column))


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows in order.

    Raises `InputError` that names the column of a value that Python cannot represent.
    """
    names = table.schema.names
    columns = []
    for name, column in zip(names, table.columns, strict=True):
        dtype = column.type
        text = pa.types.is_string(dtype) or pa.types.is_large_string(dtype)
        number = (
            pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_boolean(dtype)
        )
        if text:
            columns.append(_texts(name, column).tolist())
            continue
        if number and not column.null_count:  # many times faster than to_pylist
            columns.append(column.to_numpy().tolist())
            continue
        columns.append(python_values(name, column))
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _texts(name: str, column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.object_]:
    """Return the values as str. Raises `InputError` for bytes that are no text."""
    try:
        chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
        texts: npt.NDArray[np.object_] = chunked.to_numpy()
    except pa.ArrowException:  # of no narrower type
        raise InputError(
            "it holds bytes that are not UTF-8, and so no text",
            column=name,
            remedy=(
                "write the column again as binary or as text in UTF-8, or leave it out with"
                f" {setting('columns')}"
            ),
        ) from None
    return texts


def python_values(name: str, column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values as Python objects. Raises `InputError` for one that cannot be."""
    dtype = column.type
    try:
        values: list[Any] = column.cast(_in_microseconds(dtype)).to_pylist()
    except (pa.ArrowException, OverflowError, ValueError, KeyError) as error:  # pytz: of a zone
        formats = ("arrow",) if pa.types.is_nested(dtype) else ("arrow", "numpy")
        raise InputError(
            f"a value of type {dtype} cannot be a Python value ({error})",
            column=name,
            remedy=(
                f"leave the column out with {setting('columns')}, or use"
                f" {setting('batch_format', *formats)}"
            ),
        ) from error
    return values


def _in_microseconds(dtype: pa.DataType) -> pa.DataType:
    """Return the type with microseconds in place of nanoseconds, inside nested types too."""
    if pa.types.is_nested(dtype):
        return _inside_in_microseconds(dtype)
    if pa.types.is_timestamp(dtype) and dtype.unit == "ns":
        return pa.timestamp("us", dtype.tz)
    if pa.types.is_duration(dtype) and dtype.unit == "ns":
        return pa.duration("us")
    if pa.types.is_time64(dtype) and dtype.unit == "ns":
        return pa.time64("us")
    return dtype


def _inside_in_microseconds(dtype: pa.DataType) -> pa.DataType:
    if pa.types.is_map(dtype):
        return pa.map_(_in_microseconds(dtype.key_type), _in_microseconds(dtype.item_type))
    if pa.types.is_struct(dtype):
        return pa.struct([field.with_type(_in_microseconds(field.type)) for field in dtype])
    is_large = pa.types.is_large_list(dtype)
    is_fixed = pa.types.is_fixed_size_list(dtype)
    if not (is_large or is_fixed or pa.types.is_list(dtype)):
        return dtype
    values = dtype.value_field.with_type(_in_microseconds(dtype.value_type))
    if is_large:
        return pa.large_list(values)
    return pa.list_(values, dtype.list_size if is_fixed else -1)
