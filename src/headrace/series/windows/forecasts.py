"""Write forecasts of windows as one Parquet file, in the unit of the target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.arrays import F64
from headrace.digest import canonical_json
from headrace.errors import InputError, SettingsError
from headrace.series.pipelines.save import Pipelines, load
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


def write_forecasts(
    path: str | Path, windows: Any, forecasts: Iterable[tuple[Mapping[str, Any], Any]]
) -> int:
    """Write one row per window, horizon and target, and return the number of rows.

    O(row group) of memory.

    windows: the windows that the batches come from, from `open_windows` or `open`.
    forecasts: pairs of a batch and the model's output for it: the scaled target [B, horizons], or
    several targets [B, horizons, T], as arrays or tensors. Rows follow the order of the batches.
    Windows that only fill a step (`valid` false) get no rows.

    The columns of the file, whose metadata name the run, are

    entity: text.
    issue_time: the moment of the last input.
    horizon: steps after it, from 1.
    value: in the unit of the target, by the run's own pipelines; null if the forecast is NaN.
    target: name of the target, present with several targets.

    Raises `SettingsError` if a shape does not fit the windows or the file exists already;
    `InputError` if the target's pipeline does not know an entity, or if there is no forecast to
    write.
    """
    opened: Windows = getattr(windows, "windows", windows)
    options = opened.options
    store = opened.store
    target = Path(local_path_of(path, "write_forecasts"))
    if target.exists():
        raise SettingsError(
            "exists", setting="path", path=target, remedy="give another path, or remove it"
        )
    steps = np.array(options.horizons or range(1, options.output_length + 1), np.int32)
    pipelines = load(store.root, store.pipeline_digests)
    metadata = canonical_json(
        {"run": store.run_id, "target": pipelines.target, "frequency": store.columns.frequency.word}
    )
    targets = store.columns.targets
    name = []
    if len(targets) > 1:
        name = [pa.field("target", pa.string(), nullable=False)]
    schema = pa.schema([*_SCHEMA, *name], {METADATA: metadata})

    def rows(batch: Mapping[str, Any], forecast: Any) -> pa.Table:
        scaled = as_array(forecast)
        entity = as_array(batch["entity"])
        issued = as_array(batch["input_end_date"])
        shape = (len(entity), len(steps), len(targets))[: 2 + len(name)]
        if scaled.shape != shape:
            of = ""
            if name:
                of = f" and {len(targets)} targets"
            raise SettingsError(
                f"a forecast has the shape {scaled.shape}, and its batch {len(entity)} windows of"
                f" {len(steps)} horizons{of}",
                setting="forecasts",
                value=scaled.shape,
                remedy=f"give {shape}",
            )
        if "valid" in batch:
            valid = as_array(batch["valid"]).astype(bool)
        else:
            valid = np.ones(len(entity), bool)
        names = np.array(opened.entity_names(entity[valid]), object)
        values = in_units(pipelines, scaled[valid].astype(np.float64), names.tolist(), targets)
        rows_of_window = len(steps) * len(targets)
        columns = [
            pa.array(np.repeat(names, rows_of_window), pa.string()),
            pa.array(
                np.repeat(issued[valid].astype("datetime64[us]"), rows_of_window),
                pa.timestamp("us"),
            ),
            pa.array(np.tile(np.repeat(steps, len(targets)), len(names)), pa.int32()),
            pa.array(values.reshape(-1), pa.float64(), from_pandas=True),
            *[
                pa.array(np.tile(np.array(targets, object), len(names) * len(steps)), pa.string())
                for _ in name
            ],
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    make_directory(target.parent)
    written = 0
    pending = [schema.empty_table()]
    with beside(target) as temporary:
        with (
            storing(target),
            pq.ParquetWriter(
                temporary, schema, compression="zstd", write_page_checksum=True
            ) as writer,
        ):
            for batch, forecast in forecasts:
                pending.append(rows(batch, forecast))
                if sum(table.num_rows for table in pending) >= _GROUP_ROWS:
                    written += _flush(writer, pending)
            written += _flush(writer, pending)
        if not written:
            raise InputError(
                "there is no forecast to write", path=target, remedy="give batches of windows"
            )
        publish(temporary, target)
    return written


def in_units(
    pipelines: Pipelines, scaled: Any, names: Sequence[str], targets: Sequence[str]
) -> F64:
    """Convert scaled predictions [B, …] of these entities back to their units; several targets are
    in the last axis.
    """
    if len(targets) == 1:
        return np.asarray(pipelines.inverse_transform(scaled, entity=names), np.float64)
    columns = []
    for at, target in enumerate(targets):
        columns.append(pipelines.inverse_transform(scaled[..., at], entity=names, column=target))
    return np.asarray(np.stack(columns, axis=-1), np.float64)


def _flush(writer: pq.ParquetWriter, pending: list[pa.Table]) -> int:
    table = pa.concat_tables(pending)
    if table.num_rows:
        writer.write_table(table, row_group_size=_GROUP_ROWS)
    del pending[1:]
    return int(table.num_rows)


def as_array(values: Any) -> Any:
    """Return a tensor or an array as a numpy array."""
    if hasattr(values, "detach"):
        return values.detach().cpu().numpy()
    return np.asarray(values)
