"""Read the rows of series from a table in memory, and hold rows in memory as a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
from headrace.series.arrays.axis import Axis, agreed, anchor_codes, infer
from headrace.series.division import THREE_SPLITS
from headrace.series.pipelines.frames import as_polars, check_column
from headrace.series.reuse import NamedRun
from headrace.series.settings import Series
from headrace.series.sources import parse, unread_value
from headrace.series.times import Observed
from headrace.series.windows.store import Columns, EntityTable, Matrices, SeriesStore


def stored_columns(settings: Series) -> Columns:
    """Return the columns that a store of these settings has."""
    return Columns(
        targets=settings.target,
        features=(*settings.feature_names, *settings.calendar_columns),
        frequency=settings.step,
        future=tuple(settings.future_names),
        categories=tuple(settings.categories),
    )


class TableStore(SeriesStore):
    """A store of series whose rows are in memory.

    statics: names and values [E, S] of static features.
    fitted: the run whose pipelines scaled the rows; None if they are in their own units.
    """

    def __init__(
        self,
        columns: Columns,
        axes: Mapping[str, Axis],
        matrices: Sequence[F32],
        *,
        statics: tuple[tuple[str, ...], F32] | None = None,
        fitted: NamedRun | None = None,
    ) -> None:
        rows = np.array([len(matrix) for matrix in matrices], np.int64)
        zeros = np.zeros(len(rows), np.int64)
        self.root = Path("the table")
        self.run_id = ""
        self.pipeline_digests = {}
        if fitted is not None:
            self.root = fitted.root
            self.run_id = fitted.run_id
            self.pipeline_digests = dict(fitted.digests)
        self.folds = 0
        self.columns = columns
        self.entities = EntityTable(
            names=pa.array(list(axes), pa.large_string()),
            first_row=np.cumsum(rows) - rows,
            rows=rows,
            first_time=np.array([axis.first for axis in axes.values()], np.int64),
            anchor=anchor_codes([axis.anchor for axis in axes.values()]),
            static_row=zeros - 1 if statics is None else np.arange(len(rows), dtype=np.int64),
            boundaries=np.column_stack([zeros, rows, rows, rows]),
            ranges=THREE_SPLITS.ranges,
        )
        self.static_names, self.static = statics or ((), np.empty((0, 0), np.float32))
        self.__setstate__({})
        self._rows = Matrices([np.concatenate(matrices)])

    @property
    def matrices(self) -> Matrices:
        """The rows of the table, which no file holds: they are part of what is pickled."""
        return self._rows


def read_table(frame: Any, settings: Series) -> tuple[dict[str, Observed], Series]:
    """Read a polars, pandas or Arrow table.

    Returns the rows of each entity, sorted by name, and the settings with their frequency. A table
    without an entity column is one entity, named "". Raises `InputError`.
    """
    table = _with_optional(as_polars(frame), settings)
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
    keep = names.is_not_null() | (settings.bad_rows == "error")
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


def _with_optional(table: pl.DataFrame, settings: Series) -> pl.DataFrame:
    """Add the optional columns that the table lacks, null throughout."""
    for name in settings.optional_columns:
        if name not in table.columns:
            table = table.with_columns(pl.lit(None, pl.Float64).alias(name))
    return table


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
