"""Train with torchdata's loader: torchrun --standalone --nproc-per-node 2 examples/trainers/stateful_dataloader.py."""

from __future__ import annotations

import os

import rows
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader

import headrace


def main() -> None:
    """Train an epoch, or what a checkpoint left of it."""
    asked = rows.asked(rows.flags(__doc__))
    dist.init_process_group("gloo")  # "nccl" on GPUs
    seen = rows.Seen()
    dataset = headrace.open(asked.shards).torch_dataset(
        "train",
        batch_size=asked.batch_size,
        shuffle=True,
        transform=rows.features,
        num_workers=asked.workers,
    )
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=asked.workers)
    model = DistributedDataParallel(rows.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if asked.checkpoint and asked.checkpoint.exists():
        saved = torch.load(asked.checkpoint)
        model.module.load_state_dict(saved["model"])
        dataset.load_state_dict(
            saved["stream"]
        )  # before the loader is iterated, hence before workers start
        seen.load_state_dict(saved["seen"])

    for step, batch in enumerate(loader, start=1):
        real = batch["valid"].sum()
        dist.all_reduce(real)  # of all ranks
        optimizer.zero_grad()
        rows.loss_of(model(batch["features"]), batch, real, dist.get_world_size()).backward()
        optimizer.step()
        seen.add(batch)
        if step == asked.stop_after:
            break

    # The loader's own state is for the same ranks and workers; the stream's part of it for any.
    saved = {
        "model": model.module.state_dict(),
        "stream": headrace.stream_state(loader.state_dict()),
    }
    saved |= {"seen": seen.state_dict()}
    if asked.checkpoint and dist.get_rank() == 0:
        torch.save(saved, f"{asked.checkpoint}.tmp")
        os.replace(f"{asked.checkpoint}.tmp", asked.checkpoint)
    line = seen.report(asked)
    if dist.get_rank() == 0:
        print(line)


if __name__ == "__main__":
    main()
    rows.leave_group()
