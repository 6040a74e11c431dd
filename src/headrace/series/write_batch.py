"""The second pass: a batch of cleaned entities is scaled by what trains, and written for people and for training.

Pipelines per entity are fitted here, on the entity's train rows; unified ones were fitted before. Work goes in slabs of
entities, so memory is O(slab) beside the float32 rows of one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.arrays import F32, F64, I64
from headrace.digest import canonical_json
from headrace.formats.write import HashingFile
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.series.arrays.axis import Frequency
from headrace.series.arrays.near_target import add, correlations, tally
from headrace.series.config import SPLITS, Series
from headrace.series.pipelines.fitted import Fitted, fit, join, merge
from headrace.series.pipelines.save import load_part, save_part
from headrace.series.pipelines.settings import Resolved
from headrace.series.quality import file_name
from headrace.series.readable import readable_schema, rows_table, write_rows
from headrace.series.spool import Passed, Spool
from headrace.series.store_file import series_metadata, write_store

UNIFIED = f"{STAGE_DIRECTORY}/fit/unified"
SERIES_DIRECTORY, REPORTS = "processed_time_series", "quality_reports"

_SLAB_CELLS = 1 << 18  # of float64: stays in the processor's cache
_COMPARED_ROWS = 512


def split_directory(split: str) -> str:
    """Where the readable files of a split lie, relative to the run."""
    return f"{SERIES_DIRECTORY}/{split}"


def part_stem(number: int) -> str:
    """Where the fits of batch `number` are kept until all are merged."""
    return f"{STAGE_DIRECTORY}/write/fitted-{number:05d}"


def slabs(entities: Sequence[Passed], columns: int) -> Iterator[Sequence[Passed]]:
    """Consecutive entities that are worked on together."""
    start = cells = 0
    for place, each in enumerate(entities):
        if cells and cells + each.rows * columns > _SLAB_CELLS:
            yield entities[start:place]
            start, cells = place, 0
        cells += each.rows * columns
    if start < len(entities):
        yield entities[start:]


def train_rows(entities: Sequence[Passed], values: F64) -> tuple[F64, npt.NDArray[np.int64]]:
    """The train rows of these entities end to end, and where each begins: float64 [R, C], int64 [E + 1]."""
    parts = [values[each.first_row : each.first_row + each.val_row] for each in entities]
    offsets = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
    return np.concatenate(parts) if parts else values[:0], offsets


def write_batch(
    files: TaskFiles, settings: Series, resolved: Resolved, frequency: Frequency, spool: Spool
) -> dict[str, Any]:
    """Scale and write the retained entities of a batch, and the quality reports of all."""
    entities = spool.passed()
    values = spool.values()
    masked = [settings.columns().index(name) for name in settings.filled_columns()] if settings.mask_columns() else []
    filled = spool.filled() if masked else None
    unified = load_part(files.run, UNIFIED) if resolved.unified_entities else Fitted(())
    matrix = np.empty((len(values), len(settings.columns()) + len(masked)), np.float32)
    fits, tallies = [], []
    for slab in slabs(entities, spool.columns):
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
    save_part(files, part_stem(spool.number), merge(fits))
    if entities:
        write_store(files, spool.number, matrix, series_metadata(settings, frequency))
    blocks = _write_readable(files, settings, frequency, spool.number, entities, matrix)
    if settings.layout == "files":
        _write_reports(files, spool)
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
    entities: Sequence[Passed],
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
            path = files.temporary(target)
            tables = [rows_table(schema, each, each.bounds()[split], frequency, matrix) for each in group]
            written, blocks[target] = write_rows(path, schema, tables)
            files.finished(path, target, written)
    return blocks


def _write_reports(files: TaskFiles, spool: Spool) -> None:
    for record in spool.records():
        target = f"{REPORTS}/{file_name(record['report']['entity'])}.json"
        path = files.temporary(target)
        with HashingFile(path) as file:
            file.write(canonical_json(record["report"]) + b"\n")
            written = file.holding(1)
        files.finished(path, target, written)
