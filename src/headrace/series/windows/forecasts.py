"""Write forecasts of windows as one Parquet file, in the unit of the target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.digest import canonical_json
from headrace.errors import InputError, SettingsError
from headrace.series.pipelines.save import load
from headrace.series.windows.windows import Windows
from headrace.storage.local import beside, make_directory, publish, storing
from headrace.storage.places import local_path_of

METADATA = b"headrace.forecasts"

_GROUP_ROWS = 1 << 17
_SCHEMA = pa.schema(
    [
        pa.field("entity", pa.string(), nullable=False),
        pa.field("issue_time", pa.timestamp("us"), nullable=False),
        pa.field("horizon", pa.int32(), nullable=False),
        pa.field("value", pa.float64()),
    ]
)


def write_forecasts(path: str | Path, windows: Any, forecasts: Iterable[tuple[Mapping[str, Any], Any]]) -> int:
    """Write a row for each window and horizon, and return how many there are. O(row group) of memory.

    windows: what the batches are of, from `open_windows` or `open`. forecasts: batches, each with what a model said of
    it: the scaled target, [B, horizons], arrays or tensors. Rows are in the order of the batches; windows that only
    fill a step (`valid` false) have none.

    entity: text. issue_time: the moment of the last input. horizon: steps from there on, from 1. value: in the unit of
    the target, by the run's own pipelines; null where the forecast is NaN. The file's metadata name the run.

    Raises `SettingsError` for a shape that does not fit the windows, and for a file that is there already; `InputError`
    for an entity that the target's pipeline does not know.
    """
    found: Windows = getattr(windows, "windows", windows)
    options, store, target = found.options, found.store, Path(local_path_of(path, "write_forecasts"))
    if target.exists():
        raise SettingsError(f"{target}: exists; give another path, or remove it")
    steps = np.array(options.horizons or range(1, options.output_length + 1), np.int32)
    pipelines = load(store.root, store.pipeline_digests)
    metadata = canonical_json(
        {"run": store.run_id, "target": pipelines.target, "frequency": store.columns.frequency.word}
    )
    schema = _SCHEMA.with_metadata({METADATA: metadata})

    def rows(batch: Mapping[str, Any], said: Any) -> pa.Table:
        scaled, entity, issued = (_array(each) for each in (said, batch["entity"], batch["input_end_date"]))
        if scaled.shape != (len(entity), len(steps)):
            raise SettingsError(
                f"write_forecasts: a forecast has the shape {scaled.shape}, and its batch {len(entity)} windows of "
                f"{len(steps)} horizons; give ({len(entity)}, {len(steps)})"
            )
        kept = _array(batch["valid"]).astype(bool) if "valid" in batch else np.ones(len(entity), bool)
        names = np.array(found.entity_names(entity[kept]), object)
        values = pipelines.inverse_transform(scaled[kept].astype(np.float64), entity=names.tolist())
        columns = [
            pa.array(np.repeat(names, len(steps)), pa.string()),
            pa.array(np.repeat(issued[kept].astype("datetime64[us]"), len(steps)), pa.timestamp("us")),
            pa.array(np.tile(steps, len(names)), pa.int32()),
            pa.array(values.reshape(-1), pa.float64(), from_pandas=True),
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    make_directory(target.parent)
    written, held = 0, [schema.empty_table()]
    with beside(target) as temporary:
        with (
            storing(target),
            pq.ParquetWriter(temporary, schema, compression="zstd", write_page_checksum=True) as writer,
        ):
            for batch, said in forecasts:
                held.append(rows(batch, said))
                if sum(each.num_rows for each in held) >= _GROUP_ROWS:
                    written += _flush(writer, held)
            written += _flush(writer, held)
        if not written:
            raise InputError(f"{target}: there is no forecast to write; give batches of windows")
        publish(temporary, target)
    return written


def _flush(writer: pq.ParquetWriter, held: list[pa.Table]) -> int:
    table = pa.concat_tables(held)
    if table.num_rows:
        writer.write_table(table, row_group_size=_GROUP_ROWS)
    del held[1:]
    return int(table.num_rows)


def _array(values: Any) -> Any:
    return values.detach().cpu().numpy() if hasattr(values, "detach") else np.asarray(values)
