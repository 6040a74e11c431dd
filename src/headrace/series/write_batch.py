"""The second pass: a batch of cleaned entities is scaled by what trains, and written for people and for training.

Pipelines per entity are fitted here, on the entity's train rows; unified ones were fitted before. Work goes in slabs of
entities, so memory is O(slab) beside the float32 rows of one batch. `finish` writes what a run has once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.arrays import F32, F64, I64
from headrace.digest import canonical_json
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.series.arrays.axis import Frequency
from headrace.series.arrays.near_target import add, correlations, tally
from headrace.series.clean_batch import Spool
from headrace.series.config import SPLITS, Series
from headrace.series.pipelines.fitted import Fitted, fit, join, merge
from headrace.series.pipelines.save import Pipelines, load_part, save_part
from headrace.series.pipelines.settings import Resolved
from headrace.series.statics import Statics, processed_statics
from headrace.series.store import (
    ENTITIES,
    ENTITIES_SCHEMA,
    REPORTS,
    REPORTS_TABLE,
    STATICS,
    SUMMARY,
    Entity,
    entities_table,
    file_name,
    readable_schema,
    split_directory,
    train_rows,
    with_metadata,
    write_readable,
    write_store,
    write_tables,
)

UNIFIED = f"{STAGE_DIRECTORY}/fit/unified"

_SLAB_CELLS = 1 << 18  # of float64: stays in the processor's cache
_COMPARED_ROWS = 512


_REPORT_ROWS = 1 << 12  # of a row group
_REPORTS_SCHEMA = pa.schema(
    [
        pa.field("entity", pa.string(), nullable=False),
        pa.field("passed_quality_check", pa.bool_(), nullable=False),
        pa.field("failure_reason", pa.string()),
        pa.field("report", pa.string(), nullable=False),
    ]
)


def _part_stem(number: int) -> str:
    return f"{STAGE_DIRECTORY}/write/fitted-{number:05d}"


def _slabs(entities: Sequence[Entity], columns: int) -> Iterator[Sequence[Entity]]:
    """Consecutive entities that are worked on together."""
    start = cells = 0
    for place, each in enumerate(entities):
        if cells and cells + each.rows * columns > _SLAB_CELLS:
            yield entities[start:place]
            start, cells = place, 0
        cells += each.rows * columns
    if start < len(entities):
        yield entities[start:]


def write_batch(
    files: TaskFiles, settings: Series, resolved: Resolved, frequency: Frequency, spool: Spool
) -> dict[str, Any]:
    """Scale and write the retained entities of a batch, and the quality reports of all."""
    entities = spool.entities()
    values = spool.values()
    masked = [settings.columns().index(name) for name in settings.filled_columns()] if settings.mask_columns() else []
    filled = spool.filled() if masked else None
    unified = load_part(files.run, UNIFIED) if resolved.unified_entities else Fitted(())
    matrix = np.empty((len(values), len(settings.columns()) + len(masked)), np.float32)
    fits, tallies = [], []
    for slab in _slabs(entities, spool.columns):
        start, stop = slab[0].first_row, slab[-1].first_row + slab[-1].rows
        names = [each.entity for each in slab]
        trains, edges = train_rows(slab, values)
        own = fit(resolved.time_series, settings.columns(), trains, edges, names, strategy="per_group")
        tallies.append(tally(settings.columns()[1:], correlations(*_some_rows(trains, edges), 0)[:, 1:]))
        fits.append(own)
        # Each split by itself: an object's numbers may depend on the rows that it is given together.
        parts = [(each.entity, each.first_row - start + end) for each in slab for _, end in each.bounds().values()]
        offsets = np.array([0, *(end for _, end in parts)], np.int64)
        scaled = join([unified, own]).transform(
            settings.columns(), values[start:stop], offsets, [entity for entity, _ in parts]
        )
        matrix[start:stop, : spool.columns] = scaled
        if filled is not None:
            matrix[start:stop, spool.columns :] = filled[start:stop][:, masked]
    save_part(files, _part_stem(spool.number), merge(fits))
    if entities:
        write_store(files, spool.number, matrix, settings, frequency)
    blocks = _write_readable(files, settings, frequency, spool.number, entities, matrix)
    if settings.layout == "files":
        for report in spool.reports():
            files.write(f"{REPORTS}/{file_name(report['entity'])}.json", canonical_json(report) + b"\n")
    return {"rows_read": len(values), "blocks": blocks, "near_target": add(tallies)}


def _some_rows(rows: F64, offsets: I64) -> tuple[F64, I64]:
    """About `_COMPARED_ROWS` of each entity's rows, evenly: enough to see that two columns are one."""
    picked = [
        np.arange(start, stop, max(1, (stop - start) // _COMPARED_ROWS))
        for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    ]
    return rows[np.concatenate(picked)], np.cumsum([0, *(len(each) for each in picked)], dtype=np.int64)


def _write_readable(
    files: TaskFiles,
    settings: Series,
    frequency: Frequency,
    number: int,
    entities: Sequence[Entity],
    matrix: F32,
) -> dict[str, list[dict[str, Any]]]:
    """The Parquet files of the splits; path relative to the run → their blocks. Parts without rows have no file."""
    schema = readable_schema(settings, frequency)
    blocks: dict[str, list[dict[str, Any]]] = {}
    for split in SPLITS:
        shares = [each for each in entities if each.bounds()[split][0] < each.bounds()[split][1]]
        groups = [[each] for each in shares] if settings.layout == "files" else [shares] if shares else []
        for group in groups:
            stem = file_name(group[0].entity) if settings.layout == "files" else f"part-{number:05d}"
            target = f"{split_directory(split)}/{stem}.parquet"
            tables = [_rows_table(schema, each, each.bounds()[split], frequency, matrix) for each in group]
            blocks[target] = write_readable(files, target, schema, pa.concat_tables(tables))
    return blocks


def _rows_table(
    schema: pa.Schema, entity: Entity, bounds: tuple[int, int], frequency: Frequency, matrix: F32
) -> pa.Table:
    """The rows [start, stop) of an entity. matrix: float32 [rows, C] of its batch."""
    start, stop = bounds
    columns = np.ascontiguousarray(matrix[entity.first_row + start : entity.first_row + stop].T)
    arrays = [
        pa.repeat(entity.entity, stop - start),
        pa.array(entity.axis(frequency).times()[start:stop]).view(pa.timestamp("us")),
        *(pa.array(column) for column in columns),
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def finish(
    files: TaskFiles,
    settings: Series,
    resolved: Resolved,
    frequency: Frequency,
    spools: Sequence[Spool],
    statics: Statics | None,
    near_target: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """Write the files about all entities; return what the manifest says of the pipelines.

    near_target: features that look like the target in another unit.
    """
    schema = with_metadata(ENTITIES_SCHEMA, settings, frequency)
    names: list[str] = []
    full: list[int] = []  # batches with retained entities

    def entities() -> Iterator[pa.Table]:
        for spool in spools:
            own = spool.entities()
            if own:
                rows = range(len(names), len(names) + len(own)) if statics is not None else [-1] * len(own)
                yield entities_table(own, spool.number, schema, rows)
                names.extend(each.entity for each in own)
                full.append(spool.number)

    write_tables(files, ENTITIES, schema, entities())
    processed = None
    if statics is not None:
        processed = processed_statics(settings, resolved, statics, names)
        fields = [pa.field(name, pa.float32(), nullable=False) for name in processed.names]
        schema = pa.schema([pa.field(settings.entity_column, pa.string(), nullable=False), *fields])
        columns = [pa.array(names), *(pa.array(np.ascontiguousarray(each)) for each in processed.values.T)]
        write_tables(files, STATICS, schema, iter([pa.Table.from_arrays(columns, schema=schema)]))
    unified = load_part(files.run, UNIFIED) if resolved.unified_entities else Fitted(())
    of_series = join([unified, merge([load_part(files.run, _part_stem(number)) for number in full])])
    pipelines = Pipelines(settings.target, of_series, Fitted(()))
    if processed is not None:
        pipelines = Pipelines(settings.target, of_series, processed.fitted, processed.encoders)
    digests = pipelines.save(files, joblib=settings.preprocessing_configs.joblib)
    excluded = {
        report["entity"]: report["failure_reason"]
        for spool in spools
        for report in spool.reports()
        if not report["passed_quality_check"]
    }
    summary = {
        "original_basins": len(names) + len(excluded),
        "passed_basins": len(names),
        "failed_basins": len(excluded),
        "excluded_basins": excluded,
        "retained_basins": names,
        "attributes_without_series": 0 if statics is None else statics.strangers,
        "features_like_the_target": dict(near_target),
    }
    files.write(SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False).encode() + b"\n")
    if settings.layout == "packed":
        write_tables(files, REPORTS_TABLE, _REPORTS_SCHEMA, map(_reports_table, spools), _REPORT_ROWS)
    return {
        "pipelines": digests,
        "near_target": dict(near_target),
        "static_columns": [] if processed is None else list(processed.names),
        "filled_statics": {} if processed is None else processed.filled,
    }


def _reports_table(spool: Spool) -> pa.Table:
    """The quality reports of a batch as rows: a million entities must not mean a million files."""
    reports = list(spool.reports())
    columns: dict[str, list[Any]] = {
        name: [each[name] for each in reports] for name in ("entity", "passed_quality_check", "failure_reason")
    }
    columns["report"] = [canonical_json(each).decode() for each in reports]
    return pa.table(columns, schema=_REPORTS_SCHEMA)
