"""What the ranks of the Accelerate test run; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from script_processes import tell_rank
from stream_cases import Numbers, index_of
from torch.utils.data import DataLoader, TensorDataset
from torch_cases import ROWS, dataset_of, loader_of, real_rows

from headrace.stream.loader import StreamLoader
from headrace.stream.options import StreamOptions


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
        out[title] = [batch.tolist() for (batch,) in prepare_data_loader(numbers, even_batches=even)]
    batch = list(new_stream())[-1]
    out["gathered for metrics"] = len(accelerator.gather_for_metrics(batch["row"]))
    out["real"] = int(accelerator.gather(batch["valid"]).sum())
    try:
        list(prepare_data_loader(loader_of(dataset_of(0, columns=["row"])), dispatch_batches=False))
    except TypeError as error:
        out["no dispatch"] = str(error)
    return out
