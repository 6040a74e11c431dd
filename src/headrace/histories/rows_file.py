"""`rows.parquet`: the facts of every big row of a run, so that planning opens no shard.

One row per big row, ordered by shard and position; a row group per shard. O(rows of a shard) of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.formats.write import HashingFile, Written
from headrace.histories.shard_file import FACTS_SCHEMA
from headrace.histories.write import facts_file
from headrace.run.context import TaskFiles

ROWS = "rows.parquet"
ROWS_SCHEMA = pa.schema(
    [
        *list(FACTS_SCHEMA)[:-1],
        pa.field("split", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("measurements_before", pa.int64(), nullable=False),
    ]
)
# Few values, or such as grow: half the size and a third of the time that dictionaries for every column take.
_CODED = ["part", "n_measurements", "split", "shard", "bytes"]
_GROWING = ["first_time", "last_time", "position", "measurements_before"]


@dataclass(frozen=True)
class RowShard:
    """A shard whose rows are listed."""

    split: str
    number: int
    path: str


def write_rows(files: TaskFiles, shards: Sequence[RowShard]) -> int:
    """Write `rows.parquet`; how many rows it has. measurements_before counts in the split, in the order of the file."""
    temporary = files.temporary(ROWS)
    file = HashingFile(temporary)
    before: dict[str, int] = {}
    rows = 0
    with file, _writer(file) as writer:
        for shard in sorted(shards, key=lambda each: each.path):
            with pa.memory_map(str(files.run / facts_file(shard.split, shard.number))) as source:
                facts = pa.ipc.open_file(source).read_all()
                n = facts["n_measurements"].to_numpy()
                sums = before.get(shard.split, 0) + np.cumsum(n) - n
                columns = {
                    **{name: facts[name] for name in FACTS_SCHEMA.names},
                    "split": pa.repeat(shard.split, len(n)),
                    "shard": pa.repeat(shard.path, len(n)),
                    "position": pa.array(np.arange(len(n))),
                    "measurements_before": pa.array(sums),
                }
                arrays = [columns[name] for name in ROWS_SCHEMA.names]
                writer.write_table(pa.Table.from_arrays(arrays, schema=ROWS_SCHEMA), row_group_size=max(1, len(n)))
            before[shard.split] = before.get(shard.split, 0) + int(n.sum())
            rows += len(n)
        writer.close()
        done = Written(rows, file.written, file.digest.sha256, (), file.digest.checksum)
    files.finished(temporary, ROWS, done)
    return rows


def _writer(file: HashingFile) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        file,
        ROWS_SCHEMA,
        compression="zstd",
        use_dictionary=_CODED,
        column_encoding=dict.fromkeys(_GROWING, "DELTA_BINARY_PACKED"),
        write_page_checksum=True,
    )
