"""Fits of a small model on windows that note what they saw; imported by name, so that a rank's process finds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning_ranks import Group, fits_of_rank, on_ranks

from headrace.lightning import SeriesDataModule

QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
    "log_every_n_steps": 1,
}


def ids(batch):
    """(entity, day of the last input) of a batch's real windows."""
    pairs = torch.stack([batch["entity"], batch["input_end_date"] // 86_400_000_000], dim=1)
    return pairs[batch["valid"]].tolist() if "valid" in batch else pairs.tolist()


class Recorder(LightningModule):
    """A linear model that notes the windows of every batch by epoch, and those it validates, tests or predicts on."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.LazyLinear(2)
        self.seen: dict[int, list] = {}
        self.validated: list[list] = []
        self.tested: list = []
        self.finite = True

    def loss(self, batch):
        self.finite &= all(
            bool(torch.isfinite(batch[name]).all()) for name in ("X", "y", "future", "static")
        )
        out = self.layer(batch["X"].flatten(1))
        return torch.nn.functional.mse_loss(out, batch["y"])

    def training_step(self, batch):
        self.seen.setdefault(self.current_epoch, []).append(ids(batch))
        return self.loss(batch)

    def on_validation_epoch_start(self):
        self.validated.append([])

    def validation_step(self, batch):
        self.validated[-1] += ids(batch)
        self.loss(batch)

    def test_step(self, batch):
        self.tested += ids(batch)

    def predict_step(self, batch):
        return batch["entity"], batch["complete"], self.layer(batch["X"].flatten(1))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class ExtraLoaders(Callback):
    """Asks for training loaders that nobody uses, at every moment that Lightning or its users did."""

    def on_sanity_check_start(self, trainer, *_):
        trainer.datamodule.train_dataloader()

    def on_train_epoch_start(self, trainer, *_):
        len(trainer.datamodule.train_dataloader())

    def on_train_batch_end(self, trainer, *_):
        trainer.datamodule.train_dataloader()

    def on_validation_start(self, trainer, *_):
        trainer.datamodule.train_dataloader()


def fit(
    path,
    *,
    epochs,
    folder=None,
    every=None,
    ckpt_path=None,
    max_steps=-1,
    sanity=0,
    extra=(),
    trainer=None,
    **settings,
):
    """A fitted Recorder and its data module; checkpoints every so many steps go to a folder."""
    saver = (
        [ModelCheckpoint(folder, every_n_train_steps=every, save_top_k=-1, filename="{step}")]
        if every
        else []
    )
    model = Recorder()
    model.layer.initialize_parameters(torch.zeros(1, 10))
    module = SeriesDataModule(
        path, **{"input_length": 5, "output_length": 2, "batch_size": 8, **settings}
    )
    options = {"devices": 1, **QUIET, "enable_checkpointing": bool(every), **(trainer or {})}
    engine = Trainer(
        max_epochs=epochs,
        max_steps=max_steps,
        callbacks=[*saver, *extra],
        num_sanity_val_steps=sanity,
        **options,
    )
    engine.fit(model, datamodule=module, ckpt_path=ckpt_path)
    return model, module, engine


def on_rank(rank: int, path: str, folder: str, groups: Sequence[Group]) -> None:
    """One process of `lightning_ranks.fits_of_rank`."""

    def fitted(job: Mapping[str, Any]) -> dict[str, Any]:
        model, _, _ = fit(path, folder=folder, **{**job, "trainer": on_ranks()})
        return {"seen": model.seen, "validated": model.validated, "finite": model.finite}

    fits_of_rank(rank, folder, groups, fitted)
