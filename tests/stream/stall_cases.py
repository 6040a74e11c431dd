"""What ranks run in the tests of stalls; imported by name, so that spawn finds it."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from fault_cases import join_group
from stream_cases import Numbers, index_of

from headrace.stream.loader import StreamLoader
from headrace.stream.options import StreamOptions
from headrace.stream.torch import StreamingDataset

ROWS = (4096, 4096, 4096, 4096)


@dataclass(frozen=True)
class SlowBlocks:
    """Numbers of which one block takes long to read."""

    block: int
    seconds: float

    def __call__(self, block, columns):
        if block == self.block:
            time.sleep(self.seconds)
        return Numbers(ROWS)(block, columns)


def stall_on_rank(rank: int, world_size: int, folder: str) -> None:
    """Two passes with a collective at every batch: rank 1 waits for a slow block, itself and then in a worker."""
    log = join_group(rank, world_size, folder)
    out = {}
    settings = StreamOptions(batch_size=1024, stall_seconds=1.0, lanes=2)
    index, read_block = index_of(ROWS), SlowBlocks(2, 3.5)
    stream = StreamLoader(index, read_block, settings)
    dataset = StreamingDataset(index, read_block, settings, num_workers=1)
    for name, batches in (("threads", stream), ("workers", dataset.data_loader(method="fork"))):
        log.lines.clear()
        for _ in batches:
            dist.all_reduce(torch.ones(1))
        out[name] = list(log.lines)
        dist.barrier()
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(out))
    dist.barrier()
    dist.destroy_process_group()
