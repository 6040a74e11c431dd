"""Process batches of entities in two passes: clean and spool them, then scale and write them.

An entity that cannot be read, or does not pass, fails with its reason and does not affect the others of its batch.
`stage/clean/part-N.json` has one line per entity of batch N, including failed ones. `part-N.values` holds the float64
[rows, C] of the passed ones end to end, and `part-N.filled`, if masks are requested, bool of the same shape.

Values are mapped when they are read, so the first pass takes O(an entity) of memory. A batch from which copies are left
out is read as a whole. Pipelines per entity are fitted in the second pass, on the entity's train rows; unified ones
were fitted before. The second pass works in slabs of entities, so it takes O(slab) of memory beside the float32 rows of
one batch. `finish` writes the files that a run has once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.digest import canonical_json
from headrace.errors import InputError
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.series.arrays.encoders import Encoder
from headrace.series.arrays.statistics import add, tally
from headrace.series.clean import Cleaned, LeftOut, clean, left_out_report, quality_report
from headrace.series.config import Series
from headrace.series.duplicates import REASON, series_digest
from headrace.series.parts import PLAIN
from headrace.series.pipelines.fitted import Fitted, fit, join, merge
from headrace.series.pipelines.save import Pipelines, load_part, save_part
from headrace.series.reuse import REUSED
from headrace.series.sources import EntitySource
from headrace.series.statics import Statics, processed_statics
from headrace.series.store import (
    DIVIDED,
    REPORTS,
    REPORTS_TABLE,
    SUMMARY,
    Entity,
    calendar_rows,
    entities_schema,
    file_name,
    publishing,
    readable_schema,
    rows_table,
    shard_name,
    split_directory,
    stacked,
    train_rows,
    write_readable,
    write_store,
    write_tables,
)
from headrace.series.windows.store import ENTITIES, STATICS

UNIFIED = f"{STAGE_DIRECTORY}/fit/unified"

_SLAB_CELLS = 1 << 18  # float64 cells that stay in the processor's cache
_COMPARED_ROWS = 512
_REPORT_ROWS = 1 << 12  # per row group
_REPORTS_SCHEMA = pa.schema(
    [
        pa.field("entity", pa.string(), nullable=False),
        pa.field("passed_quality_check", pa.bool_(), nullable=False),
        pa.field("failure_reason", pa.string()),
        pa.field("report", pa.string(), nullable=False),
    ]
)


def _name(number: int, what: str) -> str:
    return f"{STAGE_DIRECTORY}/clean/part-{number:05d}.{what}"


def clean_batch(
    settings: Series, source: EntitySource, number: int, lacking: Mapping[str, str], files: TaskFiles
) -> dict[str, Any]:
    """Clean the entities of batch `number` into its spool.

    lacking: entity → a text about the static features that it lacks.
    """
    counts, noted = Counter[str](), Counter[str]()
    unusable = np.zeros(len(settings.columns()), np.int64)
    read = passed = first_row = 0
    divided = settings.division.parts is not PLAIN
    empty: list[str] = []
    with (
        publishing(files, _name(number, "json")) as records,
        publishing(files, _name(number, "values")) as values,
        publishing(files, _name(number, "filled")) if settings.mask_columns() else nullcontext() as filled,
    ):
        for place in source.batch(number, settings.batch_size):
            entity, name = source.names[place], source.name(place)
            record: dict[str, Any] = {}
            rows, notes = Counter[str](), dict[str, int]()
            cleaned: Cleaned | str
            try:
                observed = source.read_timed(place, settings)
                rows["entity_failed"] = observed.source_rows
                read += observed.source_rows
                notes = dict(observed.notes)
                empty += [name] if name and not len(observed.times) else []
                cleaned = clean(settings, observed, entity)
                if settings.reused is not None:
                    for part in settings.reused.pipelines().time_series.parts:
                        part.places([entity])
                if settings.missing_static == "drop_entity" and entity in lacking:
                    raise LeftOut(lacking[entity])
            except InputError as error:
                cleaned = str(error)
            else:
                rows, axis = cleaned.rows, cleaned.axis
                unusable += cleaned.imputation["unusable_values_count"]
                passed += 1
                position = {"first_row": first_row, "rows": axis.rows, "first_time": axis.first, "anchor": axis.anchor}
                where = {name: own for name, own in vars(cleaned.cut).items() if divided or name not in DIVIDED}
                record["entity"] = {"entity": entity, **position, **where}
                first_row += axis.rows
                if settings.duplicates != "allow":
                    record["series"] = series_digest(cleaned)
                values.write(np.ascontiguousarray(cleaned.values).data)
                if filled is not None:
                    filled.write(np.ascontiguousarray(cleaned.filled).data)
            counts += rows
            record["report"] = quality_report(settings, entity, name, rows, cleaned)
            if notes:
                record["report"]["times"] = notes
                noted.update(notes)
            records.write(canonical_json(record) + b"\n")
    return {
        "rows_read": read,
        "rows": dict(sorted(counts.items())),
        "passed": passed,
        "empty_shards": empty,
        "times": dict(sorted(noted.items())),
        "unusable": {name: int(n) for name, n in zip(settings.columns(), unusable, strict=True) if n},
    }


@dataclass(frozen=True)
class Spool:
    """The spool of one batch, for reading.

    left_out: copy → its original. Copies are read as if they had not passed.
    """

    run: Path
    number: int
    columns: int
    left_out: Mapping[str, str] = field(default_factory=dict)

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield one record per entity, in order: its quality report, and for retained ones `Entity` and a digest."""
        with (self.run / _name(self.number, "json")).open("rb") as file:
            for record in map(json.loads, file):
                report = record["report"]
                if (original := self.left_out.get(report["entity"])) is not None:
                    record = {"report": left_out_report(report, f"has the values and times of {original!r}", REASON)}
                yield record

    def reports(self) -> Iterator[dict[str, Any]]:
        """Yield the quality report of each entity, including failed ones."""
        return (record["report"] for record in self.records())

    def entities(self) -> list[Entity]:
        """Return the retained entities, in order, with their rows in `values`."""
        found = [Entity(**record["entity"]) for record in self.records() if "entity" in record]
        begins = np.cumsum([0, *(each.rows for each in found)]).tolist()
        return [replace(each, first_row=begin) for each, begin in zip(found, begins, strict=False)]

    def rows(self, what: Literal["values", "filled"]) -> Any:
        """Map all rows [rows, C]: their values, float64, or the mask of those that were carried forward, bool."""
        path, kind = self.run / _name(self.number, what), np.float64 if what == "values" else np.bool_
        if path.stat().st_size == 0:
            return np.empty((0, self.columns), kind)
        rows = np.memmap(path, kind, mode="r").reshape(-1, self.columns)
        if not self.left_out:
            return rows
        kept = (record["entity"] for record in self.records() if "entity" in record)
        parts = (rows[each["first_row"] : each["first_row"] + each["rows"]] for each in kept)
        return np.concatenate([rows[:0], *parts])


def _unified(settings: Series, run: Path) -> Fitted:
    """Load the pipelines that this run fitted once for all entities."""
    fits = settings.resolved.unified_entities and settings.pipelines_from is None
    return load_part(run, UNIFIED) if fits else Fitted(())


def _part_stem(number: int) -> str:
    return f"{STAGE_DIRECTORY}/write/fitted-{number:05d}"


def write_batch(settings: Series, spool: Spool, files: TaskFiles) -> dict[str, Any]:
    """Scale and write the retained entities of a batch, and write the quality reports of all."""
    entities, values = spool.entities(), spool.rows("values")
    columns, pipelines = settings.columns(), settings.resolved.time_series
    masks, calendar = len(settings.mask_columns()), len(settings.calendar_columns())
    reused = None if settings.reused is None else settings.reused.pipelines().time_series
    unified = _unified(settings, files.run)
    matrix = np.empty((len(values), len(columns) + calendar + masks), np.float32)
    if calendar and entities:
        made = np.concatenate([calendar_rows(settings, each.axis(settings.step)) for each in entities])
        matrix[:, len(columns) : len(columns) + calendar] = made
    filled = spool.rows("filled") if masks else None
    fits, tallies = [], []
    cells = np.cumsum([each.rows for each in entities]) * len(columns)
    for _, placed in groupby(zip(entities, cells.tolist(), strict=True), lambda each: each[1] // _SLAB_CELLS):
        slab = [entity for entity, _ in placed]
        start, stop = slab[0].first_row, slab[-1].first_row + slab[-1].rows
        if reused is None:
            trained = [each for each in slab if settings.division.trains(each.entity)]
            trains, edges = train_rows(trained, values) if trained else (values[:0], np.zeros(1, np.int64))
            own = fit(pipelines, columns, trains, edges, [each.entity for each in trained], strategy="per_group")
            fits.append(own)
            # About `_COMPARED_ROWS` evenly spaced rows per entity are enough to see that two columns are the same.
            some = [np.arange(a, b, max(1, (b - a) // _COMPARED_ROWS)) for a, b in pairwise(edges.tolist())]
            if some:
                rows, offsets = stacked(some)
                tallies.append(tally(columns, trains[rows], offsets))
        scalers = reused or join([unified, own])
        # Transform each split separately: an object's result may depend on the rows in the same call.
        parts = [(each.entity, each.first_row - start + end) for each in slab for end in each.borders[1:]]
        offsets = np.array([0, *(end for _, end in parts)], np.int64)
        scaled = scalers.transform(columns, values[start:stop], offsets, [entity for entity, _ in parts])
        matrix[start:stop, : len(columns)] = scaled
        if filled is not None:
            matrix[start:stop, -masks:] = filled[start:stop, -masks:]
    if reused is None:
        save_part(files, _part_stem(spool.number), merge(fits))
    if entities:
        write_store(files, spool.number, matrix, settings)
    schema = readable_schema(settings)
    blocks: dict[str, list[dict[str, Any]]] = {}  # by readable file
    for split in settings.division.parts.splits:
        within = {each.entity: each.bounds(settings.division.parts)[split] for each in entities}
        shares = [each for each in entities if within[each.entity][0] < within[each.entity][1]]
        groups = [[each] for each in shares] if settings.layout == "files" else [shares] if shares else []
        for group in groups:
            stem = file_name(group[0].entity) if settings.layout == "files" else f"part-{spool.number:05d}"
            target = f"{split_directory(split)}/{stem}.parquet"
            tables = [rows_table(settings, schema, each, within[each.entity], matrix) for each in group]
            blocks[target] = write_readable(files, target, schema, pa.concat_tables(tables))
    if settings.layout == "files":
        for report in spool.reports():
            files.write(f"{REPORTS}/{file_name(report['entity'])}.json", canonical_json(report) + b"\n")
    return {"rows_read": len(values), "blocks": blocks, "near_target": add(tallies)}


def finish(
    settings: Series,
    spools: Sequence[Spool],
    statics: Statics | None,
    near_target: Mapping[str, Sequence[int]],
    copies: Mapping[str, str],
    files: TaskFiles,
) -> dict[str, Any]:
    """Write the files about all entities, and return the facts for the manifest, such as the digests of the pipelines.

    near_target: features that look like the target in another unit. copies: entities with the series of an earlier one.
    """
    schema = entities_schema(settings)
    names: list[str] = []
    full: list[int] = []  # batches with retained entities

    def entities() -> Iterator[pa.Table]:
        for spool in spools:
            rows = []
            for each in spool.entities():
                static_row = -1 if statics is None else len(names)
                rows.append({**vars(each), "shard": shard_name(spool.number), "static_row": static_row})
                names.append(each.entity)
            if rows:
                full.append(spool.number)
                yield pa.Table.from_pylist(rows, schema=schema)

    write_tables(files, ENTITIES, schema, entities())
    facts: dict[str, Any] = {"near_target": dict(near_target), "static_columns": [], "filled_statics": {}}
    fitted = Fitted(())
    encoders: tuple[Encoder, ...] = ()
    if statics is not None:
        table, fitted, encoders, facts["filled_statics"] = processed_statics(settings, statics, names)
        write_tables(files, STATICS, table.schema, iter([table]))
        facts["static_columns"] = table.column_names[1:]
    if settings.reused is not None:
        facts |= {"pipelines": settings.reused.copy(files), REUSED: settings.reused.record()}
    else:
        of_each = merge([load_part(files.run, _part_stem(number)) for number in full])
        pipelines = Pipelines(settings.target, join([_unified(settings, files.run), of_each]), fitted, encoders)
        facts["pipelines"] = pipelines.save(files, joblib=settings.preprocessing_configs.joblib)
        # The entities that unified pipelines were fitted on may be fewer than were requested.
        fits = [
            {"columns": list(each.columns or ()), "entities": min(each.fit_on_n_basins, len(names))}
            for each in settings.resolved.time_series
            if each.fit_on_n_basins is not None
        ]
        facts |= {"fit_on_n_basins": fits} if fits else {}
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
    if copies:
        summary["duplicates"] = dict(copies)
    files.write(SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False).encode() + b"\n")
    if settings.layout == "packed":  # a million entities must not mean a million files
        reports = (
            pa.Table.from_pylist(
                [{**each, "report": canonical_json(each).decode()} for each in spool.reports()], schema=_REPORTS_SCHEMA
            )
            for spool in spools
        )
        write_tables(files, REPORTS_TABLE, _REPORTS_SCHEMA, reports, _REPORT_ROWS)
    return facts
