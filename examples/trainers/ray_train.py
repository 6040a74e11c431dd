"""Train with Ray Train: python examples/trainers/ray_train.py --ranks 2 [--data DIR]."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from typing import Any

import ray
import rows
import torch
import torch.distributed as dist
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer
from torch.nn.parallel import DistributedDataParallel


def train_on_worker(config: dict[str, Any]) -> None:
    """Train on one worker, in the process group that Ray Train has made."""
    asked = argparse.Namespace(**config)
    stream, seen = rows.stream_of(asked), rows.Seen()
    model = DistributedDataParallel(rows.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoint = train.get_checkpoint()  # after a worker died
    if checkpoint is None and asked.checkpoint and asked.checkpoint.exists():
        checkpoint = train.Checkpoint.from_directory(asked.checkpoint)
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            saved = torch.load(f"{directory}/job.pt")
        model.module.load_state_dict(saved["model"])
        stream.load_state_dict(saved["stream"])  # of any number of workers
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

    saved = {
        "model": model.module.state_dict(),
        "stream": stream.state_dict(),
        "seen": seen.state_dict(),
    }
    line = {"line": seen.report(asked)}
    if dist.get_rank() > 0:
        train.report(line)
        return
    with tempfile.TemporaryDirectory() as directory:
        torch.save(saved, f"{directory}/job.pt")
        train.report(line, checkpoint=train.Checkpoint.from_directory(directory))


def main() -> None:
    """Train an epoch on workers of a Ray of this machine's own, or what a checkpoint left of it."""
    parser = rows.flags(__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="workers of Ray Train")
    asked = rows.asked(parser)
    asked.checkpoint = (
        asked.checkpoint and asked.checkpoint.resolve()
    )  # workers run in directories of their own
    environment = {
        "env_vars": {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}
    }  # where rows.py is
    ray.init(
        num_cpus=asked.ranks + 1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env=environment,
    )
    trainer = TorchTrainer(
        train_on_worker,
        train_loop_config=vars(asked),
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=train.ScalingConfig(num_workers=asked.ranks),
        run_config=train.RunConfig(storage_path=str(asked.out.resolve() / "ray")),
    )
    result = trainer.fit()
    if asked.checkpoint:
        with result.checkpoint.as_directory() as directory:
            shutil.copytree(directory, asked.checkpoint, dirs_exist_ok=True)
    print(result.metrics["line"])
    ray.shutdown()


if __name__ == "__main__":
    main()
