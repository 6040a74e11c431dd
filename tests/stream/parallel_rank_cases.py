"""What the processes of the tensor-parallel tests run; imported by name, so that a child finds it."""

from __future__ import annotations

import json
import warnings
from itertools import islice
from pathlib import Path

import torch.distributed as dist
from rank_processes import process_group
from stream_cases import Numbers, index_of
from torch.distributed.device_mesh import init_device_mesh
from torch_cases import ROWS, dataset_of, loader_of, real_rows

from headrace.errors import StreamError
from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader
from headrace.stream.ranks.topology import Topology, resolve_topology

MICRO_BATCHES = 3  # to a step of the optimizer
STOP = 2  # steps before the checkpoint


def stream_of(topology: Topology, batch_size: int = 4) -> StreamLoader:
    options = StreamOptions(batch_size=batch_size, shuffle=True, lanes=8)
    return StreamLoader(index_of(ROWS), Numbers(ROWS), options, topology=topology)


def replica(tensor: int) -> Topology:
    """Which replica of the model this process belongs to, `tensor` processes making one."""
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size() // tensor, tensor), mesh_dim_names=("dp", "tp")
    )
    topology = resolve_topology(None, mesh, "dp")
    assert topology == Topology(
        rank=mesh["dp"].get_local_rank(), world_size=mesh["dp"].size(), partners=tensor
    )
    return topology


def forgotten() -> str:
    """What a stream says that is not told of the mesh."""
    stream = StreamLoader(
        index_of(ROWS), Numbers(ROWS), StreamOptions(batch_size=4, shuffle=True, lanes=8)
    )
    try:
        next(iter(stream))
    except StreamError as error:
        return str(error)
    return ""


def deliver_on_process(process: int, folder: str, processes: int) -> None:
    """The rows of micro batches under pairs of tensor-parallel processes, and of the rest of the epoch under others."""
    warnings.simplefilter("ignore")
    record: dict[str, object] = {}
    with process_group(process, processes, folder):
        pairs = replica(2)
        stream = stream_of(pairs)
        batches = iter(stream)
        record["before"] = [real_rows(batch) for batch in islice(batches, STOP * MICRO_BATCHES)]
        state = json.loads(json.dumps(stream.state_dict()))
        record["after"] = [real_rows(batch) for batch in batches]
        for title, tensor, batch_size in (
            ("same", 2, 4),
            ("no pairs", 1, 2),
            ("one replica", processes, 8),
        ):
            resumed = stream_of(replica(tensor), batch_size)
            resumed.load_state_dict(state)
            record[title] = [real_rows(batch) for batch in resumed]
        record["workers"] = [real_rows(batch) for batch in loader_of(dataset_of(2, topology=pairs))]
        states: list[object] = [None] * processes
        dist.all_gather_object(states, state)
        record["one state"] = states == [state] * processes
        record["replica"] = pairs.rank
        record["forgotten"] = forgotten()
    Path(folder, f"process-{process}.json").write_text(json.dumps(record))
