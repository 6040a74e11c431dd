"""Lay out a run of series on disk: names and schemas of its files, writing them, and reading them
for checks.

Training maps `store/part-N.arrow`: one record batch with one column `values`, fixed-size lists of C
float32 without nulls. Its buffer is a row-major matrix [rows, C], NaN for missing values.
`entities.parquet` lists each entity's rows. The Parquet files of the splits hold the same rows for
people.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.arrays import F32, I64
from headrace.dataset.manifest import CONFIG, MANIFEST, read_config
from headrace.dataset.open import FinishedRun
from headrace.dataset.sound import damaged
from headrace.digest import canonical_json, sha256_hex
from headrace.formats.dates import moment
from headrace.formats.write import BLOCK_BYTES, BLOCK_ROWS, HashingFile
from headrace.formats.zones import utc_to_wall
from headrace.gate.json import interpreting, read_object
from headrace.gate.parquet import read_run_table
from headrace.report.words import many_entities
from headrace.run.context import TaskFiles
from headrace.series.arrays.axis import (
    Anchor,
    Axis,
    Frequency,
    anchor_codes,
    calendar_of,
    times_at,
)
from headrace.series.division import SPLITS, Division, SplitLayout
from headrace.series.settings import Series
from headrace.series.windows.store import ENTITIES, ENTITIES_SCHEMA, METADATA

STORE = "store"
SUMMARY = "quality_summary.json"
REPORTS = "quality_reports"
REPORTS_TABLE = "quality_reports.parquet"
REPORTS_SCHEMA = pa.schema(
    [
        pa.field("entity", pa.string(), nullable=False),
        pa.field("passed_quality_check", pa.bool_(), nullable=False),
        pa.field("failure_reason", pa.string()),
        pa.field("report", pa.string(), nullable=False),
    ]
)
SERIES_DIRECTORY = "processed_time_series"

# Characters; file systems allow 255 bytes, including a suffix and a temporary prefix.
_LONGEST_NAME = 150
_BUFFER_BYTES = 1 << 18
_GROUP_ROWS = 1 << 16


@dataclass(frozen=True)
class Entity:
    """A retained entity: its rows in its batch, its time axis, the start of its splits, its
    observed targets.

    edges: the row where each segment of `Division.layout` but the first begins.
    train_row, train_stop: pipelines were fitted on rows [train_row, train_stop).
    """

    entity: str
    first_row: int
    rows: int
    first_time: int
    anchor: Anchor
    val_row: int
    test_row: int
    train_targets: int
    val_targets: int
    test_targets: int
    edges: Sequence[int]
    train_row: int
    train_stop: int

    @property
    def boundaries(self) -> list[int]:
        """The rows where its segments begin, and the end of the last one."""
        return [0, *self.edges, self.rows]

    def axis(self, frequency: Frequency) -> Axis:
        """Return the time axis."""
        return Axis(frequency, self.first_time, self.rows, self.anchor)

    def split_ranges(self, layout: SplitLayout) -> dict[str, tuple[int, int]]:
        """Return the entity's rows [start, stop) in each split that is written."""
        return dict(layout.named(self.boundaries))

    def of_batch(self, matrix: Any) -> Any:
        """Return the entity's rows. matrix: [rows, C] of its batch."""
        return matrix[self.first_row : self.first_row + self.rows]


def split_directory(split: str) -> str:
    """Return the directory of a split's readable files, relative to the run."""
    return f"{SERIES_DIRECTORY}/{split}"


def file_name(entity: str) -> str:
    """Return a file name for an entity, without extension; any text gives one, and different texts
    give different ones.

    Letters, digits and "-_.~" stay unchanged, other characters become %XX; a name never begins with
    "." or "_".
    """
    name = quote(entity, safe="") or "%"
    if name[0] in "._":
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}%{sha256_hex(entity.encode())[:32]}"
    return name


def shard_name(number: int) -> str:
    """Return the name of the store's shard of batch `number`, relative to the run."""
    return f"{STORE}/part-{number:05d}.arrow"


def stacked(matrices: Sequence[Any]) -> tuple[Any, I64]:
    """Stack matrices end to end, and return the row where each begins, and the end: int64
    [matrices + 1].
    """
    lengths = [len(matrix) for matrix in matrices]
    return np.concatenate(matrices), np.cumsum([0, *lengths], dtype=np.int64)


def train_rows(entities: Sequence[Entity], values: Any) -> tuple[Any, I64]:
    """Stack the train rows of these entities. values: [rows, C] of their batch."""
    rows = []
    for entity in entities:
        rows.append(entity.of_batch(values)[entity.train_row : entity.train_stop])
    return stacked(rows)


def calendar_rows(settings: Series, axis: Axis) -> F32:
    """Return the calendar columns for every row of an entity, on the clock of `time_zone` if there
    is one.
    """
    if not settings.calendar:
        return np.empty((axis.rows, 0), np.float32)
    times = axis.times()
    if settings.time_zone is not None and settings.step.zone is None:
        times = utc_to_wall(times, settings.time_zone)
    return calendar_of(settings.calendar, times)


def with_metadata(schema: pa.Schema, settings: Series) -> pa.Schema:
    """Add the metadata about columns that readers need to a schema."""
    metadata = {
        "columns": settings.stored_columns,
        "targets": list(settings.target),
        "future": settings.future_names,
        "frequency": settings.step.word,
        "entity": settings.entity_column,
        "time": settings.time_column,
    }
    if settings.step.zone is not None:
        metadata["zone"] = settings.step.zone
    if settings.categories:
        metadata["categories"] = sorted(settings.categories)
    return schema.with_metadata({METADATA: canonical_json(metadata)})


def readable_schema(settings: Series) -> pa.Schema:
    """Return the schema of the Parquet files: entity, time, scaled columns without nulls; a missing
    value is NaN.
    """
    types = {settings.entity_column: pa.string(), settings.time_column: pa.timestamp("us")}
    types |= dict.fromkeys(settings.stored_columns, pa.float32())
    schema = pa.schema([pa.field(name, dtype, nullable=False) for name, dtype in types.items()])
    return with_metadata(schema, settings)


@contextmanager
def publishing(files: TaskFiles, target: str) -> Iterator[io.BufferedWriter[HashingFile]]:
    """Open a file for writing; it becomes one of the task's files if the block ends without an
    error.
    """
    path = files.temporary(target)
    file = HashingFile(path)
    with io.BufferedWriter(file, _BUFFER_BYTES) as buffered:
        yield buffered
    files.finished(path, target, file.holding(0))


def write_store(files: TaskFiles, number: int, matrix: F32, settings: Series) -> None:
    """Write the shard of a batch. matrix: float32 [rows, C], C-contiguous."""
    dtype = pa.list_(pa.field("item", pa.float32(), nullable=False), matrix.shape[1])
    schema = with_metadata(pa.schema([pa.field("values", dtype, nullable=False)]), settings)
    values = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), type=dtype)
    with (
        publishing(files, shard_name(number)) as file,
        pa.ipc.new_file(file, schema) as writer,
    ):
        writer.write_batch(pa.record_batch([values], schema=schema))


def rows_table(
    settings: Series, schema: pa.Schema, entity: Entity, rows: tuple[int, int], matrix: F32
) -> pa.Table:
    """Build the table of the readable rows [start, stop) of an entity.

    matrix: float32 [rows, C] of its batch.
    """
    start, stop = rows
    columns = np.ascontiguousarray(entity.of_batch(matrix)[start:stop].T)
    times = entity.axis(settings.step).times()[start:stop]
    arrays = [
        pa.repeat(entity.entity, stop - start),
        pa.array(times).view(pa.timestamp("us")),
        *map(pa.array, columns),
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def write_readable(
    files: TaskFiles, target: str, schema: pa.Schema, table: pa.Table
) -> list[dict[str, Any]]:
    """Write rows of a split as Parquet and return its blocks as index rows. O(file) of memory."""
    entity, time = schema.names[:2]
    block_rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES // (4 * len(schema))))
    sink = pa.BufferOutputStream()  # small and numerous files are digested and written in one go
    blocks = []
    with pq.ParquetWriter(
        sink,
        schema,
        compression="lz4",
        use_dictionary=[entity],
        write_statistics=[entity, time],
        write_page_checksum=True,
    ) as writer:
        for first in range(0, table.num_rows, block_rows):
            block = table.slice(first, block_rows)
            offset = sink.tell()
            writer.write_table(block, row_group_size=block.num_rows)
            times = block[time].cast(pa.int64()).to_numpy()
            blocks.append(
                {
                    "first_row": first,
                    "rows": block.num_rows,
                    "offset": offset,
                    "length": sink.tell() - offset,
                    "key_min": int(times.min()),
                    "key_max": int(times.max()),
                }
            )
    files.write(target, sink.getvalue())
    return blocks


def write_tables(
    files: TaskFiles,
    target: str,
    schema: pa.Schema,
    tables: Iterable[pa.Table],
    group_rows: int = _GROUP_ROWS,
) -> None:
    """Write small tables as one Parquet file with row groups of about `group_rows`; O(row group) of
    memory.
    """
    with (
        publishing(files, target) as file,
        pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        pending: list[pa.Table] = []
        for table in tables:
            pending.append(table)
            if sum(part.num_rows for part in pending) >= group_rows:
                writer.write_table(pa.concat_tables(pending))
                pending = []
        if pending:
            writer.write_table(pa.concat_tables(pending))


def stored_entities(run: Path) -> dict[str, list[Entity]]:
    """Read the entities of each shard, by the shard's path in the run; both in order. O(entities)
    of memory.
    """
    shards: dict[str, list[Entity]] = {}
    for row in read_entities(run).drop("static_row").iter_rows(named=True):
        shards.setdefault(row.pop("shard"), []).append(Entity(**row))
    return shards


def read_entities(run: Path) -> pl.DataFrame:
    """Read entities.parquet, with first_time in microseconds since 1970."""
    table = pl.DataFrame(read_run_table(run / ENTITIES, ENTITIES_SCHEMA))
    return table.with_columns(pl.col("first_time").dt.epoch("us"))


def split_rows(
    table: pl.DataFrame, layout: SplitLayout, fold: int = 0
) -> dict[str, tuple[I64, I64]]:
    """Return the rows [start, stop) of each split of each entity, int64 [E].

    table: from entities.parquet.
    """
    rows = table["rows"].to_numpy()
    edges = table["edges"].list.to_array(len(layout.names) - 1).to_numpy()
    boundaries = np.column_stack([np.zeros(len(rows), np.int64), edges, rows])
    ranges = {}
    for split in SPLITS:
        first, last = layout.ranges[fold].get(split, (0, 0))
        ranges[split] = (boundaries[:, first], boundaries[:, last])
    return ranges


def row_times(settings: Series, table: pl.DataFrame, rows: I64) -> I64:
    """Return the time of one row of each entity, int64 [E]. table: from entities.parquet."""
    anchor = anchor_codes(table["anchor"].to_list())
    return times_at(settings.step, table["first_time"].to_numpy(), anchor, rows)


def shared_times(run: Path, settings: Series) -> list[str]:
    """Describe the splits in which entities overlap in calendar time: a row at or after the first
    row of a later split.

    Empty if all rows of a split lie before all rows of the next, over all entities. Of folds, only
    the first is described.
    """
    table = read_entities(run)
    lines = []
    starts: dict[str, int] = {}
    lasts: dict[str, I64] = {}
    for split, (start, stop) in split_rows(table, settings.division.layout).items():
        used = stop > start
        if used.any():
            starts[split] = int(row_times(settings, table, start)[used].min())
            lasts[split] = row_times(settings, table, stop - 1)[used]
    for earlier, later in combinations(starts, 2):
        overlap = lasts[earlier][lasts[earlier] >= starts[later]]
        if len(overlap):
            lines.append(
                f"{earlier} of {many_entities(len(overlap))} reaches to"
                f" {moment(int(overlap.max()))}, {later} of others begins {moment(starts[later])}"
            )
    return lines


def stored_settings(run: FinishedRun) -> Series:
    """Read the settings that the run was made with, with the frequency that it found."""
    config = read_config(run.root, run.manifest)
    config.pop("recipe", None)
    with interpreting(run.root / CONFIG):
        settings = Series(**config | {"frequency": run.manifest.metadata["frequency"]})
    with interpreting(run.root / MANIFEST):
        settings.__dict__["division"] = Division.restored_division(settings, run.manifest.metadata)
    return settings


def read_summary(run: Path) -> dict[str, Any]:
    """Read quality_summary.json. Raises `CorruptShard`."""
    summary = read_object(run / SUMMARY)
    if not {"original_entities", "excluded_entities", "retained_entities"} <= summary.keys():
        raise damaged(run / SUMMARY, "lacks counts of basins")
    return summary
