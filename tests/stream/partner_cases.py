"""What the processes of the tests of partners run; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import os
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch.distributed as dist
from fault_cases import join_group
from lost_process_cases import wait_until
from rank_processes import process_group
from stream_cases import Numbers, index_of
from torch.distributed.device_mesh import init_device_mesh

import headrace
from headrace.errors import CorruptShard, StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.source import StreamSource
from headrace.stream.ranks.topology import Topology, resolve_topology
from headrace.stream.workers.options import WorkerOptions

ROWS = (4000,) * 12
EVERY = sum(ROWS)
BATCH = 500
STOP = 5
BAD = 8


@dataclass(frozen=True)
class Torn:
    """Numbers whose block `BAD` is damaged."""

    def __call__(self, block: int, columns: Any) -> Any:
        if block == BAD:
            raise CorruptShard("its checksum is another", path=f"block {block}", row=17)
        return Numbers(ROWS)(block, columns)


def rank_of(data: int) -> Topology:
    """The topology of a mesh of (data, the rest)."""
    mesh = init_device_mesh(
        "cpu", (data, dist.get_world_size() // data), mesh_dim_names=("dp", "tp")
    )
    return resolve_topology(None, mesh, "dp")


def stream_of(
    topology: Topology, read_block: Any = None, *, workers: int = 0, **settings: Any
) -> Any:
    settings = {"batch_size": BATCH, "shuffle": True, "memory_bytes": 1 << 20, **settings}
    source = StreamSource(index_of(ROWS), read_block or Numbers(ROWS), StreamOptions(**settings))
    return source.stream(workers=WorkerOptions(workers=workers), topology=topology)


def real(batch: Any) -> list[int]:
    return [int(row) for row in batch["row"][batch["valid"]]]


def negated(batch: Any) -> Any:
    batch["row"] = -batch["row"]
    return batch


def in_step(batches: Any, take: Callable[[Any], Any]) -> list[Any]:
    """Take each batch once all processes have it, as a model's collectives make them."""
    taken = []
    for batch in batches:
        taken.append(take(batch))
        dist.barrier()
    return taken


def overwritten(batch: Any) -> list[int]:
    rows = real(batch)
    batch["row"].zero_()
    return rows


def share_passes(process: int, processes: int, folder: str) -> None:
    """Passes of two replicas of two processes, whole and in part, and of one replica of four."""
    warnings.simplefilter("ignore")
    told: dict[str, Any] = {}

    def note(name: str, stream: Any, rows: list[list[int]]) -> None:
        told[name] = rows
        told[f"{name} blocks"] = stream.stats().blocks_read

    with process_group(process, processes, folder):
        pairs = rank_of(2)
        told["rank"] = pairs.rank
        stream = stream_of(pairs)
        next(iter(stream))  # a look on every process
        note("epoch 0", stream, in_step(stream, overwritten))
        stream.set_epoch(1)
        note("begun", stream, in_step(islice(stream, STOP), real))
        state = json.loads(json.dumps(stream.state_dict()))
        told["state"] = state

        # one of two leaves early, and the other reads to the end
        alone = stream_of(pairs)
        rows = in_step(islice(alone, STOP), real)
        if process % 2:
            rows += [real(batch) for batch in alone_from(alone, rows)]
        told["left early"] = rows
        dist.barrier()

        pinned = stream_of(pairs, device="cpu", prefetch_blocks=1)
        note("prefetched", pinned, in_step(pinned, overwritten))
        several = stream_of(pairs, workers=1, transform=negated)
        note("workers", several, in_step(several, lambda batch: [-row for row in real(batch)]))
        several.close()
        for name, columns in (("arrow", ["row"]), ("rows", None)):
            other = stream_of(pairs, batch_format=name, columns=columns)
            note(name, other, in_step(other, rows_of))

        resumed = stream_of(rank_of(1), batch_size=BATCH * 2)
        resumed.load_state_dict(state)
        note("one replica", resumed, in_step(resumed, real))
        again = stream_of(pairs)
        again.load_state_dict(state)
        note("rest", again, in_step(again, real))

        torn = stream_of(pairs, Torn())
        try:
            told["torn batches"] = len(in_step(torn, real))
        except StreamError as error:
            told["torn"] = [type(error).__name__, str(error)]
        except CorruptShard as error:
            told["torn"] = [type(error).__name__, error.row]
    Path(folder, f"process-{process}.json").write_text(json.dumps(told))


def alone_from(stream: Any, rows: list[list[int]]) -> Any:
    """The batches after those, from the same pass begun again."""
    return islice(iter(stream), len(rows), None)


def rows_of(batch: Any) -> list[int]:
    if isinstance(batch, list):
        return [row["row"] for row in batch if row["valid"]]
    return batch.filter(batch["valid"])["row"].to_pylist()


def kill_one(process: int, processes: int, folder: str, who: str) -> None:
    """A pass of which the reader or its partner is killed in the middle; what the others are told."""
    log = join_group(process, processes, folder)
    topology = rank_of(1)
    stream = stream_of(topology)
    batches = iter(stream)
    told: dict[str, Any] = {"error": "", "kind": "", "pid": os.getpid(), "batches": 0}
    reads = False
    try:
        for number, _ in enumerate(batches):
            told["batches"] += 1
            dist.barrier()
            reads = stream.stats().blocks_read > 0
            if number == STOP and reads == (who == "reader"):
                Path(folder, "killed").write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
            if number == STOP:
                wait_until(Path(folder, "killed").exists)
    except (headrace.HeadraceError, RuntimeError) as error:
        told |= {"error": str(error), "kind": type(error).__name__}
        told["gone"] = getattr(error, "pid", None)
    told |= {"reads": reads, "log": log.lines}
    Path(folder, f"process-{process}.json").write_text(json.dumps(told))
    os._exit(0)
