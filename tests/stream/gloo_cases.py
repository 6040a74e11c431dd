"""What the ranks of the delivery tests run: streams of real files in a real gloo group; imported by name."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from pure_order import batches_of_rank
from rank_processes import process_group
from torch_cases import loader_of, real_rows

import headrace
from headrace.stream.audit.rows import audit

EPOCHS = (0, 3)


def open_split(path: str, folder: str) -> headrace.Dataset:
    """Plain shards whose index was made before; text files say which column is a number."""
    return headrace.open(
        path,
        types={"row": "int64"} if path.endswith(".csv") else None,
        cache_dir=Path(folder, "cache"),
    )


def deliver(case: dict, folder: str, rank: int) -> dict:
    """Two epochs of one case: what this rank received, what the pure order says it should, and the verdict of all."""
    dataset = open_split(case["path"], folder).torch_dataset(
        batch_size=case["batch_size"],
        num_workers=case["workers"],
        shuffle=case["shuffle"],
        shuffle_rows=64,
        remainder=case["remainder"],
        columns=["row"],
    )
    loader = loader_of(dataset, method=case["method"], persistent=bool(case["workers"]))
    watched = audit(
        loader,
        key="row",
        expected=None if case["remainder"] == "drop" else dataset.index.total_rows,
    )
    record = {
        "source": dataset.topology.source,
        "len": len(dataset),
        "dropped": dataset.dropped_rows,
        "epochs": [],
    }
    for epoch in EPOCHS:
        dataset.set_epoch(epoch)
        received = []
        for batch in watched:
            dist.all_reduce(torch.ones(1))  # hangs or fails if another rank has fewer steps
            received.append(real_rows(batch))
        report = watched.report()
        record["epochs"].append(
            {
                "batches": received,
                "expected": batches_of_rank(dataset.plan(), dataset.index, rank),
                "ok": report.ok,
                "rows": report.rows,
                "steps": report.batches_per_rank,
            }
        )
    return record


def deliver_on_rank(rank: int, folder: str, groups: list[tuple[int, list[dict]]]) -> None:
    """One process: every group it belongs to, one after another, and all cases there. Its record goes to a file."""
    warnings.simplefilter("ignore")
    record = {}
    for world_size, cases in groups:
        if rank < world_size:
            with process_group(rank, world_size, folder, f"world-{world_size}"):
                record[world_size] = [deliver(case, folder, rank) for case in cases]
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(record))
