"""A script on several ranks, told of each other as torchrun tells them, in processes that have torch already.

The port of the group is one that a store of ours holds from the beginning, so nothing else can take it.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from rank_processes import run_ranks


def run_script(folder: Path, processes: int, arguments: Sequence[str]) -> str:
    """What all ranks of `torchrun --nproc-per-node PROCESSES ARGUMENTS` print, by rank; raises what one of them raised."""
    store = held_store()
    run_ranks(_run_rank, processes, processes, store.port, str(folder), list(arguments))
    printed = [folder / f"printed-{rank}.txt" for rank in range(processes)]
    return "".join(path.read_text() for path in printed)


def held_store() -> torch.distributed.TCPStore:
    """A store on a free port, which it has as long as it lives; ranks that are told of it make their group there."""
    return torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def tell_rank(rank: int, world_size: int, port: int) -> None:
    """Say in the environment what torchrun says there. port: of a store that another process holds."""
    told = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "OMP_NUM_THREADS": 1,
    }
    os.environ.update({name: str(value) for name, value in told.items()})


def _run_rank(rank: int, world_size: int, port: int, folder: str, arguments: list[str]) -> None:
    tell_rank(rank, world_size, port)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.chdir(folder)
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).resolve().parent))  # as Python does for a script
    with Path(f"printed-{rank}.txt").open("w") as printed, contextlib.redirect_stdout(printed):
        runpy.run_path(arguments[0], run_name="__main__")
