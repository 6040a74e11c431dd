"""Apply the steps of a run of series to a table in memory: to inspect, test or reuse them.

    settings = headrace.Series(source="gauges", target="flow", features=["rain"], entity="gauge")
    rows = headrace.frames.clean(table, settings)                # on its steps, gaps filled
    splits = headrace.frames.split(table, settings)              # the same rows by split
    train = splits["train"]
    windows = headrace.frames.windows_of_frame(train, settings, input_length=365, output_length=7)

They run the same code as a run, on the rows of all entities in a polars, pandas or Arrow table, and
return the same kind of table. They do not scale, read `source` or write files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from headrace.arrays import F32
from headrace.errors import InputError, setting
from headrace.formats.dates import MISSING
from headrace.formats.text_columns import as_text, with_one_time
from headrace.report.words import pluralise
from headrace.series.arrays.axis import Axis, agreed, anchor_codes, infer, place_rows
from headrace.series.clean import Cleaned
from headrace.series.clean import clean as clean_entity
from headrace.series.division import THREE_SPLITS
from headrace.series.pipelines.frames import as_given, as_polars, check_column
from headrace.series.settings import Series
from headrace.series.sources import parse, unread_value
from headrace.series.store import calendar_rows
from headrace.series.times import Observed, put_on_clock
from headrace.series.windows.store import Columns, EntityTable, Matrices, SeriesStore
from headrace.series.windows.windows import WindowOptions, Windows, check_some, windows_of

__all__ = ["clean", "split", "windows_of_frame"]


def clean(frame: Any, settings: Series) -> Any:
    """Align the rows of each entity to its steps, trim them and fill short gaps: one row a step,
    null where missing.

    Columns: entity, time, targets, features by name, calendar, masks. Raises `InputError` that
    names the first entity that a run would leave out, and the reason.
    """
    observed, settings = _read(frame, settings)
    cleaned = _clean(observed, settings)
    return _join(frame, [_table(settings, entity, rows) for entity, rows in cleaned])


def split(frame: Any, settings: Series) -> dict[str, Any]:
    """Clean the rows of each entity and cut them into a table for each split, or cell of folds.

    Raises as `clean`.
    """
    observed, settings = _read(frame, settings)
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
    observed, settings = _read(frame, settings)
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
    columns = Columns(
        targets=settings.targets,
        features=(*settings.feature_names, *settings.calendar_columns),
        masks=(),
        frequency=settings.step,
        future=tuple(settings.future_names),
    )
    windows = windows_of(_FrameStore(columns, axes, matrices), "all", WindowOptions(**options))
    check_some(windows)
    return windows


class _FrameStore(SeriesStore):
    """A store of series whose rows are a table in memory."""

    def __init__(self, columns: Columns, axes: Mapping[str, Axis], matrices: Sequence[F32]) -> None:
        rows = np.array([len(matrix) for matrix in matrices], np.int64)
        zeros = np.zeros(len(rows), np.int64)
        self.root = Path("the table")
        self.run_id = ""
        self.folds = 0
        self.columns = columns
        self.entities = EntityTable(
            names=pa.array(list(axes), pa.large_string()),
            first_row=np.cumsum(rows) - rows,
            rows=rows,
            first_time=np.array([axis.first for axis in axes.values()], np.int64),
            anchor=anchor_codes([axis.anchor for axis in axes.values()]),
            static_row=zeros - 1,
            boundaries=np.column_stack([zeros, rows, rows, rows]),
            ranges=THREE_SPLITS.ranges,
        )
        self.static_names = ()
        self.static = np.empty((0, 0), np.float32)
        self.__setstate__({})
        self._rows = Matrices([np.concatenate(matrices)])

    @property
    def matrices(self) -> Matrices:
        """The rows of the table, which no file holds: they are part of what is pickled."""
        return self._rows


def _read(frame: Any, settings: Series) -> tuple[dict[str, Observed], Series]:
    """Return the rows of each entity, sorted by name, and the settings with their frequency."""
    table = as_polars(frame)
    key = settings.entity_column
    is_one_entity = settings.entity_is_file and key not in table.columns
    for name in (*settings.time_columns, *settings.columns):
        check_column(table, name)
    if not is_one_entity:
        check_column(table, key)
    rows = with_one_time(table.to_arrow(), settings.time_columns)
    names = pl.Series([""] * len(table), dtype=pl.String)
    if not is_one_entity:
        names = pl.Series(as_text(rows[key], (), key), dtype=pl.String)
    keep = names.is_not_null() | (settings.null_entity == "error")
    if settings.requested_entities is not None and not is_one_entity:
        keep &= names.is_null() | names.is_in(settings.requested_entities)
    rows = rows.filter(keep.to_arrow())
    names = names.filter(keep)
    if not len(names):
        raise InputError("the table has no rows of an entity", remedy="give those of at least one")
    parsed = parse(settings, settings.columns, rows, 0, "the table")
    if parsed.unread:
        raise unread_value(settings, rows, parsed.unread, 0).at(path="the table")
    if names.null_count():
        count = pluralise(names.null_count(), "row has", "rows have")
        raise InputError(f"{count} no entity", column=key, remedy="name them")
    codes = names.rank("dense").to_numpy().astype(np.int64) - 1
    order = np.argsort(codes, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(codes))[:-1])
    observed: dict[str, Observed] = {}
    for name, group in zip(names.unique().sort(), groups, strict=True):
        times = parsed.times[group]
        bad_time = None
        unread = int((times == MISSING).sum())
        if unread:
            bad_time = InputError(
                f"{pluralise(unread, 'row has', 'rows have')} no time that can be read",
                column=settings.time_column,
                remedy=f"correct it, or give {setting('bad_rows', 'drop')}",
            )
        observed[name] = Observed(times, parsed.values[group], bad_time)
    return observed, _with_frequency(observed, settings)


def _with_frequency(observed: Mapping[str, Observed], settings: Series) -> Series:
    if not settings.needs_frequency:
        return settings
    words = Counter[str]()
    for rows in observed.values():
        frequency = infer(rows.times[rows.times != MISSING])
        if frequency is not None:
            words[frequency.word] += 1
    if not words:
        raise InputError(
            "no entity of the table has three times",
            setting="frequency",
            remedy="give one, e.g. 1d",
        )
    return settings.with_frequency(agreed(words, settings.frequency))


def _clean(observed: Mapping[str, Observed], settings: Series) -> Iterator[tuple[str, Cleaned]]:
    for entity, rows in observed.items():
        try:
            yield entity, clean_entity(settings, put_on_clock(settings, rows), entity)
        except InputError as error:
            raise error.at(path=f"entity {entity!r}") from None


def _table(settings: Series, entity: str, cleaned: Cleaned) -> pl.DataFrame:
    times = pl.Series(settings.time_column, cleaned.axis.times()).cast(pl.Datetime("us"))
    columns = [pl.Series(settings.entity_column, [entity] * len(times)), times]
    masks = cleaned.filled.T[len(settings.columns) - len(settings.mask_columns) :]
    values = [*cleaned.values.T, *calendar_rows(settings, cleaned.axis).T, *masks]
    for name, column in zip(settings.stored_columns, values, strict=True):
        columns.append(pl.Series(name, np.ascontiguousarray(column), nan_to_null=True))
    return pl.DataFrame(columns)


def _join(frame: Any, tables: Sequence[pl.DataFrame]) -> Any:
    """Return the rows of all tables as the kind of table that the caller passed."""
    return as_given(frame, pl.concat(tables) if tables else pl.DataFrame())
