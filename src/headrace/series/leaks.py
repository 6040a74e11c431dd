"""Prove that nothing behind a cut reached what lies before it, and name features that are the target in disguise.

Three checks, from what lies on disk:
- *refit*: the train rows of the store are brought back to their units, pipelines are fitted on them anew, and must
  scale them to what is stored. Numbers that were measured on other rows too do not.
- *later rows*: some entities are prepared again with other rows behind their cuts, see `later_rows`.
- *target among the features*: correlation of every feature with the target, entity by entity, on train rows.

Memory is O(shard) and O(what unified pipelines are fitted on).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace.arrays import F64, I64
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.errors import InputError, SettingsError
from headrace.series.arrays.encoders import Encoder, fit_encoder
from headrace.series.arrays.near_target import correlations, suspects, tally, warning
from headrace.series.arrays.scalers import Scalers
from headrace.series.config import Series
from headrace.series.later_rows import later_rows
from headrace.series.pipelines.fitted import Fitted, fit, join
from headrace.series.pipelines.save import FACT, Pipelines
from headrace.series.pipelines.save import load as load_pipelines
from headrace.series.pipelines.settings import PipelineSettings, Resolved, Strategy, chosen_entities
from headrace.series.stored import (
    StoredShard,
    each_train_part,
    stored_settings,
    stored_shards,
    stored_statics,
)

TOLERANCE = 1e-3  # what float32 in the store leaves of a refit, in scaled units


def leak_checks(run: FinishedRun) -> list[Check]:
    """The checks of this module. A feature that looks like the target is told in a check's detail, as a warning."""
    settings = stored_settings(run)
    resolved = settings.resolved()
    pipelines = load_pipelines(run.root, run.manifest.facts[FACT])
    shards = stored_shards(run)
    return [
        _refit(run, settings, resolved, pipelines, shards),
        later_rows(run, settings, resolved, pipelines, shards),
        _near_target(run, settings, pipelines, shards),
    ]


def _refit(
    run: FinishedRun, settings: Series, resolved: Resolved, pipelines: Pipelines, shards: Sequence[StoredShard]
) -> Check:
    columns = settings.columns()
    chosen = chosen_entities(
        [entity for shard in shards for entity in shard.entities], resolved.unified_entities, settings.seed
    )
    kept: dict[str, F64] = {}
    worst, problem, skipped = 0.0, None, set[str]()
    for shard, scaled, offsets in each_train_part(run, list(shards)):
        rows, gone = _brought_back(pipelines.time_series, columns, scaled, offsets, shard.entities)
        skipped |= gone
        parts = {entity: place for place, entity in enumerate(shard.entities)}
        for entity in set(chosen) & set(parts):
            place = parts[entity]
            kept[entity] = rows[offsets[place] : offsets[place + 1]]
        again, unfit = _fitted_again(resolved.time_series, columns, rows, offsets, shard.entities, "per_group", gone)
        skipped |= unfit
        far, told = _distance(again, columns, rows, offsets, shard.entities, scaled)
        worst, problem = max(worst, far), problem or told
    if chosen and problem is None:
        matrix = np.concatenate([kept[entity] for entity in chosen])
        edges = np.cumsum([0, *(len(kept[entity]) for entity in chosen)], dtype=np.int64)
        again, unfit = _fitted_again(resolved.time_series, columns, matrix, edges, chosen, "unified", skipped)
        skipped |= unfit
        scaled = pipelines.time_series.transform(columns, matrix, edges, chosen)
        far, told = _distance(again, columns, matrix, edges, chosen, scaled)
        worst, problem = max(worst, far), told
    if settings.static_features and problem is None:
        worst, problem = _refit_statics(run, settings, resolved, pipelines, worst)
    left = f"; not {', '.join(sorted(skipped))}, which rounding does not let back" if skipped else ""
    return Check(
        "scalers are of train rows",
        f"fitted again on the train rows of {sum(len(each.entities) for each in shards):,} entities: "
        f"{worst:.1e} apart at most{left}",
        problem,
    )


def _refit_statics(
    run: FinishedRun, settings: Series, resolved: Resolved, pipelines: Pipelines, worst: float
) -> tuple[float, str | None]:
    entities, stored = stored_statics(run, settings)
    told = next((each for each in (_encoded_again(each, stored) for each in pipelines.static_encoders) if each), None)
    names = sorted(set(settings.static_features) - resolved.encoded)
    if told is not None or not names:
        return worst, told
    scaled = np.column_stack([stored[name] for name in names])
    offsets = np.arange(len(entities) + 1, dtype=np.int64)
    rows, gone = _brought_back(pipelines.static_features, names, scaled, offsets, entities)
    again, _ = _fitted_again(resolved.static_scaling, names, rows, offsets, entities, "unified", gone)
    far, told = _distance(again, names, rows, offsets, entities, scaled)
    return max(worst, far), told


def _encoded_again(encoder: Encoder, stored: dict[str, F64]) -> str | None:
    """How the categories of the stored entities alone differ from the fitted ones; None if they do not."""
    if encoder.step["categories"] != "auto" or not encoder.names:
        return None  # nothing was learned, or nothing is stored
    block = np.column_stack([stored[name] for name in encoder.names])
    texts = encoder.inverse_transform(block)
    again = fit_encoder(encoder.step, encoder.columns, texts)
    if again.categories != encoder.categories:
        return (
            f"static features {', '.join(encoder.columns)}: the categories are not those of the retained entities; "
            f"others reached the fit"
        )
    same = np.array_equal(again.transform(texts), block)
    return None if same else f"static features {', '.join(encoder.columns)}: are encoded otherwise than by their fit"


def _fitted_again(
    pipelines: Sequence[PipelineSettings],
    columns: Sequence[str],
    rows: F64,
    offsets: I64,
    entities: Sequence[str],
    strategy: Strategy,
    gone: set[str],
) -> tuple[Fitted, set[str]]:
    """The pipelines without columns that are gone, fitted anew; and columns that rounding has made unfit for it."""
    fits, unfit = [], set[str]()
    for each in pipelines:
        if not set(each.columns or ()) & gone:
            try:
                fits.append(fit([each], columns, rows, offsets, entities, strategy=strategy))
            except InputError:
                unfit |= set(each.columns or ())
    return join(fits), unfit


def _brought_back(
    fitted: Fitted, columns: Sequence[str], scaled: Any, offsets: I64, entities: Sequence[str]
) -> tuple[F64, set[str]]:
    """Rows in their own units (NaN: no way back), and the columns that cannot be fitted on them again."""
    rows, gone = np.full(scaled.shape, np.nan), set[str]()
    for part in fitted.parts:
        at = [list(columns).index(name) for name in part.columns]
        try:
            rows[:, at] = part.invert(scaled[:, at], offsets, entities)
        except SettingsError:
            gone |= set(part.columns)
        # a step of ranks leaps where float32 rounds a tie apart, and a root may get something below 0
        if not isinstance(part, Scalers) or np.any(np.isnan(rows[:, at]) & ~np.isnan(scaled[:, at])):
            gone |= set(part.columns)
    return rows, gone


def _distance(
    again: Fitted, columns: Sequence[str], rows: F64, offsets: I64, entities: Sequence[str], scaled: Any
) -> tuple[float, str | None]:
    """How far the refitted pipelines scale rows from what is stored, and the first column that is too far."""
    worst = 0.0
    for part in again.parts:
        at = [list(columns).index(name) for name in part.columns]
        made = part.apply(rows[:, at], offsets, entities, np.float64)
        stored = np.asarray(scaled[:, at], np.float64)
        apart = np.abs(made - stored) / (1 + np.abs(stored))
        apart[np.isnan(stored)] = 0
        if not apart.size:
            continue
        row, column = np.unravel_index(int(np.argmax(apart)), apart.shape)
        worst = max(worst, float(apart[row, column]))
        if not apart[row, column] <= TOLERANCE:
            entity = entities[int(np.searchsorted(offsets, row, "right")) - 1]
            return worst, (
                f"entity {entity!r}, column {part.columns[int(column)]!r}: a scaler fitted on train rows gives "
                f"{made[row, column]:.6g} where {stored[row, column]:.6g} is stored; other rows reached its fit"
            )
    return worst, None


def _near_target(run: FinishedRun, settings: Series, pipelines: Pipelines, shards: Sequence[StoredShard]) -> Check:
    columns = settings.columns()
    tallies = []
    for shard, scaled, offsets in each_train_part(run, list(shards)):
        rows, _ = _brought_back(pipelines.time_series, columns, scaled, offsets, shard.entities)
        tallies.append(tally(columns[1:], correlations(rows, offsets, 0)[:, 1:]))
    told = warning(settings.target, suspects(tallies))
    return Check("no feature is the target", "none is" if told is None else f"warning: {told}")
