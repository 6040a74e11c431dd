"""From a piece of the stream to what a training loop takes: processed columns, as a batch or as rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import InputError
from headrace.stream.loader.options import VALID, BatchFormat
from headrace.stream.read.batch import Batch, import_torch, make_batch
from headrace.stream.read.columns import from_table, gather
from headrace.tabular.fields import is_number
from headrace.tabular.processors import Processor, values_of


def processed(table: pa.Table, processors: Mapping[str, Processor], columns: tuple[str, ...]) -> dict[str, Any]:
    """The table's columns in this order, each with its processor run over it; then the mask of real rows."""
    done: dict[str, Any] = {}
    for name in columns:
        column = table[name].combine_chunks()
        done[name] = processors[name].process_column(column) if name in processors else column
    done[VALID] = table[VALID].combine_chunks()
    return done


def rows_of(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each row as a dict of Python values."""
    names = list(columns)
    for values in zip(*map(values_of, columns.values()), strict=True):
        yield dict(zip(names, values, strict=True))


def batch_of(columns: Mapping[str, Any], batch_format: BatchFormat) -> Batch:
    """The columns as a batch of the stream's form; what processors made keeps its own where it fits.

    Raises `InputError` for missing values that the form cannot hold.
    """
    if batch_format == "arrow":
        return pa.table({name: _in_arrow(name, column) for name, column in columns.items()})
    if batch_format == "rows":
        return list(rows_of(columns))
    arrow = {name: column for name, column in columns.items() if isinstance(column, pa.Array)}
    _refuse_missing(arrow)
    batch = _as_streamed(pa.table(arrow), batch_format) if arrow else {}
    convert = _in_torch if batch_format == "torch" else _in_numpy
    return {name: batch[name] if name in batch else convert(column) for name, column in columns.items()}


def _as_streamed(table: pa.Table, batch_format: BatchFormat) -> dict[str, Any]:
    """The table as the stream itself gives it."""
    columns = gather([from_table(table, arrow=False, where="batch")], None)
    batch = make_batch(columns, batch_format)
    assert isinstance(batch, dict)
    return batch


def _refuse_missing(columns: Mapping[str, pa.Array]) -> None:
    for name, column in columns.items():
        kind = column.type
        if column.null_count and is_number(kind) and not pa.types.is_floating(kind):
            raise InputError(
                f"column {name}: {column.null_count} of {len(column)} values of a batch are missing, which {kind}"
                f" cannot hold; fill them with fill_missing_value(columns={{{name!r}: …}}), or declare the column in"
                " tab_field_list"
            )


def _in_torch(column: Any) -> Any:
    torch = import_torch()
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return torch.from_numpy(column if column.flags.writeable else column.copy())
    if isinstance(column, list) and _all_numbers(column):
        return torch.from_numpy(np.array(column))
    return column.tolist() if isinstance(column, np.ndarray) else column


def _in_numpy(column: Any) -> Any:
    if hasattr(column, "detach"):
        return column.detach().cpu().numpy()
    if isinstance(column, list):
        return np.array(column) if _all_numbers(column) else np.fromiter(column, object, len(column))
    return column


def _in_arrow(name: str, column: Any) -> pa.Array:
    values = column.detach().cpu().numpy() if hasattr(column, "detach") else column
    if isinstance(values, np.ndarray) and values.ndim > 1:
        flat = pa.array(values.reshape(-1))
        for size in reversed(values.shape[1:]):
            flat = pa.FixedSizeListArray.from_arrays(flat, size)
        return flat
    try:
        return values if isinstance(values, pa.Array) else pa.array(values)
    except pa.ArrowException as error:
        raise InputError(
            f"column {name}: what its processor gave is no Arrow column ({error}); use another batch_format"
        ) from error


def _all_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, bool | int | float | np.number | np.bool_) for value in values)
