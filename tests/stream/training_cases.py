"""What the ranks of the distributed training tests run: plain torch over gloo; imported by name, so that spawn finds it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch_cases import dataset_of, real_rows

ROWS = (40, 3, 71, 1, 90, 17, 28)  # seven uneven shards


class Net(torch.nn.Module):
    """Predicts whether a row's number is odd; all that matters is that gradients are exchanged at every step."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)

    def forward(self, rows):
        bits = torch.stack([(rows >> bit & 1).float() for bit in range(4)], 1)
        return self.second(torch.relu(self.first(bits)))[:, 0]


def wrapped(kind):
    """A model for data-parallel training; "fsdp" shards its parameters over the ranks."""
    torch.manual_seed(0)
    model = Net()
    if kind == "ddp":
        return DistributedDataParallel(model)
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model.first, model.second):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(model, dataset, *, epochs, stop=None):
    """Real rows of every step by epoch; stop: (epoch, batches) after which to stop, and the state there."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=dataset.num_workers,
        multiprocessing_context="fork" if dataset.num_workers else None,
    )
    seen, states = {}, None
    for epoch in epochs:
        dataset.set_epoch(epoch)
        seen[epoch] = []
        for step, batch in enumerate(loader, start=1):
            optimizer.zero_grad()
            valid = batch.get("valid", torch.ones(len(batch["row"]), dtype=torch.bool))
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                model(batch["row"]), (batch["row"] % 2).float(), reduction="none"
            )
            (loss * valid).mean().backward()  # hangs or fails if another rank has fewer steps
            optimizer.step()
            seen[epoch].append(real_rows(batch))
            if (epoch, step) == stop:
                states = dataset.state_after(step)
    return seen, states


def train_on_rank(rank: int, world_size: int, folder: str, jobs: list[dict]) -> None:
    """One rank: every job is a training from a state or from nothing; what it received goes to a file."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    store = f"file://{folder}/group-{world_size}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    out = []
    for job in jobs:
        dataset = dataset_of(job["workers"], rows=ROWS, batch_size=job["batch_size"])
        if "state" in job:
            dataset.load_state_dict(json.loads(Path(folder, job["state"]).read_text()))
        model = wrapped(job["model"])
        stop = tuple(job["stop"]) if "stop" in job else None
        seen, state = train(model, dataset, epochs=job["epochs"], stop=stop)
        states = [None] * world_size
        dist.all_gather_object(states, state)
        assert states == [state] * world_size, "the state is the same on every rank"
        if state is not None and rank == 0:
            Path(folder, job["save"]).write_text(json.dumps(state))
        out.append({"seen": seen, "len": len(dataset)})
        dist.barrier()
        del model
    Path(folder, f"world-{world_size}-rank-{rank}.json").write_text(json.dumps(out))
    dist.barrier()  # gloo's threads sometimes abort a process that leaves the group while others still talk to it
    dist.destroy_process_group()
