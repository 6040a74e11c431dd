"""Lay out a run of series on disk: names and schemas of its files, writing them, and reading them for checks.

Training maps `store/part-N.arrow`: one record batch with one column `values`, fixed-size lists of C float32 without
nulls. Its buffer is a row-major matrix [rows, C], NaN for missing values. `entities.parquet` lists each entity's rows.
The Parquet files of the splits hold the same rows for people.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.arrays import F32, I64
from headrace.dataset.open import FinishedRun
from headrace.dataset.sound import damaged
from headrace.digest import canonical_json, sha256_hex
from headrace.formats.dates import moment
from headrace.formats.write import BLOCK_BYTES, BLOCK_ROWS, HashingFile
from headrace.report.words import many_entities
from headrace.run.context import STAGE_DIRECTORY, TaskFiles
from headrace.series.arrays.axis import Anchor, Axis, Frequency, times_at
from headrace.series.arrays.calendar import calendar_of
from headrace.series.config import Series
from headrace.series.parts import PLAIN, SPLITS, Division, Parts
from headrace.series.times import wall_of
from headrace.series.windows.store import ENTITIES, METADATA

STORE = "store"
SUMMARY = "quality_summary.json"
REPORTS, REPORTS_TABLE = "quality_reports", "quality_reports.parquet"
SERIES_DIRECTORY = "processed_time_series"

_NO_FILES: Mapping[str, Any] = {"dates": {}, "held_out": {}}
_LONGEST_NAME = 150  # characters; file systems allow 255 bytes, including a suffix and a temporary prefix


@dataclass(frozen=True)
class Entity:
    """A retained entity: its rows in its batch, its time axis, the start of its splits, its observed targets.

    edges: the row where each stretch of `Series.parts` but the first begins, empty for the usual three.
    train_row, train_stop: pipelines were fitted on rows [train_row, train_stop); train_stop -1 means val_row.
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
    edges: Sequence[int] = ()
    train_row: int = 0
    train_stop: int = -1

    @property
    def trains(self) -> tuple[int, int]:
        """The rows [start, stop) that pipelines were fitted on."""
        return self.train_row, self.val_row if self.train_stop < 0 else self.train_stop

    @property
    def borders(self) -> list[int]:
        """The rows where its stretches begin, and the end of the last one."""
        return [0, *(self.edges or (self.val_row, self.test_row)), self.rows]

    def axis(self, frequency: Frequency) -> Axis:
        """Return the time axis."""
        return Axis(frequency, self.first_time, self.rows, self.anchor)

    def bounds(self, parts: Parts) -> dict[str, tuple[int, int]]:
        """Return the entity's rows [start, stop) in each split that is written."""
        return {name: rows for name, rows in parts.named(self.borders) if name is not None}


_TYPES = {
    **{"entity": pa.string(), "shard": pa.string(), "first_time": pa.timestamp("us"), "anchor": pa.string()},
    **{"static_row": pa.int32(), "edges": pa.list_(pa.field("item", pa.int64(), nullable=False))},
}
DIVIDED = ("edges", "train_row", "train_stop")


def entities_schema(settings: Series) -> pa.Schema:
    """Return the schema of entities.parquet, which has `edges` only if rows are not in the usual three stretches."""
    entity, *names = (each.name for each in fields(Entity) if each.name not in DIVIDED)
    names = [entity, "shard", *names, "static_row", *(() if settings.division.parts is PLAIN else DIVIDED)]
    schema = pa.schema([pa.field(name, _TYPES.get(name, pa.int64()), nullable=False) for name in names])
    return with_metadata(schema, settings)


def split_directory(split: str) -> str:
    """Return the directory of a split's readable files, relative to the run."""
    return f"{SERIES_DIRECTORY}/{split}"


def file_name(entity: str) -> str:
    """Return a file name for an entity, without extension; any text gives one, and different texts give different ones.

    Letters, digits and "-_.~" stay unchanged, other characters become %XX; a name never begins with "." or "_".
    """
    name = quote(entity, safe="")
    if name[:1] in ("", ".", "_"):
        name = f"%{ord(name[0]):02X}{name[1:]}" if name else "%"
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}%{sha256_hex(entity.encode())[:32]}"
    return name


def shard_name(number: int) -> str:
    """Return the name of the store's shard of batch `number`, relative to the run."""
    return f"{STORE}/part-{number:05d}.arrow"


def stacked(parts: Sequence[Any]) -> tuple[Any, I64]:
    """Stack matrices end to end, and return the row where each begins, and the end: int64 [parts + 1]."""
    return np.concatenate(parts), np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)


def train_rows(entities: Sequence[Entity], values: Any) -> tuple[Any, I64]:
    """Stack the train rows of these entities. values: [rows, C] of their batch."""
    return stacked([values[each.first_row + each.trains[0] : each.first_row + each.trains[1]] for each in entities])


def stored_columns(settings: Series) -> list[str]:
    """List the columns of the store and of the readable files: values, then the calendar, then masks."""
    return [*settings.columns(), *settings.calendar_columns(), *settings.mask_columns()]


def calendar_rows(settings: Series, axis: Axis) -> F32:
    """Return the calendar columns for every row of an entity, in the clock time of `time_zone` if it is given."""
    if not settings.calendar:
        return np.empty((axis.rows, 0), np.float32)
    times = axis.times()
    return calendar_of(settings.calendar, times if settings.time_zone is None else wall_of(times, settings.time_zone))


def with_metadata(schema: pa.Schema, settings: Series) -> pa.Schema:
    """Add the metadata about columns that readers need to a schema."""
    metadata = {
        "columns": stored_columns(settings),
        "target": settings.target,
        "masks": settings.mask_columns(),
        "frequency": settings.step.word,
        **({"days": list(settings.step.days)} if settings.step.days else {}),
        "entity": settings.entity_column,
        "time": settings.time,
    }
    features = [*settings.feature_names(), *settings.calendar_columns()]
    if settings.more_targets:
        metadata["targets"] = list(settings.targets)
    if settings.future_names() != features:
        metadata["future"] = settings.future_names()
    return schema.with_metadata({METADATA: canonical_json(metadata)})


def readable_schema(settings: Series) -> pa.Schema:
    """Return the schema of the Parquet files: entity, time, scaled columns without nulls; a missing value is NaN."""
    fields_ = [
        pa.field(settings.entity_column, pa.string(), nullable=False),
        pa.field(settings.time, pa.timestamp("us"), nullable=False),
        *(pa.field(name, pa.float32(), nullable=False) for name in stored_columns(settings)),
    ]
    return with_metadata(pa.schema(fields_), settings)


@contextmanager
def publishing(files: TaskFiles, target: str) -> Iterator[HashingFile]:
    """Open a file for writing; it becomes one of the task's files if the block ends without an error."""
    path = files.temporary(target)
    with HashingFile(path) as file:
        yield file
    files.finished(path, target, file.holding(0))


def write_store(files: TaskFiles, number: int, matrix: F32, settings: Series) -> None:
    """Write the shard of a batch. matrix: float32 [rows, C], C-contiguous."""
    kind = pa.list_(pa.field("item", pa.float32(), nullable=False), matrix.shape[1])
    schema = with_metadata(pa.schema([pa.field("values", kind, nullable=False)]), settings)
    values = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), type=kind)
    with publishing(files, shard_name(number)) as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.record_batch([values], schema=schema))


def rows_table(settings: Series, schema: pa.Schema, entity: Entity, bounds: tuple[int, int], matrix: F32) -> pa.Table:
    """Make the readable rows [start, stop) of an entity. matrix: float32 [rows, C] of its batch."""
    start, stop = bounds
    columns = np.ascontiguousarray(matrix[entity.first_row + start : entity.first_row + stop].T)
    arrays = [
        pa.repeat(entity.entity, stop - start),
        pa.array(entity.axis(settings.step).times()[start:stop]).view(pa.timestamp("us")),
        *(pa.array(column) for column in columns),
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def write_readable(files: TaskFiles, target: str, schema: pa.Schema, table: pa.Table) -> list[dict[str, Any]]:
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
            place = {"first_row": first, "rows": block.num_rows, "offset": offset, "length": sink.tell() - offset}
            blocks.append(place | {"key_min": int(times.min()), "key_max": int(times.max())})
    files.write(target, sink.getvalue())
    return blocks


def write_tables(
    files: TaskFiles, target: str, schema: pa.Schema, tables: Iterator[pa.Table], group_rows: int = 1 << 16
) -> None:
    """Write small tables as one Parquet file with row groups of about `group_rows`; O(row group) of memory."""
    with (
        publishing(files, target) as file,
        pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer,
    ):
        held: list[pa.Table] = []
        for table in tables:
            held.append(table)
            if sum(each.num_rows for each in held) >= group_rows:
                writer.write_table(pa.concat_tables(held))
                held = []
        if held:
            writer.write_table(pa.concat_tables(held))


def published_digest(files: Iterable[tuple[str, str]]) -> str:
    """Digest the paths and SHA-256 of all files that stay in a run, which excludes those of the stage directory."""
    return sha256_hex(
        canonical_json(sorted([path, own] for path, own in files if not path.startswith(f"{STAGE_DIRECTORY}/")))
    )


def stored_entities(run: Path) -> dict[str, list[Entity]]:
    """Read the entities of each shard, by the shard's path in the run; both in order. O(entities) of memory."""
    found: dict[str, list[Entity]] = {}
    for row in read_entities(run).drop("static_row").iter_rows(named=True):
        found.setdefault(row.pop("shard"), []).append(Entity(**row))
    return found


def split_rows(table: pl.DataFrame, parts: Parts, fold: int = 0) -> dict[str, tuple[I64, I64]]:
    """Return the rows [start, stop) of each split of each entity, int64 [E]. table: from entities.parquet."""
    rows = table["rows"].to_numpy()
    if "edges" in table.columns:
        inner = table["edges"].list.to_array(len(parts.names) - 1).to_numpy()
    else:
        inner = table.select("val_row", "test_row").to_numpy()
    borders = np.column_stack([np.zeros(len(rows), np.int64), inner, rows])
    found = ((split, parts.ranges[fold].get(split, (0, 0))) for split in SPLITS)
    return {split: (borders[:, first], borders[:, last]) for split, (first, last) in found}


def read_entities(run: Path) -> pl.DataFrame:
    """Read entities.parquet, with first_time in microseconds since 1970."""
    return pl.DataFrame(read_table(run / ENTITIES)).with_columns(pl.col("first_time").dt.epoch("us"))


def row_times(settings: Series, table: pl.DataFrame, rows: I64) -> I64:
    """Return the time of one row of each entity, int64 [E]. table: from entities.parquet."""
    return times_at(settings.step, table["first_time"].to_numpy(), (table["anchor"] == "end").to_numpy(), rows)


def shared_times(run: Path, settings: Series) -> list[str]:
    """Describe the splits in which entities overlap in calendar time: a row at or after the first row of a later split.

    Empty if all rows of a split lie before all rows of the next, over all entities. Of folds, only the first is
    described.
    """
    table = read_entities(run)
    rows = split_rows(table, settings.division.parts)
    found = []
    for one, other in combinations(SPLITS, 2):
        there = {split: rows[split][1] > rows[split][0] for split in (one, other)}
        if there[one].any() and there[other].any():
            last = row_times(settings, table, rows[one][1] - 1)
            starts = int(row_times(settings, table, rows[other][0])[there[other]].min())
            behind = there[one] & (last >= starts)
            if behind.any():
                reached = moment(int(last[behind].max()))
                found.append(
                    f"{one} of {many_entities(behind.sum())} reaches to {reached}, "
                    f"{other} of others begins {moment(starts)}"
                )
    return found


def stored_settings(run: FinishedRun) -> Series:
    """Read the settings that the run was made with, with the frequency that it found."""
    config = json.loads((run.root / "config.json").read_bytes())
    config.pop("recipe", None)
    # An older run lacks the newest settings. Passing defaults keeps `Series` from taking them from a named run.
    fields = Series.model_fields.items()
    usual = {name: each.get_default(call_default_factory=True) for name, each in fields if not each.is_required()}
    settings = Series(**usual | config | {"frequency": run.manifest.facts["frequency"]})
    settings.__dict__["division"] = Division.of(settings, run.manifest.facts.get("divided_by", _NO_FILES))
    return settings


def read_summary(run: Path) -> dict[str, Any]:
    """Read quality_summary.json. Raises `CorruptShard`."""
    try:
        summary: dict[str, Any] = json.loads((run / SUMMARY).read_bytes())
        if not {"original_basins", "excluded_basins", "retained_basins"} <= summary.keys():
            raise ValueError("it lacks counts of basins")
    except (OSError, ValueError, AttributeError) as error:
        raise damaged(run / SUMMARY, f"cannot be read ({error})") from error
    return summary


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file, checking its page checksums. Raises `CorruptShard`."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read(columns, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise damaged(path, f"cannot be read ({error})") from error
