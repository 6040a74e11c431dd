"""Train with Lightning: torchrun --standalone --nproc-per-node 2 examples/trainers/lightning_train.py [--data DIR].

The checkpoint is written by a callback after a step inside the epoch; `fit` goes on from it by itself.
"""

from __future__ import annotations

import os
from typing import Any

import rows
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from headrace.lightning import HeadraceDataModule


class Model(LightningModule):
    """The model, and the rows it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.seen = rows.model(), rows.Seen()

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss; Lightning does the rest."""
        real = self.trainer.strategy.reduce(batch["valid"].sum(), reduce_op="sum")  # of all ranks
        self.seen.add(batch)
        return rows.loss_of(self.layers(batch["features"]), batch, real, self.trainer.world_size)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put the rows beside the weights."""
        checkpoint["seen"] = self.seen.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on counting."""
        self.seen.load_state_dict(checkpoint["seen"])


class SaveAndStop(Callback):
    """Saves inside an epoch, from a hook of its own, and ends the fit there; None: after the last step."""

    def __init__(self, step: int | None, path: Any) -> None:
        super().__init__()
        self._step, self._path = step, path

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Save after the step that was asked for."""
        if trainer.global_step == self._step:
            trainer.should_stop = True
            if self._path:
                trainer.save_checkpoint(self._path)


def main() -> None:
    """Train an epoch, or what a checkpoint left of it."""
    asked = rows.asked(rows.flags(__doc__))
    data = HeadraceDataModule(
        asked.shards,
        batch_size=asked.batch_size,
        num_workers=asked.workers,
        options={"transform": rows.features},
    )
    model = Model()
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        strategy="ddp",
        callbacks=[SaveAndStop(asked.stop_after, asked.checkpoint)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        model,
        datamodule=data,
        ckpt_path=asked.checkpoint if asked.checkpoint and asked.checkpoint.exists() else None,
    )
    line = model.seen.report(asked)
    if trainer.is_global_zero:
        print(line)


if __name__ == "__main__":
    main()
