"""What the ranks of the Accelerate test run; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from datasets import IterableDataset as HuggingFace
from datasets.distributed import split_dataset_by_node
from script_processes import tell_rank
from stream_cases import Numbers, index_of
from torch.utils.data import DataLoader, TensorDataset
from torch_cases import ROWS, dataset_of, loader_of, real_rows

from headrace.errors import SettingsError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.tabular.dataset import PipelineIterableDataset


def new_stream(batch_size: int = 5) -> StreamLoader:
    options = StreamOptions(batch_size=batch_size, shuffle=True, lanes=8)
    return StreamLoader(index_of(ROWS), Numbers(ROWS), options)


def deliver_on_rank(rank: int, world_size: int, port: int, folder: str) -> None:
    """The rows one rank receives when a stream, no loader, or a loader is prepared; and after a stop and a resume."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tell_rank(rank, world_size, port)
    accelerator = Accelerator(cpu=True)
    stream = new_stream()
    model, prepared = accelerator.prepare(torch.nn.Linear(1, 1), stream)
    unprepared = loader_of(dataset_of(2))
    out = {
        "prepared stream": [real_rows(batch) for batch in prepared],
        "unprepared loader": [real_rows(batch) for batch in unprepared],
        "same stream": prepared is stream,
    }
    stopped = accelerator.prepare(new_stream())
    out["before"] = [real_rows(batch) for _, batch in zip(range(3), stopped, strict=False)]
    state = stopped.state_dict()
    for title, batch_size in (("rest", 5), ("rest in other batches", 2)):
        resumed = accelerator.prepare(new_stream(batch_size))
        resumed.load_state_dict(json.loads(json.dumps(state)))
        out[title] = [real_rows(batch) for batch in resumed]
    out["prepared loader"] = refused(
        lambda: list(accelerator.prepare(loader_of(dataset_of(0, columns=["row"]))))
    )
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(out))
    out |= traps(accelerator)
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(out))
    del model
    accelerator.wait_for_everyone()
    torch.distributed.destroy_process_group()


def traps(accelerator: Accelerator) -> dict[str, object]:
    """What the documentation warns of: each as rows of this rank's batches, or as the number of values gathered."""
    out: dict[str, object] = {}
    for title, even in (("even", True), ("uneven", False)):
        numbers = DataLoader(TensorDataset(torch.arange(23)), batch_size=5)
        out[title] = [
            batch.tolist() for (batch,) in prepare_data_loader(numbers, even_batches=even)
        ]
    batch = list(new_stream())[-1]
    out["gathered for metrics"] = len(accelerator.gather_for_metrics(batch["row"]))
    out["real"] = int(accelerator.gather(batch["valid"]).sum())
    try:
        list(prepare_data_loader(loader_of(dataset_of(0, columns=["row"])), dispatch_batches=False))
    except TypeError as error:
        out["no dispatch"] = str(error)
    rows = pa.table({"row": list(range(49))})
    for title, choice in (
        ("rows, dispatched", {"dispatch_batches": True, "put_on_device": True}),
        ("rows, cut again", {"dispatch_batches": False}),
        ("rows, split", {"dispatch_batches": True, "put_on_device": True, "split_batches": True}),
    ):
        single = DataLoader(PipelineIterableDataset({}, dataframe=rows), batch_size=8)
        out[title] = refused(
            lambda loader=single, kept=choice: list(prepare_data_loader(loader, **kept))
        )
    single = DataLoader(PipelineIterableDataset({}, dataframe=rows), batch_size=8)
    out["rows, as they are"] = [real_rows(batch) for batch in single]
    split = split_dataset_by_node(
        HuggingFace.from_generator(lambda: iter(PipelineIterableDataset({}, dataframe=rows))),
        rank=accelerator.process_index,
        world_size=2,
    )
    out["split by node"] = refused(lambda: list(split))
    accumulating = Accelerator(cpu=True, gradient_accumulation_steps=4)
    for title, made in (
        ("stream", new_stream()),
        ("loader", dataset_of(0).data_loader()),
        ("workers", dataset_of(2).data_loader(method="fork")),
    ):
        out[f"windows of a {title}"] = windows = []
        for _ in accumulating.prepare(made) if title == "stream" else made:
            with accumulating.accumulate():
                windows.append(accumulating.sync_gradients)
        out[f"left of a {title}"] = accumulating.gradient_state.in_dataloader
    return out


def refused(read: Callable[[], object]) -> str:
    """What a loop that must not begin is told."""
    try:
        read()
    except SettingsError as error:
        return str(error)
    return ""
