"""What the ranks of the distributed training tests run: plain torch over gloo; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from pure_order import batches_of_rank
from rank_processes import process_group
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_cases import dataset_of, loader_of, real_rows

ROWS = (40, 3, 71, 1, 90, 17, 28)  # seven uneven shards
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
SCATTER = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


class Net(torch.nn.Module):
    """Predicts whether a row's number is odd; all that matters is that gradients are exchanged at every step."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)

    def forward(self, rows):
        bits = torch.stack([(rows >> bit & 1).float() for bit in range(4)], 1)
        return self.second(torch.relu(self.first(bits)))[:, 0]


def wrapped(kind, weights):
    """A model for data-parallel training; "fsdp" shards its parameters over the ranks. weights: rank 0's, to begin with."""
    torch.manual_seed(0)
    model = Net()
    if kind == "ddp":
        if weights is not None:
            model.load_state_dict(weights)
        return DistributedDataParallel(model)
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (model.first, model.second):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if weights is not None:
        set_model_state_dict(model, weights, options=SCATTER)
    return model


def weights_of(model):
    """All weights as they are now, on rank 0; nothing elsewhere."""
    return {
        name: value.clone() for name, value in get_model_state_dict(model, options=WHOLE).items()
    }


def train(model, dataset, *, epochs, stop=None, method="fork"):
    """Real rows of every step by epoch; stop: (epoch, batches) after which a checkpoint is taken, and what it holds."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = loader_of(dataset, method=method, persistent=bool(dataset.num_workers))
    seen, checkpoint = {}, None
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
                checkpoint = {"stream": dataset.state_after(step), "model": weights_of(model)}
    return seen, checkpoint


def run_job(job, rank, folder):
    """One training from a checkpoint or from nothing, on this rank of the present group; what it received."""
    world_size = dist.get_world_size()
    settings = {"batch_size": job["batch_size"], "remainder": job.get("remainder")}
    dataset = dataset_of(job["workers"], rows=ROWS, **settings)
    saved = torch.load(Path(folder, job["resume"])) if "resume" in job else {"model": None}
    if "stream" in saved:
        dataset.load_state_dict(json.loads(json.dumps(saved["stream"])))
    dataset.set_epoch(job["epochs"][0])
    planned = batches_of_rank(dataset.plan(), dataset.index, rank)
    model = wrapped(job["model"], saved["model"])
    stop = tuple(job["stop"]) if "stop" in job else None
    seen, checkpoint = train(model, dataset, epochs=job["epochs"], stop=stop)
    if checkpoint is not None:
        states = [None] * world_size
        dist.all_gather_object(states, checkpoint["stream"])
        assert states == [checkpoint["stream"]] * world_size, "the state is the same on every rank"
        if rank == 0:
            torch.save(checkpoint, Path(folder, job["save"]))
    weights = weights_of(model)
    dist.barrier()  # and the checkpoint is there for whoever resumes it
    del model  # gloo aborts at exit while a DDP model lives
    return {
        "seen": seen,
        "planned": planned,
        "len": len(dataset),
        "weights": [value.flatten().tolist() for value in weights.values()],
    }


def train_on_rank(rank: int, folder: str, groups: list[tuple[str, int, dict[str, dict]]]) -> None:
    """One process: every group it belongs to, one after another, and all jobs there. Its record goes to a file."""
    warnings.simplefilter("ignore")
    record = {}
    for name, world_size, jobs in groups:
        if rank < world_size:
            with process_group(rank, world_size, folder, name):
                record[name] = {title: run_job(job, rank, folder) for title, job in jobs.items()}
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(record))
