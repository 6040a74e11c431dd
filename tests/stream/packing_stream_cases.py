"""Rows of tokens to pack while streaming, and what two ranks of a gloo group do with them; imported by name."""

from __future__ import annotations

import json
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from rank_processes import process_group

import headrace


def write_rows(root: Path, lengths, *, shard_rows=300, group_rows=50, mask=None) -> Path:
    """Row r has the tokens 1000 r, 1000 r + 1, … and its number; every third token is trained."""
    root.mkdir(parents=True, exist_ok=True)
    ids = [
        np.arange(1000 * row, 1000 * row + length).tolist() for row, length in enumerate(lengths)
    ]
    trained = [[int(token % 3 == 0) for token in row] for row in ids]
    table = pa.table(
        {
            "input_ids": pa.array(ids, pa.list_(pa.int32())),
            "trained": pa.array(trained, pa.list_(pa.int8())).cast(mask or pa.list_(pa.int8())),
            "other": pa.array([[1, *row] for row in trained], pa.list_(pa.int8())),
            "row": np.arange(len(ids)),
            "tokens": np.array(lengths, np.int64),
        }
    )
    for shard, start in enumerate(range(0, table.num_rows, shard_rows)):
        pq.write_table(
            table.slice(start, shard_rows), root / f"{shard:05d}.parquet", row_group_size=group_rows
        )
    return root


def some_lengths(rows, seed=0, most=60):
    return np.minimum(
        np.random.default_rng(seed).lognormal(2.5, 0.8, rows).astype(int) + 1, most
    ).tolist()


def sequences_of(batch):
    """The token lists of a batch's real sequences: those of filling begin with 0 or -1."""
    ids, borders = np.asarray(batch["input_ids"]).reshape(-1), np.asarray(batch["cu_seqlens"])
    parts = [ids[begin:end].tolist() for begin, end in pairwise(borders.tolist())]
    return [part for part in parts if part[0] != -1]


def deliver_packed(rank: int, folder: str, path: str, world_size: int) -> None:
    """One epoch, a collective at every step, stopped after three batches and resumed."""
    warnings.simplefilter("ignore")
    settings = {
        "batch_size": 2,
        "shuffle": True,
        "seed": 5,
        "packed": headrace.PackedBatches(pad_id=-1),
    }
    pack = headrace.PackRows(capacity=100, buffer_rows=64)
    with process_group(rank, world_size, folder):
        dataset = headrace.open(path, cache_dir=Path(folder, "cache"))
        stream = dataset.stream(pack=pack, **settings)
        rows, steps = [], len(stream)
        for batch in stream:
            dist.all_reduce(torch.ones(1))  # hangs or fails if another rank has fewer batches
            rows.append(sequences_of(batch))
        assert len(rows) == steps
        first = dataset.stream(pack=pack, **settings)
        batches = iter(first)
        prefix = [sequences_of(next(batches)) for _ in range(3)]
        state = first.state_dict()
        second = dataset.stream(pack=pack, **settings)
        second.load_state_dict(state)
        assert prefix + [sequences_of(batch) for batch in second] == rows
    Path(folder, f"rank-{rank}.json").write_text(
        json.dumps({"rows": rows, "state": state, "steps": steps})
    )
