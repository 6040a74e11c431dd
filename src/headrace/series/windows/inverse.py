"""Predictions back in the target's own unit, by the plain numbers that the run's pipelines were saved as."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import F64, I64
from headrace.digest import sha256_hex
from headrace.errors import CorruptShard, InputError, SettingsError
from headrace.series.arrays.scalers import Scalers
from headrace.series.windows.store import SeriesStore

PIPELINES = "fitted_pipelines.json"


class TargetScale:
    """The scaler of a run's target. entities without one are only found when they are asked for."""

    def __init__(self, store: SeriesStore, scalers: Scalers) -> None:
        self._names, self._scalers, self._column = store.entities.names, scalers, store.columns.target

    def invert(self, scaled: npt.ArrayLike, entities: npt.ArrayLike) -> F64:
        """Scaled values [B, …] in the target's unit: float64, same shape. entities: numbers [B], as in batches.

        Raises `InputError` for an entity whose scaler was not fitted.
        """
        values, numbers = np.asarray(scaled), np.asarray(entities, np.int64)
        if values.shape[:1] != numbers.shape:
            raise SettingsError(f"values of shape {values.shape} and {numbers.shape} entities; give one for each value")
        seen, place = np.unique(numbers, return_inverse=True)
        fits: I64 = self._scalers.places([self._names[int(each)].as_py() for each in seen])
        return np.asarray(self._scalers.invert_column(values, self._column, fits[place]))


def target_scale(store: SeriesStore) -> TargetScale:
    """The scaler of a store's target.

    Raises `CorruptShard` for pipelines that are not those of the run, `SettingsError` for ones that scikit-learn alone
    can bring back.
    """
    path, digest = store.root / PIPELINES, store.pipelines_digest
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); restore it or prepare the run again") from error
    if not digest or sha256_hex(data) != digest:
        raise CorruptShard(f"{path}: its bytes are not those that were published; restore it or prepare the run again")
    for record in json.loads(data)["time_series"]:
        if store.columns.target in record["columns"]:
            return TargetScale(store, _native(record, store.columns.target))
    raise InputError(f"{path}: has no pipeline of {store.columns.target!r}; prepare the run again")


def _native(record: dict[str, Any], column: str) -> Scalers:
    if "objects" in record:
        raise SettingsError(
            f"column {column!r} is scaled by scikit-learn's own objects; bring its values back with"
            " headrace.load_pipelines(PATH).inverse_transform(values, entity=NAMES)"
        )
    return Scalers.from_json(record)
