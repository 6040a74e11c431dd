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
from headrace.series.arrays.axis import times_at
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
        pa.field("time", pa.timestamp("us"), nullable=False),
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
    time: that of this step.
    value: in the unit of the target, by the run's own pipelines; null if the forecast is NaN.
    target: name of the target, present with several targets.

    Raises `SettingsError` if a shape does not fit the windows or the file exists already;
    `InputError` if the target's pipeline does not know an entity, or if there is no forecast to
    write.
    """
    opened: Windows = getattr(windows, "windows", windows)
    target = Path(local_path_of(path, "write_forecasts"))
    if target.exists():
        raise SettingsError(
            "exists", setting="path", path=target, remedy="give another path, or remove it"
        )
    table = ForecastTable(opened)
    make_directory(target.parent)
    written = 0
    pending = [table.schema.empty_table()]
    with beside(target) as temporary:
        with (
            storing(target),
            pq.ParquetWriter(
                temporary, table.schema, compression="zstd", write_page_checksum=True
            ) as writer,
        ):
            for batch, forecast in forecasts:
                pending.append(table.rows(batch, forecast))
                if sum(part.num_rows for part in pending) >= _GROUP_ROWS:
                    written += _flush(writer, pending)
            written += _flush(writer, pending)
        if not written:
            raise InputError(
                "there is no forecast to write", path=target, remedy="give batches of windows"
            )
        publish(temporary, target)
    return written


class ForecastTable:
    """Rows of forecasts of windows, one per window, horizon and target; see `write_forecasts`."""

    def __init__(self, windows: Windows) -> None:
        store = windows.store
        options = windows.options
        self._windows = windows
        self._pipelines = load(store.root, store.pipeline_digests)
        self._steps = np.array(options.horizons or range(1, options.output_length + 1), np.int32)
        frequency = store.columns.frequency.word
        metadata = {"run": store.run_id, "target": self._pipelines.target, "frequency": frequency}
        fields = list(_SCHEMA)
        if len(windows.target_names) > 1:
            fields.append(pa.field("target", pa.string(), nullable=False))
        self.schema = pa.schema(fields, {METADATA: canonical_json(metadata)})

    def rows(self, batch: Mapping[str, Any], forecast: Any) -> pa.Table:
        """Return the rows of the valid windows of a batch.

        Raises `SettingsError` for a forecast of another shape, `InputError` for an entity that the
        target's pipeline does not know.
        """
        entity = as_array(batch["entity"])
        valid = np.ones(len(entity), bool)
        if "valid" in batch:
            valid = as_array(batch["valid"]).astype(bool)
        scaled = self._in_run_scaling(batch, forecast, entity)[valid]
        entity = entity[valid]
        issued = as_array(batch["input_end_date"])[valid].astype("datetime64[us]")
        names = self._windows.entity_names(entity)
        targets = self._windows.target_names
        values = in_units(self._pipelines, scaled, names, targets)
        store = self._windows.store
        times = times_at(
            store.columns.frequency,
            issued.astype(np.int64)[:, None],
            store.entities.anchor[entity][:, None],
            self._steps.astype(np.int64),
        )
        per_window = len(self._steps) * len(targets)
        columns = [
            pa.array(np.repeat(np.array(names, object), per_window), pa.string()),
            pa.array(np.repeat(issued, per_window), pa.timestamp("us")),
            pa.array(np.tile(np.repeat(self._steps, len(targets)), len(names)), pa.int32()),
            pa.array(np.repeat(times.reshape(-1), len(targets))).cast(pa.timestamp("us")),
            pa.array(values.reshape(-1), pa.float64(), from_pandas=True),
        ]
        if len(targets) > 1:
            repeated = np.tile(np.array(targets, object), len(names) * len(self._steps))
            columns.append(pa.array(repeated, pa.string()))
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _in_run_scaling(self, batch: Mapping[str, Any], forecast: Any, entity: Any) -> Any:
        """Return a forecast without the scales of its windows and fold: float64."""
        scaled = self._checked(as_array(forecast), len(entity)).astype(np.float64)
        if self._windows.options.scale != "none":
            shape = (len(entity), 1, *scaled.shape[2:])
            scale, centre = (as_array(batch[name]).reshape(shape) for name in ("scale", "centre"))
            scaled = scaled * scale + centre
        if self._windows.fold_scaling is None:
            return scaled
        return self._windows.fold_scaling.undo(scaled, entity, len(self._windows.target_names))

    def _checked(self, scaled: Any, windows: int) -> Any:
        targets = len(self._windows.target_names)
        shape: tuple[int, ...] = (windows, len(self._steps))
        of = ""
        if targets > 1:
            shape = (*shape, targets)
            of = f" and {targets} targets"
        if scaled.shape != shape:
            raise SettingsError(
                f"a forecast has the shape {scaled.shape}, and its batch {windows} windows of"
                f" {len(self._steps)} horizons{of}",
                setting="forecasts",
                value=scaled.shape,
                remedy=f"give {shape}",
            )
        return scaled


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
