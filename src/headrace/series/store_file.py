"""`store/part-N.arrow`: the scaled rows of a batch's entities, as training maps them.

One record batch with one column `values`, fixed-size lists of C float32 without nulls: its buffer is a row-major
matrix [rows, C], NaN where a value is missing. `entities.parquet` says which rows are whose.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.digest import canonical_json
from headrace.formats.write import HashingFile
from headrace.run.context import TaskFiles
from headrace.series.arrays.axis import Frequency
from headrace.series.config import Series

METADATA = b"headrace.series"
STORE = "store"


def shard_name(number: int) -> str:
    """The store's shard of batch `number`, relative to the run."""
    return f"{STORE}/part-{number:05d}.arrow"


def series_metadata(settings: Series, frequency: Frequency) -> dict[str, Any]:
    """What readers need to know of the columns: in the schemas of store, entities and readable files."""
    return {
        "columns": [*settings.columns(), *settings.mask_columns()],
        "target": settings.target,
        "masks": settings.mask_columns(),
        "frequency": frequency.word,
        "entity": settings.entity_column,
        "time": settings.time,
    }


def with_metadata(schema: pa.Schema, metadata: dict[str, Any]) -> pa.Schema:
    """A schema that says what `series_metadata` found."""
    return schema.with_metadata({METADATA: canonical_json(metadata)})


def metadata_of(schema: pa.Schema) -> dict[str, Any] | None:
    """What a schema says of its series; None if it is no schema of ours."""
    raw = (schema.metadata or {}).get(METADATA)
    return None if raw is None else dict(json.loads(raw))


def write_store(files: TaskFiles, number: int, matrix: npt.NDArray[np.float32], metadata: dict[str, Any]) -> None:
    """Write the shard of a batch. matrix: float32 [rows, C], C-contiguous."""
    kind = pa.list_(pa.field("item", pa.float32(), nullable=False), matrix.shape[1])
    schema = with_metadata(pa.schema([pa.field("values", kind, nullable=False)]), metadata)
    values = pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), type=kind)
    path = files.temporary(shard_name(number))
    with HashingFile(path) as file:
        with pa.ipc.new_file(file, schema) as writer:
            writer.write_batch(pa.record_batch([values], schema=schema))
        file.close()
        written = file.holding(len(matrix))
    files.finished(path, shard_name(number), written)
