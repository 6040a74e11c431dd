"""Which entities train and which validate. Pure.

validation   the pool trains     validation windows are in
"time"       yes, as all do      val: later times of entities that are known
"entity"     no                  train: the same times of entities that are not
"both"       no                  val: later times of entities that are not known
"none"       there is no pool    none
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import pyarrow as pa

from headrace.arrays import I64, Bools
from headrace.digest import derive_key, hash_texts
from headrace.errors import SettingsError
from headrace.series.chunks import choose_entities

Validation = Literal["time", "entity", "both", "none"]
VALIDATIONS: tuple[Validation, ...] = get_args(Validation)

_SHARE = 10  # one in so many entities validates


def split_of(validation: Validation) -> str:
    """The split that validation windows are in."""
    return "train" if validation == "entity" else "val"


def choose_pool(
    names: pa.Array, train: I64, val: I64, *, validation: Validation, size: int | None, seed: int
) -> tuple[Bools, Bools]:
    """(entities that train, entities that validate), bool [E].

    train, val: windows of each entity, [E]; only entities with windows to validate on are drawn for the pool, by keyed
    hash, so that more entities change little. size: of the pool; None: with "time" all, else a tenth, at least one.
    Raises `SettingsError` where nobody would be left to train.
    """
    able = np.flatnonzero(val) if validation != "none" else np.empty(0, np.int64)
    if size is None:
        size = len(able) if validation == "time" else max(1, len(able) // _SHARE)
    pool = np.zeros(len(names), bool)
    if len(able):
        high, low = hash_texts(derive_key(seed, "validation entities"), names.take(pa.array(able)))
        pool[able] = choose_entities(high, low, size)
    trains = train > 0
    if validation != "time":
        trains &= ~pool
    if not trains.any():
        raise SettingsError(
            f"{int((train > 0).sum())} entities have windows to train on, and validation={validation!r} with"
            f" validation_chunk_size={size} leaves none of them; choose a smaller validation_chunk_size, or"
            ' validation="time"'
        )
    return trains, pool
