"""What the processes of the tests of lost processes run; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from fault_cases import join_group
from stream_cases import Numbers, index_of

import headrace
import headrace.windows
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.loader.torch_dataset import StreamingDataset
from headrace.stream.ranks.topology import Topology
from waits import wait_until

ROWS = (40,) * 6
BEFORE = 3


@dataclass(frozen=True)
class Broken:
    """Numbers of which a late block cannot be read, once this file exists; None: all can."""

    when: Path | None

    def __call__(self, block, columns):
        if self.when is not None and block == 4:
            wait_until(self.when.exists)
            raise OSError("the disk has gone")
        return Numbers(ROWS)(block, columns)


def write_pid(path: Path) -> None:
    """Write this process's id to a file that is there only once it is whole."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(str(os.getpid()))
    part.replace(path)


def lose_one(
    process: int,
    processes: int,
    folder: str,
    how: str,
    ranks: int,
    workers: int,
    series: str | None = None,
) -> None:
    """A pass of which the last process sees half: its disk breaks, or it is killed. What the others are told.

    ranks: how many share out the rows; the processes of one of them are one replica. series: read windows of this run.
    """
    log = join_group(process, processes, folder)
    last = process == processes - 1
    topology = Topology(rank=process * ranks // processes, world_size=ranks)
    options = StreamOptions(
        batch_size=10, prefetch_blocks=1, shuffle_rows=10, lanes=ranks * max(1, workers)
    )
    begun = Path(folder, "begun")
    index, read_block = index_of(ROWS), Broken(begun if last and how == "broken" else None)
    if series is not None:
        train = headrace.windows.open(series, "train", input_length=5, output_length=2)
        batches = train.stream(batch_size=4, batch_format="numpy", topology=topology)
    elif workers:
        dataset = StreamingDataset(
            index, read_block, options, num_workers=workers, topology=topology
        )
        batches = dataset.data_loader(method="fork")
    else:
        batches = StreamLoader(index, read_block, options, topology=topology)
    out = {"batches": 0, "error": "", "kind": ""}
    try:
        for _ in batches:
            out["batches"] += 1
            if out["batches"] == BEFORE and how == "killed":
                dist.barrier()  # all are in the midst of their passes
                if last:
                    os.kill(os.getpid(), signal.SIGKILL)
            if out["batches"] == BEFORE and not last:
                begun.touch()
                wait_until(
                    lambda: any(
                        words in line
                        for line in log.lines
                        for words in ("stopped the stream", "has gone")
                    )
                )
    except headrace.HeadraceError as error:
        out |= {"error": str(error), "kind": type(error).__name__}
    Path(folder, f"process-{process}.json").write_text(json.dumps(out | {"log": log.lines}))


def claim_in_replicas(process: int, processes: int, folder: str) -> None:
    """distribution="dynamic", two processes to a rank."""
    join_group(process, processes, folder)
    options = StreamOptions(batch_size=10, distribution="dynamic")
    out = {}
    for ranks in (2, 1):
        topology = Topology(rank=process * ranks // processes, world_size=ranks)
        rows = []
        try:
            for batch in StreamLoader(index_of(ROWS), Numbers(ROWS), options, topology=topology):
                rows += batch["row"][batch["valid"]].tolist()
            out[ranks] = {"rows": rows, "error": ""}
        except headrace.HeadraceError as error:
            out[ranks] = {"rows": rows, "error": str(error)}
        dist.barrier()
    Path(folder, f"process-{process}.json").write_text(json.dumps(out))
    dist.barrier()
    dist.destroy_process_group()
