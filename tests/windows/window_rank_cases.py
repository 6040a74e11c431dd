"""A documented loop over windows on several ranks; imported by name, so that a rank's process finds it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
from rank_processes import process_group
from torch.nn.parallel import DistributedDataParallel

import headrace.windows


def train_on_rank(rank: int, world_size: int, path: str, folder: str, batch_size: int) -> None:
    """An epoch whose loss is the mean over the valid windows of all ranks; writes what each step had."""
    with process_group(rank, world_size, folder):
        told = epoch(path, batch_size)
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(told))


def epoch(path: str, batch_size: int) -> dict[str, list]:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(10, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    steps = []
    for batch in headrace.windows.open(path, "train", input_length=5, output_length=2).stream(
        batch_size=batch_size, seed=0
    ):
        loss_B = (model(batch["X"].flatten(1)) - batch["y"]).square().mean(dim=1)
        windows = batch["valid"].sum()
        own = int(windows)
        dist.all_reduce(
            windows
        )  # of all ranks; DDP takes the mean of the ranks' gradients, hence their number
        loss = (loss_B * batch["valid"]).sum() * dist.get_world_size() / windows
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps.append([own, int(windows), float(loss)])
    weights = torch.cat([each.detach().flatten() for each in model.parameters()]).tolist()
    return {"steps": steps, "weights": weights}
