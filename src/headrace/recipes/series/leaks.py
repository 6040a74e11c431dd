"""Prove that nothing behind the train rows reached a scaler, and name features that are the target in disguise.

Three checks, from what lies on disk:
- *refit*: the train rows of the store are brought back to their units, pipelines are fitted on them anew, and must
  scale them to what is stored. Numbers that were measured on other rows too do not.
- *later rows*: the source is read again for some entities, every value behind the cut is changed in memory, and the
  same code prepares them: cut, scalers and train rows must come out the same bytes. Not done where the source is gone
  or is another by now.
- *target among the features*: correlation of every feature with the target, entity by entity, on train rows.

Memory is O(shard) and O(what unified pipelines are fitted on).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.arrays import F64, I64
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.digest import canonical_json
from headrace.errors import HeadraceError, InputError, SettingsError
from headrace.recipes.series.batches import EntitySource, load
from headrace.recipes.series.clean import Cleaned, clean
from headrace.recipes.series.config import Series
from headrace.recipes.series.observed import Observed
from headrace.recipes.series.pipelines.fitted import Fitted, Part, fit, join
from headrace.recipes.series.pipelines.frozen import to_bytes
from headrace.recipes.series.pipelines.save import FACT, Pipelines
from headrace.recipes.series.pipelines.save import load as load_pipelines
from headrace.recipes.series.pipelines.settings import PipelineSettings, Resolved, Strategy, chosen_entities
from headrace.recipes.series.recipe import entity_source
from headrace.recipes.series.stored import (
    StoredShard,
    each_train_part,
    stored_settings,
    stored_shards,
    stored_statics,
)
from headrace.run.context import RunContext
from headrace.run.events import silent
from headrace.run.identity import fingerprint
from headrace.series.axis import Frequency
from headrace.series.encoders import Encoder, fit_encoder
from headrace.series.near_target import correlations, suspects, tally, warning
from headrace.series.scalers import Scalers

SAMPLE = 32  # entities that are prepared again with other rows behind their cut
TOLERANCE = 1e-3  # what float32 in the store leaves of a refit, in scaled units


def leak_checks(run: FinishedRun) -> list[Check]:
    """The checks of this module. A feature that looks like the target is told in a check's detail, as a warning."""
    settings = stored_settings(run)
    resolved = settings.resolved()
    pipelines = load_pipelines(run.root, run.manifest.facts[FACT])
    shards = stored_shards(run)
    return [
        _refit(run, settings, resolved, pipelines, shards),
        _later_rows(run, settings, resolved, pipelines, shards),
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


def _later_rows(
    run: FinishedRun, settings: Series, resolved: Resolved, pipelines: Pipelines, shards: Sequence[StoredShard]
) -> Check:
    name = "later rows change nothing"
    try:
        files = settings.source_files()
        same = fingerprint(files, "stat") == run.manifest.source["fingerprint"]
        same = same or fingerprint(files, "content") == run.manifest.source["fingerprint"]
    except (HeadraceError, OSError) as error:
        return Check(name, f"not checked, the source cannot be read: {error}")
    if not same:
        return Check(name, "not checked, the source is another by now")
    names = [entity for shard in shards for entity in shard.entities]
    once = chosen_entities(names, resolved.unified_entities, settings.seed)
    sample = chosen_entities(names, SAMPLE, settings.seed + 1)
    frequency = Frequency.parse(run.manifest.facts["frequency"])
    columns = settings.columns()
    with tempfile.TemporaryDirectory() as directory:
        source, _, _ = entity_source(settings, RunContext(Path(directory), 1, silent), files)
        wanted = set(once) | set(sample)
        found = {each: _changed(settings, frequency, source, place) for each, place in _places(source, wanted).items()}
    unread = sorted(wanted - {entity for entity, cleaned in found.items() if cleaned is not None})
    if unread:
        return Check(name, "", f"entity {unread[0]!r}: does not pass again with other values behind its cut")
    fitted = Fitted(())
    if once:
        matrix, offsets = _train(found, once)
        fitted = fit(resolved.time_series, columns, matrix, offsets, once, strategy="unified")
        for part in fitted.parts:
            if to_bytes(part) != to_bytes(pipelines.time_series.part(part.columns[0])):
                return Check(name, "", f"columns {', '.join(part.columns)}: the scaler for all entities changed")
    problem = None
    for shard in shards:
        own = [entity for entity in shard.entities if entity in set(sample)]
        if own and problem is None:
            problem = _same_train_rows(run, resolved.time_series, columns, pipelines, shard, own, found, fitted)
    return Check(
        name,
        f"{len(sample):,} entities prepared again with every value behind the cut changed: same cuts, scalers and rows",
        problem,
    )


def _same_train_rows(
    run: FinishedRun,
    settings: Sequence[PipelineSettings],
    columns: Sequence[str],
    pipelines: Pipelines,
    shard: StoredShard,
    own: Sequence[str],
    found: dict[str, Cleaned | None],
    unified: Fitted,
) -> str | None:
    values = shard.values(run)
    matrix, offsets = _train(found, own)
    fitted = fit(settings, columns, matrix, offsets, own, strategy="per_group")
    for part in fitted.parts:
        if _bytes_of(part, own) != _bytes_of(pipelines.time_series.part(part.columns[0]), own):
            return f"columns {', '.join(part.columns)}: scalers of {', '.join(own[:3])} changed with later rows"
    scaled = join([unified, fitted]).transform(columns, matrix, offsets, own)
    place = {entity: at for at, entity in enumerate(shard.entities)}
    for at, entity in enumerate(own):
        first, trains = int(shard.first_row[place[entity]]), int(shard.val_row[place[entity]])
        if trains != offsets[at + 1] - offsets[at]:
            return f"entity {entity!r}: {trains} rows train, and {offsets[at + 1] - offsets[at]} with other later rows"
        stored = np.ascontiguousarray(values[first : first + trains, : len(columns)])
        if stored.tobytes() != np.ascontiguousarray(scaled[offsets[at] : offsets[at + 1]]).tobytes():
            return f"entity {entity!r}: its train rows changed with later rows"
    return None


def _bytes_of(part: Part, entities: Sequence[str]) -> bytes:
    if isinstance(part, Scalers):
        return canonical_json(part.select(entities).to_json())
    return b""  # scikit-learn's objects are compared by what they make of the rows


def _changed(settings: Series, frequency: Frequency, source: EntitySource, place: int) -> Cleaned | None:
    """The entity with every observed value behind its cut changed; None if it does not pass."""
    (loaded,) = source.batch(place, place + 1)
    observed = load(loaded, settings.columns())
    if isinstance(observed, str):
        return None
    cleaned = clean(settings, frequency, observed)
    if cleaned.axis is None or cleaned.cut is None or cleaned.failure is not None:
        return None
    times = cleaned.axis.times()
    if cleaned.cut.val_row >= len(times):
        return cleaned
    later = observed.times >= times[cleaned.cut.val_row]
    values = np.where(later[:, None], 17.0 - 3.0 * observed.values, observed.values)
    again = clean(settings, frequency, Observed(observed.times, values, observed.bad_time))
    return None if again.failure is not None else again


def _train(found: dict[str, Cleaned | None], entities: Sequence[str]) -> tuple[F64, I64]:
    parts = []
    for entity in entities:
        cleaned = found[entity]
        assert cleaned is not None
        assert cleaned.values is not None
        assert cleaned.cut is not None
        parts.append(cleaned.values[: cleaned.cut.val_row])
    return np.concatenate(parts), np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)


def _places(source: EntitySource, wanted: set[str]) -> dict[str, int]:
    return {each.entity: place for place, each in enumerate(source.batch(0, source.count)) if each.entity in wanted}


def _near_target(run: FinishedRun, settings: Series, pipelines: Pipelines, shards: Sequence[StoredShard]) -> Check:
    columns = settings.columns()
    tallies = []
    for shard, scaled, offsets in each_train_part(run, list(shards)):
        rows, _ = _brought_back(pipelines.time_series, columns, scaled, offsets, shard.entities)
        tallies.append(tally(columns[1:], correlations(rows, offsets, 0)[:, 1:]))
    told = warning(settings.target, suspects(tallies))
    return Check("no feature is the target", "none is" if told is None else f"warning: {told}")
