"""What the ranks of the Lightning tests run; imported by name, so that a child finds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_ranks import Group, fits_of_rank, on_ranks
from packing_stream_cases import sequences_of
from torch.utils.data import DataLoader

import headrace
from headrace.lightning import EpochCallback, HeadraceDataModule

QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}


class Recorder(LightningModule):
    """A linear model that notes the real rows of every training batch by epoch, and those it validates on."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: dict[int, list[list[int]]] = {}
        self.validated: list[list[int]] = []

    def _loss(self, batch):
        valid = batch["valid"]
        loss = torch.nn.functional.mse_loss(
            self.layer(batch["x"][:, None])[:, 0], batch["y"], reduction="none"
        )
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


class SaveAt(Callback):
    """Saves a checkpoint whenever Lightning calls a hook, named by the batches that are done with then.

    done: those numbers, ascending. In hooks inside a step its batch is recorded and yet to be done.
    """

    _INSIDE = ("on_before_backward", "on_exception")

    def __init__(self, hook: str, folder: Path):
        super().__init__()
        self.done: list[int] = []
        self._hook, self._folder = hook, folder
        setattr(self, hook, self._save)

    def _save(self, trainer, module, *_):
        done = sum(map(len, module.seen.values())) - (self._hook in self._INSIDE)
        if done not in self.done:
            self.done.append(done)
            trainer.save_checkpoint(self._folder / f"{done}.ckpt")


class PackedRecorder(Recorder):
    """Notes the real sequences of every training batch of packed bins, as lists of tokens."""

    def _loss(self, batch):
        found = sequences_of(batch)
        return found, self.layer(batch["loss_mask"].float().sum()[None]).mean() / 1000


def fit(
    path,
    *,
    epochs,
    folder=None,
    every=None,
    ckpt_path=None,
    max_steps=-1,
    trainer=None,
    model=None,
    **settings,
):
    """A fitted Recorder; checkpoints every so many steps go to a folder."""
    saver = (
        [ModelCheckpoint(folder, every_n_train_steps=every, save_top_k=-1, filename="{step}")]
        if every
        else []
    )
    model = model or Recorder()
    module = HeadraceDataModule(
        path, **{"batch_size": 16, "columns": ["row", "x", "y"], **settings}
    )
    options = {"devices": 1, **QUIET, "enable_checkpointing": bool(every), **(trainer or {})}
    engine = Trainer(
        max_epochs=epochs, max_steps=max_steps, callbacks=saver, num_sanity_val_steps=0, **options
    )
    engine.fit(model, datamodule=module, ckpt_path=ckpt_path)
    return model


def fit_foreign_loader(path, *, epochs, use_distributed_sampler, num_workers=0):
    """A Recorder fitted on a plain DataLoader over a stream; Lightning may or may not put samplers into loaders."""
    stream = headrace.open(path).torch_dataset(
        "train", batch_size=16, num_workers=num_workers, shuffle=True, columns=["row", "x", "y"]
    )
    model = Recorder()
    loader = DataLoader(stream, batch_size=None, num_workers=num_workers)
    options = {**QUIET, **on_ranks(), "use_distributed_sampler": use_distributed_sampler}
    engine = Trainer(
        max_epochs=epochs, callbacks=[EpochCallback(stream)], enable_checkpointing=False, **options
    )
    engine.fit(model, loader)
    return model


def on_rank(rank: int, path: str, folder: str, groups: Sequence[Group]) -> None:
    """One process of `lightning_ranks.fits_of_rank`."""

    def fitted(job: Mapping[str, Any]) -> dict[str, Any]:
        if "use_distributed_sampler" in job:
            model = fit_foreign_loader(path, **job)
        else:
            model = fit(
                path, folder=folder, **{**job, "trainer": {**on_ranks(), **job.get("trainer", {})}}
            )
        return {"seen": model.seen, "validated": model.validated}

    fits_of_rank(rank, folder, groups, fitted)


def saves_of_rank(rank: int, path: str, folder: str, port: int, num_workers: int) -> None:
    """One of two ranks whose fits stop after four steps, saved inside the last one or after the fit, and go on."""

    def sequence(**settings: Any) -> list[list[int]]:
        save, hook, ckpt_path = (settings.pop(name, None) for name in ("save", "hook", "ckpt_path"))
        model = Recorder()
        module = HeadraceDataModule(
            path, batch_size=9, num_workers=num_workers, columns=["row", "x", "y"]
        )
        saver = [SaveAt("on_train_batch_start", Path(folder))] if hook else []
        options = {
            **QUIET,
            **on_ranks(),
            "enable_checkpointing": False,
            "num_sanity_val_steps": 0,
            **settings,
        }
        trainer = Trainer(max_epochs=-1, callbacks=saver, **options)
        trainer.fit(model, datamodule=module, ckpt_path=ckpt_path)
        if save:
            trainer.save_checkpoint(save)
        return list(chain.from_iterable(model.seen.values()))

    def fitted(job: Mapping[str, Any]) -> dict[str, Any]:
        if job["kind"] == "whole":
            return {
                "epoch": sequence(
                    max_steps=len(
                        HeadraceDataModule(
                            path, batch_size=9, num_workers=num_workers
                        ).train_dataloader()
                    )
                )
            }
        if job["kind"] == "in a step":
            before = sequence(max_steps=4 + 1, hook=True)[:4]
            last = f"{folder}/4.ckpt"
        else:
            last = f"{folder}/stopped.ckpt"
            before = sequence(max_steps=4, save=last)
        return {"before": before, "after": sequence(max_steps=40, ckpt_path=last)}

    jobs = {kind: {"kind": kind} for kind in ("whole", "after the fit", "in a step")}
    fits_of_rank(rank, folder, [("two", 2, port, jobs)], fitted)
