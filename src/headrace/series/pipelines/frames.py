"""Rows of a data frame as a matrix of entities end to end, and back into the frame's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from headrace.arrays import F64, I64
from headrace.errors import InputError


@dataclass(frozen=True)
class Rows:
    """matrix [R, C] float64 with the rows of each entity end to end; order: where each row stood in the frame."""

    matrix: F64
    offsets: I64
    entities: list[str]
    order: I64


def as_polars(frame: Any) -> pl.DataFrame:
    """A polars, pandas or Arrow table as polars. Raises `InputError` for anything else."""
    if isinstance(frame, pl.DataFrame):
        return frame
    try:
        made = pl.DataFrame(frame) if not hasattr(frame, "itertuples") else pl.from_pandas(frame)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"{type(frame).__name__}: is no table ({error}); give a polars, pandas or Arrow table"
        ) from error
    return made


def rows_of(frame: pl.DataFrame, columns: Sequence[str], group: str | None) -> Rows:
    """The columns of a frame, entity by entity (group None: as one); rows of an entity keep their order.

    Raises `InputError` for columns that are missing or hold no numbers, and for rows without entity.
    """
    for name in (*columns, *(() if group is None else (group,))):
        if name not in frame.columns:
            raise InputError(f"the table has no column {name!r}; it has {', '.join(frame.columns)}")
    try:
        matrix = frame.select(pl.col(list(columns)).cast(pl.Float64).fill_null(float("nan"))).to_numpy()
    except pl.exceptions.PolarsError as error:
        raise InputError(f"columns {', '.join(columns)}: are not all numbers ({error}); give numbers") from error
    if group is None:
        return Rows(matrix, np.array([0, len(matrix)], np.int64), ["all"], np.arange(len(matrix)))
    names = frame[group].cast(pl.String)
    if names.null_count():
        raise InputError(f"column {group!r}: {names.null_count()} rows have no entity; name them")
    codes = names.rank("dense").to_numpy().astype(np.int64) - 1 if len(names) else np.empty(0, np.int64)
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    return Rows(
        matrix[order], np.append(0, np.cumsum(counts)).astype(np.int64), sorted(names.unique().to_list()), order
    )


def put_back(frame: Any, columns: Sequence[str], rows: Rows, values: npt.NDArray[Any]) -> Any:
    """The frame with these columns replaced, as the kind of table that was given."""
    unsorted = np.empty_like(values)
    unsorted[rows.order] = values
    table = as_polars(frame).with_columns(
        pl.Series(name, np.ascontiguousarray(unsorted[:, at])).fill_nan(None) for at, name in enumerate(columns)
    )
    if isinstance(frame, pl.DataFrame):
        return table
    if hasattr(frame, "itertuples"):
        made = table.to_pandas()
        made.index = frame.index
        return made
    return table.to_arrow()
