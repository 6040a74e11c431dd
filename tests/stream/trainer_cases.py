"""What the ranks of the Hugging Face Trainer's test run; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch
from rank_processes import leave_group
from script_processes import tell_rank
from stream_cases import Numbers, index_of
from torch.utils.data import default_collate
from transformers import Trainer, TrainingArguments

from headrace.errors import SettingsError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.torch_dataset import StreamingDataset

BLOCKS = (20, 20, 9)


class Seen(torch.nn.Module):
    """Notes the real rows of each batch; the loss leaves filling ones out."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.rows: list[list[int]] = []

    def forward(self, row, valid):
        self.rows.append(row[valid].tolist())
        return {"loss": (self.weight * row * valid).sum() / valid.sum().clamp(min=1)}


class StreamTrainer(Trainer):
    """The supported way: the loader is given as it is."""

    def get_train_dataloader(self):
        return self.train_dataset.data_loader(method="fork")


def dataset_of(workers: int) -> StreamingDataset:
    options = StreamOptions(batch_size=8, shuffle=True, columns=["row"])
    return StreamingDataset(index_of(BLOCKS), Numbers(BLOCKS), options, num_workers=workers)


def train(
    kind: type[Trainer],
    folder: str,
    dataset: object,
    *,
    resume: str | None = None,
    **settings: object,
) -> Seen:
    """The model of a fit."""
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        per_device_train_batch_size=8,
        report_to=[],
        disable_tqdm=True,
        **{"save_strategy": "no", "num_train_epochs": 2, **settings},
    )
    model = Seen()
    kind(
        model,
        arguments,
        train_dataset=dataset,
        data_collator=default_collate if kind is StreamTrainer else None,
    ).train(resume_from_checkpoint=resume)
    return model


def train_on_rank(rank: int, world_size: int, port: int, folder: str) -> None:
    """Two epochs in the supported way, with workers and without; what the unsupported one says."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tell_rank(rank, world_size, port)
    out: dict[str, object] = {"steps": len(dataset_of(0))}
    for workers in (0, 2):
        out[f"workers={workers}"] = train(StreamTrainer, folder, dataset_of(workers)).rows
    saved = {"save_strategy": "steps", "save_steps": 3, "num_train_epochs": 2}
    out["saved"] = train(StreamTrainer, f"{folder}/saved", dataset_of(0), **saved).rows
    out["resumed"] = train(
        StreamTrainer,
        f"{folder}/saved",
        dataset_of(0),
        resume=f"{folder}/saved/checkpoint-3",
        **saved,
    ).rows
    try:
        train(Trainer, folder, dataset_of(0))
    except SettingsError as error:
        out["plain"] = str(error)
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(out))
    leave_group()
