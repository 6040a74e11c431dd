"""Prove that nothing behind a cut reached what lies before it, and name features that are the target in disguise.

Three checks. Memory is O(shard), O(an entity's rows) and O(what unified pipelines are fitted on).
- *refit*: the train rows of the store are brought back to their units, pipelines are fitted on them anew, and must
  scale them to what is stored. Numbers that were measured on other rows too do not.
- *later rows*: some entities are read from the source and prepared again. Behind each cut, every value is changed,
  deleted or added, and rows are removed and added: rows before the cut, the masks of filled values and the scalers
  must come out the same bytes. The cuts themselves may depend on later rows (how many targets there are, when a column
  ends), so they are held where they are, except where values alone change: then they are computed anew.
- *target among the features*: correlation of every feature with the target, entity by entity, on train rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from headrace.arrays import F32, F64, I64, Bools
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.digest import canonical_json
from headrace.errors import HeadraceError, InputError, SettingsError
from headrace.formats.dates import MISSING
from headrace.run.context import RunContext
from headrace.run.events import silent
from headrace.run.identity import fingerprint
from headrace.series.arrays.axis import Axis, Frequency, place
from headrace.series.arrays.encoders import Encoder, fit_encoder
from headrace.series.arrays.near_target import correlations, suspects, tally, warning
from headrace.series.arrays.scalers import Scalers
from headrace.series.clean import Cleaned, LeftOut, clean
from headrace.series.config import Series
from headrace.series.observed import Observed
from headrace.series.pipelines.fitted import Fitted, Part, fit, join
from headrace.series.pipelines.frozen import to_bytes
from headrace.series.pipelines.save import FACT, Pipelines
from headrace.series.pipelines.save import load as load_pipelines
from headrace.series.pipelines.settings import PipelineSettings, Resolved, Strategy, chosen_entities
from headrace.series.recipe import open_source
from headrace.series.store import STATICS, Entity, map_store, stacked, stored_entities, stored_settings, train_rows

_LATER = "later rows change nothing"
_SAMPLE = 32  # entities whose later rows are changed in every way

_ADDED_STEPS = 50  # behind the last row
_TOLERANCE = 1e-3  # what float32 in the store leaves of a refit, in scaled units


def leak_checks(run: FinishedRun) -> list[Check]:
    """Run the three checks. A feature that looks like the target is a warning in its check's detail."""
    settings = stored_settings(run.root)
    pipelines = load_pipelines(run.root, run.manifest.facts[FACT])
    shards = stored_entities(run.root)
    refit, near_target = _of_train_rows(run, settings, pipelines, shards)
    return [refit, _later_rows(run, settings, pipelines, shards), near_target]


def _of_train_rows(
    run: FinishedRun, settings: Series, pipelines: Pipelines, shards: Mapping[str, Sequence[Entity]]
) -> tuple[Check, Check]:
    """The checks that need the train rows in their own units: the refit, and the target among the features."""
    columns, resolved = settings.columns(), settings.resolved()
    names = [each.entity for entities in shards.values() for each in entities]
    chosen = chosen_entities(names, resolved.unified_entities, settings.seed)
    wanted, kept = set(chosen), dict[str, F64]()
    tallies = []
    worst, problem, skipped = 0.0, None, set[str]()
    for shard, entities in shards.items():
        scaled, offsets = train_rows(entities, map_store(run.root / shard)[0])
        own = [each.entity for each in entities]
        rows, gone = _brought_back(pipelines.time_series, columns, scaled, offsets, own)
        tallies.append(tally(columns[1:], correlations(rows, offsets, 0)[:, 1:]))
        for at, entity in enumerate(own):
            if entity in wanted:
                kept[entity] = rows[offsets[at] : offsets[at + 1]]
        again, unfit = _fitted_again(resolved.time_series, columns, rows, offsets, own, "per_group", gone)
        skipped |= gone | unfit
        far, told = _distance(again, columns, rows, offsets, own, scaled)
        worst, problem = max(worst, far), problem or told
    if chosen and problem is None:
        matrix, edges = stacked([kept[entity] for entity in chosen])
        again, unfit = _fitted_again(resolved.time_series, columns, matrix, edges, chosen, "unified", skipped)
        skipped |= unfit
        scaled = pipelines.time_series.transform(columns, matrix, edges, chosen)
        far, problem = _distance(again, columns, matrix, edges, chosen, scaled)
        worst = max(worst, far)
    if settings.static_features and problem is None:
        far, problem = _refit_statics(run, settings, pipelines)
        worst = max(worst, far)
    left = f"; not {', '.join(sorted(skipped))}, which rounding does not let back" if skipped else ""
    refit = Check(
        "scalers are of train rows",
        f"fitted again on the train rows of {len(names):,} entities: {worst:.1e} apart at most{left}",
        problem,
    )
    found = warning(settings.target, suspects(tallies))
    return refit, Check("no feature is the target", "none is" if found is None else f"warning: {found}")


def _refit_statics(run: FinishedRun, settings: Series, pipelines: Pipelines) -> tuple[float, str | None]:
    """Compare static features with a refit on what is stored: the largest distance, and the first that is too far."""
    table = pq.read_table(run.root / STATICS)
    entities = table[settings.entity_column].to_pylist()
    stored = {name: table[name].to_numpy().astype(np.float64) for name in table.column_names[1:]}
    told = next((each for each in (_encoded_again(each, stored) for each in pipelines.static_encoders) if each), None)
    resolved = settings.resolved()
    names = sorted(set(settings.static_features) - resolved.encoded)
    if told is not None or not names:
        return 0.0, told
    scaled = np.column_stack([stored[name] for name in names])
    offsets = np.arange(len(entities) + 1, dtype=np.int64)
    rows, gone = _brought_back(pipelines.static_features, names, scaled, offsets, entities)
    again, _ = _fitted_again(resolved.static_scaling, names, rows, offsets, entities, "unified", gone)
    return _distance(again, names, rows, offsets, entities, scaled)


def _encoded_again(encoder: Encoder, stored: dict[str, F64]) -> str | None:
    """Compare the fitted categories with those of the stored entities alone; None if they are the same."""
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
    """Compare rows scaled by a refit with what is stored: the largest distance, and the first that is too far."""
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
        if not apart[row, column] <= _TOLERANCE:
            entity = entities[int(np.searchsorted(offsets, row, "right")) - 1]
            return worst, (
                f"entity {entity!r}, column {part.columns[int(column)]!r}: a scaler fitted on train rows gives "
                f"{made[row, column]:.6g} where {stored[row, column]:.6g} is stored; other rows reached its fit"
            )
    return worst, None


@dataclass(frozen=True)
class _Prepared:
    """An entity prepared with other rows behind its cuts: float64 and bool [rows, C].

    trains: rows before val, others changed; known, filled: rows before test, others changed.
    """

    trains: F64
    known: F64
    filled: Bools


class _Differs(Exception):
    """An entity or a scaler differs when later rows are others."""


def _later_rows(
    run: FinishedRun, settings: Series, pipelines: Pipelines, shards: Mapping[str, Sequence[Entity]]
) -> Check:
    """The check; passed with a remark where the source is gone or is another by now."""
    try:
        files = settings.source_files()
        same = run.manifest.source["fingerprint"] in (fingerprint(files, "stat"), fingerprint(files, "content"))
    except (HeadraceError, OSError) as error:
        return Check(_LATER, f"not checked, the source cannot be read: {error}")
    if not same:
        return Check(_LATER, "not checked, the source is another by now")
    resolved = settings.resolved()
    names = [each.entity for entities in shards.values() for each in entities]
    once = chosen_entities(names, resolved.unified_entities, settings.seed)
    sample = set(chosen_entities(names, _SAMPLE, settings.seed + 1))
    ways = ", ".join(word for word, _ in _WAYS)
    detail = (
        f"{len(sample):,} entities prepared again with what is behind each cut {ways}: same rows, masks and scalers"
    )
    try:
        found = _prepared_again(
            settings, resolved, Frequency.parse(run.manifest.facts["frequency"]), files, sample, once
        )
        unified = Fitted(())
        if once:
            matrix, offsets = stacked([found[entity].trains for entity in once])
            unified = fit(resolved.time_series, settings.columns(), matrix, offsets, once, strategy="unified")
            for part in unified.parts:
                if to_bytes(part) != to_bytes(pipelines.time_series.part(part.columns[0])):
                    raise _Differs(f"columns {', '.join(part.columns)}: the scaler for all entities changed")
        for shard, entities in shards.items():
            own = {each.entity: each for each in entities if each.entity in sample}
            if own:
                _compare(map_store(run.root / shard)[0], settings, pipelines, own, found, unified)
    except _Differs as error:
        return Check(_LATER, detail, str(error))
    return Check(_LATER, detail)


def _prepared_again(
    settings: Series,
    resolved: Resolved,
    frequency: Frequency,
    files: Sequence[tuple[Path, str]],
    sample: Set[str],
    once: Sequence[str],
) -> dict[str, _Prepared]:
    """Entities with other rows behind their cuts: `sample` in every way, `once` with other values."""
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        source, _, _ = open_source(settings, RunContext(Path(directory), 1, silent), files)
        wanted = sample | set(once)
        for number, entity in enumerate(source.names):
            if entity not in wanted:
                continue
            try:
                observed = source.read(number, settings.columns())
                found[entity] = _again(settings, resolved, frequency, observed, every=entity in sample)
            except InputError as error:
                raise _Differs(f"entity {entity!r}: cannot be read again: {error}") from error
            except _Differs as error:
                raise _Differs(f"entity {entity!r}: {error}") from error
    unread = sorted(wanted - found.keys())
    if unread:
        raise _Differs(f"entity {unread[0]!r}: is no longer in the source")
    return found


def _again(settings: Series, resolved: Resolved, frequency: Frequency, observed: Observed, *, every: bool) -> _Prepared:
    """The entity with other rows behind its cuts."""
    try:
        honest = clean(settings, resolved, frequency, observed)
    except LeftOut as error:
        raise _Differs(f"does not pass again: {error}") from error
    # The axis is that of most rows, later ones included, so rows beside it are left out before others are changed.
    known = observed.times != MISSING
    on_axis = place(observed.times[known], frequency).rows
    observed = Observed(observed.times[known][on_axis], observed.values[known][on_axis])
    val, test = honest.cut.val_row, honest.cut.test_row
    beyond = Axis(frequency, honest.axis.first, honest.axis.rows + _ADDED_STEPS, honest.axis.anchor).times()
    made: dict[int, Cleaned] = {}
    for cut, at in ((val, (val, val)), (test, (val, test))):
        for word, change in _WAYS if every else _WAYS[:1]:
            changed = change(observed, observed.times >= beyond[cut], beyond[cut:])
            behind = f"with the rows from its step {cut + 1} on {word}"
            try:
                # values alone move no cut, so it is computed anew
                again = clean(settings, resolved, frequency, changed, at=None if word == _VALUES else at)
            except LeftOut as error:
                raise _Differs(f"does not pass ({error}) {behind}") from error
            if again.axis.first != honest.axis.first or again.cut.val_row != honest.cut.val_row:
                raise _Differs(f"begins or is cut elsewhere {behind}")
            for one, other in ((honest.values, again.values), (honest.filled, again.filled)):
                if not _same_bytes(one[:cut], other[:cut]):
                    raise _Differs(f"has other rows before a cut {behind}")
            if word == _VALUES:
                made[cut] = again
    return _Prepared(made[val].values[:val], made[test].values[:test], made[test].filled[:test])


def _same_bytes(one: Any, other: Any) -> bool:
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


def _changed(observed: Observed, later: Bools, _: I64) -> Observed:
    return Observed(observed.times, np.where(later[:, None], 17.0 - 3.0 * observed.values, observed.values))


def _deleted(observed: Observed, later: Bools, _: I64) -> Observed:
    return Observed(observed.times, np.where(later[:, None], np.nan, observed.values))


def _thinned(observed: Observed, later: Bools, times: I64) -> Observed:
    """Other values are there in each column, in runs of one to a few steps."""
    step = np.searchsorted(times, observed.times)
    column = np.arange(observed.values.shape[1])
    there = (step[:, None] + column) % (column + 3) == column % 2 + 1
    return Observed(observed.times, np.where(later[:, None], np.where(there, 1.0 + column, np.nan), observed.values))


def _removed(observed: Observed, later: Bools, _: I64) -> Observed:
    return Observed(observed.times[~later], observed.values[~later])


def _added(observed: Observed, later: Bools, times: I64) -> Observed:
    """Every step has a row with all values, and there are more steps."""
    values = np.full((len(times), observed.values.shape[1]), 2.0) + np.arange(len(times))[:, None]
    return Observed(np.concatenate([observed.times[~later], times]), np.concatenate([observed.values[~later], values]))


_Change = Callable[[Observed, Bools, I64], Observed]  # the rows, which of them are later, the times of all later steps
_VALUES = "changed"
_WAYS: tuple[tuple[str, _Change], ...] = (
    (_VALUES, _changed),
    ("deleted", _deleted),
    ("thinned", _thinned),
    ("removed", _removed),
    ("added", _added),
)


def _compare(
    values: F32,
    settings: Series,
    pipelines: Pipelines,
    own: Mapping[str, Entity],
    found: Mapping[str, _Prepared],
    unified: Fitted,
) -> None:
    """Raise `_Differs` where a shard's scalers or rows are not those of entities that were prepared again."""
    columns, names = settings.columns(), list(own)
    matrix, offsets = stacked([found[entity].trains for entity in names])
    fitted = fit(settings.resolved().time_series, columns, matrix, offsets, names, strategy="per_group")
    for part in fitted.parts:
        if _bytes_of(part, names) != _bytes_of(pipelines.time_series.part(part.columns[0]), names):
            raise _Differs(
                f"columns {', '.join(part.columns)}: scalers of {', '.join(names[:3])} changed with later rows"
            )
    scalers = join([unified, fitted])
    masked = [columns.index(name) for name in settings.filled_columns()] if settings.mask_columns() else []
    for entity, place_ in own.items():
        again, first, val, test = found[entity], place_.first_row, place_.val_row, place_.test_row
        if (val, test) != (len(again.trains), len(again.known)):
            raise _Differs(f"entity {entity!r}: {val} rows train, and {len(again.trains)} with other later rows")
        for split, rows, start, stop in (("train", again.trains, 0, val), ("val", again.known, val, test)):
            if start < stop:
                scaled = scalers.transform(columns, rows[start:stop], np.array([0, stop - start], np.int64), [entity])
                if not _same_bytes(values[first + start : first + stop, : len(columns)], scaled):
                    raise _Differs(f"entity {entity!r}: its {split} rows changed with later rows")
        if not np.array_equal(values[first : first + test, len(columns) :], again.filled[:, masked]):
            raise _Differs(f"entity {entity!r}: its masks of filled values changed with later rows")


def _bytes_of(part: Part, entities: Sequence[str]) -> bytes:
    if isinstance(part, Scalers):
        return canonical_json(part.select(entities).to_json())
    return b""  # scikit-learn's objects are compared by what they make of the rows
