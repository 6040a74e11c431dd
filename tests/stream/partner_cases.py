"""What the processes of the tests of partners run; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import os
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from fault_cases import join_group
from lost_process_cases import write_pid
from rank_processes import process_group
from stream_cases import Numbers, index_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel

import headrace
from headrace.errors import CorruptShard
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.source import StreamSource
from headrace.stream.ranks import group, peers
from headrace.stream.ranks.topology import Topology, resolve_topology
from headrace.stream.workers import parcel
from headrace.stream.workers.options import WorkerOptions
from waits import PATIENCE_S, wait_until

ROWS = (1000,) * 12
EVERY = sum(ROWS)
BATCH = 250
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
    topology: Topology,
    read_block: Any = None,
    *,
    workers: int = 0,
    multiprocessing_context: Any = "spawn",
    **settings: Any,
) -> Any:
    settings = {"batch_size": BATCH, "shuffle": True, "memory_bytes": 1 << 18, **settings}
    source = StreamSource(index_of(ROWS), read_block or Numbers(ROWS), StreamOptions(**settings))
    of_workers = WorkerOptions(workers=workers, multiprocessing_context=multiprocessing_context)
    return source.stream(workers=of_workers, topology=topology)


def write_bins(folder: Path) -> None:
    """Bins of three sequences, whose tokens have numbers of their own."""
    folder.mkdir()
    bins = [list(range(100 * number, 100 * number + 9 + number % 3)) for number in range(1, 9)]
    masks = [[1, 1, 0, 1, 0, *[1] * (len(tokens) - 6), 0] for tokens in bins]
    columns = {
        "input_ids": pa.array(bins, pa.list_(pa.int32())),
        "loss_mask": pa.array(masks, pa.list_(pa.uint8())),
        "seq_start_id": pa.array([[0, 3, 5]] * len(bins), pa.list_(pa.int32())),
    }
    pq.write_table(pa.table(columns), folder / "part-0.parquet")


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
    parcel._MOST_BYTES_IN_MESSAGE = 1 << 10
    told: dict[str, Any] = {"pid": os.getpid()}

    def note(name: str, stream: Any, rows: list[list[int]]) -> None:
        told[name] = rows
        told[f"{name} blocks"] = stream.stats().blocks_read

    with process_group(process, processes, folder):
        pairs = rank_of(2)
        told["rank"] = pairs.rank
        stream = stream_of(pairs)
        note("epoch 0", stream, in_step(stream, overwritten))
        batches = iter(stream)  # of epoch 1
        note("begun", stream, in_step(islice(batches, STOP), real))
        told["state"] = state = json.loads(json.dumps(stream.state_dict()))
        if process % 2:  # its partner leaves the pass here
            told["begun"] += [real(batch) for batch in batches]
        batches.close()
        dist.barrier()

        closed = stream_of(pairs)
        batches = iter(closed)
        rows = in_step(islice(batches, STOP), real)
        if closed.stats().blocks_read:
            batches.close()
            closed.close()
        else:
            rows += [real(batch) for batch in batches]
        told["closed"] = rows
        dist.barrier()

        pinned = stream_of(pairs, device="cpu")
        note("a thread that prefetches", pinned, in_step(pinned, overwritten))
        several = stream_of(pairs, workers=1, transform=negated, multiprocessing_context="fork")
        note("workers", several, in_step(several, lambda batch: [-row for row in real(batch)]))
        several.close()
        for name in ("arrow", "rows"):
            other = stream_of(pairs, batch_format=name)
            note(name, other, in_step(other, rows_of))

        resumed = stream_of(rank_of(1), batch_size=BATCH * 2)
        resumed.load_state_dict(state)
        note("one replica", resumed, in_step(resumed, real))
        again = stream_of(pairs)
        again.load_state_dict(state)
        note("the same replicas", again, in_step(again, real))

        told["cut"] = cut_by_torch(folder)
        torn = stream_of(rank_of(1), Torn())
        try:
            for _ in torn:
                time.sleep(0.3 * process)  # the others are in a step when the first meets the block
        except headrace.HeadraceError as error:
            told["torn"] = [type(error).__name__, getattr(error, "row", None), str(error)]
    Path(folder, f"process-{process}.json").write_text(json.dumps(told))


def share_on_machines(process: int, processes: int, folder: str) -> None:
    """A pass of one replica whose processes are on two machines, as far as kernels name themselves."""
    warnings.simplefilter("ignore")
    for module in (group, peers):
        module.boot_id = lambda: f"kernel {process // 2}"
    told: dict[str, Any] = {"pid": os.getpid()}
    with process_group(process, processes, folder):
        stream = stream_of(rank_of(1))
        told["rows"] = in_step(stream, real)
        told["blocks"] = stream.stats().blocks_read
        batches = iter(stream)
        told["begun"] = in_step(islice(batches, STOP), real)
        if (
            process == processes - 1
        ):  # its partner goes on alone, and the other machine does not mind
            batches.close()
        else:
            told["begun"] += [real(batch) for batch in batches]
        dist.barrier()  # no process is in the pass any more
        told["seed"] = refused({"seed": int(process == 1)})
    Path(folder, f"process-{process}.json").write_text(json.dumps(told))


def refused(settings: dict[str, Any]) -> str:
    """What partners are told that cannot read the same."""
    try:
        for _ in stream_of(rank_of(1), **settings):
            pass
    except headrace.HeadraceError as error:
        return str(error)
    return ""


def cut_by_torch(folder: str) -> list[list[list[int]]]:
    """What two processes of context parallelism have of each batch of bins: of each token its number, label, and place
    in its sequence, whole and in both parts together."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    form = headrace.PackedBatches(
        form="padded", pad_to_multiple_of=4, loss_mask_alignment="shift_left"
    )
    stream = headrace.open(Path(folder, "packed")).stream(
        batch_size=2, shuffle=True, packed=form, mesh=mesh, data_dims="dp"
    )
    told = []
    for batch in stream:
        buffers = [batch[name] for name in ("input_ids", "labels", "position_ids")]
        whole = torch.stack(buffers, -1).flatten(0, 1).tolist()
        with context_parallel(mesh["cp"], buffers=buffers, buffer_seq_dims=[1, 1, 1]):
            part = torch.stack(buffers, -1).flatten(0, 1).tolist()
        parts: list[Any] = [None, None]
        dist.all_gather_object(parts, part, group=mesh["cp"].get_group())
        told.append([sorted(whole), sorted(parts[0] + parts[1])])
    return told


def rows_of(batch: Any) -> list[int]:
    if isinstance(batch, list):
        return [row["row"] for row in batch if row["valid"]]
    return batch.filter(batch["valid"])["row"].to_pylist()


def _is_dead(note: Path) -> bool:
    """Whether the process whose id is in a file has ended: it says so before it is killed."""
    if not note.exists():
        return False
    try:
        state = Path("/proc", note.read_text(), "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter if it goes while it is read
        return True
    return state == "Z"


def kill_one(process: int, processes: int, folder: str, who: str) -> None:
    """A pass of which the reader or a partner is killed in the middle; what the others are told."""
    log = join_group(process, processes, folder)
    stream = stream_of(rank_of(1))
    batches = iter(stream)
    told: dict[str, Any] = {"error": "", "kind": "", "pid": os.getpid(), "gone": None}
    try:
        for _ in islice(batches, STOP):
            pass
        reads = stream.stats().blocks_read > 0
        Path(folder, f"{'reader' if reads else 'partner'}-{process}").touch()
        wait_until(lambda: len(list(Path(folder).glob("*er-*"))) == processes)
        if min(Path(folder).glob(f"{who}-*")).name == f"{who}-{process}":
            write_pid(Path(folder, "killed"))
            os.kill(os.getpid(), signal.SIGKILL)
        wait_until(lambda: _is_dead(Path(folder, "killed")))
        told["rest"] = len(list(batches))
        until = time.monotonic() + PATIENCE_S
        while (
            time.monotonic() < until
        ):  # the death is noticed by a thread, which may not have run yet
            next(iter(stream))
            time.sleep(0.1)
    except headrace.HeadraceError as error:
        told |= {"error": str(error), "kind": type(error).__name__}
        told["gone"] = getattr(error, "pid", None)
    told["log"] = log.lines
    Path(folder, f"process-{process}.json").write_text(json.dumps(told))
    os._exit(0)
