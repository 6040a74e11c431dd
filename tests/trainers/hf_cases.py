"""What the ranks of the Hugging Face tests run; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from script_processes import tell_rank
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import headrace
from headrace.trainers.hf import HeadraceTrainerMixin

WIDTH = 6
BATCH = 4


class StreamTrainer(HeadraceTrainerMixin, Trainer):
    pass


class StopAt(TrainerCallback):
    """Ends a run after a step, as if it had been killed behind the checkpoint of that step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **given):  # noqa: ARG002 - the hook's signature
        control.should_training_stop = state.global_step == self.step


class Language(LlamaForCausalLM):
    """A tiny Llama that notes the rows of each batch, in training and outside."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.rows: list[list[int]] = []
        self.evaluated: list[list[int]] = []

    def forward(self, row=None, input_ids=None, labels=None, attention_mask=None, position_ids=None, **more):
        if row is not None:
            (self.rows if self.training else self.evaluated).append(row.tolist())
        return super().forward(
            input_ids=input_ids, labels=labels, attention_mask=attention_mask, position_ids=position_ids, **more
        )


class Score(torch.nn.Module):
    """A model whose loss is a mean over rows, and that takes no number of items."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.rows: list[list[int]] = []
        self.evaluated: list[list[int]] = []

    def forward(self, row, labels):
        (self.rows if self.training else self.evaluated).append(row.tolist())
        scores = self.layer(row[:, None] / 50)[:, 0]
        return {"loss": (scores - labels).square().mean(), "logits": scores}


def language_model(**settings: Any) -> Language:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = {"vocab_size": 64, "num_key_value_heads": 2, "attention_dropout": 0.1, "max_position_embeddings": 64}
    return Language(LlamaConfig(**{**config, **shape, **settings}))


def score_model() -> Score:
    torch.manual_seed(0)
    return Score()


def write_rows(folder: Path, rows: int) -> Path:
    """Shards of 10 rows each: a number, tokens, as many of them trained as the number says, and a target."""
    folder.mkdir(parents=True)
    for start in range(0, rows, 10):
        numbers = list(range(start, min(rows, start + 10)))
        tokens = [[(7 * number + 3 * place) % 64 for place in range(WIDTH)] for number in numbers]
        labels = [
            [token if place <= 1 + number % 5 else -100 for place, token in enumerate(line)]
            for number, line in zip(numbers, tokens, strict=True)
        ]
        fixed = pa.list_(pa.int64(), WIDTH)
        table = {"row": numbers, "input_ids": pa.array(tokens, fixed), "labels": pa.array(labels, fixed)}
        target = pa.array([(number % 7) / 7 for number in numbers], pa.float32())
        pq.write_table(pa.table({**table, "target": target}), folder / f"part-{start:03d}.parquet")
    return folder


def stream_of(data: Path | str, kind: str, *, workers: int = 0, **options: Any) -> Any:
    """A stream for a model."""
    columns = ["row", "input_ids", "labels"] if kind == "language" else ["row", "target"]
    transform = None if kind == "language" else _scored
    opened = headrace.open(data)
    settings = {"batch_size": BATCH, "columns": columns, "transform": transform, **options}
    return opened.torch_dataset(num_workers=workers, **settings) if workers else opened.stream(**settings)


def _scored(batch):
    return {"row": batch["row"], "labels": batch["target"], "valid": batch["valid"]}


def arguments_of(folder: str, **settings: Any) -> TrainingArguments:
    usual = {"save_strategy": "no", "num_train_epochs": 2, "learning_rate": 1e-2, "logging_steps": 1, "report_to": []}
    return TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        disable_tqdm=True,
        **{**usual, **settings},
    )


def fit(
    data: str,
    folder: str,
    *,
    kind: str = "language",
    workers: int = 0,
    stop: int | None = None,
    resume: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """One training run of this rank: rows by batch, losses by step, and what the Trainer's state says."""
    arguments = arguments_of(folder, **settings)
    trainer = StreamTrainer(
        language_model() if kind == "language" else score_model(),
        arguments,
        train_dataset=stream_of(data, kind, workers=workers, shuffle=True, seed=5),
        callbacks=[] if stop is None else [StopAt(stop)],
    )
    trainer.train(resume_from_checkpoint=resume)
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {
        "rows": trainer.model.rows,
        "losses": [entry["loss"] for entry in history],
        "epochs": [entry["epoch"] for entry in history],
        "rates": [entry["learning_rate"] for entry in history],
        "weights": [float(each.detach().double().sum()) for each in trainer.model.parameters()],
        "step": trainer.state.global_step,
        "max_steps": trainer.state.max_steps,
    }


def run_on_rank(rank: int, world_size: int, port: int, folder: str, runs: list[dict[str, Any]]) -> None:
    """Run this rank's part of each run, one after the other, and write down what came of them."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if world_size > 1:
        tell_rank(rank, world_size, port)
    out = [globals()[run.pop("call", "fit")](**run) for run in map(dict, runs)]
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(out))
    if world_size > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
