"""Batches in the form training wants: a dict of torch tensors or of numpy arrays, an Arrow table, or a list of rows.

    column                        torch                          numpy                    arrow
    integer, float, bool          tensor of that type            array of that type       as it is
    null float                    NaN                            NaN                      null
    date, timestamp, duration     int64 in the column's unit     datetime64, timedelta64  as it is
    fixed-size list of numbers    tensor [rows, size]            array [rows, size]       as it is
    list of numbers               list of tensors, None if null  list of arrays, None     as it is
      with lists="padded"         tensor [rows, longest]         array [rows, longest]    (not offered)
    text                          list of str, None if null      object array             as it is
    everything else               list of Python objects         object array             as it is

A date32 counts days in torch. Tensors share memory with the arrays, which are
made for this pass alone, so a batch may be written to. Of rows see `python_rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import InputError, MissingExtra
from headrace.stream.loader.options import IN_ARROW, VALID, BatchFormat
from headrace.stream.packed.batches import PackedBatches
from headrace.stream.packed.packed_batch import packed_batches, packed_columns
from headrace.stream.read.columns import Column, Columns
from headrace.stream.read.padded import LENGTHS, Padding, padded_batches
from headrace.stream.read.python_rows import python_rows
from headrace.stream.read.ragged import Ragged

Batch: TypeAlias = dict[str, Any] | list[dict[str, Any]] | pa.Table


def make_batches(
    columns: Columns,
    batch_size: int,
    batch_format: BatchFormat,
    padding: Padding | None = None,
    packed: PackedBatches | None = None,
) -> Iterator[Batch]:
    """The rows as batches of `batch_size`, the last with what is left; a bool column `VALID` is the mask of real rows.

    padding: lists of numbers become matrices [rows, longest], with a column of their lengths more. packed: rows are
    bins, see `packed_batch`; other columns come beside, a value a bin. Batches share memory with the columns.
    Raises `InputError` for a null date or moment in torch and for what Python has no value for in rows, `MissingExtra`
    if torch is asked for and not installed.
    """
    if batch_format in IN_ARROW:
        table = pa.table(
            {name: column if isinstance(column, pa.Array) else pa.array(column) for name, column in columns.items()}
        )
        slices = (table.slice(start, batch_size) for start in range(0, table.num_rows, batch_size))
        yield from slices if batch_format == "arrow" else map(python_rows, slices)
        return
    if packed is not None:
        yield from _packed_batches(columns, batch_size, batch_format, packed)
        return
    cut = _torch_parts if batch_format == "torch" else _numpy_parts
    cuts: dict[str, Iterable[Any]] = {}
    for name, column in columns.items():
        if padding is not None and isinstance(column, Ragged):
            fill = padding.values.get(name, 0)
            matrices = padded_batches(column, batch_size, fill=fill, multiple=padding.multiple)
            cuts[name] = map(import_torch().from_numpy, matrices) if batch_format == "torch" else matrices
            cuts[name + LENGTHS] = cut(name, column.lengths.copy(), batch_size)
        else:
            cuts[name] = cut(name, column, batch_size)
    names = list(cuts)
    for parts in zip(*cuts.values(), strict=True):
        yield dict(zip(names, parts, strict=True))


def make_batch(
    columns: Columns,
    batch_format: BatchFormat,
    padding: Padding | None = None,
    packed: PackedBatches | None = None,
) -> Batch:
    """All rows as one batch; see `make_batches`."""
    rows = len(next(iter(columns.values())))
    return next(make_batches(columns, max(1, rows), batch_format, padding, packed))


def _packed_batches(
    columns: Columns, batch_size: int, batch_format: BatchFormat, settings: PackedBatches
) -> Iterator[Batch]:
    """Bins as batches, and the other columns of theirs beside, a value a bin."""
    (ids, mask, starts), rest = packed_columns(columns)
    made = packed_batches(ids, mask, starts, valid=rest.get(VALID), batch_size=batch_size, settings=settings)
    beside = make_batches(rest, batch_size, batch_format) if rest else ({} for _ in range(0, len(ids), batch_size))
    for batch, more in zip(made, beside, strict=True):
        assert isinstance(more, dict)
        yield {**in_format(batch, batch_format), **more}


def in_format(batch: dict[str, Any], batch_format: BatchFormat) -> dict[str, Any]:
    """Arrays as they are, or as the tensors that share their memory; other values as they are."""
    if batch_format != "torch":
        return batch
    torch = import_torch()
    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}


def import_torch() -> Any:
    """The torch module. Raises `MissingExtra` if it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("torch", "torch") from error
    return torch


def _torch_parts(name: str, column: Column, batch_size: int) -> Iterable[Any]:
    """A column cut into batches, in the form of torch."""
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
        parts: Iterable[Any] = torch.from_numpy(column).split(batch_size)  # one call for all batches
        return parts
    if isinstance(column, Ragged):
        return ([_tensor(torch, row) for row in part] for part in _slices(column, batch_size))
    return (_objects(part).tolist() for part in _slices(column, batch_size))


def _tensor(torch: Any, row: npt.NDArray[Any] | None) -> Any:
    return None if row is None else torch.from_numpy(row)


def _numpy_parts(_name: str, column: Column, batch_size: int) -> Iterable[Any]:
    """A column cut into batches, in the form of numpy."""
    if isinstance(column, np.ndarray):
        return _slices(column, batch_size)
    if isinstance(column, Ragged):
        return (list(part) for part in _slices(column, batch_size))
    return (_objects(part) for part in _slices(column, batch_size))


def _slices(column: Any, batch_size: int) -> Iterator[Any]:
    return (column[start : start + batch_size] for start in range(0, max(1, len(column)), batch_size))


def _objects(column: pa.Array) -> npt.NDArray[np.object_]:
    """The values as Python objects, None for nulls."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):  # many times faster than to_pylist
        texts: npt.NDArray[np.object_] = column.to_numpy(zero_copy_only=False)
        return texts
    return np.fromiter(column.to_pylist(), object, len(column))
