"""Prove that nothing behind a cut changes what lies before it, by preparing some entities with other rows there.

The source is read again. Behind each cut, every value is changed, deleted or added, and rows are removed and added, and
the same code prepares the entity: rows before the cut, the masks of filled values and the scalers must come out the
same bytes. The cuts themselves may depend on later rows (how many targets there are, when a column ends), so they are
held where they are, except where values alone change: then they are computed anew. Memory is O(an entity's rows) and
O(what unified pipelines are fitted on).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.arrays import F64, I64, Bools
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.digest import canonical_json
from headrace.errors import HeadraceError
from headrace.formats.dates import MISSING
from headrace.run.context import RunContext
from headrace.run.events import silent
from headrace.run.identity import fingerprint
from headrace.series.arrays.axis import Axis, Frequency, place
from headrace.series.arrays.scalers import Scalers
from headrace.series.batches import EntitySource, load
from headrace.series.clean import Cleaned, clean
from headrace.series.config import Series
from headrace.series.observed import Observed
from headrace.series.pipelines.fitted import Fitted, Part, fit, join, to_bytes
from headrace.series.pipelines.save import Pipelines
from headrace.series.pipelines.settings import Resolved, chosen_entities
from headrace.series.recipe import entity_source
from headrace.series.stored import StoredShard

NAME = "later rows change nothing"
SAMPLE = 32  # entities whose later rows are changed in every way

_ADDED_STEPS = 50  # behind the last row


@dataclass(frozen=True)
class Again:
    """An entity prepared with other rows behind its cuts: float64 and bool [rows, C].

    trains: rows before val, others changed; known, filled: rows before test, others changed.
    """

    trains: F64
    known: F64
    filled: Bools


def later_rows(
    run: FinishedRun, settings: Series, resolved: Resolved, pipelines: Pipelines, shards: Sequence[StoredShard]
) -> Check:
    """The check; passed with a remark where the source is gone or is another by now."""
    try:
        files = settings.source_files()
        same = fingerprint(files, "stat") == run.manifest.source["fingerprint"]
        same = same or fingerprint(files, "content") == run.manifest.source["fingerprint"]
    except (HeadraceError, OSError) as error:
        return Check(NAME, f"not checked, the source cannot be read: {error}")
    if not same:
        return Check(NAME, "not checked, the source is another by now")
    names = [entity for shard in shards for entity in shard.entities]
    once = chosen_entities(names, resolved.unified_entities, settings.seed)
    sample = set(chosen_entities(names, SAMPLE, settings.seed + 1))
    frequency = Frequency.parse(run.manifest.facts["frequency"])
    found: dict[str, Again] = {}
    with tempfile.TemporaryDirectory() as directory:
        source, _, _ = entity_source(settings, RunContext(Path(directory), 1, silent), files)
        wanted = sample | set(once)
        for number, each in enumerate(source.batch(0, source.count)):
            if each.entity in wanted:
                ways = WAYS if each.entity in sample else WAYS[:1]
                again = _prepared_again(settings, resolved, frequency, source, number, ways)
                if isinstance(again, str):
                    return Check(NAME, "", f"entity {each.entity!r}: {again}")
                found[each.entity] = again
    unread = sorted(wanted - found.keys())
    if unread:
        return Check(NAME, "", f"entity {unread[0]!r}: is no longer in the source")
    columns = settings.columns()
    unified = Fitted(())
    if once:
        matrix, offsets = _stacked([found[entity].trains for entity in once])
        unified = fit(resolved.time_series, columns, matrix, offsets, once, strategy="unified")
        for part in unified.parts:
            if to_bytes(part) != to_bytes(pipelines.time_series.part(part.columns[0])):
                return Check(NAME, "", f"columns {', '.join(part.columns)}: the scaler for all entities changed")
    problem = None
    for shard in shards:
        own = [entity for entity in shard.entities if entity in sample]
        if own and problem is None:
            problem = _differs(run, settings, resolved, pipelines, shard, own, found, unified)
    words = ", ".join(word for word, _ in WAYS)
    return Check(
        NAME,
        f"{len(sample):,} entities prepared again with what is behind each cut {words}: same rows, masks and scalers",
        problem,
    )


def _prepared_again(
    settings: Series,
    resolved: Resolved,
    frequency: Frequency,
    source: EntitySource,
    number: int,
    ways: Sequence[tuple[str, Change]],
) -> Again | str:
    """The entity with other rows behind its cuts, or how it differs then."""
    (loaded,) = source.batch(number, number + 1)
    observed = load(loaded, settings.columns())
    if isinstance(observed, str):
        return f"cannot be read again: {observed}"
    honest = clean(settings, resolved, frequency, observed)
    if honest.failure is not None or honest.axis is None or honest.cut is None:
        return f"does not pass again: {honest.failure}"
    # The axis is that of most rows, later ones included, so rows beside it are left out before others are changed.
    known = observed.times != MISSING
    on_axis = place(observed.times[known], frequency).rows
    observed = Observed(observed.times[known][on_axis], observed.values[known][on_axis])
    val, test = honest.cut.val_row, honest.cut.test_row
    beyond = Axis(frequency, honest.axis.first, honest.axis.rows + _ADDED_STEPS, honest.axis.anchor).times()
    made: dict[int, Cleaned] = {}
    for cut, at in ((val, (val, val)), (test, (val, test))):
        for word, change in ways:
            changed = change(observed, observed.times >= beyond[cut], beyond[cut:])
            # values alone move no cut, so it is computed anew
            again = clean(settings, resolved, frequency, changed, at=None if word == _VALUES else at)
            told = _before(honest, again, cut)
            if told is not None:
                return f"{told} with the rows from its step {cut + 1} on {word}"
            if word == _VALUES:
                made[cut] = again
    trains, known, filled = made[val].values, made[test].values, made[test].filled
    assert trains is not None
    assert known is not None
    assert filled is not None
    return Again(trains[:val], known[:test], filled[:test])


def _before(honest: Cleaned, again: Cleaned, cut: int) -> str | None:
    """How the rows before a cut differ; None if they do not."""
    if again.values is None or again.filled is None or again.cut is None or again.axis is None:
        return f"does not pass ({again.failure})"
    assert honest.values is not None
    assert honest.filled is not None
    assert honest.cut is not None
    assert honest.axis is not None
    if again.axis.first != honest.axis.first or again.cut.val_row != honest.cut.val_row:
        return "begins or is cut elsewhere"
    for one, other in ((honest.values, again.values), (honest.filled, again.filled)):
        if np.ascontiguousarray(one[:cut]).tobytes() != np.ascontiguousarray(other[:cut]).tobytes():
            return "has other rows before a cut"
    return None


Change = Callable[[Observed, Bools, I64], Observed]  # the rows, which of them are later, the times of all later steps


def _changed(observed: Observed, later: Bools, _: I64) -> Observed:
    values = np.where(later[:, None], 17.0 - 3.0 * observed.values, observed.values)
    return Observed(observed.times, values, observed.bad_time)


def _deleted(observed: Observed, later: Bools, _: I64) -> Observed:
    return Observed(observed.times, np.where(later[:, None], np.nan, observed.values), observed.bad_time)


def _thinned(observed: Observed, later: Bools, times: I64) -> Observed:
    """Other values are there in each column, in runs of one to a few steps."""
    step = np.searchsorted(times, observed.times)
    column = np.arange(observed.values.shape[1])
    there = (step[:, None] + column) % (column + 3) == column % 2 + 1
    values = np.where(there, 1.0 + column, np.nan)
    return Observed(observed.times, np.where(later[:, None], values, observed.values), observed.bad_time)


def _removed(observed: Observed, later: Bools, _: I64) -> Observed:
    return Observed(observed.times[~later], observed.values[~later], observed.bad_time)


def _added(observed: Observed, later: Bools, times: I64) -> Observed:
    """Every step has a row with all values, and there are more steps."""
    values = np.full((len(times), observed.values.shape[1]), 2.0) + np.arange(len(times))[:, None]
    return Observed(
        np.concatenate([observed.times[~later], times]),
        np.concatenate([observed.values[~later], values]),
        observed.bad_time,
    )


_VALUES = "changed"
WAYS: tuple[tuple[str, Change], ...] = (
    (_VALUES, _changed),
    ("deleted", _deleted),
    ("thinned", _thinned),
    ("removed", _removed),
    ("added", _added),
)


def _differs(
    run: FinishedRun,
    settings: Series,
    resolved: Resolved,
    pipelines: Pipelines,
    shard: StoredShard,
    own: Sequence[str],
    found: dict[str, Again],
    unified: Fitted,
) -> str | None:
    """How a shard's scalers and rows differ from those of entities that were prepared again; None if they do not."""
    columns, values = settings.columns(), shard.values(run)
    matrix, offsets = _stacked([found[entity].trains for entity in own])
    fitted = fit(resolved.time_series, columns, matrix, offsets, own, strategy="per_group")
    for part in fitted.parts:
        if _bytes_of(part, own) != _bytes_of(pipelines.time_series.part(part.columns[0]), own):
            return f"columns {', '.join(part.columns)}: scalers of {', '.join(own[:3])} changed with later rows"
    for entity, first, val_row, test_row in _stored_places(shard, own):
        again = found[entity]
        if (val_row, test_row) != (len(again.trains), len(again.known)):
            return f"entity {entity!r}: {val_row} rows train, and {len(again.trains)} with other later rows"
        for rows, start, stop in ((again.trains, 0, val_row), (again.known, val_row, test_row)):
            if start == stop:
                continue
            part_offsets = np.array([0, stop - start], np.int64)
            scaled = join([unified, fitted]).transform(columns, rows[start:stop], part_offsets, [entity])
            stored = values[first + start : first + stop, : len(columns)]
            if np.ascontiguousarray(stored).tobytes() != np.ascontiguousarray(scaled).tobytes():
                return f"entity {entity!r}: its {'train' if not start else 'val'} rows changed with later rows"
        masked = [columns.index(name) for name in settings.filled_columns()] if settings.mask_columns() else []
        if not np.array_equal(values[first : first + test_row, len(columns) :], again.filled[:, masked]):
            return f"entity {entity!r}: its masks of filled values changed with later rows"
    return None


def _stored_places(shard: StoredShard, own: Sequence[str]) -> Iterator[tuple[str, int, int, int]]:
    """(entity, its first row, where val begins, where test begins) of some entities of a shard."""
    place = {entity: at for at, entity in enumerate(shard.entities)}
    for entity in own:
        at = place[entity]
        yield entity, int(shard.first_row[at]), int(shard.val_row[at]), int(shard.test_row[at])


def _bytes_of(part: Part, entities: Sequence[str]) -> bytes:
    if isinstance(part, Scalers):
        return canonical_json(part.select(entities).to_json())
    return b""  # scikit-learn's objects are compared by what they make of the rows


def _stacked(parts: Sequence[F64]) -> tuple[F64, I64]:
    return np.concatenate(parts), np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
