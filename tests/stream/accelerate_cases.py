"""What the ranks of the Accelerate test run; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import torch
from accelerate import Accelerator
from stream_cases import Numbers, index_of
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
    names = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in names.items()})
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
    loader = accelerator.prepare(loader_of(dataset_of(0, columns=["row"])))
    out["prepared loader"] = [real_rows(batch) for batch in loader]
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(out))
    del model, loader
    accelerator.wait_for_everyone()
    torch.distributed.destroy_process_group()
