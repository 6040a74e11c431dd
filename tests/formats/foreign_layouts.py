"""Small directories in the layouts of other systems: the names they write, with rows in files headrace could read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = pa.table({"id": [1, 2, 3]})


def parquet(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(ROWS, path)


def arrow(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, ROWS.schema) as writer:
        writer.write_table(ROWS)


def text(path: Path, content: object = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def saved_dataset(root: Path) -> None:
    arrow(root / "data-00000-of-00001.arrow")
    text(root / "state.json", {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
    text(root / "dataset_info.json", {"features": {}})


def saved_dict(root: Path) -> None:
    text(root / "dataset_dict.json", {"splits": ["train", "test"]})
    for split in ("train", "test"):
        saved_dataset(root / split)


def loaded(root: Path) -> None:
    arrow(root / "parquet-train.arrow")
    text(root / "dataset_info.json", {"features": {}})


def delta(root: Path) -> None:
    text(root / "_delta_log" / "00000000000000000000.json", {"commitInfo": {}})
    parquet(root / "part-00000.parquet")
    parquet(root / "part-00001.parquet")


def partitioned_delta(root: Path) -> None:
    text(root / "_delta_log" / "00000000000000000000.json", {"commitInfo": {}})
    parquet(root / "year=2024" / "part-00000.parquet")


def iceberg(root: Path) -> None:
    text(root / "metadata" / "v1.metadata.json", {"format-version": 2})
    parquet(root / "data" / "00000-0.parquet")


def hudi(root: Path) -> None:
    text(root / ".hoodie" / "hoodie.properties")
    text(root / "2024" / ".hoodie_partition_metadata")
    parquet(root / "2024" / "a_1.parquet")


def lance(root: Path) -> None:
    text(root / "_versions" / "1.manifest")
    text(root / "data" / "a.lance")


def mds(root: Path) -> None:
    text(root / "index.json", {"version": 2, "shards": [{"column_names": ["id"], "format": "mds"}]})
    text(root / "shard.00000.mds")


def mosaic_csv(root: Path) -> None:
    text(root / "index.json", {"version": 2, "shards": [{"column_names": ["id"], "format": "csv"}]})
    text(root / "shard.00000.csv", "id\n1\n")


def litdata(root: Path) -> None:
    text(
        root / "index.json",
        {"chunks": [{"chunk_size": 3, "filename": "chunk-0-0.bin"}], "config": {}},
    )
    text(root / "chunk-0-0.bin")


def webdataset(root: Path) -> None:
    for shard in range(2):
        text(root / f"train-{shard:06}.tar")
    text(root / "sizes.json", {"train-000000.tar": 3})


def tfds(root: Path) -> None:
    text(root / "dataset_info.json", {"name": "mnist"})
    text(root / "features.json", {"type": "x"})
    text(root / "mnist-train.tfrecord-00000-of-00001")


def zarr(root: Path) -> None:
    text(root / "zarr.json", {"zarr_format": 3, "node_type": "group"})
    text(root / "id" / "zarr.json", {"zarr_format": 3, "node_type": "array"})


def finished_run(root: Path) -> None:
    text(root / "manifest.json", {"format_version": 1})
    text(root / "config.json", {"recipe": "temporal_split"})
    parquet(root / "index.parquet")
    text(root / "receipts" / "a.json", {})


# Name in the message, what an export needs to say, and who writes it.
LAYOUTS: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "load_dataset cache": ("Hugging Face", "load_dataset", loaded),
    "delta": ("Delta table", "DeltaTable", delta),
    "partitioned delta": ("Delta table", "to_pyarrow_dataset", partitioned_delta),
    "iceberg": ("Iceberg table", "to_arrow_batch_reader", iceberg),
    "hudi": ("Hudi table", "hudi", hudi),
    "lance": ("Lance dataset", "lance.dataset", lance),
    "mds": ("MosaicML", "StreamingDataset", mds),
    "mosaic csv": ("MosaicML", "StreamingDataset", mosaic_csv),
    "litdata": ("litData", "StreamingDataset", litdata),
    "webdataset": ("WebDataset", "load_dataset", webdataset),
    "tfds": ("TensorFlow", "as_dataframe", tfds),
    "zarr": ("Zarr", "open_zarr", zarr),
}
