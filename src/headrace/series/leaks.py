"""Prove that no row after a cut influenced rows before it, and name features that are the target in
disguise.

Four checks. Memory is O(shard), O(an entity's rows) and O(rows that unified pipelines are fitted
on).
- *refit*: the train rows of the store are converted back to their units, pipelines are fitted on
  them again, and must scale them to the stored values. Statistics that were measured on other rows
  too do not.
- *later rows*: some entities are read from the source and prepared again. After each cut, every
  value is changed, deleted or added, and rows are removed and added. Rows before the cut and the
  scalers must come out byte for byte the same. The cuts themselves may depend on later rows (the
  number of targets, the end of a column), so they are held fixed, except if only values change:
  then they are computed again.
- *folds*: scalers are fitted on the train rows that some entities of the source have in each fold,
  and must scale them to what windows with the scalers of their fold have.
- *target among the features*: correlation of every feature with the target, entity by entity, on
  train rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import F32, F64, I64, Bools
from headrace.dataset.local_shards import LocalFiles
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.digest import canonical_json
from headrace.errors import HeadraceError, InputError, SettingsError
from headrace.formats.dates import MISSING
from headrace.report.words import many_entities
from headrace.run.context import RunContext
from headrace.run.events import silent
from headrace.run.identity import fingerprint
from headrace.series.arrays.axis import Axis, place_rows
from headrace.series.arrays.encoders import Encoder, fit_encoder
from headrace.series.arrays.scalers import Scalers
from headrace.series.arrays.statistics import suspects, tally, warning
from headrace.series.clean import Cleaned, LeftOut, clean
from headrace.series.pipelines.fitted import AnyScalers, Fitted, fit, join, to_bytes
from headrace.series.pipelines.save import FACT, Pipelines
from headrace.series.pipelines.save import load as load_pipelines
from headrace.series.pipelines.settings import PipelineSettings, Strategy, chosen_entities
from headrace.series.settings import Series
from headrace.series.spread import open_source
from headrace.series.store import (
    Entity,
    stacked,
    stored_entities,
    stored_settings,
    train_rows,
)
from headrace.series.times import Observed
from headrace.series.windows.fold_scaling import FoldScaling, scaling_of_fold
from headrace.series.windows.store import SeriesStore, map_store, read_statics

SAMPLE = 32  # entities whose later rows are changed in every way

_LATER = "later rows change nothing"
_FOLDS = "scalers of folds are of their train rows"
_WAYS = ("changed", "deleted", "thinned", "removed", "added")
_ADDED_STEPS = 50  # after the last row
_TOLERANCE = 1e-3  # float32 error of a refit from the store, in scaled units


def leak_checks(run: FinishedRun) -> list[Check]:
    """Run the three checks. A feature that looks like the target gives a warning in its check's
    detail.
    """
    settings = stored_settings(run)
    shards = stored_entities(run.root)
    names = [entity.entity for entities in shards.values() for entity in entities]
    trained = list(filter(settings.division.trains, names))
    chosen = chosen_entities(trained, settings.resolved.unified_entities, settings.seed)
    pipelines = load_pipelines(run.root, run.manifest.metadata[FACT])
    proof = _Proof(run, settings, pipelines, shards, chosen)
    sample = chosen_entities(names, SAMPLE, settings.seed + 1)
    refit = _Refit()
    near_target = proof.refit(refit)
    return [proof.check_refit(refit), proof.check_later_rows(sample), near_target]


def fold_checks(run: FinishedRun, settings: Series) -> Iterator[Check]:
    """Check the scalers that windows of a fold may have; none for a run without folds, and for
    pipelines that have no scalers of a fold.
    """
    if settings.division.rolling is None:
        return
    store = SeriesStore(run.root, run.manifest, LocalFiles())
    without_windows = np.zeros(len(store.entities.rows), np.bool_)
    try:
        scalings = [scaling_of_fold(store, fold, without_windows) for fold in range(store.folds)]
    except SettingsError:
        return
    except InputError as error:
        yield Check(_FOLDS, f"not checked, {error}", category="unchecked")
        return
    files = same_source(run, settings)
    if isinstance(files, str):
        yield Check(_FOLDS, f"not checked, {files}", category="unchecked")
        return
    folds = [_FoldProof.of(store, settings, fold) for fold in range(store.folds)]
    needed = {name for fold in folds for name in (*fold.chosen, *fold.sample)}
    cleaned = {name: rows.values for name, rows in clean_again(settings, files, needed)}
    worst = 0.0
    problem = None
    for number, fold in enumerate(folds):
        distance = fold.distance(scalings[number], cleaned)
        worst = max(worst, distance)
        if distance > _TOLERANCE and problem is None:
            problem = (
                f"{run.root}: windows of fold {number} with scalers of their own are scaled"
                f" {distance:.1e} otherwise than its train rows say"
            )
    detail = (
        f"fitted again on the train rows of the source in {len(folds):,} folds: {worst:.1e} apart"
        " at most"
    )
    yield Check(_FOLDS, detail, problem)


@dataclass(frozen=True)
class _FoldProof:
    """The entities of a fold whose scalers are fitted again.

    index: name → number of the entity, of those that train in the fold.
    chosen: unified pipelines are fitted on them. sample: the others are, and all are compared.
    starts, ends: the train rows of each entity, [E].
    """

    store: SeriesStore
    settings: Series
    index: Mapping[str, int]
    chosen: Sequence[str]
    sample: Sequence[str]
    starts: I64
    ends: I64

    @classmethod
    def of(cls, store: SeriesStore, settings: Series, fold: int) -> _FoldProof:
        """Choose the entities, as the fold does."""
        starts, ends = store.entities.bounds("train", fold)
        names = store.entities.names.to_pylist()
        index = {names[number]: number for number in np.flatnonzero(ends > starts).tolist()}
        chosen = chosen_entities(list(index), settings.resolved.unified_entities, settings.seed)
        sample = chosen_entities(list(index), SAMPLE, settings.seed + 1)
        return cls(store, settings, index, chosen, sample, starts, ends)

    def distance(self, scaling: FoldScaling, cleaned: Mapping[str, F64]) -> float:
        """Return how far what windows have is from what the source says, in scaled units;
        infinite if a value is missing on one side only.
        """
        columns = self.settings.columns
        pipelines = self.settings.resolved.time_series
        parts = []
        strategies: list[tuple[Strategy, Sequence[str]]] = [("per_group", self.sample)]
        if self.chosen:
            strategies.append(("unified", self.chosen))
        for strategy, names in strategies:
            rows, offsets = stacked([self._train(cleaned, name) for name in names])
            parts.append(fit(pipelines, columns, rows, offsets, names, strategy=strategy))
        scalers = join(parts)
        worst = 0.0
        for name in self.sample:
            number = self.index[name]
            rows = self._train(cleaned, name)
            expected = scalers.transform(columns, rows, np.array([0, len(rows)]), [name])
            first = self.store.entities.first_row[number : number + 1]
            stored = self.store.matrices.copy_rows(
                first + self.starts[number], first + self.ends[number]
            )
            values = slice(0, len(columns))
            scaled = scaling.apply(stored[None, :, values], np.array([number]), values)[0]
            if (np.isnan(scaled) != np.isnan(expected)).any():
                return float("inf")
            worst = max(worst, float(np.nanmax(np.abs(scaled - expected), initial=0.0)))
        return worst

    def _train(self, cleaned: Mapping[str, F64], name: str) -> F64:
        number = self.index[name]
        return cleaned[name][self.starts[number] : self.ends[number]]


def same_source(run: FinishedRun, settings: Series) -> list[tuple[Path, str]] | str:
    """Find the files that a run was made from, or return the reason why they cannot be read
    again.
    """
    try:
        files = settings.source_files()
        known = (fingerprint(files, "stat"), fingerprint(files, "content"))
    except (HeadraceError, OSError) as error:
        return f"the source cannot be read: {error}"
    if run.manifest.source["fingerprint"] not in known:
        return "the source has changed"
    return files


def clean_again(
    settings: Series, files: Sequence[tuple[Path, str]], entities: Set[str]
) -> Iterator[tuple[str, Cleaned]]:
    """Clean some entities of the source again, in order; those that do not pass are omitted."""
    for entity, read in _read_again(settings, files, entities):
        with suppress(InputError):
            yield entity, clean(settings, read(), entity)


def _read_again(
    settings: Series, files: Sequence[tuple[Path, str]], entities: Set[str]
) -> Iterator[tuple[str, Callable[[], Observed]]]:
    """Yield these entities of the source, in order, each with a function that reads its rows."""
    with tempfile.TemporaryDirectory() as directory:
        context = RunContext(Path(directory), 1, silent)
        source = open_source(settings, context, files).source
        for number, entity in enumerate(source.names):
            if entity in entities:
                yield entity, partial(source.read_on_clock, number, settings)


class _Differs(Exception):
    """An entity or a scaler changes with later rows."""


@dataclass(frozen=True)
class _Proof:
    """The checks of one run.

    shards: entities of each shard.
    chosen: entities that unified pipelines were fitted on.
    """

    run: FinishedRun
    settings: Series
    pipelines: Pipelines
    shards: Mapping[str, Sequence[Entity]]
    chosen: Sequence[str]

    def _matrix(self, shard: str) -> F32:
        return map_store(self.run.root / shard).rows

    def refit(self, refit: _Refit) -> Check:
        """Fit all pipelines again, and return the check for the target among the features, which
        needs the train rows in their own units too.
        """
        settings = self.settings
        columns = settings.columns
        pipelines = settings.resolved.time_series
        fitted = self.pipelines.time_series
        chosen_rows: dict[str, Any] = dict.fromkeys(self.chosen)
        tallies = []
        for shard, members in self.shards.items():
            entities = []
            for entity in members:
                if settings.division.trains(entity.entity):
                    entities.append(entity)
            if not entities:
                continue
            scaled, offsets = train_rows(entities, self._matrix(shard))
            names = [entity.entity for entity in entities]
            group = _Group(columns, scaled, offsets, names, "per_group")
            rows = refit.compare(pipelines, fitted, group)
            tallies.append(tally(columns, rows, offsets))
            for name, (start, stop) in zip(names, pairwise(offsets.tolist()), strict=True):
                if name in chosen_rows:
                    chosen_rows[name] = scaled[start:stop]
        if chosen_rows:
            scaled, offsets = stacked(list(chosen_rows.values()))
            group = _Group(columns, scaled, offsets, self.chosen, "unified")
            refit.compare(pipelines, fitted, group)
        if settings.static_features:
            self._refit_statics(refit)
        message = warning(settings.target[0], suspects(tallies))
        detail = "none is" if message is None else f"warning: {message}"
        return Check("no feature is the target", detail)

    def _refit_statics(self, refit: _Refit) -> None:
        settings = self.settings
        table = read_statics(self.run.root)
        names = table[settings.entity_column].to_pylist()
        table = table.filter(pa.array([settings.division.trains(name) for name in names]))
        names = table[settings.entity_column].to_pylist()
        stored = {
            name: table[name].to_numpy().astype(np.float64) for name in table.column_names[1:]
        }
        for encoder in self.pipelines.static_encoders:
            if refit.problem is None:
                refit.problem = encoding_problem(encoder, stored)
        numbers = sorted(set(settings.static_features) - settings.resolved.encoded)
        if numbers:
            scaled = np.column_stack([stored[name] for name in numbers])
            offsets = np.arange(len(table) + 1)
            group = _Group(numbers, scaled, offsets, names, "unified")
            pipelines = settings.resolved.static_scaling
            refit.compare(pipelines, self.pipelines.static_features, group)

    def check_refit(self, refit: _Refit) -> Check:
        """Return the check of the refit."""
        count = 0
        for entities in self.shards.values():
            count += sum(self.settings.division.trains(entity.entity) for entity in entities)
        detail = (
            f"fitted again on the train rows of {many_entities(count)}: {refit.worst:.1e} apart at"
            " most"
        )
        if refit.skipped:
            names = ", ".join(sorted(refit.skipped))
            detail += f"; not {names}, whose rounding cannot be undone"
        return Check("scalers are of train rows", detail, refit.problem)

    def check_later_rows(self, sample: Sequence[str]) -> Check:
        """Prepare entities again with other later rows; "unchecked" if the source is gone or has
        changed.
        """
        files = same_source(self.run, self.settings)
        if isinstance(files, str):
            return Check(_LATER, f"not checked, {files}", category="unchecked")
        detail = (
            f"{many_entities(len(sample))} prepared again with the rows after each cut"
            f" {', '.join(_WAYS)}: same rows and scalers"
        )
        try:
            cleaned = self._prepare_again(files, sample)
            unified = self._fit(cleaned, self.chosen, "unified")
            for part in unified.parts:
                if to_bytes(part) != to_bytes(self.pipelines.time_series.part(part.columns[0])):
                    raise _Differs(
                        f"columns {', '.join(part.columns)}: the scaler for all entities changed"
                    )
            for shard, members in self.shards.items():
                entities = [entity for entity in members if entity.entity in sample]
                if entities:
                    self._compare(self._matrix(shard), entities, cleaned, unified)
        except _Differs as error:
            return Check(_LATER, detail, str(error))
        return Check(_LATER, detail)

    def _prepare_again(
        self, files: Sequence[tuple[Path, str]], sample: Sequence[str]
    ) -> dict[str, Cleaned]:
        """Clean the sample, and the entities that unified pipelines were fitted on, again."""
        entities = {*sample, *self.chosen}
        cleaned: dict[str, Cleaned] = {}
        for entity, read in _read_again(self.settings, files, entities):
            ways = _WAYS if entity in sample else _WAYS[:1]
            try:
                cleaned[entity] = _clean_in_ways(self.settings, read(), entity, ways)
            except InputError as error:
                raise _Differs(f"entity {entity!r} cannot be read again: {error}") from error
            except _Differs as error:
                raise _Differs(f"entity {entity!r}: {error}") from error
        for entity in sorted(entities - cleaned.keys()):
            raise _Differs(f"entity {entity!r} is no longer in the source")
        return cleaned

    def _fit(
        self, cleaned: Mapping[str, Cleaned], entities: Sequence[str], strategy: Strategy
    ) -> Fitted:
        """Fit the pipelines of this strategy on the train rows of entities that were prepared
        again.
        """
        if not entities:
            return Fitted(())
        rows = []
        for name in entities:
            cut = cleaned[name].cut
            rows.append(cleaned[name].values[cut.train_row : cut.train_stop])
        matrix, offsets = stacked(rows)
        pipelines = self.settings.resolved.time_series
        return fit(pipelines, self.settings.columns, matrix, offsets, entities, strategy=strategy)

    def _compare(
        self,
        matrix: F32,
        entities: Sequence[Entity],
        cleaned: Mapping[str, Cleaned],
        unified: Fitted,
    ) -> None:
        """Raise `_Differs` if a shard's scalers or rows differ from those of entities that were
        prepared again.
        """
        names = [entity.entity for entity in entities]
        trained = list(filter(self.settings.division.trains, names))
        fitted = self._fit(cleaned, trained, "per_group")
        for part in fitted.parts:
            if not _same_scalers(part, self.pipelines.time_series.part(part.columns[0]), names):
                raise _Differs(
                    f"columns {', '.join(part.columns)}: scalers of {', '.join(names[:3])} changed"
                    " with later rows"
                )
        scalers = join([unified, fitted])
        for entity in entities:
            rows = entity.of_batch(matrix)
            self._compare_rows(entity, rows, cleaned[entity.entity], scalers)

    def _compare_rows(self, entity: Entity, rows: F32, again: Cleaned, scalers: Fitted) -> None:
        columns = self.settings.columns
        width = len(columns)
        boundaries = entity.boundaries
        if boundaries[1:-1] != list(again.cut.edges):
            raise _Differs(
                f"entity {entity.entity!r} is cut at rows {boundaries[1:-1]}, and at"
                f" {list(again.cut.edges)} by other later rows"
            )
        last = max(row for row in boundaries if row < entity.rows)
        for start, stop in pairwise(boundaries):
            if start < stop <= last:
                offsets = np.array([0, stop - start], np.int64)
                segment = again.values[start:stop]
                scaled = scalers.transform(columns, segment, offsets, [entity.entity])
                if not same_bytes(rows[start:stop, :width], scaled):
                    raise _Differs(
                        f"entity {entity.entity!r}: its rows {start} to {stop} changed with later"
                        " rows"
                    )


def _same_scalers(part: AnyScalers, stored: AnyScalers, entities: Sequence[str]) -> bool:
    """Return whether two fits of some entities are the same; objects are compared by their results
    only.
    """
    if not isinstance(part, Scalers) or not isinstance(stored, Scalers):
        return True
    one = canonical_json(part.select(entities).to_json())
    return one == canonical_json(stored.select(entities).to_json())


@dataclass(frozen=True)
class _Group:
    """Stored train rows of several entities.

    scaled: floats [R, C].
    """

    columns: Sequence[str]
    scaled: Any
    offsets: I64
    entities: Sequence[str]
    strategy: Strategy


@dataclass
class _Refit:
    """The comparison of stored rows with pipelines fitted on them again.

    worst: the largest distance.
    problem: the first distance that is too large.
    skipped: columns that cannot be converted back because of rounding.
    """

    worst: float = 0.0
    problem: str | None = None
    skipped: set[str] = field(default_factory=set)

    def compare(self, pipelines: Sequence[PipelineSettings], fitted: Fitted, group: _Group) -> F64:
        """Compare the columns of the pipelines of the group's strategy; return all rows in units,
        NaN without an inverse.
        """
        rows = self._invert(fitted, group)
        for pipeline in pipelines:
            names = pipeline.columns or ()
            if pipeline.strategy == group.strategy and self.skipped.isdisjoint(names):
                self._compare_pipeline(pipeline, rows, group)
        return rows

    def _invert(self, fitted: Fitted, group: _Group) -> F64:
        """Convert stored rows back to their units, and note the columns where that is not exact."""
        rows = np.full(group.scaled.shape, np.nan)
        for part in fitted.parts:
            numbers = [group.columns.index(name) for name in part.columns]
            scaled = group.scaled[:, numbers]
            exact = isinstance(part, Scalers)
            try:
                rows[:, numbers] = part.invert(scaled, group.offsets, group.entities)
            except SettingsError:
                exact = False
            # Rank steps jump if float32 rounding breaks a tie, and a root may get a negative
            # number.
            if not exact or np.any(np.isnan(rows[:, numbers]) & ~np.isnan(scaled)):
                self.skipped |= set(part.columns)
        return rows

    def _compare_pipeline(self, pipeline: PipelineSettings, rows: F64, group: _Group) -> None:
        names = pipeline.columns or ()
        offsets = group.offsets
        entities = group.entities
        strategy = group.strategy
        try:
            fitted = fit([pipeline], group.columns, rows, offsets, entities, strategy=strategy)
        except InputError:  # rounding made a value invalid for a step
            self.skipped |= set(names)
            return
        numbers = [group.columns.index(name) for name in names]
        again = fitted.parts[0].apply(rows[:, numbers], offsets, entities, np.float64)
        stored = np.asarray(group.scaled[:, numbers], np.float64)
        distance = np.where(np.isnan(stored), 0, np.abs(again - stored) / (1 + np.abs(stored)))
        if not distance.size:
            return
        row, column = np.unravel_index(int(np.argmax(distance)), distance.shape)
        self.worst = max(self.worst, float(distance[row, column]))
        if self.problem is None and not distance[row, column] <= _TOLERANCE:
            entity = entities[int(np.searchsorted(offsets, row, "right")) - 1]
            self.problem = (
                f"entity {entity!r}, column {names[int(column)]!r}: a scaler fitted on train rows"
                f" gives {again[row, column]:.6g} where {stored[row, column]:.6g} is stored; other"
                " rows reached its fit"
            )


def encoding_problem(encoder: Encoder, stored: dict[str, F64]) -> str | None:
    """Compare the fitted categories with those of the stored entities only; return None if they are
    the same.
    """
    if encoder.step["categories"] != "auto" or not encoder.names:
        return None  # no learned categories, or nothing stored
    names = ", ".join(encoder.columns)
    codes = np.column_stack([stored[name] for name in encoder.names])
    texts = encoder.inverse_transform(codes)
    again = fit_encoder(encoder.step, encoder.columns, texts)
    if again.categories != encoder.categories:
        return (
            f"static features {names}: the categories are not those of the retained entities;"
            " others reached the fit"
        )
    if not np.array_equal(again.transform(texts), codes):
        return f"static features {names}: are not encoded as by their fit"
    return None


def _clean_in_ways(
    settings: Series, observed: Observed, entity: str, ways: Sequence[str]
) -> Cleaned:
    """Clean the entity with other rows after its cuts, in all these ways, and compare the rows
    before the cuts.

    Returns the entity with other values after the last cut. Raises `_Differs`.
    """
    try:
        honest = clean(settings, observed, entity)
    except LeftOut as error:
        raise _Differs(f"does not pass again: {error}") from error
    # Most rows decide the axis, later ones included, so rows off the axis are removed before later
    # rows change.
    known = observed.times != MISSING
    on_axis = place_rows(observed.times[known], settings.step).rows
    observed = Observed(observed.times[known][on_axis], observed.values[known][on_axis])
    axis = honest.axis
    steps = Axis(settings.step, axis.first, axis.rows + _ADDED_STEPS, axis.anchor).times()
    earliest = max(1, honest.cut.train_stop)
    result = honest
    for cut in sorted({edge for edge in honest.cut.edges if earliest <= edge < axis.rows}):
        edges = [min(edge, cut) for edge in honest.cut.edges]
        others = _other_rows(observed, observed.times >= steps[cut], steps[cut:])
        for way, changed in zip(ways, others, strict=False):
            where = f"with the rows from its step {cut + 1} on {way}"
            try:
                # Changed values move no cut, so it is computed again.
                fixed = None if way == "changed" else edges
                again = clean(settings, changed, entity, edges=fixed)
            except LeftOut as error:
                raise _Differs(f"does not pass ({error}) {where}") from error
            moved = [min(edge, cut) for edge in again.cut.edges] != edges
            if moved or again.axis.first != axis.first:
                raise _Differs(f"begins or is cut elsewhere {where}")
            if not _same_before(settings, honest, again, cut):
                raise _Differs(f"has other rows before a cut {where}")
            if way == "changed":
                result = again
    return result


def _same_before(settings: Series, honest: Cleaned, again: Cleaned, cut: int) -> bool:
    """Return whether the rows before a cut are the same."""
    left = min(cut, len(again.values))  # the last steps before the cut may have had no row
    remaining = honest.values[left:cut]
    empty = np.broadcast_to(settings.empty_step, remaining.shape)
    return (
        np.array_equal(remaining, empty, equal_nan=True)
        and same_bytes(honest.values[:left], again.values[:left])
        and same_bytes(honest.filled[:left], again.filled[:left])
    )


def same_bytes(one: Any, other: Any) -> bool:
    """Return whether two arrays hold the same bytes."""
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


def _other_rows(observed: Observed, later: Bools, times: I64) -> Iterator[Observed]:
    """Yield the rows with other rows after a cut, in all `_WAYS`.

    later: which rows are after the cut.
    times: of all steps after it.
    """
    before = observed.times[~later]
    values = observed.values

    def with_later(others: Any) -> Observed:
        return Observed(observed.times, np.where(later[:, None], others, values))

    yield with_later(17.0 - 3.0 * values)
    yield with_later(np.nan)
    # Each column retains other values, in runs of one to a few steps.
    step = np.searchsorted(times, observed.times)[:, None]
    column = np.arange(values.shape[1])
    thinned = (step + column) % (column + 3) == column % 2 + 1
    yield with_later(np.where(thinned, 1.0 + column, np.nan))
    yield Observed(before, values[~later])
    # Every step gets a row with all values, and steps are added.
    dense = np.full((len(times), values.shape[1]), 2.0) + np.arange(len(times))[:, None]
    yield Observed(np.concatenate([before, times]), np.concatenate([values[~later], dense]))
