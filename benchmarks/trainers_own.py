"""What each trainer's own data path delivers of 49 rows: on two ranks, stopped after two steps, and resumed.

    python benchmarks/trainers_own.py [--paths ddp lightning] [--workers 2]

No clock: counts only, so any machine gives the same. Every path is used as its documentation says: a shuffled epoch in
batches of 8 on two ranks with two workers; then two steps and a checkpoint; then the rest of the epoch on two ranks,
and on one. Delivered is what the training step receives. A path that has no way to go on inside an epoch begins the
epoch again, as its trainer does. Each run is a torchrun of its own,
Ray's a cluster of this machine's own. `composer` needs the environment of `make trainer-composer_train`, `deepspeed`
what `make trainer-deepspeed_train` installs. headrace is counted by the programs of `examples/trainers`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from figures import Table
from reporting import parser, publish

HERE, ROOT = Path(__file__).resolve(), Path(__file__).resolve().parents[1]
ROWS, BATCH_SIZE, STOP, TIMEOUT_S = 49, 8, 2, 300
HEADS = (
    "data path",
    "steps of each rank",
    "rows again",
    "rows never",
    "resumed on 2 ranks: again, never",
    "resumed on 1 rank: again, never",
)
COMPOSER = Path(f"{sys.prefix}-composer/bin/python")


class Rows(torch.utils.data.Dataset):
    """49 rows, by number."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {"row": torch.tensor(number), "x": torch.tensor([number / ROWS])}


class Job:
    """What one run was asked for, and a record of the batches that its training steps received."""

    def __init__(self, folder: str, name: str, workers: int, stop: bool, resume: bool) -> None:
        self.folder, self.workers, self.stop, self.resume = Path(folder), workers, stop, resume
        self.checkpoint = self.folder / "checkpoint"
        self._record = self.folder / f"{name}-{os.environ.get('RANK', '0')}.json"
        self.batches: list[list[int]] = []

    def add(self, rows: torch.Tensor) -> bool:
        """Note a batch; whether the run is to stop here."""
        self.batches.append(rows.tolist())
        self._record.write_text(json.dumps(self.batches))
        return self.stop and len(self.batches) == STOP


def loader_of(job: Job, **options: Any) -> Any:
    """A plain DataLoader over the rows."""
    return torch.utils.data.DataLoader(Rows(), batch_size=BATCH_SIZE, num_workers=job.workers, **options)


def begin_group() -> None:
    """Join the group of the ranks that torchrun started."""
    torch.distributed.init_process_group("gloo")


def ddp(job: Job) -> None:
    """DistributedSampler under DDP and FSDP2. Neither it nor the loader has a state: the epoch begins again."""
    begin_group()
    sampler = torch.utils.data.DistributedSampler(Rows(), shuffle=True)
    sampler.set_epoch(0)
    for batch in loader_of(job, sampler=sampler):
        if job.add(batch["row"]):
            break


def stateful_dataloader(job: Job) -> None:
    """torchdata's loader and sampler; each rank saves a state and loads its own, another rank that of rank 0."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    begin_group()
    state = job.folder / f"state-{torch.distributed.get_rank()}.pt"
    sampler = StatefulDistributedSampler(Rows(), shuffle=True)
    loader = StatefulDataLoader(Rows(), batch_size=BATCH_SIZE, num_workers=job.workers, sampler=sampler)
    if job.resume:
        loader.load_state_dict(torch.load(state, weights_only=False))
    for batch in loader:
        if job.add(batch["row"]):
            torch.save(loader.state_dict(), state)
            break


def lightning(job: Job) -> None:
    """A DataLoader, into which Lightning puts its sampler; a checkpoint inside the epoch."""
    from lightning.pytorch import Callback, LightningModule, Trainer

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any) -> torch.Tensor:
            job.add(batch["row"])
            return self.layer(batch["x"]).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class SaveAndStop(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            if job.stop and trainer.global_step == STOP:
                trainer.should_stop = True
                trainer.save_checkpoint(job.checkpoint)

    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        callbacks=[SaveAndStop()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), loader_of(job, shuffle=True), ckpt_path=job.checkpoint if job.resume else None)


def accelerate(job: Job) -> None:
    """A prepared DataLoader; `skip_first_batches` to go on."""
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    set_seed(0)
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(loader_of(job, shuffle=True))
    for batch in accelerator.skip_first_batches(loader, STOP) if job.resume else loader:
        if job.add(batch["row"]):
            break
    accelerator.wait_for_everyone()


def hugging_face(job: Job) -> None:
    """The Trainer of transformers, with a checkpoint of its own."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, row: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
            job.add(row)
            return {"loss": self.layer(x).mean()}

    class Stop(TrainerCallback):
        def on_step_end(self, _: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002 - the hook's
            control.should_save = control.should_training_stop = job.stop and state.global_step == STOP

    arguments = TrainingArguments(
        output_dir=str(job.folder / "hugging_face"),
        use_cpu=True,
        num_train_epochs=1,
        per_device_train_batch_size=BATCH_SIZE,
        dataloader_num_workers=job.workers,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(Model(), arguments, train_dataset=Rows(), callbacks=[Stop()])
    saved = job.folder / "hugging_face" / f"checkpoint-{STOP}"
    trainer.train(resume_from_checkpoint=str(saved) if job.resume else None)


def deepspeed(job: Job) -> None:
    """The loader that `deepspeed.initialize` makes of training_data. Its checkpoint has no place of the loader."""
    import deepspeed as library

    library.init_distributed("gloo")
    model = torch.nn.Linear(1, 1)
    engine, _, loader, _ = library.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        training_data=Rows(),
        config={"train_micro_batch_size_per_gpu": BATCH_SIZE, "dataloader_drop_last": False},
    )
    if job.resume:
        engine.load_checkpoint(job.checkpoint)
    for batch in loader:
        last = job.add(batch["row"])
        engine.backward(engine(batch["x"]).mean())
        engine.step()
        if last:
            engine.save_checkpoint(job.checkpoint)
            break


def composer(job: Job) -> None:
    """A DataLoader with Composer's sampler; its trainer reads again what it skips."""
    from composer import Callback, ComposerModel, Trainer
    from composer.utils import dist

    class Model(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def forward(self, batch: Any) -> torch.Tensor:
            return self.layer(batch["x"])

        def loss(self, outputs: torch.Tensor, batch: Any) -> torch.Tensor:  # noqa: ARG002 - the hook's signature
            return outputs.mean()

    class Record(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:  # noqa: ARG002 - the hook's signature
            job.add(state.batch["row"])

    dist.initialize_dist("cpu")
    model = Model()
    trainer = Trainer(
        model=model,
        train_dataloader=loader_of(job, sampler=dist.get_sampler(Rows(), shuffle=True)),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        max_duration=f"{STOP}ba" if job.stop else "1ep",
        callbacks=[Record()],
        load_path=str(job.checkpoint) if job.resume else None,
        device="cpu",
        seed=0,
        progress_bar=False,
    )
    trainer.fit()
    if job.stop:
        trainer.save_checkpoint(str(job.checkpoint))


def ray(job: Job) -> None:
    """Ray Data under Ray Train: a shard of each worker, of which a checkpoint knows nothing."""
    import ray as library
    from ray import data, train
    from ray.train.torch import TorchConfig, TorchTrainer

    ranks = int(os.environ["RANKS"])

    def loop(config: dict[str, Any]) -> None:
        os.environ["RANK"] = str(train.get_context().get_world_rank())
        mine = Job(**config)
        for batch in train.get_dataset_shard("train").iter_torch_batches(
            batch_size=BATCH_SIZE, local_shuffle_buffer_size=ROWS, local_shuffle_seed=0
        ):
            if mine.add(batch["row"]):
                break
        train.report({})

    library.init(num_cpus=ranks + 2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    TorchTrainer(
        loop,
        train_loop_config={
            "folder": str(job.folder),
            "name": os.environ["NAME"],
            "workers": job.workers,
            "stop": job.stop,
            "resume": job.resume,
        },
        datasets={"train": data.from_items([{"row": number} for number in range(ROWS)])},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=train.ScalingConfig(num_workers=ranks),
        run_config=train.RunConfig(storage_path=str(job.folder / "ray")),
    ).fit()


PATHS = {
    "ddp": (ddp, "DDP, FSDP2: DistributedSampler"),
    "stateful_dataloader": (stateful_dataloader, "torchdata: StatefulDataLoader, StatefulDistributedSampler"),
    "lightning": (lightning, "Lightning: DataLoader"),
    "accelerate": (accelerate, "Accelerate: prepared DataLoader, skip_first_batches"),
    "hugging_face": (hugging_face, "Hugging Face Trainer: resume_from_checkpoint"),
    "ray": (ray, "Ray Train: get_dataset_shard, iter_torch_batches"),
    "deepspeed": (deepspeed, "DeepSpeed: training_data"),
    "composer": (composer, "Composer: get_sampler, load_path"),
}


def deliver(path: str, folder: Path, name: str, ranks: int, workers: int, *flags: str) -> list[list[list[int]]]:
    """The batches of each rank of one run. Raises `RuntimeError` with the last of what it printed."""
    command = [str(COMPOSER) if path == "composer" else sys.executable]
    if path == "composer":
        command = [str(COMPOSER.parent / "composer"), "-n", str(ranks)]
    elif path != "ray":
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "RANKS": str(ranks), "NAME": name}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "PATH": f"{COMPOSER.parent}:{os.environ['PATH']}"}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TRAIN_METRICS_ENABLED": "0", "RAY_worker_niceness": "0"}
    done = subprocess.run(
        [*command, str(HERE), "--play", path, str(folder), name, "--workers", str(workers), *flags],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    records = [folder / f"{name}-{rank}.json" for rank in range(ranks)]
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "Error" in line or "Exception" in line]
        raise RuntimeError(errors[0].partition(": ")[2] if errors else done.stderr[-500:])
    return [json.loads(record.read_text()) if record.exists() else [] for record in records]


def counted(*runs: list[list[list[int]]]) -> tuple[int, int]:
    """How many deliveries were of rows that had come already, and how many rows never came."""
    rows = Counter(chain.from_iterable(chain.from_iterable(chain.from_iterable(runs))))
    return rows.total() - len(rows), ROWS - len(rows)


def row_of(path: str, workers: int) -> tuple[str, ...]:
    """One line of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = deliver(path, folder, "whole", 2, workers)
        stopped = deliver(path, folder, "stopped", 2, workers, "--stop")
        resumed = []
        for ranks in (2, 1):
            try:
                rest = deliver(path, folder, f"resumed-{ranks}", ranks, workers, "--resume")
                resumed.append("{}, {}".format(*counted(stopped, rest)))
            except RuntimeError as error:
                resumed.append(f"an error: {error}")
    steps = " and ".join(str(len(batches)) for batches in whole)
    return (PATHS[path][1], steps, *map(str, counted(whole)), *resumed)


def main() -> None:
    """Count every path, or play one rank of one."""
    options = parser(__doc__)
    options.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--play", nargs=3, help=argparse.SUPPRESS)  # path, folder, name: one rank of a run
    options.add_argument("--stop", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.play:
        path, folder, name = asked.play
        PATHS[path][0](Job(folder, name, asked.workers, asked.stop, asked.resume))
        return
    rows = [row_of(each, asked.workers) for each in asked.paths]
    table = Table("own", "Trainers' own data paths on 49 rows", HEADS, rows)
    publish([table], asked.json, ["torch", "torchdata", "lightning", "accelerate", "transformers", "ray", "deepspeed"])


if __name__ == "__main__":
    main()
