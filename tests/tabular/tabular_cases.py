"""Shards to stream and what child processes of these tests run; imported by name, so that spawn finds it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader

from headrace.errors import StreamError
from headrace.stream.ranks.topology import Topology
from headrace.tabular.dataset import PipelineIterableDataset

CONFIG = {
    "label_name": "label",
    "text_name": "text",
    "full_field_list": [],
    "cat_field_list": [],
    "tab_field_list": [],
    "lr": 0.1,
}
UNEVEN = (40, 0, 13, 1, 90, 17, 6)


class Telling(PipelineIterableDataset):
    """In place of rows, what each worker says of its shards."""

    def __iter__(self):
        yield self.get_shard_distribution_info()


def table_of(first: int, rows: int) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "label": pa.array([number % 2 for number in numbers], pa.int64()),
            "text": pa.array([f"text {number}" for number in numbers], pa.string()),
        }
    )


def write_shards(root: Path, rows=UNEVEN) -> int:
    """Parquet shards with these rows; the number of all."""
    first = 0
    for shard, count in enumerate(rows):
        pq.write_table(table_of(first, count), root / f"part-{shard:05d}.parquet")
        first += count
    return first


def ids(rows) -> list[int]:
    """The ids of rows given one by one that are real."""
    return [row["id"] for row in rows if row.get("valid", True)]


def real_ids(batches) -> list[int]:
    """The ids of batches, filling rows left out."""
    return [
        int(number)
        for batch in batches
        for number, real in zip(
            batch["id"], batch.get("valid", torch.ones(len(batch["id"]))), strict=True
        )
        if real
    ]


def loader_of(dataset, *, workers=0, batch_size=8, method="fork", persistent=False) -> DataLoader:
    return DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        persistent_workers=persistent,
    )


def on_rank(rank: int, world_size: int, folder: str, data: str) -> None:
    """One rank of a real process group: rows and batches received, and verdicts on sound and unsound jobs."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world_size
    )
    try:
        found: dict[str, object] = {}
        for workers, method in ((0, "fork"), (2, "spawn")):
            dataset = PipelineIterableDataset(CONFIG, data, shuffle_shards=True)
            loader = loader_of(dataset, workers=workers, method=method, persistent=bool(workers))
            for epoch in (0, 1):
                dataset.set_epoch(epoch)
                batches = []
                for batch in loader:
                    torch.distributed.all_reduce(
                        torch.ones(1)
                    )  # hangs or fails if another rank has fewer batches
                    batches.append(batch)
                found[f"{workers} {epoch}"] = {
                    "ids": real_ids(batches),
                    "batches": len(batches),
                    "rows": sum(len(batch["id"]) for batch in batches),
                    "len": len(dataset),
                }
            found[f"{workers} verdict"] = dataset.verify_no_shard_overlap(
                loader, world_size, max(1, workers)
            )
            found[f"{workers} info"] = dataset.get_shard_distribution_info()
        found["verdicts"] = _verdicts_on_faults(rank, world_size, data)
        found["failures"] = [_failure(rank, data, batch_size) for batch_size in (None, 8)]
        Path(folder, f"rank-{rank}.json").write_text(json.dumps(found))
    finally:
        torch.distributed.destroy_process_group()


def _verdicts_on_faults(rank: int, world_size: int, data: str) -> dict[str, bool]:
    def verdict(*, workers=1, **settings) -> bool:
        dataset = PipelineIterableDataset(CONFIG, data, **{"shuffle_shards": True, **settings})
        return dataset.verify_no_shard_overlap(loader_of(dataset), world_size, workers)

    return {
        "all think they are rank 0": verdict(topology=Topology(rank=0, world_size=world_size)),
        "all think they are alone": verdict(topology=Topology(rank=0, world_size=1)),
        "another seed": verdict(seed=rank),
        "other files": verdict(
            shard_pattern="part-*.parquet" if rank else "part-0000[0-5].parquet"
        ),
        "rank 1 expects workers": verdict(workers=1 + rank),
    }


def _failure(rank: int, data: str, batch_size: int | None) -> str:
    """What ends the loop of each rank when a processor fails on rank 1."""
    dataset = PipelineIterableDataset(CONFIG, data, batch_size=batch_size)
    if rank:
        dataset.add_pipeline("text", int)
    torch.distributed.barrier()
    try:
        for _ in range(100_000):  # far longer than it takes to hear of it
            for _ in dataset:
                pass
    except StreamError as error:
        return str(error)
    return "nothing"
