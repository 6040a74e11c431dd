"""Train with Composer: torchrun --standalone --nproc-per-node 2 examples/trainers/composer_train.py [--data DIR]."""

from __future__ import annotations

from typing import Any

import rows
import torch
from composer import Callback, ComposerModel, DataSpec, State, Trainer
from composer.loggers import Logger
from composer.utils import dist


class Model(ComposerModel):
    """The model, and its loss over the real rows of all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = rows.model()

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Predict."""
        return self.layers(batch["features"])

    def loss(self, outputs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the loss; ranks' gradients are averaged."""
        real = batch["valid"].sum()
        dist.all_reduce(real)
        return rows.loss_of(outputs, batch, real, dist.get_world_size())


class Position(Callback):
    """Keeps the position of the stream and the rows seen in Composer's checkpoints."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.seen = stream, rows.Seen()

    def batch_end(self, state: State, logger: Logger) -> None:  # noqa: ARG002 - the hook's signature
        """Note the rows of a step."""
        self.seen.add(state.batch)

    def state_dict(self) -> dict[str, Any]:
        """Go into the checkpoint."""
        return {"stream": self.stream.state_dict(), "seen": self.seen.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Come out of it."""
        self.stream.load_state_dict(state["stream"])
        self.seen.load_state_dict(state["seen"])


def main() -> None:
    """Train an epoch, or what a checkpoint left of it."""
    asked = rows.asked(rows.flags(__doc__))
    dist.initialize_dist("cpu")  # before the stream
    stream, model = rows.stream_of(asked), Model()
    position = Position(stream)
    trainer = Trainer(
        model=model,
        train_dataloader=DataSpec(
            stream, get_num_samples_in_batch=lambda batch: int(batch["valid"].sum())
        ),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        device_train_microbatch_size=asked.batch_size,  # streams have no batch_size to be read
        spin_dataloaders=False,  # a resumed stream goes on at once: there is nothing to skip
        max_duration=f"{asked.stop_after}ba" if asked.stop_after else "1ep",
        callbacks=[position],
        load_path=str(asked.checkpoint) if asked.checkpoint and asked.checkpoint.exists() else None,
        device="cpu",
        progress_bar=False,
    )
    trainer.fit()
    if asked.checkpoint:
        trainer.save_checkpoint(str(asked.checkpoint))
    line = position.seen.report(asked)
    if dist.get_global_rank() == 0:
        print(line)
    trainer.close()


if __name__ == "__main__":
    main()
