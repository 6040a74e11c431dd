"""What the ranks of the dynamic tests run; imported by name, so that spawn finds it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist
from fault_cases import join_group
from stream_cases import Numbers, index_of

from headrace.stream.loader.options import StreamOptions
from headrace.stream.loader.stream_loader import StreamLoader

ROWS = (40, 3, 71, 1, 90, 17, 28, 64, 64, 64, 200, 11, 64, 64)
TOTAL, SLOW = sum(ROWS), 2


def claim_on_rank(rank: int, world_size: int, folder: str) -> None:
    """One rank: an epoch with a slow rank, one with a collective per batch, and one that is stopped and resumed."""
    join_group(rank, world_size, folder)
    options = StreamOptions(batch_size=6, shuffle=True, distribution="dynamic")
    store = dist.distributed_c10d._get_default_store()
    loader = StreamLoader(index_of(ROWS), Numbers(ROWS), options)
    out = {}

    def read(name, *, batches=None, slow=False, lockstep=False):
        out[name] = {"rows": [], "batches": 0}
        for batch in loader:
            real = batch["row"][batch["valid"]].tolist()
            out[name]["rows"] += real
            out[name]["batches"] += 1
            if lockstep:
                dist.all_reduce(
                    torch.ones(1)
                )  # hangs if another rank waits for what this one has yet to do
            if slow:
                store.wait(["the others are done"])  # as slow as can be
            if out[name]["batches"] == batches:
                out[name]["state"] = loader.state_dict()
                break

    read("free", slow=rank == SLOW)
    if store.add("how many are done", 1) == world_size - 1:
        store.set("the others are done", "yes")
    read("lockstep", lockstep=True)
    read("stopped", batches=9)
    loader.load_state_dict(out["stopped"]["state"])
    read("rest", lockstep=True)
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(out))
    dist.barrier()
    dist.destroy_process_group()
