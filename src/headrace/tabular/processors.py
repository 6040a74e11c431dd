"""What is done to a column on its way to training: steps that are chained with `>>`.

    lengths = FunctionProcessor(str.strip) >> FunctionProcessor(len)     # a value at a time
    lower = ColumnProcessor(pyarrow.compute.utf8_lower)                  # a whole column at a time

A step of its own is a class with `process(value)`; it is called once per value. Where a column can be done at once,
give `process_column` too: nothing then runs per row. A column is a pyarrow array as it was read; after a step it is
what that step gave: an Arrow array, a numpy array, a tensor whose first axis is the rows, or a list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import SettingsError, StreamError

_SHOWN = 60


class Processor(ABC):
    """One step; the same value gives the same result, whatever its neighbours are."""

    @property
    def name(self) -> str:
        """What this step is called in messages."""
        return type(self).__name__

    @abstractmethod
    def process(self, value: Any) -> Any:
        """The result for one value; a missing one is None, or NaN in a column of floats."""

    def process_column(self, column: Any) -> Any:
        """The results for a column, in order, as many as it has values. Raises `StreamError` naming a bad value."""
        values = values_of(column)
        done: list[Any] = []
        try:
            for value in values:
                done.append(self.process(value))
        except Exception as error:
            raise StreamError(
                f"{self.name}: fails on {_shown(values[len(done)])}: {type(error).__name__}: {error};"
                " mend the processor, or fill missing values with fill_missing_value()"
            ) from error
        return done

    def __call__(self, value: Any) -> Any:
        """As `process`."""
        return self.process(value)

    def __rshift__(self, after: Processor | Callable[[Any], Any]) -> Chain:
        """This step, then the other. Raises `SettingsError` if that is neither a processor nor a function."""
        return Chain((self, as_processor(after)))

    def __rrshift__(self, before: Callable[[Any], Any]) -> Chain:
        return Chain((as_processor(before), self))


class FunctionProcessor(Processor):
    """A function of one value."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = _callable(function)

    @property
    def name(self) -> str:
        """The function's name."""
        return _name(self.function)

    def process(self, value: Any) -> Any:
        """What the function gives."""
        return self.function(value)


class ColumnProcessor(Processor):
    """A function of a whole column, which gives as many values: the fast way.

    It gets an Arrow array, or what the step before gave; a list comes as an Arrow array.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = _callable(function)

    @property
    def name(self) -> str:
        """The function's name."""
        return _name(self.function)

    def process(self, value: Any) -> Any:
        """The same for one value."""
        return values_of(self.process_column([value]))[0]

    def process_column(self, column: Any) -> Any:
        """What the function gives. Raises `StreamError` if it fails or gives another number of values."""
        try:
            done = self.function(pa.array(column) if isinstance(column, list) else column)
        except Exception as error:
            raise StreamError(
                f"{self.name}: fails on a column of {len(column)} values that begins with"
                f" {_shown(values_of(column[:1]))}: {type(error).__name__}: {error}; mend the processor"
            ) from error
        if isinstance(done, pa.ChunkedArray):
            done = done.combine_chunks()
        if not isinstance(done, Sequence | np.ndarray | pa.Array) and not hasattr(done, "detach"):
            raise StreamError(
                f"{self.name}: gave a {type(done).__name__} for a column; give an array, a tensor or a list"
            )
        if len(done) != len(column):
            raise StreamError(f"{self.name}: gave {len(done)} values for {len(column)}; give one for each")
        return done


class Chain(Processor):
    """Steps one after the other; what `>>` makes."""

    def __init__(self, steps: Sequence[Processor]) -> None:
        inner = [step.steps if isinstance(step, Chain) else (step,) for step in steps]
        self.steps: tuple[Processor, ...] = tuple(step for part in inner for step in part)

    @property
    def name(self) -> str:
        """The names of the steps."""
        return " >> ".join(step.name for step in self.steps)

    def process(self, value: Any) -> Any:
        """The value after every step."""
        for step in self.steps:
            value = step.process(value)
        return value

    def process_column(self, column: Any) -> Any:
        """The column after every step, each taking it whole where it can."""
        for step in self.steps:
            column = step.process_column(column)
        return column


def as_processor(step: Processor | Callable[[Any], Any]) -> Processor:
    """The processor itself, or a function of one value as a processor. Raises `SettingsError` on anything else."""
    return step if isinstance(step, Processor) else FunctionProcessor(step)


def values_of(column: Any) -> list[Any]:
    """A column as Python values, one a row: of an axis more, arrays or tensors. Missing is None, in floats NaN."""
    if isinstance(column, pa.Array):
        if pa.types.is_floating(column.type):
            floats: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
            return floats
        values: list[Any] = column.to_pylist()
        return values
    if isinstance(column, list):
        return column
    if getattr(column, "ndim", 1) == 1 and hasattr(column, "tolist"):
        numbers: list[Any] = column.tolist()
        return numbers
    return list(column)


def _callable(function: Any) -> Callable[[Any], Any]:
    if not callable(function):
        raise SettingsError(
            f"processor: {_shown(function)} is a {type(function).__name__}; give a Processor or function"
        )
    chosen: Callable[[Any], Any] = function
    return chosen


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
