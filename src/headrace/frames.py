"""Apply the steps of a run of series to a table in memory: to inspect, test or reuse them.

    settings = headrace.Series(source="rows", target="flow", past_features=["rain"], entity="gauge")
    rows = headrace.frames.clean(table, settings)                # on its steps, gaps filled
    splits = headrace.frames.split(table, settings)              # the same rows by split
    train = splits["train"]
    windows = headrace.frames.windows_of_frame(train, settings, input_length=365, output_length=7)

They run the same code as a run, on the rows of all entities in a polars, pandas or Arrow table, and
return the same kind of table. They do not scale, read `source` or write files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from headrace.errors import InputError
from headrace.series.arrays.axis import place_rows
from headrace.series.clean import Cleaned
from headrace.series.clean import clean as clean_entity
from headrace.series.pipelines.frames import as_caller_type
from headrace.series.settings import Series
from headrace.series.store import calendar_rows
from headrace.series.tables import TableStore, read_table, stored_columns
from headrace.series.times import Observed, put_on_clock
from headrace.series.windows.windows import WindowOptions, Windows, check_some, windows_of

__all__ = ["clean", "split", "windows_of_frame"]


def clean(frame: Any, settings: Series) -> Any:
    """Align the rows of each entity to its steps, trim them and fill short gaps: one row a step,
    null where missing.

    Columns: entity, time, targets, features, calendar. Raises `InputError` that
    names the first entity that a run would leave out, and the reason.
    """
    observed, settings = read_table(frame, settings)
    cleaned = _clean(observed, settings)
    return _join(frame, [_table(settings, entity, rows) for entity, rows in cleaned])


def split(frame: Any, settings: Series) -> dict[str, Any]:
    """Clean the rows of each entity and cut them into a table for each split, or cell of folds.

    Raises as `clean`.
    """
    observed, settings = read_table(frame, settings)
    layout = settings.division.layout
    tables: dict[str, list[pl.DataFrame]] = {name: [] for name in layout.splits}
    for entity, cleaned in _clean(observed, settings):
        table = _table(settings, entity, cleaned)
        for name, (start, stop) in layout.named([0, *cleaned.cut.edges, len(table)]):
            tables[name].append(table[start:stop])
    return {name: _join(frame, parts) for name, parts in tables.items()}


def windows_of_frame(frame: Any, settings: Series, **options: Any) -> Windows:
    """Find the windows of a table, scaled or not, by the rules of `headrace.windows.open_windows`.

    options: see `WindowOptions`. Steps without a row are missing; nothing is filled or cut. Raises
    `InputError` if times repeat or lie between two steps, and if there is no window.
    """
    observed, settings = read_table(frame, settings)
    matrices = []
    axes = {}
    for entity, rows in observed.items():
        placed = place_rows(rows.times, settings.step)
        if len(placed.off_grid) or (np.diff(placed.positions) == 0).any():
            raise InputError(
                f"entity {entity!r} has times that come twice or lie between steps of"
                f" {settings.step.word}",
                remedy="clean the table first",
            )
        matrix = np.full((placed.axis.rows, len(settings.columns)), np.nan, np.float32)
        matrix[placed.positions] = rows.values[placed.rows]
        matrices.append(np.hstack([matrix, calendar_rows(settings, placed.axis)]))
        axes[entity] = placed.axis
    store = TableStore(stored_columns(settings), axes, matrices)
    windows = windows_of(store, "all", WindowOptions(**options))
    check_some(windows)
    return windows


def _clean(observed: Mapping[str, Observed], settings: Series) -> Iterator[tuple[str, Cleaned]]:
    for entity, rows in observed.items():
        try:
            yield entity, clean_entity(settings, put_on_clock(settings, rows), entity)
        except InputError as error:
            raise error.at(path=f"entity {entity!r}") from None


def _table(settings: Series, entity: str, cleaned: Cleaned) -> pl.DataFrame:
    times = pl.Series(settings.time_column, cleaned.axis.times()).cast(pl.Datetime("us"))
    columns = [pl.Series(settings.entity_column, [entity] * len(times)), times]
    values = [*cleaned.values.T, *calendar_rows(settings, cleaned.axis).T]
    for name, column in zip(settings.stored_columns, values, strict=True):
        columns.append(pl.Series(name, np.ascontiguousarray(column), nan_to_null=True))
    return pl.DataFrame(columns)


def _join(frame: Any, tables: Sequence[pl.DataFrame]) -> Any:
    """Return the rows of all tables as the kind of table that the caller passed."""
    return as_caller_type(frame, pl.concat(tables) if tables else pl.DataFrame())
