"""Hand a dataset to other libraries: the rows of a split to readers of tables, its identity to experiment trackers.

Rows come exactly as headrace's own readers deliver them: in the order of the shards, block by block, checked as in a
stream, with the types of the index and after the filter of the dataset. Memory is one block, unless a library holds all
rows.

MLflow and Weights & Biases get what identifies the rows of a dataset: the digest of their contents, the run that made
them, rows of each split, columns and path. No shard is read, copied or uploaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.dataset.indexed import IndexedDataset
from headrace.dataset.manifest import MANIFEST, Manifest
from headrace.digest import canonical_json, sha256_hex
from headrace.errors import InputError, MissingExtra, SettingsError
from headrace.formats.saved import info_of
from headrace.formats.schema import few
from headrace.storage.places import place_of

if TYPE_CHECKING:
    import polars as pl

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


class SplitRows:
    """The rows of a split. Any library that accepts Arrow streams accepts this object, any number of times."""

    def __init__(self, dataset: IndexedDataset, split: str) -> None:
        self.split, self._dataset = split, dataset

    def __len__(self) -> int:
        return self._dataset.split_index(self.split).total_rows

    def __repr__(self) -> str:
        return f"SplitRows({str(self._dataset.root)!r}, {self.split!r}: {len(self):,} rows)"

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types."""
        return self._dataset.split_index(self.split).schema

    def reader(self, columns: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Read the rows in order. columns: which, in this order; None: all. Raises `SettingsError`."""
        schema = self.schema
        names = schema.names if columns is None else list(columns)
        unknown = [name for name in names if name not in schema.names]
        if unknown:
            raise SettingsError(f"{self._dataset.root}: has no column {unknown[0]!r}; it has {few(schema.names)}")
        wanted, read = pa.schema([schema.field(name) for name in names]), self._dataset.block_reader(self.split)
        blocks = range(len(self._dataset.split_index(self.split).rows))
        batches = (batch for block in blocks for batch in read(block, names).cast(wanted).to_batches())
        return pa.RecordBatchReader.from_batches(wanted, batches)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Deliver the rows to another library; see the Arrow PyCapsule interface."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the rows into memory."""
        return self.reader(columns).read_all()

    def to_polars(self) -> pl.LazyFrame:
        """Scan the rows lazily: only the columns and blocks that a query needs are read, when it is collected."""
        import polars as pl
        from polars.io.plugins import register_io_source

        def read(
            columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _batch_rows: int | None
        ) -> Iterator[pl.DataFrame]:
            left = len(self) if rows is None else rows
            for batch in self.reader(columns) if left else ():
                frame = pl.DataFrame(batch).head(left)
                left -= frame.height
                yield frame if predicate is None else frame.filter(predicate)
                if left <= 0:
                    return

        empty = pl.DataFrame(self.schema.empty_table())
        return register_io_source(read, schema=empty.schema, is_pure=True)

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """Read the rows into a pandas frame. Raises `MissingExtra` without pandas."""
        _library("pandas")  # Arrow needs it for `to_pandas`
        return self.to_arrow(columns).to_pandas()

    def to_duckdb(self, connection: Any = None) -> Any:
        """Make a DuckDB relation of the rows, in memory. connection: None, the default one.

        Raises `MissingExtra` without DuckDB.
        """
        return (connection or _library("duckdb")).from_arrow(self.to_arrow())

    def to_datasets(self) -> Any:
        """Make a Hugging Face `Dataset` of the rows, in memory, with the features in the hub's README.md if any.

        Raises `MissingExtra` without datasets, and `InputError` if values do not fit these features.
        """
        datasets, rows, info = _library("datasets"), self.to_arrow(), info_of(self._dataset.root)
        inferred = datasets.Features.from_arrow_schema(rows.schema)
        told = None
        if info is not None:
            infos = import_module("datasets.info").DatasetInfosDict.from_dataset_card_data({"dataset_info": info})
            told = next(iter(infos.values())).features
        if told is None:
            return datasets.Dataset(rows)
        features = datasets.Features({name: told.get(name, kind) for name, kind in inferred.items()})
        try:
            fitted = import_module("datasets.table").table_cast(rows, features.arrow_schema)
        except (ValueError, TypeError) as error:  # raised by Arrow and by datasets
            raise InputError(
                f"{self._dataset.root}: the rows do not fit the features in README.md: {error}; to_arrow() gives them "
                "as the files have them"
            ) from error
        return datasets.Dataset(fitted, info=datasets.DatasetInfo(features=features))


def _library(name: str) -> Any:
    """Import a library that is an extra of the same name."""
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra(name, name) from None


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
