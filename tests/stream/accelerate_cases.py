"""What the ranks of the Accelerate test run; imported by name, so that spawn finds it."""

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


def deliver_on_rank(rank: int, world_size: int, port: int, folder: str) -> None:
    """The rows one rank receives when a stream, no loader, or a loader is prepared."""
    warnings.simplefilter("ignore")
    names = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    os.environ.update({name: str(value) for name, value in names.items()})
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    stream = StreamLoader(index_of(ROWS), Numbers(ROWS), StreamOptions(batch_size=5, shuffle=True, lanes=8))
    model, prepared = accelerator.prepare(model, stream)
    unprepared = loader_of(dataset_of(2))
    out = {
        "prepared stream": [row for batch in prepared for row in real_rows(batch)],
        "unprepared loader": [row for batch in unprepared for row in real_rows(batch)],
        "same stream": prepared is stream,
    }
    loader = accelerator.prepare(loader_of(dataset_of(0, columns=["row"])))
    out["prepared loader"] = [row for batch in loader for row in real_rows(batch)]
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(out))
    del model, loader
    accelerator.wait_for_everyone()
    torch.distributed.destroy_process_group()
