"""Train with Hugging Face's Trainer: torchrun --standalone --nproc-per-node 2 examples/trainers/hf_trainer.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import rows
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from headrace.trainers.hf import HeadraceTrainerMixin


class Cost(torch.nn.Module):
    """The loss of a batch is the mean over its rows, as in models of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = rows.model()

    def forward(
        self,
        row: torch.Tensor,  # noqa: ARG002 - counted
        features: torch.Tensor,
        y: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        return {"loss": (self.layers(features)[:, 0] - y).square().mean()}


class StreamTrainer(HeadraceTrainerMixin, Trainer):
    """Notes the real rows of each batch; headrace itself does not need that."""

    seen = rows.Seen()

    def training_step(
        self, model: torch.nn.Module, inputs: Any, *arguments: Any, **settings: Any
    ) -> torch.Tensor:
        self.seen.add({"row": inputs["row"], "valid": inputs.valid[: len(inputs["row"])]})
        return super().training_step(model, inputs, *arguments, **settings)


class StopAfter(TrainerCallback):
    """Saves after this step and ends the run."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002 - the hook's signature
        control.should_save = control.should_training_stop = state.global_step == self.step


def main() -> None:
    """Train an epoch, or what a checkpoint left of it."""
    asked = rows.asked(rows.flags(__doc__))
    folder = asked.checkpoint or asked.out / "hf"
    arguments = TrainingArguments(  # makes the process group, so the stream comes after it
        str(folder),
        per_device_train_batch_size=asked.batch_size,
        num_train_epochs=1,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
    )
    stop = [] if asked.stop_after is None else [StopAfter(asked.stop_after)]
    trainer = StreamTrainer(Cost(), arguments, train_dataset=rows.stream_of(asked), callbacks=stop)
    last = get_last_checkpoint(folder) if asked.checkpoint and folder.exists() else None
    if last:
        trainer.seen.load_state_dict(json.loads(Path(last, "seen.json").read_text()))
    trainer.train(resume_from_checkpoint=last)

    seen = trainer.seen.state_dict()  # of all ranks
    if trainer.is_world_process_zero() and stop:
        Path(get_last_checkpoint(folder), "seen.json").write_text(json.dumps(seen))
    line = trainer.seen.report(asked)
    if trainer.is_world_process_zero():
        print(line)


if __name__ == "__main__":
    main()
    rows.leave_group()  # instead of trainer.end(), which would need a trainer that still lives
