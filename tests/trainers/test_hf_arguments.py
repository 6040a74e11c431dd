"""Arguments of Hugging Face's and TRL's trainers about data: obeyed by a stream, or refused."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs transformers")

from datasets import Dataset
from hf_cases import BATCH, StreamTrainer, arguments_of, score_model, stream_of, write_rows
from transformers import Trainer, TrainingArguments

from headrace.errors import SettingsError, StreamError
from raised import raised

# Of all arguments about data, those that a stream obeys without a check, and why.
OBEYED = {
    "dataloader_pin_memory": "the Trainer moves batches to its device as ever",
    "remove_unused_columns": "decides which columns the model is given",
    "eval_do_concat_batches": "what is done with predictions",
    "batch_eval_metrics": "what is done with predictions",
    "length_column_name": "for train_sampling_strategy='group_by_length' alone",
    "skip_memory_metrics": "not about data",
}
CHECKED = {
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "dataloader_num_workers",
    "accelerator_config",
}
WORDS = (
    "data",
    "batch",
    "group",
    "length",
    "sampl",
    "skip",
    "seed",
    "accelerator_config",
    "column",
)

REFUSED: dict[str, Any] = {
    "auto_find_batch_size": True,
    "dataloader_drop_last": True,
    "dataloader_persistent_workers": True,
    "dataloader_prefetch_factor": 4,
    "dataloader_multiprocessing_context": "spawn",
    "dataloader_in_order": False,
    "ignore_data_skip": True,
    "train_sampling_strategy": "group_by_length",
    "seed": 1,
    "data_seed": 1,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("hf") / "data", 49)


def trainer_of(data: Path, folder: Path, *, stream: dict[str, Any], **settings: Any) -> Any:
    return StreamTrainer(
        score_model(),
        arguments_of(str(folder), **settings),
        train_dataset=stream_of(data, "score", **{"shuffle": True, **stream}),
    )


def test_every_argument_about_data_is_obeyed_checked_or_refused() -> None:
    about_data = {
        field.name for field in fields(TrainingArguments) if any(w in field.name for w in WORDS)
    }
    assert about_data - set(OBEYED) - CHECKED == set(REFUSED)


@pytest.mark.parametrize("name", REFUSED)
def test_an_argument_that_a_stream_does_not_do_is_refused(
    data: Path, tmp_path: Path, name: str
) -> None:
    workers = {"dataloader_num_workers": 2} if name.startswith("dataloader_p") else {}
    with raised(SettingsError, setting=name):
        trainer_of(
            data,
            tmp_path,
            stream={"workers": 2} if workers else {},
            **workers,
            **{name: REFUSED[name]},
        )


@pytest.mark.parametrize("name", ["split_batches", "dispatch_batches", "even_batches"])
def test_what_accelerate_would_do_with_batches_is_refused(
    data: Path, tmp_path: Path, name: str
) -> None:
    config = {name: name != "even_batches"}
    with raised(SettingsError, setting=name):
        trainer_of(data, tmp_path, stream={}, accelerator_config=config)


@pytest.mark.parametrize(
    ("arguments", "stream"),
    [
        ({"seed": 1}, {"seed": 1}),
        ({"seed": 1, "data_seed": 7}, {"seed": 7}),
        ({"seed": 1}, {"shuffle": False}),
        ({"seed": 42}, {"seed": 3}),  # the default, which nobody asked for
        ({"dataloader_drop_last": True}, {"remainder": "drop"}),
        ({"train_sampling_strategy": "sequential"}, {"shuffle": False}),
    ],
)
def test_an_argument_that_the_stream_agrees_with_is_obeyed(
    data: Path, tmp_path: Path, arguments: dict[str, Any], stream: dict[str, Any]
) -> None:
    trainer = trainer_of(data, tmp_path, stream=stream, num_train_epochs=1, **arguments)
    trainer.train()
    steps = 49 // BATCH if "remainder" in stream else -(-49 // BATCH)
    assert trainer.state.global_step == steps


def test_a_sequential_strategy_refuses_a_shuffled_stream(data: Path, tmp_path: Path) -> None:
    with raised(SettingsError, setting="train_sampling_strategy", value="sequential"):
        trainer_of(data, tmp_path, stream={}, train_sampling_strategy="sequential")


def test_an_evaluation_needs_no_seed_of_its_own(data: Path, tmp_path: Path) -> None:
    trainer = StreamTrainer(
        score_model(),
        arguments_of(str(tmp_path), seed=1, dataloader_drop_last=True),
        eval_dataset=stream_of(data, "score"),
    )
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("per_device_train_batch_size", 2 * BATCH), ("dataloader_num_workers", 3)],
)
def test_a_number_that_is_not_the_streams_is_refused(
    data: Path, tmp_path: Path, name: str, value: int
) -> None:
    with raised(SettingsError, setting=name):
        trainer_of(data, tmp_path, stream={}, **{name: value})


def test_a_transform_that_loses_valid_is_refused(data: Path, tmp_path: Path) -> None:
    def scored(batch: Any) -> Any:
        return {"row": batch["row"], "labels": batch["target"]}

    trainer = trainer_of(data, tmp_path, stream={"transform": scored})
    with raised(SettingsError, column="valid", remedy="let the transform keep it"):
        trainer.train()


def rows_of_datasets() -> Any:
    """Rows that the Trainer reads by itself."""
    return Dataset.from_dict({"row": [1] * BATCH, "labels": [0.5] * BATCH})


def test_a_checkpoint_without_the_position_is_refused(data: Path, tmp_path: Path) -> None:
    arguments = arguments_of(str(tmp_path), save_strategy="steps", save_steps=1, max_steps=1)
    Trainer(score_model(), arguments, train_dataset=rows_of_datasets()).train()
    saved = tmp_path / "checkpoint-1"
    with raised(StreamError, path=saved / "trainer_state.json", remedy="HeadraceTrainerMixin"):
        trainer_of(data, tmp_path, stream={}).train(resume_from_checkpoint=str(saved))


def test_without_the_mixin_the_first_batch_says_what_to_write(data: Path, tmp_path: Path) -> None:
    plain = Trainer(
        score_model(),
        arguments_of(str(tmp_path)),
        train_dataset=stream_of(data, "score", shuffle=True),
    )
    with raised(SettingsError, remedy="class StreamTrainer(HeadraceTrainerMixin, Trainer)"):
        plain.train()
