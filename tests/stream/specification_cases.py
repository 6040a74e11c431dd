"""What the ranks of the specification's tests run, in a real gloo group; imported by name."""

from __future__ import annotations

import contextlib
import io
import json
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from rank_processes import process_group
from torch_cases import dataset_of, loader_of, real_rows

from headrace.errors import CorruptShard
from headrace.stream.audit.rows import audit
from headrace.validate_sharding import validate

HUNDRED = (7,) * 99 + (
    3,
)  # 100 shards; striding would give four ranks 25 each, three ranks 34, 33 and 33
FAULTS = ("none", "twice", "lost", "steps", "raises")
BROKEN_RANK = 1


def train_on_hundred(num_workers: int) -> dict:
    """Two epochs with a collective call at every step; workers that live on are told the epoch."""
    dataset = dataset_of(num_workers, rows=HUNDRED, batch_size=4)
    loader = loader_of(dataset, persistent=bool(num_workers))
    record = {"len": len(dataset), "epochs": []}
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        batches = []
        for batch in loader:
            dist.all_reduce(torch.ones(1))  # hangs or fails if another rank has fewer steps
            batches.append(real_rows(batch))
        record["epochs"].append(batches)
    return record


def broken(batches: list, fault: str) -> object:
    """What a loader with a fault delivers."""
    if fault == "twice":
        batches[0] = batches[1]
    if fault == "lost":
        batches[0] = {"row": batches[0]["row"][:1]}
    if fault == "steps":
        del batches[-1]
    yield from batches
    if fault == "raises":
        raise CorruptShard("part-00003.parquet block 0: broken on purpose")


def verdict_on(fault: str, rank: int, world_size: int) -> dict:
    """The exit code of a validation whose loader is broken on one rank, and what this rank said."""

    def load():
        batches = list(loader_of(dataset_of(0, batch_size=4)))
        faulty = broken(batches, fault if rank == BROKEN_RANK else "none")
        total = dataset_of(0).index.total_rows
        return audit(faulty, key="row", expected=total), total

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = validate(load, rank=rank, world_size=world_size)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def on_rank(rank: int, folder: str, world_sizes: tuple[int, ...]) -> None:
    """One process: every group it belongs to, one after another. Its record goes to a file."""
    warnings.simplefilter("ignore")
    record = {}
    for world_size in world_sizes:
        if rank < world_size:
            with process_group(rank, world_size, folder, f"world-{world_size}"):
                record[world_size] = {
                    "hundred": [train_on_hundred(num_workers) for num_workers in (0, 2)],
                    "verdicts": {fault: verdict_on(fault, rank, world_size) for fault in FAULTS},
                }
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(record))
