"""Train while machines come and go; every machine runs the same command, as docs/trainers/ddp.md shows it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import rows
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import headrace


def print_step(step: int, batch: dict[str, torch.Tensor], loss: float) -> None:
    """Print the loss of a step on the first rank."""
    if dist.get_rank() == 0:
        ranks = dist.get_world_size()
        print(f"step {step}: {ranks} x {len(batch['row'])} rows, loss {loss:.4f}", flush=True)


def main(on_step: Callable[[int, dict[str, torch.Tensor], float], Any] = print_step) -> None:
    """Train from the newest checkpoint to the end of the last epoch.

    on_step: called on every rank after each step of the optimizer, before it is saved.
    """
    parser = rows.flags(__doc__)
    parser.add_argument("--global-batch-size", type=int, default=12, help="rows of all ranks")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save-every", type=int, default=2, help="steps between checkpoints")
    options = rows.asked(parser)
    dist.init_process_group("gloo")  # "nccl" on GPUs
    stream = headrace.open(options.shards).stream(
        "train",
        global_batch_size=options.global_batch_size,
        shuffle=True,
        transform=rows.features,
        workers=options.workers,
    )
    model = DistributedDataParallel(rows.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    if options.checkpoint.exists():
        saved = torch.load(options.checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        stream.load_state_dict(saved["stream"])  # of any number of ranks
        step = saved["step"]

    for epoch in range(stream.epoch, options.epochs):
        stream.set_epoch(epoch)
        for batch in stream:
            step += 1
            real = batch["valid"].sum()
            dist.all_reduce(real)  # of all ranks
            optimizer.zero_grad()
            loss = rows.loss_of(model(batch["features"]), batch, real, dist.get_world_size())
            loss.backward()
            optimizer.step()
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            on_step(step, batch, mean.item())
            if step % options.save_every == 0 and dist.get_rank() == 0:
                saved = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                saved |= {"stream": stream.state_dict(), "step": step}
                torch.save(saved, f"{options.checkpoint}.tmp")
                os.replace(f"{options.checkpoint}.tmp", options.checkpoint)


if __name__ == "__main__":
    main()
    rows.leave_group()
