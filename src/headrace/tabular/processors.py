"""Process columns on their way to training, with steps that are chained by `>>`.

    lengths = FunctionProcessor(str.strip) >> FunctionProcessor(len)     # a value at a time
    lower = ColumnProcessor(pyarrow.compute.utf8_lower)                  # a whole column at a time

A step of your own is a class with `process(value)`, called once per value. If it can handle a whole
column at once, add `process_column`; then nothing runs per row. A column starts as a pyarrow array.
After a step it is whatever that step returned: an Arrow array, a numpy array, a tensor whose first
axis is the rows, or a list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import InputError, SettingsError, StreamError, setting_name
from headrace.stream.loader.options import VALID, BatchFormat
from headrace.stream.read.batch import Batch, import_torch, make_batch
from headrace.stream.read.columns import from_table, gather
from headrace.tabular.fields import is_number

_SHOWN = 60


class Processor(ABC):
    """One step. Its result for a value must not depend on other values."""

    @property
    def name(self) -> str:
        """Return the step's name in messages."""
        return type(self).__name__

    @abstractmethod
    def process(self, value: Any) -> Any:
        """Return the result for one value; a missing one is None, or NaN in a column of floats."""

    def process_column(self, column: Any) -> Any:
        """Return the results for a column, in order, one for each value.

        Raises `StreamError` naming a bad value.
        """
        values = values_of(column)
        done: list[Any] = []
        try:
            for value in values:
                done.append(self.process(value))
        except Exception as error:
            raise StreamError(
                f"{self.name} fails on {_text_of(values[len(done)])}: {type(error).__name__}:"
                f" {error}",
                value=values[len(done)],
                remedy="fix the processor, or fill missing values with fill_missing_value()",
            ) from error
        return done

    def __call__(self, value: Any) -> Any:
        """Return the result of `process`."""
        return self.process(value)

    def __rshift__(self, after: Processor | Callable[[Any], Any]) -> Chain:
        """Chain this step and the other.

        Raises `SettingsError` if that is neither a processor nor a function.
        """
        return Chain((self, as_processor(after)))

    def __rrshift__(self, before: Callable[[Any], Any]) -> Chain:
        return Chain((as_processor(before), self))


class FunctionProcessor(Processor):
    """A function of one value."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        if not callable(function):
            raise SettingsError(
                f"{_text_of(function)} is a {type(function).__name__}",
                setting="processor",
                remedy="give a Processor or function",
            )
        self.function = function

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def process(self, value: Any) -> Any:
        """Return the function's result."""
        return self.function(value)


class ColumnProcessor(FunctionProcessor):
    """A function of a whole column that returns as many values; the fast way.

    It gets an Arrow array, or the result of the previous step; a list is converted to an Arrow
    array.
    """

    def process(self, value: Any) -> Any:
        """Return the result for one value."""
        return values_of(self.process_column([value]))[0]

    def process_column(self, column: Any) -> Any:
        """Return the function's result.

        Raises `StreamError` if it fails or returns another number of values.
        """
        try:
            done = self.function(pa.array(column) if isinstance(column, list) else column)
        except Exception as error:
            raise StreamError(
                f"{self.name} fails on a column of {len(column)} values that begins with"
                f" {_text_of(values_of(column[:1]))}: {type(error).__name__}: {error}",
                remedy="fix the processor",
            ) from error
        if isinstance(done, pa.ChunkedArray):
            done = done.combine_chunks()
        if not isinstance(done, Sequence | np.ndarray | pa.Array) and not hasattr(done, "detach"):
            raise StreamError(
                f"{self.name} gave a {type(done).__name__} for a column",
                remedy="give an array, a tensor or a list",
            )
        if len(done) != len(column):
            raise StreamError(
                f"{self.name} gave {len(done)} values for {len(column)}",
                remedy="give one for each",
            )
        return done


class Chain(Processor):
    """Steps in sequence, as made by `>>`."""

    def __init__(self, steps: Sequence[Processor]) -> None:
        inner = [step.steps if isinstance(step, Chain) else (step,) for step in steps]
        self.steps: tuple[Processor, ...] = tuple(step for part in inner for step in part)

    @property
    def name(self) -> str:
        """The names of the steps."""
        return " >> ".join(step.name for step in self.steps)

    def process(self, value: Any) -> Any:
        """Return the value after every step."""
        for step in self.steps:
            value = step.process(value)
        return value

    def process_column(self, column: Any) -> Any:
        """Return the column after every step, each taking it whole where it can."""
        for step in self.steps:
            column = step.process_column(column)
        return column


def as_processor(step: Processor | Callable[[Any], Any]) -> Processor:
    """Return a processor unchanged, or wrap a function of one value.

    Raises `SettingsError` on anything else.
    """
    if isinstance(step, Processor):
        return step
    return FunctionProcessor(step)


def values_of(column: Any) -> list[Any]:
    """Return a column as Python values, or as arrays or tensors if it has more axes.

    Missing is None, in floats NaN.
    """
    values: list[Any]
    if isinstance(column, pa.Array):
        is_float = pa.types.is_floating(column.type)
        if is_float:
            values = column.to_numpy(zero_copy_only=False).tolist()
        else:
            values = column.to_pylist()
    elif getattr(column, "ndim", 0) == 1 and hasattr(column, "tolist"):
        values = column.tolist()
    else:
        if isinstance(column, list):
            values = column
        else:
            values = list(column)
    return values


def rows_of(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each row as a dict of Python values."""
    names = list(columns)
    for values in zip(*map(values_of, columns.values()), strict=True):
        yield dict(zip(names, values, strict=True))


def processed(
    table: pa.Table, processors: Mapping[str, Processor], columns: tuple[str, ...]
) -> dict[str, Any]:
    """Return the table's columns in this order, each with its processor run over it; then the mask
    of real rows.
    """
    arrays = {name: table[name].combine_chunks() for name in (*columns, VALID)}
    return {
        name: processors[name].process_column(column) if name in processors else column
        for name, column in arrays.items()
    }


def batch_of(columns: Mapping[str, Any], batch_format: BatchFormat) -> Batch:
    """Return the columns as a batch in the stream's format; results of processors keep their own
    type where it fits.

    Raises `InputError` for missing values that the form cannot hold.
    """
    if batch_format == "arrow":
        return pa.table({name: _in_arrow(name, column) for name, column in columns.items()})
    if batch_format == "rows":
        return list(rows_of(columns))
    arrow = {name: column for name, column in columns.items() if isinstance(column, pa.Array)}
    for name, column in arrow.items():
        dtype = column.type
        if column.null_count and is_number(dtype) and not pa.types.is_floating(dtype):
            raise InputError(
                f"{column.null_count} of {len(column)} values of a batch are missing, which"
                f" {dtype} cannot hold",
                column=name,
                remedy=(
                    f"fill them with fill_missing_value(columns={{{name!r}: …}}), or declare the"
                    " column in tab_field_list"
                ),
            )
    batch: Any = {}
    if arrow:
        batch = make_batch(
            gather([from_table(pa.table(arrow), arrow=False, where="batch")], None), batch_format
        )
    if batch_format == "torch":
        convert = _in_torch
    else:
        convert = _in_numpy
    return {
        name: batch[name] if name in batch else convert(column) for name, column in columns.items()
    }


def _in_torch(column: Any) -> Any:
    torch = import_torch()
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return torch.from_numpy(column if column.flags.writeable else column.copy())
    if isinstance(column, list) and _all_numbers(column):
        return torch.from_numpy(np.array(column))
    if isinstance(column, np.ndarray):
        return column.tolist()
    return column


def _in_numpy(column: Any) -> Any:
    if hasattr(column, "detach"):
        return column.detach().cpu().numpy()
    if isinstance(column, list):
        if _all_numbers(column):
            return np.array(column)
        return np.fromiter(column, object, len(column))
    return column


def _in_arrow(name: str, column: Any) -> pa.Array:
    if hasattr(column, "detach"):
        values = column.detach().cpu().numpy()
    else:
        values = column
    if isinstance(values, np.ndarray) and values.ndim > 1:
        flat = pa.array(values.reshape(-1))
        for size in reversed(values.shape[1:]):
            flat = pa.FixedSizeListArray.from_arrays(flat, size)
        return flat
    try:
        if isinstance(values, pa.Array):
            return values
        return pa.array(values)
    except pa.ArrowException as error:
        raise InputError(
            f"what its processor gave is not an Arrow column ({error})",
            column=name,
            remedy=f"use another {setting_name('batch_format')}",
        ) from error


def _all_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, bool | int | float | np.number | np.bool_) for value in values)


def _text_of(value: Any) -> str:
    text = repr(value)
    if len(text) <= _SHOWN:
        return text
    return text[: _SHOWN - 1] + "…"
