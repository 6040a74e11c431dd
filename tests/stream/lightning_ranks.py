"""Lightning's fits in the processes of torchrun's groups, one group after another, for tests beside this one."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from rank_processes import TIMEOUT, leave_group

Group = tuple[
    str, int, int, Mapping[str, Mapping[str, Any]]
]  # name, world size, port, jobs by title


def on_ranks() -> dict[str, Any]:
    """Settings of a trainer that takes its ranks from the environment."""
    return {
        "strategy": "ddp",
        "devices": int(os.environ["LOCAL_WORLD_SIZE"]),
        "plugins": [TorchElasticEnvironment()],
    }


def fits_of_rank(
    rank: int,
    folder: str,
    groups: Sequence[Group],
    fitted: Callable[[Mapping[str, Any]], dict[str, Any]],
) -> None:
    """One process: every group it belongs to, as torchrun starts it. What `fitted` gives of each job goes to a file.

    All jobs of a group must begin its process group, which ends with them.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    record: dict[str, dict[str, Any]] = {}
    for name, world_size, port, jobs in groups:
        if rank >= world_size:
            continue
        names = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": world_size,
            "LOCAL_WORLD_SIZE": world_size,
        }
        os.environ.update({each: str(value) for each, value in names.items()})
        os.environ.update(
            {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_RUN_ID": "headrace",
            }
        )
        _await_turn(rank, Path(folder, f"{name}.turn"))
        record[name] = {}
        for title, job in jobs.items():
            record[name][title] = fitted(job)
            torch.distributed.barrier()
        leave_group()
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(record))


def _await_turn(rank: int, turn: Path) -> None:
    """Wait until rank 0, which is in every group, has come to this one.

    A client of torch's TCPStore that is early tries again after ever longer pauses, of up to 90 seconds: a rank that
    is only in a later group would keep the others waiting.
    """
    if rank == 0:
        turn.touch()
        return
    until = time.monotonic() + TIMEOUT.total_seconds()
    while not turn.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"rank {rank}: rank 0 has not come to {turn.stem}")
        time.sleep(0.02)
