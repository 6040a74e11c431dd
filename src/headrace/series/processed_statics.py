"""Static features as models get them: numbers scaled, texts encoded, both fitted on the retained entities alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.arrays import F32
from headrace.errors import InputError
from headrace.series.arrays.encoders import Encoder, fit_encoder
from headrace.series.config import Series
from headrace.series.pipelines.fitted import Fitted, fit
from headrace.series.pipelines.settings import Resolved
from headrace.series.statics import Statics, complete


@dataclass(frozen=True)
class Processed:
    """values: float32 [E, len(names)]: the static features by name, in the place of a text the columns it becomes.

    filled: feature → entities that lacked it and got the mean or median, for those with any.
    """

    names: tuple[str, ...]
    values: F32
    fitted: Fitted
    encoders: tuple[Encoder, ...]
    filled: dict[str, int]


def processed_statics(settings: Series, resolved: Resolved, statics: Statics, entities: Sequence[str]) -> Processed:
    """Fit and transform the static features of these entities. Raises `InputError` where that cannot be done."""
    numbers = [name for name in statics.names if name not in resolved.encoded]
    given = statics.of(entities, numbers)
    values = complete(settings, numbers, given)
    lacked = (np.isnan(given) & ~np.isnan(values)).sum(axis=0).tolist()
    offsets = np.arange(len(entities) + 1, dtype=np.int64)
    fitted = fit(resolved.static_scaling, numbers, values, offsets, entities, strategy="unified")
    scaled = fitted.transform(numbers, values, offsets, entities)
    columns = {name: [(name, column)] for name, column in zip(numbers, scaled.T, strict=True)}
    encoders = []
    for each in resolved.static_encoding:
        assert each.encoder is not None
        texts = {name: statics.texts(entities, name) for name in each.columns or ()}
        for name, own in texts.items():
            if None in own:
                raise InputError(
                    f"entity {entities[own.index(None)]!r} has no static {name}, and a text has no "
                    f"{settings.missing_static}; complete the static files, or give missing_static='drop_entity'"
                )
        encoder = fit_encoder(each.encoder, tuple(texts), texts)
        made = dict(zip(encoder.names, encoder.transform(texts).T.astype(np.float32), strict=True))
        columns |= {name: [(out, made[out]) for out in encoder.names_of(name)] for name in texts}
        encoders.append(encoder)
    ordered = [column for name in statics.names for column in columns[name]]
    names = tuple(name for name, _ in ordered)
    called = [settings.entity_column, *names]
    twice = sorted({name for name in called if called.count(name) > 1})
    if twice:
        raise InputError(
            f"{len(twice)} columns of static features would be called alike, first {twice[0]!r}: that of a category is "
            f"called COLUMN_CATEGORY; rename the other column in the static files"
        )
    stacked = np.stack([column for _, column in ordered], axis=1) if ordered else np.empty((len(entities), 0))
    filled = {name: count for name, count in zip(numbers, lacked, strict=True) if count}
    return Processed(names, stacked.astype(np.float32), fitted, tuple(encoders), filled)
