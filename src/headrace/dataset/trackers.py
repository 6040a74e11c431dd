"""Log a dataset as an input of an experiment, to MLflow or Weights & Biases.

The tracker gets what identifies the rows: the digest of their contents, the run that made them, rows of each split,
columns and path. No shard is read, copied or uploaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.manifest import MANIFEST, Manifest
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import MissingExtra, SettingsError
from headrace.storage.places import place_of

_DIGITS = 16  # of a digest; MLflow allows 36
_CONTEXTS = {"train": "training", "val": "validation", "valid": "validation", "test": "testing"}
_MLFLOW_TYPES = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_uint32, "long"),
    (pa.types.is_integer, "integer"),
    (pa.types.is_float64, "double"),
    (pa.types.is_floating, "float"),
    (pa.types.is_timestamp, "datetime"),
    (pa.types.is_date, "datetime"),
    (pa.types.is_binary, "binary"),
)


def log_dataset(dataset: IndexedDataset, manifest: Manifest | None, run: Any, split: str | None = None) -> None:
    """Log a dataset, or one split of it, to a run of MLflow or W&B. Raises `SettingsError` for any other object."""
    record = record_of(dataset, manifest, split)
    library = type(run).__module__.partition(".")[0]
    if library not in ("mlflow", "wandb"):
        raise SettingsError(
            f"log_to takes an MLflow run or a wandb.Run, not {type(run).__name__}; pass what mlflow.start_run() or "
            "wandb.init() returned"
        )
    try:
        if library == "mlflow":
            _log_to_mlflow(record, dataset.schema, run, split)
        else:
            _log_to_wandb(record, run)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise
        raise MissingExtra(library, library) from None


def record_of(dataset: IndexedDataset, manifest: Manifest | None, split: str | None = None) -> dict[str, Any]:
    """Return the record for a tracker, as JSON. digest: of the contents, so it changes whenever the rows may."""
    root, rows = place_of(dataset.root).real(), dict(dataset.split_rows)
    if split is not None:
        name = dataset.split_index(split).split
        rows = {name: rows[name]}
    found: dict[str, Any] = {
        "name": root.parent.parent.name if root.parent.name == "runs" else root.name,
        "path": str(root),
        "digest": sha256_hex(canonical_json([dataset.contents, sorted(rows)]))[:_DIGITS],
        "rows": rows,
        "columns": {field.name: str(field.type) for field in dataset.schema},
    }
    if manifest is not None:
        found |= {"recipe": manifest.recipe, "run_id": manifest.run_id, "index_digest": manifest.index_digest}
        found["dropped"] = {reason: count for reason, count in manifest.dropped.items() if count}
    return found


def _log_to_mlflow(record: Mapping[str, Any], schema: pa.Schema, run: Any, split: str | None) -> None:
    from mlflow import MlflowClient
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.types import ColSpec, Schema

    columns: list[Any] = [
        ColSpec(_mlflow_type(field.type), field.name, required=not field.nullable) for field in schema
    ]
    entity = Dataset(
        name=record["name"],
        digest=record["digest"],
        source_type="local" if "://" not in record["path"] else record["path"].partition("://")[0],
        source=json.dumps({"uri": record["path"]}),
        schema=json.dumps({"mlflow_colspec": Schema(columns).to_dict()}),
        profile=json.dumps({name: record[name] for name in record if name not in ("name", "columns")}),
    )
    tags = [] if split is None else [InputTag("mlflow.data.context", _CONTEXTS.get(next(iter(record["rows"])), split))]
    MlflowClient().log_inputs(run.info.run_id, datasets=[DatasetInput(entity, tags)])


def _mlflow_type(kind: pa.DataType) -> Any:
    from mlflow.types import DataType
    from mlflow.types.schema import Array

    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return Array(_mlflow_type(kind.value_type))
    return DataType[next((name for test, name in _MLFLOW_TYPES if test(kind)), "string")]


def _log_to_wandb(record: Mapping[str, Any], run: Any) -> None:
    import wandb

    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in record["name"])
    artifact = wandb.Artifact(name, type="dataset", metadata=dict(record))
    # The file fixes the version: an artifact's digest covers its entries, not its metadata.
    with artifact.new_file("headrace.json", encoding="utf-8") as file:
        file.write(json.dumps(record, indent=1, sort_keys=True) + "\n")
    if "run_id" in record:  # refers to the manifest, because a directory would be walked file by file
        path, remote = record["path"], "://" in record["path"]
        artifact.add_reference(f"{'' if remote else 'file://'}{path}/{MANIFEST}", name=MANIFEST, checksum=not remote)
    if run.offline:  # offline, artifacts cannot be looked up, so none can be used
        run.log_artifact(artifact)
    else:
        run.use_artifact(artifact)
