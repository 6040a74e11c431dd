"""Train with FSDP2: torchrun --standalone --nproc-per-node 2 examples/trainers/fsdp2.py [--data DIR]."""

from __future__ import annotations

import json

import rows
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main() -> None:
    """Train an epoch, or what a checkpoint left of it."""
    asked = rows.asked(rows.flags(__doc__))
    dist.init_process_group("gloo")  # "nccl" on GPUs
    stream, seen = rows.stream_of(asked), rows.Seen()
    model = fully_shard(rows.model(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if asked.checkpoint and asked.checkpoint.exists():
        weights, moments = get_state_dict(model, optimizer)
        saved = {"model": weights, "optimizer": moments, "stream": "", "seen": ""}
        dcp.load(saved, checkpoint_id=asked.checkpoint)  # shards of any number of ranks
        set_state_dict(
            model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"]
        )
        stream.load_state_dict(json.loads(saved["stream"]))
        seen.load_state_dict(json.loads(saved["seen"]))

    for step, batch in enumerate(stream, start=1):
        real = batch["valid"].sum()
        dist.all_reduce(real)  # of all ranks
        optimizer.zero_grad()
        rows.loss_of(model(batch["features"]), batch, real, dist.get_world_size()).backward()
        optimizer.step()
        seen.add(batch)
        if step == asked.stop_after:
            break

    if asked.checkpoint:
        weights, moments = get_state_dict(model, optimizer)
        texts = {"stream": json.dumps(stream.state_dict()), "seen": json.dumps(seen.state_dict())}
        dcp.save({"model": weights, "optimizer": moments, **texts}, checkpoint_id=asked.checkpoint)
    line = seen.report(asked)
    if dist.get_rank() == 0:
        print(line)


if __name__ == "__main__":
    main()
    rows.leave_group()
