"""A training loop over batches of like lengths in two ranks of a gloo group; imported by name."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from rank_processes import process_group
from torch.nn.parallel import DistributedDataParallel

import headrace


def train(rank: int, folder: str, path: str, world_size: int) -> None:
    """Train to the end of an epoch, then again with a stop in between."""
    warnings.simplefilter("ignore")
    with process_group(rank, world_size, folder):
        whole, rows, _ = _run_steps(folder, path, None, None)
        model, prefix, state = _run_steps(folder, path, None, 7)
        resumed, suffix, _ = _run_steps(folder, path, (model, state), None)
        assert rows == prefix + suffix
        for name, value in whole.items():
            torch.testing.assert_close(value, resumed[name])
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(rows))


def _run_steps(folder, path, saved, stop):
    torch.manual_seed(0)
    model = torch.nn.Embedding(4096, 4)
    stream = headrace.open(path, cache_dir=Path(folder, "cache")).stream(
        shuffle=True, lists="padded", batch_tokens=2048
    )
    if saved is not None:
        model.load_state_dict(saved[0])
        stream.load_state_dict(saved[1])
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = []
    left = stream.remaining
    for batch in stream:
        ids, lengths = batch["input_ids"], batch["input_ids_lengths"]
        real = (torch.arange(ids.shape[1]) < lengths[:, None]) & batch["valid"][:, None]
        tokens = real.sum()
        dist.all_reduce(tokens)  # hangs or fails if another rank has fewer batches
        losses = wrapped(ids.long()).square().sum(dim=-1)
        optimizer.zero_grad()
        ((losses * real).sum() * dist.get_world_size() / tokens).backward()
        optimizer.step()
        rows.append(batch["row"][batch["valid"]].tolist())
        if len(rows) == stop:
            break
    assert len(rows) == (stop or left)
    return model.state_dict(), rows, stream.state_dict()
