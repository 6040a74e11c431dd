"""Cut from new rows the one window of each entity that a live forecast needs. Writes nothing.

New rows are read, put on their steps, filled and scaled as those of the run, whose settings and
pipelines are taken. A forecast differs from a window in the middle of a series in one respect: at
its origin every gap is open, as nothing comes after it. There a gap is filled if it is not longer
than those that the run filled. What `incomplete` fills, it fills in both alike.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from headrace.arrays import F32, F64, Bools
from headrace.dataset.open import find_run
from headrace.errors import InputError, setting, setting_name
from headrace.formats.dates import moment
from headrace.formats.zones import time_us
from headrace.report.words import many_entities, pluralise
from headrace.series.arrays.axis import Axis
from headrace.series.arrays.window_values import Incomplete, WindowScale
from headrace.series.arrays.windows import WindowRuns
from headrace.series.clean import Cleaned, clean
from headrace.series.reuse import NamedRun, named_run
from headrace.series.settings import Series
from headrace.series.sources import UNKNOWN, static_files
from headrace.series.spread import read_in_memory
from headrace.series.statics import process_statics, read_statics
from headrace.series.store import calendar_rows, read_entities
from headrace.series.tables import TableStore, read_table, stored_columns
from headrace.series.times import Observed, put_on_clock
from headrace.series.windows.forecasts import ForecastTable
from headrace.series.windows.loader import as_tensors
from headrace.series.windows.store import Columns
from headrace.series.windows.store import read_statics as read_stored_statics
from headrace.series.windows.windows import WindowOptions, Windows, with_inputs

log = logging.getLogger("headrace")

_NAMED = 3  # entities in a message


@dataclass(frozen=True, eq=False)
class ForecastWindows:
    """The window of each entity that has a forecast, in the order of entities.

    windows: as those of `open_windows`; `write_forecasts` and `WindowDataset` take them.
    without: the entities of the run or of the new rows that have no forecast, and why.
    unknown: number of texts in X and future that the run does not list, by column.
    """

    windows: Windows
    without: Mapping[str, str]
    unknown: Mapping[str, int]

    def __len__(self) -> int:
        """Number of windows, which is that of entities with a forecast."""
        return len(self.windows)

    @property
    def entities(self) -> list[str]:
        """The entities, in the order of the windows."""
        return self.windows.entity_names(range(len(self)))

    @cached_property
    def origins(self) -> NDArray[np.datetime64]:
        """The time of the last input of each window, datetime64[us] [N]."""
        origins: NDArray[np.datetime64] = self.batch()["input_end_date"]
        return origins

    def batch(self) -> dict[str, Any]:
        """Return all windows as arrays: X, future, static, entity, input_end_date; see
        `Windows.gather`.
        """
        return self.windows.batch(range(len(self)))

    def tensors(self) -> dict[str, Any]:
        """Return `batch` as torch tensors; dates as int64 microseconds."""
        import torch

        return as_tensors(self.batch(), torch)

    def table(self, forecast: Any) -> pl.DataFrame:
        """Return a model's output as rows in the unit of the target; see `write_forecasts`.

        forecast: of all windows, [N, horizons] or with several targets [N, horizons, T]. Raises
        `SettingsError` for another shape.
        """
        return pl.DataFrame(ForecastTable(self.windows).rows(self.batch(), forecast))

    def __str__(self) -> str:
        """Summarise in one line."""
        line = f"forecasts of {many_entities(len(self))}"
        first, last = self.origins.min(), self.origins.max()
        if first < last:
            line += f" at origins from {first} to {last}"
        if not self.without:
            return line
        reasons = [f"{name}: {why}" for name, why in list(self.without.items())[:_NAMED]]
        return f"{line}; {len(self.without):,} without, {'; '.join(reasons)}"


def forecast(  # noqa: PLR0913 - all are settings
    run: str | Path,
    new_data: Any,
    *,
    input_length: int,
    output_length: int,
    origin: str | None = None,
    run_id: str | None = None,
    static_source: str | Path | Sequence[str | Path] | None = None,
    horizons: tuple[int, ...] | None = None,
    is_autoregressive: bool | None = None,
    future: Literal["known", "none"] = "known",
    static: Literal["included", "none"] = "included",
    incomplete: Incomplete = "skip",
    season: int | None = None,
    scale: WindowScale = "none",
) -> ForecastWindows:
    """Cut the newest window of each entity from new rows, to forecast what comes after them.

    run: the dataset directory, or run, that the model was trained on. run_id: another of its runs.
    new_data: a path, several, or a polars, pandas or Arrow table, with the columns of the source.
    Targets may be missing, also as columns. It holds the preceding steps that the model reads, and
    the horizon of features that are known ahead.
    origin: the time of the last input; an entity whose rows end before has steps without rows up to
    there, which `resample` by total makes 0. By default that of the last target or past feature of
    each entity; of the last target if it is an input; if there is no such value, the last that
    leaves a horizon of features known ahead.
    static_source: files of static attributes of new entities; by default those of the run count.
    Other options: see `WindowOptions`; give those that the model was trained with.

    Raises `InputError` if no entity has a forecast, `SettingsError` for options that cannot work.
    """
    options = WindowOptions(
        input_length=input_length,
        output_length=output_length,
        horizons=horizons,
        is_autoregressive=is_autoregressive,
        targets="none",
        future=future,
        static=static,
        incomplete=incomplete,
        season=season,
        scale=scale,
    )
    root, _ = find_run(run, run_id)
    fitted = named_run(root)
    settings = _settings(fitted, new_data, static_source)
    at = None
    if origin is not None:
        at = time_us("origin", origin, settings.step_zone, clock=settings.step_zone)
    without: dict[str, str] = {}
    observed = _read(settings, fitted, new_data, without)
    cutter = _Cutter.of(settings, fitted, options, at)
    statics = None
    if settings.static_features and static == "included":
        statics = _statics(
            settings, fitted, list(observed), without, from_files=static_source is not None
        )
    windows = _cut_windows(cutter, observed, without)
    result = cutter.join(windows, statics, dict(sorted(without.items())))
    log.log(logging.WARNING if without else logging.INFO, "%s", result)
    return result


def _cut_windows(
    cutter: _Cutter, observed: Mapping[str, Observed], without: dict[str, str]
) -> dict[str, _Window]:
    """Cut the window of each entity; those that have none go to `without`, with the reason.

    Raises `InputError` if none has one.
    """
    windows: dict[str, _Window] = {}
    for entity, rows in observed.items():
        if entity in without:
            continue
        try:
            windows[entity] = cutter.cut(entity, rows)
        except InputError as error:
            without[entity] = str(error)
    if not windows:
        reasons = "; ".join(f"{name}: {why}" for name, why in list(without.items())[:_NAMED])
        raise InputError(
            f"none of {many_entities(len(without))} has a forecast: {reasons or 'there is no row'}",
            setting="new_data",
            remedy=(
                f"give {cutter.options.input_length:,} steps before the origin; if the model reads"
                f" nothing of the horizon, give {setting('future', 'none')}; if it was trained on"
                f" windows with gaps, give {setting_name('incomplete')} as then"
            ),
        )
    return windows


def _is_path(new_data: Any) -> bool:
    if isinstance(new_data, list | tuple):
        return all(isinstance(path, str | Path) for path in new_data)
    return isinstance(new_data, str | Path)


def _settings(fitted: NamedRun, new_data: Any, static_source: Any) -> Series:
    """Return the settings of the run for the new rows."""
    values: dict[str, Any] = {"pipelines_from": fitted.root, "duplicates": "allow"}
    if static_source is not None:
        values["static"] = static_source
    source = new_data if _is_path(new_data) else "new_data"
    return Series(source=source, **values)


def _read(
    settings: Series, fitted: NamedRun, new_data: Any, without: dict[str, str]
) -> dict[str, Observed]:
    """Read the rows of each entity. without: gets the entities that cannot be read, and why."""
    known = read_entities(fitted.root)["entity"].to_list()
    observed: dict[str, Observed] = {}
    if _is_path(new_data):
        source = read_in_memory(settings, settings.source_files())
        for number, name in enumerate(source.names):
            try:
                observed[name] = source.read(number, settings.columns)
            except InputError as error:
                without[name] = str(error)
    else:
        observed, _ = read_table(new_data, settings)
        if list(observed) == [""]:
            observed = {_only(settings, known): observed[""]}
    for name in known:
        if name not in observed:
            without.setdefault(name, "has no row in the new data")
    return observed


def _only(settings: Series, known: Sequence[str]) -> str:
    """Return the entity of a table without a column of entities. Raises `InputError`."""
    if len(known) == 1:
        return known[0]
    raise InputError(
        f"the table has no such column, and the run has {many_entities(len(known))}",
        setting="new_data",
        column=settings.entity_column,
        remedy="add it, with the name of the entity in every row",
    )


def _statics(
    settings: Series,
    fitted: NamedRun,
    entities: list[str],
    without: dict[str, str],
    *,
    from_files: bool,
) -> pa.Table:
    """Return the static features of entities, in the form of the run's own.

    from_files: whether files are named; otherwise those that the run stored count.
    without: gets the entities that lack some.
    """
    if not from_files:
        table = read_stored_statics(fitted.root)
        stored = set(table.column(0).to_pylist())
        for name in entities:
            if name not in stored:
                without.setdefault(
                    name,
                    "has no static features in the run; give files of them as static_source",
                )
        return table
    statics = read_statics(settings, static_files(settings), entities)
    for name, why in statics.lacking().items():
        without.setdefault(name, why)
    return process_statics(
        settings, statics, [name for name in entities if name not in without]
    ).table


@dataclass(frozen=True)
class _Window:
    """The rows of one window. values: unscaled, float64 [rows, C]; filled: bool [rows, C]."""

    axis: Axis
    values: F64
    filled: Bools


@dataclass(frozen=True)
class _Cutter:
    """Cuts windows of entities.

    origin: of all, in microseconds; None: see `forecast`.
    columns: of the store, as the run has them.
    """

    settings: Series
    fitted: NamedRun
    options: WindowOptions
    origin: int | None
    columns: Columns

    @classmethod
    def of(
        cls, settings: Series, fitted: NamedRun, options: WindowOptions, origin: int | None
    ) -> _Cutter:
        """Raises `SettingsError` and `InputError` for options that do not fit the run."""
        columns = stored_columns(settings)
        options = with_inputs(columns, options, fitted.root)
        return cls(settings, fitted, options, origin, columns)

    @property
    def _is_ahead(self) -> Bools:
        """Whether each value column is known ahead, bool [C]."""
        return np.isin(self.settings.columns, self.columns.future)

    def cut(self, entity: str, observed: Observed) -> _Window:
        """Cut the window of an entity. Raises `InputError` with the reason why there is none."""
        settings = self.settings
        options = self.options
        for part in self.fitted.pipelines().time_series.parts:
            part.index_of([entity])
        cleaned = clean(settings, put_on_clock(settings, observed), entity)
        origin = self._origin_row(cleaned)
        first = origin + 1 - options.input_length
        stop = origin + 1 + options.horizon_rows
        axis = replace(cleaned.axis, rows=max(stop, cleaned.axis.rows))
        if first < 0:
            time = moment(int(axis.times()[origin]))
            raise InputError(
                f"has {pluralise(origin + 1, 'step')} up to {time}, and"
                f" input_length is {options.input_length:,}"
            )
        values = np.full((axis.rows, len(settings.columns)), np.nan)
        filled = np.zeros(values.shape, np.bool_)
        values[cleaned.axis.rows : origin + 1] = settings.empty_step
        values[: cleaned.axis.rows] = cleaned.values
        filled[: cleaned.axis.rows] = cleaned.filled
        self._fill_at(origin, values, filled)
        values[origin + 1 :, ~self._is_ahead] = np.nan
        window = _Window(axis.tail(first, stop), values[first:stop], filled[first:stop])
        if self.options.incomplete == "skip":
            self._require_complete(window)
        return window

    def _origin_row(self, cleaned: Cleaned) -> int:
        """Return the row of the last input. Raises `InputError`."""
        settings = self.settings
        axis = cleaned.axis
        if self.origin is not None:
            # A gap at the origin may be as long as one that is filled; steps that `total` makes 0
            # are no gap.
            later_rows = settings.max_imputation_gap_size
            if settings.takes_absence:
                later_rows = max(later_rows, self.options.input_length)
            beyond = replace(axis, rows=axis.rows + later_rows)
            at = np.flatnonzero(beyond.times() == self.origin)
            if len(at):
                return int(at[0])
            last = moment(int(axis.times()[-1]))
            raise InputError(f"has no step at {moment(self.origin)}: its last row is at {last}")
        counted = ~self._is_ahead
        if self.options.is_autoregressive:
            counted = np.isin(settings.columns, settings.target)
        rows = np.flatnonzero(~np.isnan(cleaned.values[:, counted]).all(axis=1))
        if len(rows):
            return int(rows[-1])
        if self.options.is_autoregressive:
            raise InputError(f"has no observed {', '.join(settings.target)}")
        horizon = 0
        if self.options.future != "none" and self._is_ahead.any():
            horizon = self.options.output_length
        return axis.rows - 1 - horizon

    def _fill_at(self, origin: int, values: F64, filled: Bools) -> None:
        """Fill the gaps that are open at the origin, in place, if they are short."""
        settings = self.settings
        past = values[: origin + 1]
        observed = ~np.isnan(past)
        length = observed[::-1].argmax(axis=0)
        short = observed.any(axis=0) & (length <= settings.max_imputation_gap_size)
        short &= np.isin(settings.columns, settings.feature_names)
        for column in np.flatnonzero(short & (length > 0)).tolist():
            first = origin + 1 - int(length[column])
            past[first:, column] = past[first - 1, column]
            filled[first : origin + 1, column] = True

    def _require_complete(self, window: _Window) -> None:
        """Raise `InputError` if a value that X or future needs is missing."""
        settings = self.settings
        length = self.options.input_length
        needed = np.ones(window.values.shape, np.bool_)
        needed[length:] = self._is_ahead
        if self.options.future == "none":
            needed[length:] = False
        if not self.options.is_autoregressive:
            needed[:, : len(settings.target)] = False
        missing = needed & np.isnan(window.values)
        if not missing.any():
            return
        row, column = np.argwhere(missing)[0].tolist()
        where = "inputs"
        if row >= length:
            where = "horizon"
        time = moment(int(window.axis.times()[row]))
        steps = int(missing[:, column].sum())
        raise InputError(
            f"{settings.columns[column]} is missing in {pluralise(steps, 'step')} of the {where},"
            f" first at {time}"
        )

    def join(
        self, windows: Mapping[str, _Window], statics: pa.Table | None, without: Mapping[str, str]
    ) -> ForecastWindows:
        """Scale the windows, and put them together."""
        names = list(windows)
        values = np.concatenate([window.values for window in windows.values()])
        axes = {name: window.axis for name, window in windows.items()}
        store = TableStore(
            self.columns,
            axes,
            self._matrices(windows, values),
            statics=None if statics is None else _rows_of(statics, names),
            fitted=self.fitted,
        )
        first = store.entities.first_row
        numbers = np.arange(len(names), dtype=np.int64)
        segments = WindowRuns(numbers, first, np.ones(len(names), np.int64))
        ends = first + self.options.window_rows
        cut = Windows(store, "all", self.options, segments, first, first, ends)
        return ForecastWindows(cut, without, self._count_unknown(values))

    def _matrices(self, windows: Mapping[str, _Window], values: F64) -> list[F32]:
        """Scale the rows of each window, and add the calendar: float32 [rows, C].

        values: of all windows end to end.
        """
        settings = self.settings
        offsets = np.arange(len(windows) + 1, dtype=np.int64) * self.options.window_rows
        scaled = self.fitted.pipelines().time_series.transform(
            settings.columns, values, offsets, list(windows)
        )
        matrices = []
        for number, window in enumerate(windows.values()):
            rows = scaled[offsets[number] : offsets[number + 1]]
            matrix = np.hstack([rows, calendar_rows(settings, window.axis)])
            matrices.append(matrix.astype(np.float32))
        return matrices

    def _count_unknown(self, values: F64) -> dict[str, int]:
        counts = {}
        for name in self.settings.categories:
            count = int((values[:, self.settings.columns.index(name)] == UNKNOWN).sum())
            if count:
                counts[name] = count
        return counts


def _rows_of(statics: pa.Table, names: Sequence[str]) -> tuple[tuple[str, ...], F32]:
    """Return the names and values [E, S] of the static features of these entities."""
    table = pl.DataFrame(statics)
    key = table.columns[0]
    rows = pl.DataFrame({key: names}).join(table, on=key, how="left", maintain_order="left")
    features = tuple(table.columns[1:])
    return features, np.ascontiguousarray(rows.select(features).to_numpy(), np.float32)
