"""What ranks run in the tests of stalls; imported by name, so that spawn finds it."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from fault_cases import Said, join_group
from stream_cases import Numbers, index_of

from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.loader.torch_dataset import StreamingDataset
from waits import wait_until

ROWS = (4096, 4096, 4096, 4096)
SLOW = "part-00002.parquet block 0 (decode)"


@dataclass(frozen=True)
class SlowBlocks:
    """Numbers of which one block takes long to read: until these files exist, and some seconds more."""

    block: int
    seconds: float = 0.0
    until: tuple[Path, ...] = ()

    def __call__(self, block, columns):
        if block == self.block:
            wait_until(lambda: all(path.exists() for path in self.until))
            time.sleep(self.seconds)
        return Numbers(ROWS)(block, columns)


def stall_on_rank(rank: int, world_size: int, folder: str) -> None:
    """Two passes with a collective at every batch: rank 1 waits for a slow block, itself and then in a worker.

    The block is slow until every rank has said so.
    """
    log = join_group(rank, world_size, folder)
    out = {}
    settings = StreamOptions(batch_size=1024, stall_seconds=1.0, lanes=2)
    index = index_of(ROWS)
    for name in ("threads", "workers"):
        said = [Path(folder, f"{name}-{each}.said") for each in range(world_size)]
        listener = Said(SLOW, said[rank])
        logging.getLogger("headrace").addHandler(listener)
        read_block = SlowBlocks(2, until=tuple(said))
        if name == "threads":
            batches = StreamLoader(index, read_block, settings)
        else:
            batches = StreamingDataset(index, read_block, settings, num_workers=1).data_loader(
                method="fork"
            )
        log.lines.clear()
        for _ in batches:
            dist.all_reduce(torch.ones(1))
        out[name] = list(log.lines)
        logging.getLogger("headrace").removeHandler(listener)
        dist.barrier()
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(out))
    dist.barrier()
    dist.destroy_process_group()
