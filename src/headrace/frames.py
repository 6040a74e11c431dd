"""Apply the steps of a run of series to a table in memory: to inspect, test or reuse them.

    settings = headrace.Series(source="gauges", target="flow", features=["rain"], entity="gauge")
    rows = headrace.frames.clean(table, settings)                # on its steps, gaps filled
    parts = headrace.frames.split(table, settings)               # the same rows by split
    windows = headrace.frames.windows_of_frame(parts["train"], settings, input_length=365, output_length=7)

They run the same code as a run, on the rows of all entities in a polars, pandas or Arrow table, and return the same
kind of table. They do not scale, read `source` or write files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.arrays import F32
from headrace.errors import InputError
from headrace.formats.dates import MISSING
from headrace.formats.text_columns import as_text
from headrace.report.words import many
from headrace.series.arrays.axis import agreed, infer, place
from headrace.series.clean import Cleaned
from headrace.series.clean import clean as clean_entity
from headrace.series.config import Series
from headrace.series.pipelines.unified import as_given, as_polars, check_column
from headrace.series.source_settings import FILE_NAME
from headrace.series.sources import parse
from headrace.series.store import calendar_rows, stored_columns
from headrace.series.times import Observed, timed
from headrace.series.windows.store import USUAL, Columns, Entities, Matrices, SeriesStore
from headrace.series.windows.windows import WindowOptions, Windows, check_some, windows_of

__all__ = ["clean", "split", "windows_of_frame"]


def clean(frame: Any, settings: Series) -> Any:
    """Align the rows of each entity to its steps, trim them and fill short gaps: one row a step, null where missing.

    Columns: entity, time, targets, features by name, calendar, masks. Raises `InputError` that names the first entity
    that a run would leave out, and the reason.
    """
    observed, settings = _observed(frame, settings)
    tables = [_table(settings, *each) for each in _cleaned(observed, settings)]
    return as_given(frame, pl.concat(tables) if tables else pl.DataFrame())


def split(frame: Any, settings: Series) -> dict[str, Any]:
    """Clean the rows of each entity and cut them into a table for each split, or cell of folds. Raises as `clean`."""
    observed, settings = _observed(frame, settings)
    parts: dict[str, list[pl.DataFrame]] = {name: [] for name in settings.division.parts.splits}
    for entity, cleaned in _cleaned(observed, settings):
        table = _table(settings, entity, cleaned)
        borders = [0, *cleaned.cut.edges, len(table)]
        for name, (start, stop) in settings.division.parts.named(borders):
            if name is not None:
                parts[name].append(table[start:stop])
    return {name: as_given(frame, pl.concat(own) if own else pl.DataFrame()) for name, own in parts.items()}


def windows_of_frame(frame: Any, settings: Series, **options: Any) -> Windows:
    """Find the windows of a table, scaled or not, by the rules of `headrace.windows.open_windows`.

    options: see `WindowOptions`. Steps without a row are missing; nothing is filled or cut. Raises `InputError` if
    times repeat or lie between two steps, and if there is no window.
    """
    observed, settings = _observed(frame, settings)
    matrices, entities = [], []
    for entity, rows in observed.items():
        placed = place(rows.times, settings.step)
        if len(placed.off_grid) or (np.diff(placed.positions) == 0).any():
            raise InputError(
                f"entity {entity!r}: has times that come twice or lie between steps of {settings.step.word}; clean the "
                "table first"
            )
        matrix = np.full((placed.axis.rows, len(settings.columns())), np.nan, np.float32)
        matrix[placed.positions] = rows.values[placed.rows]
        matrices.append(np.hstack([matrix, calendar_rows(settings, placed.axis)]))
        entities.append((entity, placed.axis))
    names = [*settings.columns(), *settings.calendar_columns()]
    columns = Columns(
        settings.targets, tuple(names[len(settings.targets) :]), (), settings.step, tuple(settings.future_names())
    )
    found = windows_of(_Rows(columns, entities, matrices), "all", WindowOptions(**options))
    check_some(found)
    return found


class _Rows(SeriesStore):
    """A store of series whose rows are a table in memory."""

    def __init__(self, columns: Columns, entities: list[Any], matrices: list[F32]) -> None:
        rows = np.array([len(each) for each in matrices], np.int64)
        nothing = np.zeros(len(rows), np.int64)
        self.root, self.run_id, self.folds = Path("the table"), "", 0
        self.columns = columns
        self.entities = Entities(
            names=pa.array([name for name, _ in entities], pa.large_string()),
            first_row=np.cumsum(rows) - rows,
            rows=rows,
            first_time=np.array([axis.first for _, axis in entities], np.int64),
            from_end=np.array([axis.anchor == "end" for _, axis in entities], np.bool_),
            static_row=nothing - 1,
            borders=np.column_stack([nothing, rows, rows, rows]),
            ranges=USUAL,
        )
        self.static_names, self.static = (), np.empty((0, 0), np.float32)
        self.__setstate__({})
        self._rows = Matrices([np.concatenate(matrices)])

    @property
    def matrices(self) -> Matrices:
        """The rows of the table, which no file holds: they are part of what is pickled."""
        return self._rows


def _observed(frame: Any, settings: Series) -> tuple[dict[str, Observed], Series]:
    """Return the rows of each entity, sorted by name, and the settings with their frequency."""
    table = as_polars(frame)
    key = settings.entity if settings.entity != FILE_NAME else settings.entity_column
    alone = settings.entity == FILE_NAME and key not in table.columns
    for name in (settings.time, *settings.columns(), *([] if alone else [key])):
        check_column(table, name)
    rows, listed = table.to_arrow(), settings.listed()
    names = pl.Series([""] * len(table) if alone else as_text(rows[key], (), key), dtype=pl.String)
    keep = names.is_not_null() | (settings.null_entity == "error")
    if listed is not None and not alone:
        keep &= names.is_null() | names.is_in(listed)
    rows, names = rows.filter(keep.to_arrow()), names.filter(keep)
    if not len(names):
        raise InputError("the table has no rows of an entity; give those of at least one")
    times, values, bad = parse(settings, settings.columns(), rows, 0, "the table")
    if bad:
        raise InputError(f"the table: {bad[min(bad)]}")
    if names.null_count():
        raise InputError(f"column {key!r}: {many(names.null_count(), 'row has', 'rows have')} no entity; name them")
    codes = names.rank("dense").to_numpy().astype(np.int64) - 1
    order = np.argsort(codes, kind="stable")
    found: dict[str, Observed] = {}
    for name, own in zip(names.unique().sort(), np.split(order, np.cumsum(np.bincount(codes))[:-1]), strict=True):
        unread = int((times[own] == MISSING).sum())
        whose = many(unread, "row has", "rows have")
        told = f"{whose} no {settings.time} that can be read; correct it, or give bad_rows='drop'"
        found[name] = Observed(times[own], values[own], told if unread else None)
    if settings.frequency in ("infer", "coarsest"):
        steps = (infer(each.times[each.times != MISSING]) for each in found.values())
        words = Counter(each.word for each in steps if each is not None)
        if not words:
            raise InputError("no entity of the table has three times; give frequency, e.g. '1d'")
        settings = settings.model_copy(update={"frequency": agreed(words, settings.frequency)})
    return found, settings


def _cleaned(observed: dict[str, Observed], settings: Series) -> Iterator[tuple[str, Cleaned]]:
    for entity, rows in observed.items():
        try:
            yield entity, clean_entity(settings, timed(settings, rows), entity)
        except InputError as error:
            raise InputError(f"entity {entity!r}: {error}") from error


def _table(settings: Series, entity: str, cleaned: Cleaned) -> pl.DataFrame:
    times = pl.Series(settings.time, cleaned.axis.times()).cast(pl.Datetime("us"))
    masks = cleaned.filled.T[len(cleaned.filled.T) - len(settings.mask_columns()) :]
    columns = [*cleaned.values.T, *calendar_rows(settings, cleaned.axis).T, *masks]
    own = [
        pl.Series(name, np.ascontiguousarray(values), nan_to_null=True)
        for name, values in zip(stored_columns(settings), columns, strict=True)
    ]
    return pl.DataFrame([pl.Series(settings.entity_column, [entity] * len(times)), times, *own])
