"""Train with DDP: torchrun --standalone --nproc-per-node 2 examples/trainers/ddp.py [--data DIR]."""

from __future__ import annotations

import os

import rows
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train an epoch, or what a checkpoint left of it."""
    asked = rows.asked(rows.flags(__doc__))
    dist.init_process_group("gloo")  # "nccl" on GPUs
    stream, seen = rows.stream_of(asked), rows.Seen()
    model = DistributedDataParallel(rows.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    if asked.checkpoint and asked.checkpoint.exists():
        saved = torch.load(asked.checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        stream.load_state_dict(
            saved["stream"]
        )  # of any number of ranks, workers and rows in a batch
        seen.load_state_dict(saved["seen"])

    for step, batch in enumerate(stream, start=1):
        real = batch["valid"].sum()
        dist.all_reduce(real)  # of all ranks
        optimizer.zero_grad()
        rows.loss_of(model(batch["features"]), batch, real, dist.get_world_size()).backward()
        optimizer.step()
        seen.add(batch)
        if step == asked.stop_after:
            break

    saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    saved |= {"stream": stream.state_dict(), "seen": seen.state_dict()}  # the same on every rank
    if asked.checkpoint and dist.get_rank() == 0:
        torch.save(saved, f"{asked.checkpoint}.tmp")
        os.replace(f"{asked.checkpoint}.tmp", asked.checkpoint)
    line = seen.report(asked)
    if dist.get_rank() == 0:
        print(line)


if __name__ == "__main__":
    main()
    rows.leave_group()
