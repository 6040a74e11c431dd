"""Process batches of entities in two passes: clean and spool them, then scale and write them.

An entity that cannot be read, or does not pass, fails with its reason and does not affect the
others of its batch. `stage/clean/part-N.json` has one line per entity of batch N, including failed
ones. `part-N.values` holds the float64 [rows, C] of the passed ones end to end, and
`part-N.filled`, if masks are requested, bool of the same shape.

Values are mapped when they are read, so the first pass takes O(an entity) of memory. A batch from
which copies are left out is read as a whole. Pipelines per entity are fitted in the second pass, on
the entity's train rows; unified ones were fitted before. The second pass works on groups of
entities that fit the processor's cache, so it takes O(group) of memory beside the float32 rows of
one batch. `finish` writes the files that a run has once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import F32, F64
from headrace.digest import canonical_json
from headrace.errors import InputError
from headrace.gate.mapped import map_bytes
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.series.arrays.statistics import add, tally
from headrace.series.clean import (
    Cleaned,
    LeftOut,
    add_to_report,
    clean,
    quality_report,
    report_of_copy,
    series_digest,
)
from headrace.series.pipelines.fitted import Fitted, fit, join, merge
from headrace.series.pipelines.save import Pipelines, load_part, save_part
from headrace.series.reasons import ENTITY_FAILED
from headrace.series.reuse import REUSED
from headrace.series.settings import Series
from headrace.series.sources import EntitySource
from headrace.series.statics import Statics, process_statics
from headrace.series.store import (
    REPORTS,
    REPORTS_SCHEMA,
    REPORTS_TABLE,
    SUMMARY,
    Entity,
    calendar_rows,
    file_name,
    publishing,
    readable_schema,
    rows_table,
    shard_name,
    split_directory,
    stacked,
    train_rows,
    with_metadata,
    write_readable,
    write_store,
    write_tables,
)
from headrace.series.windows.store import ENTITIES, ENTITIES_SCHEMA, STATICS

UNIFIED = f"{STAGE_DIRECTORY}/fit/unified"

_GROUP_CELLS = 1 << 18  # float64 cells that stay in the processor's cache
_COMPARED_ROWS = 512
_FEW_NUMBERS = 1 << 12  # float32 numbers between the extremes of a target
_REPORT_ROWS = 1 << 12  # per row group


def _name(number: int, suffix: str) -> str:
    return f"{STAGE_DIRECTORY}/clean/part-{number:05d}.{suffix}"


def clean_batch(
    settings: Series,
    source: EntitySource,
    number: int,
    lacking: Mapping[str, str],
    files: TaskFiles,
) -> dict[str, Any]:
    """Clean the entities of batch `number` into its spool.

    lacking: entity → a text about the static features that it lacks.
    """
    counts = Counter[str]()
    changes = Counter[str]()
    long_axes: list[dict[str, Any]] = []
    unusable = Counter[str]()
    rows_read = 0
    passed = 0
    first_row = 0
    empty: list[str] = []
    with (
        publishing(files, _name(number, "json")) as records,
        publishing(files, _name(number, "values")) as values,
    ):
        for index in source.batch(number, settings.batch_size):
            read = _read_entity(settings, source, index, lacking)
            rows_read += read.source_rows
            if read.is_empty:
                empty.append(source.file_name(index))
            changes.update(read.report.get("times", {}))
            counts += read.rows
            record: dict[str, Any] = {"report": read.report}
            if read.error is not None:
                record["marked_reason"] = read.error.marked
            cleaned = read.cleaned
            if cleaned is not None:
                record["entity"] = vars(_entity(source.names[index], first_row, cleaned))
                if settings.duplicates != "allow":
                    record["series"] = series_digest(cleaned)
                passed += 1
                first_row += cleaned.axis.rows
                if cleaned.added_rows > read.source_rows:
                    long_axes.append(_long_axis(source.names[index], read.source_rows, cleaned))
                unusable.update(_unusable_values(read.report))
                values.write(np.ascontiguousarray(cleaned.values).data)
            records.write(canonical_json(record) + b"\n")
    return {
        "rows_in": rows_read,
        "rows": dict(sorted(counts.items())),
        "passed": passed,
        "empty_shards": empty,
        "times": dict(sorted(changes.items())),
        "unusable": dict(+unusable),
        "long_axes": long_axes,
    }


def _long_axis(entity: str, rows: int, cleaned: Cleaned) -> dict[str, Any]:
    """Describe an entity with more empty steps than rows, as one with a mistyped date has."""
    return {
        "entity": entity,
        "rows": rows,
        "added_rows": cleaned.added_rows,
        "hole": list(cleaned.widest_hole),
    }


@dataclass(frozen=True)
class _ReadEntity:
    """An entity that was read.

    cleaned: None if it does not pass.
    error: why it does not pass.
    rows: number of source rows by split, or by the reason why they are in none.
    is_empty: whether its file was read and has no rows.
    """

    cleaned: Cleaned | None
    error: InputError | None
    report: dict[str, Any]
    rows: Counter[str]
    source_rows: int
    is_empty: bool


def _read_entity(
    settings: Series, source: EntitySource, index: int, lacking: Mapping[str, str]
) -> _ReadEntity:
    """Read and clean an entity. lacking: as in `clean_batch`."""
    entity = source.names[index]
    name = source.file_name(index)
    rows = Counter[str]()
    observed = None
    cleaned = None
    failure = None
    try:
        observed = source.read_on_clock(index, settings)
        rows[ENTITY_FAILED.word] = observed.source_rows
        cleaned = clean(settings, observed, entity)
        _require_fits(settings, entity, lacking)
        rows = cleaned.rows
    except InputError as error:
        cleaned = None
        failure = error
    reason = None if failure is None else str(failure)
    report = quality_report(settings, entity, name, rows, reason)
    if cleaned is not None:
        add_to_report(report, settings, cleaned)
    if observed is None:
        return _ReadEntity(None, failure, report, rows, source_rows=0, is_empty=False)
    if observed.notes:
        report["times"] = dict(observed.notes)
    is_empty = bool(name) and not len(observed.times)
    return _ReadEntity(cleaned, failure, report, rows, observed.source_rows, is_empty)


def _require_fits(settings: Series, entity: str, lacking: Mapping[str, str]) -> None:
    """Raise `InputError` if reused pipelines do not know an entity, or it lacks static features
    that are required.
    """
    if settings.reused is not None:
        for part in settings.reused.pipelines().time_series.parts:
            part.index_of([entity])
    if entity in lacking:
        raise LeftOut(lacking[entity])


def _entity(name: str, first_row: int, cleaned: Cleaned) -> Entity:
    axis = cleaned.axis
    return Entity(name, first_row, axis.rows, axis.first, axis.anchor, **vars(cleaned.cut))


def _unusable_values(report: Mapping[str, Any]) -> dict[str, int]:
    """Return, by column, the number of values of an entity that could not be scaled."""
    infos = report["imputation_info"].items()
    return {column: info["unusable_values_count"] for column, info in infos}


@dataclass(frozen=True)
class BatchSpool:
    """The spool of one batch, for reading.

    left_out: copy → its original. Copies are read as if they had not passed.
    """

    run: Path
    number: int
    columns: int
    left_out: Mapping[str, str] = field(default_factory=dict)

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield one record per entity, in order: its quality report, and for retained ones `Entity`
        and a digest.
        """
        with (self.run / _name(self.number, "json")).open("rb") as file:
            for line in file:
                record = json.loads(line)
                report = record["report"]
                original = self.left_out.get(report["entity"])
                if original is not None:
                    record = {"report": report_of_copy(report, original)}
                yield record

    def reports(self) -> Iterator[dict[str, Any]]:
        """Yield the quality report of each entity, including failed ones."""
        return (record["report"] for record in self.records())

    def retained(self) -> list[Entity]:
        """Return the retained entities, in order, with their rows in the spooled values."""
        result = []
        for record in self.records():
            if "entity" in record:
                result.append(Entity(**record["entity"]))
        return result

    def entities(self) -> list[Entity]:
        """Return the retained entities, in order, with their rows in `values`."""
        entities = []
        first_row = 0
        for entity in self.retained():
            entities.append(replace(entity, first_row=first_row))
            first_row += entity.rows
        return entities

    def values(self) -> F64:
        """Map the values of all rows [rows, C]."""
        path = self.run / _name(self.number, "values")
        rows: F64 = map_bytes(path).data.view(np.float64).reshape(-1, self.columns)
        if not self.left_out:
            return rows
        return np.concatenate([rows[:0], *(entity.of_batch(rows) for entity in self.retained())])


def _unified(settings: Series, run: Path) -> Fitted:
    """Load the pipelines that this run fitted once for all entities."""
    if not settings.fits or not settings.resolved.unified_entities:
        return Fitted(())
    return load_part(run, UNIFIED)


def _part_stem(number: int) -> str:
    return f"{STAGE_DIRECTORY}/write/fitted-{number:05d}"


def write_batch(  # noqa: PLR0914 - the parts of a stored row, and what was learned
    settings: Series,
    spool: BatchSpool,
    files: TaskFiles,
) -> dict[str, Any]:
    """Scale and write the retained entities of a batch, and write the quality reports of all."""
    entities = spool.entities()
    values = spool.values()
    columns = settings.columns
    matrix = np.empty((len(values), len(settings.stored_columns)), np.float32)
    if settings.calendar and entities:
        rows = [calendar_rows(settings, entity.axis(settings.step)) for entity in entities]
        calendar = slice(len(columns), len(columns) + len(settings.calendar_columns))
        matrix[:, calendar] = np.concatenate(rows)
    unified = _unified(settings, files.run)
    fits = []
    tallies = []
    rounded: list[dict[str, Any]] = []
    for group in _groups(entities, len(columns)):
        if settings.reused is not None:
            scalers = settings.reused.pipelines().time_series
        else:
            trained = [entity for entity in group if settings.division.trains(entity.entity)]
            fitted, near_target = _fit_group(settings, trained, values)
            fits.append(fitted)
            tallies += near_target
            scalers = join([unified, fitted])
        start = group[0].first_row
        stop = group[-1].first_row + group[-1].rows
        matrix[start:stop, : len(columns)] = _transform(scalers, columns, group, values)
        rounded += _rounded_targets(settings, group, values, matrix)
    if settings.reused is None:
        save_part(files, _part_stem(spool.number), merge(fits))
    if entities:
        write_store(files, spool.number, matrix, settings)
    blocks = _write_splits(settings, spool.number, entities, matrix, files)
    if settings.layout == "files":
        for report in spool.reports():
            target = f"{REPORTS}/{file_name(report['entity'])}.json"
            files.write(target, canonical_json(report) + b"\n")
    return {
        "rows_in": len(values),
        "blocks": blocks,
        "near_target": add(tallies),
        "rounded_targets": rounded,
    }


def _groups(entities: Sequence[Entity], columns: int) -> Iterator[list[Entity]]:
    """Yield neighbouring entities whose values fit the processor's cache together."""
    group: list[Entity] = []
    number = 0
    for entity in entities:
        cells = (entity.first_row + entity.rows) * columns
        if group and cells // _GROUP_CELLS != number:
            yield group
            group = []
        number = cells // _GROUP_CELLS
        group.append(entity)
    if group:
        yield group


def _fit_group(
    settings: Series, entities: Sequence[Entity], values: F64
) -> tuple[Fitted, list[dict[str, list[int]]]]:
    """Fit the pipelines of each of these entities on its train rows, and compare their columns with
    the target.
    """
    columns = settings.columns
    rows = values[:0]
    offsets = np.zeros(1, np.int64)
    if entities:
        rows, offsets = train_rows(entities, values)
    names = [entity.entity for entity in entities]
    pipelines = settings.resolved.time_series
    fitted = fit(pipelines, columns, rows, offsets, names, strategy="per_group")
    if not entities:
        return fitted, []
    # Evenly spaced rows of an entity are enough to see that two columns are the same.
    sampled = []
    for start, stop in pairwise(offsets.tolist()):
        sampled.append(np.arange(start, stop, max(1, (stop - start) // _COMPARED_ROWS)))
    sample, sample_offsets = stacked(sampled)
    return fitted, [tally(columns, rows[sample], sample_offsets)]


def _transform(
    scalers: Fitted, columns: Sequence[str], group: Sequence[Entity], values: F64
) -> F32 | F64:
    """Scale the rows of neighbouring entities.

    Each segment is transformed separately: an object's result may depend on the rows in the same
    call.
    """
    start = group[0].first_row
    stop = group[-1].first_row + group[-1].rows
    names = []
    offsets = [0]
    for entity in group:
        for boundary in entity.boundaries[1:]:
            names.append(entity.entity)
            offsets.append(entity.first_row - start + boundary)
    scaled: F32 | F64 = scalers.transform(
        columns, values[start:stop], np.array(offsets, np.int64), names
    )
    return scaled


def _rounded_targets(
    settings: Series, group: Sequence[Entity], values: F64, matrix: F32
) -> list[dict[str, Any]]:
    """Find the targets of neighbouring entities whose different values are mostly one in float32.

    values, matrix: of the batch, before and after scaling.
    """
    rounded = []
    targets = len(settings.target)
    start = group[0].first_row
    stop = group[-1].first_row + group[-1].rows
    starts = np.array([entity.first_row for entity in group], np.int64) - start
    stored = matrix[start:stop, :targets]
    low = np.fmin.reduceat(stored, starts)
    high = np.fmax.reduceat(stored, starts)
    with np.errstate(invalid="ignore", over="ignore"):
        # As many float32 numbers as this lie between the lowest and the highest.
        resolved = (high - low) / np.spacing(np.maximum(np.abs(low), np.abs(high)))
    for number, column in np.argwhere(resolved < _FEW_NUMBERS).tolist():
        before = group[number].of_batch(values)[:, column]
        after = group[number].of_batch(matrix)[:, column]
        distinct = len(np.unique(before[~np.isnan(before)]))
        remaining = len(np.unique(after[~np.isnan(after)]))
        if remaining * 2 < distinct:
            rounded.append(
                {
                    "entity": group[number].entity,
                    "column": settings.target[column],
                    "values": distinct,
                    "kept": remaining,
                }
            )
    return rounded


def _write_splits(
    settings: Series, number: int, entities: Sequence[Entity], matrix: F32, files: TaskFiles
) -> dict[str, list[dict[str, Any]]]:
    """Write the readable rows of a batch, and return the blocks of each file."""
    schema = readable_schema(settings)
    layout = settings.division.layout
    ranges = [entity.split_ranges(layout) for entity in entities]
    blocks = {}
    for split in layout.splits:
        packed = []
        for entity, by_split in zip(entities, ranges, strict=True):
            start, stop = by_split[split]
            if start == stop:
                continue
            table = rows_table(settings, schema, entity, (start, stop), matrix)
            if settings.layout == "packed":
                packed.append(table)
            else:
                target = f"{split_directory(split)}/{file_name(entity.entity)}.parquet"
                blocks[target] = write_readable(files, target, schema, table)
        if packed:
            target = f"{split_directory(split)}/part-{number:05d}.parquet"
            blocks[target] = write_readable(files, target, schema, pa.concat_tables(packed))
    return blocks


def finish(
    settings: Series,
    spools: Sequence[BatchSpool],
    statics: Statics | None,
    near_target: Mapping[str, Sequence[int]],
    copies: Mapping[str, str],
    files: TaskFiles,
) -> dict[str, Any]:
    """Write the files about all entities, and return the facts for the manifest, such as the
    digests of the pipelines.

    near_target: features that look like the target in another unit.
    copies: entities with the series of an earlier one.
    """
    names: list[str] = []
    filled_batches: list[int] = []
    for spool in spools:
        entities = spool.retained()
        names += [entity.entity for entity in entities]
        if entities:
            filled_batches.append(spool.number)
    schema = with_metadata(ENTITIES_SCHEMA, settings)
    tables = _entity_tables(spools, schema, has_statics=statics is not None)
    write_tables(files, ENTITIES, schema, tables)
    metadata: dict[str, Any] = {
        "near_target": dict(near_target),
        "static_columns": [],
    }
    processed = None
    if statics is not None:
        processed = process_statics(settings, statics, names)
        write_tables(files, STATICS, processed.table.schema, [processed.table])
        metadata["static_columns"] = processed.table.column_names[1:]
    if settings.reused is not None:
        metadata |= {"pipelines": settings.reused.copy(files), REUSED: settings.reused.record()}
    else:
        parts = [load_part(files.run, _part_stem(number)) for number in filled_batches]
        time_series = join([_unified(settings, files.run), merge(parts)])
        pipelines = Pipelines(settings.target[0], time_series, Fitted(()), ())
        if processed is not None:
            pipelines = replace(
                pipelines, static_features=processed.fitted, static_encoders=processed.encoders
            )
        metadata["pipelines"] = pipelines.save(files, joblib=settings.preprocessing_configs.joblib)
        sizes = _unified_sizes(settings, len(names))
        if sizes:
            metadata["fit_on_n_entities"] = sizes
    excluded = _excluded(spools)
    summary = {
        "original_entities": len(names) + len(excluded),
        "passed_entities": len(names),
        "failed_entities": len(excluded),
        "excluded_entities": excluded,
        "retained_entities": names,
        "attributes_without_series": 0 if statics is None else statics.unused,
        "features_like_the_target": dict(near_target),
    }
    if copies:
        summary["duplicates"] = dict(copies)
    files.write(SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False).encode() + b"\n")
    if settings.layout == "packed":  # a million entities must not mean a million files
        write_tables(files, REPORTS_TABLE, REPORTS_SCHEMA, _report_tables(spools), _REPORT_ROWS)
    return metadata


def _entity_tables(
    spools: Sequence[BatchSpool], schema: pa.Schema, *, has_statics: bool
) -> Iterator[pa.Table]:
    """Yield the rows of `ENTITIES`, a batch at a time."""
    static_row = 0
    for spool in spools:
        rows = []
        for entity in spool.entities():
            row = {**vars(entity), "shard": shard_name(spool.number)}
            rows.append({**row, "static_row": static_row if has_statics else -1})
            static_row += 1
        if rows:
            yield pa.Table.from_pylist(rows, schema=schema)


def _excluded(spools: Sequence[BatchSpool]) -> dict[str, str]:
    """Return the entities that do not pass, with the reasons."""
    excluded = {}
    for spool in spools:
        for report in spool.reports():
            if not report["passed_quality_check"]:
                excluded[report["entity"]] = report["failure_reason"]
    return excluded


def _unified_sizes(settings: Series, entities: int) -> list[dict[str, Any]]:
    """Return how many entities each unified pipeline was fitted on, which may be fewer than were
    requested.
    """
    sizes = []
    for pipeline in settings.resolved.time_series:
        if pipeline.fit_on_n_entities is not None:
            count = min(pipeline.fit_on_n_entities, entities)
            sizes.append({"columns": list(pipeline.columns or ()), "entities": count})
    return sizes


def _report_tables(spools: Sequence[BatchSpool]) -> Iterator[pa.Table]:
    for spool in spools:
        rows = [{**report, "report": canonical_json(report).decode()} for report in spool.reports()]
        yield pa.Table.from_pylist(rows, schema=REPORTS_SCHEMA)
