"""Find the windows of a split, number them, and gather batches of them as arrays.

    windows = open_windows("out", "train", input_length=365, output_length=7)
    windows.batch(range(256))["X"]      # float32 [256, 365, F]

Numbers run through the entities in the order of the store. What a number refers to depends only on
the run, the split and the options, so any process may request any window. Picklable and
thread-safe.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, SupportsIndex

import numpy as np
import pyarrow as pa
from pydantic import Field, StrictBool, model_validator

from headrace.arrays import F32, I64, Bools
from headrace.dataset.indexed import ALIASES, Verify
from headrace.dataset.local_shards import DISK_BYTES, LocalFiles
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import InputError, SettingsError, setting, setting_name
from headrace.report.words import many_entities, pluralise, verb
from headrace.series.arrays.axis import CALENDAR, calendar_names
from headrace.series.arrays.window_values import (
    Incomplete,
    WindowScale,
    fill_windows,
    scale_of_past,
)
from headrace.series.arrays.windows import (
    NOTHING,
    Missing,
    Runs,
    Targets,
    WindowRuns,
    find_valid_sequences,
)
from headrace.series.windows.fold_scaling import FoldScaling, scaling_of_fold
from headrace.series.windows.store import Columns, Matrices, SeriesStore, open_store
from headrace.settings import Settings

Layout = Literal["views", "contiguous"]

_Steps = Annotated[int, Field(strict=True)]


class WindowOptions(Settings):
    """Define the shape of a window, and which windows there are.

    input_length, output_length: L and H, the steps of the inputs and of the horizon after them.
    horizons: the steps of the horizon in y, from 1 to H, ascending; None: all.
    stride: steps from one window of an entity to the next.
    is_autoregressive: whether X begins with the past of the target, or of each target; None: if the
    run has no feature but the calendar, as a series is then forecast from its own past.
    history: whether inputs may reach into the rows before the split ("preceding") or not
    ("within"). Labels never cross: the whole horizon of a window is in the split.
    targets: "all" labels of a window must be observed; "any" of them, the others being 0 in y and
    false in y_observed; "none": no y at all, for predicting without targets.
    future: the horizon's features known ahead as a separate input; "none": neither required nor
    returned.
    static: static attributes if the run has them; "none": not returned.
    incomplete: windows that miss a value of X or future; "skip" leaves them out, the others keep
    all windows, with masks of what was observed (see `Windows.gather`). Missing values are NaN with
    "keep"; "zero", "forward", "linear" and "seasonal" fill them, see `fill_windows`: X from the
    rows of X, future from those of X and future.
    season: the steps of "seasonal", such as 7 of days.
    scale: "mean" or "standard" divides each window's targets, in X and y, by a scale of their past
    in X, see `scale_of_past`, after the scaling of the run; "none" leaves them.
    layout: "views": X, y and future share one block of memory; "contiguous": each has its own.
    fold: the fold of a run that was prepared in folds, from 0.
    scalers: of a fold; "first_fold": those that train of fold 0 fitted, "own_fold": those that its
    own train rows fit, if pipelines are affine. Static features have those of fold 0.

    Raises `SettingsError` when built with values that cannot work.
    """

    input_length: _Steps = Field(ge=1)
    output_length: _Steps = Field(ge=1)
    horizons: tuple[_Steps, ...] | None = None
    stride: _Steps = Field(1, ge=1)
    is_autoregressive: StrictBool | None = None
    history: Literal["within", "preceding"] = "within"
    targets: Targets = "all"
    future: Literal["known", "none"] = "known"
    static: Literal["included", "none"] = "included"
    incomplete: Incomplete = "skip"
    season: Annotated[int, Field(strict=True, ge=1)] | None = None
    scale: WindowScale = "none"
    layout: Layout = "views"
    fold: Annotated[int, Field(strict=True, ge=0)] | None = None
    scalers: Literal["first_fold", "own_fold"] = "first_fold"

    @model_validator(mode="after")
    def _check_horizon(self) -> WindowOptions:
        steps = self.horizons
        last = self.output_length
        if steps is not None and (
            not steps or list(steps) != sorted(set(steps).intersection(range(1, last + 1)))
        ):
            raise ValueError(
                f"{setting_name('horizons')} is {steps!r}; give ascending steps from 1 to"
                f" output_length, {last}"
            )
        if (self.incomplete == "seasonal") != (self.season is not None):
            seasonal = setting("incomplete", "seasonal")
            raise ValueError(
                f"{setting_name('season')} is {self.season!r}; give it with {seasonal}, and only"
                " then"
            )
        if self.scalers == "own_fold" and self.fold is None:
            raise ValueError(
                f"{setting('scalers', 'own_fold')} needs {setting_name('fold')}; give it too"
            )
        return self

    @property
    def window_rows(self) -> int:
        """Rows of a window: L + H, or L if the horizon is not used."""
        return self.input_length + self.horizon_rows

    @property
    def horizon_rows(self) -> int:
        """Rows of the horizon: H, or 0 if the horizon is not used."""
        if self.targets != "none" or self.future != "none":
            return self.output_length
        return 0


_NAMED = 5  # names of entities without a window in a message
_TRIED = 64  # input lengths to try: with a stride, the working ones are not contiguous


class Blockers(NamedTuple):
    """Runs of rows that may not be in a window's inputs, its future, or its target."""

    inputs: Runs = NOTHING
    future: Runs = NOTHING
    target: Runs = NOTHING


def blockers_of(store: SeriesStore, options: WindowOptions) -> Blockers:
    """Find the rows that these options block, in one pass over the values; only those of targets if
    incomplete windows are kept.
    """
    if options.incomplete != "skip" and options.targets == "none":
        return Blockers()
    matrices = store.matrices
    columns = store.columns
    missing = Missing.find(matrices.matrices, columns=matrices.columns)
    # One label is enough for "any", of whichever target.
    unlabelled: Literal["some", "all"] = "all" if options.targets == "any" else "some"
    target = missing.runs(slice(0, len(columns.targets)), unlabelled)
    if options.incomplete != "skip":
        return Blockers(target=target)
    first_input = 0 if options.is_autoregressive else len(columns.targets)
    return Blockers(
        inputs=missing.runs(slice(first_input, columns.value_count)),
        future=missing.runs(columns.future_columns) if options.future != "none" else NOTHING,
        target=target,
    )


def row_ranges(store: SeriesStore, split: str, options: WindowOptions) -> tuple[I64, I64]:
    """Return the range of rows in every entity that the windows of a split may use; starts and
    ends, int64 [E].
    """
    entities = store.entities
    low, high = entities.bounds(split, options.fold)
    starts = entities.first_row + low
    if options.history == "preceding":
        starts = np.maximum(starts - options.input_length, entities.first_row)
    return starts, entities.first_row + high


def segments_of(
    store: SeriesStore, split: str, options: WindowOptions, blockers: Blockers
) -> WindowRuns:
    """Find the windows of a split that touch no blocked row."""
    starts, ends = row_ranges(store, split, options)
    return find_valid_sequences(
        starts,
        ends,
        input_length=options.input_length,
        output_length=options.horizon_rows,
        horizons=options.horizons,
        targets=options.targets,
        stride=options.stride,
        **blockers._asdict(),
    )


@dataclass(frozen=True)
class WindowCounts:
    """The number of windows of a split, and the entities without any; `str` gives a one-line
    summary.

    entities: number of entities with windows.
    of: number of entities in the run.
    without: names of the entities that have no window in the split.
    longest_without: rows in the split of the longest of these.
    window_rows: rows that a window takes.
    """

    split: str
    windows: int
    entities: int
    of: int
    without: tuple[str, ...]
    longest_without: int
    window_rows: int

    def __str__(self) -> str:
        summary = (
            f"{self.split}: {pluralise(self.windows, 'window')} of {many_entities(self.entities)}"
        )
        if not self.without:
            return summary
        short = self.longest_without < self.window_rows
        return (
            f"{summary}; {len(self.without):,} of"
            f" {self.of:,} {verb(len(self.without), 'has', 'have')} none, e.g."
            f" {', '.join(self.without[:_NAMED])}: "
            + (
                f"at most {pluralise(self.longest_without, 'row')} there, "
                if short
                else "values are missing there, "
            )
            + f"a window takes {self.window_rows:,}"
        )


def count_windows(windows: Windows, used: Windows | None = None) -> WindowCounts:
    """Count a split's windows. used: the subset that is served, if not all entities were chosen."""
    per_entity = windows.per_entity
    lacking = np.flatnonzero(per_entity == 0)
    rows = (windows.ends - windows.starts)[lacking]
    if used is None:
        served = per_entity
    else:
        served = used.per_entity
    return WindowCounts(
        split=windows.split,
        windows=int(served.sum()),
        entities=int((served > 0).sum()),
        of=len(per_entity),
        without=tuple(windows.entity_names(lacking)),
        longest_without=int(rows.max(initial=0)),
        window_rows=windows.options.window_rows,
    )


def check_some(windows: Windows, *, remedy: str = "") -> None:  # noqa: PLR0914 - the figures of a message
    """Raise `InputError` if there is no window, with suggestions, because a loop over none would
    silently do nothing.

    remedy: a further suggestion for the message.
    """
    if len(windows):
        return
    store = windows.store
    split = windows.split
    options = windows.options
    starts, ends = row_ranges(store, split, options)
    rows = ends - starts
    longest = int(rows.max(initial=0))
    blockers = blockers_of(store, options)
    if len(segments_of(store, split, options, blockers)):
        raise InputError(
            f"split {split!r} has no window of the entities that were chosen, 0 of"
            f" {int(np.sum(rows > 0)):,}",
            setting="entities",
            path=store.root,
            remedy="choose others",
        )
    remedies = _remedies(store, split, options, blockers)
    if longest < options.window_rows:
        why = f"and the longest of {many_entities(len(rows))} has {longest:,} there"
        # the share of the longest entity's targets that would be a window's rows
        if options.history == "preceding" and split != "train":
            needed = options.horizon_rows
        else:
            needed = options.window_rows
        ratio = math.ceil(100 * needed / max(1, int(store.entities.rows.max(initial=0)))) / 100
        if split != "all" and ratio < 1:
            ratio_setting = setting_name(f"{split}_ratio")
            remedies.append(f"prepare the series with {ratio_setting} of about {ratio:.2f} or more")
    else:
        fit = len(segments_of(store, split, options, Blockers()))
        one_blocker = {name: Blockers(**{name: runs}) for name, runs in blockers._asdict().items()}
        lost = {
            name: fit - len(segments_of(store, split, options, blocker))
            for name, blocker in one_blocker.items()
        }
        words = [f"{count:,} miss a value of the {name}" for name, count in lost.items() if count]
        why = f"{fit:,} would fit, and {', '.join(words) or 'each misses some value'}"
        remedies += [
            (
                f"prepare the series with a larger {setting_name('max_imputation_gap_size')} or"
                " without the columns that miss most"
            ),
            (
                f"pass {setting('targets', 'any')}, {setting('targets', 'none')} to predict without"
                f" them, or {setting('incomplete', 'keep', 'linear')}"
            ),
        ]
    if remedy:
        remedies += [remedy]
    lengths = f"{setting_name('input_length')} {options.input_length:,}"
    if options.horizon_rows:
        lengths += f" and {setting_name('output_length')} {options.output_length:,}"
    raise InputError(
        f"split {split!r} has no window: one takes {pluralise(options.window_rows, 'row')}"
        f" ({lengths}), {why}",
        setting="input_length",
        path=store.root,
        remedy="; or ".join(remedies),
    )


def _remedies(
    store: SeriesStore, split: str, options: WindowOptions, blockers: Blockers
) -> list[str]:
    """Return options that would give windows; each was tried."""

    def count(**changed: Any) -> int:
        return len(segments_of(store, split, options.model_copy(update=changed), blockers))

    starts, ends = row_ranges(store, split, options.model_copy(update={"history": "within"}))
    tried = range(1, int((ends - starts).max(initial=0)) + 1)
    # bisect: at stride 1 a window stays valid without its first input
    most = bisect_left(tried, True, key=lambda length: not count(stride=1, input_length=length))
    lengths = range(most, max(0, most - (_TRIED if options.stride > 1 else 1)), -1)
    works = next((length for length in lengths if count(input_length=length)), None)
    remedies = []
    name = setting_name("input_length")
    if works is not None:
        remedies.append(f"give {name} {works:,}, the longest that gives a window")
    elif not most:
        shorter = setting_name("output_length")
        remedies.append(f"no {name} gives a window: give a shorter {shorter}")
    if options.history == "within" and split in ("val", "test"):
        preceding = count(history="preceding")
        if preceding:
            windows = pluralise(preceding, "window")
            remedies.append(f"pass {setting('history', 'preceding')} ({windows})")
    return remedies


log = logging.getLogger("headrace")

SPLITS = ("train", "val", "test", "all")


class WindowPositions(NamedTuple):
    """The memory offsets of some windows, their entities, and the microsecond their inputs end;
    int64 [B] each.
    """

    offset: I64
    entity: I64
    input_end: I64

    def part(self, begin: int, end: int) -> WindowPositions:
        """Return the windows from `begin` to before `end`."""
        return WindowPositions(
            self.offset[begin:end], self.entity[begin:end], self.input_end[begin:end]
        )


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows of some entities.

    `windows[n]` is one window, `batch(numbers)` many, as arrays whose first axis is B.

    segments: the rows at which windows start.
    origin: for each entity the row where its time axis begins, int64 [E].
    starts, ends: for each entity the range of rows that its windows use, int64 [E].
    loaded: rows in memory; None: those of the store, mapped when needed.
    fold_scaling: that of the fold; None: that of the store.
    """

    store: SeriesStore
    split: str
    options: WindowOptions
    segments: WindowRuns
    origin: I64
    starts: I64
    ends: I64
    loaded: Matrices | None = None
    fold_scaling: FoldScaling | None = None

    def __len__(self) -> int:
        """Number of all windows."""
        return len(self.segments)

    def __getitem__(self, number: SupportsIndex) -> dict[str, Any]:
        """Return one window, without the first axis. Raises `IndexError` outside 0..len-1."""
        return {name: values[0] for name, values in self.batch([number]).items()}

    @cached_property
    def _inputs(self) -> slice:
        columns = self.store.columns
        first = 0 if self.options.is_autoregressive else len(columns.targets)
        return slice(first, columns.value_count)

    @property
    def target_names(self) -> tuple[str, ...]:
        """The targets, in the order of the last axis of y."""
        return self.store.columns.targets

    @property
    def input_names(self) -> tuple[str, ...]:
        """The column names of X."""
        return self.store.columns.names[self._inputs]

    @property
    def future_names(self) -> tuple[str, ...]:
        """The column names of future."""
        if self.options.future != "none":
            return self.store.columns.future
        return ()

    @property
    def static_names(self) -> tuple[str, ...]:
        """The column names of static."""
        if self.options.static != "none":
            return self.store.static_names
        return ()

    @cached_property
    def per_entity(self) -> I64:
        """Number of windows of each entity; int64 [E]."""
        return self.segments.per_entity(len(self.store.entities))

    @property
    def counts(self) -> WindowCounts:
        """Count the windows, and name the entities of the run that have none."""
        return count_windows(self)

    @cached_property
    def identity(self) -> str:
        """A digest that changes whenever a window number may refer to another window."""
        rules = self.options.model_dump(
            exclude={"layout", "static", *(["fold"] if self.options.fold is None else [])}
        )
        some = sha256_hex(np.packbits(self.per_entity > 0).tobytes())
        return sha256_hex(canonical_json([self.store.run_id, self.split, rules, len(self), some]))

    def entity_names(self, entities: Sequence[SupportsIndex] | I64) -> list[str]:
        """Return the names of entity numbers, such as those in `batch["entity"]`."""
        names: list[str] = self.store.entities.names.take(
            pa.array(np.asarray(entities, np.int64))
        ).to_pylist()
        return names

    def locate(self, numbers: I64) -> WindowPositions:
        """Locate these windows in memory; numbers: int64 in 0..len-1."""
        start, entity = self.segments.locate(numbers)
        end = start + (self.options.input_length - 1) - self.origin[entity]
        return WindowPositions(self.matrices.offsets(start), entity, self.store.times(entity, end))

    def batch(self, numbers: Sequence[SupportsIndex] | range | I64) -> dict[str, Any]:
        """Return the windows with these numbers, in this order; see `gather`.

        Raises `IndexError`, `CorruptShard`.
        """
        requested = np.asarray(numbers, np.int64)
        if len(requested) and not (int(requested.min()) >= 0 and int(requested.max()) < len(self)):
            raise IndexError(
                f"window {requested[(requested < 0) | (requested >= len(self))][0]} of {len(self)},"
                " counted from 0"
            )
        return self.gather(self.locate(requested))

    def gather(self, positions: WindowPositions) -> dict[str, Any]:
        """Copy the windows at these positions.

        X: float32 [B, L, F].
        y: float32 [B, horizons], with several targets [B, horizons, T].
        static: float32 [B, S].
        future: float32 [B, H, Ff].
        entity: int64 [B].
        input_end_date: datetime64[us] [B].
        y_observed: bool, shaped as y; present if targets may be missing.
        X_observed, future_observed: bool, shaped as X and future, false where a value was missing
        before it was filled; present unless incomplete windows are skipped, as is complete, bool
        [B], which says whether none was.
        centre, scale: float32 [B, T]; present if windows are scaled. A target is y · scale + centre
        in the scaling of the run.
        """
        return {**self.gather_values(positions), **self.gather_labels(positions)}

    def gather_labels(self, positions: WindowPositions) -> dict[str, Any]:
        """Return what `gather` says of each window beside its values: static, entity and
        input_end_date.
        """
        static = {}
        if self.static_names:
            static = {"static": self.store.static_of_entity[positions.entity]}
        return {
            **static,
            "entity": positions.entity,
            "input_end_date": positions.input_end.view("datetime64[us]"),
        }

    def gather_values(self, positions: WindowPositions) -> dict[str, Any]:
        """Return the values of each window, and which of them are observed; see `gather`."""
        options, first_target = self.options, self.options.input_length
        self.matrices.check(positions.offset)
        cut: Callable[[int, int, slice | list[int]], F32] = partial(
            self.matrices.windows, positions.offset
        )
        if options.layout == "views":
            block = cut(0, options.window_rows, slice(None))
            cut = lambda first, end, columns: block[:, first:end, columns]  # noqa: E731 - as the function it replaces
        batch: dict[str, Any] = {"X": cut(0, first_target, self._inputs)}
        if options.targets != "none":
            targets = cut(
                first_target, options.window_rows, slice(0, len(self.store.columns.targets))
            )
            if targets.shape[2] > 1:
                batch["y"] = targets
            else:
                batch["y"] = targets[:, :, 0]
            if options.horizons is not None:
                batch["y"] = batch["y"][:, np.asarray(options.horizons) - 1]
        if options.future != "none":
            batch["future"] = cut(
                first_target, options.window_rows, self.store.columns.future_columns
            )
        self._convert(batch, positions.entity)
        if "y" in batch and options.targets == "any":
            batch["y_observed"] = ~np.isnan(batch["y"])
            batch["y"] = np.where(batch["y_observed"], batch["y"], np.float32(0))
        if options.layout == "contiguous":  # what a selection of columns or horizons left strided
            batch = {name: np.ascontiguousarray(values) for name, values in batch.items()}
        return batch

    def _convert(self, batch: dict[str, Any], entity: I64) -> None:
        """Scale and fill values as the options say, and add what that took to the batch."""
        if self.fold_scaling is not None:
            self._to_fold(self.fold_scaling, batch, entity)
        if self.options.scale != "none":
            self._scale(batch)
        if self.options.incomplete != "skip":
            self._fill(batch)

    def _to_fold(self, scaling: FoldScaling, batch: dict[str, Any], entity: I64) -> None:
        """Convert values to the scaling of the fold."""
        columns = self.store.columns
        batch["X"] = scaling.apply(batch["X"], entity, self._inputs)
        if "future" in batch:
            batch["future"] = scaling.apply(batch["future"], entity, columns.future_columns)
        if "y" in batch:
            labels = batch["y"].reshape(*batch["y"].shape[:2], len(columns.targets))
            scaled = scaling.apply(labels, entity, slice(0, len(columns.targets)))
            batch["y"] = scaled.reshape(batch["y"].shape)

    def _scale(self, batch: dict[str, Any]) -> None:
        """Scale the targets of each window by their past; adds the centre and the scale."""
        targets = len(self.store.columns.targets)
        past = batch["X"][:, :, :targets]
        centre, scale = scale_of_past(past, self.options.scale)
        scaled = (past - centre[:, None]) / scale[:, None]
        batch["X"] = np.concatenate([scaled, batch["X"][:, :, targets:]], axis=2)
        if "y" in batch:
            shape = (len(centre), 1, targets)[: batch["y"].ndim]
            batch["y"] = (batch["y"] - centre.reshape(shape)) / scale.reshape(shape)
        batch |= {"centre": centre, "scale": scale}

    def _fill(self, batch: dict[str, Any]) -> None:
        """Fill X and future as the options say; adds the masks of what was observed."""
        options = self.options
        fill = partial(fill_windows, rule=options.incomplete, season=options.season or 1)
        names = np.array(self.input_names)
        stepwise = np.isin(names, self.store.columns.categories)
        past = batch["X"]
        batch["X_observed"] = ~np.isnan(past)
        batch["complete"] = batch["X_observed"].all((1, 2))
        batch["X"] = fill(past, stepwise=stepwise)
        if "future" not in batch:
            return
        known = [self.input_names.index(name) for name in self.future_names]
        rows = np.concatenate([past[:, :, known], batch["future"]], axis=1)
        batch["future_observed"] = ~np.isnan(batch["future"])
        batch["complete"] &= batch["future_observed"].all((1, 2))
        batch["future"] = fill(rows, stepwise=stepwise[known])[:, options.input_length :]

    @property
    def matrices(self) -> Matrices:
        """The rows, mapped or in memory."""
        if self.loaded is None:
            return self.store.matrices
        return self.loaded

    def of_entities(self, selected: Bools) -> Windows:
        """Return only the windows of the selected entities, bool [E], numbered from 0 again."""
        return replace(self, segments=self.segments.of_entities(selected))

    def in_memory(self, entities: I64) -> Windows:
        """Return the windows of these ascending entities over an in-memory copy of their rows, read
        sequentially.
        """
        starts = self.starts[entities]
        ends = self.ends[entities]
        selected = np.zeros(len(self.starts), bool)
        selected[entities] = True
        shift = np.zeros(len(self.starts), np.int64)
        shift[entities] = np.cumsum(ends - starts) - ends
        mine = self.segments.of_entities(selected)
        moved = WindowRuns(mine.entity, mine.first + shift[mine.entity], mine.count, mine.stride)
        loaded = Matrices([self.matrices.copy_rows(starts, ends)])
        return replace(
            self,
            segments=moved,
            loaded=loaded,
            origin=self.origin + shift,
            starts=self.starts + shift,
            ends=self.ends + shift,
        )


def with_inputs(columns: Columns, options: WindowOptions, run: Path) -> WindowOptions:
    """Return the options with `is_autoregressive` decided.

    Raises `SettingsError` if X would have no column.
    """
    if options.is_autoregressive is None:
        measured = set(columns.features).difference(calendar_names(CALENDAR))
        options = options.model_copy(update={"is_autoregressive": not measured})
    if options.scale != "none" and not options.is_autoregressive:
        raise SettingsError(
            "X holds no target whose past gives a scale",
            setting="scale",
            path=run,
            value=options.scale,
            remedy=f"give {setting('is_autoregressive', True)} too",
        )
    if not options.is_autoregressive and not columns.features:
        raise SettingsError(
            "the run has no features, so X would have no column",
            setting="is_autoregressive",
            path=run,
            value=False,
            remedy="leave it out, and X holds the past of the target",
        )
    return options


def windows_of(store: SeriesStore, split: str, options: WindowOptions) -> Windows:
    """Find the windows of a split, with one pass over the values to find missing ones.

    Raises `InputError` for an unknown split or missing static features; and as
    `SeriesStore.check_fold`.
    """
    if split in SPLITS:
        name = split
    else:
        name = ALIASES.get(split, split)
    if name not in SPLITS:
        raise InputError(
            "not a split of the run",
            setting="split",
            path=store.root,
            value=split,
            remedy=f"choose one of {', '.join(SPLITS)}",
        )
    entities = store.entities
    columns = store.columns
    store.check_fold(name, options.fold)
    starts, ends = row_ranges(store, name, options)
    holes = np.isnan(store.static_of_entity).any(axis=1)
    if options.static != "none" and holes.any():  # never fill in values silently
        which = store.entities.names[int(np.argmax(holes))].as_py()
        raise InputError(
            f"static features of entity {which!r} are missing, and of {int(holes.sum()) - 1}"
            " others",
            path=store.root,
            remedy=f"pass {setting('static', 'none')}",
        )
    options = with_inputs(columns, options, store.root)
    segments = segments_of(store, name, options, blockers_of(store, options))
    windows = Windows(store, name, options, segments, entities.first_row, starts, ends)
    if options.scalers == "own_fold" and options.fold:
        scaling = scaling_of_fold(store, options.fold, windows.per_entity > 0)
        return replace(windows, fold_scaling=scaling)
    return windows


def open_windows(
    path: str | Path,
    split: str = "train",
    *,
    run: str | None = None,
    verify: Verify = "first_touch",
    cache_dir: str | Path | None = None,
    disk_bytes: int = DISK_BYTES,
    **options: Any,
) -> Windows:
    """Open the windows of a split of prepared series.

    options: see `WindowOptions`.
    run: a run_id.
    verify: "first_touch" checks shards against their checksums when each process first touches
    them; "never" does not. cache_dir: for a run in an object store, where its shards are copied and
    mapped from (None: ~/.cache/headrace). The copies are checked, and shared by the processes of a
    machine.
    disk_bytes: the most bytes that these copies take.

    Logs the entities without a window. Raises `InputError` if there are no series or no windows,
    `SettingsError` for options that cannot work.
    """
    checked = WindowOptions(**options)
    files = LocalFiles(verify=verify, cache_dir=cache_dir, disk_bytes=disk_bytes)
    windows = windows_of(open_store(path, run=run, files=files), split, checked)
    check_some(windows)
    log.log(logging.WARNING if windows.counts.without else logging.INFO, "%s", windows.counts)
    return windows
