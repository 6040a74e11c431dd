"""What the ranks of the Lightning tests run; imported by name, so that spawn finds it."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.environments import TorchElasticEnvironment

from headrace.stream.lightning import HeadraceDataModule

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}


class Recorder(LightningModule):
    """A linear model that notes the real rows of every training batch by epoch, and those it validates on."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: dict[int, list[list[int]]] = {}
        self.validated: list[list[int]] = []

    def _loss(self, batch):
        valid = batch.get("valid", torch.ones(len(batch["x"]), dtype=torch.bool))
        loss = torch.nn.functional.mse_loss(self.layer(batch["x"][:, None])[:, 0], batch["y"], reduction="none")
        return batch["row"][valid].tolist(), (loss * valid).mean()

    def training_step(self, batch):
        rows, loss = self._loss(batch)
        self.seen.setdefault(self.current_epoch, []).append(rows)
        return loss

    def on_validation_epoch_start(self):
        self.validated.append([])

    def validation_step(self, batch):
        self.validated[-1] += self._loss(batch)[0]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(path, *, epochs, folder=None, every=None, ckpt_path=None, max_steps=-1, trainer=None, **settings):
    """A fitted Recorder; checkpoints every so many steps go to a folder."""
    saver = [ModelCheckpoint(folder, every_n_train_steps=every, save_top_k=-1, filename="{step}")] if every else []
    model = Recorder()
    module = HeadraceDataModule(path, **{"batch_size": 16, "columns": ["row", "x", "y"], **settings})
    options = {"devices": 1, **QUIET, "enable_checkpointing": bool(every), **(trainer or {})}
    engine = Trainer(max_epochs=epochs, max_steps=max_steps, callbacks=saver, num_sanity_val_steps=0, **options)
    engine.fit(model, datamodule=module, ckpt_path=ckpt_path)
    return model


def on_rank(rank: int, world_size: int, port: int, path: str, folder: str, jobs: list[dict]) -> None:
    """One rank under Trainer(strategy="ddp"): every job is a fit, its record goes to a file."""
    warnings.simplefilter("ignore")
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    os.environ.update({name: str(value) for name, value in names.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "headrace"})
    torch.set_num_threads(1)
    out = []
    for job in jobs:
        trainer = {"strategy": "ddp", "devices": world_size, "plugins": [TorchElasticEnvironment()]}
        model = fit(path, folder=folder, trainer=trainer, **job)
        out.append({"seen": model.seen, "validated": model.validated})
        torch.distributed.barrier()
    Path(folder, f"world-{world_size}-rank-{rank}.json").write_text(json.dumps(out))
    del model
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
