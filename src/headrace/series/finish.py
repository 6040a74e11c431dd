"""What a run of series has once: its entities, static features, fitted pipelines, and the summary of quality."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.digest import canonical_json
from headrace.formats.write import HashingFile
from headrace.run.context import TaskFiles
from headrace.series.arrays.axis import Frequency
from headrace.series.config import Series
from headrace.series.pipelines.fitted import Fitted, join, merge
from headrace.series.pipelines.save import Pipelines, load_part
from headrace.series.pipelines.settings import Resolved
from headrace.series.processed_statics import Processed, processed_statics
from headrace.series.spool import Passed, Spool
from headrace.series.statics import Statics
from headrace.series.store_file import series_metadata, shard_name, with_metadata
from headrace.series.write_batch import UNIFIED, part_stem

ENTITIES = "entities.parquet"
STATICS = "processed_static_features.parquet"
SUMMARY = "quality_summary.json"
REPORTS_TABLE = "quality_reports.parquet"

_ENTITY_ROWS, _REPORT_ROWS = 1 << 16, 1 << 12  # of a row group

ENTITIES_SCHEMA = pa.schema(
    [
        pa.field("entity", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("first_row", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("first_time", pa.timestamp("us"), nullable=False),
        pa.field("anchor", pa.string(), nullable=False),
        pa.field("val_row", pa.int64(), nullable=False),
        pa.field("test_row", pa.int64(), nullable=False),
        pa.field("train_targets", pa.int64(), nullable=False),
        pa.field("val_targets", pa.int64(), nullable=False),
        pa.field("test_targets", pa.int64(), nullable=False),
        pa.field("static_row", pa.int32(), nullable=False),
    ]
)
REPORTS_SCHEMA = pa.schema(
    [
        pa.field("entity", pa.string(), nullable=False),
        pa.field("passed_quality_check", pa.bool_(), nullable=False),
        pa.field("failure_reason", pa.string()),
        pa.field("report", pa.string(), nullable=False),
    ]
)


def finish(
    files: TaskFiles,
    settings: Series,
    resolved: Resolved,
    frequency: Frequency,
    spools: Sequence[Spool],
    statics: Statics | None,
    near_target: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """Write the files that are of all entities; what the manifest says of the pipelines.

    near_target: features that look like the target in another unit.
    """
    _write_entities(files, settings, frequency, spools, statics)
    processed = None if statics is None else _write_statics(files, settings, resolved, spools, statics)
    unified = load_part(files.run, UNIFIED) if resolved.unified_entities else Fitted(())
    own = merge([load_part(files.run, part_stem(spool.number)) for spool in spools if _has_entities(spool)])
    of_series = join([unified, own])
    pipelines = Pipelines(settings.target, of_series, Fitted(()))
    if processed is not None:
        pipelines = Pipelines(settings.target, of_series, processed.fitted, processed.encoders)
    digests = pipelines.save(files, joblib=settings.preprocessing_configs.joblib)
    _write_summary(files, spools, statics, near_target)
    if settings.layout == "packed":
        _write_reports(files, spools)
    return {
        "pipelines": digests,
        "near_target": dict(near_target),
        "static_columns": [] if processed is None else list(processed.names),
        "filled_statics": {} if processed is None else processed.filled,
    }


def _has_entities(spool: Spool) -> bool:
    return any("passed" in record for record in spool.records())


def retained(spools: Sequence[Spool]) -> list[str]:
    """The names of all retained entities, in order."""
    return [record["passed"]["entity"] for spool in spools for record in spool.records() if "passed" in record]


def _write_entities(
    files: TaskFiles, settings: Series, frequency: Frequency, spools: Sequence[Spool], statics: Statics | None
) -> None:
    schema = with_metadata(ENTITIES_SCHEMA, series_metadata(settings, frequency))

    def tables() -> Iterator[pa.Table]:
        before = 0
        for spool in spools:
            entities = spool.passed()
            if entities:
                yield _entities_table(entities, spool.number, schema, before, has_statics=statics is not None)
                before += len(entities)

    _write_tables(files, ENTITIES, schema, tables(), _ENTITY_ROWS)


def _entities_table(
    entities: Sequence[Passed], number: int, schema: pa.Schema, before: int, *, has_statics: bool
) -> pa.Table:
    def integers(name: str) -> pa.Array:
        return pa.array([getattr(each, name) for each in entities], pa.int64())

    targets = np.array([each.targets for each in entities], np.int64)
    static_rows = np.arange(before, before + len(entities)) if has_statics else np.full(len(entities), -1)
    columns = [
        pa.array([each.entity for each in entities], pa.string()),
        pa.array([shard_name(number)] * len(entities), pa.string()),
        integers("first_row"),
        integers("rows"),
        integers("first_time").cast(pa.timestamp("us")),
        pa.array([each.anchor for each in entities], pa.string()),
        integers("val_row"),
        integers("test_row"),
        *(pa.array(targets[:, place]) for place in range(3)),
        pa.array(static_rows, pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _write_statics(
    files: TaskFiles, settings: Series, resolved: Resolved, spools: Sequence[Spool], statics: Statics
) -> Processed:
    """Write the static features of the retained entities, scaled and encoded by a fit on them alone."""
    entities = retained(spools)
    made = processed_statics(settings, resolved, statics, entities)
    schema = pa.schema(
        [
            pa.field(settings.entity_column, pa.string(), nullable=False),
            *(pa.field(name, pa.float32(), nullable=False) for name in made.names),
        ]
    )
    columns = [pa.array(entities, pa.string()), *(pa.array(np.ascontiguousarray(each)) for each in made.values.T)]
    _write_tables(files, STATICS, schema, iter([pa.Table.from_arrays(columns, schema=schema)]), _ENTITY_ROWS)
    return made


def _write_summary(
    files: TaskFiles, spools: Sequence[Spool], statics: Statics | None, near_target: Mapping[str, Sequence[int]]
) -> None:
    """original, passed, failed with reason, retained: counts, reasons and names."""
    excluded: dict[str, str] = {}
    names: list[str] = []
    for report in _reports(spools):
        if report["passed_quality_check"]:
            names.append(report["entity"])
        else:
            excluded[report["entity"]] = report["failure_reason"]
    record = {
        "original_basins": len(names) + len(excluded),
        "passed_basins": len(names),
        "failed_basins": len(excluded),
        "excluded_basins": excluded,
        "retained_basins": names,
        "attributes_without_series": 0 if statics is None else statics.strangers,
        "features_like_the_target": dict(near_target),
    }
    files.write(SUMMARY, json.dumps(record, indent=1, ensure_ascii=False).encode() + b"\n")


def _reports(spools: Sequence[Spool]) -> Iterator[dict[str, Any]]:
    for spool in spools:
        for record in spool.records():
            yield record["report"]


def _write_reports(files: TaskFiles, spools: Sequence[Spool]) -> None:
    """All quality reports as one table: a million entities must not mean a million files."""

    def tables() -> Iterator[pa.Table]:
        for spool in spools:
            reports = list(_reports([spool]))
            columns = [
                pa.array([each["entity"] for each in reports], pa.string()),
                pa.array([each["passed_quality_check"] for each in reports], pa.bool_()),
                pa.array([each["failure_reason"] for each in reports], pa.string()),
                pa.array([canonical_json(each).decode() for each in reports], pa.string()),
            ]
            yield pa.Table.from_arrays(columns, schema=REPORTS_SCHEMA)

    _write_tables(files, REPORTS_TABLE, REPORTS_SCHEMA, tables(), _REPORT_ROWS)


def _write_tables(
    files: TaskFiles, target: str, schema: pa.Schema, tables: Iterator[pa.Table], group_rows: int
) -> None:
    """Small tables as one Parquet file with row groups of about `group_rows`; O(row group) of memory."""
    path = files.temporary(target)
    rows = 0
    with HashingFile(path) as file:
        with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
            held: list[pa.Table] = []
            for table in tables:
                held.append(table)
                rows += table.num_rows
                if sum(each.num_rows for each in held) >= group_rows:
                    writer.write_table(pa.concat_tables(held))
                    held = []
            if held:
                writer.write_table(pa.concat_tables(held))
        file.close()
        files.finished(path, target, file.holding(rows))
