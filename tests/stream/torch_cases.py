"""What child processes of the torch tests run; imported by name, so that spawn finds it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from stream_cases import Numbers, index_of
from torch.utils.data import DataLoader

from headrace.stream.audit import audit
from headrace.stream.options import StreamOptions
from headrace.stream.torch import StreamingDataset

ROWS = (40, 0, 13, 1, 90, 17)


def dataset_of(num_workers, *, rows=ROWS, topology=None, **settings):
    settings = StreamOptions(**{"batch_size": 5, "shuffle": True, "shuffle_rows": 32, "lanes": 8, **settings})
    return StreamingDataset(index_of(rows), Numbers(rows), settings, num_workers=num_workers, topology=topology)


def loader_of(dataset, *, method="fork", persistent=False):
    workers = dataset.num_workers
    return DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
        persistent_workers=persistent,
    )


def real_rows(batch):
    return (batch["row"][batch["valid"]] if "valid" in batch else batch["row"]).tolist()


def deliver_on_rank(rank: int, world_size: int, folder: str, method: str) -> None:
    """One rank of a real process group: what it received, and whether all ranks took equal steps."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world_size)
    try:
        out = {}
        for num_workers in (0, 2):
            dataset = dataset_of(num_workers)
            batches = []
            for batch in loader_of(dataset, method=method):
                torch.distributed.all_reduce(torch.ones(1))  # hangs or fails if another rank has fewer steps
                batches.append(real_rows(batch))
            out[num_workers] = {"batches": batches, "len": len(dataset), "source": dataset.topology.source}
        Path(folder, f"rank-{rank}.json").write_text(json.dumps(out))
    finally:
        torch.distributed.destroy_process_group()


def audit_on_rank(rank: int, world_size: int, folder: str, fault: str) -> None:
    """One rank of a real process group whose delivery is audited, with a fault on rank 1."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world_size)
    try:
        batches = list(loader_of(dataset_of(0)))
        if rank and fault == "twice":
            batches[0] = batches[1]
        if rank and fault == "steps":
            del batches[-1]
        watched = audit(batches, key="row", expected=sum(ROWS))
        for _ in watched:
            pass
        report = watched.report()
        verdict = {"ok": report.ok, "duplicates": report.duplicates, "batches": report.batches_per_rank}
        Path(folder, f"rank-{rank}.json").write_text(json.dumps(verdict))
    finally:
        torch.distributed.destroy_process_group()
