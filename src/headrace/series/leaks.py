"""Prove that no row after a cut influenced rows before it, and name features that are the target in disguise.

Three checks. Memory is O(shard), O(an entity's rows) and O(rows that unified pipelines are fitted on).
- *refit*: the train rows of the store are converted back to their units, pipelines are fitted on them again, and must
  scale them to the stored values. Statistics that were measured on other rows too do not.
- *later rows*: some entities are read from the source and prepared again. After each cut, every value is changed,
  deleted or added, and rows are removed and added. Rows before the cut, the masks of filled values and the scalers
  must come out byte for byte the same. The cuts themselves may depend on later rows (the number of targets, the end of
  a column), so they are held fixed, except if only values change: then they are computed again.
- *target among the features*: correlation of every feature with the target, entity by entity, on train rows.
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
import pyarrow.parquet as pq

from headrace.arrays import F32, F64, I64, Bools
from headrace.dataset.open import FinishedRun
from headrace.dataset.verify import Check
from headrace.digest import canonical_json
from headrace.errors import HeadraceError, InputError, SettingsError
from headrace.formats.dates import MISSING
from headrace.report.words import many_entities
from headrace.run.context import RunContext
from headrace.run.events import silent
from headrace.run.identity import fingerprint
from headrace.series.arrays.axis import Axis, place
from headrace.series.arrays.encoders import Encoder, fit_encoder
from headrace.series.arrays.scalers import Scalers
from headrace.series.arrays.statistics import suspects, tally, warning
from headrace.series.clean import Cleaned, LeftOut, clean
from headrace.series.config import Series
from headrace.series.pipelines.fitted import Fitted, fit, join, to_bytes
from headrace.series.pipelines.save import FACT, Pipelines
from headrace.series.pipelines.save import load as load_pipelines
from headrace.series.pipelines.settings import PipelineSettings, Strategy, chosen_entities
from headrace.series.spread import open_source
from headrace.series.store import Entity, stacked, stored_entities, stored_settings, train_rows
from headrace.series.times import Observed
from headrace.series.windows.store import STATICS, map_store

_LATER = "later rows change nothing"
SAMPLE = 32  # entities whose later rows are changed in every way
_WAYS = ("changed", "deleted", "thinned", "removed", "added")
_ADDED_STEPS = 50  # after the last row
_TOLERANCE = 1e-3  # float32 error of a refit from the store, in scaled units


def leak_checks(run: FinishedRun) -> list[Check]:
    """Run the three checks. A feature that looks like the target gives a warning in its check's detail."""
    settings, shards = stored_settings(run), stored_entities(run.root)
    names = [each.entity for entities in shards.values() for each in entities]
    trained = [name for name in names if settings.division.trains(name)]
    once = chosen_entities(trained, settings.resolved.unified_entities, settings.seed)
    proof = _Proof(run, settings, load_pipelines(run.root, run.manifest.facts[FACT]), shards, once)
    refit, near_target = proof.of_train_rows()
    return [refit, proof.of_later_rows(chosen_entities(names, SAMPLE, settings.seed + 1)), near_target]


def same_source(run: FinishedRun, settings: Series) -> list[tuple[Path, str]] | str:
    """Find the files that a run was made from, or return the reason why they cannot be read again."""
    try:
        files = settings.source_files()
        known = (fingerprint(files, "stat"), fingerprint(files, "content"))
    except (HeadraceError, OSError) as error:
        return f"the source cannot be read: {error}"
    return files if run.manifest.source["fingerprint"] in known else "the source has changed"


def cleaned_again(
    settings: Series, files: Sequence[tuple[Path, str]], entities: Set[str]
) -> Iterator[tuple[str, Cleaned]]:
    """Clean some entities of the source again, in order; those that do not pass are omitted."""
    for entity, read in _entities_again(settings, files, entities):
        with suppress(InputError):
            yield entity, clean(settings, read(), entity)


def _entities_again(
    settings: Series, files: Sequence[tuple[Path, str]], entities: Set[str]
) -> Iterator[tuple[str, Callable[[], Observed]]]:
    """Yield these entities of the source, in order, each with a function that reads its rows."""
    with tempfile.TemporaryDirectory() as directory:
        source, _, _ = open_source(settings, RunContext(Path(directory), 1, silent), files)
        for number, entity in enumerate(source.names):
            if entity in entities:
                yield entity, partial(source.read_timed, number, settings)


@dataclass(frozen=True)
class _Proof:
    """The checks of one run. shards: entities of each shard; once: entities that unified pipelines were fitted on."""

    run: FinishedRun
    settings: Series
    pipelines: Pipelines
    shards: Mapping[str, Sequence[Entity]]
    once: Sequence[str]

    def of_train_rows(self) -> tuple[Check, Check]:
        """Run the checks on train rows in their own units: the refit, and the target among the features."""
        columns, asked, fitted = self.settings.columns(), self.settings.resolved, self.pipelines.time_series
        kept: dict[str, Any] = dict.fromkeys(self.once)
        refit, tallies = _Refit(), []
        for shard, every in self.shards.items():
            entities = [each for each in every if self.settings.division.trains(each.entity)]
            if not entities:
                continue
            scaled, offsets = train_rows(entities, map_store(self.run.root / shard)[0])
            own = [each.entity for each in entities]
            rows = refit.compare(asked.time_series, fitted, columns, scaled, offsets, own, "per_group")
            tallies.append(tally(columns, rows, offsets))
            for at, entity in enumerate(own):
                if entity in kept:
                    kept[entity] = scaled[offsets[at] : offsets[at + 1]]
        if kept:
            scaled, offsets = stacked(list(kept.values()))
            refit.compare(asked.time_series, fitted, columns, scaled, offsets, self.once, "unified")
        if self.settings.static_features:
            table = pq.read_table(self.run.root / STATICS)
            trains = map(self.settings.division.trains, table[self.settings.entity_column].to_pylist())
            table = table.filter(pa.array(list(trains)))
            stored = {name: table[name].to_numpy().astype(np.float64) for name in table.column_names[1:]}
            for encoder in self.pipelines.static_encoders:
                refit.problem = refit.problem or _encoded_again(encoder, stored)
            if names := sorted(set(self.settings.static_features) - asked.encoded):
                scaled, offsets = np.column_stack([stored[name] for name in names]), np.arange(len(table) + 1)
                own, statics = table[self.settings.entity_column].to_pylist(), self.pipelines.static_features
                refit.compare(asked.static_scaling, statics, names, scaled, offsets, own, "unified")
        left = f"; not {', '.join(sorted(refit.skipped))}, whose rounding cannot be undone" if refit.skipped else ""
        count = sum(self.settings.division.trains(each.entity) for own in self.shards.values() for each in own)
        told = f"fitted again on the train rows of {many_entities(count)}: {refit.worst:.1e} apart at most{left}"
        found = warning(self.settings.target, suspects(tallies))
        return (
            Check("scalers are of train rows", told, refit.problem),
            Check("no feature is the target", "none is" if found is None else f"warning: {found}"),
        )

    def of_later_rows(self, sample: Sequence[str]) -> Check:
        """Prepare entities again with other later rows; "unchecked" if the source is gone or has changed."""
        settings, files = self.settings, same_source(self.run, self.settings)
        if isinstance(files, str):
            return Check(_LATER, f"not checked, {files}", kind="unchecked")
        detail = (
            f"{many_entities(len(sample))} prepared again with the rows after each cut {', '.join(_WAYS)}: same rows, "
            f"masks and scalers"
        )
        found: dict[str, Cleaned] = {}
        try:
            wanted = {*sample, *self.once}
            for entity, read in _entities_again(settings, files, wanted):
                try:
                    found[entity] = _again(settings, read(), entity, _WAYS if entity in sample else _WAYS[:1])
                except InputError as error:
                    raise _Differs(f"entity {entity!r}: cannot be read again: {error}") from error
                except _Differs as error:
                    raise _Differs(f"entity {entity!r}: {error}") from error
            for entity in sorted(wanted - found.keys()):
                raise _Differs(f"entity {entity!r}: is no longer in the source")
            unified = self._fitted(found, self.once, "unified")
            for part in unified.parts:
                if to_bytes(part) != to_bytes(self.pipelines.time_series.part(part.columns[0])):
                    raise _Differs(f"columns {', '.join(part.columns)}: the scaler for all entities changed")
            for shard, entities in self.shards.items():
                own = [each for each in entities if each.entity in sample]
                if own:
                    self._compare(map_store(self.run.root / shard)[0], own, found, unified)
        except _Differs as error:
            return Check(_LATER, detail, str(error))
        return Check(_LATER, detail)

    def _fitted(self, found: Mapping[str, Cleaned], entities: Sequence[str], strategy: Strategy) -> Fitted:
        """Fit the pipelines of this strategy on the train rows of entities that were prepared again."""
        if not entities:
            return Fitted(())
        cuts = {each: found[each].cut for each in entities}
        rows = [found[each].values[cuts[each].train_row : cuts[each].train_stop] for each in entities]
        matrix, offsets = stacked(rows)
        pipelines, columns = self.settings.resolved.time_series, self.settings.columns()
        return fit(pipelines, columns, matrix, offsets, entities, strategy=strategy)

    def _compare(self, stored: F32, own: Sequence[Entity], found: Mapping[str, Cleaned], unified: Fitted) -> None:
        """Raise `_Differs` if a shard's scalers or rows differ from those of entities that were prepared again."""
        columns, names = self.settings.columns(), [each.entity for each in own]
        fitted = self._fitted(found, [each for each in names if self.settings.division.trains(each)], "per_group")
        for part in fitted.parts:
            kept = self.pipelines.time_series.part(part.columns[0])
            if isinstance(part, Scalers) and isinstance(kept, Scalers):  # objects are compared by their results below
                one, other = (canonical_json(each.select(names).to_json()) for each in (part, kept))
                if one != other:
                    raise _Differs(
                        f"columns {', '.join(part.columns)}: scalers of {', '.join(names[:3])} changed with later rows"
                    )
        scalers = join([unified, fitted])
        unmasked = len(columns) - len(self.settings.mask_columns())
        for each in own:
            again, borders = found[each.entity], each.borders
            told, last = f"entity {each.entity!r}:", max(edge for edge in borders if edge < each.rows)
            if borders[1:-1] != list(again.cut.edges):
                raise _Differs(
                    f"{told} is cut at rows {borders[1:-1]}, and at {list(again.cut.edges)} by other later rows"
                )
            rows = stored[each.first_row : each.first_row + last]
            for start, stop in pairwise(borders):
                if start < stop <= last:
                    edges = np.array([0, stop - start], np.int64)
                    scaled = scalers.transform(columns, again.values[start:stop], edges, [each.entity])
                    if not same_bytes(rows[start:stop, : len(columns)], scaled):
                        raise _Differs(f"{told} its rows {start} to {stop} changed with later rows")
            made = rows[:, len(columns) + len(self.settings.calendar_columns()) :]
            if not np.array_equal(made, again.filled[:last, unmasked:]):
                raise _Differs(f"{told} its masks of filled values changed with later rows")


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

    def compare(
        self,
        asked: Sequence[PipelineSettings],
        fitted: Fitted,
        columns: Sequence[str],
        scaled: Any,
        offsets: I64,
        entities: Sequence[str],
        strategy: Strategy,
    ) -> F64:
        """Compare the columns of the pipelines of this strategy; return all rows in units, NaN without an inverse.

        scaled: stored train rows, as floats [R, C].
        """
        place_of = {name: at for at, name in enumerate(columns)}
        rows, gone = np.full(scaled.shape, np.nan), set[str]()
        for part in fitted.parts:
            at = [place_of[name] for name in part.columns]
            try:
                rows[:, at] = part.invert(scaled[:, at], offsets, entities)
            except SettingsError:
                gone |= set(part.columns)
            # rank steps jump if float32 rounding breaks a tie, and a root may get a negative number
            if not isinstance(part, Scalers) or np.any(np.isnan(rows[:, at]) & ~np.isnan(scaled[:, at])):
                gone |= set(part.columns)
        self.skipped |= gone
        for each in asked:
            names = each.columns or ()
            if each.strategy != strategy or self.skipped.intersection(names):
                continue
            try:
                (part,) = fit([each], columns, rows, offsets, entities, strategy=strategy).parts
            except InputError:  # rounding made a value invalid for a step
                self.skipped |= set(names)
                continue
            at = [place_of[name] for name in names]
            made = part.apply(rows[:, at], offsets, entities, np.float64)
            stored = np.asarray(scaled[:, at], np.float64)
            apart = np.where(np.isnan(stored), 0, np.abs(made - stored) / (1 + np.abs(stored)))
            if not apart.size:
                continue
            row, column = np.unravel_index(int(np.argmax(apart)), apart.shape)
            self.worst = max(self.worst, float(apart[row, column]))
            if self.problem is None and not apart[row, column] <= _TOLERANCE:
                entity = entities[int(np.searchsorted(offsets, row, "right")) - 1]
                self.problem = (
                    f"entity {entity!r}, column {names[int(column)]!r}: a scaler fitted on train rows gives "
                    f"{made[row, column]:.6g} where {stored[row, column]:.6g} is stored; other rows reached its fit"
                )
        return rows


def _encoded_again(encoder: Encoder, stored: dict[str, F64]) -> str | None:
    """Compare the fitted categories with those of the stored entities only; return None if they are the same."""
    if encoder.step["categories"] != "auto" or not encoder.names:
        return None  # no learned categories, or nothing stored
    block = np.column_stack([stored[name] for name in encoder.names])
    texts = encoder.inverse_transform(block)
    again = fit_encoder(encoder.step, encoder.columns, texts)
    if again.categories != encoder.categories:
        return (
            f"static features {', '.join(encoder.columns)}: the categories are not those of the retained entities; "
            f"others reached the fit"
        )
    same = np.array_equal(again.transform(texts), block)
    return None if same else f"static features {', '.join(encoder.columns)}: are not encoded as by their fit"


class _Differs(Exception):
    """An entity or a scaler changes with later rows."""


def _again(settings: Series, observed: Observed, entity: str, ways: Sequence[str]) -> Cleaned:
    """Clean the entity with other rows after its cuts, in all these ways, and compare the rows before the cuts.

    Returns the entity with other values after the last cut. Raises `_Differs`.
    """
    try:
        honest = clean(settings, observed, entity)
    except LeftOut as error:
        raise _Differs(f"does not pass again: {error}") from error
    # Most rows decide the axis, later ones included, so rows off the axis are removed before later rows change.
    known = observed.times != MISSING
    on_axis = place(observed.times[known], settings.step).rows
    observed = Observed(observed.times[known][on_axis], observed.values[known][on_axis])
    edges, returned = honest.cut.edges, honest
    beyond = Axis(settings.step, honest.axis.first, honest.axis.rows + _ADDED_STEPS, honest.axis.anchor).times()
    for cut in sorted({edge for edge in edges if max(1, honest.cut.train_stop) <= edge < honest.axis.rows}):
        at = [min(edge, cut) for edge in edges]
        for word, changed in zip(ways, _others(observed, observed.times >= beyond[cut], beyond[cut:]), strict=False):
            behind = f"with the rows from its step {cut + 1} on {word}"
            try:
                # changed values move no cut, so it is computed again
                again = clean(settings, changed, entity, at=None if word == "changed" else at)
            except LeftOut as error:
                raise _Differs(f"does not pass ({error}) {behind}") from error
            if again.axis.first != honest.axis.first or [min(each, cut) for each in again.cut.edges] != at:
                raise _Differs(f"begins or is cut elsewhere {behind}")
            left = min(cut, len(again.values))  # the last steps before the cut may have had no row
            rest = honest.values[left:cut]
            if not np.array_equal(rest, np.broadcast_to(settings.empty_step(), rest.shape), equal_nan=True):
                raise _Differs(f"has other rows before a cut {behind}")
            for one, other in ((honest.values, again.values), (honest.filled, again.filled)):
                if not same_bytes(one[:left], other[:left]):
                    raise _Differs(f"has other rows before a cut {behind}")
            if word == "changed":
                returned = again
    return returned


def same_bytes(one: Any, other: Any) -> bool:
    """Return whether two arrays hold the same bytes."""
    return np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes()


def _others(observed: Observed, later: Bools, times: I64) -> Iterator[Observed]:
    """Yield the rows with other rows after a cut, in all `_WAYS`.

    later: which rows are after the cut; times: of all steps after it.
    """
    before, values = observed.times[~later], observed.values

    def with_later(others: Any) -> Observed:
        return Observed(observed.times, np.where(later[:, None], others, values))

    yield with_later(17.0 - 3.0 * values)
    yield with_later(np.nan)
    # Each column keeps other values, in runs of one to a few steps.
    step, column = np.searchsorted(times, observed.times)[:, None], np.arange(values.shape[1])
    yield with_later(np.where((step + column) % (column + 3) == column % 2 + 1, 1.0 + column, np.nan))
    yield Observed(before, values[~later])
    # Every step gets a row with all values, and steps are added.
    dense = np.full((len(times), values.shape[1]), 2.0) + np.arange(len(times))[:, None]
    yield Observed(np.concatenate([before, times]), np.concatenate([values[~later], dense]))
