"""The readable files of a split: Parquet with entity, time and the scaled columns, one row a step.

Files are small and many, so each is made in memory and digested and written at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.arrays import F32
from headrace.formats.write import BLOCK_BYTES, BLOCK_ROWS, HashingFile, Written
from headrace.series.arrays.axis import Frequency
from headrace.series.config import Series
from headrace.series.spool import Passed
from headrace.series.store_file import series_metadata, with_metadata


def readable_schema(settings: Series, frequency: Frequency) -> pa.Schema:
    """Of the Parquet files: entity, time and the scaled columns, none with nulls; a missing value is NaN."""
    names = [*settings.columns(), *settings.mask_columns()]
    fields = [
        pa.field(settings.entity_column, pa.string(), nullable=False),
        pa.field(settings.time, pa.timestamp("us"), nullable=False),
        *(pa.field(name, pa.float32(), nullable=False) for name in names),
    ]
    return with_metadata(pa.schema(fields), series_metadata(settings, frequency))


def rows_table(
    schema: pa.Schema, entity: Passed, bounds: tuple[int, int], frequency: Frequency, matrix: F32
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


def write_rows(path: Path, schema: pa.Schema, tables: Sequence[pa.Table]) -> tuple[Written, list[dict[str, Any]]]:
    """Write a file and give its blocks as index rows know them. O(file) of memory."""
    whole = pa.concat_tables(tables)
    entity, time = schema.names[:2]
    block_rows = max(1, min(BLOCK_ROWS, BLOCK_BYTES // (4 * len(schema))))
    sink = pa.BufferOutputStream()
    blocks = []
    with pq.ParquetWriter(
        sink,
        schema,
        compression="lz4",
        use_dictionary=[entity],
        write_statistics=[entity, time],
        write_page_checksum=True,
    ) as writer:
        for first in range(0, whole.num_rows, block_rows):
            block = whole.slice(first, block_rows)
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
    with HashingFile(path) as file:
        file.write(sink.getvalue())
        written = file.holding(whole.num_rows)
    return written, blocks
