"""Scale windows of a fold by pipelines that its own train rows fit, from the store of all folds.

The store holds what the train rows of fold 0 scaled. Where every step is affine, the scaling of
another fold is an affine map of that: a factor and a shift for each entity and column. Fitting
costs a pass over the train rows of the fold, when its windows are opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.arrays import F32, F64, I64, Bools, offsets_from_lengths
from headrace.dataset.manifest import read_settings
from headrace.errors import SettingsError, setting
from headrace.series.pipelines.fitted import Fitted, fit, join, merge
from headrace.series.pipelines.save import load
from headrace.series.pipelines.settings import chosen_entities
from headrace.series.settings import Series
from headrace.series.windows.store import SeriesStore

_AFFINE = ("StandardScaler", "MinMaxScaler", "MaxAbsScaler", "RobustScaler")
_AFFINE_FUNCTIONS = (None, "identity", "negative")
_FIT_CELLS = 1 << 24  # values of entities that are fitted at a time


@dataclass(frozen=True, eq=False)
class FoldScaling:
    """The map from the scaling of fold 0 to that of another fold: x · factor + shift.

    factor, shift: float32 [E, C], of the columns of the store.
    """

    factor: F32
    shift: F32

    def apply(self, values: F32, entity: I64, columns: slice | list[int]) -> F32:
        """Return values [B, T, columns] of these entities in the scaling of the fold."""
        factor = self.factor[entity][:, None, columns]
        return values * factor + self.shift[entity][:, None, columns]

    def undo(self, values: Any, entity: I64, targets: int) -> Any:
        """Return targets [B, ...] in the scaling of fold 0; several are in the last axis."""
        shape = (len(entity), *(1,) * (values.ndim - 1))
        if targets > 1:
            shape = (*shape[:-1], targets)
        shift = self.shift[entity, :targets].reshape(shape)
        factor = self.factor[entity, :targets].reshape(shape)
        return (np.asarray(values, np.float64) - shift) / factor


def scaling_of_fold(store: SeriesStore, fold: int, served: Bools) -> FoldScaling:
    """Fit the pipelines of a run on the train rows of a fold.

    served: which entities have windows, bool [E]. Raises `SettingsError` if a pipeline is not
    affine, `InputError` if one of them has no train row in the fold to fit its own on.
    """
    settings = read_settings(store.root, store.manifest, Series)
    for pipeline in settings.resolved.time_series:
        for step in pipeline.pipeline:
            _require_affine(step)
    rows = _TrainRows.of(store, fold, settings.columns)
    pipelines = _fitted(rows, settings)
    scaled_here = served | (rows.ends > rows.starts)
    if all(pipeline.strategy == "unified" for pipeline in settings.resolved.time_series):
        scaled_here[:] = True
    names = [rows.names[index] for index in np.flatnonzero(scaled_here).tolist()]
    # An affine map is known from what it makes of 0 and of 1.
    points = np.tile([[0.0], [1.0]], (len(names), len(settings.columns)))
    offsets = np.arange(len(names) + 1, dtype=np.int64) * 2
    units = rows.fitted.inverse_transform(settings.columns, points, offsets, names)
    scaled = pipelines.transform(settings.columns, units, offsets, names, np.float64)
    width = len(store.columns.names)
    factor = np.ones((len(rows.names), width), np.float32)
    shift = np.zeros((len(rows.names), width), np.float32)
    values = len(settings.columns)
    shift[scaled_here, :values] = scaled[::2]
    factor[scaled_here, :values] = scaled[1::2] - scaled[::2]
    return FoldScaling(factor, shift)


def _fitted(rows: _TrainRows, settings: Series) -> Fitted:
    """Fit the pipelines of the settings, for groups of entities whose rows fit into memory."""
    pipelines = settings.resolved.time_series
    trained = np.flatnonzero(rows.ends > rows.starts)
    index_of = {rows.names[index]: index for index in trained.tolist()}
    chosen = chosen_entities(list(index_of), settings.resolved.unified_entities, settings.seed)
    unified = rows.fit(pipelines, np.array([index_of[name] for name in chosen], int), "unified")
    cells = np.cumsum((rows.ends - rows.starts)[trained]) * len(settings.columns)
    groups = np.split(trained, np.flatnonzero(np.diff(cells // _FIT_CELLS)) + 1)
    return join([unified, merge([rows.fit(pipelines, group, "per_group") for group in groups])])


@dataclass(frozen=True)
class _TrainRows:
    """The train rows [start, end) of each entity in a fold, in the units of the source."""

    store: SeriesStore
    fitted: Fitted
    columns: Sequence[str]
    names: list[str]
    starts: I64
    ends: I64

    @classmethod
    def of(cls, store: SeriesStore, fold: int, columns: Sequence[str]) -> _TrainRows:
        entities = store.entities
        low, high = entities.bounds("train", fold)
        return cls(
            store,
            load(store.root, store.pipeline_digests).time_series,
            columns,
            entities.names.to_pylist(),
            entities.first_row + low,
            entities.first_row + high,
        )

    def fit(self, pipelines: Any, entities: I64, strategy: Any) -> Fitted:
        """Fit the pipelines of a strategy on the rows of these entities."""
        starts = self.starts[entities]
        ends = self.ends[entities]
        offsets = offsets_from_lengths(ends - starts)
        names = [self.names[index] for index in entities.tolist()]
        stored = self.store.matrices.copy_rows(starts, ends)[:, : len(self.columns)]
        units: F64 = self.fitted.inverse_transform(self.columns, stored, offsets, names)
        return fit(pipelines, self.columns, units, offsets, names, strategy=strategy)


def _require_affine(step: Mapping[str, Any]) -> None:
    word = step["step"]
    if word in _AFFINE and not step.get("clip"):
        return
    if word == "FunctionTransformer" and step["func"] in _AFFINE_FUNCTIONS:
        return
    raise SettingsError(
        f"a pipeline has the step {word}, which is not affine, so the store of fold 0 does not"
        " give the scaling of another fold",
        setting="scalers",
        value="own_fold",
        remedy=f"give {setting('scalers', 'first_fold')}, or prepare a run for each cut",
    )
