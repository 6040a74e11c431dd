"""What the ranks of the counted jobs run, a function for each trainer; imported by name, so that a child finds it.

A job has two lives. The first saves a checkpoint after step `SAVED`. There it stops, or it goes on until its last rank
is killed with the rows of step `KILLED`. The second goes on from the checkpoint to the end of the epoch.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist
from rank_processes import leave_group
from script_processes import tell_rank
from torch.nn.parallel import DistributedDataParallel

import headrace

ROWS = 149  # the last of 13 steps has five rows, so that each of three ranks has one
STEP_ROWS = 12
SAVED, KILLED = 5, 7
ORDER: dict[str, Any] = {"shuffle": True, "seed": 5, "lanes": 12, "shuffle_rows": 48}
WORDS = 50  # a text names its row by two words


@dataclass(frozen=True, kw_only=True)
class Life:
    """folder: of the job. ends: how; "epoch": with the epoch."""

    folder: Path
    rank: int
    ranks: int
    workers: int
    ends: Literal["stop", "kill", "epoch"]

    @property
    def batch_size(self) -> int:
        """Of a rank."""
        return STEP_ROWS // self.ranks

    @property
    def resumes(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self.ends == "epoch"

    def stops_at(self, step: int) -> bool:
        """Whether the loop is left after a step."""
        return self.ends == "stop" and step == SAVED

    def stream(self, **settings: Any) -> Any:
        """The stream of this rank; its workers run a transform."""
        return headrace.open(self.folder / "rows").stream(
            "train",
            **{
                "batch_size": self.batch_size,
                "workers": self.workers,
                **(
                    {"transform": as_it_is, "multiprocessing_context": "fork"}
                    if self.workers
                    else {}
                ),
                **ORDER,
                **settings,
            },
        )

    def torch_dataset(self) -> Any:
        """The dataset of this rank."""
        return headrace.open(self.folder / "rows").torch_dataset(
            "train", batch_size=self.batch_size, num_workers=self.workers, **ORDER
        )


class Notes:
    """The rows that this rank was given, a line for each step, kept also by a process that is killed."""

    def __init__(self, life: Life) -> None:
        self.step = SAVED if life.resumes else 0
        self._life = life
        path = life.folder / f"{'second' if life.resumes else 'first'}-{life.rank}.jsonl"
        self._file = path.open("w")

    def add(self, rows: list[int]) -> None:
        """Note the rows of the next step; the last rank of a life that is killed dies with them."""
        life = self._life
        self.step += 1
        print(json.dumps([self.step, rows]), file=self._file, flush=True)
        if life.ends == "kill" and life.rank == life.ranks - 1 and self.step == KILLED:
            os.kill(os.getpid(), signal.SIGKILL)


def write_data(folder: Path) -> None:
    """Shards of unequal sizes: rows with a number, a value and a text; and packed bins of the same numbers."""
    borders = [0, 1, 40, 40 + 13, 90, 120, ROWS]
    for name in ("rows", "bins"):
        (folder / name / "train").mkdir(parents=True)
    for number, (first, stop) in enumerate(pairwise(borders)):
        rows = range(first, stop)
        table = {
            "row": pa.array(rows, pa.int64()),
            "x": pa.array([row / ROWS for row in rows], pa.float32()),
            "text": [f"{row // WORDS} {row % WORDS} yes" for row in rows],
        }
        bins = {
            "input_ids": pa.array([[row, 1, 2, row, 3] for row in rows], pa.list_(pa.int32())),
            "loss_mask": pa.array([[1, 1, 0, 1, 0]] * len(rows), pa.list_(pa.uint8())),
            "seq_start_id": pa.array([[0, 3]] * len(rows), pa.list_(pa.int32())),
        }
        for name, columns in (("rows", table), ("bins", bins)):
            alignment = {"headrace.loss_mask_alignment": "shift_left"}
            table_of = pa.table(columns).replace_schema_metadata(alignment)
            path = folder / name / "train" / f"part-{number}.parquet"
            pq.write_table(table_of, path, row_group_size=10)


def as_it_is(batch: Any) -> Any:
    """A transform, so that workers have something to do."""
    return batch


def real(batch: Any) -> list[int]:
    """The numbers of the rows that fill nothing up."""
    rows = batch["row"][batch["valid"]] if "valid" in batch else batch["row"]
    return rows.tolist()


def saved_once(life: Life, state: Any) -> None:
    """Rank 0 writes the state, which is the same on all."""
    if life.rank == 0:
        (life.folder / "state.new").write_text(json.dumps(state))
        os.replace(life.folder / "state.new", life.folder / "state.json")


def restored(life: Life, stream: Any) -> Any:
    """The stream, which goes on from the checkpoint if there is one."""
    if life.resumes:
        stream.load_state_dict(json.loads((life.folder / "state.json").read_text()))
    return stream


def trained(
    life: Life, notes: Notes, batches: Iterable[Any], state_after: Callable[[int], Any]
) -> None:
    """A loop of one's own with DDP. state_after: takes the number of batches of this life."""
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for count, batch in enumerate(batches, start=1):
        notes.add(real(batch))
        optimizer.zero_grad()
        model(batch["x"][:, None]).square().mean().backward()
        optimizer.step()
        if notes.step == SAVED:
            saved_once(life, state_after(count))
        if life.stops_at(notes.step):
            break


def ddp(life: Life, notes: Notes) -> None:
    """A stream in a loop of one's own."""
    dist.init_process_group("gloo")
    stream = restored(life, life.stream())
    trained(life, notes, stream, lambda _: stream.state_dict())


def data_loader(life: Life, notes: Notes) -> None:
    """A plain DataLoader, whose batches the loop counts."""
    dist.init_process_group("gloo")
    dataset = restored(life, life.torch_dataset())
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=life.workers)
    trained(life, notes, loader, dataset.state_after)


def stateful(life: Life, notes: Notes) -> None:
    """torchdata's loader, with the part of its state that is for any ranks."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    dist.init_process_group("gloo")
    dataset = restored(life, life.torch_dataset())
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=life.workers)
    trained(life, notes, loader, lambda _: headrace.stream_state(loader.state_dict()))


def lightning(life: Life, notes: Notes) -> None:
    """Lightning's fit, saved by a callback."""
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning_ranks import on_ranks

    from headrace.lightning import HeadraceDataModule

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any) -> Any:
            notes.add(real(batch))
            return self.layer(batch["x"][:, None]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.001)

    class Saving(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if notes.step == SAVED:
                trainer.save_checkpoint(life.folder / "saved.ckpt")
            if life.stops_at(notes.step):
                trainer.should_stop = True

    options = {name: value for name, value in ORDER.items() if name not in ("shuffle", "seed")}
    data = HeadraceDataModule(
        life.folder / "rows",
        batch_size=life.batch_size,
        num_workers=life.workers,
        seed=ORDER["seed"],
        columns=["row", "x"],
        options=options,
    )
    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[Saving()],
        **dict.fromkeys(quiet, False),
        **on_ranks(),
    )
    path = life.folder / "saved.ckpt" if life.resumes else None
    trainer.fit(Model(), datamodule=data, ckpt_path=path)


def accelerate(life: Life, notes: Notes) -> None:
    """Accelerate's own checkpoints."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    stream = life.stream()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    model, optimizer, stream = accelerator.prepare(model, optimizer, stream)
    accelerator.register_for_checkpointing(stream)
    if life.resumes:
        accelerator.load_state(life.folder / "saved")
    for batch in stream:
        notes.add(real(batch))
        optimizer.zero_grad()
        accelerator.backward(model(batch["x"][:, None]).square().mean())
        optimizer.step()
        if notes.step == SAVED:
            accelerator.save_state(life.folder / "saved")
            accelerator.wait_for_everyone()
        if life.stops_at(notes.step):
            break


def _scored(batch: Any) -> Any:
    return {"row": batch["row"], "labels": batch["x"], "valid": batch["valid"]}


def hugging_face(life: Life, notes: Notes) -> None:
    """The Trainer of transformers."""
    from hf_cases import Score, StopAt, StreamTrainer, arguments_of

    class Noting(Score):
        def forward(self, row: Any, labels: Any) -> Any:
            notes.add(row.tolist())
            return super().forward(row, labels)

    settings = {
        "num_train_epochs": 1,
        "save_strategy": "steps",
        "save_steps": SAVED,
        "per_device_train_batch_size": life.batch_size,
    }
    trainer = StreamTrainer(
        Noting(),
        arguments_of(str(life.folder / "out"), **settings),
        train_dataset=life.stream(columns=["row", "x"], transform=_scored),
        callbacks=[StopAt(SAVED)] if life.ends == "stop" else [],
    )
    trainer.train(resume_from_checkpoint=_saved_by(life))


def sft(life: Life, notes: Notes) -> None:
    """TRL's SFTTrainer, which tokenises the texts of each batch."""
    from hf_cases import StopAt, language_model, trl_arguments, word_tokenizer
    from trl import SFTConfig, SFTTrainer

    from headrace.trainers.hf import HeadraceTrainerMixin

    tokenizer = word_tokenizer()
    first = tokenizer.convert_tokens_to_ids("0")

    class Noting(HeadraceTrainerMixin, SFTTrainer):
        def compute_loss(self, model: Any, inputs: Any, *given: Any, **more: Any) -> Any:
            words = (inputs["input_ids"][:, :2] - first).tolist()
            notes.add([fifties * WORDS + ones for fifties, ones in words])
            return super().compute_loss(model, inputs, *given, **more)

    trainer = Noting(
        language_model(attention_dropout=0.0),
        args=trl_arguments(
            SFTConfig,
            str(life.folder / "out"),
            save_strategy="steps",
            save_steps=SAVED,
            per_device_train_batch_size=life.batch_size,
        ),
        train_dataset=life.stream(columns=["text"], batch_format="rows"),
        processing_class=tokenizer,
        callbacks=[StopAt(SAVED)] if life.ends == "stop" else [],
    )
    trainer.train(resume_from_checkpoint=_saved_by(life))


def _saved_by(life: Life) -> str | None:
    return str(life.folder / "out" / f"checkpoint-{SAVED}") if life.resumes else None


def torchtitan(life: Life, notes: Notes) -> None:
    """The loader for torchtitan, over a stand-in of its base class where it is not installed."""
    import torch.distributed.checkpoint as dcp
    from titan_modules import Configs, module_over

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    with pytest.MonkeyPatch.context() as patch:
        options = {name: ORDER[name] for name in ("lanes", "shuffle_rows")}
        base = None if importlib.util.find_spec("torchtitan") else Configs
        config = module_over(base, patch).HeadraceDataLoader.Config(
            dataset_path=str(life.folder / "bins"),
            infinite=False,
            seed=ORDER["seed"],
            global_batch_size=STEP_ROWS,
            options=options,
        )
        loader = config.build(
            dp_world_size=life.ranks,
            dp_rank=life.rank,
            tokenizer=None,
            seq_len=8,
            local_batch_size=life.batch_size,
        )
        if life.resumes:
            dcp.load({"dataloader": loader}, checkpoint_id=life.folder / "saved")
        for inputs, labels in loader:
            tokens = inputs["input"][(labels != -100).any(dim=1), 0]
            notes.add(tokens.tolist())
            model(labels[:, :1].float()).mean().backward()
            if notes.step == SAVED:
                dcp.save({"dataloader": loader}, checkpoint_id=life.folder / "saved")
            if life.stops_at(notes.step):
                break


TRAINERS: dict[str, Callable[[Life, Notes], None]] = {
    "DDP": ddp,
    "DataLoader": data_loader,
    "StatefulDataLoader": stateful,
    "Lightning": lightning,
    "Accelerate": accelerate,
    "Trainer": hugging_face,
    "SFTTrainer": sft,
    "torchtitan": torchtitan,
}


def live(
    rank: int, ranks: int, port: int, trainer: str, folder: str, workers: int, ends: Any
) -> None:
    """One rank of one life of a job."""
    warnings.simplefilter("ignore")
    sys.stdout = sys.stderr  # trainers print, and the table is on the other one
    torch.set_num_threads(1)
    os.environ["HOME"] = f"{folder}/home"  # indexes of plain shards are kept below it
    tell_rank(rank, ranks, port)
    os.environ["TORCHELASTIC_RUN_ID"] = "headrace"
    life = Life(folder=Path(folder), rank=rank, ranks=ranks, workers=workers, ends=ends)
    TRAINERS[trainer](life, Notes(life))
    if dist.is_initialized():
        leave_group()
